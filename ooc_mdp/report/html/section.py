"""The parts of a report as values: sections with sentences, tables and charts. Knows neither HTML nor Bokeh."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Row", "Section", "Table"]


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of a result with its name, as text."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table of texts; numbers are right-aligned where `numeric` is set."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: bool = True


@dataclass(frozen=True, slots=True)
class Section:
    """One section of the page."""

    title: str
    source: str
    """Which data the section shows, in a sentence."""
    sentences: tuple[str, ...] = ()
    """Explanations; or, where data is missing, what is missing and how to record it."""
    rows: tuple[Row, ...] = ()
    command: str = ""
    """A command to copy."""
    table: Table | None = None
    charts: tuple[tuple[Any, ...], ...] = field(default=())
    """Bokeh models, row by row."""
