"""A policy's total reward and its expected exits, by a Krylov method over streamed Gauss-Seidel passes.

    x = F(x),   F: a pass over the partitions forwards and one backwards,      x = (total reward, exits)

F is affine, so the fixed point solves (1 - F0) x = F(0), F0 its linear part: that is a linear system preconditioned by
symmetric Gauss-Seidel, which BiCGSTAB (van der Vorst 1992) solves in a small part of the passes that repeating F would
take where the process goes to and fro for long before it ends. Nothing is proved here: the values are a start for
sweeps. Exits that come out at least 1 say that the policy ends, and how far a perturbation spreads its bounds.

The policy's rows are copied out of the table first, about 1/|A| of it: passes over them read nothing. Where that is
more than half of the table, passes stream the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.cpu.rows import TableRows
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.table import Table
from ooc_mdp.undiscounted.end_components import ZeroRewardComponents
from ooc_mdp.undiscounted.kernels.totals import relax, rows_of_policy
from ooc_mdp.undiscounted.tables import Streamed, Work

__all__ = [
    "EVALUATION_BYTES",
    "POLICY_SWEEPS",
    "Exits",
    "PolicyTables",
    "PolicyTotal",
    "evaluate",
    "rows_bytes",
]

EVALUATION_BYTES = 112
"""Bytes that an evaluation takes for each state: seven vectors of both numbers."""
POLICY_SWEEPS = 4
"""Sweeps of a partition in a pass."""
_MIN_CHANGE = 1e-5
"""Share of the first change."""
_BREAKDOWN = partial(np.errstate, all="ignore")
"""Where the method breaks down, or numbers overflow, is found out by what is left."""


@dataclass(frozen=True, slots=True)
class Exits:
    """By which rows a policy leaves states and zero-reward components."""

    within: ZeroRewardComponents
    chosen: IntArray
    """int64; for each zero-reward component which of the members is left from; -1 where one stays."""
    policy: npt.NDArray[np.int32]
    """int32 [n]; the row that leaves, -1 without actions, -2 where one stays."""
    staying: FloatArray
    """float64 [n]; value of staying; where it is not finite, 0 is taken."""


@dataclass(slots=True)
class PolicyTables:
    """The rows of a policy, by partition, in memory."""

    tables: list[TableRows]

    def in_order(
        self, wanted: npt.NDArray[np.bool_], forwards: bool | None = None
    ) -> Iterator[tuple[int, TableRows, bool]]:
        """As `ooc_mdp.undiscounted.tables.Streamed.in_order`."""
        order = np.flatnonzero(wanted) if forwards is not False else np.flatnonzero(wanted)[::-1]
        for p in order.tolist():
            yield p, self.tables[p], True


class PolicyRowCollector:
    """Copies a policy's rows as partitions pass by, as long as they take no more than so many bytes."""

    def __init__(self, most: int) -> None:
        self._left = most
        self._tables: dict[int, TableRows] = {}

    def take(self, p: int, rows: TableRows, policy: npt.NDArray[np.int32]) -> None:
        """Partition p's rows of the policy (int32 [n], negative where it has none)."""
        if self._left < 0:
            return
        action_ptr, successor_ptr, successors, probabilities, rewards, durations = rows_of_policy(rows, policy)
        own = rows._replace(
            actions=0,
            width=0,
            action_ptr=action_ptr,
            successor_ptr=successor_ptr,
            successors=successors,
            probabilities=probabilities,
            rewards=rewards,
            durations=durations,
            terminal=rows.terminal.copy(),
            halo=rows.halo.copy(),
            boundary=np.empty(0, np.bool_),
        )
        self._left -= sum(a.nbytes for a in own[4:])
        self._tables[p] = own
        if self._left < 0:
            self._tables.clear()

    def rows(self) -> PolicyTables | None:
        """All of them; None where they took too much memory."""
        if self._left < 0:
            return None
        return PolicyTables([self._tables[p] for p in sorted(self._tables)])


