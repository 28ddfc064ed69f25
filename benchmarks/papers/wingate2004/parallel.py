"""Figures 12.7 to 12.11: Parallel-P-EVA and PSVI on the workers of a Dask cluster, each of them one processor.

A worker is a process that sweeps on one thread; scheduler and coordinator share the machine with the workers. Beside
seconds there is what no clock decides: backups per state, messages, bytes, and of these

    efficiency       T_1 / (p T_p), seconds (section 9.4); says nothing where there are more workers than cores
    work efficiency  B_1 / B_p, backups of all workers together: below 1 where they work with values that are not the
                     newest
    busy             1 - idle / (p T_p): idle workers wait for others' values, with nothing of their own to do
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dask
import measuring
import numpy as np
from distributed import Client, LocalCluster
from domains import CAR, DISCOUNT, DOUBLE, RESIDUAL, SINGLE, TRIPLE, Case
from experiments import finished
from shared_tables import SharedTables

import ooc_mdp
from ooc_mdp.distributed.partition_graph import cut_fraction, partition_graph
from ooc_mdp.distributed.placement import parse_placement
from ooc_mdp.distributed.solve import solve_distributed
from ooc_mdp.options import CacheSize, ClusterOptions, RunOptions, SolveOptions

__all__ = ["PSVI", "P_EVA", "Sizes", "Tables", "attractors", "scaling", "sizes"]

P_EVA, PSVI = "Parallel-P-EVA", "PSVI"
_METHODS: dict[str, dict[str, Any]] = {
    P_EVA: {"method": "p-eva", "priority": "h2"},
    PSVI: {"method": "vi", "sweep_order": "forward"},
}
"""Section 9.4: H2 throughout; PSVI has the same partitions and messages, and no priorities."""
_WARM_UP_SECONDS = 120.0
"""At most."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of one run of the three pairs of figures."""

    attractors: tuple[Case, ...]
    attractor_workers: int
    attractor_counts: tuple[int, ...]
    """A worker."""
    p_eva: tuple[Case, ...]
    psvi: tuple[Case, ...]
    workers: tuple[int, ...]
    """From 1 up."""
    processes: bool = True
    """Whether workers are processes; threads of this one start sooner, and hinder each other."""


def sizes(which: str) -> Sizes:
    """ "toy", "small" for two cores, or "thesis": as the captions say, but for the DAP of 12.8 (6,250,000 there)."""
    if which == "toy":
        car = Case(CAR, 24, 4)
        return Sizes((car,), 2, (1, 4), (car,), (Case(CAR, 16, 4),), (1, 2), processes=False)
    if which == "small":
        flat, deep = (Case(CAR, 160, 16), Case(SINGLE, 160, 16)), Case(DOUBLE, 12, 4)
        slow = (Case(CAR, 100, 10), Case(SINGLE, 100, 10), Case(DOUBLE, 9, 3), Case(TRIPLE, 4, 2))
        return Sizes((*flat, Case(DOUBLE, 9, 3)), 4, (1, 2, 3, 5, 10, 30), (*flat, deep), slow, (1, 2))
    flat = (Case(CAR, 2000, 100), Case(SINGLE, 2000, 100))
    slow = (Case(CAR, 600, 30), Case(SINGLE, 600, 30), Case(DOUBLE, 25, 5), Case(TRIPLE, 10, 3))
    deep = Case(DOUBLE, 30, 10)
    counts = (1, 2, 5, 7, 10, 30, 50)
    return Sizes((*flat, deep, Case(TRIPLE, 10, 3)), 8, counts, (*flat, deep), slow, (1, 2, 4, 8, 16))


class Tables:
    """The tables of cases, each computed once and kept in a file of the folder; and how long a figure may take."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._end = 0.0
        self._made: dict[str, SharedTables] = {}

    def allow(self, seconds: float) -> None:
        """From now on; afterwards no further solve of the figure begins."""
        self._end = time.monotonic() + seconds

    @property
    def late(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() > self._end

    def of(self, case: Case) -> SharedTables:
        """The case's tables."""
        key = f"{case.domain.problem}-{case.points}-{case.blocks}"
        if key not in self._made:
            began = time.monotonic()
            self._made[key] = SharedTables(case.computed(), self.folder / key)
            _tell(f"{key}: {case.states} states, computed in {time.monotonic() - began:.1f} s")
        return self._made[key]


