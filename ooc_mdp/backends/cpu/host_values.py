"""Values and policy in the caller's arrays, for backends of the CPU."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.state_lists import HostLists
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.state_order import GridOrder

__all__ = ["HostValues"]


class HostValues(HostLists):
    """What :class:`ooc_mdp.backends.base.Backend` has for the values of states, on arrays that `start` was given."""

    _facts: ModelFacts
    _values: FloatArray
    _policy: npt.NDArray[np.int32]

    def read(self, states: IntArray) -> FloatArray:
        """A copy."""
        return self._values[states]

    def write(self, states: IntArray, values: FloatArray, partitions: IntArray, ptr: IntArray) -> None:
        """Into the caller's array, from which each visit reads anew."""
        self._values[states] = values

    def write_policy(self, partition: int, policy: npt.NDArray[np.int32]) -> None:
        """Into the caller's array."""
        ptr = self._facts.partition_ptr
        self._policy[ptr[partition] : ptr[partition + 1]] = policy

    def copy(self, start: int, values: FloatArray, policy: npt.NDArray[np.int32]) -> None:
        """From the caller's arrays."""
        piece = slice(start, start + values.size)
        values[:], policy[:] = self._values[piece], self._policy[piece]

    def values(self, order: GridOrder | None = None) -> FloatArray:
        """The caller's own array, or a copy in a grid's order."""
        return self._values if order is None else order.to_source(self._values)

    def policy(self, order: GridOrder | None = None) -> npt.NDArray[np.int32]:
        """The caller's own array, or a copy in a grid's order."""
        return self._policy if order is None else order.to_source(self._policy)
