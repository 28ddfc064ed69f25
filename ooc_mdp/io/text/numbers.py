"""Parse strict numbers and lines from bytes, at compiled speed and without the GIL.

A buffer is uint8, holds whole lines and ends in a newline, so no kernel looks past it. Numbers are ASCII:
integers `-?[0-9]+` that fit into 64 bits, decimals `[+-]?digits[.digits][e[+-]digits]` with no hex, no
underscore, no words (nan, inf) and nothing after them, and fractions `[+-]?digits/digits` of two integers. Decimals and
fractions are correctly rounded:

    mantissa < 2**53, |exponent| <= 22   one exact product or quotient (Clinger 1990)
    both integers <= 2**53               one exact quotient
    18 digits, |exponent| <= 45          double-double, used only if the rounding is certain
    everything else                      left to the caller: nearest_double() on a token of checked syntax

Kernels only find *that* a line is malformed; `ooc_mdp.io.text.errors` finds out why. This module knows no format.
"""

from __future__ import annotations

import math

import numpy as np

from ooc_mdp.runtime.compiled import loop

__all__ = [
    "BAD",
    "GOOD",
    "MAX_FRACTION_DIGITS",
    "MAX_LINE",
    "NEWLINE",
    "SLOW",
    "SLOW_SLOTS",
    "blank",
    "decimal_at",
    "integer_at",
    "nearest_double",
    "skip_blanks",
    "skip_line",
]

MAX_LINE = 1 << 20
"""Longest line of numbers, in bytes; what bounds a reader's look-ahead."""
SLOW_SLOTS = 4096
"""Numbers that a kernel leaves to nearest_double() before it returns to its caller."""
MAX_FRACTION_DIGITS = 640
"""Digits of a fraction's numerator and denominator each: what every interpreter converts to an integer."""

_EXACT = 46
_HIGH = np.array([float(10**k) for k in range(_EXACT)])
_LOW = np.array([float(10**k - int(float(10**k))) for k in range(_EXACT)])
"""10**k = _HIGH[k] + _LOW[k] exactly, as 5**45 has 105 bits."""
_SPLIT = 134217729.0
GOOD, SLOW, BAD = range(3)
"""Status of a number: parsed; of checked syntax and left to nearest_double(); malformed."""
NEWLINE = 10
_SPACE, _TAB, _RETURN = 32, 9, 13
_MINUS, _PLUS, _POINT, _SLASH = 45, 43, 46, 47
_WHOLE = 9007199254740992
"""2**53: integers up to it are exact doubles."""


def nearest_double(text: str) -> float:
    """The double nearest to a decimal or fraction of checked syntax; infinite where it overflows."""
    numerator, slash, denominator = text.partition("/")
    if not slash:
        return float(text)
    try:
        return int(numerator) / int(denominator)
    except OverflowError:
        return -math.inf if text.startswith("-") else math.inf


@loop
def blank(c):  # type: ignore[no-untyped-def]
    """Whether a byte is a space, a tab or a carriage return."""
    return c in (_SPACE, _TAB, _RETURN)


@loop
def skip_blanks(buf, i):  # type: ignore[no-untyped-def]
    """Position of the first byte from i on that is no space, tab or carriage return."""
    while blank(buf[i]):
        i += 1
    return i


@loop
def skip_line(buf, i):  # type: ignore[no-untyped-def]
    """Start of the next line."""
    while buf[i] != NEWLINE:
        i += 1
    return i + 1


@loop
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
            return BAD, value, i
        value = value * 10 + digit
        i += 1
    if i == first:
        return BAD, value, i
    return GOOD, -value if negative else value, i


@loop
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


@loop
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


@loop
def _denominator_at(buf, i):  # type: ignore[no-untyped-def]
    """(status, value, next) of the positive integer at i; SLOW where it exceeds 2**53."""
    first = i
    value = np.int64(0)
    status = GOOD
    while True:
        digit = np.int64(buf[i]) - 48
        if digit < 0 or digit > 9:
            break
        if value > (_WHOLE - digit) // 10:
            status = SLOW
        else:
            value = value * 10 + digit
        i += 1
    if value == 0 or i - first > MAX_FRACTION_DIGITS:
        status = BAD
    return status, value, i


@loop
def decimal_at(buf, i):  # type: ignore[no-untyped-def]
    """(status, value, next) of the decimal or fraction at i; its syntax is checked even where its status is SLOW."""
    negative = buf[i] == _MINUS
    if negative or buf[i] == _PLUS:
        i += 1
    begin = i
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
        return BAD, 0.0, i
    if buf[i] == _SLASH:
        too_long = i - begin > MAX_FRACTION_DIGITS
        status, denominator, i = _denominator_at(buf, i + 1)
        if fraction or too_long or status == BAD:
            return BAD, 0.0, i
        if status == SLOW or cut or exponent != 0 or mantissa > _WHOLE:
            return SLOW, np.nan, i
        value = np.float64(mantissa) / np.float64(denominator)
        return GOOD, -value if negative else value, i
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
            return BAD, 0.0, i
        exponent += -power if downwards else power
    if cut:
        return SLOW, np.nan, i
    if mantissa == 0:
        return GOOD, -0.0 if negative else 0.0, i
    if mantissa <= _WHOLE and -22 <= exponent <= 22:
        value = np.float64(mantissa)
        value = value * _HIGH[exponent] if exponent >= 0 else value / _HIGH[-exponent]
        return GOOD, -value if negative else value, i
    if -_EXACT < exponent < _EXACT:
        certain, value = _scaled(mantissa, exponent)
        if certain:
            return GOOD, -value if negative else value, i
    return SLOW, np.nan, i