@contextmanager
def _cluster(workers: int, processes: bool, folder: Path) -> Iterator[Client]:
    options: dict[str, Any] = {"dashboard_address": ":0", "memory_limit": None, "silence_logs": logging.ERROR}
    with (
        dask.config.set({"temporary-directory": str(folder)}),
        LocalCluster(n_workers=workers, threads_per_worker=1, processes=processes, **options) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def _solve(client: Client, tables: SharedTables, method: str, placement: str, limit: float) -> dict[str, Any]:
    """One solve's figures."""
    options = SolveOptions(
        DISCOUNT, residual=RESIDUAL, cache=CacheSize(share=1.0), device="cpu", **_METHODS[method],
    )  # fmt: skip
    asked = ClusterOptions(client, placement=placement, threads=1)
    solution = solve_distributed(tables, options, RunOptions(time_limit=limit), asked=asked)
    if solution.outcome is ooc_mdp.Outcome.INTERRUPTED:
        raise SystemExit(solution.outcome.message.partition(";")[0])
    s = solution.statistics
    idle = sum(w.idle_seconds for w in s.workers)
    return {
        "outcome": solution.outcome.value,
        "seconds": s.solve_seconds,
        "backups_per_state": s.backups / s.n_states,
        "loads_per_partition": s.loads_per_partition,
        "messages": sum(w.messages for w in s.workers),
        "bytes_per_state": sum(w.bytes_sent for w in s.workers) / s.n_states,
        "busy": max(0.0, 1 - idle / (len(s.workers) * s.solve_seconds)),
        "heaviest_backups": max(w.backups for w in s.workers) * len(s.workers) / max(s.backups, 1),
    }


def _measure(
    client: Client, tables: SharedTables, method: str, placement: str, repeat: int, limit: float
) -> dict[str, Any]:
    """Some solves alike: least, median and most of each figure; only those that reached the target count."""
    workers = len(client.scheduler_info(n_workers=-1)["workers"])
    facts = partition_graph(tables)
    owner = parse_placement(placement).place(facts, np.ones(workers))
    runs = []
    for _ in range(repeat):
        runs.append(_solve(client, tables, method, placement, limit))
        if not finished(runs[-1]):
            break
    last = runs[-1]
    _tell(
        f"{method}, {workers} workers, {placement}: {last['outcome']}, {last['seconds']:.2f} s, "
        f"{last['backups_per_state']:.1f} backups per state, {last['messages']} messages, busy {last['busy']:.2f}"
    )
    return {
        "workers": workers,
        "placement": placement,
        "outcome": last["outcome"],
        "crossing": cut_fraction(facts, owner),
        "heaviest_share": float(np.bincount(owner, facts.weight).max() * workers / facts.weight.sum()),
        **{name: measuring.spread([run[name] for run in runs]) for name in last if name != "outcome"},
    }


def _warm_up(client: Client, tables: Tables, case: Case, method: str) -> None:
    """Load or compile the kernels in every worker, on a few partitions of the same shape."""
    few = replace(case, points=2 * -(-case.points // case.blocks), blocks=2)
    _solve(client, tables.of(few), method, "random", _WARM_UP_SECONDS)


def _floor(client: Client, tables: Tables, repeat: int) -> float:
    """Seconds of a solve of next to nothing, its kernels loaded by one before: what telling the workers takes."""
    tiny = tables.of(Case(CAR, 8, 2))
    _, *runs = (_solve(client, tiny, P_EVA, "random", 60.0)["seconds"] for _ in range(repeat + 1))
    return min(runs)


def _cores() -> int:
    return os.cpu_count() or 1


def attractors(which: Sizes, tables: Tables, repeat: int, limit: float) -> dict[str, Any]:
    """Figure 12.7: attractors a worker, as in the thesis and with our balance; and random and blocks beside them."""
    balanced = which.attractor_counts[:: max(1, len(which.attractor_counts) // 3)]
    placements = [f"voronoi:{n}" for n in which.attractor_counts] + ["random", "blocks"]
    placements += [f"attractors:{n}" for n in balanced]
    found = []
    with _cluster(which.attractor_workers, which.processes, tables.folder) as client:
        floor = _floor(client, tables, repeat)
        for case in which.attractors:
            if tables.late:
                break
            table = tables.of(case)
            _warm_up(client, tables, case, P_EVA)
            solves = [_measure(client, table, P_EVA, p, repeat, limit) for p in placements if not tables.late]
            found.append(case.describe() | {"method": P_EVA, "solves": solves})
    return {"workers": which.attractor_workers, "cores": _cores(), "floor_seconds": floor, "tables": found}


def scaling(
    cases: Sequence[Case], method: str, which: Sizes, tables: Tables, repeat: int, limit: float
) -> dict[str, Any]:
    """Figures 12.8 to 12.11: one to many workers, placed at random as in the thesis; in blocks with most workers."""
    found = [case.describe() | {"method": method, "solves": []} for case in cases]
    floors = {}
    # Where time runs out, the ends of a line are worth more than its middle.
    for workers in (which.workers[0], *which.workers[:0:-1]):
        with _cluster(workers, which.processes, tables.folder) as client:
            floors[str(workers)] = _floor(client, tables, repeat)
            for case, told in zip(cases, found, strict=True):
                for placement in ("random", "blocks") if workers == which.workers[-1] else ("random",):
                    if tables.late:
                        break
                    table = tables.of(case)
                    if placement == "random":
                        _warm_up(client, tables, case, method)
                    told["solves"].append(_measure(client, table, method, placement, repeat, limit))
    for told in found:
        told["solves"].sort(key=lambda s: s["workers"])
        _compare(told["solves"])
    return {"cores": _cores(), "floor_seconds": floors, "tables": found}


def _compare(solves: list[dict[str, Any]]) -> None:
    """Efficiencies, against one worker; None where one of the two was not finished."""
    alone = next((s for s in solves if s["workers"] == 1 and finished(s)), None)
    for s in solves:
        known = alone is not None and finished(s)
        s["efficiency"] = alone["seconds"]["median"] / s["seconds"]["median"] / s["workers"] if known else None
        s["work_efficiency"] = (
            alone["backups_per_state"]["median"] / s["backups_per_state"]["median"] if known else None
        )


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
