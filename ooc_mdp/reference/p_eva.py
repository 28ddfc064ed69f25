"""Out-of-core P-EVA in NumPy, one partition at a time: the algorithm that the rest of the package makes fast.

Values V, policy and one number R[p] per partition are in RAM; the transition table is read one partition at a time
(Wingate, *Solving Large MDPs Quickly with Partitioned Value Iteration*, M.Sc. thesis, 2004, figure 5.1).

    choose     the cached partition p of the largest R[p] > epsilon; where none is cached, the largest R[p] of all
    obtain     the table of p, from the cache or from disk; the least recently used tables make room for it
    sweep      V := BV in p, with (BV)(s) = opt_a { r(s,a) + gamma**tau(s,a) sum_s' p(s'|s,a) V(s') }, until V hardly
               changes; r, the largest |BV - V| of p that is left, gives R[p] = r / (1 - g[p] rho[p])
    propagate  R[q] += g[q] w[q,p] c / (1 - g[q] rho[q]) for each q that reads p, whose boundary values changed by
               at most c: no table is read for that
    stop       when R[p] <= epsilon for every p: then |V - V*| <= max R

g[p] is the largest discount gamma**tau of p, rho[p] its largest row sum, and w[q,p] the largest probability mass that
one row of q has in p. Why |V - V*| <= max R: let e be the largest |V - V*|, in a state of p. As B contracts by
g[p] rho[p] there, e <= |BV - V| + |BV - BV*| <= r + g[p] rho[p] e, so that e <= R[p]. Not fast: see `ooc_mdp.solver`.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from ooc_mdp.errors import OptionsError
from ooc_mdp.model.mdp import FloatArray, IntArray, Rows, discounts
from ooc_mdp.model.partition import PartitionTable
from ooc_mdp.model.table import Table
from ooc_mdp.reference.equations import backup

__all__ = ["PartitionCache", "ReferenceSolution", "p_eva"]

VISIT_TOLERANCE = 0.25
"""A visit leaves its partition at this share of epsilon, so that small changes elsewhere do not call it back."""
UNIT_ROUNDOFF = 2.0**-53
ROUNDED_UP = 1 + 1e-12
"""Bounds are raised by this factor whenever they change: more than the rounding of their own arithmetic."""


@dataclass(frozen=True, slots=True)
class ReferenceSolution:
    """Values, a policy, and how far they can be from the optimum."""

    values: FloatArray
    """float64 [n], in the order of partitions."""
    policy: IntArray
    """int64 [n]; -1 where a state has no action."""
    error_bound: float
    """No |V(s) - V*(s)| is larger, rounding included; the policy's own values lie within the same bound of V."""
    loads: int
    """Tables read."""
    visits: int


class PartitionCache:
    """Tables of partitions in so many bytes; where there is no room, the least recently used are evicted."""

    def __init__(self, table: Table, n_bytes: int) -> None:
        self.table, self.n_bytes = table, n_bytes
        self.tables: OrderedDict[int, PartitionTable] = OrderedDict()
        self.loads = 0

    def obtain(self, p: int) -> PartitionTable:
        """The table of p, which is the most recently used from now on."""
        sizes = self.table.facts.partition_bytes
        if sizes[p] > self.n_bytes:
            raise OptionsError(f"partition {p} needs {sizes[p]} bytes, but the cache has {self.n_bytes}; enlarge it")
        if p not in self.tables:
            while sizes[[p, *self.tables]].sum() > self.n_bytes:
                self.tables.popitem(last=False)
            self.tables[p], _ = self.table.read(p)
            self.loads += 1
        self.tables.move_to_end(p)
        return self.tables[p]


