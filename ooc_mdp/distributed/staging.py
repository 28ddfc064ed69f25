"""Staging: copies of partitions on a node's own disk, which loads read in place of the shared store.

    shared store ──▶ DIR/FINGERPRINT/successors/4096/c.17.0   copied by a Dask task per worker, in order of partitions
         │                     │
         └─── if not there ────┴──▶ load, compared with the manifest (length, CRC-32C) in either case

A file appears by rename, whole or not at all, so that workers of one node share the directory; the last one to leave
removes it (each holds a shared flock). Staging changes where bytes are read, and never what is proved: what is missing
or damaged is read from the shared store, and where the disk is full the solve continues with what has been copied.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ooc_mdp.distributed.messages import StagingCounts
from ooc_mdp.errors import StoreError, SystemFailureError
from ooc_mdp.model.mdp import IntArray
from ooc_mdp.model.partition import PartitionTable, RawPartition
from ooc_mdp.model.table import Loader, Table
from ooc_mdp.options import format_bytes
from ooc_mdp.runtime.arena import TableMemory
from ooc_mdp.store import Store
from ooc_mdp.store.directory import Directory
from ooc_mdp.store.layout import READ_FIELDS
from ooc_mdp.store.locks import try_lock
from ooc_mdp.store.mark import ForeignPathError, claim_directory

__all__ = ["NodeStaging", "StagedStore"]

_BLOCK = 1 << 20
"""Bytes that a copy holds in memory."""
_LAST = READ_FIELDS[-1]
"""The field that is copied last: where its chunk is present, the whole partition has been copied."""

Loaded = TypeVar("Loaded")


class NodeStaging:
    """One worker's part in the staging of one solve; any thread may use it.

    Parameters
    ----------
    path : DIR/FINGERPRINT; a worker that cannot create it, such as a late joiner, loads from the shared store.
    """

    def __init__(self, path: str) -> None:
        self.path, self.counts = Path(path), StagingCounts()
        self._counting, self._writing, self._closing = threading.Lock(), threading.Lock(), threading.Event()
        self._directory: Directory | OSError
        """Open, with a shared flock; or why it is not."""
        try:
            self._directory = self._enter()
        except OSError as error:
            self._directory = error
        except (ForeignPathError, SystemFailureError) as error:
            self._directory = OSError(errno.EEXIST, str(error))

    def _enter(self) -> Directory:
        while True:
            self.path.mkdir(exist_ok=True)
            if self.path.is_symlink():
                raise ForeignPathError(self.path)
            directory = Directory(self.path)
            try_lock(directory.fd, fcntl.LOCK_SH)
            if directory.is_at_its_path():  # else the last worker of another solve has just removed it
                claim_directory(directory.fd, self.path)
                return directory

    def count(self, name: str, n_bytes: int) -> None:
        """Add to one of the counts."""
        with self._counting:
            setattr(self.counts, name, getattr(self.counts, name) + n_bytes)

    def over(self, store: Store) -> StagedStore:
        """Return the store with loads from the copies of this node."""
        directory = self._directory if isinstance(self._directory, Directory) else store.directory
        return StagedStore(store, replace(store, directory=directory), self)

    def holds(self, store: Store, p: int) -> bool:
        """Return whether partition p has been copied to this node, by whichever worker."""
        return not self._closing.is_set() and (self.path / store.chunk_name(_LAST, p)).exists()

    def discard(self, store: Store, p: int) -> None:
        """Load partition p from the shared store from now on: its copy is damaged."""
        (self.path / store.chunk_name(_LAST, p)).unlink(missing_ok=True)

    def copy(self, store: Store, partitions: Sequence[int]) -> str | None:
        """Copy the chunks of partitions, until the solve or an error ends it.

        Returns
        -------
        A warning after an error: how much was copied, what the system reported, and how much space is left.
        """
        for done, p in enumerate(partitions):
            try:
                for name in READ_FIELDS:
                    if name in store.fields:
                        self._copy_chunk(store, store.chunk_name(name, p))
            except OSError as error:
                if self._closing.is_set():
                    break
                free = ""
                with suppress(OSError):
                    free = f" ({format_bytes(shutil.disk_usage(self.path.parent).free)} free)"
                return (
                    f"staging to {self.path.parent}{free} ended after {done} of {len(partitions)} partitions and "
                    f"{format_bytes(self.counts.bytes_staged)}: {error}; the others are read from the shared store"
                )
        return None

    def _copy_chunk(self, store: Store, name: str) -> None:
        """Copy one file; raises OSError also where the solve is over."""
        unfinished = self.path / f"{uuid.uuid4().hex}.partial"
        with self._writing:  # nothing is written while files are removed
            if isinstance(self._directory, OSError):
                raise self._directory
            chunk = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=store.directory.fd)
            try:
                with open(chunk, "rb") as source, open(unfinished, "xb") as copy:
                    while block := source.read(_BLOCK):
                        if self._closing.is_set():
                            raise InterruptedError
                        copy.write(block)
                (self.path / name).parent.mkdir(parents=True, exist_ok=True)
                n_bytes = unfinished.stat().st_size
                os.replace(unfinished, self.path / name)
                self.count("bytes_staged", n_bytes)
            finally:
                unfinished.unlink(missing_ok=True)

    def close(self) -> None:
        """Stop copying, and remove the copies unless another worker of the node still loads them."""
        self._closing.set()
        with self._writing:
            if isinstance(self._directory, Directory) and self._directory.fd >= 0:
                try:
                    try_lock(self._directory.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(self.path, ignore_errors=True)
                except BlockingIOError:
                    pass
                self._directory.close()


class StagedStore(Table):
    """A store whose loads read copies on the node where these are whole, and the shared store elsewhere.

    Parameters
    ----------
    shared : the store.
    local : the same table in the staging directory, compared with the manifest of the shared store.
    staging : which partitions have been copied.
    """

    def __init__(self, shared: Store, local: Store, staging: NodeStaging) -> None:
        self.facts, self._shared, self._local, self._staging = shared.facts, shared, local, staging

    def hold(self) -> AbstractContextManager[None]:
        """Keep others from replacing the shared store."""
        return self._shared.hold()

    def load_code(self) -> None:
        """Load the loops that decode chunks."""
        self._shared.load_code()

    def loader(self, device: str) -> Loader:
        """As the store's, from either place."""
        return replace(
            self._shared.loader(device),
            read=self.read,
            read_into=self.read_into,
            read_frames=self.read_frames,
            prefetch=self.prefetch,
        )

    def read(self, p: int) -> tuple[PartitionTable, int]:
        """Read a partition, from either place."""
        return self._load(p, lambda store: store.read(p))

    def read_into(
        self, p: int, memory: TableMemory, halo_memory: TableMemory | None = None
    ) -> tuple[PartitionTable, int]:
        """Read a partition into memory of the caller's."""
        return self._load(p, lambda store: store.read_into(p, memory, halo_memory))

    def read_frames(self, p: int, into: npt.NDArray[np.uint8]) -> RawPartition:
        """Read a partition's chunks into memory of the caller's, without decompressing them."""
        return self._load(p, lambda store: store.read_frames(p, into))

    def _load(self, p: int, load: Callable[[Store], Loaded]) -> Loaded:
        n_bytes = int(self._shared.chunk_bytes[p])  # of either place
        if self._staging.holds(self._shared, p):
            try:
                loaded = load(self._local)
            except StoreError:
                self._staging.discard(self._shared, p)
            else:
                self._staging.count("bytes_read_staged", n_bytes)
                return loaded
        loaded = load(self._shared)
        self._staging.count("bytes_read_shared", n_bytes)
        return loaded

    def prefetch(self, p: int) -> None:
        """Ask the system to read a partition ahead, from where it will be loaded."""
        (self._local if self._staging.holds(self._shared, p) else self._shared).prefetch(p)

    def read_field(self, name: str, p: int) -> tuple[npt.NDArray[Any], int]:
        """Read one field of a partition from the shared store."""
        return self._shared.read_field(name, p)

    def original_states(self, p: int) -> IntArray:
        """Read the source's numbers of a partition's states from the shared store."""
        return self._shared.original_states(p)

    def to_source(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return values in the source's order of states."""
        return self._shared.to_source(values)
