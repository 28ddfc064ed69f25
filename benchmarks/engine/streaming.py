"""Stream a table larger than the cache through the device once, and show who waits for whom.

    python streaming.py --grid 10000,10000 --store /disk/car --device-memory 4GiB --output FILE.json --plot FILE.png

One pass of value iteration (`vi`, one sweep a visit) from V = 0, begun with the store's files dropped from the page
cache and with all of them in it; it is stopped when every partition has been read. Against it, measured in the same run
on the same files:

    floor = the longer of  stored bytes / bandwidth of the disk (cold) or of the page cache (warm)
                      and  bytes copied to the device / bandwidth of page-locked copies

A further pass of each is recorded (timeline.py): reading threads, copies, decoding, sweeps, how much of the copying
went on beside sweeps. What copies carried is counted there; without a record they are taken to be the stored bytes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import (
    Reads,
    RecordingStore,
    add_table_options,
    device_facts,
    disk_probes,
    drop_page_cache,
    fastest,
    link_bandwidth,
    make_warm,
    measuring,
    open_or_generate,
    recording,
    say,
    solve_warm_up,
    store_figures,
)
from timeline import COPIES, Timeline, draw, recorded

import ooc_mdp
from ooc_mdp.options import format_bytes
from ooc_mdp.store import Store

NOT_INCLUDED = (
    "seconds run from the begin of the first read to the end of the last: the sweeps of the last few partitions are "
    "left out, as are generating, opening, allocating and compiling (a tiny solve comes first)",
    "a recorded pass is slower than a measured one: its seconds are given apart",
    "cold: a disk behind a virtual machine may have a cache of its own; its bandwidth is measured the same way",
)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_table_options(parser, "mountain-car", "4000,4000")
    parser.add_argument("--states", default="cold,warm", help="of the page cache: cold, warm or both")
    parser.add_argument("--discount", type=float, default=0.9)
    parser.add_argument("--sweeps", type=int, default=1, help="sweeps of a visit")
    parser.add_argument("--device-memory", help="budget on the device in all")
    parser.add_argument("--cache", help="the cache's budget instead; 22%% by default")
    parser.add_argument("--device", default="cuda:0", help="cpu or cuda:0")
    parser.add_argument("--repeat", type=int, default=3, help="passes of each kind")
    parser.add_argument("--time-limit", type=float, default=120.0, help="seconds of a pass")
    parser.add_argument("--probe-threads", default="8,16", help="threads that measure the disk")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 2, help="threads that generate")
    parser.add_argument("--no-timeline", action="store_true", help="record no pass")
    parser.add_argument("--window", type=float, default=0.1, help="seconds of the timeline that are kept and drawn")
    parser.add_argument("--plot", type=Path, help="PNG or SVG of the timeline; the state's name goes before its ending")
    measuring.add_common_options(parser)
    options = parser.parse_args(arguments)
    if options.device_memory is None and options.cache is None:
        options.cache = "22%"
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    facts: dict[str, Any] = {"machine": measuring.machine(options.machine_shared), "versions": measuring.versions()}
    facts["machine"] |= device_facts(options.device)
    folder = Path(tempfile.mkdtemp(prefix="ooc-mdp-benchmark-"))
    try:
        figures = measure(options, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    options.store = options.plot = None  # figures name no place
    measuring.write_figures("streaming", options, figures, facts, NOT_INCLUDED)


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Passes from cold and warm files, the bandwidths they stand against, and the recorded passes."""
    store, seconds = open_or_generate(options, options.store or folder / "store", options.device)
    figures: dict[str, Any] = {"store": store_figures(store, seconds)}
    # Memory as for the measured passes does not fit a tiny table: the default cache does.
    solve_warm_up(options, folder, discount=options.discount, method="vi", cache="100%", device=options.device)
    store.read(0)  # a large table's types are not the tiny one's: decoding them is compiled, if it must be, now
    link = None if options.device == "cpu" else link_bandwidth(options.device)
    figures["link_bytes_per_second"] = link
    threads = [int(n) for n in options.probe_threads.split(",")]
    figures["passes"], figures["bandwidths"] = [], {}
    for state in options.states.split(","):
        if state == "warm":
            make_warm(store.path)
        probes = disk_probes(store.path, threads, state == "cold")
        passes = [one_pass(options, store, state)[0] for _ in range(options.repeat)]
        probes += disk_probes(store.path, threads, state == "cold")
        figures["bandwidths"][state] = probes
        record = None
        if not options.no_timeline:
            record = recorded_pass(options, store, state)
            figures.setdefault("timelines", {})[state] = record
        copied = copied_bytes(options, store, record)
        for one in passes:
            add_floor(one, fastest(probes), copied, None if link is None else link["pinned"])
        figures["passes"] += passes
    show(figures)
    return figures


