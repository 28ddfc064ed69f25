"""Ways to bring a partition from a store's files into memory, each as a function that threads call with its number.

A way gives the chunk files' bytes, the values that chunks hold (still encoded), or the partition's table, in host
memory or on a CUDA device. Buffers are there and touched before the first read, page-locked where there is a device.
Ways that were measured and not chosen (O_DIRECT, mapped files, tensorstore, blosc into kept buffers) are in
benchmarks/notes/2026-11-reading.md. To add one, write a function that takes a `Setting` and returns what reads
partition p, and name it in `WAYS`.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import queue
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ooc_mdp.backends.cuda.decode.frames import PLAN_BYTES, DecodePlan, DeviceDecoder, decode_kernels
from ooc_mdp.backends.cuda.device import CudaDevice, Stream
from ooc_mdp.runtime.arena import Arena
from ooc_mdp.store import Store
from ooc_mdp.store.layout import READ_FIELDS

__all__ = ["WAYS", "NotHere", "Read", "Setting", "Way", "keep_memory"]

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
_BLOCK = 4096
"""Buffers begin, and files are read, at multiples of it: a page."""
_TABLES_KEPT = 4
"""Tables that an arena has room for: more than threads read at a time."""


class NotHere(Exception):
    """A way that this machine does not have; says why."""


@dataclass(frozen=True)
class Setting:
    """What a way reads, and how."""

    store: Store
    order: Sequence[int]
    """Partitions in the order in which they are read."""
    threads: int
    """Threads that call it."""
    device: str
    """ "cpu" or "cuda:0"."""
    buffers: dict[str, list[Bytes]] = field(default_factory=dict)

    @property
    def fields(self) -> list[str]:
        """Names of the table's fields that the store has."""
        return [name for name in READ_FIELDS if name in self.store.fields]

    def paths(self, p: int) -> list[Path]:
        """Chunk files of a partition's table."""
        return [self.store.path / self.store.chunk_name(name, p) for name in self.fields]

    def pool(self, size: int, locked: bool = True) -> Pool:
        """A buffer of that size for each thread, page-locked if a device is there."""
        return Pool([host_buffer(size, self.device if locked else "cpu") for _ in range(self.threads)])


class Pool:
    """Buffers that threads lend themselves; their memory may be an owner's, which lives as long."""

    def __init__(self, buffers: Sequence[Any], owner: object = None) -> None:
        self._owner = owner
        self._free: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for buffer in buffers:
            self._free.put(buffer)

    @contextmanager
    def one(self) -> Iterator[Any]:
        """A buffer for the time of a read."""
        buffer = self._free.get()
        try:
            yield buffer
        finally:
            self._free.put(buffer)


Read = Callable[[int], object]


@dataclass(frozen=True)
class Way:
    """A way, in words."""

    name: str
    gives: str
    """ "bytes", "values" (decompressed, still encoded), "table", or "table on the device"."""
    open: Callable[[Setting], Read]
    close: Callable[[], None] = lambda: None


def host_buffer(size: int, device: str) -> Bytes:
    """Page-aligned memory that has been touched, page-locked if there is a device."""
    if device != "cpu":
        from cupyx import empty_pinned

        buffer = np.asarray(empty_pinned(size + _BLOCK, np.uint8))
        start = -buffer.ctypes.data % _BLOCK
        buffer = buffer[start : start + size]
    else:
        buffer = np.frombuffer(mmap.mmap(-1, max(size, 1)), np.uint8)
    buffer[:] = 0
    return buffer


