"""The layouts of a model in memory: which row of which array is that of a state and an action.

    layout          P                                  row (s,a)      rewards of transitions
    action-first    (A, S, S), or A matrices (S, S)    P[a][s]        R[a][s]
    state-first     (S, A, S), or S matrices (A, S)    P[s][a]        R[s][a]
    pairs           (L, S) with two arrays (L,)        P[i]           R[i],   s, a = s_indices[i], a_indices[i]

Rows are returned in the order (state, action). A row that is None belongs to an action that is not available.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import InputError, OptionsError
from ooc_mdp.io.arrays.action_matrices import Csr, check_columns, interleave_actions
from ooc_mdp.io.arrays.in_memory import check_type, csr_arrays, dense_array, exact_floats
from ooc_mdp.model.mdp import IntArray

__all__ = ["ACTION_FIRST", "LAYOUTS", "PAIRS", "PATH", "STATE_FIRST", "ArrayRows", "Layout", "layout_of"]

PATH = "P and R"
"""What messages name in place of a file."""
ACTION_FIRST, STATE_FIRST, PAIRS = "action-first", "state-first", "pairs"
LAYOUTS = (ACTION_FIRST, STATE_FIRST)
"""Those that a user can name; pairs are given by their indices."""

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ArrayRows:
    """The rows of P or R, in the order (state, action)."""

    csr: Csr
    available: Mask
    """bool [rows]; False where the row is None."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the row of each (state, action) is."""

    kind: str
    n_states: int
    n_actions: int
    """The largest action number plus 1."""
    states: IntArray
    """int64 [rows]; rising."""
    actions: IntArray
    """int64 [rows]; rising in each state."""
    order: IntArray
    """int64 [rows]; the entry of s_indices and a_indices that each row is, for pairs."""

    def entry(self, name: str, row: int) -> str:
        """How a user writes the row of an array."""
        state, action = int(self.states[row]), int(self.actions[row])
        if self.kind == PAIRS:
            return f"{name}[{self.order[row]}] (state {state}, action {action})"
        first, second = (action, state) if self.kind == ACTION_FIRST else (state, action)
        return f"{name}[{first}][{second}]"

    def rows(self, name: str, value: Any) -> ArrayRows:
        """The rows of P, or of rewards of transitions in the same layout; raises InputError for other shapes."""
        if self.kind == PAIRS:
            matrix = _matrix(name, value)
            _check_shape(name, matrix, (self.order.size, self.n_states))
            pointers, columns, values = _csr(name, matrix)
            lengths = np.diff(pointers)[self.order]
            chosen = np.concatenate([[0], np.cumsum(lengths)])
            at = np.arange(chosen[-1]) + np.repeat(pointers[:-1][self.order] - chosen[:-1], lengths)
            return ArrayRows((chosen, columns[at], values[at]), np.ones(self.order.size, bool))
        matrices, available = _stack(name, value)
        outer, inner = self.n_actions, self.n_states
        if self.kind == STATE_FIRST:
            outer, inner = inner, outer
        if len(matrices) != outer:
            raise InputError(PATH, f"{name} has {len(matrices)} matrices, but {outer} are asked for, as P has")
        for i, matrix in enumerate(matrices):
            _check_shape(f"{name}[{i}]", matrix, (inner, self.n_states))
        parts = [_csr(f"{name}[{i}]", matrix) for i, matrix in enumerate(matrices)]
        if self.kind == ACTION_FIRST:
            return ArrayRows(interleave_actions(parts, inner), np.stack(available, axis=1).ravel())
        pointers = np.concatenate([[0], np.cumsum(np.concatenate([np.diff(part[0]) for part in parts]))])
        columns, values = (np.concatenate([part[i] for part in parts]) for i in (1, 2))
        return ArrayRows((pointers, columns, values), np.concatenate(available))


