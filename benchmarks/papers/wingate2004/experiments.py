"""The measurements behind the figures: each function gives one figure's numbers as plain values.

A solve that its time limit stopped keeps its outcome "time_limit" and is no result; it is shown as "not finished".
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import measuring
import numpy as np
from domains import DISCOUNT, RESIDUAL, Case

import ooc_mdp
from ooc_mdp.model.table import Table
from ooc_mdp.report.cache_curve import Policy, Scope, cache_curve, repeats
from ooc_mdp.report.cache_trace import AccessTrace, read_trace

__all__ = [
    "FIXED",
    "VARIANTS",
    "cache_curves",
    "compare_methods",
    "finished",
    "measure_variants",
    "never_processed",
    "show_progress",
    "solve",
    "targets",
]

_H1 = {"priority": "exact-h1"}
_H2 = {"priority": "exact-h2"}
_HYBRID = {"priority": "exact-hybrid"}
VARIANTS: dict[str, dict[str, Any]] = {
    "VI": {"method": "vi", "sweep_order": "forward"},
    "VI, voting": {"method": "vi", "sweep_order": "voted"},
    "H1": _H1 | {"sweep_order": "forward"},
    "H1, voting": _H1 | {"sweep_order": "voted"},
    "H2": _H2 | {"sweep_order": "forward"},
    "H2, voting": _H2 | {"sweep_order": "voted"},
    "joint": {"priority": "joint", "sweep_order": "voted"},
}
"""The thesis's six algorithms (section 9.3), and ours: priorities over bounds, resident partitions first."""
BLOCK_VI = "VI, 8 sweeps a visit"
_OPTIONS: dict[str, dict[str, Any]] = VARIANTS | {
    BLOCK_VI: {"method": "vi", "sweeps_per_visit": 8, "sweep_order": "voted"},
    "hybrid": _HYBRID | {"sweep_order": "forward"},
    "hybrid, voting": _HYBRID | {"sweep_order": "voted"},
    "joint, forward": {"priority": "joint", "sweep_order": "forward"},
    **{f"{name}, bounds": {"priority": name, "sweep_order": "voted"} for name in ("h1", "h2", "hybrid")},
}
"""H2 between meta-partitions and H1 within them (section 11.1), and priorities over bounds in our P-EVA."""
FIXED = {"H1": "H1, voting", "H2": "H2, voting", "VI": "VI, voting", BLOCK_VI: BLOCK_VI}
"""Algorithms whose order of accesses is the same with any cache; the last one is ours too."""

_PERCENT = (*range(1, 10), *range(10, 30, 2), *range(30, 101, 5))
_SCOPES: tuple[Scope, ...] = ("all", "frontier")


def solve(
    table: Table,
    variant: str,
    limit: float,
    cache: str = "100%",
    trace: Path | None = None,
    target: dict[str, float] | None = None,
    discount: float = DISCOUNT,
) -> dict[str, Any]:
    """What one solve cost; its values and policy under "solution"."""
    rule = target or {"residual": RESIDUAL}
    began = time.process_time()
    how = {"cache": cache, "device": "cpu", "time_limit": limit, "trace": trace, "overwrite": True}
    solution = ooc_mdp.solve(table, discount, **rule, **how, **_OPTIONS[variant])
    if solution.outcome is ooc_mdp.Outcome.INTERRUPTED:
        raise SystemExit(solution.outcome.message.partition(";")[0])
    s = solution.statistics
    return {
        "variant": variant,
        "outcome": solution.outcome.value,
        "error_bound": solution.error_bound if np.isfinite(solution.error_bound) else None,
        "seconds": s.solve_seconds,
        "cpu_seconds": time.process_time() - began,
        "backups": s.backups,
        "accesses": s.accesses,
        "auxiliary_accesses": s.auxiliary_accesses,
        "loads": s.loads,
        "loads_per_partition": s.loads_per_partition,
        "never_read": s.partitions_unread / s.n_partitions,
        "solution": solution,
    }


def finished(solved: dict[str, Any]) -> bool:
    """Whether it reached its target."""
    return solved["outcome"] in ("residual_reached", "proved")


