"""Whether undiscounted totals are well defined: end components and reachability, in passes over partitions.

An *end component* is a set of states with, for each, rows that never leave the set and lead from any of its states to
any other: what a policy does for ever, it does in one of them (de Alfaro 1997, theorem 3.2). So totals are finite and
unique where every end component either costs nothing (a *zero-reward component*: all rewards are 0, and staying is
worth 0), or has a negative best mean reward, so that staying is worth minus infinity, and where each state can end or
come to a zero-reward component.

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
from ooc_mdp.model.table_source import TableSource
from ooc_mdp.undiscounted.kernels.end_components import (
    NEGATIVE,
    NO_COMPONENT,
    POSITIVE,
    can_end,
    gain,
    labels,
    rewards_inside,
    spread_backward,
    spread_forward,
    trim,
)
from ooc_mdp.undiscounted.tables import Neighbours, Streamed

__all__ = ["ANALYSIS_BYTES", "ZeroRewardComponents", "check_totals", "end_components", "original_numbers"]

Labels = npt.NDArray[np.uint32]

ANALYSIS_BYTES = 32
"""Bytes that the analysis takes for each state, the zero-reward components apart."""
_NAMED = 8
"""States that a message names."""
_MAX_PASSES = 5000
"""Passes after which a mean reward's sign counts as not decided."""


@dataclass(frozen=True, slots=True)
class ZeroRewardComponents:
    """The zero-reward components."""

    zero_reward: Labels
    """uint32 [n]; a state that stands for the state's zero-reward component, or NO_COMPONENT."""
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
        """Classes of several states."""
        return int(self.node.max(initial=-1)) + 1


def check_totals(tables: Streamed, neighbours: Neighbours) -> tuple[ZeroRewardComponents, npt.NDArray[np.int32]]:
    """The zero-reward components, and a policy that ends, or comes to one.

    Returns
    -------
    the zero-reward components; int32 [n], -1 without actions, -2 in zero-reward components

    Raises
    ------
    UndefinedTotalError : totals are infinite, or may be undefined; names states.
    OptionsError : there are more states than labels.
    """
    source = tables.source
    if source.n_states >= NO_COMPONENT:
        raise OptionsError(
            f"discount 1 is for fewer than {NO_COMPONENT} states, not {source.n_states}; give a discount below 1"
        )
    blocks = end_components(tables, neighbours, zero_only=True)
    zero_reward = _representatives(blocks)
    sign = 1.0 if source.sense == "max" else -1.0
    _check_finite(tables, neighbours, zero_reward, sign)
    return ZeroRewardComponents.of(zero_reward), _check_proper_policy(tables, neighbours, zero_reward)


def end_components(tables: Streamed, neighbours: Neighbours, zero_only: bool, staying: Labels | None = None) -> Labels:
    """The maximal end components: uint32 [n], equal in the states of one, 0 in those of none.

    Parameters
    ----------
    zero_only : look only at rows without reward.
    staying : 0 at states that are known to be in none; may change.
    """
    ahead = np.ones(tables.source.n_states, np.uint32) if staying is None else staying
    back = ahead.copy()
    while True:
        _trim(tables, neighbours, zero_only, ahead, back)
        if not ahead.any():
            return ahead
        new_ahead, new_back = _spread(tables, neighbours, zero_only, ahead, back)
        alone = back == 0
        new_back[alone] = 0
        settled = bool((alone | ((new_ahead == ahead) & (new_back == ahead) & (back == ahead))).all())
        ahead, back = new_ahead, new_back
        if settled:
            return ahead


def _trim(tables: Streamed, neighbours: Neighbours, zero_only: bool, ahead: Labels, back: Labels) -> None:
    """Take out what cannot stay in its block for ever."""

    def taking_out(p: int, rows: TableRows) -> IntArray | None:
        return neighbours.dependents(p) if trim(rows, zero_only, ahead, back) else None

    tables.until_clean(_with_states(ahead, tables.source), taking_out)


def _with_states(blocks: Labels, source: TableSource) -> npt.NDArray[np.bool_]:
    """bool [P]: partitions with a state whose label is not 0."""
    return np.maximum.reduceat(blocks, source.partition_ptr[:-1]) > 0


