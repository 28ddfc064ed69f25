"""Parse lines of Johannsson's text format from bytes: `S:id:value:count`, `A:id:count`, `D:id:probability:reward`.

Buffers are as in `ooc_mdp.io.text.numbers`. The syntax of single lines is checked here, not their order.
"""

from __future__ import annotations

from ooc_mdp.io.text.numbers import (
    BAD,
    MAX_LINE,
    NEWLINE,
    SLOW,
    SLOW_SLOTS,
    decimal_at,
    integer_at,
    skip_blanks,
    skip_line,
)
from ooc_mdp.runtime.compiled import loop

__all__ = ["parse_letters"]

_COLON, _HASH = 58, 35
_UPPER_A, _UPPER_D, _UPPER_S = 65, 68, 83


@loop
def parse_letters(buf, pos, end, count, letters, ints, floats, offsets, slow):  # type: ignore[no-untyped-def]
    """Parse lines `S:id:value:count`, `A:id:count` and `D:id:probability:reward`, with blanks around the colons.

    letters [capacity] takes S, A or D; ints [2, capacity] (id, count); floats [2, capacity] (value or
    probability, reward). Everything else is as in `ooc_mdp.io.text.columns.parse_columns`.
    """
    n_slow = 0
    capacity = letters.size
    while pos < end:
        line = pos
        i = skip_blanks(buf, pos)
        letter = buf[i]
        if letter in (NEWLINE, _HASH):
            pos = skip_line(buf, i)
            continue
        if n_slow + 2 > SLOW_SLOTS:
            return line, count, n_slow, False
        if letter != _UPPER_S and letter != _UPPER_A and letter != _UPPER_D:
            return line, count, n_slow, True
        i += 1
        n_fields = 2 if letter == _UPPER_A else 3
        filled = n_slow
        for field in range(n_fields):
            i = skip_blanks(buf, i)
            if buf[i] != _COLON:
                return line, count, filled, True
            i = skip_blanks(buf, i + 1)
            if field == 0 or (field == 1 and letter == _UPPER_A) or (field == 2 and letter == _UPPER_S):
                status, number, i = integer_at(buf, i)
                ints[0 if field == 0 else 1, count] = number
            else:
                begin = i
                status, value, i = decimal_at(buf, i)
                column = field - 1
                floats[column, count] = value
                if status == SLOW:
                    slow[n_slow, 0] = column * capacity + count
                    slow[n_slow, 1] = begin
                    slow[n_slow, 2] = i
                    n_slow += 1
            if status == BAD:
                return line, count, filled, True
        i = skip_blanks(buf, i)
        if buf[i] != NEWLINE or i - line > MAX_LINE:
            return line, count, filled, True
        letters[count] = letter
        offsets[count] = line
        count += 1
        pos = i + 1
    return pos, count, n_slow, False
