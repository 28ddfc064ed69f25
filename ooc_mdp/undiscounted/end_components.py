"""Whether undiscounted totals are well defined: end components and reachability, in passes over partitions.

An *end component* is a set of states with, for each, rows that never leave the set and lead from any of its states to
any other: what a policy does for ever, it does in one of them (de Alfaro 1997, theorem 3.2). So totals are finite and
unique where every end component either costs nothing (a *zero-reward component*: all rewards are 0, and staying
has value 0), or has a negative best mean reward, so that staying has value minus infinity, and where each state can end
or reach a zero-reward component.

Maximal end components are found by refining blocks of states: within each, labels spread forwards and backwards, and
states stay together where both labels agree (forward-backward search with many pivots at once, after Coppersmith,
Fleischer, Hendrickson and Pinar 2003); rows that leave their block are dropped, states without rows too, until every
block has one label, which is then that of a state that leads to all others and back. Labels are scrambled state
numbers, so that rounds are few: about log n, and each a few passes over the partitions that still have states.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.cpu.rows import TableRows
from ooc_mdp.errors import OptionsError, UndefinedTotalError
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.table import Table
from ooc_mdp.undiscounted.kernels.end_components import (
    ANY_REWARD,
    NEGATIVE,
    NO_COMPONENT,
    NO_REWARD,
    POSITIVE,
    can_end,
    labels,
    least_loss,
    rewards_inside,
    spread_backward,
    spread_forward,
    trim,
)
from ooc_mdp.undiscounted.mean_rewards import MeanLoss, least_mean_loss
from ooc_mdp.undiscounted.refusals import infinite, named, only_reachable, some
from ooc_mdp.undiscounted.tables import Neighbours, Streamed, Work, partitions_with

__all__ = [
    "ANALYSIS_BYTES",
    "COMPONENT_BYTES",
    "Analysis",
    "Staying",
    "ZeroRewardComponents",
    "cheap_components",
    "check_totals",
    "end_components",
    "least_losses",
    "states_near_zero",
]

Labels = npt.NDArray[np.uint32]
RewardRange = tuple[float, float]
"""Least and largest reward of rows that are looked at."""

ANALYSIS_BYTES = 32
"""Bytes that the analysis takes for each state, the zero-reward components apart."""
COMPONENT_BYTES = 100
"""Bytes for each state of a zero-reward or cheap component of several states: its numbers, exits of L and U, and in an
evaluation the value of leaving it."""


@dataclass(frozen=True, slots=True)
class ZeroRewardComponents:
    """The zero-reward components."""

    zero_reward: Labels
    """uint32 [n]; a state that represents the state's zero-reward component, or NO_COMPONENT."""
    members: IntArray
    """int64; states of components of several states, ascending."""
    node: IntArray
    """int64; zero-reward component of each member, counted from 0."""

    @classmethod
    def of(cls, zero_reward: Labels) -> Self:
        """From the zero-reward component of each state."""
        inside = np.flatnonzero(zero_reward != NO_COMPONENT)
        _, which, counts = np.unique(zero_reward[inside], return_inverse=True, return_counts=True)
        members = inside[counts[which.reshape(-1)] > 1]
        return cls(zero_reward, members, np.unique(zero_reward[members], return_inverse=True)[1].reshape(-1))

    @property
    def count(self) -> int:
        """Number of components of several states."""
        return int(self.node.max(initial=-1)) + 1

    def of_each(self, values: FloatArray) -> FloatArray:
        """float64 [count]; values that are the same in all states of a component (float64 [n]), by component."""
        found = np.empty(self.count)
        found[self.node] = values[self.members]
        return found


@dataclass(frozen=True, slots=True)
class Staying:
    """Bounds on the value of staying in a zero-reward component for ever, the same in all its states."""

    lower: FloatArray
    """float64 [n]; of the maximisation, at least this,"""
    upper: FloatArray
    """and at most this."""

    @classmethod
    def everywhere(cls, value: float, n_states: int) -> Self:
        """One value in all components: 0, or minus infinity where a policy has to end."""
        values = np.broadcast_to(np.float64(value), n_states)
        return cls(values, values)

    @property
    def allowed(self) -> bool:
        """Whether a policy may stay anywhere."""
        return bool((self.lower > -np.inf).any())


