"""A store's rows as dense NumPy arrays, in the store's order of states: what backends' rows are held against."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ooc_mdp.backends.base import Backups, Evaluation, PolicyRows
from ooc_mdp.model.mdp import FloatArray, discounts
from ooc_mdp.store import Store

__all__ = ["Plain", "assert_that_a_sweep_is_true", "evaluated"]


@dataclass(frozen=True)
class Plain:
    """A store's rows in its own order of states, of the maximisation; dense."""

    state: npt.NDArray[np.int64]
    action: npt.NDArray[np.int64]
    reward: FloatArray
    discount: FloatArray
    probability: FloatArray
    """float64 [rows, n]."""
    terminal: FloatArray
    """float64 [n]; the value of states without actions, NaN elsewhere."""

    @classmethod
    def of(cls, store: Store, discount: float) -> Plain:
        sign = 1.0 if store.sense == "max" else -1.0
        parts: list[tuple[npt.NDArray[Any], ...]] = []
        terminal = np.full(store.n_states, np.nan)
        for p in range(store.n_partitions):
            t = store.read(p)[0]
            n, m = t.n_states, t.n_rows
            counts = np.diff(t.action_ptr) if t.action_ptr.size else np.full(n, t.actions_per_state)
            widths = np.diff(t.successor_ptr) if t.successor_ptr.size else np.full(m, t.successors_per_action)
            probability = np.zeros((m, store.n_states))
            states = np.concatenate([t.first_state + np.arange(n), t.halo])
            np.add.at(probability, (np.repeat(np.arange(m), widths), states[t.successors]), t.probabilities)
            g = discounts(discount, t.durations.astype(float)) if t.durations.size else np.full(m, discount)
            state = np.repeat(np.arange(n), counts)
            action = np.arange(m) - np.repeat(np.cumsum(counts) - counts, counts)
            parts.append((t.first_state + state, action, sign * t.rewards.astype(float), g, probability))
            ends = t.first_state + np.flatnonzero(counts == 0)
            terminal[ends] = sign * t.terminal_rewards[counts == 0] if t.terminal_rewards.size else 0.0
        return cls(*(np.concatenate(column) for column in zip(*parts, strict=True)), terminal)

    def worth(self, values: FloatArray) -> FloatArray:
        """float64 [rows]: what each action is worth."""
        return self.reward + self.discount * (self.probability @ values)

    def chosen(self, policy: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """bool [rows]: the policy's."""
        return self.action == policy[self.state]

    def backup(self, values: FloatArray, policy: npt.NDArray[np.int32]) -> FloatArray:
        """float64 [n]: the policy's, of every state."""
        result = self.terminal.copy()
        rows = self.chosen(policy)
        result[self.state[rows]] = self.worth(values)[rows]
        assert not np.isnan(result).any(), "a state has actions and no policy"
        return result

    def best(self, values: FloatArray) -> FloatArray:
        """float64 [n]: the backup of every state over all actions."""
        result = np.where(np.isnan(self.terminal), -np.inf, self.terminal)
        np.maximum.at(result, self.state, self.worth(values))
        return result

    def best_other(self, values: FloatArray, policy: npt.NDArray[np.int32]) -> FloatArray:
        """float64 [n]: Q2."""
        result = np.full(values.size, -np.inf)
        rows = ~self.chosen(policy)
        np.maximum.at(result, self.state[rows], self.worth(values)[rows])
        return result

    def values_of(self, policy: npt.NDArray[np.int32], fixed: FloatArray, kept: npt.NDArray[np.bool_]) -> FloatArray:
        """float64 [n]: of the policy in the states that are `kept`, where the others' values are fixed."""
        matrix, right = np.eye(fixed.size), fixed.copy()
        ends = kept & ~np.isnan(self.terminal)
        right[ends] = self.terminal[ends]
        rows = np.flatnonzero(self.chosen(policy) & kept[self.state])
        matrix[self.state[rows]] -= self.discount[rows, None] * self.probability[rows]
        right[self.state[rows]] = self.reward[rows]
        return np.linalg.solve(matrix, right)


def assert_that_a_sweep_is_true(
    plain: Plain, found: Backups, before: FloatArray, after: FloatArray, partitions: Sequence[slice]
) -> None:
    """Backups of all states of these partitions from the values before, and what it says of them."""
    swept = np.zeros(before.size, np.bool_)
    for i, own in enumerate(partitions):
        swept[own] = True
        change = after[own] - before[own]
        assert (found.rise[i], found.fall[i]) == (change.max(), -change.min())
        assert (found.largest_value[i], found.smallest_value[i]) == (after[own].max(), after[own].min())
    size = max(float(np.abs(plain.reward).max(initial=0.0)), float(np.abs(before).max()))
    assert after[swept] == pytest.approx(plain.best(before)[swept], rel=1e-12, abs=1e-12 * size)
    assert (after[~swept] == before[~swept]).all()


def evaluated(backend: PolicyRows, limit: float, most: int) -> Evaluation:
    """A whole evaluation of the policy."""
    evaluation = backend.evaluation(limit, most)
    while not evaluation.advance(math.inf):
        pass
    return evaluation.report()
