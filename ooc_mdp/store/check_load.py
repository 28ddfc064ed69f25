"""Compares a partition with what the small arrays say of it, the first time that it is loaded.

Bounds are proved from reward and duration ranges, row sums, coupling and boundary, none of which a load needs in order
to decode a partition. A program that can seal a store can seal false ones; they are found in the partitions that a
solve loads. Later loads have the checksums of the first one. `ooc_mdp.store.check_table` reports every fault; here the
first one ends the load.
"""

from __future__ import annotations

import threading
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import StoreError
from ooc_mdp.model.mdp import ROW_SUM_TOLERANCE, FloatArray, IntArray
from ooc_mdp.model.partition import PartitionTable
from ooc_mdp.model.table_source import TableSource
from ooc_mdp.store.damage import REMEDY
from ooc_mdp.store.encodings import RowLayout
from ooc_mdp.store.layout import PartitionSizes

__all__ = ["LoadCheck", "SizedTable", "check_bytes", "check_pointers"]

_UNIT_ROUNDOFF = 2.0**-53
_ROUNDED_UP = 1e-12
"""Share by which the writer rounds coupling masses up."""
_COUPLING_EXCESS = 1e-9


def check_bytes(n_states: int) -> int:
    """Bytes that the marks of a :class:`LoadCheck` take."""
    return -(-n_states // 8)


def check_pointers(
    store: SizedTable, p: int, action_ptr: npt.NDArray[np.uint32], successor_ptr: npt.NDArray[np.uint32]
) -> None:
    """Refuse pointers that leave the arrays, and rows longer than the store says: loops follow them."""
    actions, width = (int(store.attributes[name]) for name in ("actions_per_state", "successors_per_action"))
    error = RowLayout(store.sizes(p), actions, width, action_ptr, successor_ptr).fault()
    if error is None and not width and successor_ptr.size > 1:
        counts = successor_ptr[1:] - successor_ptr[:-1]
        longest = store.max_successors[p]
        if counts.max() != longest:
            error = f"rows have {counts.min()} to {counts.max()} transitions, at most {longest} are due"
    if error is not None:
        raise StoreError(f"the rows of partition {p} of {store.name} cannot be followed: {error}; {REMEDY}")


class SizedTable(TableSource, Protocol):
    """A table whose partitions' sizes are known."""

    def sizes(self, p: int) -> PartitionSizes:
        """How many of everything partition p has."""
        ...


class LoadCheck:
    """What was found of the partitions of one table so far; safe to use from many threads."""

    def __init__(self, table: TableSource) -> None:
        self._table = table
        self._checked = np.zeros(table.n_partitions, np.bool_)
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        """What another process may have: the table, of which it has loaded nothing."""
        return {"_table": self._table, "_checked": np.zeros_like(self._checked)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = threading.Lock()

    @cached_property
    def _boundary(self) -> npt.NDArray[np.uint8]:
        """A bit a state, set where `boundary` of a loaded partition is, and in the halos of loaded partitions."""
        return np.zeros(check_bytes(self._table.n_states), np.uint8)

    def check(self, part: PartitionTable) -> None:
        """Compare a partition, unless that was done before.

        Raises
        ------
        StoreError : what the table says of the partition is not what its arrays give.
        """
        p = part.index
        if self._checked[p]:
            return
        self._check_values(part)
        coupled, ends = self._check_halo(part)
        if part.n_rows:
            self._check_rows(part, coupled, ends)
        self._check_boundary(part, coupled, ends)

    def _refuse(self, name: str, p: int, why: str) -> StoreError:
        return StoreError(f"{self._table.name} contradicts itself: {name} of partition {p}: {why}; {REMEDY}")

    def _check_values(self, part: PartitionTable) -> None:
        """Ranges of rewards and durations."""
        terminal = np.empty(0, np.bool_) if part.actions_per_state else part.action_ptr[1:] == part.action_ptr[:-1]
        paid = part.terminal_rewards[terminal] if part.terminal_rewards.size and terminal.size else np.empty(0)
        if terminal.any() and not paid.size:
            paid = np.zeros(1)
        found = [(a.min(), a.max()) for a in (part.rewards, paid) if a.size]
        rewards = float(np.min([low for low, _ in found])), float(np.max([high for _, high in found]))
        self._compare("reward_range", part.index, self._table.reward_range, rewards)
        if part.durations.size:
            durations = float(part.durations.min()), float(part.durations.max())
            self._compare("duration_range", part.index, self._table.duration_range, durations)
        elif not (self._table.duration_range[part.index] == 1.0).all() and part.n_rows:
            self._compare("duration_range", part.index, self._table.duration_range, (1.0, 1.0))

    def _compare(
        self, name: str, p: int, stored: FloatArray, found: tuple[float, float], tolerance: float = 0.0
    ) -> None:
        """Refuse a range that is not the one found, up to a share of it; one that is no number differs from all."""
        due = stored[p]
        if not all(a == b or abs(a - b) <= tolerance * abs(b) for a, b in zip(due.tolist(), found, strict=True)):
            raise self._refuse(name, p, f"says {due.tolist()}, the table gives {found}")

    def _check_halo(self, part: PartitionTable) -> tuple[IntArray, IntArray]:
        """The partitions that the small arrays couple to this one, and where in the halo the states of each are.

        Returns
        -------
        int64 [k]; int64 [k, 2], (0, 0) for the partition itself
        """
        p, halo, coupling, ptr = part.index, part.halo, self._table.coupling, self._table.partition_ptr
        if not (halo[1:] > halo[:-1]).all():
            raise self._refuse("halo", p, "its states do not ascend")
        coupled = coupling.partitions[coupling.ptr[p] : coupling.ptr[p + 1]]
        ends = np.searchsorted(halo, np.stack([ptr[coupled], ptr[coupled + 1]], axis=1))
        counts = ends[:, 1] - ends[:, 0]
        own = coupled == p
        if counts[own].any():
            raise self._refuse("halo", p, "it holds states of the partition itself")
        if counts.sum() != halo.size or not (counts[~own] > 0).all():
            raise self._refuse(
                "coupling_partitions", p, f"says {coupled.tolist()[:20]}, its halo has states of other partitions"
            )
        ends[own] = 0
        return coupled, ends

    def _check_rows(self, part: PartitionTable, coupled: IntArray, ends: IntArray) -> None:
        """Row sums, and the mass into each partition."""
        from ooc_mdp.store.load_loops import measure_rows

        p, longest = part.index, int(self._table.max_successors[part.index])
        own = int(np.searchsorted(coupled, p))
        slots = np.repeat(np.arange(coupled.size, dtype=np.int32), ends[:, 1] - ends[:, 0])
        mass = np.zeros(coupled.size)
        least, largest, apart, wrong = measure_rows(
            part.successors, part.probabilities, part.successor_ptr, part.successors_per_action, part.durations,
            part.n_states, own, slots, mass, np.zeros(coupled.size),
        )  # fmt: skip
        if wrong >= 0:
            raise self._refuse("probabilities", p, f"one in local row {wrong} is negative or not a number")
        tolerance = ROW_SUM_TOLERANCE * 1.001 + longest * float(np.finfo(part.probabilities.dtype).eps)
        if not apart <= tolerance:
            raise self._refuse("probabilities", p, f"a row sums to something that differs from 1 by {apart:.3g}")
        # Sums of one row in two orders differ by so much.
        rounding = 2 * (longest + 2) * _UNIT_ROUNDOFF
        sums = (least, largest) if least <= largest else (1.0, 1.0)
        self._compare("row_sum_range", p, self._table.row_sum_range, sums, rounding)
        coupling = self._table.coupling
        stored = coupling.mass[coupling.ptr[p] : coupling.ptr[p + 1]]
        low, high = mass * (1 - rounding), mass * (1 + _ROUNDED_UP) + _COUPLING_EXCESS
        wrong_mass = ~((stored >= low) & (stored <= high))
        if wrong_mass.any():
            i = int(np.argmax(wrong_mass))
            sent = f"{float(stored[i])!r} into partition {coupled[i]}, its rows send {float(mass[i])!r}"
            raise self._refuse("coupling_mass", p, sent)

    def _check_boundary(self, part: PartitionTable, coupled: IntArray, ends: IntArray) -> None:
        """That states in the halos of other loaded partitions are marked as boundary; then the partition is checked."""
        from ooc_mdp.store.load_loops import mark_halo, mark_own

        p = part.index
        with self._lock:
            if self._checked[p]:
                return
            state = mark_own(self._boundary, part.first_state, part.boundary)
            if state >= 0:
                raise self._refuse("boundary", p, f"state {state} is not in it, and another partition reads it")
            for q, (begin, end) in zip(coupled.tolist(), ends.tolist(), strict=True):
                state = mark_halo(self._boundary, part.halo[begin:end], bool(self._checked[q]))
                if state >= 0:
                    raise self._refuse("boundary", q, f"state {state} is not in it, and partition {p} reads it")
            self._checked[p] = True