@dataclass(frozen=True, slots=True)
class Analysis:
    """What is known of a model whose totals are finite."""

    within: ZeroRewardComponents
    start: npt.NDArray[np.int32]
    """int32 [n]; a policy that ends, or comes to a zero-reward component: -1 without actions, -2 in these."""
    mean_loss: MeanLoss | None
    """The least one; None where no rewards of both signs are in one end component."""


def check_totals(tables: Streamed, neighbours: Neighbours, staying: Staying) -> Work[Analysis]:
    """Find the zero-reward components, and whether totals are finite.

    Parameters
    ----------
    staying : value of staying in a zero-reward component for ever.

    Raises
    ------
    UndefinedTotalError : totals are infinite, or may be undefined; names states.
    OptionsError : there are more states than labels.
    """
    source = tables.source
    if source.n_states >= NO_COMPONENT:
        raise OptionsError(
            f"total rewards are solved for fewer than {NO_COMPONENT} states, not {source.n_states}; give a discount "
            f"below 1"
        )
    blocks = yield from end_components(tables, neighbours, NO_REWARD)
    zero_reward = _representatives(blocks)
    sign = 1.0 if source.sense == "max" else -1.0
    mean_loss = yield from _check_finite(tables, neighbours, zero_reward, sign)
    ending = zero_reward if staying.allowed else np.full_like(zero_reward, NO_COMPONENT)
    start = yield from _check_proper_policy(tables, neighbours, ending)
    return Analysis(ZeroRewardComponents.of(zero_reward), start, mean_loss)


def states_near_zero(table: Table, reward: float) -> int:
    """States of partitions with a reward of at most this size: no other may be in a zero-reward or cheap component."""
    low, high = table.facts.reward_range.T
    return int(np.diff(table.facts.partition_ptr)[(low <= reward) & (high >= -reward)].sum())


def least_losses(tables: Streamed) -> Work[FloatArray]:
    """float64 [P]: the least that a row of each partition loses, if it loses something; else infinite."""
    sign = 1.0 if tables.source.sense == "max" else -1.0
    least = np.full(tables.source.n_partitions, np.inf)
    for p, rows, _ in tables.in_order(np.ones(least.size, np.bool_)):
        least[p] = least_loss(rows, sign)
        yield
    return least


def cheap_components(tables: Streamed, neighbours: Neighbours, loss: float) -> Work[ZeroRewardComponents]:
    """The maximal end components of rows that lose at most so much: moving within them costs almost nothing."""
    kept = (-loss, 0.0) if tables.source.sense == "max" else (0.0, loss)
    blocks = yield from end_components(tables, neighbours, kept)
    return ZeroRewardComponents.of(_representatives(blocks))


def end_components(
    tables: Streamed, neighbours: Neighbours, kept: RewardRange = ANY_REWARD, staying: Labels | None = None
) -> Work[Labels]:
    """The maximal end components: uint32 [n], equal in the states of one, 0 in those of none.

    Parameters
    ----------
    kept : look only at rows whose reward lies in this range, in the source's sign.
    staying : 0 at states that are known to be in none; may change.
    """
    ahead = np.ones(tables.source.n_states, np.uint32) if staying is None else staying
    back = ahead.copy()
    while True:
        yield from _trim(tables, neighbours, kept, ahead, back)
        if not ahead.any():
            return ahead
        new_ahead, new_back = yield from _spread(tables, neighbours, kept, ahead, back)
        alone = back == 0
        new_back[alone] = 0
        settled = bool((alone | ((new_ahead == ahead) & (new_back == ahead) & (back == ahead))).all())
        ahead, back = new_ahead, new_back
        if settled:
            return ahead


def _trim(tables: Streamed, neighbours: Neighbours, kept: RewardRange, ahead: Labels, back: Labels) -> Work[None]:
    """Take out what cannot stay in its block for ever."""

    def taking_out(p: int, rows: TableRows) -> IntArray | None:
        return neighbours.dependents(p) if trim(rows, kept, ahead, back) else None

    yield from tables.until_clean(partitions_with(ahead, tables.source), taking_out)


