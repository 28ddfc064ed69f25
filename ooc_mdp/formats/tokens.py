"""Strict numbers and lines out of bytes, at compiled speed and without the GIL.

A buffer is uint8, holds whole lines and ends in a newline, so no kernel looks past it. Numbers are ASCII:
integers `-?[0-9]+` that fit into 64 bits, decimals `[+-]?digits[.digits][e[+-]digits]` with no hex, no
underscore, no words (nan, inf) and nothing behind. Decimals are correctly rounded:

    mantissa < 2**53, |exponent| <= 22   one exact product or quotient (Clinger 1990)
    18 digits, |exponent| <= 45          double-double, taken only if the rounding is certain
    everything else                      left to the caller: Python's float() on a token of checked syntax

Kernels only find *that* a line is malformed; `ooc_mdp.formats.faults` says why. This module knows no format's
meaning.
"""

from __future__ import annotations

import numpy as np
from numba import njit

__all__ = [
    "MAX_LINE",
    "NEWLINE",
    "SLOW_SLOTS",
    "integer_at",
    "parse_columns",
    "parse_drn",
    "parse_letters",
    "skip_blanks",
    "skip_line",
]

MAX_LINE = 1 << 20
"""Longest line of numbers, in bytes; what bounds a reader's look-ahead."""
SLOW_SLOTS = 4096
"""Decimals that a kernel leaves to float() before it returns to its caller."""

_EXACT = 46
_HIGH = np.array([float(10**k) for k in range(_EXACT)])
_LOW = np.array([float(10**k - int(float(10**k))) for k in range(_EXACT)])
"""10**k = _HIGH[k] + _LOW[k] exactly, as 5**45 has 105 bits."""
_SPLIT = 134217729.0
_GOOD, _SLOW, _BAD = range(3)
NEWLINE = 10
_SPACE, _TAB, _RETURN = 32, 9, 13
_MINUS, _PLUS, _POINT, _COLON, _COMMA, _HASH, _SLASH = 45, 43, 46, 58, 44, 35, 47
_OPEN, _CLOSE, _RATE, _OBSERVATION = 91, 93, 33, 123
_UPPER_A, _UPPER_D, _UPPER_S, _LOWER_A, _LOWER_S, _LOWER_T = 65, 68, 83, 97, 115, 116
_WORD_STATE = np.frombuffer(b"state", np.uint8)
_WORD_ACTION = np.frombuffer(b"action", np.uint8)


@njit(cache=True, nogil=True)
def _blank(c):  # type: ignore[no-untyped-def]
    return c in (_SPACE, _TAB, _RETURN)


@njit(cache=True, nogil=True)
def skip_blanks(buf, i):  # type: ignore[no-untyped-def]
    """Position of the first byte from i on that is no space, tab or carriage return."""
    while _blank(buf[i]):
        i += 1
    return i


@njit(cache=True, nogil=True)
def skip_line(buf, i):  # type: ignore[no-untyped-def]
    """Start of the next line."""
    while buf[i] != NEWLINE:
        i += 1
    return i + 1


@njit(cache=True, nogil=True)
def integer_at(buf, i):  # type: ignore[no-untyped-def]
    """(status, value, next) of the integer at i."""
    negative = buf[i] == _MINUS
    if negative:
        i += 1
    value = np.int64(0)
    first = i
    while True:
        digit = np.int64(buf[i]) - 48
        if digit < 0 or digit > 9:
            break
        if value > (np.int64(9223372036854775807) - digit) // 10:
            return _BAD, value, i
        value = value * 10 + digit
        i += 1
    if i == first:
        return _BAD, value, i
    return _GOOD, -value if negative else value, i


@njit(cache=True, nogil=True)
def _two_product(a, b):  # type: ignore[no-untyped-def]
    """a*b = p + e exactly (Dekker 1971)."""
    p = a * b
    t = _SPLIT * a
    a_high = t - (t - a)
    a_low = a - a_high
    t = _SPLIT * b
    b_high = t - (t - b)
    b_low = b - b_high
    return p, ((a_high * b_high - p) + a_high * b_low + a_low * b_high) + a_low * b_low


@njit(cache=True, nogil=True)
def _scaled(mantissa, exponent):  # type: ignore[no-untyped-def]
    """(certain, mantissa * 10**exponent rounded) for 0 < mantissa < 10**18, |exponent| < _EXACT.

    The double-double q + r is within 2**-98 of the true value, relatively; q is certainly the nearest double
    if q + (r - e) and q + (r + e) with e = 2**-95 q both round to q, as rounding is monotone.
    """
    m_high = np.float64(mantissa)
    m_low = np.float64(mantissa - np.int64(m_high))
    if exponent >= 0:
        p, e = _two_product(m_high, _HIGH[exponent])
        e += m_high * _LOW[exponent] + m_low * _HIGH[exponent]
    else:
        p = m_high / _HIGH[-exponent]
        product, error = _two_product(p, _HIGH[-exponent])
        e = ((((m_high - product) - error) + m_low) - p * _LOW[-exponent]) / _HIGH[-exponent]
    q = p + e
    r = e - (q - p)
    margin = q * 2.0**-95
    return q + (r - margin) == q and q + (r + margin) == q, q


