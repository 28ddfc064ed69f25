"""Messages for malformed lines of text: a second, slow look at a line that a kernel could not parse.

This module reads single lines and counts newlines; it runs only when an error is about to be raised.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ooc_mdp.errors import InputError
from ooc_mdp.io.text.file import TextFile
from ooc_mdp.io.text.numbers import MAX_FRACTION_DIGITS, MAX_LINE, nearest_double
from ooc_mdp.quoting import quote

__all__ = [
    "INTERVALS",
    "Field",
    "diagnose_fields",
    "encoding_error",
    "error_at",
    "line_bytes",
    "line_number",
    "negative_state",
    "number_error",
]

_CHUNK = 1 << 20
_INTEGER = re.compile(r"-?[0-9]+", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)
_FRACTION = re.compile(r"[+-]?([0-9]+)/([0-9]+)", re.ASCII)
"""In each expression no two neighbours match the same character, so that a match takes linear time."""
_BLANKS = " \t\r"
INTERVALS = "models with intervals are not read: give each transition one probability"
"""What to do about a file of an interval model."""
_FINITE = "give a finite number (to forbid an action, leave it out)"


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a line, as messages name it."""

    name: str
    integer: bool


def line_number(file: TextFile, offset: int) -> int:
    """1-based line that holds byte `offset`, counted by streaming over the bytes before it."""
    return 1 + sum(file.read(at, min(offset - at, _CHUNK)).count(b"\n") for at in range(0, offset, _CHUNK))


def line_bytes(file: TextFile, offset: int) -> bytes:
    """The line at `offset` without its newline, at most MAX_LINE + 2 bytes of it."""
    return file.read(offset, MAX_LINE + 2).split(b"\n", 1)[0]


def error_at(file: TextFile, offset: int, message: str) -> InputError:
    """An InputError at the line that holds byte `offset`."""
    return InputError(file.path, message, line_number(file, offset))


def encoding_error(raw: bytes) -> str | None:
    """The error in a line's bytes, before its fields are parsed; None if there is none."""
    if b"\0" in raw:
        return (
            "NUL bytes, as an interrupted write, a sparse copy or UTF-16 text leaves them; "
            "write the file again, as plain UTF-8 text"
        )
    if len(raw) > MAX_LINE:
        return f"the line is longer than {MAX_LINE} bytes; no line of a model file needs that many digits"
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = raw[error.start]
        return f"byte 0x{byte:02X} at column {error.start + 1} is not UTF-8 text; save the file as UTF-8"
    return None


def number_error(text: str, field: Field) -> str | None:
    """The error in the text of one number; None if there is none. An overflow to infinity is an error."""
    shown = quote(text)
    if field.integer:
        if _INTEGER.fullmatch(text):
            if len(text) < 21 and -(2**63) < int(text) < 2**63:
                return None
            return f"{field.name} {shown} does not fit into 64 bits"
        return f"{field.name} {shown} is not an integer written in the digits 0-9"
    if text.startswith("["):
        return f"{field.name} {shown} is an interval; {INTERVALS}"
    if "/" in text:
        error = _fraction_error(text)
        if error is not None:
            return f"{field.name} {shown} {error}"
    elif not _DECIMAL.fullmatch(text):
        return _word_error(text, field)
    if math.isinf(nearest_double(text)):
        return f"{field.name} {shown} overflows to infinity; {_FINITE}"
    return None


def _fraction_error(text: str) -> str | None:
    match = _FRACTION.fullmatch(text)
    if match is None:
        return "is not a fraction of two integers, such as 1/4"
    longest = max(map(len, match.groups()))
    if longest > MAX_FRACTION_DIGITS:
        return f"has {longest} digits; numerator and denominator may have {MAX_FRACTION_DIGITS}: write it as a decimal"
    if not match[2].strip("0"):
        return "has the denominator 0"
    return None


def _word_error(text: str, field: Field) -> str:
    """The error in a text that is neither a decimal nor a fraction."""
    word = text.lstrip("+-").lower()
    if word == "nan":
        return f"{field.name} is NaN; give a number"
    if word in ("inf", "infinity"):
        return f"{field.name} is infinite; {_FINITE}"
    if "," in text and _DECIMAL.fullmatch(text.replace(",", ".", 1)):
        return f"{field.name} {quote(text)} has a decimal comma; write a decimal point"
    return f"{field.name} {quote(text)} is not a decimal number"


def negative_state(state: int) -> str:
    """The message for a state below 0."""
    return f"state {state} is negative; states are numbered from 0"


def diagnose_fields(texts: Sequence[str], fields: Sequence[Field], what: str) -> str:
    """The message for texts that are not these fields; `what` names the line, as in "a D line"."""
    names = ", ".join(field.name for field in fields)
    count = len(texts)
    if count != len(fields):
        if any(text.strip(_BLANKS).startswith("[") for text in texts):
            return f"{what} with an interval; {INTERVALS}"
        return f"{what} of {count} field{'s' * (count != 1)}; {len(fields)} are expected: {names}"
    for text, field in zip(texts, fields, strict=True):
        error = number_error(text.strip(_BLANKS), field)
        if error is not None:
            return error
    return f"{what} that is not {names}"