def _say(case: Case, solved: dict[str, Any]) -> None:
    axes = case.domain.dimensions
    show_progress(f"{case.domain.label} {case.points}^{axes} in {case.blocks}^{axes}", solved, case.states)


def show_progress(name: str, solved: dict[str, Any], states: int) -> None:
    """A line for a solve, or for the spread of several."""
    seconds = solved["seconds"]["median"] if isinstance(solved["seconds"], dict) else solved["seconds"]
    print(
        f"{name}, {solved['variant']}: {solved['outcome']}, {seconds:.2f} s, "
        f"{solved['backups'] / states:.1f} backups per state",
        file=sys.stderr,
        flush=True,
    )


def measure_variants(
    table: Table, variant: str, repeat: int, limit: float, discount: float = DISCOUNT
) -> dict[str, Any]:
    """The solve of median backups, without its solution, and the spread of all; none follows one that was stopped."""
    runs = []
    for _ in range(repeat):
        runs.append(solve(table, variant, limit, discount=discount))
        if not finished(runs[-1]):
            break
    middle = sorted(runs, key=lambda run: run["backups"])[(len(runs) - 1) // 2]
    return {k: v for k, v in middle.items() if k not in ("solution", "seconds", "cpu_seconds")} | {
        "seconds": measuring.spread([run["seconds"] for run in runs]),
        "cpu_seconds": measuring.spread([run["cpu_seconds"] for run in runs]),
        "backups_spread": measuring.spread([run["backups"] for run in runs]),
    }


def compare_methods(
    cases: Iterable[Case], variants: Sequence[str], repeat: int, limit: float, vi_in_blocks: bool = False
) -> list[dict[str, Any]]:
    """Figures 12.1 to 12.6, 12.18 and 12.19: seconds and backups with the table in RAM.

    Parameters
    ----------
    vi_in_blocks : unvoted value iteration on the partitions too; else on one partition of all states, which is what
        the thesis calls normal (figure 12.18).
    """
    found = []
    for case in cases:
        table = case.in_memory()
        solves = []
        for variant in variants:
            whole = variant == "VI" and not vi_in_blocks and case.blocks > 1
            source = replace(case, blocks=1).in_memory() if whole else table
            solved = measure_variants(source, variant, repeat, limit)
            _say(case, solved)
            solves.append(solved | {"backups_per_state": solved["backups"] / case.states})
        found.append(case.describe() | {"solves": solves})
    return found


def cache_curves(
    case: Case,
    caches: Sequence[int],
    limit: float,
    orders: Mapping[str, str] = FIXED,
    ours: Mapping[str, str] = MappingProxyType({"joint": "joint"}),
) -> dict[str, Any]:
    """Figures 12.12 to 12.17: LRU over every cache size, from one trace of each algorithm whose order is fixed.

    Ours take partitions up in another order with another cache, so they are solved once for each size (in percent).

    Parameters
    ----------
    orders, ours : variants, by the words under which their numbers are given.
    """
    with tempfile.TemporaryDirectory(prefix="ooc-mdp-benchmark-") as folder:
        store = case.store(Path(folder) / "store")
        file = Path(folder) / "trace.csv"
        fixed = {}
        for name, variant in orders.items():
            solved = solve(store, variant, limit, trace=file)
            _say(case, solved)
            fixed[name] = _without_solution(solved) | (_curves(read_trace(file)) if finished(solved) else {})
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in ours}
        for name, variant in ours.items():
            for percent in caches:
                solved = solve(store, variant, limit, cache=f"{percent}%", trace=file)
                _say(case, solved)
                found[name].append(
                    _without_solution(solved)
                    | {"percent": percent, "hit_rate": _visit_hit_rate(read_trace(file))}
                    | {"backups_per_state": solved["backups"] / case.states}
                )
    return case.describe() | {"percent": list(_PERCENT), "fixed": fixed, **found}


def _without_solution(solved: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in solved.items() if k != "solution"}


def _visit_hit_rate(trace: AccessTrace) -> float:
    """Hits a visit: a run of accesses to one partition counts once, as in the curves."""
    first = ~repeats(trace.partition, trace.auxiliary)
    return float(trace.hit[first].mean())


