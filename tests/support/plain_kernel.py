"""Random tables of one partition, and the equations over one written out in plain Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from claims import Residuals

from ooc_mdp.backends.base import SweepLimits, VisitReport
from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.model.partition import PartitionTable

FIRST, N_STATES, N_OWN = 7, 60, 40
"""The partition owns states 7 .. 46 of 60; its halo is among the others."""
ROW_SUM = 1.0 + 1e-6


def random_table(
    seed: int,
    index: str = "u1",
    real: str = "f8",
    *,
    uniform: bool = False,
    durations: bool = False,
    terminal: bool = True,
) -> PartitionTable:
    """A partition whose rows do not add up to 1 exactly, with duplicate actions where it is ragged."""
    rng = np.random.default_rng(seed)
    halo = np.sort(rng.choice(np.setdiff1d(np.arange(N_STATES), np.arange(FIRST, FIRST + N_OWN)), 13, replace=False))
    counts = np.full(N_OWN, 3) if uniform else rng.integers(0, 5, N_OWN)
    m = int(counts.sum())
    widths = np.full(m, 4) if uniform else rng.integers(1, 8, m)
    successors = [np.sort(rng.choice(N_OWN + halo.size, k, replace=False)) for k in widths]
    probabilities = [rng.dirichlet(np.ones(k)) for k in widths]
    rewards = rng.normal(size=m) * 10.0 ** rng.integers(-2, 4, m)
    if not uniform:
        starts = np.cumsum(counts) - counts
        for j in starts[counts > 1]:  # a tie: the second action is the first once more
            successors[j + 1], probabilities[j + 1], rewards[j + 1] = successors[j], probabilities[j], rewards[j]
            widths[j + 1] = widths[j]
    return PartitionTable(
        index=0,
        first_state=FIRST,
        n_states=N_OWN,
        actions_per_state=3 if uniform else 0,
        successors_per_action=4 if uniform else 0,
        action_ptr=pointer(counts) if not uniform else np.empty(0, np.uint32),
        successor_ptr=pointer(widths) if not uniform else np.empty(0, np.uint32),
        successors=np.concatenate(successors).astype(index),
        probabilities=np.concatenate(probabilities).astype(real),
        rewards=rewards.astype(real),
        durations=rng.uniform(0.01, 3.0, m) if durations else np.empty(0),
        terminal_rewards=rng.normal(size=N_OWN) if terminal else np.empty(0),
        initial_values=np.empty(0),
        halo=halo.astype(np.int64),
        boundary=rng.random(N_OWN) < 0.5,
    )


def pointer(counts: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.uint32)


TABLES: dict[str, dict[str, Any]] = {
    "ragged": {},
    "uniform": {"uniform": True},
    "durations": {"durations": True},
    "uniform durations": {"uniform": True, "durations": True},
    "no terminal rewards": {"terminal": False},
}


class Plain:
    """The equations over one partition, one state at a time, in stored order of successors.

    Parameters
    ----------
    power : what gives gamma**tau; two of them may differ in the last place.
    """

    def __init__(
        self,
        table: PartitionTable,
        discount: float,
        sign: float,
        power: Callable[[float, FloatArray], FloatArray] = np.power,
    ) -> None:
        self.table, self.sign = table, sign
        n, m = table.n_states, table.n_rows
        self.rows = table.action_ptr.tolist() if table.action_ptr.size else [3 * i for i in range(n + 1)]
        self.ptr = table.successor_ptr.tolist() if table.successor_ptr.size else [4 * j for j in range(m + 1)]
        self.g = power(discount, table.durations.copy()).tolist() if table.durations.size else [discount] * m

    def q(self, j: int, local: FloatArray) -> float:
        total = 0.0
        for k in range(self.ptr[j], self.ptr[j + 1]):
            total += float(self.table.probabilities[k]) * float(local[self.table.successors[k]])
        return self.sign * float(self.table.rewards[j]) + self.g[j] * total

    def terminal(self, s: int) -> float:
        return self.sign * float(self.table.terminal_rewards[s]) if self.table.terminal_rewards.size else 0.0

    def backup(self, s: int, local: FloatArray) -> tuple[float, int]:
        q = [self.q(j, local) for j in range(self.rows[s], self.rows[s + 1])]
        return (max(q), q.index(max(q))) if q else (self.terminal(s), -1)

    def gather(self, values: FloatArray) -> FloatArray:
        return np.concatenate([values[FIRST : FIRST + N_OWN], values[self.table.halo]])

    def visit(self, values: FloatArray, policy: np.ndarray, limits: SweepLimits, jacobi: bool) -> VisitReport:
        """Updates values and policy."""
        local = self.gather(values)
        n, sweeps = self.table.n_states, 0
        while True:
            before = local.copy()
            source = before if jacobi else local
            for s in range(n) if jacobi or sweeps % 2 == 0 else reversed(range(n)):
                local[s], policy[FIRST + s] = self.backup(s, source)
            sweeps += 1
            change = local[:n] - before[:n]
            if sweeps == limits.most or np.abs(change).max() <= float(limits.change):
                break
        total = np.where(self.table.boundary, local[:n] - values[FIRST : FIRST + n], 0.0)
        values[FIRST : FIRST + n] = local[:n]
        moved = [float(v) for v, t in zip(local, total, strict=False) if t]
        return VisitReport(
            sweeps=np.array([sweeps]),
            backups=np.array([sweeps * n]),
            boundary_rise=np.array([max(total.max(), 0.0)]),
            boundary_fall=np.array([max(-total.min(), 0.0)]),
            boundary_value=np.array([max(moved, default=-np.inf)]),
            largest_value=np.array([local[:n].max()]),
            smallest_value=np.array([local[:n].min()]),
            last_change=np.array([[max(change.max(), 0.0)], [max(-change.min(), 0.0)]]),
        )

    def measure(self, values: FloatArray, policy: np.ndarray, significant: float) -> tuple[Residuals, float]:
        """Updates the policy where there is none."""
        local = self.gather(values)
        plain, normalised, kept, kept_normalised, large = [], [], [], [], [-np.inf]
        for s in range(self.table.n_states):
            best, greedy = self.backup(s, local)
            if greedy < 0:
                residuals = scaled = [best - local[s]]
                choice = 0
            else:
                if policy[FIRST + s] < 0:
                    policy[FIRST + s] = greedy
                choice = policy[FIRST + s]
                pairs = range(self.rows[s], self.rows[s + 1])
                residuals = [self.q(j, local) - local[s] for j in pairs]
                scaled = [r / (1 - self.g[j] * ROW_SUM) for r, j in zip(residuals, pairs, strict=True)]
            plain.append(best - local[s])
            normalised.append(max(scaled))
            kept.append(-residuals[choice])
            kept_normalised.append(-scaled[choice])
            if abs(best - local[s]) > significant:
                large.append(best)
        return Residuals(max(normalised), max(kept_normalised), max(plain), max(kept)), max(large)
