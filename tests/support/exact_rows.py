"""Models in rational numbers: what an altered file says, and whether a source gave exactly that.

Nothing of the package is used but the blocks of the source that is examined.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from math import isfinite
from random import Random
from typing import Any

from text_models import Model

from ooc_mdp.io.source import Source

__all__ = [
    "Entry",
    "Exact",
    "Invalid",
    "Row",
    "decimal",
    "differences",
    "exact_values",
    "integer",
    "random_model",
    "ranges",
    "rational",
    "reward_of",
    "row",
]

_DECIMAL = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]+))?", re.ASCII)
_FRACTION = re.compile(r"[+-]?[0-9]+/[0-9]+", re.ASCII)
_INTEGER = re.compile(r"-?[0-9]+", re.ASCII)
_ROW_SUM = Fraction(1, 10**6) * Fraction(101, 100)
"""A little more than what readers allow, whose sums are rounded."""


class Invalid(Exception):
    """No model: a reader that accepts it has invented, dropped, converted or ignored something."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One transition as a file gives it; a reward that is no finite number is None."""

    successor: int
    probability: Fraction
    reward: Fraction | None = Fraction(0)


@dataclass(frozen=True, slots=True)
class Row:
    """One (state, action) row in canonical form."""

    label: int
    probabilities: dict[int, Fraction]
    reward: Fraction
    scale: Fraction
    """Sum of the magnitudes that were added up to the reward, for rounding."""
    duration: Fraction = Fraction(1)


@dataclass(slots=True)
class Exact:
    """A model: rows, and what a state without rows pays, by state."""

    rows: list[list[Row]]
    terminal: dict[int, Fraction] = field(default_factory=dict)
    initial: dict[int, Fraction] = field(default_factory=dict)


def integer(text: str) -> int:
    if not _INTEGER.fullmatch(text) or len(text) > 30:
        raise Invalid(f"{text!r} is no integer")
    return int(text)


def decimal(text: str) -> Fraction:
    """A decimal or a fraction of integers that float64 can hold."""
    if _FRACTION.fullmatch(text):
        above, below = text.split("/")
        if int(below) == 0:
            raise Invalid(f"{text!r} divides by 0")
        return _held(Fraction(int(above), int(below)))
    match = _DECIMAL.fullmatch(text)
    if match is None or not (match[2] or match[3]):
        raise Invalid(f"{text!r} is no number")
    digits = match[2] + (match[3] or "")
    power = int(match[4] or 0) - len(match[3] or "")
    if int(digits) == 0 or power < -2000:
        return Fraction(0)
    if power > 2000:
        raise Invalid(f"{text!r} overflows")
    value = int(digits) * Fraction(10) ** power
    return _held(-value if match[1] == "-" else value)


def _held(value: Fraction) -> Fraction:
    try:
        float(value)
    except OverflowError:
        raise Invalid("overflows") from None
    return value


def row(entries: list[Entry], n_states: int, own: Fraction = Fraction(0), label: int = 0, duration: Any = 1) -> Row:
    """The row of these transitions, in canonical form; raises Invalid where it is no distribution."""
    if not entries:
        raise Invalid("a row without transitions")
    probabilities: dict[int, Fraction] = {}
    reward, scale = own, abs(own)
    for entry in entries:
        if not 0 <= entry.successor < n_states:
            raise Invalid(f"successor {entry.successor} of {n_states} states")
        if not 0 <= entry.probability <= 1 + _ROW_SUM:
            raise Invalid(f"probability {entry.probability}")
        if float(entry.probability) == 0.0:
            continue
        if entry.reward is None:
            raise Invalid("a reward that is not finite")
        reward += entry.probability * entry.reward
        scale += abs(entry.probability * entry.reward)
        probabilities[entry.successor] = probabilities.get(entry.successor, Fraction(0)) + entry.probability
    if abs(sum(probabilities.values()) - 1) > _ROW_SUM:
        raise Invalid("a row that does not sum to 1")
    if not Fraction(duration) > 0:
        raise Invalid(f"duration {duration}")
    return Row(label, probabilities, reward, scale, Fraction(duration))


def rational(value: float) -> Fraction:
    """A number that a row may have; raises Invalid for NaN and infinities."""
    if not isfinite(value):
        raise Invalid(f"{value}")
    return Fraction(value)


def reward_of(value: float) -> Fraction | None:
    """A reward, which must be finite only where it is paid."""
    return Fraction(value) if isfinite(value) else None


def ranges(pointers: list[int], total: int) -> list[range]:
    """The entries of each segment of CSR pointers."""
    if not pointers or pointers[0] != 0 or pointers[-1] != total or sorted(pointers) != pointers:
        raise Invalid(f"pointers {pointers}")
    return [range(a, b) for a, b in pairwise(pointers)]


def _close(got: float, exact: Fraction, scale: Fraction) -> bool:
    return isfinite(got) and abs(Fraction(got) - exact) <= scale * Fraction(1, 10**14) + Fraction(5, 10**324)