@njit(cache=True, nogil=True)
def _decimal(buf, i):  # type: ignore[no-untyped-def]
    """(status, value, next) of the decimal at i; its syntax is checked even where float() gives the value."""
    negative = buf[i] == _MINUS
    if negative or buf[i] == _PLUS:
        i += 1
    mantissa = np.int64(0)
    digits = 0
    exponent = np.int64(0)
    seen = False
    cut = False
    fraction = False
    while True:
        digit = np.int64(buf[i]) - 48
        if digit < 0 or digit > 9:
            if buf[i] == _POINT and not fraction:
                fraction = True
                i += 1
                continue
            break
        seen = True
        if digits < 18:
            mantissa = mantissa * 10 + digit
            if mantissa > 0:
                digits += 1
            if fraction:
                exponent -= 1
        else:
            cut |= digit != 0
            exponent += not fraction
        i += 1
    if not seen:
        return _BAD, 0.0, i
    if buf[i] == 101 or buf[i] == 69:
        i += 1
        downwards = buf[i] == _MINUS
        if downwards or buf[i] == _PLUS:
            i += 1
        first = i
        power = np.int64(0)
        while True:
            digit = np.int64(buf[i]) - 48
            if digit < 0 or digit > 9:
                break
            power = min(power * 10 + digit, np.int64(1) << 40)
            i += 1
        if i == first:
            return _BAD, 0.0, i
        exponent += -power if downwards else power
    if cut:
        return _SLOW, np.nan, i
    if mantissa == 0:
        return _GOOD, -0.0 if negative else 0.0, i
    if mantissa <= 9007199254740992 and -22 <= exponent <= 22:
        value = np.float64(mantissa)
        value = value * _HIGH[exponent] if exponent >= 0 else value / _HIGH[-exponent]
        return _GOOD, -value if negative else value, i
    if -_EXACT < exponent < _EXACT:
        certain, value = _scaled(mantissa, exponent)
        if certain:
            return _GOOD, -value if negative else value, i
    return _SLOW, np.nan, i


@njit(cache=True, nogil=True)
def parse_columns(  # type: ignore[no-untyped-def]
    buf, pos, end, n_integers, word, count, ints, floats, offsets, slow
):
    """Lines of n_integers integers, one decimal and (if `word`) perhaps a name; not blank lines, # comments.

    Fills ints [n_integers, capacity], floats [1, capacity] and the lines' offsets from `count` on. Decimals
    left to float() go to slow [SLOW_SLOTS, 3] as (flat index into floats, begin, end).

    Returns (pos, count, n_slow, bad): where to go on (`end`: all read), lines so far, slots filled, and
    whether the line at pos is malformed.
    """
    n_slow = 0
    while pos < end:
        line = pos
        i = skip_blanks(buf, pos)
        if buf[i] == NEWLINE or buf[i] == _HASH:
            pos = skip_line(buf, i)
            continue
        if n_slow == SLOW_SLOTS:
            return line, count, n_slow, False
        for column in range(n_integers):
            status, number, i = integer_at(buf, i)
            if status != _GOOD or not _blank(buf[i]):
                return line, count, n_slow, True
            ints[column, count] = number
            i = skip_blanks(buf, i)
        begin = i
        status, value, i = _decimal(buf, i)
        if status == _BAD or not (_blank(buf[i]) or buf[i] == NEWLINE):
            return line, count, n_slow, True
        after = i
        i = skip_blanks(buf, i)
        if word and buf[i] != NEWLINE:
            while buf[i] > _SPACE:
                i += 1
            i = skip_blanks(buf, i)
        if buf[i] != NEWLINE or i - line > MAX_LINE:
            return line, count, n_slow, True
        if status == _SLOW:
            slow[n_slow, 0] = count
            slow[n_slow, 1] = begin
            slow[n_slow, 2] = after
            n_slow += 1
        floats[0, count] = value
        offsets[count] = line
        count += 1
        pos = i + 1
    return pos, count, n_slow, False


