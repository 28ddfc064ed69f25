"""Compares a partition with what the small arrays say of it, the first time that it is loaded.

Bounds are proved from reward and duration ranges, row sums, coupling and boundary, none of which a load needs in order
to decode a partition. A program that can seal a store can seal false ones; they are found in the partitions that a
solve loads. Later loads have the checksums of the first one. `ooc_mdp.store.check_table` reports every fault; here the
first one ends the load.
"""

from __future__ import annotations

import threading
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import StoreError
from ooc_mdp.model.mdp import ROW_SUM_TOLERANCE, FloatArray, IntArray
from ooc_mdp.model.partition import PartitionTable
from ooc_mdp.model.table import TableFacts
from ooc_mdp.store.damage import REMEDY
from ooc_mdp.store.encodings import RowLayout
from ooc_mdp.store.layout import PartitionSizes

if TYPE_CHECKING:
    from ooc_mdp.store.load_loops import Measured

__all__ = ["LoadCheck", "check_bytes", "check_pointers"]

_UNIT_ROUNDOFF = 2.0**-53
_ROUNDED_UP = 1e-12
"""Share by which the writer rounds coupling masses up."""
_COUPLING_EXCESS = 1e-9
_SPACING_AT_1 = {4: 2.0**-23, 8: 2.0**-52}
"""Of floats of so many bytes."""


