"""A live view of a solve for a terminal of 100 x 24 characters or more: bound, cache, disk, and a map of partitions.

    .  done      :  up to 10 times the target      *  up to 100 times      #  further      (of a cell's largest bound)

The map has two axes of the grid of partitions, and the largest bound along the others; without a grid, partitions in
order. Computes nothing else: it renders what it is given.
"""

from __future__ import annotations

import math
import re
import sys
from collections import deque
from types import TracebackType
from typing import Self

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from ooc_mdp.events import SolveProgress
from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.options import format_bytes
from ooc_mdp.quoting import printable, shorten
from ooc_mdp.report.solve_line import Remaining, bound_in_force, clock

__all__ = ["LEAST_SIZE", "SolveLiveView", "enlarged", "partition_map"]

LEAST_SIZE = 100, 24
"""Columns and lines of a terminal that has room for the view."""
_OTHER_LINES = 7
_BAR, _RATES = 40, 40
_LEVELS = "▁▂▃▄▅▆▇█"
_MARKS = ".:*#"
_STYLES = "dim", "cyan", "yellow", "bold red"
_CELL_ASPECT = 2
"""Columns of a terminal that are as wide as a line is high."""
_NAME_CHARACTERS = 40


class SolveLiveView:
    """What a solve's watcher draws four times a second; of the same use as `SolveProgressLine`."""

    def __init__(self, name: str, console: Console | None = None) -> None:
        self._name = printable(shorten(name, _NAME_CHARACTERS))
        self._console = console or Console(stderr=True, highlight=False, markup=False)
        self._live = Live(console=self._console, refresh_per_second=4, transient=True)
        self._rates: deque[float] = deque(maxlen=_RATES)
        self._remaining = Remaining()
        self._first: float | None = None
        """The first finite bound in force."""

    @staticmethod
    def fits() -> bool:
        """Whether stderr is a terminal that has room for the view."""
        size = Console(stderr=True).size
        return sys.stderr.isatty() and size.width >= LEAST_SIZE[0] and size.height >= LEAST_SIZE[1]

    def __enter__(self) -> Self:
        self._live.start()
        self._live.update(Text(f"{self._name}: starting"), refresh=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def __call__(self, p: SolveProgress) -> None:
        """Draw where the solve stands."""
        self._live.update(self.frame(p), refresh=True)

    def frame(self, p: SolveProgress) -> Group:
        """What is drawn after that report, and after those before it."""
        self._remaining.add(p)
        self._rates.append(p.read_rate)
        bound = bound_in_force(p)
        if self._first is None and 0 < bound < math.inf:
            self._first = bound
        left = self._remaining.seconds(p.target)
        until = "no estimate yet" if left is None else f"{clock(left)} left"
        width, height = self._console.size
        return Group(
            Text(f"ooc-mdp  {self._name}    {clock(p.seconds)}    {until}", style="bold", no_wrap=True),
            Text(self._bound_line(p, bound), no_wrap=True),
            Text(
                f"partitions   {p.dirty:,} of {p.partitions:,} dirty    "
                f"{p.loads / max(p.partitions, 1):.2f} loads per partition    hit rate {p.hit_rate:.1%}",
                no_wrap=True,
            ),
            Text(f"disk         {sparkline(self._rates)}  {format_bytes(int(p.read_rate))}/s", no_wrap=True),
            *self._map(p, width - 4, height - _OTHER_LINES),
        )

    def _bound_line(self, p: SolveProgress, bound: float) -> str:
        """The bound in force, and on a logarithmic scale how far it has come from the first to the target."""
        what = "residual" if p.stopping_rule == "residual" else "error bound"
        if p.stages is not None:
            return f"stages       {p.stages[0]} of {p.stages[1]} done"
        target = "target not known yet" if p.target is None else f"target {p.target:.1e}"
        done = 0.0
        if self._first is not None and p.target is not None and 0 < p.target < self._first and 0 < bound < math.inf:
            done = math.log(self._first / bound) / math.log(self._first / p.target)
        full = round(_BAR * min(max(done, 0.0), 1.0))
        return f"{what:12} {bound:.2e} {'━' * full}{'─' * (_BAR - full)} {target}"

    def _map(self, p: SolveProgress, width: int, height: int) -> list[Panel]:
        """The map of partitions where the report has their bounds."""
        if p.partition_bounds is None or height < 1:
            return []
        cells = enlarged(partition_map(p.partition_bounds(), p.partition_grid, p.target, width, height), width, height)
        title = ". done  : up to 10 times the target  * up to 100 times  # further"
        shown = Text("\n".join(cells), no_wrap=True)
        for mark, style in zip(_MARKS, _STYLES, strict=True):
            shown.highlight_regex(re.escape(mark) + "+", style)
        return [Panel(shown, title=title, expand=False)]


def enlarged(rows: list[str], width: int, height: int) -> list[str]:
    """The map with marks repeated, as large as the room allows, and each mark's cell about as high as wide."""
    times = max(1, height // len(rows))
    across = max(1, min(_CELL_ASPECT * times, width // len(rows[0])))
    return ["".join(mark * across for mark in row) for row in rows for _ in range(times)]


def sparkline(numbers: deque[float]) -> str:
    """Numbers as bars, relative to the largest."""
    most = max(numbers, default=0.0)
    return "".join(_LEVELS[round(x / most * (len(_LEVELS) - 1))] if most > 0 else _LEVELS[0] for x in numbers)


def partition_map(
    bounds: FloatArray, grid: tuple[int, ...] | None, target: float | None, width: int, height: int
) -> list[str]:
    """A mark for each partition, or for each block of them where there are more than the space has room for.

    Parameters
    ----------
    bounds : float64 [P]; infinite where nothing is known.
    grid : partitions along each axis, in C order; the map has the two longest axes.
    target : level of what is done; None: the least positive bound stands in for it.
    """
    cells = _two_axes(bounds, grid, width)
    rows, columns = (
        np.unique(np.linspace(0, n, min(n, most) + 1).astype(np.int64))[:-1]
        for n, most in zip(cells.shape, (height, width), strict=True)
    )
    cells = np.maximum.reduceat(np.maximum.reduceat(cells, rows, axis=0), columns, axis=1)
    positive = cells[(cells > 0) & np.isfinite(cells)]
    level = target or float(positive.min(initial=np.inf))
    marks = np.searchsorted(level * np.array([1.0, 10.0, 100.0]), cells, side="left")
    shown = np.array([*_MARKS, " "])[np.where(np.isneginf(cells), len(_MARKS), marks)]
    return ["".join(row) for row in shown]


def _two_axes(bounds: FloatArray, grid: tuple[int, ...] | None, width: int) -> FloatArray:
    """float64 [rows, columns]; the largest bound along all other axes; -inf where there is no partition."""
    if grid is None or len(grid) == 1:
        columns = min(width, bounds.size)
        filled = np.full(-(-bounds.size // columns) * columns, -np.inf)
        filled[: bounds.size] = bounds
        return filled.reshape(-1, columns)
    longest = sorted(sorted(range(len(grid)), key=lambda axis: -grid[axis])[:2])
    others = tuple(axis for axis in range(len(grid)) if axis not in longest)
    found: FloatArray = bounds.reshape(grid).max(axis=others)
    return found
