"""Cache curves for people and programs: which sizes to show, a table, CSV, JSON.

Each states of which accesses a curve is: those of the traced solve, replayed under another cache. A solve with that
cache makes the same accesses only where their order does not depend on the cache: other traces are refused, unless
the replay itself is wanted. What solves with other caches load, `ooc_mdp.report.cache_sweep` measures.

Nothing here simulates: `ooc_mdp.report.cache_curve` does, and `ooc_mdp.report.cache_plot` draws.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ooc_mdp.errors import OptionsError
from ooc_mdp.options import CacheSize
from ooc_mdp.quoting import listed, printable, quote
from ooc_mdp.report.cache_curve import POLICIES, SCOPES, CacheCurve, Policy, Scope, cache_curve
from ooc_mdp.report.cache_trace import AccessTrace, read_trace
from ooc_mdp.sizes import counted
from ooc_mdp.store.atomic_file import atomic_file

__all__ = [
    "DEFAULT_POLICIES",
    "POLICY_WORDS",
    "REPLAYED",
    "SCOPE_WORDS",
    "TraceCurves",
    "caveats",
    "curves_of_traces",
    "parse_policies",
    "parse_sizes",
    "print_cache_curves",
    "to_dict",
    "write_cache_curves",
]

POLICY_WORDS: dict[Policy, str] = {
    "belady": "Belady's optimum",
    "lru": "LRU",
    "fifo": "FIFO",
    "clock": "CLOCK",
    "priority": "lowest priority",
}
DEFAULT_POLICIES: tuple[Policy, ...] = ("belady", "lru", "fifo", "clock")
"""Those whose contents follow from the accesses alone."""
SCOPE_WORDS: dict[Scope, str] = {"all": "with auxiliary accesses", "frontier": "frontier accesses only"}

REPLAYED = "the same accesses under another cache: a bound for schedules that do not look at the cache"
"""What every curve shows."""

_MANY_STEPS = 10**9
"""Of caches that are simulated, an access and a size each: about ten seconds."""

_PIPE_WIDTH = 160
"""Columns where the output is no terminal."""


@dataclass(frozen=True, slots=True, eq=False)
class TraceCurves:
    """One trace and its curves."""

    label: str
    trace: AccessTrace
    curves: tuple[CacheCurve, ...]


def parse_sizes(text: str) -> tuple[CacheSize, ...]:
    """Read "5%,22%,100"; raises OptionsError."""
    return tuple(CacheSize.parse_partitions(part) for part in text.split(","))


def parse_policies(text: str) -> tuple[Policy, ...]:
    """Read "lru,belady", in the order of POLICIES; raises OptionsError."""
    wanted = [part.strip() for part in text.split(",")]
    for name in wanted:
        if name == "optimum":
            raise OptionsError("the policy 'optimum' is now called 'belady'")
        if name not in POLICIES:
            raise OptionsError(f"unknown policy {quote(name)}; there are {', '.join(POLICIES)}")
    return tuple(policy for policy in POLICIES if policy in wanted)


def curves_of_traces(
    paths: Sequence[str | Path],
    *,
    policies: Iterable[Policy] = DEFAULT_POLICIES,
    scopes: Sequence[Scope] | None = None,
    raw: bool = False,
    labels: Sequence[str] | None = None,
    same_accesses: bool = False,
    note: Callable[[str], None] = lambda _: None,
) -> list[TraceCurves]:
    """Read traces and find their curves over every cache size.

    Parameters
    ----------
    same_accesses : replay traces as well whose order of accesses depends on the cache, and whose curves therefore
        predict no solve.
    note : called with a sentence where the replay takes many seconds.
    scopes : which accesses count; if None both, or "frontier" alone where no trace has an auxiliary access.
    raw : see :func:`~ooc_mdp.report.cache_curve.cache_curve`.
    labels : a name a trace; file names without suffix if None, whole paths where those are not distinct.

    Raises
    ------
    InputError : a trace is malformed.
    OptionsError : the labels do not fit the traces, or the order of a trace depends on the cache.
    """
    names = _labels([Path(path) for path in paths], labels)
    traces = [read_trace(path) for path in paths]
    if not same_accesses:
        _refuse_moved(names, traces)
    if scopes is None:
        scopes = SCOPES if any(trace.auxiliary.any() for trace in traces) else ("frontier",)
    policies = tuple(policies)
    queues = [policy for policy in policies if policy in ("fifo", "clock")]
    steps = sum(trace.partition.size * trace.n_partitions for trace in traces) * len(scopes)
    if queues and steps > _MANY_STEPS:
        note(
            f"{' and '.join(POLICY_WORDS[policy] for policy in queues)} are simulated for each cache size, which takes "
            f"some {steps // _MANY_STEPS * 10} seconds; leave them out with --policy belady,lru"
        )
    return [
        TraceCurves(name, trace, tuple(cache_curve(trace, p, scope, raw=raw) for scope in scopes for p in policies))
        for name, trace in zip(names, traces, strict=True)
    ]


def _refuse_moved(labels: Sequence[str], traces: Sequence[AccessTrace]) -> None:
    """Refuse to present the curves of traces that predict no solve as if they did."""
    moved = [f"{name} ({trace.method})" for name, trace in zip(labels, traces, strict=True) if not trace.order_is_fixed]
    if moved:
        raise OptionsError(
            f"the order of accesses of {listed(moved)} depends on the cache: a solve with another cache makes other "
            f"accesses, and often loads several times less than these would; measure such solves with ooc-mdp "
            f"cache-sweep STORE, or replay the same accesses all the same with --same-accesses"
        )


def _labels(paths: list[Path], labels: Sequence[str] | None) -> list[str]:
    if labels is None:
        names = [path.stem for path in paths]
        return names if len(set(names)) == len(names) else [str(path) for path in paths]
    if len(labels) != len(paths):
        raise OptionsError(f"{len(labels)} labels for {len(paths)} traces; give one for each, with commas between them")
    if len(set(labels)) != len(labels):
        raise OptionsError(f"the labels {', '.join(labels)} are not distinct; name each trace differently")
    return list(labels)


def caveats(each: TraceCurves) -> list[str]:
    """What a trace's curves do not show, a sentence each."""
    notes = []
    if not each.trace.order_is_fixed:
        notes.append(
            f"{each.label}: these curves predict no other solve: the order of accesses of {each.trace.method} depends "
            f"on the cache, and with another cache it loads less, or more, than they show, often several times; "
            f"measure such solves with ooc-mdp cache-sweep STORE"
        )
    if each.trace.cut_off:
        notes.append(
            f"{each.label}: the trace is cut off, with no digest at its end: the solve was killed or is at work"
        )
    return notes


