"""What a terminal shows while the code of a command is imported; imports nothing that takes time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

__all__ = ["starting"]

_TEXT = "starting ..."


@contextmanager
def starting(words: Sequence[str], terminal: TextIO) -> Iterator[None]:
    """Show a word meanwhile, and remove it; nothing in a log or file, and nothing for help or the version.

    Parameters
    ----------
    words : of the command line, without the program's name.
    """
    shown = terminal.isatty() and bool(words) and not words[0].startswith("-") and "--help" not in words
    if not shown:
        yield
        return
    terminal.write(_TEXT)
    terminal.flush()
    try:
        yield
    finally:
        terminal.write("\r" + " " * len(_TEXT) + "\r")
        terminal.flush()