def _up(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _room(s: Setting) -> int:
    """Bytes that hold any partition's files, each at a multiple of a block, in whole blocks."""
    return int(s.store.chunk_bytes.max()) + 2 * _BLOCK * len(s.fields)


def _read_file(path: Path, into: Bytes, at: int) -> int:
    """A whole file into a buffer; its bytes."""
    fd = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        view, done = memoryview(into)[at:], 0
        while done < size:
            got = os.preadv(fd, [view[done : _up(size)]], done)
            if got == 0:
                raise OSError(f"{path} shrank while it was read")
            done += got
        return size
    finally:
        os.close(fd)


def _bytes(ahead: bool = False) -> Callable[[Setting], Read]:
    def open_(s: Setting) -> Read:
        pool = s.pool(_room(s))
        following = dict(zip(s.order, s.order[s.threads :], strict=False))

        def read(p: int) -> None:
            if ahead and p in following:
                s.store.prefetch(following[p])
            with pool.one() as buffer:
                at = 0
                for path in s.paths(p):
                    at += _up(_read_file(path, buffer, at))

        return read

    return open_


def _frames(s: Setting) -> Read:
    pool = s.pool(s.store.facts.frame_buffer_bytes)

    def read(p: int) -> None:
        with pool.one() as buffer:
            s.store.read_frames(p, buffer)

    return read


def _frames_to_device(s: Setting) -> Read:
    cupy = _cupy(s)
    size = s.store.facts.frame_buffer_bytes
    pool = Pool([(host_buffer(size, s.device), *_landing(cupy, size)) for _ in range(s.threads)])

    def read(p: int) -> None:
        with pool.one() as (buffer, target, stream):
            n_bytes = s.store.read_frames(p, buffer).n_bytes
            target.data.copy_from_host_async(buffer.ctypes.data, n_bytes, stream)
            stream.synchronize()

    return read


def _cupy(s: Setting) -> Any:
    if s.device == "cpu":
        raise NotHere("needs a CUDA device")
    import cupy

    return cupy


def _landing(cupy: Any, size: int) -> tuple[Any, Any]:
    return cupy.empty(size, cupy.uint8), cupy.cuda.Stream(non_blocking=True)


def _decoded_by_device(s: Setting) -> Read:
    _cupy(s)
    store, device = s.store, CudaDevice(int(s.device.partition(":")[2] or 0))
    kernels = decode_kernels(device)
    actions, width = (int(store.facts.attributes[n]) for n in ("actions_per_state", "successors_per_action"))
    decoder = DeviceDecoder(store.facts.stored_fields, store.facts.frame_buffer_bytes, actions, width)
    size = decoder.buffer_bytes

    def place() -> tuple[Bytes, Stream, int, int, int]:
        """Page-locked memory, a stream, and addresses of the buffer, the scratch and the words for faults."""
        stream, words = device.stream(), device.allocate(8)
        stream.clear(words, 8)
        return device.pinned(size), stream, device.allocate(size), device.allocate(decoder.scratch_bytes), words

    pool = Pool([place() for _ in range(s.threads)], owner=device)

    def decode(p: int, buffer: Bytes, stream: Stream, target: int, scratch: int, words: int) -> DecodePlan:
        plan = decoder.plan(store.read_frames(p, buffer[PLAN_BYTES:]), buffer)
        stream.upload(target, buffer[: plan.n_bytes])
        decoder.launch(kernels, stream, plan, decoder.arguments(target, scratch, words))
        stream.wait()
        return plan

    def read(p: int) -> None:
        with pool.one() as where:
            decode(p, *where)

    with pool.one() as where:
        _, stream, _, scratch, _ = where
        plan, meant = decode(s.order[0], *where), store.read(s.order[0])[0]
        for name, (offset, length) in plan.offsets.items():
            made = np.empty(length, decoder.dtypes[name])
            stream.download(made, scratch + offset)
            stream.wait()
            if name in s.fields and not np.array_equal(made, getattr(meant, name)):
                raise RuntimeError(f"the device decodes {name} to other values than Store.read")
    return read


def _store_read(s: Setting) -> Read:
    return s.store.read


def _store_read_in(s: Setting) -> Read:
    arena = Arena(_TABLES_KEPT * int(s.store.facts.partition_bytes.max()))
    return lambda p: s.store.read_into(p, arena)


def keep_memory() -> None:
    """Have glibc keep freed arrays for the next ones, as it comes to by itself, and as `return_freed_memory` prevents.

    Blosc allocates its scratch anew for every frame, so that this matters to all that decompress with it.

    Nothing on C libraries other than glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(-3, 32 << 20)  # M_MMAP_THRESHOLD, at its most
        mallopt(-1, (1 << 31) - 1)  # M_TRIM_THRESHOLD


# Zarr readers


def _zarr(pipeline: str | None) -> Callable[[Setting], Read]:
    def open_(s: Setting) -> Read:
        import zarr

        if pipeline is not None:
            module, _, name = pipeline.rpartition(".")
            try:
                found = hasattr(__import__(module, fromlist=[name]), name)
            except ImportError:
                found = False
            if not found:
                raise NotHere(f"zarr {zarr.__version__} has no {pipeline} here")
        path = pipeline or "zarr.core.codec_pipeline.BatchedCodecPipeline"
        zarr.config.set(
            {
                "codec_pipeline.path": path,
                "threading.max_workers": s.threads,
                "async.concurrency": max(10, s.threads),
            }
        )
        group = zarr.open_group(s.store.path, mode="r")
        names = {
            s.store.chunk_name(name, p).rpartition("/")[0] for name in s.fields for p in range(s.store.n_partitions)
        }
        arrays = {name: group[name] for name in names}
        return lambda p: [arrays[s.store.chunk_name(name, p).rpartition("/")[0]][p] for name in s.fields]

    return open_


def _reset_zarr() -> None:
    import zarr

    zarr.config.reset()


WAYS: tuple[Way, ...] = (
    Way("files: readinto", "bytes", _bytes()),
    Way("files: readinto, WILLNEED ahead", "bytes", _bytes(ahead=True)),
    Way("Store.read_frames (checked)", "bytes", _frames),
    Way("zarr, default pipeline", "values", _zarr(None), close=_reset_zarr),
    Way("zarr, fused pipeline", "values", _zarr("zarr.core.codec_pipeline.FusedCodecPipeline"), close=_reset_zarr),
    Way("Store.read", "table", _store_read),
    Way("Store.read_into an arena", "table", _store_read_in),
    Way("Store.read_frames, copied to the device", "bytes on the device", _frames_to_device),
    Way("Store.read_frames, decoded by the device", "table on the device", _decoded_by_device),
)
