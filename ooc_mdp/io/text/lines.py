"""Find where lines and states begin, so that a file can be cut into pieces without parsing it.

Buffers are as in `ooc_mdp.io.text.numbers`. This module reads no numbers but state ids.
"""

from __future__ import annotations

from ooc_mdp.io.text.numbers import NEWLINE, blank, integer_at, skip_blanks, skip_line
from ooc_mdp.runtime.compiled import loop

__all__ = ["mark_lines", "next_state"]

_HASH, _COLON, _UPPER_A, _GOOD = 35, 58, 65, 0


@loop
def next_state(buf, end, marker, previous):  # type: ignore[no-untyped-def]
    """First line of buf[:end] where a new state begins: (offset or -1, its id or -1, last id seen).

    With a marker byte, lines that begin with it open a state, whose id follows the word and perhaps a colon; with
    marker 0, lines whose first integer is not that of the line before (`previous`, -2 at first), and those without
    a readable id before a blank open nothing.
    """
    pos = 0
    while pos < end:
        i = skip_blanks(buf, pos)
        if buf[i] != NEWLINE and buf[i] != _HASH and (marker == 0 or buf[i] == marker):
            if marker != 0:
                while buf[i] >= _UPPER_A:  # the word, all of letters
                    i += 1
                i = skip_blanks(buf, i)
                if buf[i] == _COLON:
                    i = skip_blanks(buf, i + 1)
            status, number, i = integer_at(buf, i)
            if marker != 0:
                return pos, number if status == _GOOD else -1, previous
            if status == _GOOD and blank(buf[i]):
                if previous != -2 and number != previous:
                    return pos, number, previous
                previous = number
        pos = skip_line(buf, i)
    return -1, -1, previous


@loop
def mark_lines(buf, end, seen, step, marks):  # type: ignore[no-untyped-def]
    """Count lines that are neither blank nor a # comment, from `seen` on: (seen, number of marks, place).

    The place is the offset of the last such line, -1 if there is none; marks takes the offset of each line
    whose number is a multiple of `step`.
    """
    pos = 0
    n_marks = 0
    place = -1
    while pos < end:
        i = skip_blanks(buf, pos)
        if buf[i] != NEWLINE and buf[i] != _HASH:
            if seen % step == 0:
                marks[n_marks] = pos
                n_marks += 1
            seen += 1
            place = pos
        pos = skip_line(buf, i)
    return seen, n_marks, place
