"""Format "gymnasium": the transition table P of a tabular Gymnasium environment, in memory.

    gymnasium:ENV-ID or gymnasium:ENV-ID?name=value&name=value      (arguments of gymnasium.make)
    P[s][a] = [(probability, next state, reward, done), ...]
    V(s) = opt_a sum_i p_i [ r_i + gamma V(next_i) (1 - done_i) ]

The probabilities of several tuples to one successor are added up. Done ends the episode, so a done entry is worth only
its reward:

    into a state t whose rows only loop to t without reward   t becomes a state without actions, V(t) = 0
    into any other state                                      it leads to one more state, the last, V = 0

The second kind keeps its rows, since an episode may begin there or enter it without being done; so every
state has the value that P implies. States keep their numbers; n_states is one more than the environment's where
that last state is needed (CliffWalking, Taxi), and the same where it is not (FrozenLake).
Source: the convention of gymnasium.envs.toy_text (FrozenLake, CliffWalking, Taxi).
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import parse_qsl

import numpy as np

from ooc_mdp.errors import InputError, MissingExtraError
from ooc_mdp.io.checked_rows import check_block
from ooc_mdp.io.raw_rows import RawRows
from ooc_mdp.io.source import BlockReader, ReadOptions, Source

__all__ = ["GYMNASIUM", "GymnasiumFormat"]

_PREFIX = "gymnasium:"
_WORDS = {"true": True, "false": False, "none": None}
_ROW_BYTES = 256
"""Approximate bytes of a transition as Python objects, by which the states of a block are counted."""


def _value(text: str) -> bool | int | float | str | None:
    """A keyword's value: true, false, none, a number, or otherwise the text itself."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if re.fullmatch(r"[+-]?[0-9]+", text, re.ASCII):
        return int(text)
    if re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text, re.ASCII):
        return float(text)
    return text


def _table(source: str) -> tuple[Any, int | None]:
    """P of the environment, and the number of states of its observation space."""
    try:
        import gymnasium
    except ModuleNotFoundError:
        raise MissingExtraError("gymnasium", "gymnasium", "reading a Gymnasium environment") from None
    name, _, query = source.removeprefix(_PREFIX).partition("?")
    try:
        arguments = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
    except ValueError as error:
        raise InputError(source, f"{error}; write gymnasium:ENV-ID?name=value&name=value") from None
    try:
        make: Any = gymnasium.make
        env = make(name, **{key: _value(text) for key, text in arguments})
    except (gymnasium.error.Error, ImportError, TypeError, ValueError, KeyError) as error:
        raise InputError(source, f"gymnasium.make({name!r}) failed: {error}") from None
    try:
        table = getattr(env.unwrapped, "P", None)
        n_states = getattr(env.observation_space, "n", None)
    finally:
        env.close()
    if not isinstance(table, (Mapping, Sequence)) or not len(table):
        raise InputError(
            source,
            f"{name} has no transition table P; only tabular environments (FrozenLake-v1, CliffWalking-v1, "
            "Taxi) have one",
        )
    return table, None if n_states is None else int(n_states)


def _numbered(source: str, what: str, value: Any) -> list[Any]:
    """The entries of a dictionary with keys 0, 1, 2, ... or of a list."""
    if isinstance(value, Mapping):
        try:
            return [value[i] for i in range(len(value))]
        except KeyError as error:
            raise InputError(source, f"{what} has no entry {error}; its keys must be 0, 1, 2, ...") from None
    if isinstance(value, Sequence):
        return list(value)
    raise InputError(source, f"{what} is a {type(value).__name__}; it must be a dictionary or a list")


class _Table:
    """P as flat arrays, before done transitions are redirected: n states, m rows, nnz transitions."""

    def __init__(self, source: str, table: Any, announced: int | None) -> None:
        self.action_ptr = array("q", [0])
        self.successor_ptr = array("q", [0])
        self.successors = array("q")
        self.probabilities = array("d")
        self.rewards = array("d")
        self.done = array("b")
        states = _numbered(source, "P", table)
        for state, actions in enumerate(states):
            for action, outcomes in enumerate(_numbered(source, f"P[{state}]", actions)):
                for outcome in _numbered(source, f"P[{state}][{action}]", outcomes):
                    self._add(source, state, action, outcome)
                self.successor_ptr.append(len(self.successors))
            self.action_ptr.append(len(self.successor_ptr) - 1)
        self.n_states = len(states)
        if announced is not None and announced != self.n_states:
            raise InputError(source, f"P has {self.n_states} states, the observation space {announced}")
        largest = max(self.successors, default=0)
        if largest >= self.n_states:
            raise InputError(source, f"P leads to state {largest}, but has only {self.n_states} states")

    def _add(self, source: str, state: int, action: int, outcome: Any) -> None:
        try:
            probability, successor, reward, done = outcome
            self.successors.append(int(successor))
            self.probabilities.append(float(probability))
            self.rewards.append(float(reward))
            self.done.append(bool(done))
        except (TypeError, ValueError, OverflowError):
            raise InputError(
                source,
                f"P[{state}][{action}] holds {outcome!r}; it must hold (probability, state, reward, done)",
            ) from None