def rows_bytes(table: Table) -> int:
    """Most bytes that a policy's rows may take beside the cache: what they need, or half of the table."""
    states = np.diff(table.facts.partition_ptr)
    transition = table.facts.dtypes["successors"].itemsize + table.facts.dtypes["probabilities"].itemsize
    each = table.facts.max_successors * transition + 8 + table.facts.dtypes["rewards"].itemsize
    each += 8 * ("durations" in table.facts.dtypes) + 8 * ("terminal_rewards" in table.facts.dtypes)
    needed = int((states * each).sum() + 8 * table.facts.partition_halo.sum() + 64 * states.size)
    return min(needed, int(table.facts.partition_bytes.sum()) // 2)


@dataclass(frozen=True, slots=True)
class PolicyTotal:
    """What came out."""

    totals: FloatArray
    """float64 [n]."""
    expected_exits: FloatArray
    """float64 [n]; expected number until the process ends or one stays."""
    residual: float
    """Largest change that another double pass would make to the totals."""
    residual_before: float
    """The same at the start."""
    ends: bool
    """Whether the exits are those of a policy that ends."""
    passes: int
    """Over all partitions."""


class _Passes:
    """The affine map F and its linear part."""

    def __init__(self, rows: Streamed | PolicyTables, partitions: int, by: Exits, sign: float) -> None:
        self._rows, self._by, self._sign = rows, by, sign
        self._only = isinstance(rows, PolicyTables)
        self._every = np.ones(partitions, np.bool_)
        self._exits = np.zeros((by.within.members.size, 2))
        staying = by.within.of_each(by.staying)
        self._staying = np.stack([np.where(np.isfinite(staying), staying, 0.0), np.zeros(staying.size)], axis=1)
        self.count = 0

    def apply(self, x: FloatArray, constant: float) -> Work[FloatArray]:
        """float64 [n, 2]: F(x) with constant 1, its linear part with 0."""
        by, within = self._by, self._by.within
        right = constant * self._sign, constant
        out = x.copy()
        self.count += 2
        for forwards in (True, False):
            for _, rows, _ in self._rows.in_order(self._every, forwards):
                of_components = within.zero_reward, within.members, self._exits
                relax(rows, out, *of_components, by.staying, by.policy, self._only, right, POLICY_SWEEPS, forwards)
                if not self._only:
                    yield
            yield
            if within.members.size:
                joined = np.where((by.chosen >= 0)[:, None], self._exits[by.chosen], constant * self._staying)
                out[within.members] = joined[within.node]
        return out

    def product(self, x: FloatArray) -> Work[FloatArray]:
        """(1 - F0) x."""
        out = yield from self.apply(x, 0.0)
        with _BREAKDOWN():
            return np.subtract(x, out, out=out)


def _dot(a: FloatArray, b: FloatArray) -> FloatArray:
    """float64 [2]: products of the columns."""
    return np.asarray(np.einsum("ij,ij->j", a, b))


def _ratio(a: FloatArray, b: FloatArray) -> FloatArray:
    """a / b, 0 where the method has broken down or a column has converged."""
    return np.divide(a, b, out=np.zeros_like(a), where=b != 0)


def evaluate(
    rows: Streamed | PolicyTables,
    partitions: int,
    by: Exits,
    sign: float,
    start: FloatArray,
    tolerance: FloatArray,
    most: int,
) -> Work[PolicyTotal]:
    """Solve for a policy's totals and exits.

    Parameters
    ----------
    start : float64 [n, 2]; changes.
    tolerance : float64 [2]; largest change by another double pass that is good enough, of either; for the totals also
        a small share of the first change: a policy that is poor need not be known so well.
    most : most steps, of four passes each.
    """
    passes = _Passes(rows, partitions, by, sign)
    x = start
    residual = yield from passes.apply(x, 1.0)
    with _BREAKDOWN():
        residual -= x
    before_all = float(np.abs(residual[:, 0]).max())
    tolerances = np.array([max(float(tolerance[0]), _MIN_CHANGE * before_all), float(tolerance[1])])
    shadow = residual.copy()
    direction = residual.copy()
    with _BREAKDOWN():
        rho = _dot(shadow, residual)
    for _ in range(most):
        if not (np.abs(residual).max(axis=0) > tolerances).any():
            break
        image = yield from passes.product(direction)
        with _BREAKDOWN():
            alpha = _ratio(rho, _dot(shadow, image))
            x += alpha * direction
            residual -= alpha * image
        second = yield from passes.product(residual)
        with _BREAKDOWN():
            omega = _ratio(_dot(second, residual), _dot(second, second))
            x += omega * residual
            residual -= omega * second
            before, rho = rho, _dot(shadow, residual)
            beta = _ratio(rho, before) * _ratio(alpha, omega)
            direction = residual + beta * (direction - omega * image)
        if not np.isfinite(rho).all():
            break
    after = yield from passes.apply(x, 1.0)
    with _BREAKDOWN():
        change = np.abs(after - x).max(axis=0)
    leaves = by.policy >= 0
    ends = bool(np.isfinite(after).all() and change[1] <= 0.5 and (x[leaves, 1] > 0).all())
    return PolicyTotal(after[:, 0], after[:, 1], float(change[0]), before_all, ends, passes.count)
