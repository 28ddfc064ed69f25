"""The table P of a tabular environment as flat arrays. Keys and numbers are checked, and never converted or added.

    P[s][a] = [(probability, next state, reward, done), ...]

    states    a list: 0, 1, ...; a dictionary with integer keys: these, which must be 0, 1, ..., n-1 in any order;
              a dictionary with other keys (tuples, strings): state i is its i-th entry
    actions   of each state, a list, or a dictionary by their numbers; an action that is missing, None, or of which
              every reward is the infinity that is never best (-inf for "max", inf for "min") is not available
    entries   a real number, a state of P, a real number and a bool

Dictionaries are read by their entries: a defaultdict would add the state that it is asked for.
This module knows no environment and does not redirect the transitions that are done.
"""

from __future__ import annotations

import math
import reprlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
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
    sense : "max" or "min".

    Raises
    ------
    InputError : a key, a type, a successor or a count that is not as the module describes.
    """

    def __init__(self, source: str, table: Any, n_states: int | None, n_actions: int | None, sense: str) -> None:
        self._source = source
        self._forbidden = -math.inf if sense == "max" else math.inf
        self._n_actions = n_actions
        self._numbers: dict[Any, int] | None = None
        """Number of each state, where the keys of P are no integers."""
        self._action_ptr = array("q", [0])
        self._labels = array("q")
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
            action_labels=np.array(self._labels, np.int64),
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

    def _check_keys(self, what: str, keys: Iterable[Any]) -> None:
        for key in keys:
            if not _is_integer(key):
                raise self._error(
                    f"{what} has the key {reprlib.repr(key)}, a {_kind(key)}; its keys must be 0, 1, 2, ..."
                )

    def _numbered(self, what: str, items: list[tuple[Any, Any]]) -> list[Any]:
        self._check_keys(what, [key for key, _ in items])
        found = {int(key): value for key, value in items}
        for number in range(len(found)):
            if number not in found:
                raise self._error(
                    f"{what} has no entry {number}; its keys must be 0, 1, 2, ..., and there are {len(found)} of them"
                )
        return [found[number] for number in range(len(found))]

    def _add_state(self, what: str, value: Any) -> None:
        for action, entries in self._actions(what, value):
            name = f"{what}[{action}]"
            if entries is None:
                continue
            if not _is_list(entries):
                raise self._error(
                    f"{name} is a {_kind(entries)}; it must be a list of (probability, state, reward, done), or None "
                    "where the action is not available"
                )
            before = len(self._successors)
            for entry in entries:
                self._add(name, entry)
            if len(entries) and all(reward == self._forbidden for reward in self._rewards[before:]):
                for kept in (self._successors, self._probabilities, self._rewards, self._done):
                    del kept[before:]
                continue
            self._labels.append(action)
            self._successor_ptr.append(len(self._successors))
        self._action_ptr.append(len(self._successor_ptr) - 1)

    def _actions(self, what: str, value: Any) -> list[tuple[int, Any]]:
        """Numbers and entries of a state's actions, ascending."""
        if isinstance(value, Mapping):
            self._check_keys(what, value)
            actions = sorted((int(key), entries) for key, entries in value.items())
        else:
            actions = list(enumerate(self._listed(what, value)))
        for number, _ in actions[:1] + actions[-1:]:
            if number < 0 or (self._n_actions is not None and number >= self._n_actions):
                space = f"the action space has {self._n_actions} actions, from 0 on"
                raise self._error(
                    f"{what} has an action {number}; {'actions are numbered from 0' if number < 0 else space}"
                )
        return actions

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
