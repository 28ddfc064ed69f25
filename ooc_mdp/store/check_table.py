"""Checks one partition's table against what the store says of it; every fault is a finding, none raises."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import StoreError
from ooc_mdp.model.mdp import ROW_SUM_TOLERANCE, FloatArray, IntArray
from ooc_mdp.model.partition import PartitionTable
from ooc_mdp.model.state_order import partition_of
from ooc_mdp.model.table import TableFacts
from ooc_mdp.store.layout import FIELDS, PartitionSizes
from ooc_mdp.store.state_set import StateSet

if TYPE_CHECKING:
    from ooc_mdp.store.reader import Store

__all__ = ["SLICE", "Finding", "check_claims", "check_table", "sums_of_rows"]

Array = npt.NDArray[Any]

_COUPLING_EXCESS = 1e-9
_SUM_ERROR = 1e-12
SLICE = 1 << 22
"""Sums of (row, partition) held at once while the coupling is recomputed."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong."""

    field: str
    partition: int | None
    """None where it concerns the whole store."""
    message: str

    def __str__(self) -> str:
        where = self.field if self.partition is None else f"{self.field} of partition {self.partition}"
        return f"{where}: {self.message}"


def check_table(store: Store, p: int, halos: StateSet, originals: StateSet) -> tuple[list[Finding], bool]:
    """Findings of partition p, and whether its halo is known; adds halo and original states to the sets."""
    findings: list[Finding] = []
    arrays: dict[str, Array] = {}
    rows_known = True  # else nothing that is encoded by rows can be decoded
    for name, meta in store.fields.items():
        if meta.encoding is not None and not rows_known:
            continue
        try:
            arrays[name], _ = store.read_field(name, p)
            faults = _check_pointer(name, p, arrays[name], store.sizes(p)) if name.endswith("_ptr") else []
        except StoreError as error:
            faults = [Finding(name, p, str(error))]
        findings += faults
        rows_known = rows_known and not (faults and name.endswith("_ptr"))
    if findings:
        if "halo" not in arrays:
            return findings, False
        faults = _check_halo(store, p, arrays["halo"], halos)
        return [*findings, *faults], not faults
    table = _Table(store.facts, store.sizes(p), p, arrays)
    faults = _check_halo(store, p, arrays["halo"], halos)
    table.findings += faults
    if table.check_pointers():
        table.check_rows()
        table.check_ranges()
        table.check_coupling()
    table.check_states(originals)
    return table.findings, not faults


def check_claims(facts: TableFacts, sizes: PartitionSizes, table: PartitionTable) -> list[Finding]:
    """Findings of a table that was read: what the store says of its rows, ranges and coupling, recomputed."""
    arrays: dict[str, Array] = {name: getattr(table, name) for name in facts.dtypes if FIELDS[name].read}
    checked = _Table(facts, sizes, table.index, arrays)
    if checked.check_pointers():
        checked.check_rows()
        checked.check_ranges()
        checked.check_coupling()
    return checked.findings


