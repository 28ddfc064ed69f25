"""Lines for people on stdout and stderr, in which nothing but the program itself acts on a terminal."""

from __future__ import annotations

import sys

from ooc_mdp.quoting import printable

__all__ = ["print_line", "print_note", "print_short_note"]


def print_line(text: object) -> None:
    """Print one line on stdout."""
    print(printable(text))


def print_note(text: object) -> None:
    """Print a sentence, or the lines of a plan, on stderr at once."""
    print(printable(text, keep="\n"), file=sys.stderr, flush=True)


def print_short_note(text: object) -> None:
    """Print a sentence; of a memory plan the sums, without the buffers by name."""
    lines = str(text).split("\n")
    if lines[0].startswith("memory plan, "):
        plans = [line for line in lines if line.startswith("memory plan, ")]
        sums = (f"{line.partition(': ')[0]}: {line.rpartition(' = ')[2]}" for line in plans)
        lines = [
            *sums,
            *(line for line in lines if line not in plans and not line.startswith("beside the memory plan")),
        ]
    print_note("\n".join(lines))