def differences(source: Source, exact: Exact) -> str:
    """Read a source to its end; the first difference from a model, empty if there is none."""
    blocks = [read() for read in source.blocks()]
    source.check_totals()
    if source.n_states != len(exact.rows) or sum(block.rows.n_states for block in blocks) != len(exact.rows):
        return f"{source.n_states} states, not {len(exact.rows)}"
    for block in blocks:
        for i in range(block.rows.n_states):
            said = _state_difference(block.rows, i, block.first_state + i, exact)
            if said:
                return said
    return ""


def _state_difference(rows: Any, i: int, state: int, exact: Exact) -> str:
    first, last = rows.action_ptr[i : i + 2].tolist()
    wanted = exact.rows[state]
    if last - first != len(wanted):
        return f"state {state} has {last - first} actions, not {len(wanted)}"
    for name, values in (("terminal_rewards", exact.terminal), ("initial_values", exact.initial)):
        held = getattr(rows, name)
        got, value = 0.0 if held is None else float(held[i]), values.get(state, Fraction(0))
        if name == "terminal_rewards" and wanted:
            value = Fraction(0)
        if not _close(got, value, abs(value)):
            return f"{name} of state {state}: {got}, not {value}"
    for j, row in zip(range(first, last), wanted, strict=True):
        where = f"state {state}, action {row.label}"
        label = j - first if rows.action_labels is None else int(rows.action_labels[j])
        begin, end = rows.successor_ptr[j : j + 2].tolist()
        if label != row.label or rows.successors[begin:end].tolist() != sorted(row.probabilities):
            return f"{where}: action {label} leads to {rows.successors[begin:end]}, not {sorted(row.probabilities)}"
        for successor, p in zip(sorted(row.probabilities), rows.probabilities[begin:end].tolist(), strict=True):
            if not _close(p, row.probabilities[successor], row.probabilities[successor]):
                return f"{where}: probability {p} of {successor}, not {row.probabilities[successor]}"
        if not _close(float(rows.rewards[j]), row.reward, row.scale):
            return f"{where}: reward {rows.rewards[j]}, not {float(row.reward)}"
        duration = 1.0 if rows.durations is None else float(rows.durations[j])
        if not _close(duration, row.duration, row.duration):
            return f"{where}: duration {duration}, not {row.duration}"
    return ""


_SPLITS = (("1",), ("0.5", "0.5"), ("0.25", "0.75"), ("0.2", "0.3", "0.5"), ("0.125", "0.5", "0.375"))
_REWARDS = (0.0, 1.0, -1.0, 2.5, 100.0, -0.125, 3.75, 1e-3)


def random_model(rng: Random, actions: int | None = None) -> Model:
    """One to four states, with short decimals; `actions` of each state, or else 0 to 3."""
    n = rng.randint(1, 4)
    rows = []
    for _ in range(n):
        state = []
        for _ in range(rng.choice((0, 1, 1, 2, 3)) if actions is None else actions):
            split = rng.choice([split for split in _SPLITS if len(split) <= n])
            targets = rng.sample(range(n), len(split))
            state.append({t: (float(p), rng.choice(_REWARDS)) for t, p in zip(targets, split, strict=True)})
        rows.append(state)
    labels = [sorted(rng.sample(range(6), len(state))) for state in rows]
    return Model(rows, [rng.choice(_REWARDS) for _ in range(n)], labels)


def exact_values(model: Exact, discount: Fraction) -> list[Fraction]:
    """The largest value of each state, by policy iteration with Gaussian elimination in rational numbers."""
    n = len(model.rows)
    policy = [0] * n
    while True:
        values = _policy_values(model, policy, discount)
        better = False
        for s in range(n):
            worth = [_worth(row, values, discount) for row in model.rows[s]]
            if worth and max(worth) > worth[policy[s]]:
                policy[s], better = worth.index(max(worth)), True
        if not better:
            return values


def _worth(row: Row, values: list[Fraction], discount: Fraction) -> Fraction:
    return row.reward + discount * sum((p * values[t] for t, p in row.probabilities.items()), Fraction(0))


def _policy_values(model: Exact, policy: list[int], discount: Fraction) -> list[Fraction]:
    n = len(model.rows)
    lines = []
    for s in range(n):
        line = [Fraction(int(s == t)) for t in range(n)] + [model.terminal.get(s, Fraction(0))]
        if model.rows[s]:
            chosen = model.rows[s][policy[s]]
            for t, p in chosen.probabilities.items():
                line[t] -= discount * p
            line[n] = chosen.reward
        lines.append(line)
    for i in range(n):
        lines[i] = [x / lines[i][i] for x in lines[i]]
        for s in range(n):
            if s != i and lines[s][i]:
                lines[s] = [x - lines[s][i] * y for x, y in zip(lines[s], lines[i], strict=True)]
    return [line[n] for line in lines]
