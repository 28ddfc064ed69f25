"""Components whose states share one value in the sweeps of interval iteration: others for U than for L.

L has one value in a zero-reward component, in which moving costs nothing. U has one value in end components of
*cheap* rows as well, which lose a little: a gift for each of their exits would let it grow without end
(``docs/theory/undiscounted.md``).
"""

from __future__ import annotations

import numpy as np

from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.undiscounted.end_components import Staying, ZeroRewardComponents, cheap_components, least_losses
from ooc_mdp.undiscounted.kernels.end_components import NO_COMPONENT
from ooc_mdp.undiscounted.kernels.totals import Components
from ooc_mdp.undiscounted.tables import Neighbours, Streamed, Work

__all__ = ["CHEAP_LOSS", "SharedValues"]

CHEAP_LOSS = 16.0
"""Cheap rows lose at most so many perturbations."""


class SharedValues:
    """Of one solve.

    Parameters
    ----------
    within : the zero-reward components.
    staying : value of staying in one of them for ever.
    """

    def __init__(
        self, tables: Streamed, neighbours: Neighbours, within: ZeroRewardComponents, staying: Staying
    ) -> None:
        self._tables, self._neighbours, self.within, self._staying = tables, neighbours, within, staying
        self.lower, self.upper = _components(within, staying.lower), _components(within, staying.upper)
        """The components of L and U, as compiled loops take them."""
        self._cheap = within
        self._loss = 0.0
        """What rows of `_cheap` lose at most."""
        self._least_loss: float | None = None
        """The least that any row loses, once it is known."""

    @property
    def alike(self) -> bool:
        """Whether L and U have the same components."""
        return self._cheap is self.within

    def choose(self, perturbation: float) -> Work[bool]:
        """Find the components of U for a perturbation; whether they were looked for anew."""
        before, self._loss = self._loss, CHEAP_LOSS * perturbation
        if self._least_loss is None:
            losses = yield from least_losses(self._tables)
            self._least_loss = float(losses.min())
        if self._loss == before or self._least_loss > max(before, self._loss):
            return False
        cheap = yield from cheap_components(self._tables, self._neighbours, self._loss)
        same = np.array_equal(cheap.zero_reward, self.within.zero_reward)
        self._cheap = self.within if same else cheap
        self.upper = _components(self._cheap, self._staying.upper)
        return True

    def merge(self, values: FloatArray, least: float) -> IntArray:
        """Give all states of a component the value of its best exit, or of staying.

        Parameters
        ----------
        values : float64 [n, 2]; L and U.

        Returns
        -------
        states whose value changed by more than `least`
        """
        lower = self._merge(self.within, self.lower, values[:, 0], least)
        return np.concatenate([lower, self._merge(self._cheap, self.upper, values[:, 1], least)])

    def _merge(self, of: ZeroRewardComponents, kept: Components, values: FloatArray, least: float) -> IntArray:
        members, node = of.members, of.node
        best = np.full(of.count, -np.inf)
        stays = self.within.zero_reward[members] != NO_COMPONENT
        best[node[stays]] = kept.staying[members[stays]]
        np.maximum.at(best, node, kept.exits)
        change = np.abs(best[node] - values[members])
        values[members] = best[node]
        moved: IntArray = members[change > least]
        return moved


def _components(of: ZeroRewardComponents, staying: FloatArray) -> Components:
    """No exit is known yet."""
    return Components(of.zero_reward, of.members, np.full(of.members.size, -np.inf), staying)
