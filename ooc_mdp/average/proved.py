"""What a solve claims: the narrowest interval that it has proved, and the values and the policy that prove it.

    max(min_s x(s) of the policy, min r)  <=  gain of the policy  <=  g*(s)  <=  min(max_s max_a x_a(s), max r)

The rewards are x at h = 0, so that their range needs no values as a proof. h and the policy go on to others, whose
interval may be wider for a while; the ones that prove the narrowest are kept until others prove a narrower one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.model.table import Table

__all__ = ["KEPT_BYTES", "Interval", "Proved", "rewards_of"]

KEPT_BYTES = 24
"""Bytes for each state: values and policy that are kept, and a copy that takes their place."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Holds the gain of every state, of the maximisation."""

    low: float = -np.inf
    """The gain of the policy is at least this."""
    high: float = np.inf

    @property
    def width(self) -> float:
        """Rounded up."""
        return float(np.nextafter(self.high - self.low, np.inf))

    def within(self, rewards: Interval) -> Interval:
        """The same in the range of the rewards; nothing is known of them before every partition was read."""
        if np.isinf(self.low) or np.isinf(self.high):
            return self
        return Interval(max(self.low, rewards.low), min(self.high, rewards.high))


@dataclass(frozen=True, slots=True)
class Proved:
    """An interval with its proof."""

    interval: Interval
    rounding: float
    """Largest rounding of an x."""
    values: FloatArray
    """float64 [n]; h."""
    policy: npt.NDArray[np.int32]
    """int32 [n]."""


def rewards_of(table: Table) -> Interval:
    """The least and the largest reward of a table, of the maximisation."""
    low, high = float(table.facts.reward_range[:, 0].min()), float(table.facts.reward_range[:, 1].max())
    return Interval(low, high) if table.sense == "max" else Interval(-high, -low)