def check_bytes(n_states: int) -> int:
    """Bytes that the marks of a :class:`LoadCheck` take."""
    return -(-n_states // 8)


def check_pointers(
    facts: TableFacts,
    sizes: PartitionSizes,
    p: int,
    action_ptr: npt.NDArray[np.uint32],
    successor_ptr: npt.NDArray[np.uint32],
) -> None:
    """Refuse pointers that leave the arrays, and rows longer than the store says: loops follow them."""
    width = facts.successors_per_action
    error = RowLayout(sizes, facts.actions_per_state, width, action_ptr, successor_ptr).fault()
    if error is None and not width and successor_ptr.size > 1:
        counts = successor_ptr[1:] - successor_ptr[:-1]
        longest = facts.max_successors[p]
        if counts.max() != longest:
            error = f"rows have {counts.min()} to {counts.max()} transitions, at most {longest} are due"
    if error is not None:
        raise StoreError(f"the rows of partition {p} of {facts.name} cannot be followed: {error}; {REMEDY}")


class LoadCheck:
    """What was found of the partitions of one table so far; safe to use from many threads."""

    def __init__(self, facts: TableFacts) -> None:
        self._facts = facts
        self._checked = np.zeros(facts.n_partitions, np.bool_)
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        """What another process may have: the table, of which it has loaded nothing."""
        return {"_facts": self._facts, "_checked": np.zeros_like(self._checked)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = threading.Lock()

    @cached_property
    def _boundary(self) -> npt.NDArray[np.uint8]:
        """A bit a state, set where `boundary` of a loaded partition is, and in the halos of loaded partitions."""
        return np.zeros(check_bytes(self._facts.n_states), np.uint8)

    def load_code(self) -> None:
        """Call the loops on nothing, with arrays of the table's types."""
        from ooc_mdp.store.load_loops import mark_boundary, measure_partition

        facts = self._facts
        successors, probabilities, rewards = (
            np.zeros(0, facts.dtypes[name]) for name in ("successors", "probabilities", "rewards")
        )
        numbers, pointers, places = np.zeros(0), np.zeros(0, np.uint32), np.zeros(0, np.int64)
        coupled, ends = facts.coupling.partitions[:0], np.zeros((0, 2), np.int64)
        measure_partition(
            successors, probabilities, pointers, 0, rewards, numbers, numbers, pointers,
            0, places, 0, facts.partition_ptr, coupled, ends, numbers,
        )  # fmt: skip
        mark_boundary(np.zeros(0, np.uint8), 0, np.zeros(0, np.bool_), places, coupled, ends, self._checked)

    def check(self, part: PartitionTable) -> None:
        """Compare a partition, unless that was done before.

        Raises
        ------
        StoreError : what the table says of the partition is not what its arrays give.
        """
        from ooc_mdp.store.load_loops import measure_partition

        p, coupling = part.index, self._facts.coupling
        if self._checked[p]:
            return
        coupled = coupling.read_by(p)
        ends, mass = np.zeros((coupled.size, 2), np.int64), np.zeros(coupled.size)
        found = measure_partition(
            part.successors, part.probabilities, part.successor_ptr, part.successors_per_action,
            part.rewards, part.durations, part.terminal_rewards, part.action_ptr,
            part.n_states, part.halo, p, self._facts.partition_ptr, coupled, ends, mass,
        )  # fmt: skip
        self._check_ranges(part, found)
        self._check_halo(p, found, coupled)
        if part.n_rows:
            self._check_rows(part, found, coupled, mass)
        self._check_boundary(part, coupled, ends)

    def _refuse(self, name: str, p: int, why: str) -> StoreError:
        return StoreError(f"{self._facts.name} contradicts itself: {name} of partition {p}: {why}; {REMEDY}")

    def _check_ranges(self, part: PartitionTable, found: Measured) -> None:
        """Ranges of rewards and durations."""
        p, facts = part.index, self._facts
        self._compare("reward_range", p, facts.reward_range, (found.least_reward, found.largest_reward))
        if part.durations.size:
            self._compare("duration_range", p, facts.duration_range, (found.least_duration, found.largest_duration))
        elif part.n_rows:
            self._compare("duration_range", p, facts.duration_range, (1.0, 1.0))

    def _compare(
        self, name: str, p: int, stored: FloatArray, found: tuple[float, float], tolerance: float = 0.0
    ) -> None:
        """Refuse a range that is not the one found, up to a share of it; one that is no number differs from all."""
        due = stored[p].tolist()
        if not all(a == b or abs(a - b) <= tolerance * abs(b) for a, b in zip(due, found, strict=True)):
            raise self._refuse(name, p, f"says {due}, the table gives {found}")

    def _check_halo(self, p: int, found: Measured, coupled: IntArray) -> None:
        """The halo has states of the partitions that the small arrays couple to this one, and of no others."""
        if found.halo_fault == 1:
            raise self._refuse("halo", p, "its states do not ascend")
        if found.halo_fault == 2:
            raise self._refuse("halo", p, "it holds states of the partition itself")
        if found.halo_fault:
            raise self._refuse(
                "coupling_partitions", p, f"says {coupled.tolist()[:20]}, its halo has states of other partitions"
            )

    def _check_rows(self, part: PartitionTable, found: Measured, coupled: IntArray, mass: FloatArray) -> None:
        """Row sums, and the mass into each partition."""
        p, longest = part.index, int(self._facts.max_successors[part.index])
        if found.wrong_row >= 0:
            raise self._refuse("probabilities", p, f"one in local row {found.wrong_row} is negative or not a number")
        apart = found.furthest_from_1
        if not apart <= ROW_SUM_TOLERANCE * 1.001 + longest * _SPACING_AT_1[part.probabilities.dtype.itemsize]:
            raise self._refuse("probabilities", p, f"a row sums to something that differs from 1 by {apart:.3g}")
        # Sums of one row in two orders differ by so much.
        rounding = 2 * (longest + 2) * _UNIT_ROUNDOFF
        sums = found.least_sum, found.largest_sum
        self._compare("row_sum_range", p, self._facts.row_sum_range, sums, rounding)
        coupling = self._facts.coupling
        stored = coupling.mass[coupling.ptr[p] : coupling.ptr[p + 1]]
        right = (stored >= mass * (1 - rounding)) & (stored <= mass * (1 + _ROUNDED_UP) + _COUPLING_EXCESS)
        if not right.all():
            i = int(np.argmin(right))
            sent = f"{float(stored[i])!r} into partition {coupled[i]}, its rows send {float(mass[i])!r}"
            raise self._refuse("coupling_mass", p, sent)

    def _check_boundary(self, part: PartitionTable, coupled: IntArray, ends: IntArray) -> None:
        """That states in the halos of other loaded partitions are marked as boundary; then the partition is checked."""
        from ooc_mdp.store.load_loops import mark_boundary

        p = part.index
        with self._lock:
            if self._checked[p]:
                return
            state, q = mark_boundary(
                self._boundary, part.first_state, part.boundary, part.halo, coupled, ends, self._checked
            )
            if state >= 0 and q < 0:
                raise self._refuse("boundary", p, f"state {state} is not in it, and another partition reads it")
            if state >= 0:
                raise self._refuse("boundary", q, f"state {state} is not in it, and partition {p} reads it")
            self._checked[p] = True