def sums_of_rows(probabilities: Array, width: int, successor_ptr: IntArray) -> FloatArray:
    """float64 [m]; the sum of each row.

    Parameters
    ----------
    width : transitions of every row; 0 where rows differ, as the pointer says.
    """
    if not width:
        return np.add.reduceat(probabilities, successor_ptr[:-1], dtype=np.float64)
    total: FloatArray = np.zeros(probabilities.size // width)
    for column in probabilities.reshape(-1, width).T:  # NumPy sums along short rows ten times as slowly
        np.add(total, column, out=total)
    return total


def _check_pointer(name: str, p: int, ptr: Array, sizes: PartitionSizes) -> list[Finding]:
    """Findings of a pointer array; rows hold at least one transition, states may have no rows."""
    end, least = (sizes.rows, 0) if name == "action_ptr" else (sizes.transitions, 1)
    if ptr[0] != 0 or ptr[-1] != end or (np.diff(ptr.astype(np.int64)) < least).any():
        return [Finding(name, p, f"does not rise from 0 to {end} by at least {least} each")]
    return []


def _check_halo(store: Store, p: int, stored: Array, halos: StateSet) -> list[Finding]:
    """Findings of a halo, which joins the set if there are none."""
    first, last = int(store.facts.partition_ptr[p]), int(store.facts.partition_ptr[p + 1])
    halo = stored.astype(np.int64)
    if halo.size and (halo[0] < 0 or halo[-1] >= store.n_states or (np.diff(halo) <= 0).any()):
        return [Finding("halo", p, f"not ascending without repetition below {store.n_states}")]
    if ((halo >= first) & (halo < last)).any():
        return [Finding("halo", p, "holds states of the partition itself")]
    halos.mark(halo)
    return []


class _Table:
    """Partition p's arrays, pointers filled in where the store is uniform."""

    def __init__(self, facts: TableFacts, sizes: PartitionSizes, p: int, arrays: dict[str, Array]) -> None:
        self.facts, self.sizes, self.p, self.arrays = facts, sizes, p, arrays
        self.findings: list[Finding] = []
        self.halo: IntArray = arrays["halo"].astype(np.int64)
        self.ends: npt.NDArray[np.bool_] = np.isinf(arrays.get("durations", np.zeros(self.sizes.rows)))
        """bool [m]; rows that end the process, which neither row_sum_range nor the coupling counts."""
        self.action_ptr = self._pointer("action_ptr", "actions_per_state", self.sizes.states)
        self.successor_ptr = self._pointer("successor_ptr", "successors_per_action", self.sizes.rows)

    @cached_property
    def sums(self) -> FloatArray:
        """float64 [m]; of the rows' probabilities."""
        width = int(self.facts.attributes["successors_per_action"])
        return sums_of_rows(self.arrays["probabilities"], width, self.successor_ptr)

    def add_finding(self, field: str, message: str) -> None:
        self.findings.append(Finding(field, self.p, message))

    def check_pointers(self) -> bool:
        """Whether the rows can be judged at all."""
        before = len(self.findings)
        for name, ptr in (("action_ptr", self.action_ptr), ("successor_ptr", self.successor_ptr)):
            self.findings += _check_pointer(name, self.p, ptr, self.sizes)
        successors = self.arrays["successors"]
        limit = self.sizes.states + self.sizes.halo
        if successors.size and successors.max() >= limit:
            self.add_finding("successors", f"local successor {successors.max()} is not below {limit}")
        return len(self.findings) == before

    def check_rows(self) -> None:
        probabilities = self.arrays["probabilities"]
        if not ((probabilities >= 0) & (probabilities <= 1 + ROW_SUM_TOLERANCE)).all():
            self.add_finding("probabilities", "not all between 0 and 1")
            return
        if not self.sizes.rows:
            return
        sums = self.sums
        longest = int(np.diff(self.successor_ptr).max())
        tolerance = ROW_SUM_TOLERANCE * 1.001 + longest * float(np.finfo(probabilities.dtype).eps)
        worst = int(np.argmax(np.abs(sums - 1)))
        if abs(sums[worst] - 1) > tolerance:
            self.add_finding("probabilities", f"local row {worst} sums to {float(sums[worst])!r}")
        going_on = sums[~self.ends] if not self.ends.all() else np.ones(1)
        self._compare("row_sum_range", (float(going_on.min()), float(going_on.max())), _SUM_ERROR * longest)
        self._compare("max_successors", longest, 0)

    def check_ranges(self) -> None:
        rewards = self.arrays["rewards"].astype(np.float64)
        durations = self.arrays.get("durations", np.empty(0))
        if not np.isfinite(rewards).all():
            self.add_finding("rewards", "not all finite")
            return
        if not (durations > 0).all():
            self.add_finding("durations", "not all positive")
        terminal = np.diff(self.action_ptr) == 0
        paid = self.arrays.get("terminal_rewards", np.zeros(self.sizes.states))[terminal]
        every = np.concatenate([rewards, paid])
        self._compare("reward_range", (float(every.min()), float(every.max())), 0)
        if durations.size:
            self._compare("duration_range", (float(durations.min()), float(durations.max())), 0)
        decoded = sum(
            self.sizes.of(FIELDS[name].length) * (8 if name == "halo" else values.itemsize)
            for name, values in self.arrays.items()
            if FIELDS[name].read
        )
        self._compare("partition_bytes", decoded, 0)

    def check_coupling(self) -> None:
        coupling = self.facts.coupling
        entries = slice(int(coupling.ptr[self.p]), int(coupling.ptr[self.p + 1]))
        partitions, stored = coupling.partitions[entries], coupling.mass[entries]
        owners = partition_of(self.facts.partition_ptr, self.halo)
        expected = np.union1d(owners, [self.p])
        if not np.array_equal(partitions, expected):
            self.add_finding("coupling_partitions", f"{partitions.tolist()}, but rows reach {expected.tolist()}")
            return
        mass = self._masses(np.searchsorted(expected, owners), int(np.searchsorted(expected, self.p)), expected.size)
        low, high = stored - mass, stored - mass * (1 + _SUM_ERROR)
        if (low < -_SUM_ERROR / 10).any() or (high > _COUPLING_EXCESS).any():
            q = int(np.argmax(np.abs(low)))
            stored_mass, found = float(stored[q]), float(mass[q])
            self.add_finding("coupling_mass", f"{stored_mass!r} into partition {expected[q]}, its rows send {found!r}")

    def check_states(self, originals: StateSet) -> None:
        for name in ("terminal_rewards", "initial_values"):
            if name in self.arrays and not np.isfinite(self.arrays[name]).all():
                self.add_finding(name, "not all finite")
        original = self.arrays.get("original_state")
        if original is not None:
            if original[0] < 0 or original[-1] >= self.facts.n_states or (np.diff(original) <= 0).any():
                self.add_finding("original_state", f"not ascending below {self.facts.n_states}")
            else:
                originals.mark(original)

    def _pointer(self, name: str, uniform: str, count: int) -> IntArray:
        if name in self.arrays:
            return self.arrays[name].astype(np.int64)
        return np.arange(count + 1) * int(self.facts.attributes[uniform])

    def _compare(self, name: str, found: float | tuple[float, float], tolerance: float) -> None:
        stored = getattr(self.facts, name)[self.p]
        with np.errstate(invalid="ignore"):  # inf - inf, where both are equal
            near = np.abs(stored - np.asarray(found)) <= tolerance
        if not (near | (stored == np.asarray(found))).all():
            self.add_finding(name, f"says {stored.tolist()}, the table gives {found}")

    def _masses(self, halo_owner: IntArray, own: int, n_partitions: int) -> FloatArray:
        """Largest mass of one row into each partition of the coupling row."""
        successors, probabilities = self.arrays["successors"], self.arrays["probabilities"]
        target = np.concatenate([np.full(self.sizes.states, own, np.int64), halo_owner])
        mass = np.zeros(n_partitions)
        step = max(SLICE // n_partitions, 1)
        for row in range(0, self.sizes.rows, step):
            rows = slice(row, min(row + step, self.sizes.rows))
            leaving = self._leaving(rows)
            staying = ~self.ends[rows]
            staying[leaving - row] = False
            mass[own] = max(mass[own], self.sums[rows].max(initial=0.0, where=staying))
            if leaving.size:
                begin, end = self.successor_ptr[leaving], self.successor_ptr[leaving + 1]
                of = np.repeat(np.arange(leaving.size), end - begin)
                place = np.arange(of.size) + np.repeat(begin - np.cumsum(end - begin) + (end - begin), end - begin)
                key = of * n_partitions + target[successors[place]]
                sums = np.bincount(key, probabilities[place].astype(np.float64), leaving.size * n_partitions)
                going_on = sums.reshape(-1, n_partitions)[~self.ends[leaving]]
                np.maximum(mass, going_on.max(axis=0, initial=0.0), out=mass)
        return mass

    def _leaving(self, rows: slice) -> IntArray:
        """Those of the rows that reach another partition: of a grid only those at the edge."""
        first, last = int(self.successor_ptr[rows.start]), int(self.successor_ptr[rows.stop])
        outside = np.flatnonzero(self.arrays["successors"][first:last] >= self.sizes.states)
        return np.unique(np.searchsorted(self.successor_ptr, first + outside, side="right") - 1)
