"""Ways to read a store: bytes, decompressed values, tables, in host memory or on a GPU, from a cold or warm page cache.

Each way reads partitions on one or more threads for some time, or until it has read all of a cold store. Cold means
that the files were dropped from the page cache just before (the kernel is asked whether they are gone). Then the
codecs: bytes and decompression speed of each large field, as it is stored (encoded), with every compressor.
"""

from __future__ import annotations

import argparse
import itertools
import os
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import common
import field_codecs
import measuring
import numpy as np
from numcodecs import blosc
from reading_ways import WAYS, NotHere, Read, Setting, Way, keep_memory

import ooc_mdp
from ooc_mdp.options import format_bytes
from ooc_mdp.runtime.memory import return_freed_memory
from ooc_mdp.store import Store

NOT_INCLUDED = (
    "opening the store, allocating and page-locking buffers, and one partition read beforehand by each thread",
    "layout kernels and sweeps: what arrives on a device lies there as PartitionTable's arrays or as frames",
    "halo, boundary and pointers in the codecs' table: a few hundredths of a byte a transition",
    "pages that a host below a virtual machine keeps: cold means that this kernel had none",
)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--table", action="append", metavar="NAME[:GRID]", help="or NAME:PARAMETER=VALUE;...; repeat for more"
    )
    parser.add_argument("--partitions", type=int, default=64, help="of each table")
    parser.add_argument("--threads", default=f"1,{os.cpu_count() or 2}", help="numbers of reading threads")
    parser.add_argument("--page-cache", default="cold,warm", help="cold, warm or both")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument(
        "--ways", default="", help="parts of the names of ways, separated by semicolons; all by default"
    )
    parser.add_argument("--codec-partitions", type=int, default=2, help="partitions whose fields are compressed again")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda:0: also generates the tables")
    parser.add_argument(
        "--memory",
        choices=("kept", "given-back"),
        default="kept",
        help="whether the C library keeps freed arrays for the next ones or gives them back at once, as in a solve",
    )
    parser.add_argument("--time-limit", type=float, default=3600.0, help="seconds after which nothing new is begun")
    measuring.add_common_options(parser)
    options = parser.parse_args(arguments)
    options.table = options.table or ["mountain-car:2000,2000", "double-pendulum:36,36,36,36"]
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    deadline = time.monotonic() + options.time_limit
    device = resolved(options.device)
    facts: dict[str, Any] = {"machine": measuring.machine(options.machine_shared), "versions": measuring.versions()}
    facts["machine"] |= common.device_facts(device)
    (return_freed_memory if options.memory == "given-back" else keep_memory)()
    blosc.use_threads = False  # threads decompress for themselves, without the interpreter's lock
    tables = []
    with tempfile.TemporaryDirectory(prefix="ooc-mdp-benchmark-") as folder:
        for number, said in enumerate(options.table):
            problem, parameters = parsed(said)
            began = time.monotonic()
            path = Path(folder) / str(number)
            store = ooc_mdp.generate(problem, path, parameters, partitions=options.partitions, device=device)
            facts_of_table = {"problem": problem, "parameters": parameters} | common.store_figures(
                store, time.monotonic() - began
            )
            readings = list(read_all(store, device, options, deadline))
            codecs = field_codecs.compare(store, options.codec_partitions, deadline)
            tables.append(facts_of_table | {"readings": readings, "codecs": codecs})
            show(tables[-1])
    measuring.write_figures("reading", options, {"tables": tables}, facts, NOT_INCLUDED)


def parsed(said: str) -> tuple[str, dict[str, str | int | float]]:
    """A problem and its parameters; where no name stands before the text it is the grid."""
    problem, _, rest = said.partition(":")
    named = (text.partition("=") for text in rest.split(";") if text)
    return problem, {name if equals else "grid": value if equals else name for name, equals, value in named}


def resolved(device: str) -> str:
    """ "cuda:0" or "cpu" where it was left open."""
    if device != "auto":
        return device
    from ooc_mdp.backends.cuda.device import device_count

    return "cuda:0" if device_count() else "cpu"


