"""Cache sweeps for people and other programs: a table, and CSV. Computes nothing: it renders what it is given."""

from __future__ import annotations

import csv
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ooc_mdp.options import format_bytes
from ooc_mdp.quoting import printable
from ooc_mdp.report.cache_sweep import CachePoint, CacheSweep
from ooc_mdp.sizes import counted
from ooc_mdp.store.atomic_file import atomic_file

__all__ = ["print_cache_sweep", "sorted_points", "write_cache_table"]

_PIPE_WIDTH = 160
"""Columns where the output is no terminal."""


def sorted_points(sweep: CacheSweep) -> dict[str, list[CachePoint]]:
    """The points of each schedule, by the size of the cache."""
    points: dict[str, list[CachePoint]] = {}
    for point in sweep.points:
        points.setdefault(point.schedule, []).append(point)
    return {schedule: sorted(each, key=lambda p: p.cache_bytes) for schedule, each in points.items()}


def replayed_loads(sweep: CacheSweep, point: CachePoint) -> tuple[float, float] | None:
    """Loads per partition of the same accesses under LRU and Belady's optimum with this cache, where they are known."""
    same = sweep.replayed(point.schedule)
    if same is None or not point.cache_partitions:
        return None
    held = point.cache_partitions
    return same.lru_loads[held] / point.n_partitions, same.belady_loads[held] / point.n_partitions


def print_cache_sweep(sweep: CacheSweep) -> None:
    """A table of all solves on stdout, one line each."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, soft_wrap=True, width=_PIPE_WIDTH)
    if not sweep.points:
        console.print(printable(f"{sweep.facts['store']}: no solve has ended yet"))
        return
    first = sweep.points[0]
    console.print(
        printable(
            f"{sweep.facts['store']}: one solve per line, {counted(first.n_partitions, 'partition')}, "
            f"{format_bytes(first.table_bytes)}, discount {sweep.facts['discount']:g}"
        )
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("schedule")
    for title in ("cache", "bytes", "partitions", "loads per\npartition", "hit rate", "read", "seconds"):
        table.add_column(title, justify="right")
    if sweep.same_accesses:
        table.add_column("same accesses:\nLRU", justify="right")
        table.add_column("\nBelady", justify="right")
    table.add_column("outcome")
    for schedule, points in sorted_points(sweep).items():
        for point in points:
            replayed = replayed_loads(sweep, point)
            cells = ["", ""] if replayed is None else [f"{loads:.2f}" for loads in replayed]
            table.add_row(
                schedule,
                point.size if point.size.endswith("%") else f"{point.fraction:.1%}",
                format_bytes(point.cache_bytes),
                f"{point.cache_partitions:,}",
                f"{point.loads_per_partition:.2f}",
                f"{point.hit_rate:.1%}",
                format_bytes(point.bytes_read),
                f"{point.solve_seconds:.1f}",
                *(cells if sweep.same_accesses else []),
                point.outcome,
            )
    console.print(table)
    if not all(point.reached for point in sweep.points):
        console.print("a solve that did not reach its target counts what it took until it ended")


def write_cache_table(sweep: CacheSweep, file: Path, *, overwrite: bool = False) -> None:
    """Write the figures of every solve as CSV, a line each.

    Raises
    ------
    StoreError : the file exists and may not be replaced, or cannot be written.
    """
    with atomic_file(file, overwrite=overwrite) as temporary, temporary.open("w", newline="", encoding="utf-8") as f:
        out = csv.writer(f, lineterminator="\n")
        header_is_written = False
        for points in sorted_points(sweep).values():
            for point in points:
                replayed = replayed_loads(sweep, point) or ("", "")
                same = dict(zip(("same_accesses_lru", "same_accesses_belady"), replayed, strict=True))
                figures = point.figures() | same
                if not header_is_written:
                    out.writerow(figures)
                    header_is_written = True
                out.writerow(figures.values())
