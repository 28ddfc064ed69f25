"""The rows of some states as a user's function gives them, in one of three shapes, and as flat arrays.

    successors      rewards r(s,a)    rewards r(s,a,s')    also needed
    (n, A, K)       (n, A)            (n, A, K)
    (m, K)          (m,)              (m, K)               actions (n,): rows of each state
    (z,)            (m,)              (z,)                 actions, transitions (m,): transitions of each row

n states, A actions, m rows in the order of their states, K successors of each row, z transitions. Probabilities have
the shape of the successors, or one that NumPy broadcasts to it; of (n, A, K) any axis may have length 1 in each of the
three arrays. An entry of probability 0 is padding: its successor is not read. Whether rows are distributions is checked
in `io/checked_rows.py`.
"""

from __future__ import annotations

import math
import reprlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import InputError
from ooc_mdp.io.arrays.in_memory import check_type, dense_array, exact_floats
from ooc_mdp.io.dense_rows import DenseRows
from ooc_mdp.io.raw_rows import RawRows
from ooc_mdp.model.mdp import FloatArray, IntArray

__all__ = ["GivenArrays", "GivenRows", "RowFunction", "StateFunction", "StateRows", "raw_rows", "read_rows"]

_OUTCOME = "(probability, successor, reward)"


@dataclass(frozen=True, slots=True, eq=False)
class StateRows:
    """The rows of n states, for :func:`ooc_mdp.from_rows`; `Tables from Python` in the reference lists all shapes."""

    successors: npt.ArrayLike
    """Integers (n, A, K), (m, K) or (z,); in any order inside a row, repeated or not."""
    probabilities: npt.ArrayLike
    """Of the same shape, or one that broadcasts to it."""
    rewards: npt.ArrayLike
    """r(s,a) (n, A) or (m,), or r(s,a,s') of the shape of `successors`; axes of length 1 are broadcast."""
    actions: npt.ArrayLike | None = None
    """Integers (n,); number of rows of each state, 0 where the process ends. Only for (m, K) and (z,)."""
    transitions: npt.ArrayLike | None = None
    """Integers (m,); number of transitions of each row. Only for (z,)."""
    available: npt.ArrayLike | None = None
    """bool (n, A); which actions each state has, all by default. Only for (n, A, K); an infinite r(s,a) that is never
    best (-inf for "max", inf for "min") does the same. A state without an available action is terminal."""
    terminal_rewards: npt.ArrayLike | None = None
    """(n,); values of states without actions, ignored elsewhere; 0 by default."""
    durations: npt.ArrayLike | None = None
    """In the shape of r(s,a): time that the action takes; 1 by default."""
    action_labels: npt.ArrayLike | None = None
    """Integers (m,); numbers of the actions, where they are not 0, 1, ... in each state. Not for (n, A, K)."""


GivenRows = StateRows | Sequence[Any]
"""What a function of states returns: :class:`StateRows`, or its first three arrays as a tuple."""
RowFunction = Callable[[IntArray], GivenRows]
"""Rows of the states int64 [n], in their order."""


def raw_rows(path: str, given: Any, n_states: int | None, sense: str) -> RawRows:
    """The rows as flat arrays; arguments and errors are those of :func:`read_rows`."""
    return read_rows(path, given, n_states, sense).raw()


def read_rows(path: str, given: Any, n_states: int | None, sense: str) -> GivenArrays:
    """The arrays of the rows, compared with each other.

    Parameters
    ----------
    path : named in messages.
    given : as a user's function returned it.
    n_states : number of states whose rows it must have; None if any.
    sense : "max" or "min", which decides the infinity of r(s,a) that forbids an action.

    Raises
    ------
    InputError : a shape or type is another than :class:`StateRows` lists.
    """
    if isinstance(given, tuple | list) and len(given) == 3:
        given = StateRows(*given)
    if not isinstance(given, StateRows):
        raise InputError(
            path,
            f"a {type(given).__name__} was given for rows; give StateRows, or the tuple (successors, probabilities, "
            "rewards)",
        )
    return GivenArrays(path, given, n_states, sense)


