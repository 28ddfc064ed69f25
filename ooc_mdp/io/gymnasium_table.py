"""The table P of a tabular environment as flat arrays. Keys and numbers are checked, and never converted or added.

    P[s][a] = [(probability, next state, reward, done), ...]

    states    a list: 0, 1, ...; a dictionary with integer keys: these, which must be 0, 1, ..., n-1 in any order;
              a dictionary with other keys (tuples, strings): state i is its i-th entry
    actions   of each state, a list or a dictionary with the keys 0, 1, ... in any order
    entries   a real number, a state of P, a real number and a bool

Dictionaries are read by their entries: a defaultdict would add the state that it is asked for.
This module knows no environment and does not redirect the transitions that are done.
"""

from __future__ import annotations

import reprlib
from array import array
from collections.abc import Mapping, Sequence
from numbers import Number, Real
from typing import Any

import numpy as np

from ooc_mdp.errors import InputError
from ooc_mdp.io.raw_rows import RawRows

__all__ = ["TransitionTable"]

_ENTRY = "(probability, state, reward, done)"


def _is_integer(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _is_real(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, Real)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray))


def _kind(value: Any) -> str:
    return type(value).__name__


class TransitionTable:
    """P as flat arrays, before done transitions are redirected: n states, m rows, nnz transitions.

    Parameters
    ----------
    source : named in messages.
    table : P.
    n_states, n_actions : those of the environment's spaces, None where they do not say.

    Raises
    ------
    InputError : a key, a type, a successor or a count that is not as the module describes.
    """

    def __init__(self, source: str, table: Any, n_states: int | None, n_actions: int | None) -> None:
        self._source = source
        self._n_actions = n_actions
        self._numbers: dict[Any, int] | None = None
        """Number of each state, where the keys of P are no integers."""
        self._action_ptr = array("q", [0])
        self._successor_ptr = array("q", [0])
        self._successors = array("q")
        self._probabilities = array("d")
        self._rewards = array("d")
        self._done = array("b")
        states = self._states(table)
        self.n_states = len(states)
        if n_states is not None and n_states != self.n_states:
            raise self._error(f"P has {self.n_states} states, the observation space {n_states}")
        for key, actions in states:
            self._add_state(f"P[{reprlib.repr(key)}]", actions)

    @property
    def done(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """bool [nnz]; whether the episode ends."""
        return np.array(self._done, np.bool_)

    def raw(self) -> RawRows:
        """The rows as P gives them."""
        return RawRows(
            action_ptr=np.array(self._action_ptr, np.int64),
            successor_ptr=np.array(self._successor_ptr, np.int64),
            successors=np.array(self._successors, np.int64),
            probabilities=np.array(self._probabilities, np.float64),
            transition_rewards=np.array(self._rewards, np.float64),
        )

    def _error(self, message: str) -> InputError:
        return InputError(self._source, message)

    def _states(self, table: Any) -> list[tuple[Any, Any]]:
        """Keys and entries in the order of the states' numbers."""
        if not isinstance(table, Mapping):
            return list(enumerate(self._listed("P", table)))
        items = list(table.items())
        if any(_is_integer(key) for key, _ in items):
            return list(enumerate(self._numbered("P", items)))
        for key, _ in items:
            if isinstance(key, (Number, np.bool_)):
                raise self._error(
                    f"P has the key {key!r}, a {_kind(key)}; the keys of P are the integers 0, 1, 2, ..., "
                    "or all of them tuples or strings"
                )
        self._numbers = {key: number for number, (key, _) in enumerate(items)}
        return items

    def _listed(self, what: str, value: Any) -> list[Any]:
        """The entries of a dictionary with keys 0, 1, 2, ... or of a list."""
        if isinstance(value, Mapping):
            return self._numbered(what, list(value.items()))
        if _is_list(value):
            return list(value)
        raise self._error(f"{what} is a {_kind(value)}; it must be a dictionary or a list")

    def _numbered(self, what: str, items: list[tuple[Any, Any]]) -> list[Any]:
        for key, _ in items:
            if not _is_integer(key):
                raise self._error(
                    f"{what} has the key {reprlib.repr(key)}, a {_kind(key)}; its keys must be 0, 1, 2, ..."
                )
        found = {int(key): value for key, value in items}
        for number in range(len(found)):
            if number not in found:
                raise self._error(
                    f"{what} has no entry {number}; its keys must be 0, 1, 2, ..., and there are {len(found)} of them"
                )
        return [found[number] for number in range(len(found))]

    def _add_state(self, what: str, value: Any) -> None:
        actions = self._listed(what, value)
        if self._n_actions is not None and len(actions) > self._n_actions:
            raise self._error(f"{what} has {len(actions)} actions, the action space {self._n_actions}")
        for action, entries in enumerate(actions):
            name = f"{what}[{action}]"
            if not _is_list(entries):
                raise self._error(
                    f"{name} is a {_kind(entries)}; it must be a list of (probability, state, reward, done)"
                )
            for entry in entries:
                self._add(name, entry)
            self._successor_ptr.append(len(self._successors))
        self._action_ptr.append(len(self._successor_ptr) - 1)

    def _add(self, name: str, entry: Any) -> None:
        if not _is_list(entry) or len(entry) != 4:
            raise self._error(f"{name} holds {reprlib.repr(entry)}; it must hold {_ENTRY}")
        probability, successor, reward, done = entry
        self._probabilities.append(self._real(name, "probability", probability))
        self._successors.append(self._state(name, successor))
        self._rewards.append(self._real(name, "reward", reward))
        if not isinstance(done, (bool, np.bool_)):
            raise self._wrong(name, "done", done, "True or False")
        self._done.append(bool(done))

    def _wrong(self, name: str, what: str, value: Any, wanted: str) -> InputError:
        shown = reprlib.repr(value)
        return self._error(f"{name}: {what} is {shown}, a {_kind(value)}, not {wanted}; it must hold {_ENTRY}")

    def _real(self, name: str, what: str, value: Any) -> float:
        try:
            if _is_real(value):
                return float(value)
        except (OverflowError, ValueError, TypeError):
            pass
        raise self._wrong(name, what, value, "a real number that float64 can hold")

    def _state(self, name: str, key: Any) -> int:
        """The number of a successor; a negative one is refused with its row."""
        if self._numbers is not None:
            try:
                return self._numbers[key]
            except (KeyError, TypeError):
                shown = reprlib.repr(key)
                raise self._error(f"{name} leads to {shown}, a {_kind(key)}, which is no key of P") from None
        if not _is_integer(key):
            raise self._wrong(name, "the next state", key, "an integer")
        if key >= self.n_states or key < -(2**63):
            raise self._error(f"{name}: P leads to state {key}, but has only {self.n_states} states")
        return int(key)