def p_eva(table: Table, gamma: float, epsilon: float, cache_bytes: int) -> ReferenceSolution:
    """Solve until no value is proved to err by more than epsilon, with so many bytes of the table in RAM.

    Raises
    ------
    OptionsError : discount and row sums make no contraction, a partition does not fit into the cache, or float64 cannot
        prove so small an epsilon.
    """
    ptr, w = table.facts.partition_ptr, mass_in_others(table)
    g = discounts(gamma, table.facts.duration_range[:, 0])
    contraction = g * table.facts.row_sum_range[:, 1] * (1 + (table.facts.max_successors + 8) * UNIT_ROUNDOFF)
    if contraction.max() >= 1:
        raise OptionsError(f"discount times row sum reaches {contraction.max()}: nothing is proved; lower the discount")
    values, policy = np.zeros(table.n_states), first_actions(table)
    largest_reward = np.abs(table.facts.reward_range).max(axis=1)
    bound = largest_reward / (1 - contraction) * ROUNDED_UP  # at V = 0 each Q is a reward
    cache, visits = PartitionCache(table, cache_bytes), 0
    while bound.max() > epsilon:
        p = choose(bound, epsilon, cache)
        t, own = cache.obtain(p), slice(ptr[p], ptr[p + 1])
        before = values[own].copy()
        residual = sweep(t, values, policy, gamma, table.sense, VISIT_TOLERANCE * epsilon * (1 - contraction[p]))
        visits += 1
        change = np.abs(values[own] - before)[t.boundary].max(initial=0.0)
        bound = (bound + g * w[:, p] * change / (1 - contraction)) * ROUNDED_UP
        q_size = largest_reward[p] + contraction[p] * np.abs(values).max()
        rounding = (table.facts.max_successors[p] + 8) * UNIT_ROUNDOFF * q_size  # of a backup in float64
        bound[p] = (residual + rounding) / (1 - contraction[p]) * ROUNDED_UP
        if bound[p] > epsilon:
            raise OptionsError(f"float64 proves an error of {bound[p]:.3g} in partition {p}, not {epsilon}; raise it")
    return ReferenceSolution(values, policy, float(bound.max()), cache.loads, visits)


def choose(bound: FloatArray, epsilon: float, cache: PartitionCache) -> int:
    """The partition of the largest bound: of the cached ones above epsilon, which cost no load; without any, of all."""
    cached = [p for p in cache.tables if bound[p] > epsilon]
    return max(cached, key=bound.__getitem__) if cached else int(np.argmax(bound))


def sweep(t: PartitionTable, values: FloatArray, policy: IntArray, gamma: float, sense: str, settled: float) -> float:
    """Back up all states of a partition until the residual is settled or falls no more; returns the residual."""
    own, rows, residual = slice(t.first_state, t.first_state + t.n_states), local_rows(t), np.inf
    while True:
        found = backup(rows, np.concatenate([values[own], values[t.halo]]), gamma, sense)
        last, residual = residual, float(np.abs(found.values - values[own]).max())
        policy[own] = found.policy
        if residual <= settled or residual >= last:  # it falls by a factor of g rho per sweep, rounding set aside
            return residual
        values[own] = found.values


def local_rows(t: PartitionTable) -> Rows:
    """The rows of a partition; successors are places in its own states followed by its halo."""
    action_ptr = t.action_ptr if t.action_ptr.size else t.actions_per_state * np.arange(t.n_states + 1)
    successor_ptr = t.successor_ptr if t.successor_ptr.size else t.successors_per_action * np.arange(t.n_rows + 1)
    return Rows(
        action_ptr=action_ptr.astype(np.int64),
        successor_ptr=successor_ptr.astype(np.int64),
        successors=t.successors.astype(np.int64),
        probabilities=t.probabilities.astype(np.float64),
        rewards=t.rewards.astype(np.float64),
        terminal_rewards=t.terminal_rewards if t.terminal_rewards.size else None,
        durations=t.durations if t.durations.size else None,
    )


def mass_in_others(table: Table) -> FloatArray:
    """float64 [P, P]: w[q,p], the largest mass of a row of q in p; 0 for q = p, whose residual is measured instead."""
    coupling, n = table.facts.coupling, table.n_partitions
    w = np.zeros((n, n))
    w[np.repeat(np.arange(n), np.diff(coupling.ptr)), coupling.partitions] = coupling.mass
    np.fill_diagonal(w, 0.0)
    return w


def first_actions(table: Table) -> IntArray:
    """int64 [n]: action 0, as good as R[p] says in a partition that need not be read; -1 where there is no action."""
    counts = np.concatenate([table.action_counts(p) for p in range(table.n_partitions)])
    return np.where(counts > 0, 0, -1)
