"""A model in memory as a source: P and R in the layouts of `ooc_mdp.io.arrays.layouts`.

    V(s) = opt_{a available in s} { r(s,a) + gamma sum_s' p(s'|s,a) V(s') },      V(s) = value(s) where s is terminal

    R of shape (S,): r(s), also the value of a terminal state;   (S, A), or (pairs,): r(s,a);   in the layout of P:
    r(s,a,s'), of which the mean over s' is paid.

An action is not available where its row of P or R is None, or r(s,a) is the infinity that is never best: -inf for
"max", inf for "min". What P holds there is not read, as in QuantEcon. A state without actions has to be named terminal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from ooc_mdp.arguments import described
from ooc_mdp.errors import InputError
from ooc_mdp.io.annotations import SourceAnnotations
from ooc_mdp.io.arrays.action_matrices import Csr, lookup_rewards
from ooc_mdp.io.arrays.copy_memory import copy_plan
from ooc_mdp.io.arrays.in_memory import check_type, dense_array, exact_floats
from ooc_mdp.io.arrays.layouts import PAIRS, PATH, Layout, Mask, layout_of
from ooc_mdp.io.arrays.pointer_stream import PointerStream, segments
from ooc_mdp.io.checked_rows import check_block
from ooc_mdp.io.given_annotations import GivenAnnotations, add_annotations
from ooc_mdp.io.left_out import LeftOut
from ooc_mdp.io.raw_rows import RawRows
from ooc_mdp.io.source import BlockReader, ReadOptions
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.quoting import quote

__all__ = ["ArrayModel", "MemorySource", "Terminal", "open_arrays"]

Terminal = Sequence[int] | Mapping[int, float] | None
"""Terminal states, with their values if these are not 0 (or R of shape (S,))."""


@dataclass(frozen=True, slots=True)
class ArrayModel:
    """A model as a user gives it; see :func:`ooc_mdp.from_arrays`."""

    P: Any
    R: Any
    s_indices: Any = None
    a_indices: Any = None
    layout: str | None = None
    terminal: Any = None
    sense: str = "max"
    annotations: GivenAnnotations = field(default_factory=GivenAnnotations)
    action_names: Any = None


@dataclass(frozen=True, slots=True)
class _Rewards:
    """Rewards of all rows in the order (state, action)."""

    of_rows: FloatArray
    """float64 [rows]; r(s) + r(s,a)."""
    of_transitions: Csr | None
    of_states: FloatArray | None
    available: Mask


class _Pointers:
    """An array in memory, read forward."""

    def __init__(self, values: IntArray) -> None:
        self.name = "rows"
        self.count = values.size
        self._values = values
        self._next = 0

    def read(self, count: int) -> IntArray:
        """The next `count` values."""
        self._next += count
        return self._values[self._next - count : self._next]


class MemorySource:
    """Rows of a whole model, given in blocks of states."""

    path = PATH
    format = "memory"

    def __init__(self, raw: RawRows, options: ReadOptions) -> None:
        self.left_out = LeftOut()
        self.annotations = SourceAnnotations()
        self.n_states: int | None = raw.action_ptr.size - 1
        self.rows = raw
        self._options = options

    def blocks(self) -> Iterator[BlockReader]:
        """Readers of blocks of about options.segment_bytes."""
        raw = self.rows
        rows = PointerStream(self.path, _Pointers(raw.successor_ptr), raw.successors.size, "transitions")
        states = PointerStream(self.path, _Pointers(raw.action_ptr), rows.n_segments, "rows")
        for first, state_ptr, row_ptr in segments(states, rows, self._options.segment_bytes):
            own_states = slice(first, first + state_ptr.size - 1)
            own_rows = slice(int(state_ptr[0]), int(state_ptr[-1]))
            own = slice(int(row_ptr[0]), int(row_ptr[-1]))
            block = RawRows(
                action_ptr=state_ptr - state_ptr[0],
                successor_ptr=row_ptr - row_ptr[0],
                successors=raw.successors[own],
                probabilities=raw.probabilities[own],
                row_rewards=None if raw.row_rewards is None else raw.row_rewards[own_rows],
                transition_rewards=None if raw.transition_rewards is None else raw.transition_rewards[own],
                terminal_rewards=None if raw.terminal_rewards is None else raw.terminal_rewards[own_states],
                action_labels=None if raw.action_labels is None else raw.action_labels[own_rows],
                action_names=None if raw.action_names is None else raw.action_names[own_rows],
            )
            yield partial(check_block, PATH, first, block, n_states=self.n_states, normalize=self._options.normalize)

    def check_totals(self) -> None:
        """Do nothing: all shapes were compared when the arrays were read."""

    def close(self) -> None:
        """Do nothing: no file is open."""


def open_arrays(model: ArrayModel, options: ReadOptions) -> MemorySource:
    """Read the arrays of a model, which are not changed.

    Raises
    ------
    InputError : a shape, type or number is wrong, an infinite reward forbids nothing, a state without actions is not
        named terminal, or a terminal state has an action; block readers raise it for rows that are no distributions.
    OptionsError : the layout is unknown, or contradicts the indices.
    MemoryBudgetError : the copy of P and R takes more than the RAM that is available.
    """
    layout = layout_of(model.P, model.s_indices, model.a_indices, model.layout)
    as_p = _axes(model.R) == (2 if layout.kind == PAIRS else 3)
    copy_plan(model.P, model.R, layout.states.size, as_p).check_available(
        "reading P and R from memory", "write them to an .npz archive, and convert that, which is read in blocks"
    )
    rows = layout.rows("P", model.P)
    rewards = _rewards(layout, model, rows.csr)
    available = rows.available & rewards.available
    terminal, values = _terminal(model, layout.n_states, rewards.of_states)
    _check_endings(layout, rows.csr, rewards, available & terminal[layout.states])
    available &= ~terminal[layout.states]
    _check_states(layout, rows.csr, available, terminal)
    kept = np.repeat(available, np.diff(rows.csr[0]))
    pointers, columns, probabilities = rows.csr
    of_transitions = rewards.of_transitions
    raw = RawRows(
        action_ptr=_pointers(np.bincount(layout.states[available], minlength=layout.n_states)),
        successor_ptr=_pointers(np.diff(pointers)[available]),
        successors=columns[kept],
        probabilities=probabilities[kept],
        row_rewards=rewards.of_rows[available],
        terminal_rewards=np.where(terminal, values, 0.0),
        action_labels=layout.actions[available],
    )
    if of_transitions is not None:
        paid = lookup_rewards(rows.csr, of_transitions, layout.n_states)
        raw = replace(raw, transition_rewards=paid[kept])
    source = MemorySource(raw, options)
    if model.action_names is not None:
        numbers = source.annotations.number_actions(_action_names(model.action_names, layout.n_actions))
        source.rows = replace(raw, action_names=numbers[raw.action_labels])
    add_annotations(source.annotations, PATH, model.annotations, layout.n_states)
    return source


def _action_names(given: Any, n_actions: int) -> list[str]:
    """The names of the actions that are given, by their numbers in P."""
    names = list(given)
    if len(names) < n_actions:
        raise InputError(PATH, f"action_names has {len(names)} names; P has {n_actions} actions, give a name for each")
    wrong = [name for name in names if not isinstance(name, str) or not name]
    if wrong:
        raise InputError(PATH, f"action_names has {quote(wrong[0])}; give a text for each action")
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise InputError(PATH, f"action_names has {quote(twice)} twice; give each action a name of its own")
    return names


def _pointers(lengths: IntArray) -> IntArray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _rewards(layout: Layout, model: ArrayModel, transitions: Csr) -> _Rewards:
    """R in whichever of its shapes; raises InputError for others."""
    R = model.R
    n_rows, pairs = layout.states.size, layout.kind == PAIRS
    every = np.ones(n_rows, bool)
    axes = _axes(R)
    if axes == (2 if pairs else 3):
        rows = layout.rows("R", R)
        return _Rewards(np.zeros(n_rows), rows.csr, None, rows.available)
    if hasattr(R, "tocsr"):
        check_type(PATH, "R", R)
        R = R.toarray()
    forbidden = -np.inf if model.sense == "max" else np.inf
    dense = _numbers(R, forbidden)
    _check_rewards_shape(layout, dense.shape)
    finite = np.isfinite(dense)
    allowed = finite if not pairs and dense.ndim == 1 else finite | (dense == forbidden)
    if not allowed.all():
        at = tuple(int(i) for i in np.argwhere(~allowed)[0])
        index = ", ".join(map(str, at))
        remedy = f"give a finite number, or {forbidden} in R of states and actions where the action is not available"
        raise InputError(PATH, f"R[{index}] is {dense[at]}; {remedy} (the sense is {model.sense!r})")
    if not pairs and dense.ndim == 1:
        return _Rewards(dense[layout.states], None, dense, every)
    of_rows = dense[layout.order] if pairs else dense.ravel()
    return _Rewards(of_rows, None, None, np.isfinite(of_rows))


def _check_rewards_shape(layout: Layout, shape: tuple[int, ...]) -> None:
    """Refuse rewards that are neither of states nor of states and actions."""
    n, rows = layout.n_states, layout.states.size
    wanted: list[tuple[int, ...]] = [(n,), (n, layout.n_actions)]
    remedy = "or the layout of P"
    if layout.kind == PAIRS:
        wanted, remedy = [(rows,)], f"or ({rows}, {n}); for rewards r(s) give R[s_indices]"
    if shape not in wanted:
        raise InputError(PATH, f"R has shape {shape}; P asks for {', '.join(map(str, wanted))} {remedy}")


def _axes(value: Any) -> int:
    """Number of axes of an array, a matrix, or lists of them."""
    if hasattr(value, "tocsr"):
        return 2
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value.ndim
    if isinstance(value, list | tuple | np.ndarray):
        return 1 + max((_axes(each) for each in value), default=0)
    return 0


def _numbers(value: Any, forbidden: float) -> FloatArray:
    """Rewards as float64, `forbidden` where they are None."""
    array = dense_array(PATH, "R", value)
    if array.dtype == object:
        none = np.array([each is None for each in array.flat]).reshape(array.shape)
        if none.any():
            filled = np.where(none, 0, array).tolist()
            array = dense_array(PATH, "R", filled)
            check_type(PATH, "R", array)
            return np.where(none, forbidden, exact_floats(PATH, "R", array))
    check_type(PATH, "R", array)
    return exact_floats(PATH, "R", array)


def _terminal(model: ArrayModel, n_states: int, of_states: FloatArray | None) -> tuple[Mask, FloatArray]:
    """Which states are terminal, and their values."""
    terminal = np.zeros(n_states, bool)
    values = np.zeros(n_states) if of_states is None else of_states
    given = model.terminal
    if given is None:
        return terminal, values
    if isinstance(given, Mapping):
        if of_states is not None:
            raise InputError(
                PATH, "terminal gives values, but R of shape (states,) has those of terminal states; give a list"
            )
        values = np.zeros(n_states)
    states = dense_array(PATH, "terminal", list(given))
    if states.dtype == bool:
        raise InputError(PATH, "terminal is a mask; give the numbers of the states: numpy.flatnonzero(terminal)")
    if states.size and (states.dtype.kind not in "iu" or states.ndim != 1):
        raise InputError(PATH, f"terminal is {described(given)}; give a list of states, or a dict of their values")
    for state in map(int, states):
        if not 0 <= state < n_states:
            raise InputError(PATH, f"terminal has state {state}; the {n_states} states are 0..{n_states - 1}")
        terminal[state] = True
    if isinstance(given, Mapping):
        numbers = dense_array(PATH, "terminal", list(given.values()))
        if numbers.size:
            check_type(PATH, "the values of terminal", numbers)
            values[states.astype(np.int64)] = exact_floats(PATH, "the values of terminal", numbers)
    return terminal, values


def _check_endings(layout: Layout, transitions: Csr, rewards: _Rewards, available: Mask) -> None:
    """Refuse an action of a terminal state that does more than stay there without a reward."""
    for row in map(int, np.flatnonzero(available)):
        state = int(layout.states[row])
        entries = slice(int(transitions[0][row]), int(transitions[0][row + 1]))
        probabilities = transitions[2][entries]
        successors = transitions[1][entries][probabilities != 0]
        stays = bool(np.all(successors == state)) and probabilities.sum() in (0.0, 1.0)
        paid = 0.0 if rewards.of_states is not None else float(rewards.of_rows[row])
        if rewards.of_transitions is not None:
            own = rewards.of_transitions[0][row : row + 2]
            paid = float(np.abs(rewards.of_transitions[2][own[0] : own[1]]).max(initial=0.0))
        if not stays or paid != 0.0:
            what = f"pays {paid}" if paid != 0.0 else f"leads to {successors.tolist()[:4]}"
            raise InputError(
                PATH,
                f"state {state} is terminal, but {layout.entry('P', row)} {what}; make the row zeros and its reward 0, "
                f"or leave {state} out of terminal (terminal={{{state}: value}} gives its value)",
            )


def _check_states(layout: Layout, transitions: Csr, available: Mask, terminal: Mask) -> None:
    """Refuse rows of zeros, and states without actions that are not terminal."""
    empty = np.flatnonzero(available & (np.diff(transitions[0]) == 0))
    if empty.size:
        raise InputError(
            PATH,
            f"{layout.entry('P', int(empty[0]))} is a row of zeros; give probabilities that sum to 1, or forbid the "
            f"action (None as the row, or an infinite reward in R), or name the state in terminal",
        )
    counts = np.bincount(layout.states[available], minlength=layout.n_states)
    without = np.flatnonzero((counts == 0) & ~terminal)
    if without.size:
        state = int(without[0])
        raise InputError(
            PATH,
            f"state {state} has no available action; give it one, or name it in terminal, as terminal=[{state}], if "
            "the process ends there",
        )