class _Stop:
    """Asks the solve to stop, as Ctrl-C would, once every partition has been read."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self._asked = False

    def __call__(self, reads: Reads) -> None:
        if len(reads.partitions) == self._partitions and not self._asked:
            self._asked = True
            os.kill(os.getpid(), signal.SIGINT)


def one_pass(options: argparse.Namespace, store: Store, state: str) -> tuple[dict[str, Any], RecordingStore]:
    """One pass: its figures, and the store that noted the reads."""
    found = drop_page_cache(store.path) if state == "cold" else make_warm(store.path)
    watched = recording(store, _Stop(store.n_partitions))
    room = {"device_memory": options.device_memory} if options.device_memory else {"cache": options.cache}
    # The signal may come when the solve has just ended by itself: then nobody else would take it.
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        solution = ooc_mdp.solve(
            watched,
            discount=options.discount,
            residual=1e-9,
            method="vi",
            sweeps_per_visit=options.sweeps,
            device=options.device,
            time_limit=options.time_limit,
            **room,
        )
        time.sleep(0.01)
    finally:
        signal.signal(signal.SIGINT, before)
    summary = solution.summary()
    first_reads = _first_reads(watched.reads)
    seconds = max(end for _, end in first_reads.values()) - min(begin for begin, _ in first_reads.values())
    stored = int(store.chunk_bytes[list(first_reads)].sum())
    decoded = int(store.facts.partition_bytes[list(first_reads)].sum())
    figures = found | {
        "outcome": summary["outcome"],
        "seconds": seconds,
        "solve_seconds": summary["solve_seconds"],
        "partitions_read": len(first_reads),
        "partitions": store.n_partitions,
        "stored_bytes": stored,
        "decoded_bytes": decoded,
        "stored_bytes_per_second": stored / seconds,
        "decoded_bytes_per_second": decoded / seconds,
        "bytes_read": summary["bytes_read"],
        "cache_bytes": summary["cache_bytes"],
        "table_bytes": summary["table_bytes"],
        "backups_per_state": summary["backups"] / store.n_states,
        "kinds": sorted({kind for kind, *_ in watched.reads.spans}),
    }
    say(f"{state}: {format_bytes(stored)} in {seconds:.3f} s, {stored / seconds / 1e9:.2f} GB/s off the disk")
    return figures, watched


def _first_reads(reads: Reads) -> dict[int, tuple[float, float]]:
    found: dict[int, tuple[float, float]] = {}
    for _, _, partition, begin, end, _ in sorted(reads.spans, key=lambda s: s[3]):
        found.setdefault(partition, (begin, end))
    return found


def recorded_pass(options: argparse.Namespace, store: Store, state: str) -> dict[str, Any]:
    """A pass with a record of the device: figures of the whole, intervals of a window in its middle."""
    with recorded(options.device) as timeline:
        figures, watched = one_pass(options, store, state)
    add_reads(timeline, watched.reads)
    spans = np.array([(begin, end) for begin, end in _first_reads(watched.reads).values()])
    middle = (spans.min() + spans.max()) / 2
    begin, end = middle - options.window / 2, middle + options.window / 2
    whole = timeline.figures()
    if options.plot is not None:
        title = f"{options.problem} {options.grid}, {state} files: {options.window:g} s in the middle of a pass"
        draw(timeline, begin, end, options.plot.with_stem(f"{options.plot.stem}-{state}"), title)
    return {"pass": figures, **whole, "window": timeline.window(begin, end)}


def add_reads(timeline: Timeline, reads: Reads) -> None:
    """A lane for each reading thread, before those of the device."""
    threads: dict[int, list[tuple[float, float]]] = {}
    for _, thread, _, begin, end, _ in reads.spans:
        threads.setdefault(thread, []).append((begin, end))
    lanes = {f"reading {i}": np.array(spans) for i, spans in enumerate(threads.values(), 1)}
    timeline.lanes = lanes | dict(sorted(timeline.lanes.items(), key=lambda lane: lane[0] != COPIES))


def copied_bytes(options: argparse.Namespace, store: Store, record: dict[str, Any] | None) -> int | None:
    """Bytes that a pass copies to the device."""
    if options.device == "cpu":
        return None
    stored = int(store.chunk_bytes.sum())
    return int((record or {}).get("bytes", {}).get(COPIES, stored))


def add_floor(one: dict[str, Any], bandwidth: float, copied: int | None, link: float | None) -> None:
    """The floor of a pass, and which share of that pace it kept."""
    one["read_floor_seconds"] = one["stored_bytes"] / bandwidth
    one["link_floor_seconds"] = copied / link if copied is not None and link is not None else 0.0
    one["copied_bytes"] = copied
    one["floor_seconds"] = max(one["read_floor_seconds"], one["link_floor_seconds"])
    one["share_of_floor"] = one["floor_seconds"] / one["seconds"]


def show(figures: dict[str, Any]) -> None:
    """The table, and what the records show."""
    for state, probes in figures["bandwidths"].items():
        said = ", ".join(f"{p['threads']} threads {p['how']} {p['bytes_per_second'] / 1e9:.2f}" for p in probes)
        print(f"{'disk' if state == 'cold' else 'page cache'}, GB/s: {said}")
    if figures["link_bytes_per_second"]:
        print(f"link, GB/s: {figures['link_bytes_per_second']['pinned'] / 1e9:.1f}")
    headers = ("files", "seconds", "read floor", "link floor", "floor/seconds", "GB/s stored", "GB/s decoded", "cache")
    rows = [
        (
            p["page_cache"],
            f"{p['seconds']:.3f}",
            f"{p['read_floor_seconds']:.3f}",
            f"{p['link_floor_seconds']:.3f}",
            f"{p['share_of_floor']:.1%}",
            f"{p['stored_bytes_per_second'] / 1e9:.2f}",
            f"{p['decoded_bytes_per_second'] / 1e9:.2f}",
            f"{p['cache_bytes'] / p['table_bytes']:.1%}",
        )
        for p in figures["passes"]
    ]
    measuring.print_table(headers, rows)
    for state, record in figures.get("timelines", {}).items():
        for name, seconds in record.get("busy_seconds", {}).items():
            beside = record["share_beside_sweeps"].get(name)
            print(
                f"{state}: {name} busy {seconds:.3f} of {record['seconds']:.3f} s"
                + (f", {beside:.0%} of it beside sweeps" if beside is not None else "")
            )


if __name__ == "__main__":
    main()
