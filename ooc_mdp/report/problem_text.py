"""Problems in words: the list of all, and one with its axes, controls, parameters and equations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table

from ooc_mdp.problems.description import ProblemDescription
from ooc_mdp.quoting import printable

__all__ = ["print_problem", "print_problems"]

_FILE_WIDTH = 160
"""Columns of a table that goes to a file or pipe."""


def print_problems(summaries: dict[str, str]) -> None:
    """A row for each problem, and how to go on."""
    console = _console()
    console.print(_table(("problem", "summary"), summaries.items()))
    console.print(
        "Short names stand for sizes: GW-512x4 (side, successors), GW-512x256x4, QK-100.\n"
        "One in detail: ooc-mdp problems double-pendulum. Your own control problem: ooc-mdp problems FILE.py",
        soft_wrap=True,
    )


def print_problem(problem: ProblemDescription, called: str) -> None:
    """Summary, axes, controls, parameters, and the text of its source.

    Parameters
    ----------
    called : its name, or its file, for `generate`.
    """
    console = _console()
    console.print(printable(f"{problem.name}: {problem.summary}"), soft_wrap=True)
    if problem.axes:
        console.print()
        console.print(_table(("axis", "from", "to", "unit", "at its ends"), map(_axis, problem.axes)))
        console.print(f"\ncontrols  {', '.join(map(_control, problem.controls))}", soft_wrap=True)
    console.print()
    rows = ((p.name, p.default or "(needed)", p.meaning) for p in problem.parameters)
    console.print(_table(("parameter (-p)", "default", "meaning"), rows))
    grid = next((f" --grid {p.default}" for p in problem.parameters if p.name == "grid"), "")
    console.print(printable(f"\nto build one: ooc-mdp generate {called} {problem.name}.store{grid}", keep="\n"))
    if problem.text:
        console.print(f"\n{printable(problem.text, keep=chr(10))}", soft_wrap=True)


def _console() -> Console:
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = _FILE_WIDTH
    return console


def _table(header: Iterable[str], rows: Iterable[tuple[str, ...]]) -> Table:
    first, *others = header
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, no_wrap=True)
    for title in others:
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(*map(printable, row))
    return table


def _axis(axis: dict[str, Any]) -> tuple[str, ...]:
    ends = "goes round" if axis["periodic"] else "held at the bound" if axis["clipped"] else "the process ends"
    return axis["name"], f"{axis['low']:g}", f"{axis['high']:g}", axis["unit"], ends


def _control(values: tuple[float, ...]) -> str:
    return f"{values[0]:g}" if len(values) == 1 else f"({', '.join(f'{u:g}' for u in values)})"
