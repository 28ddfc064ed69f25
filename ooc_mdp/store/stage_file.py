"""What a solve over stages writes as it goes: the policy of each stage, and the values of those that are kept.

    OUTPUT.stages    "ooc-mdp stages 1\\n", a token of the run, zeros up to 64 bytes
                     policies    uint8 or int32 [T, n], in the order of partitions
                     values      float64 [K, n], likewise

Pieces (one partition's of one stage) are written in any order, and again by a run that continues from a checkpoint
before them: they are the same then. The checkpoint has the CRC-32C of each piece and the run's token, so that a changed
or exchanged file is found. Without an output the pieces stay in memory. What has the name and does not begin like this
is never written to or removed.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import google_crc32c
import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import StoreError
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.store.disk_errors import advice
from ooc_mdp.store.mark import ForeignPathError
from ooc_mdp.store.transaction import fsync_path

__all__ = ["NO_ACTION", "STAGES_SUFFIX", "StageFile", "policy_type", "remove_stages", "stages_path"]

STAGES_SUFFIX = ".stages"
NO_ACTION = 255
"""Stands in a policy of one byte for a state without actions."""

_TITLE = b"ooc-mdp stages 1\n"
_TOKEN = 16
_HEADER = 64


def stages_path(output: Path) -> Path:
    """Where the policies of the stages of a result are until it is written: beside it."""
    return output.with_name(output.name + STAGES_SUFFIX)


def policy_type(most_actions: int | None) -> np.dtype[Any]:
    """One byte for each state where a state has at most so many actions, else int32; None where that is not known."""
    return np.dtype(np.uint8 if most_actions is not None and most_actions <= NO_ACTION else np.int32)


def remove_stages(path: Path) -> None:
    """Remove the file of a run that is over; what else has the name stays."""
    if _begins_as_ours(path):
        path.unlink(missing_ok=True)


def _begins_as_ours(path: Path) -> bool:
    """Whether a path is a file that begins as this program's, as far as it goes: a kill may cut it off."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return stat.S_ISREG(os.fstat(fd).st_mode) and _TITLE.startswith(os.read(fd, len(_TITLE)))
    finally:
        os.close(fd)