def _spread(
    tables: Streamed,
    neighbours: Neighbours,
    zero_only: bool,
    ahead: Labels,
    back: Labels,
) -> tuple[Labels, Labels]:
    """Labels that spread along rows inside blocks, forwards and backwards."""
    alive = _with_states(ahead, tables.source)
    spread = labels(ahead.size)
    spread[ahead == 0] = 0

    def forward(p: int, rows: TableRows) -> IntArray | None:
        return neighbours.dependencies(p) if spread_forward(rows, zero_only, ahead, back, spread) else None

    tables.until_clean(alive.copy(), forward)
    new_ahead = spread
    spread = labels(ahead.size)
    spread[ahead == 0] = 0

    def backward(p: int, rows: TableRows) -> IntArray | None:
        return neighbours.dependents(p) if spread_backward(rows, zero_only, ahead, back, spread) else None

    tables.until_clean(alive.copy(), backward)
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


def _check_finite(tables: Streamed, neighbours: Neighbours, zero_reward: Labels, sign: float) -> None:
    """Raise UndefinedTotalError unless staying among states for ever is worth 0, or minus infinity."""
    source = tables.source
    best = source.reward_range[:, 1] if sign > 0 else -source.reward_range[:, 0]
    if best.max() <= 0:
        return
    blocks = np.ones(source.n_states, np.uint32)
    _trim(tables, neighbours, False, blocks, blocks.copy())
    found = _signs(tables, blocks, np.zeros_like(blocks), zero_reward, sign)
    if not found[0] & POSITIVE:
        return
    blocks = end_components(tables, neighbours, False, blocks)
    components = _representatives(blocks)
    found = _signs(tables, blocks, components, zero_reward, sign)
    for kind, why in ((POSITIVE, "and none of the other sign"), (POSITIVE | NEGATIVE, "")):
        of_kind = np.flatnonzero((blocks > 0) & (found[np.minimum(components, blocks.size - 1)] == kind))
        if not of_kind.size:
            continue
        if kind == POSITIVE:
            members = of_kind[components[of_kind] == components[of_kind[0]]]
            raise _infinite(source, members, sign, why)
        mixed = np.zeros_like(blocks)
        mixed[of_kind] = blocks[of_kind]
        _check_negative_gain(tables, mixed, components, zero_reward, sign)


def _signs(
    tables: Streamed, blocks: Labels, components: Labels, zero_reward: Labels, sign: float
) -> npt.NDArray[np.uint8]:
    """uint8 [n]: by the states that stand for components, which signs rewards inside have, free rows apart."""
    found = np.zeros(blocks.size, np.uint8)
    for _, rows, _ in tables.in_order(_with_states(blocks, tables.source)):
        rewards_inside(rows, blocks, components, zero_reward, sign, found)
    return found


@dataclass(slots=True)
class _Means:
    """Mean rewards of end components, by relative value iteration on the table (Puterman 1994, section 8.5)."""

    states: IntArray
    """int64 [k]; the states of all components."""
    component: IntArray
    """int64 [k]; component of each, counted from 0."""
    members: IntArray
    """int64; where in `states` those are that lie in zero-reward components."""
    node: IntArray
    """int64; zero-reward component of each member, counted from 0."""

    def joined(self, best: FloatArray) -> None:
        """Give all states of a zero-reward component the best of theirs."""
        if self.members.size:
            top = np.full(int(self.node.max()) + 1, -np.inf)
            np.maximum.at(top, self.node, best[self.members])
            best[self.members] = top[self.node]