def _spread(
    tables: Streamed,
    neighbours: Neighbours,
    kept: RewardRange,
    ahead: Labels,
    back: Labels,
) -> Work[tuple[Labels, Labels]]:
    """Labels that spread along rows inside blocks, forwards and backwards."""
    alive = partitions_with(ahead, tables.source)
    spread = labels(ahead.size)
    spread[ahead == 0] = 0

    def forward(p: int, rows: TableRows) -> IntArray | None:
        return neighbours.dependencies(p) if spread_forward(rows, kept, ahead, back, spread) else None

    yield from tables.until_clean(alive.copy(), forward)
    new_ahead = spread
    spread = labels(ahead.size)
    spread[ahead == 0] = 0

    def backward(p: int, rows: TableRows) -> IntArray | None:
        return neighbours.dependents(p) if spread_backward(rows, kept, ahead, back, spread) else None

    yield from tables.until_clean(alive.copy(), backward)
    return new_ahead, spread


def _representatives(blocks: Labels) -> Labels:
    """uint32 [n]: the state whose label a block bears; NO_COMPONENT where there is none."""
    zero_reward = np.full(blocks.size, NO_COMPONENT, np.uint32)
    inside = np.flatnonzero(blocks)
    if inside.size:
        bearers = inside[labels(blocks.size)[inside] == blocks[inside]]
        bearers = bearers[np.argsort(blocks[bearers])]
        zero_reward[inside] = bearers[np.searchsorted(blocks[bearers], blocks[inside])]
    return zero_reward


def _check_finite(tables: Streamed, neighbours: Neighbours, zero_reward: Labels, sign: float) -> Work[MeanLoss | None]:
    """Raise UndefinedTotalError unless staying among states for ever has value 0 or minus infinity."""
    source = tables.source
    best = source.facts.reward_range[:, 1] if sign > 0 else -source.facts.reward_range[:, 0]
    if best.max() <= 0:
        return None
    blocks = np.ones(source.n_states, np.uint32)
    yield from _trim(tables, neighbours, ANY_REWARD, blocks, blocks.copy())
    found = yield from _signs(tables, blocks, np.zeros_like(blocks), zero_reward, sign)
    if not found[0] & POSITIVE:
        return None
    blocks = yield from end_components(tables, neighbours, ANY_REWARD, blocks)
    components = _representatives(blocks)
    found = yield from _signs(tables, blocks, components, zero_reward, sign)
    for kind, why in ((POSITIVE, "and none of the other sign"), (POSITIVE | NEGATIVE, "")):
        of_kind = np.flatnonzero((blocks > 0) & (found[np.minimum(components, blocks.size - 1)] == kind))
        if not of_kind.size:
            continue
        if kind == POSITIVE:
            members = of_kind[components[of_kind] == components[of_kind[0]]]
            raise infinite(source, members, sign, why)
        mixed = np.zeros_like(blocks)
        mixed[of_kind] = blocks[of_kind]
        return (yield from least_mean_loss(tables, mixed, components, zero_reward, sign))
    return None


def _signs(
    tables: Streamed, blocks: Labels, components: Labels, zero_reward: Labels, sign: float
) -> Work[npt.NDArray[np.uint8]]:
    """uint8 [n]: at the states that represent components, which signs rewards inside have, free rows apart."""
    found = np.zeros(blocks.size, np.uint8)
    for _, rows, _ in tables.in_order(partitions_with(blocks, tables.source)):
        rewards_inside(rows, blocks, components, zero_reward, sign, found)
        yield
    return found


def _check_proper_policy(tables: Streamed, neighbours: Neighbours, zero_reward: Labels) -> Work[npt.NDArray[np.int32]]:
    """A policy that ends or comes to a zero-reward component; UndefinedTotalError where some state can do neither."""
    source = tables.source
    reached = np.zeros(source.n_states, np.uint8)
    policy = np.full(source.n_states, -1, np.int32)

    def reaching(p: int, rows: TableRows) -> IntArray | None:
        return neighbours.dependents(p) if can_end(rows, zero_reward, reached, policy) else None

    yield from tables.until_clean(np.ones(source.n_partitions, np.bool_), reaching)
    never = np.flatnonzero(reached == 0)
    if never.size:
        total = "minus infinity" if source.sense == "max" else "infinite"
        bad = "negative" if source.sense == "max" else "positive"
        raise UndefinedTotalError(
            f"without a discount the total reward of {named(source, never)} is {total}: from there no policy ever ends "
            f"the process or reaches states where it may stay without reward, and {bad} rewards never cease; give a "
            f"discount below 1, or let these states reach one without action, a row of infinite duration or a "
            f"self-loop of reward 0, or, where all rewards have one sign, add --infinite (in Python infinite=True), by "
            f"which infinite totals are answers{only_reachable(source)}",
            some(source, never),
        )
    return policy
