"""Tables of Gymnasium environments with one object altered, and what the altered table says.

A table is a nest of dictionaries, lists and tuples; one key, container or leaf becomes another object.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from fractions import Fraction
from math import isfinite
from numbers import Real
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
from exact_rows import Entry, Exact, Invalid, random_model, row

__all__ = ["GymnasiumMaker"]

_LEAVES = (
    *(0, 1, 2, 3, -1, 5, 0.0, 1.0, 0.5, 0.25, 1.9, 0.3, -0.5, True, False, None, "1", "False", "", (), [], {}, 1j),
    *(float("nan"), float("inf"), 2**70, Fraction(1, 2), (0, 0), b"1", 10**400),
    *(
        np.float64(0.5),
        np.float32(1),
        np.int64(1),
        np.uint8(0),
        np.bool_(True),
        np.array(1),
        np.array([1.0]),
        np.str_("1"),
    ),
)


class _Environment:
    """What gymnasium.make returns."""

    def __init__(self, table: Any, n_states: int) -> None:
        self.unwrapped = self
        self.P = table
        self.observation_space = SimpleNamespace(n=n_states)
        self.action_space = SimpleNamespace(n=3)

    def close(self) -> None:
        """Do nothing."""


class GymnasiumMaker:
    """Tables P, each in an environment that `gymnasium.make` must be replaced to return."""

    name = "gymnasium"
    made: _Environment

    def make(self, rng: Random, folder: Path, altered: bool) -> tuple[str, dict[str, Any], Callable[[], Exact]]:
        """Make a table: the source, the options for reading it, and what says its meaning."""
        model = random_model(rng)
        names = (
            [(s // 2, s % 2) for s in range(len(model.rows))] if rng.random() < 0.3 else list(range(len(model.rows)))
        )
        table: dict[Any, Any] = defaultdict(dict) if rng.random() < 0.5 else {}
        order = rng.sample(range(len(names)), len(names)) if isinstance(names[0], int) else range(len(names))
        for s in order:
            table[names[s]] = {
                a: [(p, names[t], r, rng.random() < 0.25) for t, (p, r) in action.items()]
                for a, action in enumerate(model.rows[s])
            }
        spaces = len(names)
        whole: Any = table if rng.random() < 0.8 or not isinstance(names[0], int) else [table[s] for s in names]
        if altered:
            whole = _altered(rng, whole, rng.choice((0, 1, 2, 3, 4, 4, 4, 4)))
        self.made = _Environment(whole, spaces)
        return "gymnasium:Any-v0", {}, lambda: _meaning(whole, spaces)


def _altered(rng: Random, node: Any, depth: int) -> Any:
    """The nest with one object, at most `depth` levels below, altered."""
    size = len(node) if isinstance(node, (dict, list, tuple)) else 0
    if depth == 0 or size == 0:
        return _replaced(rng, node)
    if isinstance(node, dict):
        key = rng.choice(list(node))
        return type(node)(*_factory(node), {k: _altered(rng, v, depth - 1) if k == key else v for k, v in node.items()})
    at = rng.randrange(size)
    return type(node)(_altered(rng, each, depth - 1) if i == at else each for i, each in enumerate(node))


def _factory(node: dict[Any, Any]) -> tuple[Any, ...]:
    return (node.default_factory,) if isinstance(node, defaultdict) else ()


def _replaced(rng: Random, node: Any) -> Any:
    if isinstance(node, dict) and node:
        key, others = rng.choice(list(node)), [k for k in node if rng.random() < 0.8]
        match rng.choice("drrrtl"):
            case "d":
                return type(node)(*_factory(node), {k: v for k, v in node.items() if k != key})
            case "r":
                new = rng.choice([leaf for leaf in (*_LEAVES, *others, str(key)) if _is_hashable(leaf)])
                return type(node)(*_factory(node), {new if k == key else k: v for k, v in node.items()})
            case "t":
                return list(node.values())
    if isinstance(node, (list, tuple)) and node:
        match rng.choice("drtse"):
            case "d":
                return type(node)(node[:-1])
            case "r":
                return type(node)([*node, node[0]])
            case "t":
                return list(node) if isinstance(node, tuple) else tuple(node)
            case "s":
                return type(node)(rng.sample(list(node), len(node)))
    return rng.choice(_LEAVES)


def _is_hashable(value: Any) -> bool:
    try:
        return hash(value) is not None
    except TypeError:
        return False


def _is_integer(value: Any) -> bool:
    return type(value) is int or isinstance(value, np.integer)


def _ordered(node: Any) -> list[tuple[Any, Any]]:
    """Keys and values of a dictionary or list; integer keys in their order."""
    if isinstance(node, (list, tuple)):
        return list(enumerate(node))
    if not isinstance(node, dict):
        raise Invalid(f"{type(node).__name__} where a table is expected")
    items = list(node.items())
    if all(_is_integer(key) for key, _ in items):
        items.sort(key=lambda item: int(item[0]))
        if [int(key) for key, _ in items] != list(range(len(items))):
            raise Invalid("keys that are not 0, 1, ...")
    elif any(
        isinstance(key, (int, float, complex, Fraction, np.generic)) and not isinstance(key, str) for key, _ in items
    ):
        raise Invalid("keys that are numbers")
    return items


def _real(value: Any) -> Fraction | None:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise Invalid(f"{value!r} is no number")
    try:
        return Fraction(float(value)) if isfinite(value) else None
    except OverflowError:
        raise Invalid("overflows") from None


def _meaning(table: Any, n_states: int) -> Exact:
    states = _ordered(table)
    if len(states) != n_states:
        raise Invalid(f"{len(states)} states of {n_states}")
    numbers = {key: number for number, (key, _) in enumerate(states)}
    by_integers = all(_is_integer(key) for key in numbers)
    rows: list[dict[int, list[tuple[Entry, bool]]]] = []
    for _, actions in states:
        own = _available(actions).items()
        rows.append({a: [_entry(each, numbers, by_integers) for each in _list(entries)] for a, entries in own})
    exact = [[row([entry for entry, _ in entries], n_states, label=a) for a, entries in s.items()] for s in rows]
    return _without_done(rows, exact, n_states)


def _available(actions: Any) -> dict[int, Any]:
    """The actions of a state by their numbers, ascending: those that are there and not None."""
    own = list(actions.items() if isinstance(actions, dict) else enumerate(_list(actions)))
    if any(not _is_integer(key) or not 0 <= key < 3 for key, _ in own):
        raise Invalid("actions")
    return {int(key): entries for key, entries in sorted(own, key=lambda item: int(item[0])) if entries is not None}


def _list(node: Any) -> list[Any]:
    if not isinstance(node, (list, tuple)):
        raise Invalid("no list of entries")
    return list(node)


def _entry(node: Any, numbers: dict[Any, int], by_integers: bool) -> tuple[Entry, bool]:
    if not isinstance(node, (list, tuple)) or len(node) != 4:
        raise Invalid("no entry")
    p, successor, reward, done = node
    if (by_integers and not _is_integer(successor)) or not _is_hashable(successor) or successor not in numbers:
        raise Invalid(f"successor {successor!r}")
    if not isinstance(done, (bool, np.bool_)):
        raise Invalid(f"done is {done!r}")
    probability = _real(p)
    if probability is None:
        raise Invalid("a probability that is not finite")
    return Entry(numbers[successor], probability, _real(reward)), bool(done)


def _without_done(rows: list[dict[int, list[tuple[Entry, bool]]]], exact: list[list[Any]], n: int) -> Exact:
    """The MDP in which entries that are done lead to a terminal state, or to one more."""
    real = [(s, e, done) for s, state in enumerate(rows) for own in state.values() for e, done in own if e.probability]
    entered = {entry.successor for _, entry, done in real if done}
    terminal = entered - {s for s, entry, _ in real if entry.successor != s or entry.reward}
    beyond = any(done and entry.successor not in terminal for _, entry, done in real)
    found = []
    for s, state in enumerate(rows):
        led = {
            a: [
                Entry(n if done and e.successor not in terminal else e.successor, e.probability, e.reward)
                for e, done in entries
            ]
            for a, entries in state.items()
        }
        found.append([] if s in terminal else [row(entries, n + 1, label=a) for a, entries in led.items()])
    return Exact([*found, []] if beyond else found)
