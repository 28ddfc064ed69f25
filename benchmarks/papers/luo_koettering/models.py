"""Models without a zero: every state follows every other under every action, as in the paper (section 5).

    T(s,a,s') = w / sum of the row's w, w uniform,    R(s,a,s') = r(s,a) uniform in [0, 1)

The paper fills both tables with arbitrary numbers; these are a model, so that ooc-mdp takes them as well: as one
partition in RAM, whose rows list all successors.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from resident import InMemory

import ooc_mdp
from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.model.partition import Coupling

__all__ = ["DISCOUNT", "DenseModel"]

DISCOUNT = 0.9
"""The paper names none."""
_ROUNDING = 1e-12
"""By which the sum of a row may differ from 1, generously."""


class DenseModel:
    """One model as dense tables and as one partition."""

    def __init__(self, states: int, actions: int) -> None:
        self.states, self.actions = states, actions
        rng = np.random.default_rng([states, actions])
        self.transitions: FloatArray = rng.random((states, actions, states))
        """[s, a, s']"""
        self.transitions /= self.transitions.sum(axis=2, keepdims=True)
        self._reward = rng.random((states, actions))
        self.rewards: FloatArray = np.repeat(self._reward[:, :, None], states, axis=2)
        """[s, a, s']; a table of its own, as in the paper."""

    def describe(self) -> dict[str, Any]:
        """For the figures."""
        return {"states": self.states, "actions": self.actions, "array_bytes": self.transitions.nbytes}

    @cached_property
    def table(self) -> InMemory:
        """The model as ooc-mdp has it. What it is made from has one successor a row, and all else in common."""
        few = {"states": self.states, "actions": self.actions, "successors": 1}
        table = InMemory(ooc_mdp.open_problem("random", few, partitions=1, device="cpu"))
        (rows,) = table.tables
        every = np.broadcast_to(np.arange(self.states, dtype=rows.successors.dtype), self.transitions.shape)
        table.tables = [
            replace(
                rows,
                successors_per_action=self.states,
                successors=every.reshape(-1),
                probabilities=self.transitions.reshape(-1),
                rewards=self._reward.reshape(-1),
            )
        ]
        table.facts = replace(
            table.facts,
            partition_bytes=np.array([table.tables[0].nbytes]),
            attributes={**table.facts.attributes, "successors_per_action": self.states},
            max_successors=np.array([self.states]),
            row_sum_range=np.array([[1.0 - _ROUNDING, 1.0 + _ROUNDING]]),
            reward_range=np.array([[self._reward.min(), self._reward.max()]]),
            coupling=Coupling(np.array([0, 1]), np.array([0]), np.array([1.0 + _ROUNDING])),
        )
        return table

    def values_after(self, iterations: int) -> FloatArray:
        """From values of 0, by NumPy; float64 [states]."""
        values = np.zeros(self.states)
        for _ in range(iterations):
            values = self._backup(values)
        return values

    def residual(self, values: FloatArray) -> float:
        """The largest |BV - V|."""
        return float(np.abs(self._backup(values) - values).max())

    def _backup(self, values: FloatArray) -> FloatArray:
        means = (self.transitions.reshape(-1, self.states) @ values).reshape(self._reward.shape)
        return (self._reward + DISCOUNT * means).max(axis=1)
