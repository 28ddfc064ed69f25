"""Names with texts on stdout, a row each, as summaries show them."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ooc_mdp.quoting import printable, shorten

__all__ = ["FILE_WIDTH", "print_rows"]

FILE_WIDTH = 160
"""Columns of a table that goes to a file or pipe."""
_STYLES = {"PROVED": "bold green", "STOPPED": "bold yellow"}
"""Of names on a terminal; others are bold."""
_CELL_CHARACTERS = 1000
"""Of one cell, which may hold an attribute of a file; --json has all of it."""


def _cell(text: str) -> str:
    return printable(shorten(text, _CELL_CHARACTERS))


def print_rows(title: str, rows: list[tuple[str, str]]) -> None:
    """Two columns: folded to the width of a terminal, whole lines in a file or pipe."""
    title, rows = _cell(title), [(_cell(name), _cell(text)) for name, text in rows]
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        width = max(len(name) for name, _ in rows) + 1
        lines = [title] if title else []
        print("\n".join([*lines, *(f"{name:{width}}{text}" for name, text in rows)]))
        return
    table = Table(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column()
    table.add_column(overflow="fold")
    for name, text in rows:
        table.add_row(Text(name, _STYLES.get(name, "bold")), text)
    console.print(table)
