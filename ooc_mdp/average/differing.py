"""Shows that the gain differs between states: a set that no policy leaves, and one that the policy keeps to.

    C closed under all actions:  g*(s) <= max over C of max_a x_a      for s in C
    D closed under the policy:   g*(s) >= min over D of x of its row   for s in D

Steps of relative value iteration bring max_a x_a to g*(s) in each state. States of the least gain are closed under all
actions, and those of the largest under the policy. So the states whose x is near the least, and near the largest, are
taken, and those are left out, again and again, from which a row leads outside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.base import Resident
from ooc_mdp.model.mdp import IntArray
from ooc_mdp.undiscounted.tables import Neighbours, Work

if TYPE_CHECKING:
    from ooc_mdp.average.iteration import AverageIteration

__all__ = ["Differing", "prove_differing"]

_NEAR = 0.25
"""Share of the interval at either end."""


@dataclass(frozen=True, slots=True)
class Differing:
    """Proved, of the maximisation, rounding included."""

    least: float
    """The gain is at most this"""
    least_states: int
    """in so many states,"""
    largest: float
    """and at least this"""
    largest_states: int
    """in so many."""

    def describe(self, sign: float) -> str:
        """In a sentence, in the source's sign."""
        most, least = ("most", "least") if sign > 0 else ("least", "most")
        return (
            f"the gain is at {most} {sign * self.least!r} in {self.least_states:,} states, which nothing leads out of, "
            f"and at {least} {sign * self.largest!r} in {self.largest_states:,} others"
        )


def prove_differing(run: AverageIteration) -> Work[Differing | None]:
    """Look for the two sets at the values, policy and x of the last reading, which was of every partition."""
    low, high = run.bounds.interval
    near, backend, x = _NEAR * (high - low), run.backend, run.backend.advantage()
    neighbours = Neighbours(run.tables.source.facts.coupling)
    dirty = np.ones(run.tables.source.n_partitions, np.bool_)
    backend.begin_pruning((x <= low + near).astype(np.uint8), (x >= high - near).astype(np.uint8))

    def prune(p: int, resident: Resident) -> IntArray | None:
        return np.append(neighbours.dependents(p), p) if backend.prune(resident) else None

    yield from _until_closed(run, dirty, prune)
    least, largest = backend.pruned()
    if not (least.any() and largest.any()):
        return None
    below = float(x[least > 0].max()) + 2 * run.rounding
    above = float(x[largest > 0].min()) - (run.margin + 2 * run.rounding)
    return Differing(below, int(least.sum()), above, int(largest.sum())) if below < above else None


def _until_closed(
    run: AverageIteration, dirty: npt.NDArray[np.bool_], prune: Callable[[int, Resident], IntArray | None]
) -> Work[None]:
    """Visit partitions until nothing changes in any, or a set is empty; one that changed is visited again, too."""
    while dirty.any():
        dirty &= _with_states_left(run)
        for p, resident, _ in run.tables.residents_in_order(dirty.copy()):
            dirty[p] = False
            affected = prune(p, resident)
            if affected is not None:
                dirty[affected] = True
            yield


def _with_states_left(run: AverageIteration) -> npt.NDArray[np.bool_]:
    """bool [P]: which partitions have states of the two sets; none where a set is empty, which shows nothing."""
    first_states = run.tables.source.facts.partition_ptr[:-1]
    least, largest = (np.bitwise_or.reduceat(marks, first_states) > 0 for marks in run.backend.pruned())
    return (least | largest) & bool(least.any() and largest.any())
