"""What the engine's benchmarks share: bandwidths of disk and link, cold and warm files, stores that note what was read.

A floor is bytes over a bandwidth that was measured in the same run, from the same files, with the same number of
threads. Whether files are cold is not taken on trust: `cached_share` asks the kernel which of their pages it holds.
Nothing here knows a solver's kernels; CuPy is imported where a function needs a device.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import measuring
from measuring import say

import ooc_mdp
from ooc_mdp.model.partition import PartitionTable, RawPartition
from ooc_mdp.options import format_bytes
from ooc_mdp.runtime.arena import TableMemory
from ooc_mdp.store import Store
from ooc_mdp.store.layout import FIELDS, Codec

__all__ = [
    "Reads",
    "RecordingStore",
    "add_table_options",
    "best_seconds",
    "cached_share",
    "device_facts",
    "device_number",
    "disk_bandwidth",
    "disk_probes",
    "drop_page_cache",
    "fastest",
    "link_bandwidth",
    "make_warm",
    "open_or_generate",
    "parameters_of",
    "recording",
    "say",
    "solve_warm_up",
    "store_figures",
    "touch_memory",
    "uncompressed",
    "whole_table",
]

_PIECE = 4 << 20
"""Bytes that a reading thread asks for at a time."""
_PAGE = mmap.PAGESIZE


# Tables


def add_table_options(parser: argparse.ArgumentParser, problem: str, grid: str) -> None:
    """What names a table: --problem, --grid, -p, --partition-shape, --store."""
    parser.add_argument("--problem", default=problem)
    parser.add_argument("--grid", default=grid, help="points along each axis")
    parser.add_argument("-p", "--parameter", action="append", metavar="NAME=VALUE", default=[])
    parser.add_argument(
        "--partition-shape", help="points of a partition along each axis; 1/256 of the table by default"
    )
    parser.add_argument("--store", type=Path, help="keep the store here, and take it where it is; else temporary")
    parser.add_argument("--uncompressed", action="store_true", help="store what is encoded as it is: the most to read")


def parameters_of(options: argparse.Namespace) -> dict[str, str | int | float]:
    """The problem's parameters as the options name them."""
    parameters: dict[str, str | int | float] = {"grid": options.grid} if options.grid else {}
    return parameters | dict(said.split("=", 1) for said in options.parameter)


def open_or_generate(options: argparse.Namespace, path: Path, device: str) -> tuple[Store, float]:
    """The store of the options' table at a path, and the seconds that generating it took (0: it was there)."""
    if path.exists():
        store = ooc_mdp.open_store(path)
        wanted = {k: str(v) for k, v in parameters_of(options).items()}
        say(f"taking the store that is there, {store.n_states:,} states; asked for: {options.problem} {wanted}")
        return store, 0.0
    shape = [int(n) for n in options.partition_shape.split(",")] if options.partition_shape else None
    began = time.monotonic()
    with uncompressed() if options.uncompressed else contextlib.nullcontext():
        store = ooc_mdp.generate(
            options.problem,
            path,
            parameters_of(options),
            partition_shape=shape,
            device=device if device == "cpu" else "auto",
            threads=options.workers,
        )
    seconds = time.monotonic() - began
    say(f"generated {store.n_states:,} states in {store.n_partitions} partitions in {seconds:.1f} s")
    return store, seconds


@contextlib.contextmanager
def uncompressed() -> Iterator[None]:
    """Stores that are written meanwhile are as large as their numbers are where no codec finds anything in them."""
    usual, codec = dict(FIELDS), Codec("lz4", 0, "noshuffle")
    FIELDS.update({name: replace(field, plain=codec, encoded=codec) for name, field in usual.items()})
    try:
        yield
    finally:
        FIELDS.update(usual)


def store_figures(store: Store, seconds: float) -> dict[str, Any]:
    """Sizes of a store."""
    decoded, stored = int(store.facts.partition_bytes.sum()), int(store.chunk_bytes.sum())
    say(f"{format_bytes(decoded)} decoded, {format_bytes(stored)} stored")
    return {
        "states": store.n_states,
        "transitions": store.n_transitions,
        "partitions": store.n_partitions,
        "dtype": store.facts.dtypes["probabilities"].name,
        "decoded_bytes": decoded,
        "stored_bytes": stored,
        "largest_partition_bytes": int(store.facts.partition_bytes.max()),
        "generation_seconds": seconds,
    }