def to_dict(traces: Sequence[TraceCurves], sizes: Sequence[CacheSize]) -> dict[str, Any]:
    """What the table says, for `--json`."""
    return {"traces": [_trace_figures(each, sizes) for each in traces]}


def _trace_figures(each: TraceCurves, sizes: Sequence[CacheSize]) -> dict[str, Any]:
    trace = each.trace
    shown = _resolve(sizes, trace.n_partitions)
    return {
        "label": each.label,
        "path": str(trace.path),
        "method": trace.method,
        "facts": trace.facts,
        "partitions": trace.n_partitions,
        "accesses": int((~trace.auxiliary).sum()),
        "auxiliary_accesses": int(trace.auxiliary.sum()),
        "order_is_fixed": trace.order_is_fixed,
        "cut_off": trace.cut_off,
        "caveats": caveats(each),
        "curves": [
            {
                "scope": curve.scope,
                "policy": curve.policy,
                "accesses": curve.n_accesses,
                "knee": None if curve.knee is None else _point(curve, curve.knee),
                "sizes": [_point(curve, size) for size in shown],
            }
            for curve in each.curves
        ],
    }


def _resolve(sizes: Sequence[CacheSize], n_partitions: int) -> list[int]:
    return sorted({size.resolve_partitions(n_partitions) for size in sizes})


