"""Which partition next: Wingate's H1 and H2 (2004, section 4.2), over bounds kept in RAM.

H1 orders by the residual B; H2 by B + V where B > epsilon: what a state would be worth after its backup, so that
large values settle before they spread. The solver knows B only as the bound R[p], and B + V as the value that
flows in: the largest reward at the start, afterwards the largest discounted boundary value that changed.
This module ranks; it loads nothing.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import OptionsError
from ooc_mdp.mdp import FloatArray, IntArray

__all__ = ["H1", "H2", "Priority", "make_priority"]


class Priority(Protocol):
    """A rank of dirty partitions; to add one, define these four and name it in `make_priority`."""

    name: str

    def rank(self, residual: FloatArray) -> FloatArray:
        """float64 [P]: larger means sooner, given R[p]."""
        ...

    def inflow(self, partitions: IntArray, value: float, significant: npt.NDArray[np.bool_]) -> None:
        """Changed boundary values of at most `value` flow into the partitions; `significant` says where they matter."""
        ...

    def visited(self, partition: int) -> None:
        """The partition's own sweeps took in all that had flowed in."""
        ...

    def exact(self, partition: int, residual: float, value: float) -> None:
        """The partition was read: its exact residual, and the exact largest B + V among its unconverged states."""
        ...


class H1:
    """Largest residual first."""

    name = "h1"

    def rank(self, residual: FloatArray) -> FloatArray:
        """R[p] itself."""
        return residual

    def inflow(self, partitions: IntArray, value: float, significant: npt.NDArray[np.bool_]) -> None:
        """Nothing to note: R[p] holds it."""

    def visited(self, partition: int) -> None:
        """Nothing to note."""

    def exact(self, partition: int, residual: float, value: float) -> None:
        """Nothing to note: R[p] holds it."""


class H2:
    """Largest value that flows in first.

    Parameters
    ----------
    first : float64 [P]; largest value that a first backup could give each partition.
    """

    name = "h2"

    def __init__(self, first: FloatArray) -> None:
        self.value = first.copy()

    def rank(self, residual: FloatArray) -> FloatArray:
        """The value that flows in."""
        return self.value

    def inflow(self, partitions: IntArray, value: float, significant: npt.NDArray[np.bool_]) -> None:
        """Raise the partitions' values where the change matters."""
        p = partitions[significant]
        self.value[p] = np.maximum(self.value[p], value)

    def visited(self, partition: int) -> None:
        """What had flowed in is worked in."""
        self.value[partition] = -np.inf

    def exact(self, partition: int, residual: float, value: float) -> None:
        """Take the exact B + V."""
        self.value[partition] = value


def make_priority(name: str, first_values: FloatArray) -> Priority:
    """The priority of that name; raises OptionsError."""
    if name == "h1":
        return H1()
    if name == "h2":
        return H2(first_values)
    raise OptionsError(f"unknown priority {name!r}; there are h1 and h2")
