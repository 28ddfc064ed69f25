"""Checks that a store is what its format promises, one partition in memory at a time, and lists every fault.

Where it recomputes (row sums, ranges, coupling) it shares no code with the writer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ooc_mdp.errors import StoreError
from ooc_mdp.store.chunks import checksum_of
from ooc_mdp.store.files import unexpected_and_missing
from ooc_mdp.store.fingerprint import fingerprint_of
from ooc_mdp.store.layout import chunk_path
from ooc_mdp.store.numbering import GridNumbering
from ooc_mdp.store.reader import Store
from ooc_mdp.store.state_bits import StateBits
from ooc_mdp.store.validate_table import Finding, check_table

__all__ = ["Finding", "Report", "validate_store"]


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


def validate_store(store: Store, progress: Callable[[str, int, int | None], None] | None = None) -> Report:
    """Check every chunk of an open store.

    Parameters
    ----------
    progress : called with a step ("tables", "boundary"), partitions done, and partitions in all.
    """
    findings = [*unexpected_and_missing(store), *_check_sizes(store)]
    if any(f.field == "partition_ptr" for f in findings):
        return Report(0, tuple(findings))  # nothing else can be judged without it
    n = store.n_partitions
    halos, originals = StateBits(store.n_states), StateBits(store.n_states)
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
    if not any(f.field in store.fields for f in findings):  # a damaged chunk has another checksum
        findings += _check_fingerprint(store)
    findings = list(dict.fromkeys(findings))
    return Report(n, tuple(sorted(findings, key=lambda f: -1 if f.partition is None else f.partition)))


def _check_sizes(store: Store) -> list[Finding]:
    """Whether sizes agree with each other and with the attributes."""
    findings = []
    ptr = store.partition_ptr
    if ptr[0] != 0 or (np.diff(ptr) <= 0).any():
        findings.append(Finding("partition_ptr", None, "does not rise from 0 with at least one state each"))
    for name, held in (
        ("n_states", store.n_states),
        ("n_rows", store.n_rows),
        ("n_transitions", store.n_transitions),
    ):
        if store.attributes[name] != held:
            message = f"the attribute {name} is {store.attributes[name]}, the partitions hold {held}"
            findings.append(Finding("partition_ptr" if name == "n_states" else name, None, message))
    coupling = store.coupling.ptr
    if coupling[0] != 0 or coupling[-1] != store.coupling.partitions.size or (np.diff(coupling) < 1).any():
        findings.append(Finding("coupling_ptr", None, "does not rise from 0 to the number of entries"))
    order = store.attributes["state_order"]
    if order["kind"] == "grid" and not np.array_equal(GridNumbering.from_order(order).partition_ptr, ptr):
        findings.append(Finding("state_order", None, "the blocks of the grid are not the partitions"))
    return findings


def _check_fingerprint(store: Store) -> list[Finding]:
    """Whether sense, type, partitions and the chunks' checksums are those that were hashed when they were written."""
    checksums = (
        (name, [checksum_of(chunk_path(store.path, name, p, 0)) for p in range(store.n_partitions)])
        for name in store.fields
    )
    found = fingerprint_of(store.sense, str(store.attributes["dtype"]), store.partition_ptr, checksums)
    if found == store.fingerprint:
        return []
    message = f"says {store.fingerprint}, but sense, dtype, partitions and chunks give {found}: one of them was changed"
    return [Finding("fingerprint", None, message)]


def _check_boundary(store: Store, p: int, halos: StateBits, all_halos: bool) -> list[Finding]:
    """Whether boundary marks the states in other partitions' halos, and, if all are known, no others."""
    try:
        boundary, _ = store.read_field("boundary", p)
    except StoreError as error:
        return [Finding("boundary", p, str(error))]
    expected = halos.slice(int(store.partition_ptr[p]), int(store.partition_ptr[p + 1]))
    wrong = np.flatnonzero(boundary != expected if all_halos else expected & ~boundary)
    if not wrong.size:
        return []
    return [Finding("boundary", p, f"wrong for {wrong.size} states, first local state {int(wrong[0])}")]
