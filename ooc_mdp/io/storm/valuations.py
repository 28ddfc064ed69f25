"""Values of state variables in DRN files, which Storm writes as comments behind the lines of states.

    state 7 init
    //[x=-2 & done & !lost]

A comment is no part of the format, so that none is ever an error: variables are kept where every state has such a
comment with the same names and whole numbers, and left out otherwise.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.model.mdp import IntArray

__all__ = ["commented_values"]

_COMMENT = re.compile(rb"^[ \t]*//[ \t]*\[([^\]\n]*)\][ \t\r]*$", re.MULTILINE)
_ENTRY = re.compile(r"(!?)([^!=&\s]+)(?:=(-?[0-9]{1,18}|true|false))?")
_WORDS = {"true": 1, "false": 0}

Columns = dict[str, npt.NDArray[Any]]


def commented_values(text: bytes, states: IntArray) -> tuple[Columns, bool]:
    """For each variable its values in the states of a segment, and whether something of its comments is left out.

    Parameters
    ----------
    states : offsets of the lines of the segment's states in its text, ascending.
    """
    found = [(match.start(), match[1]) for match in _COMMENT.finditer(text)]
    if not found:
        return {}, False
    owners = np.searchsorted(states, [at for at, _ in found], side="right") - 1
    if not np.array_equal(owners, np.arange(states.size)):
        return {}, True
    rows = [_entries(comment.decode("utf-8", "replace")) for _, comment in found]
    first = rows[0]
    if not first or any(row is None or row.keys() != first.keys() for row in rows):
        return {}, True
    columns: Columns = {}
    for name, value in first.items():
        values = [row[name] for row in rows if row is not None]
        columns[name] = np.array(values, np.bool_ if isinstance(value, bool) else np.int64)
    return columns, False


def _entries(comment: str) -> dict[str, int | bool] | None:
    """The values of a comment; None where it is of another kind."""
    found: dict[str, int | bool] = {}
    for text in comment.split("&"):
        match = _ENTRY.fullmatch(text.strip())
        if match is None or match[2] in found or (match[1] and match[3]):
            return None
        value = match[3]
        found[match[2]] = (not match[1]) if value is None else bool(_WORDS[value]) if value in _WORDS else int(value)
    return found