def _redirected(table: _Table) -> tuple[RawRows, int]:
    """The rows as an MDP, and its number of states."""
    n = table.n_states
    successors = np.array(table.successors, np.int64)
    probabilities = np.array(table.probabilities, np.float64)
    rewards = np.array(table.rewards, np.float64)
    action_ptr = np.array(table.action_ptr, np.int64)
    successor_ptr = np.array(table.successor_ptr, np.int64)
    state_of = np.repeat(np.arange(n), np.diff(successor_ptr[action_ptr]))
    real = (probabilities != 0) & (successors >= 0)
    leaves = (successors != state_of) | (rewards != 0)
    worthless = np.bincount(state_of[leaves & real], minlength=n) == 0
    done = np.array(table.done, bool) & real
    terminal = worthless & (np.bincount(successors[done], minlength=n) > 0)
    elsewhere = done & ~terminal[np.maximum(successors, 0)]
    successors[elsewhere] = n
    keep_row = np.repeat(~terminal, np.diff(action_ptr))
    keep = np.repeat(keep_row, np.diff(successor_ptr))
    counts = np.where(terminal, 0, np.diff(action_ptr))
    if elsewhere.any():
        counts = np.append(counts, 0)
    raw = RawRows(
        action_ptr=np.concatenate([[0], np.cumsum(counts)]),
        successor_ptr=np.concatenate([[0], np.cumsum(np.diff(successor_ptr)[keep_row])]),
        successors=successors[keep],
        probabilities=probabilities[keep],
        transition_rewards=rewards[keep],
    )
    return raw, counts.size


class _GymnasiumSource:
    """The table of one environment, all of it in memory."""

    format = "gymnasium"

    def __init__(self, source: str, options: ReadOptions) -> None:
        self.path = source
        self._options = options
        self._raw, count = _redirected(_Table(source, *_table(source)))
        self.n_states: int | None = count

    def blocks(self) -> Iterator[BlockReader]:
        """Readers of blocks of about options.segment_bytes, which check their rows."""
        raw = self._raw
        n_states = raw.action_ptr.size - 1
        ends = raw.successor_ptr[raw.action_ptr]
        first = 0
        while first < n_states:
            limit = ends[first] + max(1, self._options.segment_bytes // _ROW_BYTES)
            last = max(first + 1, int(np.searchsorted(ends, limit, side="right")) - 1)
            yield partial(
                check_block,
                self.path,
                first,
                _sliced(raw, first, last),
                n_states=n_states,
                normalize=self._options.normalize,
            )
            first = last

    def check_totals(self) -> None:
        """Do nothing: the whole table was read when the source was opened."""

    def close(self) -> None:
        """Do nothing: no file is open."""


def _sliced(raw: RawRows, first: int, last: int) -> RawRows:
    """The rows of states first .. last - 1."""
    action_ptr = raw.action_ptr[first : last + 1]
    successor_ptr = raw.successor_ptr[action_ptr[0] : action_ptr[-1] + 1]
    part = slice(int(successor_ptr[0]), int(successor_ptr[-1]))
    rewards = raw.transition_rewards
    return RawRows(
        action_ptr=action_ptr - action_ptr[0],
        successor_ptr=successor_ptr - successor_ptr[0],
        successors=raw.successors[part],
        probabilities=raw.probabilities[part],
        transition_rewards=None if rewards is None else rewards[part],
    )


class GymnasiumFormat:
    """Format "gymnasium": the table P of a tabular environment."""

    name = "gymnasium"
    description = "gymnasium:ENV-ID?name=value, the table P of a tabular Gymnasium environment"
    reward_options: tuple[str, ...] = ()

    def detect(self, source: str, head: bytes) -> bool:
        """Whether the source begins with "gymnasium:"."""
        return source.startswith(_PREFIX)

    def open(self, source: str, options: ReadOptions) -> Source:
        """Make the environment and read its table.

        Raises
        ------
        MissingExtraError : Gymnasium is not installed.
        InputError : an unknown environment or argument, or one without a table P.
        """
        return _GymnasiumSource(source, options)


GYMNASIUM = GymnasiumFormat()
