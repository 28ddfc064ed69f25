"""Mean rewards of end components with rewards of both signs: whether staying in one loses something, and how much.

By relative value iteration, streamed (Puterman 1994, section 8.5), whose bounds on the mean hold at every step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.undiscounted.kernels.end_components import NO_COMPONENT, gain
from ooc_mdp.undiscounted.refusals import Labels, infinite, undecided
from ooc_mdp.undiscounted.tables import Streamed, Work, partitions_with

__all__ = ["MeanLoss", "least_mean_loss"]

_MAX_PASSES = 5000
"""Passes after which a mean reward's sign counts as not decided."""
_MEAN_KNOWN, _MEAN_PASSES = 2.0, 200
"""A mean reward below 0 counts as known where its bounds are within this factor, or after so many passes."""


@dataclass(frozen=True, slots=True)
class MeanLoss:
    """How little a policy loses that stays among states with rewards of both signs."""

    least: float
    """The best mean reward a step lies between these,"""
    most: float
    """which is below 0."""
    states: IntArray


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


def least_mean_loss(
    tables: Streamed, blocks: Labels, components: Labels, zero_reward: Labels, sign: float
) -> Work[MeanLoss]:
    """Decide the sign of the best mean reward of components with rewards of both signs; the least loss.

    With h any potential, the best mean lies between the least and the largest of max_a r + P h - h over the component.
    """
    source = tables.source
    potential, best = np.zeros(blocks.size), np.zeros(blocks.size)
    loss = MeanLoss(-np.inf, -np.inf, np.empty(0, np.int64))
    for passes in range(_MAX_PASSES + 1):
        states = np.flatnonzero(blocks)
        if not states.size:
            break
        members = np.flatnonzero(zero_reward[states] != NO_COMPONENT)
        means = _Means(
            states,
            np.unique(components[states], return_inverse=True)[1].reshape(-1),
            members,
            np.unique(zero_reward[states[members]], return_inverse=True)[1].reshape(-1),
        )
        rounding = 0.0
        for _, rows, _ in tables.in_order(partitions_with(blocks, source)):
            rounding = max(rounding, gain(rows, blocks, zero_reward, potential, sign, best))
            yield
        step = best[states]
        means.joined(step)
        count = int(means.component.max()) + 1
        least, most = np.full(count, np.inf), np.full(count, -np.inf)
        np.minimum.at(least, means.component, step)
        np.maximum.at(most, means.component, step)
        positive = np.flatnonzero(least > rounding)
        if positive.size:
            inside = states[means.component == positive[0]]
            raise infinite(source, inside, sign, f"by {least[positive[0]]:.3g} a step or more in the mean")
        if passes == _MAX_PASSES or (passes > 10 and (most - least <= rounding).any()):
            first = int(np.argmin(most - least))
            if most[first] >= -rounding:
                raise undecided(source, states[means.component == first], least[first], most[first])
        known = (most < -rounding) & ((least > _MEAN_KNOWN * most) | (passes >= _MEAN_PASSES))
        if known.any():
            nearest = int(np.argmax(np.where(known, most, -np.inf)))
            if most[nearest] > loss.most:
                loss = MeanLoss(least[nearest], most[nearest], states[means.component == nearest])
        blocks[states[known[means.component]]] = 0
        potential[states] += 0.5 * (step - least[means.component])
    return loss