def _check_negative_gain(
    tables: Streamed, blocks: Labels, components: Labels, zero_reward: Labels, sign: float
) -> None:
    """Decide the sign of the best mean reward of components with rewards of both signs.

    With h any potential, the best mean lies between the least and the largest of max_a r + P h - h over the component.
    """
    source = tables.source
    potential, best = np.zeros(blocks.size), np.zeros(blocks.size)
    for passes in range(_MAX_PASSES + 1):
        states = np.flatnonzero(blocks)
        if not states.size:
            return
        members = np.flatnonzero(zero_reward[states] != NO_COMPONENT)
        means = _Means(
            states,
            np.unique(components[states], return_inverse=True)[1].reshape(-1),
            members,
            np.unique(zero_reward[states[members]], return_inverse=True)[1].reshape(-1),
        )
        rounding = 0.0
        for _, rows, _ in tables.in_order(_with_states(blocks, source)):
            rounding = max(rounding, gain(rows, blocks, zero_reward, potential, sign, best))
        step = best[states]
        means.joined(step)
        count = int(means.component.max()) + 1
        least, most = np.full(count, np.inf), np.full(count, -np.inf)
        np.minimum.at(least, means.component, step)
        np.maximum.at(most, means.component, step)
        positive = np.flatnonzero(least > rounding)
        if positive.size:
            inside = states[means.component == positive[0]]
            raise _infinite(source, inside, sign, f"by {least[positive[0]]:.3g} a step or more in the mean")
        if passes == _MAX_PASSES or (passes > 10 and (most - least <= rounding).any()):
            first = int(np.argmin(most - least))
            if most[first] >= -rounding:
                raise _undecided(source, states[means.component == first], least[first], most[first])
        blocks[states[(most < -rounding)[means.component]]] = 0
        potential[states] += 0.5 * (step - least[means.component])


def _check_proper_policy(tables: Streamed, neighbours: Neighbours, zero_reward: Labels) -> npt.NDArray[np.int32]:
    """A policy that ends or comes to a zero-reward component; UndefinedTotalError where some state can do neither."""
    source = tables.source
    reached = np.zeros(source.n_states, np.uint8)
    policy = np.full(source.n_states, -1, np.int32)

    def reaching(p: int, rows: TableRows) -> IntArray | None:
        return neighbours.dependents(p) if can_end(rows, zero_reward, reached, policy) else None

    tables.until_clean(np.ones(source.n_partitions, np.bool_), reaching)
    never = np.flatnonzero(reached == 0)
    if never.size:
        worth = "minus infinity" if source.sense == "max" else "infinite"
        bad = "negative" if source.sense == "max" else "positive"
        raise UndefinedTotalError(
            f"with discount 1 the total reward of {_named(source, never)} is {worth}: from there no policy ever ends "
            f"the process or comes where staying is worth 0, and {bad} rewards never cease; give a discount below 1, "
            f"or let these states reach one without action, a row of infinite duration or a self-loop of reward 0",
            _some(source, never),
        )
    return policy


def _infinite(source: TableSource, states: IntArray, sign: float, why: str) -> UndefinedTotalError:
    worth, good = ("infinite", "positive") if sign > 0 else ("minus infinity", "negative")
    return UndefinedTotalError(
        f"with discount 1 the total reward of {_named(source, states)} is {worth}: a policy may stay among these "
        f"states for ever and collect {good} rewards again and again, {why}; give a discount below 1, or end the "
        f"process where such a reward is paid",
        _some(source, states),
    )


def _undecided(source: TableSource, states: IntArray, least: float, most: float) -> UndefinedTotalError:
    return UndefinedTotalError(
        f"discount 1 is not supported here: a policy may stay for ever among {_named(source, states)}, where rewards "
        f"of both signs balance (the best mean reward a step is between {least:.3g} and {most:.3g}, and cannot be told "
        f"from 0), so that totals may have no limit; give a discount below 1",
        _some(source, states),
    )


def _some(source: TableSource, states: IntArray) -> tuple[int, ...]:
    """The lowest of the source's numbers."""
    return tuple(np.sort(original_numbers(source, states))[:_NAMED].tolist())


def _named(source: TableSource, states: IntArray) -> str:
    """ "states 3, 7 and 12", the source's numbers; only some where there are many."""
    numbers = [str(s) for s in _some(source, states)]
    more = states.size - len(numbers)
    if more:
        return f"states {', '.join(numbers)} and {more} more"
    if len(numbers) == 1:
        return f"state {numbers[0]}"
    return f"states {', '.join(numbers[:-1])} and {numbers[-1]}"


def original_numbers(source: TableSource, states: IntArray) -> IntArray:
    """The source's numbers of states in store order."""
    found = np.empty_like(states)
    owners = np.searchsorted(source.partition_ptr, states, side="right") - 1
    for p in np.unique(owners).tolist():
        own = owners == p
        found[own] = source.original_states(p)[states[own] - source.partition_ptr[p]]
    return found