def _curves(trace: AccessTrace) -> dict[str, Any]:
    """Hit rate and loads per partition at each of _PERCENT, for both scopes, and without the first reading of all."""
    begun = int((~trace.auxiliary).argmax())
    later = replace(
        trace,
        partition=trace.partition[begun:],
        auxiliary=trace.auxiliary[begun:],
        hit=trace.hit[begun:],
        priority=trace.priority[begun:],
    )
    found: dict[str, Any] = {scope: _curve(trace, "lru", scope) for scope in _SCOPES}
    found["after_first_reading"] = _curve(later, "lru", "all")
    found["optimum"] = {scope: _curve(trace, "belady", scope) for scope in _SCOPES}
    found["first_reading_accesses"] = begun
    return found


def _curve(trace: AccessTrace, policy: Policy, scope: Scope) -> dict[str, Any]:
    curve = cache_curve(trace, policy, scope)
    sizes = [max(1, percent * trace.n_partitions // 100) for percent in _PERCENT]
    best = curve.knee
    counted = trace.partition if scope == "all" else trace.partition[~trace.auxiliary]
    return {
        "accesses": curve.n_accesses,
        "partitions_accessed": int(np.unique(counted).size),
        "hit_rate": [round(float(curve.hit_rate[size]), 5) for size in sizes],
        "loads_per_partition": [round(float(curve.loads_per_partition[size]), 4) for size in sizes],
        "diminishing_percent": None if best is None else 100 * best / trace.n_partitions,
    }


def never_processed(case: Case, variants: Sequence[str], limit: float) -> dict[str, Any]:
    """Figure 12.20: the partitions that were never swept, and the policy (of the first variant)."""
    found = []
    table = case.in_memory()
    picture: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="ooc-mdp-benchmark-") as folder:
        file = Path(folder) / "trace.csv"
        for variant in variants:
            solved = solve(table, variant, limit, trace=file)
            _say(case, solved)
            trace = read_trace(file)
            swept = np.zeros(trace.n_partitions, bool)
            swept[trace.partition[~trace.auxiliary]] = True
            states = np.diff(table.facts.partition_ptr)
            found.append(
                _without_solution(solved)
                | {
                    "partitions_never_processed": float(1 - swept.mean()),
                    "states_never_processed": float(states[~swept].sum() / states.sum()),
                }
            )
            if not picture:
                picture = _picture(case, table, solved["solution"], swept)
    return case.describe() | {"solves": found, "picture": picture}


def _picture(case: Case, table: Table, solution: ooc_mdp.Solution, swept: np.ndarray) -> dict[str, Any]:
    """At most 100 by 100 states as rows of characters: the action, or x where the partition was never processed."""
    processed = table.to_source(np.repeat(swept, np.diff(table.facts.partition_ptr)))
    every = -(-case.points // 100)
    shape = (case.points, case.points)
    actions = solution.policy.reshape(shape)[::every, ::every]
    seen = processed.reshape(shape)[::every, ::every]
    rows = ["".join(str(a) if s else "x" for a, s in zip(*row, strict=True)) for row in zip(actions, seen, strict=True)]
    return {"every": every, "rows": rows}


def targets(
    cases: Sequence[Case], rules: Sequence[dict[str, float]], caches: Sequence[int], repeat: int, limit: float
) -> list[dict[str, Any]]:
    """Loads a partition of p-eva with the joint priority, from a store, with small caches."""
    found = []
    for case in cases:
        with tempfile.TemporaryDirectory(prefix="ooc-mdp-benchmark-") as folder:
            store = case.store(Path(folder) / "store")
            for rule in rules:
                for percent in caches:
                    runs = [solve(store, "joint", limit, cache=f"{percent}%", target=rule) for _ in range(repeat)]
                    _say(case, runs[-1])
                    found.append(
                        case.describe()
                        | {
                            "target": rule,
                            "percent": percent,
                            "finished": all(finished(run) for run in runs),
                            "error_bound": runs[0]["error_bound"],
                            "loads_per_partition": measuring.spread([run["loads_per_partition"] for run in runs]),
                            "backups_per_state": measuring.spread([run["backups"] / case.states for run in runs]),
                            "seconds": measuring.spread([run["seconds"] for run in runs]),
                            "never_read": measuring.spread([run["never_read"] for run in runs]),
                        }
                    )
    return found
