"""Labels and variables of states as a user gives them, checked and kept as those of a source (`io/annotations.py`).

    states of a label       a mask (n,), numbers of states, or a function of states
    values of a variable    (n,), or a function of states

A function gets ascending states (int64 [k]) and returns for each whether it has the label, or its value; it is called
for pieces of all states, so that memory holds one bit per state and label, and the values of one piece. Knows no rows
and no store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.arguments import described
from ooc_mdp.errors import InputError
from ooc_mdp.io.annotations import SourceAnnotations
from ooc_mdp.io.arrays.in_memory import dense_array
from ooc_mdp.io.problem_labels import packed_label
from ooc_mdp.io.variables import MOST_TEXTS, Texts, VariableColumns
from ooc_mdp.model.annotations import INITIAL
from ooc_mdp.model.mdp import IntArray
from ooc_mdp.runtime.threads import slices

__all__ = ["GivenAnnotations", "GivenStates", "GivenValues", "add_annotations"]

GivenStates = Sequence[int] | Set[int] | np.ndarray[Any, Any] | Callable[[IntArray], Any]
"""Numbers of states, a mask of all states, or a function of states that returns a mask of them."""
GivenValues = Sequence[Any] | np.ndarray[Any, Any] | Callable[[IntArray], Any]
"""A value for each state, or a function of states that returns theirs."""

_PIECE = 1 << 16
"""States for which the function of a variable is called at a time."""
_TYPES = {"b": "bools", "i": "integers", "u": "integers", "f": "floats", "U": "texts"}


@dataclass(frozen=True, slots=True)
class GivenAnnotations:
    """As :func:`ooc_mdp.from_arrays` and :func:`ooc_mdp.from_rows` take them."""

    labels: Mapping[str, GivenStates] | None = None
    initial: int | GivenStates | None = None
    """The states of the label INITIAL, or one state."""
    variables: Mapping[str, GivenValues] | None = None


def add_annotations(found: SourceAnnotations, path: str, given: GivenAnnotations, n_states: int) -> None:
    """Add labels and variables to those of a source.

    Parameters
    ----------
    path : named in messages.

    Raises
    ------
    InputError : a name is no text, or states or values are not those of `n_states` states; an exception of a function
        gets a note with the states that it was called with.
    """
    for name, states in _labels(path, given).items():
        place = "initial" if name == INITIAL and given.initial is not None else f"labels[{name!r}]"
        _add_label(found, path, name, place, states, n_states)
    variables = given.variables or {}
    if any(not isinstance(name, str) or not name for name in variables):
        raise InputError(path, f"variables has the names {list(variables)}; give names that are texts")
    for name, values in variables.items():
        _add_variable(found.variables, path, name, values, n_states)


def _labels(path: str, given: GivenAnnotations) -> dict[str, Any]:
    """The labels that are given, the initial states among them."""
    labels: dict[str, Any] = dict(given.labels or {})
    if any(not isinstance(name, str) or not name for name in labels):
        raise InputError(path, f"labels has the names {list(labels)}; give names that are texts")
    initial = given.initial
    if initial is not None:
        if INITIAL in labels:
            raise InputError(path, f"initial and labels[{INITIAL!r}] both give the initial states; leave one out")
        scalar = np.isscalar(initial)
        if scalar and (isinstance(initial, bool) or not isinstance(initial, int | np.integer)):
            raise InputError(path, f"initial is {described(initial)}; give a state, or a list of states")
        labels[INITIAL] = [initial] if scalar else initial
    return labels


def _add_label(found: SourceAnnotations, path: str, name: str, place: str, given: Any, n_states: int) -> None:
    """Add a label whose states are given as a mask, as numbers or by a function."""
    if callable(given):

        def label(states: IntArray) -> npt.NDArray[np.bool_]:
            called, values = _called(path, place, given, states)
            if values.dtype != bool or values.shape != states.shape:
                what = f"is of type {values.dtype} and shape {values.shape}"
                raise InputError(path, f"{called} {what}; return a bool for each of the {states.size} states")
            return values

        found.set_bits(name, packed_label(label, n_states))
        return
    states = dense_array(path, place, list(given) if isinstance(given, set | frozenset | range) else given)
    if states.dtype == bool:
        if states.shape != (n_states,):
            raise InputError(path, f"{place} is a mask of shape {states.shape}; the model has {n_states} states")
        found.set_bits(name, np.packbits(states, bitorder="little"))
        return
    if states.size and (states.dtype.kind not in "iu" or states.ndim != 1):
        raise InputError(path, f"{place} is {described(given)}; give a list of states, or a mask of all states")
    beyond = states[(states < 0) | (states >= n_states)]
    if beyond.size:
        raise InputError(path, f"{place} has state {beyond[0]}; the {n_states} states are 0..{n_states - 1}")
    found.declare([name])
    found.mark(name, states.astype(np.int64))


def _add_variable(columns: VariableColumns, path: str, name: str, given: Any, n_states: int) -> None:
    """Add a variable whose values are given in an array or by a function."""
    place = f"variables[{name!r}]"
    if not callable(given):
        columns.put(path, 0, {name: _column(path, place, dense_array(path, place, given), 0, n_states)})
        return
    type_before, texts = None, set[str]()
    for part in slices(n_states, _PIECE):
        called, values = _called(path, place, given, np.arange(part.start, part.stop, dtype=np.int64))
        column = _column(path, called, values, part.start, part.stop - part.start)
        type_now = _TYPES[values.dtype.kind]
        if type_before not in (None, type_now):
            raise InputError(path, f"{called} has {type_now}, and {type_before} before; return values of one type")
        type_before = type_now
        if isinstance(column, Texts):
            texts.update(column.texts)
            _check_number_of_texts(path, place, len(texts))
        columns.put(path, part.start, {name: column})


def _called(path: str, place: str, function: Callable[[IntArray], Any], states: IntArray) -> tuple[str, Any]:
    """How a message names the call of a user's function, and the array that it returned."""
    called = f"{place}(states {states[0]}..{states[-1]})"
    try:
        values = function(states)
    except Exception as error:
        error.add_note(f"in the call {called}; the function gets an array of states")
        raise
    return called, dense_array(path, called, values)


def _column(
    path: str, place: str, column: npt.NDArray[Any], first_state: int, n_states: int
) -> npt.NDArray[Any] | Texts:
    """Integers, bools, floats or texts of consecutive states, checked."""
    if column.shape != (n_states,):
        what = f"has the shape {column.shape}; give a value for each of the {n_states} states"
        raise InputError(path, f"{place} {what}")
    if column.dtype.kind not in _TYPES or (column.dtype.kind == "f" and column.dtype.itemsize > 8):
        raise InputError(path, f"{place} is of type {column.dtype}; give integers, bools, floats or texts")
    if column.dtype.kind == "f" and not np.isfinite(column).all():
        i = int(np.flatnonzero(~np.isfinite(column))[0])
        raise InputError(path, f"{place} is {column[i]} in state {first_state + i}; give finite numbers")
    if column.dtype.kind == "u" and int(column.max()) > np.iinfo(np.int64).max:
        raise InputError(path, f"{place} has the value {column.max()}, which does not fit in int64")
    if column.dtype.kind != "U":
        return column
    texts, which = np.unique(column, return_inverse=True)
    _check_number_of_texts(path, place, texts.size)
    return Texts(which, texts.tolist())


def _check_number_of_texts(path: str, place: str, count: int) -> None:
    if count > MOST_TEXTS:
        raise InputError(path, f"{place} has {count} different texts; at most {MOST_TEXTS} are kept, give numbers")
