"""Which files a store has too many or too few; their content is checked elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

from ooc_mdp.store.layout import GROUP_FILE, JOURNAL_FILE, SMALL_ARRAYS
from ooc_mdp.store.reader import Store
from ooc_mdp.store.validate_table import Finding

__all__ = ["unexpected_and_missing"]


def unexpected_and_missing(store: Store) -> list[Finding]:
    """A finding for each file that should not be there, and for each chunk that should and is not."""
    findings = []
    chunks = {str(p) for p in range(store.n_partitions)}
    for entry in sorted(os.scandir(store.path), key=lambda e: e.name):
        if entry.name in store.fields and entry.is_dir():
            findings += _surplus(Path(entry.path), entry.name, chunks)
        elif entry.name not in (GROUP_FILE, JOURNAL_FILE) and entry.name not in SMALL_ARRAYS:
            findings.append(Finding(entry.name, None, f"unexpected: {entry.path}"))
    for name in store.fields:
        for p in range(store.n_partitions):
            path = store.path / name / "c" / str(p) / "0"
            if not path.is_file():
                findings.append(Finding(name, p, f"missing: {path}"))
    for name in SMALL_ARRAYS:
        if not (store.path / name / GROUP_FILE).is_file():
            findings.append(Finding(name, None, f"missing: {store.path / name / GROUP_FILE}"))
    return findings


def _surplus(directory: Path, field: str, chunks: set[str]) -> list[Finding]:
    surplus = [e.path for e in os.scandir(directory) if e.name not in (GROUP_FILE, "c")]
    if (directory / "c").is_dir():
        for entry in os.scandir(directory / "c"):
            if entry.name not in chunks:
                surplus.append(entry.path)
            elif entry.is_dir():
                surplus += [e.path for e in os.scandir(entry.path) if e.name != "0"]
    return [Finding(field, None, f"unexpected: {path}") for path in sorted(surplus)]