def whole_table(store: Store, device: str) -> dict[str, Any]:
    """A cache that holds every partition: on a device they lie in slots, which may take more than the tables."""
    return {"cache": "100%" if device == "cpu" else 3 * int(store.facts.partition_bytes.sum())}


def solve_warm_up(options: argparse.Namespace, folder: Path, **asked: Any) -> None:
    """Solve a tiny table of the same problem, so that kernels are compiled and loaded."""
    tiny = {"grid": "16"} if options.grid else {}
    path = folder / "warm-up"
    rows_by = "cpu" if options.device == "cpu" else "auto"
    ooc_mdp.generate(options.problem, path, parameters_of(options) | tiny, partitions=4, device=rows_by, overwrite=True)
    ooc_mdp.solve(path, **asked)


@dataclass(frozen=True)
class Reads:
    """What was read of a store, and when: one list a kind of read, filled by reading threads."""

    partitions: set[int] = field(default_factory=set)
    """Partitions that were read at least once."""
    spans: list[tuple[str, int, int, float, float, int]] = field(default_factory=list)
    """(kind, thread, partition, begin, end, bytes read), in seconds of time.perf_counter."""
    watch: Callable[[Reads], None] = lambda _: None
    """Told after every read, on the reading thread."""


@dataclass(frozen=True, eq=False)
class RecordingStore(Store):
    """A store that notes which of its partitions are read, when, and by which thread."""

    reads: Reads = field(default_factory=Reads, repr=False)

    def read_into(
        self, p: int, memory: TableMemory, halo_memory: TableMemory | None = None
    ) -> tuple[PartitionTable, int]:
        """Noted; `read` comes here, too."""
        return self._note("read and decode", p, lambda: super(RecordingStore, self).read_into(p, memory, halo_memory))

    def read_frames(self, p: int, into: npt.NDArray[np.uint8] | memoryview) -> RawPartition:
        """As the store's own."""
        return self._note("read", p, lambda: super(RecordingStore, self).read_frames(p, into))

    def _note(self, kind: str, p: int, read: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        result = read()
        ended = time.perf_counter()
        self.reads.partitions.add(p)
        self.reads.spans.append((kind, threading.get_ident(), p, began, ended, int(self.chunk_bytes[p])))
        self.reads.watch(self.reads)
        return result


def recording(store: Store, watch: Callable[[Reads], None] | None = None) -> RecordingStore:
    """The same store, noting its reads."""
    reads = Reads() if watch is None else Reads(watch=watch)
    return RecordingStore(**{f.name: getattr(store, f.name) for f in fields(Store)}, reads=reads)


# Files in and out of the page cache


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)


def drop_page_cache(folder: Path) -> dict[str, Any]:
    """Drop a folder's files from the page cache; how, and which share of their pages the kernel holds all the same."""
    how = "posix_fadvise on every file"
    measuring.evict(folder)
    left = cached_share(folder)
    if left > 0.01:  # a cache that keeps what it is told to drop; the superuser may drop all of it
        with contextlib.suppress(OSError):
            Path("/proc/sys/vm/drop_caches").write_text("3\n")
            how, left = how + ", then drop_caches", cached_share(folder)
    if left > 0.01:
        say(f"not cold: {left:.0%} of the files' pages stay in the page cache; give --store a folder on a disk")
    return {"page_cache": "cold", "how": how, "cached_share": left}


def make_warm(folder: Path) -> dict[str, Any]:
    """Read every file once; which share of their pages the page cache holds then."""
    measuring.read_through(folder)
    return {"page_cache": "warm", "how": "every file read once", "cached_share": cached_share(folder)}


