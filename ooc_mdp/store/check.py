"""Checks that a store is what its format promises, one partition in memory at a time, and lists every fault.

Opening it has compared both hashes and all sizes; here every chunk's SHA-256 is compared, and its content judged.
Where it recomputes (row sums, ranges, coupling) it shares no code with the writer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ooc_mdp.errors import StoreError
from ooc_mdp.runtime.memory import resident_bytes
from ooc_mdp.runtime.memory_plan import PROCESS, SMALLER_PARTITIONS, MemoryPlan
from ooc_mdp.store.annotations import ANNOTATIONS
from ooc_mdp.store.check_memory import claims_bytes
from ooc_mdp.store.check_table import Finding, check_table
from ooc_mdp.store.files import check_files
from ooc_mdp.store.reader import Store
from ooc_mdp.store.state_set import StateSet

__all__ = ["Finding", "Report", "check_plan", "check_store"]

_CHUNK = 512
"""Bytes for the names and the entries of one chunk's file."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a validation found."""

    partitions: int
    """Partitions looked at."""
    findings: tuple[Finding, ...]
    """Everything that is wrong, in order of partitions; empty for a valid store."""

    @property
    def valid(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings


def check_store(
    store: Store,
    progress: Callable[[str, int, int | None], None] | None = None,
    note: Callable[[str], None] | None = None,
) -> Report:
    """Check every chunk of an open store.

    Parameters
    ----------
    progress : called with a step ("tables", "boundary"), partitions done, and partitions in all.
    note : called with the memory plan.

    Raises
    ------
    MemoryBudgetError : the plan is more than the RAM that is available.
    """
    store.load_code()
    plan = check_plan(store)
    plan.check_available(f"the check of {store.path}", SMALLER_PARTITIONS)
    if note is not None:
        note(plan.describe())
    findings = check_files(store) + _check_annotations(store)
    store = store.checking_sha256()
    n = store.n_partitions
    halos, originals = StateSet(store.n_states), StateSet(store.n_states)
    all_halos = True
    for p in range(n):
        faults, halo_known = check_table(store, p, halos, originals)
        findings += faults
        all_halos = all_halos and halo_known
        if progress is not None:
            progress("tables", p + 1, n)
    for p in range(n):
        findings += _check_boundary(store, p, halos, all_halos)
        if progress is not None:
            progress("boundary", p + 1, n)
    if "original_state" in store.fields and not originals.slice(0, store.n_states).all():
        missing = int(np.argmin(originals.slice(0, store.n_states)))
        findings.append(Finding("original_state", None, f"original state {missing} is in no partition"))
    findings = list(dict.fromkeys(findings))
    return Report(n, tuple(sorted(findings, key=lambda f: -1 if f.partition is None else f.partition)))


def _check_annotations(store: Store) -> list[Finding]:
    """Whether the labels and reward models beside the table are those that were written."""
    try:
        faults = store.annotations.faults()
    except StoreError as error:
        faults = [str(error)]
    return [Finding(ANNOTATIONS, None, fault) for fault in faults]


def check_plan(store: Store) -> MemoryPlan:
    """What a check holds: the largest partition with what is recomputed of it, and sets of states."""
    one = store.facts.partition_bytes + claims_bytes(store.facts)
    if "original_state" in store.fields or "action_labels" in store.fields:
        one += 8 * (np.diff(store.facts.partition_ptr) + store.facts.partition_rows)
    chunks = len(store.fields) * store.n_partitions
    sets = -(-store.n_states // 4) + (2 * store.n_states if "original_state" in store.fields else 0)
    return MemoryPlan(
        {
            PROCESS: resident_bytes(),
            "the largest partition": int(one.max()) + store.scratch_bytes,
            "sets of states": sets,
            "chunks": _CHUNK * chunks,
        },
        {},
    )


def _check_boundary(store: Store, p: int, halos: StateSet, all_halos: bool) -> list[Finding]:
    """Whether boundary marks the states in other partitions' halos, and, if all are known, no others."""
    try:
        boundary, _ = store.read_field("boundary", p)
    except StoreError as error:
        return [Finding("boundary", p, str(error))]
    expected = halos.slice(int(store.facts.partition_ptr[p]), int(store.facts.partition_ptr[p + 1]))
    wrong = np.flatnonzero(boundary != expected if all_halos else expected & ~boundary)
    if not wrong.size:
        return []
    return [Finding("boundary", p, f"wrong for {wrong.size} states, first local state {int(wrong[0])}")]
