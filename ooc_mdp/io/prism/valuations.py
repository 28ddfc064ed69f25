"""PRISM's companion file of valuations, stem.sta: the values of the state variables.

    (x,done)             names, then a line for each state in order
    0:(0,false)
    1:(-3,true)

Values are whole numbers, or true and false. Blank lines and # comments may stand between.
"""

from __future__ import annotations

import re
from itertools import zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import InputError
from ooc_mdp.io.text.errors import error_at
from ooc_mdp.io.text.file import TextFile
from ooc_mdp.io.text.source import iter_lines
from ooc_mdp.io.variables import VariableColumns
from ooc_mdp.quoting import quote

__all__ = ["read_valuations"]

_PIECE = 1 << 20
_NAMES = re.compile(rb"[ \t]*\((.*)\)[ \t]*\r?")
_VALUE = rb"[ \t]*(-?[0-9]{1,18}|true|false)[ \t]*"
_WORDS = {b"true": 1, b"false": 0}


def read_valuations(file: TextFile, n_states: int, tra: str, columns: VariableColumns) -> None:
    """Put the values of a .sta file into columns.

    Raises
    ------
    InputError : a line is none of this format, states are not 0, 1, 2, ..., or not as many as the .tra file has.
    """
    names: list[str] | None = None
    pattern = re.compile(b"")
    first = 0
    for offset, buffer in iter_lines(file, 0, file.size, _PIECE):
        rows: list[tuple[bytes, ...]] = []
        at = offset
        for raw in buffer.tobytes().split(b"\n")[:-1]:
            line = raw.removeprefix(b"\xef\xbb\xbf") if at == 0 else raw
            if line.strip() and not line.lstrip().startswith(b"#"):
                if names is None:
                    names = _names(file, at, line)
                    pattern = _pattern(len(names))
                else:
                    match = pattern.fullmatch(line)
                    state = first + len(rows)
                    if match is None or int(match[1]) != state or state >= n_states:
                        raise error_at(file, at, _wrong_line(line, state, n_states, tra, names))
                    rows.append(match.groups()[1:])
            at += len(raw) + 1
        if names and rows:
            columns.put(file.path, first, _columns(names, rows))
        first += len(rows)
    if names is None:
        raise InputError(file.path, "nothing but blank lines and comments; the names of variables are expected", 1)
    if first < n_states:
        message = f"its last state is {first - 1}, but {tra} announces {n_states} states"
        raise InputError(file.path, f"{message}; take it away if they do not belong together")


def _names(file: TextFile, at: int, line: bytes) -> list[str]:
    """The variables that the first line names."""
    match = _NAMES.fullmatch(line)
    if match is None:
        text = quote(line.decode("utf-8", "replace"), 40)
        raise error_at(file, at, f"{text} does not name the variables, as (x,y) does")
    names = [name.strip() for name in match[1].decode("utf-8", "replace").split(",")] if match[1].strip() else []
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None or "" in names:
        what = "a variable without a name" if twice is None or not twice else f"two variables {quote(twice)}"
        raise error_at(file, at, f"the first line has {what}; name each once")
    return names


def _pattern(n_names: int) -> re.Pattern[bytes]:
    """Of a state and so many values."""
    return re.compile(rb"[ \t]*([0-9]{1,18})[ \t]*:[ \t]*\(" + b",".join([_VALUE] * n_names) + rb"\)[ \t]*\r?")


def _columns(names: list[str], rows: list[tuple[bytes, ...]]) -> dict[str, npt.NDArray[Any]]:
    """The values of each variable: bools where the first is one, else integers."""
    columns = {}
    for name, texts in zip(names, zip(*rows, strict=True), strict=True):
        if set(texts) <= _WORDS.keys():
            columns[name] = np.array([_WORDS[text] for text in texts], np.bool_)
        else:
            columns[name] = np.array([_WORDS[text] if text in _WORDS else int(text) for text in texts], np.int64)
    return columns


def _wrong_line(line: bytes, state: int, n_states: int, tra: str, names: list[str]) -> str:
    """What is wrong with a line in the place of a state's."""
    text = quote(line.decode("utf-8", "replace").strip(), 40)
    if state >= n_states:
        return f"{text} follows, but {tra} announces {n_states} states"
    match = re.match(rb"[ \t]*([0-9]{1,18})[ \t]*:[ \t]*\((.*)\)[ \t]*\r?$", line)
    example = f"{state}:({','.join(['0'] * len(names))})"
    if match is None or int(match[1]) != state:
        return f"{text} where the line of state {state} is expected, such as {example}"
    given = match[2].split(b",") if match[2].strip() else []
    if len(given) != len(names):
        return f"{len(given)} values of {len(names)} variables ({', '.join(names)})"
    for name, value in zip_longest(names, given):
        if re.fullmatch(_VALUE, value) is None:
            shown = quote(value.decode("utf-8", "replace").strip(), 30)
            return (
                f"{name} is {shown}; whole numbers of at most 18 digits, true and false are read: take the file "
                "away, or the variable out of it"
            )
    return f"{text} is no line of values, such as {example}"
