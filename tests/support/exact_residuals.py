"""Values, a policy and the rows of a small model in partitions, and its residuals: in float64, and exactly."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from solve_accounting import Facts, Swept
from store_models import Model

from ooc_mdp.model.mdp import FloatArray, IntArray, discounts
from ooc_mdp.model.partition import Coupling

__all__ = ["World", "rise_and_fall"]


@dataclass(frozen=True)
class Row:
    """One state and action."""

    reward: float
    discount: float
    successors: IntArray
    probabilities: FloatArray

    def q(self, values: FloatArray) -> float:
        return self.reward + self.discount * float(self.probabilities @ values[self.successors])

    def exact_q(self, values: list[Fraction]) -> Fraction:
        pairs = zip(self.probabilities.tolist(), self.successors.tolist(), strict=True)
        expected = sum((Fraction(p) * values[s] for p, s in pairs if p), Fraction(0))
        return Fraction(self.reward) + Fraction(self.discount) * expected


class World:
    """Values, a policy and the rows of a model in partitions of consecutive states."""

    def __init__(self, model: Model, ends: Sequence[int], discount: float) -> None:
        rows = model.rows(np.arange(len(model.states)))
        self.n, self.ptr = rows.n_states, np.array([0, *ends], np.int64)
        self.partitions = self.ptr.size - 1
        self.part = np.repeat(np.arange(self.partitions), np.diff(self.ptr))
        self.durations = np.ones(rows.n_rows) if rows.durations is None else rows.durations
        g, ptr = discounts(discount, self.durations), rows.successor_ptr
        every = [slice(int(a), int(b)) for a, b in itertools.pairwise(ptr)]
        row = [
            Row(float(r), float(gamma), rows.successors[at], rows.probabilities[at])
            for r, gamma, at in zip(rows.rewards, g, every, strict=True)
        ]
        self.rows = [row[a:b] for a, b in itertools.pairwise(rows.action_ptr.tolist())]
        terminal = np.zeros(self.n) if rows.terminal_rewards is None else rows.terminal_rewards
        self.terminal: list[float] = terminal.tolist()
        initial = np.zeros(self.n) if rows.initial_values is None else rows.initial_values
        self.values, self.policy = initial.copy(), np.full(self.n, -1)
        self.facts = self._facts(discount, rows.action_ptr)
        contraction = self.facts.contraction()
        self.row_sum = contraction.row_sum
        """float64 [P]; rounded up, as kernels have it."""
        self.normaliser: list[float] = contraction.normaliser.tolist()
        self.exact_row_sum = [self._exact_row_sum(p) for p in range(self.partitions)]
        read = {(self.part[s], int(t)) for s, some in enumerate(self.rows) for r in some for t in r.successors}
        self.boundary = np.array([any((p, s) in read for p in set(self.part) - {self.part[s]}) for s in range(self.n)])

    def _facts(self, discount: float, action_ptr: IntArray) -> Facts:
        """As a store's small arrays have them; rows that end the process count for neither sums nor coupling."""
        shape = (self.partitions, self.partitions)
        mass, reads = [[Fraction(0)] * shape[1] for _ in range(shape[0])], np.eye(*shape, dtype=bool)
        sums, rewards = [list[float]() for _ in range(shape[0])], [list[float]() for _ in range(shape[0])]
        longest = np.zeros(shape[0], np.int64)
        for s, p in enumerate(self.part.tolist()):
            rewards[p] += [r.reward for r in self.rows[s]] or [self.terminal[s]]
            for j, r in enumerate(self.rows[s], int(action_ptr[s])):
                longest[p] = max(longest[p], r.successors.size)
                reads[p, self.part[r.successors]] = True
                if np.isinf(self.durations[j]):
                    continue
                sums[p].append(float(r.probabilities.sum()))
                for q in set(self.part[r.successors].tolist()):
                    exact = map(Fraction, r.probabilities[self.part[r.successors] == q].tolist())
                    mass[p][q] = max(mass[p][q], sum(exact, Fraction(0)))
        p, q = np.nonzero(reads)
        shortest = [
            float(self.durations[action_ptr[a] : action_ptr[b]].min(initial=np.inf))
            for a, b in itertools.pairwise(self.ptr)
        ]
        return Facts(
            discount=discount,
            partition_ptr=self.ptr,
            coupling=Coupling(
                np.concatenate([[0], np.cumsum(reads.sum(axis=1))]),
                q,
                np.nextafter([float(mass[i][j]) for i, j in zip(p, q, strict=True)], np.inf),  # rounded up,
            ),
            reward_range=np.array([[min(r), max(r)] for r in rewards]),
            max_successors=longest,
            shortest_durations=np.array(shortest),
            row_sums=np.array([[min(some), max(some)] if some else [1.0, 1.0] for some in sums]),
            alike=all(self.rows) and bool((self.durations == 1).all()),
        )

    def _exact_row_sum(self, p: int) -> Fraction:
        rows = [row for s in self.own(p).tolist() for row in self.rows[s] if row.discount > 0]
        return max((sum(map(Fraction, row.probabilities.tolist()), Fraction(0)) for row in rows), default=Fraction(1))

    def own(self, p: int) -> IntArray:
        return np.arange(self.ptr[p], self.ptr[p + 1])

    def backup(self, s: int) -> tuple[float, int]:
        q = [row.q(self.values) for row in self.rows[s]]
        return (max(q), int(np.argmax(q))) if q else (self.terminal[s], -1)

    def back_up(self, s: int) -> None:
        self.values[s], self.policy[s] = self.backup(s)

    def improve(self, partitions: Sequence[int], everything: bool = True) -> None:
        """Make the policy greedy, of all states or of those that have none."""
        for s in np.concatenate([self.own(p) for p in partitions]).tolist():
            if everything or self.policy[s] < 0:
                self.policy[s] = self.backup(s)[1]

    def residuals(self, p: int) -> FloatArray:
        """float64 [4]: rise, fall, plain rise and plain fall, in float64 as a kernel measures them."""
        found = []
        for s in self.own(p).tolist():
            rows = self.rows[s] or [Row(self.terminal[s], 0.0, np.empty(0, np.int64), np.empty(0))]
            plain = np.array([row.q(self.values) - self.values[s] for row in rows])
            normalised = plain / [1 - row.discount * self.row_sum[p] for row in rows]
            chosen = max(int(self.policy[s]), 0)
            found.append([normalised.max(), -normalised[chosen], plain.max(), -plain[chosen]])
        return np.max(found, axis=0)

    def true_residuals(self, p: int, values: list[Fraction]) -> list[Fraction]:
        """The same, exactly; the fall is that of every action where a state has no policy."""
        found = []
        row_sum = self.exact_row_sum[p]
        for s in self.own(p).tolist():
            if self.rows[s]:
                plain = [row.exact_q(values) - values[s] for row in self.rows[s]]
                normalised = [
                    x / (1 - Fraction(r.discount) * row_sum) for x, r in zip(plain, self.rows[s], strict=True)
                ]
            else:
                plain = normalised = [Fraction(self.terminal[s]) - values[s]]
            chosen = slice(None) if self.policy[s] < 0 else slice(self.policy[s], self.policy[s] + 1)
            found.append((max(normalised), -min(normalised[chosen]), max(plain), -min(plain[chosen])))
        return [max(kind) for kind in zip(*found, strict=True)]

    def largest(self) -> FloatArray:
        return np.maximum.reduceat(self.values, self.ptr[:-1])

    def smallest(self) -> FloatArray:
        return np.minimum.reduceat(self.values, self.ptr[:-1])

    def swept(self, p: int, sweeps: int, before: FloatArray, last: FloatArray, measure: bool = False) -> Swept:
        """What is reported of a partition: values before the visit, and before the last sweep."""
        own = self.own(p)
        change, edge = (self.values - before)[own], self.boundary[own]
        return Swept(
            sweeps,
            rise_and_fall((self.values - last)[own]),
            rise_and_fall(change[edge]),
            float(self.values[own][edge & (change != 0)].max(initial=-np.inf)),
            float(self.values[own].max()),
            float(self.values[own].min()),
            self.residuals(p) if measure else None,
        )


def rise_and_fall(change: FloatArray) -> tuple[float, float]:
    return max(float(change.max(initial=0.0)), 0.0), max(float(-change.min(initial=0.0)), 0.0)