def read_all(store: Store, device: str, options: argparse.Namespace, deadline: float) -> Iterator[dict[str, Any]]:
    """Every way, on each number of threads, cold and then warm."""
    wanted = [word for word in options.ways.split(";") if word]
    chosen = [way for way in WAYS if not wanted or any(word in way.name for word in wanted)]
    threads = [int(n) for n in options.threads.split(",")]
    for page_cache in options.page_cache.split(","):
        if page_cache == "warm":
            common.make_warm(store.path)
        for way in chosen:
            for n in threads:
                what = {"way": way.name, "gives": way.gives, "threads": n, "page_cache": page_cache}
                if time.monotonic() > deadline:
                    yield what | {"skipped": "the time limit was reached before"}
                    continue
                try:
                    yield what | measure(way, store, device, n, page_cache == "cold", options.seconds)
                except NotHere as reason:
                    yield what | {"skipped": str(reason)}
                    break
                finally:
                    way.close()


def measure(way: Way, store: Store, device: str, threads: int, cold: bool, seconds: float) -> dict[str, Any]:
    """Rates of one way; every partition once at most if cold, in turn until the time is up if warm."""
    order = list(range(store.n_partitions))
    read = way.open(Setting(store, order, threads, device))
    read(order[-1])  # compiles, opens what is opened once
    if cold:
        measuring.evict(store.path)
        left = common.cached_share(store.path)
        if left > 0.01:
            raise RuntimeError(
                f"{left:.0%} of the store's pages stay in the page cache; set TMPDIR to a folder on a disk"
            )
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda _: time.sleep(0.001), range(2 * threads)))  # the threads are there
        work = iter(order) if cold else itertools.cycle(order)
        before, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        done = [pool.submit(drain, read, work, _lock, began + seconds) for _ in range(threads)]
        partitions = np.array([p for future in done for p in future.result()], np.int64)
        elapsed = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_SELF)
    stored, decoded = (int(sizes[partitions].sum()) for sizes in (store.chunk_bytes, store.facts.partition_bytes))
    return {
        "partitions_read": int(partitions.size),
        "seconds": elapsed,
        "cpu_seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "stored_bytes_per_second": stored / elapsed,
        "table_bytes_per_second": decoded / elapsed,
        "stored_bytes": stored,
        "table_bytes": decoded,
    }


_lock = threading.Lock()


def drain(read: Read, work: Iterator[int], lock: threading.Lock, until: float) -> list[int]:
    """Read partitions, shared with other threads, until there are none or the time is up; which."""
    done: list[int] = []
    while time.perf_counter() < until:
        with lock:
            p = next(work, None)
        if p is None:
            break
        read(p)
        done.append(p)
    return done


def show(table: dict[str, Any]) -> None:
    ratio = table["decoded_bytes"] / table["stored_bytes"]
    print(
        f"\n{table['problem']} {table['parameters']}: {table['states']:,} states, {table['partitions']} partitions, "
        f"{format_bytes(table['decoded_bytes'])} in memory, {format_bytes(table['stored_bytes'])} on disk ({ratio:.1f})"
    )
    rows, missing = [], {}
    for r in table["readings"]:
        if "skipped" in r:
            missing[r["way"]] = r["skipped"]
            continue
        rates = (f"{r[name] / 1e9:.2f}" for name in ("stored_bytes_per_second", "table_bytes_per_second"))
        cpu = f"{r['cpu_seconds'] / (r['table_bytes'] / 1e9):.2f}"
        rows.append((r["way"], r["gives"], r["page_cache"], f"{r['threads']}", *rates, cpu))
    headers = ("way", "gives", "cache", "threads", "GB/s stored", "GB/s of table", "CPU s a GB of table")
    measuring.print_table(headers, rows)
    for way, why in missing.items():
        print(f"{way}: not measured, {why}")
    field_codecs.show(table["codecs"])


if __name__ == "__main__":
    main()