def _point(curve: CacheCurve, size: int) -> dict[str, Any]:
    return {
        "partitions": size,
        "fraction": size / curve.n_partitions,
        "hits": int(curve.hits[size]),
        "loads": int(curve.loads[size]),
        "hit_rate": float(curve.hit_rate[size]),
        "loads_per_partition": float(curve.loads_per_partition[size]),
    }


def write_cache_curves(traces: Sequence[TraceCurves], file: Path, *, overwrite: bool = False) -> None:
    """Write every size of every curve as CSV, a line each.

    Raises
    ------
    StoreError : the file exists and may not be replaced, or cannot be written.
    """
    with atomic_file(file, overwrite=overwrite) as temporary, temporary.open("w", newline="", encoding="utf-8") as f:
        out = csv.writer(f, lineterminator="\n")
        out.writerow(
            ("trace", "scope", "policy", "partitions", "fraction", "accesses", "hits", "loads", "hit_rate",
             "loads_per_partition")
        )  # fmt: skip
        for each in traces:
            for curve in each.curves:
                sizes = range(1, curve.n_partitions + 1)
                columns = (curve.hits, curve.loads, curve.hit_rate, curve.loads_per_partition)
                for size, *figures in zip(sizes, *(column[1:].tolist() for column in columns), strict=True):
                    fraction = size / curve.n_partitions
                    out.writerow((each.label, curve.scope, curve.policy, size, fraction, curve.n_accesses, *figures))


def print_cache_curves(traces: Sequence[TraceCurves], sizes: Sequence[CacheSize]) -> None:
    """A table for each trace and scope on stdout, under what it shows and does not show, each with its knees."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, soft_wrap=True, width=_PIPE_WIDTH)
    for each in traces:
        scopes = list(dict.fromkeys(curve.scope for curve in each.curves))
        some_auxiliary = bool(each.trace.auxiliary.any())
        for scope in scopes if some_auxiliary else scopes[:1]:
            curves = [curve for curve in each.curves if curve.scope == scope]
            n, which = curves[0].n_accesses, SCOPE_WORDS[scope] if some_auxiliary else "none of them auxiliary"
            exact = f"; exact for {each.trace.method}" if each.trace.order_is_fixed else ""
            console.print(printable(f"{each.label}: {REPLAYED}{exact}"))
            of = printable(each.trace.method)
            console.print(f"{of}, {counted(each.trace.n_partitions, 'partition')}, {n:,} accesses, {which}")
            console.print("hit rate and loads per partition, by the policy that evicts")
            for sentence in caveats(each):
                console.print(sentence)
            console.print(_table(curves, _resolve(sizes, each.trace.n_partitions)))
            for curve in curves:
                console.print(_knee(curve))
            console.print()


def _table(curves: Sequence[CacheCurve], sizes: Sequence[int]) -> Table:
    """Narrow enough for 80 columns with the default policies."""
    table = Table(box=None, pad_edge=False)
    table.add_column("cache", justify="right")
    table.add_column("share", justify="right")
    for curve in curves:
        table.add_column(f"{curve.policy}\nhits", justify="right")
        table.add_column("\nloads", justify="right")
    for size in sizes:
        cells = [f"{size:,}", f"{size / curves[0].n_partitions:.1%}"]
        for curve in curves:
            cells += [f"{curve.hit_rate[size]:.2%}", f"{curve.loads_per_partition[size]:.3f}"]
        table.add_row(*cells)
    return table


def _knee(curve: CacheCurve) -> str:
    best = curve.knee
    what = f"knee, {POLICY_WORDS[curve.policy]}"
    if best is None:
        return f"{what}: from the first partition on"
    held = counted(best, "partition")
    return f"{what}: at {held} ({best / curve.n_partitions:.1%}), hit rate {curve.hit_rate[best]:.2%}"
