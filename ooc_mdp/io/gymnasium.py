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
that last state is needed (CliffWalking, Taxi), and the same where it is not (FrozenLake). What P itself may be is
checked in `io/gymnasium_table.py`.
Source: the convention of gymnasium.envs.toy_text (FrozenLake, CliffWalking, Taxi).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import parse_qsl

import numpy as np

from ooc_mdp.errors import InputError, MissingExtraError
from ooc_mdp.io.annotations import SourceAnnotations
from ooc_mdp.io.checked_rows import check_block
from ooc_mdp.io.gymnasium_table import TransitionTable
from ooc_mdp.io.left_out import INITIAL_CHANCES, LeftOut
from ooc_mdp.io.raw_rows import RawRows
from ooc_mdp.io.source import BlockReader, ReadOptions, Source
from ooc_mdp.model.annotations import INITIAL

__all__ = ["GYMNASIUM", "GymnasiumFormat", "environment_name", "open_environment"]

_PREFIX = "gymnasium:"
_WORDS = {"true": True, "false": False, "none": None}
_ROW_BYTES = 256
"""Approximate bytes of a transition as Python objects, by which the states of a block are counted."""


def _value(source: str, text: str) -> Any:
    """A keyword's value: true, false, none, a number, a Python literal in brackets or quotes, or the text itself."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if re.fullmatch(r"[+-]?[0-9]+", text, re.ASCII):
        return int(text)
    if re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text, re.ASCII):
        return float(text)
    if text[:1] in ("(", "[", "{", "'", '"'):
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            raise InputError(source, f"{text[:60]!r} is no Python literal; close its brackets and quotes") from None
    return text


def _arguments(source: str, query: str) -> dict[str, Any]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
        arguments = {key: _value(source, text) for key, text in pairs}
    except ValueError as error:
        raise InputError(source, f"{error}; write gymnasium:ENV-ID?name=value&name=value") from None
    if len(arguments) < len(pairs):
        twice = next(key for i, (key, _) in enumerate(pairs) if key in dict(pairs[:i]))
        raise InputError(source, f"argument {twice!r} is given twice; keep one")
    return arguments


def _made(source: str) -> Any:
    """The environment that a source names."""
    try:
        import gymnasium
    except ModuleNotFoundError:
        raise MissingExtraError("gymnasium", "gymnasium", "reading a Gymnasium environment") from None
    name, _, query = source.removeprefix(_PREFIX).partition("?")
    arguments = _arguments(source, query)
    make: Any = gymnasium.make
    try:  # runs the environment's own code, which may raise anything
        return make(name, **arguments)
    except (Exception, SystemExit) as error:
        raise _failed(source, f"gymnasium.make({name!r})", error) from None


def _failed(source: str, what: str, error: BaseException) -> InputError:
    return InputError(source, f"{what} failed: {type(error).__name__}: {str(error)[:400] or 'no message'}")


def _table(source: str, env: Any, sense: str) -> tuple[TransitionTable, Any]:
    """P of an environment, compared with its spaces, and what it says of initial states (None: nothing)."""
    try:  # properties of the environment's own
        own = getattr(env, "unwrapped", env)
        table, states, actions = (getattr(own, each, None) for each in ("P", "observation_space", "action_space"))
        starts = getattr(own, "initial_state_distrib", None)
    except (Exception, SystemExit) as error:
        raise _failed(source, "reading P", error) from None
    _check_kind(source, environment_name(env), table)
    _refuse_wrappers(source, env)
    return TransitionTable(source, table, _count(source, states), _count(source, actions), sense), starts


def environment_name(env: Any) -> str:
    """The name by which an environment is registered, or that of its class."""
    name = getattr(getattr(env, "spec", None), "id", None)
    return name if isinstance(name, str) else type(getattr(env, "unwrapped", env)).__name__


def _refuse_wrappers(source: str, env: Any) -> None:
    """Refuse wrappers that change rewards or actions, of which P knows nothing."""
    while hasattr(env, "env"):
        changed = {"RewardWrapper": "rewards", "ActionWrapper": "actions"}
        for base in type(env).__mro__:
            if base.__name__ in changed:
                raise InputError(
                    source,
                    f"the wrapper {type(env).__name__} changes {changed[base.__name__]}, of which P of the environment "
                    "inside knows nothing; give env.unwrapped, or make the change in P",
                )
        env = env.env


def _check_kind(source: str, name: str, table: Any) -> None:
    if isinstance(table, np.ndarray):
        raise InputError(
            source,
            f"P of {name} is an ndarray of shape {table.shape}, not P[s][a] = [(probability, state, reward, done), "
            "...]; save it with the rewards R by numpy.savez(FILE, P=P, R=R) and convert that (format mdptoolbox)",
        )
    if not isinstance(table, (Mapping, Sequence)) or not len(table):
        raise InputError(
            source,
            f"{name} has no transition table P; only tabular environments (FrozenLake-v1, CliffWalking-v1, "
            "Taxi) have one",
        )


def _count(source: str, space: Any) -> int | None:
    """The number of elements of a Discrete space, None for other spaces; MultiBinary has an n of another meaning."""
    n, start = getattr(space, "n", None), getattr(space, "start", 0)
    if not isinstance(n, (int, np.integer)) or type(space).__name__ == "MultiBinary":
        return None
    if isinstance(start, (int, np.integer)) and start != 0:
        raise InputError(source, f"{space} begins with {start}; states and actions are numbered from 0")
    return int(n)


def _redirected(table: TransitionTable, raw: RawRows) -> tuple[RawRows, int]:
    """The rows as an MDP, and its number of states."""
    n = table.n_states
    successors, probabilities, rewards = raw.successors, raw.probabilities, raw.transition_rewards
    assert rewards is not None
    state_of = np.repeat(np.arange(n), np.diff(raw.successor_ptr[raw.action_ptr]))
    real = probabilities != 0
    leaves = (successors != state_of) | (rewards != 0)
    worthless = np.bincount(state_of[leaves & real], minlength=n) == 0
    done = table.done & real
    terminal = worthless & (np.bincount(successors[done], minlength=n) > 0)
    elsewhere = done & ~terminal[successors]
    keep_row = np.repeat(~terminal, np.diff(raw.action_ptr))
    keep = np.repeat(keep_row, np.diff(raw.successor_ptr))
    counts = np.where(terminal, 0, np.diff(raw.action_ptr))
    if elsewhere.any():
        counts = np.append(counts, 0)
    redirected = RawRows(
        action_ptr=np.concatenate([[0], np.cumsum(counts)]),
        successor_ptr=np.concatenate([[0], np.cumsum(np.diff(raw.successor_ptr)[keep_row])]),
        successors=np.where(elsewhere, n, successors)[keep],
        probabilities=probabilities[keep],
        transition_rewards=rewards[keep],
        action_labels=None if raw.action_labels is None else raw.action_labels[keep_row],
    )
    return redirected, counts.size


class _GymnasiumSource:
    """The table of one environment, all of it in memory."""

    format = "gymnasium"

    def __init__(self, source: str, env: Any, options: ReadOptions) -> None:
        self.path = source
        self.left_out = LeftOut()
        self.annotations = SourceAnnotations()
        self._options = options
        table, starts = _table(source, env, options.sense)
        self._note_starts(starts, table.n_states)
        raw = table.raw()
        # All rows are checked here: a terminal state's rows are left out below.
        check_block(source, 0, raw, n_states=table.n_states, normalize=options.normalize)
        self._raw, count = _redirected(table, raw)
        self.n_states: int | None = count

    def _note_starts(self, starts: Any, n_states: int) -> None:
        """Label the states in which an episode may begin; their probabilities are left out."""
        if not isinstance(starts, np.ndarray) or starts.shape != (n_states,) or starts.dtype.kind not in "fiu":
            if starts is not None:
                self.left_out.add(INITIAL_CHANCES)
            return
        states = np.flatnonzero(starts > 0)
        self.annotations.mark(INITIAL, states)
        if states.size > 1:
            self.left_out.add(INITIAL_CHANCES)

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
        action_labels=None if raw.action_labels is None else raw.action_labels[action_ptr[0] : action_ptr[-1]],
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
        env = _made(source)
        try:
            return _GymnasiumSource(source, env, options)
        finally:
            with suppress(Exception):  # the environment's own code, when nothing is asked of it any more
                env.close()


def open_environment(env: Any, options: ReadOptions) -> Source:
    """Read the table of an environment, wrapped or not, which stays open; raises InputError as for a named one."""
    return _GymnasiumSource(_PREFIX + environment_name(env), env, options)


GYMNASIUM = GymnasiumFormat()