class StageFile:
    """The pieces of one run, in a file or in memory; a context that closes the file.

    Parameters
    ----------
    path : None to keep them in memory.
    partition_ptr : int64 [P+1]; partition p owns the states partition_ptr[p] .. partition_ptr[p+1]-1.
    stages : T.
    kept : stages whose values are kept, ascending.
    dtype : of policies.
    """

    def __init__(
        self, path: Path | None, partition_ptr: IntArray, stages: int, kept: tuple[int, ...], dtype: np.dtype[Any]
    ) -> None:
        self._path, self._ptr, self.dtype = path, partition_ptr, dtype
        self._kept = {stage: i for i, stage in enumerate(kept)}
        n, n_partitions = int(partition_ptr[-1]), partition_ptr.size - 1
        self._n = n
        self._values_at = _HEADER + stages * n * dtype.itemsize
        self._size = self._values_at + 8 * len(kept) * n
        self.policy_crc = np.zeros((stages, n_partitions), np.uint32)
        """uint32 [T, P]: CRC-32C of each piece that was written."""
        self.values_crc = np.zeros((len(kept), n_partitions), np.uint32)
        """uint32 [K, P]: likewise."""
        self.token = np.zeros(_TOKEN, np.uint8)
        """uint8 [16]: of the run that began the file."""
        self._fd = -1
        self._memory = np.zeros(0, np.uint8) if path is not None else np.zeros(self._size, np.uint8)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def begin(self) -> None:
        """Make the file anew.

        Raises
        ------
        ForeignPathError : something else has its name.
        StoreError : it cannot be written.
        """
        if self._path is None:
            return
        if os.path.lexists(self._path) and not _begins_as_ours(self._path):
            raise ForeignPathError(self._path)
        try:
            self._path.unlink(missing_ok=True)
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            self.token[:] = np.frombuffer(secrets.token_bytes(_TOKEN), np.uint8)
            os.pwrite(self._fd, (_TITLE + self.token.tobytes()).ljust(_HEADER, b"\0"), 0)
            os.ftruncate(self._fd, self._size)
        except OSError as error:
            raise self._unwritten(error) from error

    def resume(self, saved: dict[str, npt.NDArray[Any]]) -> None:
        """Continue the file that a checkpoint belongs to.

        Raises
        ------
        StoreError : it is missing, of another run, or of another size.
        """
        for name, array in self.arrays().items():
            array[...] = saved[name]
        if self._path is None:
            return
        try:
            self._fd = os.open(self._path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            header = os.pread(self._fd, _HEADER, 0)
            size = os.fstat(self._fd).st_size
        except OSError as error:
            raise self._lost(error.strerror or str(error)) from error
        if header != (_TITLE + self.token.tobytes()).ljust(_HEADER, b"\0"):
            raise self._lost("it is not the file of the run that wrote the checkpoint")
        if size != self._size:
            raise self._lost(f"it has {size} bytes, expected are {self._size}")

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What a checkpoint holds of it, by name."""
        return {"stages_token": self.token, "policy_crc": self.policy_crc, "values_crc": self.values_crc}

    def write_policy(self, stage: int, p: int, policy: npt.NDArray[np.int32]) -> None:
        """Write the policy of partition p in one stage, int32 [n_p], -1 where there is no action."""
        piece = policy.astype(self.dtype) if self.dtype == np.int32 else np.where(policy < 0, NO_ACTION, policy)
        at = _HEADER + (stage * self._n + int(self._ptr[p])) * self.dtype.itemsize
        self.policy_crc[stage, p] = self._write(piece.astype(self.dtype.newbyteorder("<"), copy=False), at)

    def write_values(self, stage: int, p: int, values: FloatArray) -> None:
        """Write the values of partition p in one stage, float64 [n_p], if the stage is kept."""
        if stage in self._kept:
            k = self._kept[stage]
            at = self._values_at + 8 * (k * self._n + int(self._ptr[p]))
            self.values_crc[k, p] = self._write(values.astype("<f8", copy=False), at)

    def _write(self, piece: npt.NDArray[Any], at: int) -> int:
        data = np.ascontiguousarray(piece).view(np.uint8).data
        if self._path is None:
            self._memory[at : at + len(data)] = data
        else:
            try:
                done = 0
                while done < len(data):
                    done += os.pwrite(self._fd, data[done:], at + done)
            except OSError as error:
                raise self._unwritten(error) from error
        return int(google_crc32c.value(bytes(data)))

    def sync(self) -> None:
        """Bring what was written to the disk; a checkpoint may follow."""
        if self._path is not None:
            try:
                os.fsync(self._fd)
                fsync_path(self._path.parent)
            except OSError as error:
                raise self._unwritten(error) from error

    def policy(self, stage: int) -> npt.NDArray[np.int32]:
        """int32 [n], in the order of partitions; StoreError where a piece is not what was written."""
        found = self._read(_HEADER + stage * self._n * self.dtype.itemsize, self.dtype, self.policy_crc[stage])
        policy = found.astype(np.int32)
        if self.dtype == np.uint8:
            policy[found == NO_ACTION] = -1
        return policy

    def values(self, stage: int) -> FloatArray:
        """float64 [n], in the order of partitions, of a kept stage; StoreError likewise."""
        k = self._kept[stage]
        return self._read(self._values_at + 8 * k * self._n, np.dtype("<f8"), self.values_crc[k])

    def _read(self, at: int, dtype: np.dtype[Any], due: npt.NDArray[np.uint32]) -> npt.NDArray[Any]:
        """An array of all partitions, each of which has the CRC-32C that is due."""
        dtype = dtype.newbyteorder("<")
        size = self._n * dtype.itemsize
        if self._path is None:
            data: bytes | memoryview = self._memory[at : at + size].data
        else:
            data = self._pread(size, at)
        for p, (first, last) in enumerate(self._pieces()):
            found = int(google_crc32c.value(bytes(data[first * dtype.itemsize : last * dtype.itemsize])))
            if found != int(due[p]):
                raise self._lost(f"its piece at byte {at + first * dtype.itemsize} is not what was written")
        return np.frombuffer(data, dtype)

    def _pieces(self) -> Iterator[tuple[int, int]]:
        return zip(self._ptr[:-1].tolist(), self._ptr[1:].tolist(), strict=True)

    def _pread(self, size: int, at: int) -> bytes:
        parts, done = [], 0
        while done < size:
            part = os.pread(self._fd, size - done, at + done)
            if not part:
                raise self._lost(f"it ends at byte {at + done}")
            parts.append(part)
            done += len(part)
        return b"".join(parts)

    def _unwritten(self, error: OSError) -> StoreError:
        return StoreError(
            f"cannot write the policies of the stages to {self._path}: {error.strerror or error}; {advice(error)}, "
            f"then continue from the last checkpoint with --resume"
        )

    def _lost(self, why: str) -> StoreError:
        return StoreError(
            f"{self._path}, the policies of the stages done so far, cannot be used ({why}); solve from the beginning "
            f"with --overwrite in place of --resume"
        )