@njit(cache=True, nogil=True)
def parse_letters(buf, pos, end, count, letters, ints, floats, offsets, slow):  # type: ignore[no-untyped-def]
    """Lines `S:id:value:count`, `A:id:count`, `D:id:probability:reward`, blanks around the colons allowed.

    letters [capacity] takes S, A or D; ints [2, capacity] (id, count); floats [2, capacity] (value or
    probability, reward). Everything else is as in :func:`parse_columns`.
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
                status, value, i = _decimal(buf, i)
                column = field - 1
                floats[column, count] = value
                if status == _SLOW:
                    slow[n_slow, 0] = column * capacity + count
                    slow[n_slow, 1] = begin
                    slow[n_slow, 2] = i
                    n_slow += 1
            if status == _BAD:
                return line, count, filled, True
        i = skip_blanks(buf, i)
        if buf[i] != NEWLINE or i - line > MAX_LINE:
            return line, count, filled, True
        letters[count] = letter
        offsets[count] = line
        count += 1
        pos = i + 1
    return pos, count, n_slow, False


@njit(cache=True, nogil=True)
def _bracket(buf, i, wanted):  # type: ignore[no-untyped-def]
    """(status, value, begin, after, next) of decimal number `wanted` in the list `[x, y, ...]` at i."""
    status, value, begin, after = _BAD if wanted >= 0 else _GOOD, 0.0, i, i
    i += 1
    position = 0
    while True:
        i = skip_blanks(buf, i)
        first = i
        state, number, i = _decimal(buf, i)
        if state == _BAD:
            return _BAD, 0.0, begin, after, i
        if position == wanted:
            status, value, begin, after = state, number, first, i
        i = skip_blanks(buf, i)
        position += 1
        if buf[i] == _CLOSE:
            return status, value, begin, after, i + 1
        if buf[i] != _COMMA:
            return _BAD, 0.0, begin, after, i
        i += 1


@njit(cache=True, nogil=True)
def _starts(buf, i, word):  # type: ignore[no-untyped-def]
    """Whether `word` stands at i, followed by a blank."""
    for k in range(word.size):
        if buf[i + k] != word[k]:
            return False
    return _blank(buf[i + word.size])


@njit(cache=True, nogil=True, inline="always")
def _drn_word_line(buf, i, wanted):  # type: ignore[no-untyped-def]
    """(status, id, reward, begin, after, next) of `state id [rewards] labels` or `action name [rewards]` at i.

    `next` is where the line is to end; begin and after delimit the reward.
    """
    status, number, value = _GOOD, np.int64(0), 0.0
    begin, after = i, i
    is_state = buf[i] == _LOWER_S
    if is_state:
        if not _starts(buf, i, _WORD_STATE):
            return _BAD, number, value, begin, after, i
        status, number, i = integer_at(buf, skip_blanks(buf, i + 5))
        if not (_blank(buf[i]) or buf[i] == NEWLINE):
            status = _BAD
    else:
        if not _starts(buf, i, _WORD_ACTION):
            return _BAD, number, value, begin, after, i
        i = skip_blanks(buf, i + 6)
        first = i
        while buf[i] > _SPACE:
            i += 1
        if i == first:
            return _BAD, number, value, begin, after, i
    i = skip_blanks(buf, i)
    if status == _GOOD and buf[i] == _OPEN:
        status, value, begin, after, i = _bracket(buf, i, wanted)
    elif buf[i] == _RATE or buf[i] == _OBSERVATION:
        status = _BAD
    while is_state and buf[i] != NEWLINE:  # labels
        i += 1
    return status, number, value, begin, after, skip_blanks(buf, i)


@njit(cache=True, nogil=True, inline="always")
def _drn_transition_line(buf, i):  # type: ignore[no-untyped-def]
    """(status, successor, probability, begin, after, next) of `successor : probability` at i."""
    status, number, i = integer_at(buf, i)
    i = skip_blanks(buf, i)
    if status == _BAD or buf[i] != _COLON:
        return _BAD, number, 0.0, i, i, i
    begin = skip_blanks(buf, i + 1)
    status, value, after = _decimal(buf, begin)
    return status, number, value, begin, after, skip_blanks(buf, after)


@njit(cache=True, nogil=True)
def parse_drn(  # type: ignore[no-untyped-def]
    buf, pos, end, wanted, count, letters, ints, floats, offsets, slow
):
    """Lines `state id [rewards] labels`, `action name [rewards]`, `successor : probability`; not // comments.

    letters [capacity] takes s, a or t; ints [1, capacity] the id or successor; floats [1, capacity] the
    reward number `wanted` (0 for -1: none) or the probability. Else as :func:`parse_columns`.
    """
    n_slow = 0
    while pos < end:
        line = pos
        i = skip_blanks(buf, pos)
        if buf[i] == NEWLINE or (buf[i] == _SLASH and buf[i + 1] == _SLASH):
            pos = skip_line(buf, i)
            continue
        if n_slow == SLOW_SLOTS:
            return line, count, n_slow, False
        letter = np.uint8(_LOWER_T)
        if buf[i] == _LOWER_S or buf[i] == _LOWER_A:
            letter = buf[i]
            status, number, value, begin, after, i = _drn_word_line(buf, i, wanted)
        else:
            status, number, value, begin, after, i = _drn_transition_line(buf, i)
        if status == _BAD or buf[i] != NEWLINE or i - line > MAX_LINE:
            return line, count, n_slow, True
        if status == _SLOW:
            slow[n_slow, 0] = count
            slow[n_slow, 1] = begin
            slow[n_slow, 2] = after
            n_slow += 1
        letters[count] = letter
        ints[0, count] = number
        floats[0, count] = value
        offsets[count] = line
        count += 1
        pos = i + 1
    return pos, count, n_slow, False
