"""Rows in arrays (states, actions, outcomes), checked and brought into canonical form in one pass.

    successors (n, A, K), probabilities and rewards that broadcast to it   ─▶   Rows

Nothing is expanded before the pass: broadcast arrays are read where they are, and entries of probability 0 are skipped
without a look at their successor. The result is, bit by bit, that of flat arrays in `io/checked_rows.py`, which also
handles whatever breaks a rule here, so that there is one place that describes errors.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ooc_mdp.io.row_kernels import sort_row
from ooc_mdp.model.mdp import ROW_SUM_TOLERANCE, FloatArray, Rows
from ooc_mdp.runtime.compiled import loop

__all__ = ["DenseRows", "merged_rows"]


class _Strided(NamedTuple):
    """An array of three axes as its own numbers, and how far apart these are along each axis."""

    numbers: npt.NDArray[Any]
    of_state: int
    of_action: int
    of_outcome: int


class DenseRows(NamedTuple):
    """All actions of all states, each with as many outcomes."""

    shape: tuple[int, int, int]
    """n, A, K."""
    successors: npt.NDArray[np.int64]
    """Of three axes, each as long as in `shape` or 1; likewise the next."""
    probabilities: FloatArray
    transition_rewards: FloatArray | None
    row_rewards: FloatArray | None
    """(n, A)."""


def merged_rows(given: DenseRows, n_states: int) -> Rows | None:
    """The rows in canonical form; None where a rule may be broken, which flat arrays then decide."""
    n, n_actions, _ = given.shape
    if min(given.shape) == 0:
        return None
    rewards = np.zeros((1, 1, 1)) if given.transition_rewards is None else given.transition_rewards
    arrays = tuple(map(_strided, (given.successors, given.probabilities, rewards)))
    correct, pointers, successors, probabilities, expected = _merge(given.shape, arrays, n_states, ROW_SUM_TOLERANCE)
    if not correct:
        return None
    if given.row_rewards is not None:
        expected += given.row_rewards.reshape(-1)
    if not np.isfinite(expected).all():
        return None
    return Rows(
        action_ptr=np.arange(n + 1, dtype=np.int64) * n_actions,
        successor_ptr=pointers,
        successors=successors,
        probabilities=probabilities,
        rewards=expected,
    )


def _strided(values: npt.NDArray[Any]) -> _Strided:
    """The numbers of an array of three axes; along those of length 1 they are repeated."""
    numbers = np.require(values, requirements=["C", "A", "W"])
    sizes = [stride // numbers.itemsize for stride in numbers.strides]
    own = [0 if length == 1 else size for length, size in zip(numbers.shape, sizes, strict=True)]
    return _Strided(numbers.reshape(-1), *own)


@loop
def _merge(shape, arrays, n_states, tolerance):  # type: ignore[no-untyped-def]
    """Check rows, add up repeated successors, sort: (correct, successor_ptr, successors, probabilities, rewards).

    Sums are those of `row_kernels.scan_rows`, in the same order. Probabilities that all rows share are checked once.
    """
    n, n_actions, n_outcomes = shape
    next_states, chances, pay = arrays
    pointers = np.zeros(n * n_actions + 1, np.int64)
    successors = np.empty(n * n_actions * n_outcomes, np.int64)
    probabilities = np.empty(successors.size, np.float64)
    rewards = np.empty(n * n_actions, np.float64)
    end = 0
    shared = chances.of_state == 0 and chances.of_action == 0
    for row in range(n * n_actions):
        checked = shared and row > 0
        i, a = row // n_actions, row % n_actions
        at = i * next_states.of_state + a * next_states.of_action
        chance_at = i * chances.of_state + a * chances.of_action
        pay_at = i * pay.of_state + a * pay.of_action
        begin = end
        increasing, decreasing = True, True
        last = np.int64(-1)
        mass, total, lost, expected = 0.0, 0.0, 0.0, 0.0
        for k in range(n_outcomes):
            p = chances.numbers[chance_at + k * chances.of_outcome]
            if p == 0.0:
                continue
            successor = next_states.numbers[at + k * next_states.of_outcome]
            if successor < 0 or successor >= n_states:
                return False, pointers, successors, probabilities, rewards
            expected += p * pay.numbers[pay_at + k * pay.of_outcome]
            if not checked:
                if not 0.0 < p <= 1.0 + tolerance:
                    return False, pointers, successors, probabilities, rewards
                grown = total + p
                added = grown - total
                lost += (total - (grown - added)) + (p - added)
                total = grown
            if successor == last:
                mass += p
                continue
            if end > begin:
                probabilities[end - 1] = mass
                if successor < last:
                    increasing = False
                else:
                    decreasing = False
            successors[end] = successor
            last, mass = successor, p
            end += 1
        if end > begin:
            probabilities[end - 1] = mass
        if (not checked and abs(total + lost - 1.0) > tolerance) or not math.isfinite(expected):
            return False, pointers, successors, probabilities, rewards
        if not increasing:
            end = sort_row(successors, probabilities, begin, end, decreasing)
        rewards[row] = expected
        pointers[row + 1] = end
    return True, pointers, successors[:end].copy(), probabilities[:end].copy(), rewards