class GivenArrays:
    """Brings the arrays of `StateRows` into the form of `DenseRows` or `RawRows`."""

    def __init__(self, path: str, given: StateRows, n_states: int | None, sense: str) -> None:
        self._path, self._given = path, given
        self._forbidden = -np.inf if sense == "max" else np.inf
        self._successors = self._integers("successors", given.successors)
        self._probabilities = self._floats("probabilities", given.probabilities)
        self._given_rewards = self._floats("rewards", given.rewards)
        shape = self._successors.shape
        if len(shape) not in (1, 2, 3):
            raise self._error(f"successors have shape {shape}; give (n, A, K), (m, K) or (z,)")
        self._dense = len(shape) == 3
        self._own_successors = self._successors
        if self._dense:
            shape = self._common_shape()
            self._successors = np.broadcast_to(self._successors, shape)
            self._refuse("actions", "transitions", "action_labels")
            self._actions = np.full(shape[0], shape[1], np.int64)
            self._row_shape: tuple[int, ...] = shape[:2]
        else:
            self._refuse("available")
            self._actions = self._counts("actions", given.actions)
            self._row_shape = (int(self._actions.sum()),)
        self._n = self._actions.size
        if n_states is not None and self._n != n_states:
            raise self._error(f"it has the rows of {self._n} states, not of {n_states}")
        self._transitions = self._transition_counts()

    @property
    def n_entries(self) -> int:
        """Number of transitions, padding included."""
        return self._successors.size

    def dense(self) -> DenseRows | None:
        """The arrays as they are, where every state has the same actions of duration 1; else None."""
        if not self._dense or self._given.available is not None or self._given.durations is not None:
            return None
        n, n_actions, n_outcomes = self._successors.shape
        rewards, of_rows = self._given_rewards, self._given_rewards.ndim in (0, 2)
        row_rewards = self._broadcast("rewards", rewards, (n, n_actions)) if of_rows else None
        if row_rewards is not None and (row_rewards == self._forbidden).any():
            return None
        successors = self._own_successors
        if any(each.ndim != 3 for each in (successors, *(() if of_rows else (rewards,)))):
            return None
        probabilities = self._probabilities.reshape((1,) * (3 - self._probabilities.ndim) + self._probabilities.shape)
        return DenseRows(
            (n, n_actions, n_outcomes), successors, probabilities, None if of_rows else rewards, row_rewards
        )

    def raw(self) -> RawRows:
        """The flat arrays."""
        given, shape = self._given, self._successors.shape
        probabilities = self._broadcast("probabilities", self._probabilities, shape)
        row_rewards, transition_rewards = self._rewards()
        durations = self._of_rows("durations", given.durations)
        available = self._available(row_rewards)
        labels = None if given.action_labels is None else self._integers("action_labels", given.action_labels)
        if labels is not None and labels.shape != self._row_shape:
            raise self._error(f"action_labels have shape {labels.shape}; the rows ask for {self._row_shape}")
        successors = self._successors
        if (self._probabilities == 0).any():
            successors = np.where(probabilities == 0, 0, successors)
        actions, transitions = self._actions, self._transitions
        if available is not None:
            actions, transitions = available.sum(axis=1), transitions[available.ravel()]
            labels = np.nonzero(available)[1]

        def flat(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
            return (values if available is None else values[available]).reshape(-1)

        return RawRows(
            action_ptr=_pointers(actions),
            successor_ptr=_pointers(transitions),
            successors=flat(successors),
            probabilities=flat(probabilities),
            row_rewards=None if row_rewards is None else flat(row_rewards),
            transition_rewards=None if transition_rewards is None else flat(transition_rewards),
            terminal_rewards=self._of_states("terminal_rewards", given.terminal_rewards),
            durations=None if durations is None else flat(durations),
            action_labels=labels,
        )

    def _common_shape(self) -> tuple[int, ...]:
        """(n, A, K), to which successors, probabilities and rewards broadcast."""
        rewards = self._given_rewards.shape
        shapes = [self._successors.shape, self._probabilities.shape]
        shapes += [rewards] if len(rewards) == 3 else [(*rewards, 1)] if len(rewards) == 2 else []
        try:
            common = np.broadcast_shapes(*shapes)
        except ValueError:
            common = ()
        if len(common) != 3:
            raise self._error(
                f"successors, probabilities and rewards have the shapes {shapes[0]}, {shapes[1]} and {rewards}, which "
                "do not broadcast to (n, A, K)"
            )
        return common

    def _rewards(self) -> tuple[FloatArray | None, FloatArray | None]:
        """r(s,a) in the shape of the rows, or r(s,a,s') in that of the successors."""
        rewards, shape = self._given_rewards, self._successors.shape
        if rewards.ndim == 0 or (rewards.ndim == len(self._row_shape) and (self._dense or len(shape) == 2)):
            return self._broadcast("rewards", rewards, self._row_shape), None
        if len(shape) == 1 and rewards.shape == self._row_shape:
            return rewards, None
        if rewards.ndim == len(shape):
            return None, self._broadcast("rewards", rewards, shape)
        raise self._error(
            f"rewards have shape {rewards.shape}; successors of shape {shape} ask for {self._row_shape} as r(s,a) or "
            f"{shape} as r(s,a,s'), where axes may have length 1"
        )

    def _available(self, row_rewards: FloatArray | None) -> npt.NDArray[np.bool_] | None:
        """bool (n, A); None where every action is available."""
        available = None
        if self._given.available is not None:
            available = dense_array(self._path, "available", self._given.available)
            if available.dtype != bool or available.shape != self._row_shape:
                raise self._error(
                    f"available has dtype {available.dtype} and shape {available.shape}; give bool {self._row_shape}"
                )
        if self._dense and row_rewards is not None:
            allowed = row_rewards != self._forbidden
            available = allowed if available is None else available & allowed
        return None if available is None or available.all() else available

    def _transition_counts(self) -> IntArray:
        """int64 [m]; transitions of each row, of which the successors must have as many."""
        shape, m = self._successors.shape, math.prod(self._row_shape)
        if len(shape) == 1:
            counts = self._counts("transitions", self._given.transitions)
            if counts.size != m:
                raise self._error(f"transitions has {counts.size} entries, but actions add up to {m} rows")
            if int(counts.sum()) != shape[0]:
                raise self._error(f"transitions add up to {counts.sum()}, but successors have {shape[0]} entries")
            return counts
        self._refuse("transitions")
        if len(shape) == 2 and shape[0] != m:
            raise self._error(f"successors have {shape[0]} rows, but actions add up to {m}")
        return np.full(m, shape[-1], np.int64)

    def _counts(self, name: str, value: npt.ArrayLike | None) -> IntArray:
        if value is None:
            of = "rows of each state" if name == "actions" else "transitions of each row"
            raise self._error(
                f"{name} is missing; successors of shape {self._successors.shape} need the number of {of}"
            )
        counts = self._integers(name, value)
        if counts.ndim != 1 or (counts < 0).any():
            raise self._error(f"{name} must be one axis of numbers that are not negative")
        return counts

    def _of_rows(self, name: str, value: npt.ArrayLike | None) -> FloatArray | None:
        return None if value is None else self._broadcast(name, self._floats(name, value), self._row_shape)

    def _of_states(self, name: str, value: npt.ArrayLike | None) -> FloatArray | None:
        return None if value is None else self._broadcast(name, self._floats(name, value), (self._n,))

    def _broadcast(self, name: str, values: FloatArray, shape: tuple[int, ...]) -> FloatArray:
        try:
            return np.broadcast_to(values, shape)
        except ValueError:
            raise self._error(f"{name} have shape {values.shape}, which does not broadcast to {shape}") from None

    def _integers(self, name: str, value: npt.ArrayLike) -> IntArray:
        values = dense_array(self._path, name, value)
        if values.dtype.kind not in "iu":
            if values.size:
                raise self._error(f"{name} have dtype {values.dtype}; give integers, such as {name}.astype(int)")
            values = values.astype(np.int64)
        if values.dtype == np.uint64 and values.size and values.max() > np.iinfo(np.int64).max:
            raise self._error(f"{name} have a number of more than 63 bits, {values.max()}")
        return values.astype(np.int64, copy=False)

    def _floats(self, name: str, value: npt.ArrayLike) -> FloatArray:
        values = dense_array(self._path, name, value)
        check_type(self._path, name, values)
        return exact_floats(self._path, name, values)

    def _refuse(self, *names: str) -> None:
        for name in names:
            if getattr(self._given, name) is not None:
                shape = self._successors.shape
                raise self._error(f"{name} is given, but successors of shape {shape} do not take it; leave it out")

    def _error(self, message: str) -> InputError:
        return InputError(self._path, message)


def _pointers(counts: npt.NDArray[Any]) -> IntArray:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


@dataclass(frozen=True, slots=True)
class StateFunction:
    """A function of one state as one of an array of states.

    Parameters
    ----------
    function : gives the actions of a state, each a list of (probability, successor, reward), or None where the action
        is not available; or a number, the value of a state where the process ends.
    """

    function: Callable[[int], Any]
    name: str
    """For messages."""

    def __call__(self, states: IntArray) -> StateRows:
        """Call the function for each state; raises InputError for what is no list of actions."""
        rows = _Collected(self.name)
        for state in states.tolist():
            rows.add(state, self.function(state))
        return rows.given()


class _Collected:
    """The rows of one state after the other."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._actions, self._labels, self._transitions, self._successors = (array("q") for _ in range(4))
        self._probabilities, self._rewards, self._terminal = (array("d") for _ in range(3))

    def add(self, state: int, given: Any) -> None:
        """Add what the function returned for a state."""
        number = isinstance(given, Real) and not isinstance(given, bool)
        if not number and not isinstance(given, Sequence | np.ndarray):
            raise InputError(
                self._name,
                f"state {state}: a {type(given).__name__} was returned; return a list of actions, or a number where "
                "the process ends",
            )
        self._terminal.append(float(given) if number else 0.0)
        before = len(self._labels)
        for action, outcomes in enumerate(() if number else given):
            if outcomes is not None:
                self._add_action(f"state {state}, action {action}", outcomes)
                self._labels.append(action)
        self._actions.append(len(self._labels) - before)

    def _add_action(self, place: str, outcomes: Any) -> None:
        before = len(self._successors)
        try:
            for probability, successor, reward in outcomes:
                self._successors.append(successor)
                self._probabilities.append(probability)
                self._rewards.append(reward)
        except (TypeError, ValueError, OverflowError):
            raise InputError(
                self._name, f"{place} is {reprlib.repr(outcomes)}; it must be a list of {_OUTCOME}, or None"
            ) from None
        self._transitions.append(len(self._successors) - before)

    def given(self) -> StateRows:
        """All rows."""
        return StateRows(
            np.array(self._successors, np.int64),
            np.array(self._probabilities, np.float64),
            np.array(self._rewards, np.float64),
            actions=np.array(self._actions, np.int64),
            transitions=np.array(self._transitions, np.int64),
            terminal_rewards=np.array(self._terminal, np.float64),
            action_labels=np.array(self._labels, np.int64),
        )
