"""What a solve on devices waits for: kernels, loads and the host's own steps of a whole solve on one clock.

    python solve_timeline.py --grid 7000,7000 --cache 20% --residual 1e-4 --output FILE.json
    python solve_timeline.py --grid 28000,28000 --device cuda:0 --device cuda:0,1 --cache 100% --epsilon 1e-3

Each device, or group, solves the table from the page cache: twice unobserved, and once recorded (timeline.py), which is
slower, since each kernel of a graph is noted. Of that one:

    busy     seconds of each kind of kernel and of copies, of each device
    idle     seconds in which a device neither selects nor sweeps nor reports, and the share of them in which the host
             took each of its steps: begin a batch, wait for its report, record, choose, begin loads, wait for loads
    rounds   sweeps of a round by their length: how many are shorter than a round costs in any case
    batches  of each tenth of the solve: batches, partitions in a batch, dirty ones that are absent, loads under way
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from common import (
    add_table_options,
    device_facts,
    make_warm,
    measuring,
    open_or_generate,
    recording,
    say,
    solve_warm_up,
    store_figures,
)
from streaming import add_reads
from timeline import SWEEPS, Spans, Timeline, covered, draw, merged, overlap, recorded

import ooc_mdp
from ooc_mdp.backends.cuda.tiles.backend import TiledBackend
from ooc_mdp.backends.cuda.tiles.batch import TileBatch
from ooc_mdp.scheduling.stager import Stager
from ooc_mdp.scheduling.working_set import WorkingSet
from ooc_mdp.solver.methods import p_eva_on_device
from ooc_mdp.solver.state import SolveState
from ooc_mdp.store import Store

NOT_INCLUDED = (
    "seconds: from memory allocated to values and policy on the host; generating, opening and compiling come before",
    "the record's figures are of a solve that recording makes slower; its seconds stand beside them",
)
HOST = {
    "host: begin a batch": (TiledBackend, "relax"),
    "host: wait for a report": (TileBatch, "report"),
    "host: record": (SolveState, "record"),
    "host: choose": (WorkingSet, "choose"),
    "host: begin loads": (p_eva_on_device, "_load"),
    "host: sweeps under way": (p_eva_on_device, "_load_until_done"),
    "host: wait for loads": (Stager, "wait"),
}
"""Steps of the solve's own thread by the function that takes them."""
_SHORT = 10e-6
"""Seconds of a round's sweep that has next to nothing to do."""
_TENTHS = 10


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_table_options(parser, "mountain-car", "4000,4000")
    parser.add_argument("--device", action="append", help="cuda:0, or a group as cuda:0,1; repeat to compare")
    parser.add_argument("--discount", type=float, default=0.9)
    parser.add_argument("--residual", type=float, help="plain residual; 1e-4 where no --epsilon is given")
    parser.add_argument("--epsilon", type=float, help="error to prove")
    parser.add_argument("--method", default="p-eva")
    parser.add_argument("--cache", action="append", help="budget of each device; one for all, or one for each --device")
    parser.add_argument("--repeat", type=int, default=2, help="solves that are not recorded")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds of a solve")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 2, help="threads that generate")
    parser.add_argument("--no-record", action="store_true", help="only time solves")
    parser.add_argument("--plot", type=Path, help="PNG or SVG of the timeline, named for each device")
    measuring.add_common_options(parser)
    options = parser.parse_args(arguments)
    options.device = options.device or ["cuda:0"]
    options.cache = options.cache or ["22%"]
    if len(options.cache) == 1:
        options.cache *= len(options.device)
    if len(options.cache) != len(options.device):
        parser.error("--cache is given once, or once for each --device")
    if options.residual is None and options.epsilon is None:
        options.residual = 1e-4
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    facts: dict[str, Any] = {"machine": measuring.machine(options.machine_shared), "versions": measuring.versions()}
    facts["machine"] |= device_facts("cpu" if options.device == ["cpu"] else "cuda:0")
    folder = Path(tempfile.mkdtemp(prefix="ooc-mdp-benchmark-"))
    try:
        figures = measure(options, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    options.store = options.plot = None  # figures name no place
    measuring.write_figures("solve_timeline", options, figures, facts, NOT_INCLUDED)


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Solves on each device, and the record of one."""
    store, seconds = open_or_generate(options, options.store or folder / "store", options.device[0])
    figures: dict[str, Any] = {"store": store_figures(store, seconds), "solves": []}
    make_warm(store.path)
    for device, cache in zip(options.device, options.cache, strict=True):
        asked = _asked(options, device, cache)
        solve_warm_up(options, folder, **asked | {"cache": "100%"})
        ooc_mdp.solve(store, **asked | {"time_limit": 0.2})  # the large table's types and sizes
        found = [_figures(ooc_mdp.solve(store, **asked)) for _ in range(options.repeat)]
        for one in found:
            say(_line(device, cache, one))
        figures["solves"].append({"device": device, "cache": cache, "solves": found})
        if not options.no_record:
            figures["solves"][-1]["record"] = record(options, store, device, asked)
    return figures


def _asked(options: argparse.Namespace, device: str, cache: str) -> dict[str, Any]:
    target = {"epsilon": options.epsilon} if options.residual is None else {"residual": options.residual}
    limits = {"time_limit": options.time_limit, "cache": cache}
    return {"discount": options.discount, "method": options.method, "device": device, **target, **limits}


def _figures(solution: ooc_mdp.Solution) -> dict[str, Any]:
    summary = solution.summary()
    kept = ("outcome", "error_bound", "solve_seconds", "loads_per_partition", "hit_rate", "cache_bytes", "table_bytes")
    found = {name: summary[name] for name in kept}
    return found | {"backups_per_state": summary["backups"] / summary["n_states"]}


def _line(device: str, cache: str, one: dict[str, Any]) -> str:
    return (
        f"{device}, cache {cache}: {one['outcome']} in {one['solve_seconds']:.3f} s, "
        f"{one['loads_per_partition']:.2f} loads per partition, {one['backups_per_state']:.0f} backups per state"
    )


def record(options: argparse.Namespace, store: Store, device: str, asked: dict[str, Any]) -> dict[str, Any]:
    """A solve with a record of devices, reading threads and the host's steps."""
    watched = recording(store)
    with recorded(device) as timeline, observed() as host:
        solution = ooc_mdp.solve(watched, **asked)
    spans = {name: np.array(found).reshape(-1, 2) for name, found in host.spans.items()}
    begin, end = spans["host: begin a batch"].min(), max(s.max() for s in spans.values() if s.size)
    add_reads(timeline, watched.reads)
    timeline.lanes |= spans
    if options.plot is not None:
        name = device.replace(":", "").replace(",", "-")
        draw(timeline, begin, end, options.plot.with_stem(f"{options.plot.stem}-{name}"), f"{options.grid}, {device}")
    whole = timeline.figures()
    waits = _waits(timeline, spans, begin, end)
    found = _figures(solution) | {"seconds_recorded": end - begin}
    batches = _batches(host.batches, begin, end)
    for name, seconds in whole["busy_seconds"].items():
        if not name.startswith("reading"):
            say(f"   {name}: {seconds:.3f} s")
    for name, wait in waits.items():
        say(f"   {name}: {wait}")
    for tenth in batches:
        say(f"   {tenth}")
    return {**found, **whole, "waits": waits, "batches": batches}


class Observed:
    """What the solve's own thread did."""

    def __init__(self) -> None:
        self.spans: dict[str, list[tuple[float, float]]] = {name: [] for name in HOST}
        self.batches: list[tuple[float, int, int, int, int]] = []
        """Begin, partitions of the batch, dirty ones that are absent, loads under way, residents."""


@contextlib.contextmanager
def observed() -> Iterator[Observed]:
    """Note when the solve's own thread takes each of its steps."""
    host = Observed()
    before = {name: getattr(owner, function) for name, (owner, function) in HOST.items()}
    limits = SolveState.limits

    def timed(name: str) -> Callable[..., Any]:
        @functools.wraps(before[name])
        def step(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            try:
                return before[name](*arguments, **named)
            finally:
                host.spans[name].append((began, time.perf_counter()))

        return step

    def noted(state: SolveState, partitions: Any, *more: Any, **named: Any) -> Any:
        absent = int((state.target.dirty() & ~state.cache.present).sum())
        here, loads = int(state.cache.present.sum()), len(state.stager.in_flight())
        host.batches.append((time.perf_counter(), partitions.size, absent, loads, here))
        return limits(state, partitions, *more, **named)

    for name, (owner, function) in HOST.items():
        setattr(owner, function, timed(name))
    SolveState.limits = noted  # type: ignore[method-assign, assignment]
    try:
        yield host
    finally:
        SolveState.limits = limits  # type: ignore[method-assign]
        for name, (owner, function) in HOST.items():
            setattr(owner, function, before[name])


def _waits(timeline: Timeline, host: dict[str, Spans], begin: float, end: float) -> dict[str, Any]:
    """Of each device: seconds idle, what the host did meanwhile, and rounds by their length."""
    found = {}
    for lane, spans in timeline.lanes.items():
        if not lane.startswith(SWEEPS):
            continue
        idle = _gaps(spans, begin, end)
        lengths = spans[:, 1] - spans[:, 0]
        found[lane] = {
            "busy": round(covered(spans), 4),
            "idle": round(covered(idle), 4),
            **{f"idle in {name}": round(overlap(idle, steps), 4) for name, steps in host.items() if steps.size},
            "gaps below 20 us": round(float(sum(b - a for a, b in idle if b - a < 20e-6)), 4),
            "kernels": int(lengths.size),
            "short kernels": int((lengths < _SHORT).sum()),
            "seconds of short kernels": round(float(lengths[lengths < _SHORT].sum()), 4),
        }
    return found


def _gaps(spans: Spans, begin: float, end: float) -> Spans:
    """What is left of an interval."""
    union = merged(spans)
    return np.column_stack([np.append(begin, union[:, 1]), np.append(union[:, 0], end)]).clip(begin, end)


def _batches(batches: list[tuple[float, int, int, int, int]], begin: float, end: float) -> list[dict[str, float]]:
    rows = np.array(batches)
    tenth = np.clip(((rows[:, 0] - begin) / (end - begin) * _TENTHS).astype(int), 0, _TENTHS - 1)
    names = ("partitions", "dirty and absent", "loads under way", "residents")
    found = []
    for t in range(_TENTHS):
        here = rows[tenth == t]
        means = {name: round(float(here[:, 1 + i].mean()), 1) for i, name in enumerate(names)} if len(here) else {}
        found.append({"batches": len(here), **means})
    return found


if __name__ == "__main__":
    main()