def layout_of(P: Any, s_indices: Any, a_indices: Any, layout: str | None) -> Layout:
    """The layout of P: the named one, that of pairs where there are indices, else the only one that its shape allows.

    Raises
    ------
    InputError : the shape is that of no layout, or of both and none is named; or the indices do not fit.
    OptionsError : the layout is unknown, or named beside indices.
    """
    if s_indices is not None or a_indices is not None:
        if layout is not None:
            raise OptionsError(f"layout is {layout!r}, but s_indices and a_indices give pairs; leave one of them out")
        return _pairs(P, s_indices, a_indices)
    if layout is not None and layout not in LAYOUTS:
        raise OptionsError(f"layout is {layout!r}; give {' or '.join(map(repr, LAYOUTS))}")
    matrices, _ = _stack("P", P)
    outer, (inner, n_states) = len(matrices), matrices[0].shape
    possible = [kind for kind, n in ((ACTION_FIRST, inner), (STATE_FIRST, outer)) if n == n_states > 0]
    shape = f"P has shape ({outer}, {inner}, {n_states})"
    if layout is None and len(possible) == 2 and n_states > 1:
        raise InputError(
            PATH,
            f"{shape}, with as many actions as states, so that P[i][j] can be state i and action j or the other way "
            f"round; give layout='state-first' or layout='action-first'",
        )
    kind = layout or (possible[0] if possible else "")
    if kind not in possible:
        wanted = {ACTION_FIRST: "(actions, states, states)", STATE_FIRST: "(states, actions, states)"}
        words = wanted[layout] if layout else " or ".join(wanted.values())
        hint = ""
        if outer == inner:
            hint = "; if it is (states, states, actions), give numpy.transpose(P, (2, 0, 1))"
        raise InputError(PATH, f"{shape}; give {words}, where the last axis is the next state{hint}")
    n_actions = outer if kind == ACTION_FIRST else inner
    if n_actions == 0:
        raise InputError(PATH, f"{shape}, without an action; give at least one")
    rows = np.arange(n_states * n_actions)
    return Layout(kind, n_states, n_actions, rows // n_actions, rows % n_actions, rows)


def _pairs(P: Any, s_indices: Any, a_indices: Any) -> Layout:
    if s_indices is None or a_indices is None:
        missing = "s_indices" if s_indices is None else "a_indices"
        raise InputError(PATH, f"{missing} is missing; give the state and the action of each row of P")
    matrix = _matrix("P", P)
    n_rows, n_states = matrix.shape
    if n_rows == 0 or n_states == 0:
        raise InputError(PATH, f"P has shape {matrix.shape}; give at least one row and one state")
    states = _indices("s_indices", s_indices, n_rows)
    actions = _indices("a_indices", a_indices, n_rows)
    beyond = np.flatnonzero(states >= n_states)
    if beyond.size:
        i = int(beyond[0])
        raise InputError(
            PATH, f"s_indices[{i}] is {states[i]}, but P has {n_states} columns: the states are 0..{n_states - 1}"
        )
    order = np.lexsort([actions, states])
    states, actions = states[order], actions[order]
    again = np.flatnonzero((np.diff(states) == 0) & (np.diff(actions) == 0))
    if again.size:
        i, j = order[again[0]], order[again[0] + 1]
        pair = f"state {states[again[0]]}, action {actions[again[0]]}"
        raise InputError(PATH, f"s_indices and a_indices: entries {i} and {j} are both {pair}; give each pair once")
    return Layout(PAIRS, n_states, int(actions.max()) + 1, states, actions, order.astype(np.int64))


def _indices(name: str, value: Any, count: int) -> IntArray:
    """Whole numbers from 0 on, one for each row of P."""
    array = dense_array(PATH, name, value)
    if array.dtype.kind not in "iu":
        raise InputError(PATH, f"{name} has dtype {array.dtype}; give integers, such as {name}.astype(int)")
    if array.shape != (count,):
        raise InputError(PATH, f"{name} has shape {array.shape}; P has {count} rows, which ask for ({count},)")
    wrong = np.flatnonzero((array < 0) | (array > np.iinfo(np.int64).max))
    if wrong.size:
        raise InputError(PATH, f"{name}[{wrong[0]}] is {array[wrong[0]]}; states and actions are numbered from 0")
    return array.astype(np.int64)


def _stack(name: str, value: Any) -> tuple[list[Any], list[Mask]]:
    """Matrices of equal widths, dense or sparse, and which of their rows are given."""
    if hasattr(value, "tocsr") or not isinstance(value, list | tuple | np.ndarray):
        raise InputError(
            PATH,
            f"{name} is one {type(value).__name__}; give an array of three axes or a list of matrices, or P of shape "
            "(pairs, states) with s_indices and a_indices",
        )
    if isinstance(value, np.ndarray) and value.dtype != object and value.ndim != 3:
        raise InputError(
            PATH,
            f"{name} has shape {value.shape}; give three axes, (actions, states, states) or (states, actions, states), "
            "or (pairs, states) with s_indices and a_indices",
        )
    if isinstance(value, np.ma.MaskedArray):
        raise InputError(PATH, f"{name} is a masked array; fill it, or give a sparse matrix")
    if isinstance(value, np.ndarray) and value.dtype == object:
        value = value.tolist()
    widths = [width for each in value if (width := _width(each)) is not None]
    if not widths:
        raise InputError(
            PATH, f"{name} holds no rows; give a list of matrices, with a row that is not None in one of them"
        )
    matrices: list[Any] = []
    available = []
    for i, each in enumerate(value):
        given = np.ones(len(each), bool) if isinstance(each, list | tuple) else None
        if given is not None and any(row is None for row in each):
            given[:] = [row is not None for row in each]
            each = [np.zeros(widths[0]) if row is None else row for row in each]
        matrix = _matrix(f"{name}[{i}]", each)
        _check_shape(f"{name}[{i}]", matrix, (matrices[0].shape[0] if matrices else matrix.shape[0], widths[0]))
        matrices.append(matrix)
        available.append(np.ones(matrix.shape[0], bool) if given is None else given)
    return matrices, available


def _width(matrix: Any) -> int | None:
    """Columns of a matrix; None where it has no row."""
    if isinstance(matrix, list | tuple):
        return next((int(np.size(row)) for row in matrix if row is not None), None)
    shape: tuple[int, ...] = getattr(matrix, "shape", ())
    return int(shape[1]) if len(shape) == 2 else None


def _matrix(name: str, value: Any) -> Any:
    """A matrix of numbers, dense or sparse."""
    matrix = value if hasattr(value, "tocsr") else dense_array(PATH, name, value)
    if len(matrix.shape) != 2:
        raise InputError(PATH, f"{name} has shape {tuple(matrix.shape)}; it must be a matrix, of two axes")
    check_type(PATH, name, matrix)
    return matrix


def _check_shape(name: str, matrix: Any, shape: Sequence[int]) -> None:
    if tuple(matrix.shape) != tuple(shape):
        raise InputError(PATH, f"{name} has shape {tuple(matrix.shape)}; it must be {tuple(shape)}, as the rest of P")


def _csr(name: str, matrix: Any) -> Csr:
    """A matrix as CSR arrays; of a dense one the entries that are not 0."""
    if hasattr(matrix, "tocsr"):
        csr = csr_arrays(PATH, name, matrix)
        check_columns(PATH, name, 0, csr, matrix.shape[1])
        return csr
    row, column = np.nonzero(matrix)
    pointers = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=matrix.shape[0]))])
    values = exact_floats(PATH, name, matrix[row, column], lambda i: f"{name}[{row[i]}, {column[i]}]")
    return pointers, column.astype(np.int64), values
