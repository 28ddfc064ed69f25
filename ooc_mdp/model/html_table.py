"""A small table of figures as HTML, as notebooks show a value."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

__all__ = ["html_table"]

_CELL = "text-align: left; padding: 0 1.5em 0 0;"


def html_table(heading: str, rows: Iterable[tuple[str, str]], sentences: Iterable[str] = ()) -> str:
    """A heading, sentences, and a row for each name and text; what comes from files is no markup in it."""
    lines = "".join(
        f'<tr><th style="{_CELL}">{escape(name)}</th><td style="{_CELL}">{escape(text)}</td></tr>'
        for name, text in rows
    )
    said = "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)
    return f"<div><strong>{escape(heading)}</strong>{said}<table>{lines}</table></div>"
