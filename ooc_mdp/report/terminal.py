"""Lines for people on stdout and stderr, in which nothing but the program itself acts on a terminal."""

from __future__ import annotations

import sys

from ooc_mdp.quoting import printable

__all__ = ["print_line", "print_note"]


def print_line(text: object) -> None:
    """Print one line on stdout."""
    print(printable(text))


def print_note(text: object) -> None:
    """Print a sentence, or the lines of a plan, on stderr at once."""
    print(printable(text, keep="\n"), file=sys.stderr, flush=True)