def cached_share(folder: Path) -> float:
    """Share of the pages of a folder's files that lie in the page cache (Linux: mincore)."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    resident = pages = 0
    for path in _files(folder):
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE) as mapped:
            count = -(-len(mapped) // _PAGE)
            marks = np.empty(count, np.uint8)
            window = np.frombuffer(mapped, np.uint8)
            failed = libc.mincore(window.ctypes.data, len(mapped), marks.ctypes.data)
            del window  # the mapping cannot be closed while an array looks at it
            if failed:
                raise OSError(ctypes.get_errno(), "mincore failed", str(path))
            resident += int((marks & 1).sum())
            pages += count
    return resident / pages if pages else 0.0


def disk_bandwidth(folder: Path, threads: int, direct: bool = False, most: int = 8 << 30) -> dict[str, Any]:
    """Bytes a second at which threads read a folder's files, into buffers of their own that are warm.

    Parameters
    ----------
    direct : past the page cache (O_DIRECT), where the file system has that; else as the page cache is.
    most : stop after so many bytes.
    """
    flags = os.O_RDONLY | (os.O_DIRECT if direct else 0)
    work: list[tuple[Path, int]] = []
    planned = 0
    for path in _files(folder):
        if planned < most:
            work += [(path, at) for at in range(0, path.stat().st_size, _PIECE)]
            planned += path.stat().st_size
    local = threading.local()

    def prepare() -> None:
        local.buffer = mmap.mmap(-1, _PIECE)  # page-aligned, as O_DIRECT asks
        local.buffer.write(bytes(_PIECE))

    def piece(item: tuple[Path, int]) -> int:
        path, at = item
        descriptor = os.open(path, flags)
        try:
            return os.preadv(descriptor, [local.buffer], at)
        finally:
            os.close(descriptor)

    with ThreadPoolExecutor(threads, initializer=prepare) as pool:
        list(pool.map(lambda _: time.sleep(0.001), range(4 * threads)))  # the threads and their buffers are there
        began = time.perf_counter()
        total = sum(pool.map(piece, work))
        seconds = time.perf_counter() - began
    return {
        "how": "direct" if direct else "buffered",
        "threads": threads,
        "bytes": total,
        "seconds": seconds,
        "bytes_per_second": total / seconds,
    }


def disk_probes(folder: Path, threads: Sequence[int], cold: bool) -> list[dict[str, Any]]:
    """Bandwidths with several numbers of threads: of the disk, past the page cache and through it, or of the cache."""
    found = []
    for count in dict.fromkeys(threads):
        for direct in (True, False) if cold else (False,):
            if cold and not direct:
                measuring.evict(folder)
            try:
                found.append(disk_bandwidth(folder, count, direct))
            except OSError as error:
                if not direct:
                    raise
                say(f"O_DIRECT does not work here ({error.strerror}): the disk is measured through the page cache")
    return found


def fastest(probes: Sequence[Mapping[str, Any]]) -> float:
    """The largest bandwidth of some probes: what a floor stands on."""
    return max(float(p["bytes_per_second"]) for p in probes)


def touch_memory(size: int) -> float:
    """Fill and free so much host memory; seconds. A virtual machine may be given its memory at first touch only."""
    began = time.perf_counter()
    piece = 1 << 30
    held = [np.ones(min(piece, size - at), np.uint8) for at in range(0, size, piece)]
    del held
    return time.perf_counter() - began


# Devices


def link_bandwidth(device: str, size: int = 1 << 30, repeats: int = 5) -> dict[str, float]:
    """Bytes a second of copies from the host's memory to a CUDA device, the best of some repeats."""
    import cupy
    from cupyx import empty_pinned

    found = {}
    with cupy.cuda.Device(device_number(device)):
        target = cupy.empty(size, cupy.uint8)
        for kind, source in (("pinned", empty_pinned(size, np.uint8)), ("pageable", np.empty(size, np.uint8))):
            source[:] = 1
            found[kind] = size / best_seconds(lambda source=source: target.set(source), repeats)  # type: ignore[misc]
    return found


def best_seconds(work: Callable[[], Any], repeats: int) -> float:
    """The shortest of some repeats of work on the current CUDA device, by its own events, after one to warm up."""
    import cupy

    stream = cupy.cuda.get_current_stream()
    shortest = np.inf
    for repeat in range(repeats + 1):
        begin, end = cupy.cuda.Event(), cupy.cuda.Event()
        stream.synchronize()
        begin.record(stream)
        work()
        end.record(stream)
        end.synchronize()
        if repeat:
            shortest = min(shortest, cupy.cuda.get_elapsed_time(begin, end) / 1e3)
    return float(shortest)


def device_number(device: str) -> int:
    """0 of "cuda:0" and "cuda"."""
    return int(device.partition(":")[2] or 0)


def device_facts(device: str) -> dict[str, Any]:
    """The accelerator in words; empty for the CPU."""
    if device == "cpu":
        return {}
    import cupy

    found = cupy.cuda.runtime.getDeviceProperties(device_number(device))
    return {
        "device": found["name"].decode(),
        "device_memory_bytes": int(found["totalGlobalMem"]),
        "cuda_driver": cupy.cuda.runtime.driverGetVersion(),
    }
