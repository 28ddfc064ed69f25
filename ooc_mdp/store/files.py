"""Which files a store has too many or too few, and whether what other Zarr readers read is true.

The content of chunks is checked elsewhere.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from ooc_mdp.store.check_table import Finding
from ooc_mdp.store.layout import GROUP_FILE, JOURNAL_FILE, SMALL_ARRAYS, small_array_shape
from ooc_mdp.store.mark import MARK_FILE
from ooc_mdp.store.reader import Store
from ooc_mdp.store.regular_file import read_metadata_file

__all__ = ["check_files"]


def check_files(store: Store) -> list[Finding]:
    """A finding for each file that should not be there, and for each chunk that should and is not."""
    findings = []
    chunks = {str(p) for p in range(store.n_partitions)}
    for entry in sorted(os.scandir(store.path), key=lambda e: e.name):
        if entry.name in store.fields and entry.is_dir():
            findings += _surplus(Path(entry.path), entry.name, chunks)
        elif entry.name not in (GROUP_FILE, JOURNAL_FILE, MARK_FILE) and entry.name not in SMALL_ARRAYS:
            findings.append(Finding(entry.name, None, f"unexpected: {entry.path}"))
    for name in store.fields:
        for p in range(store.n_partitions):
            path = store.path / name / "c" / str(p) / "0"
            if not path.is_file():
                findings.append(Finding(name, p, f"missing: {path}"))
    for name, meta in store.fields.items():
        shape = [store.n_partitions, meta.max_len]
        codecs = ["bytes", "blosc", "crc32c"]
        findings += _check_array(store.path, name, shape, [1, meta.max_len], meta.stored.name, codecs)
    for name, (dtype, _) in SMALL_ARRAYS.items():
        n_entries = store.coupling.partitions.size
        shape = list(small_array_shape(name, store.n_partitions, n_entries, len(store.fields)))
        findings += _check_array(store.path, name, shape, shape, dtype, ["bytes", "crc32c"])
    return findings


def _check_array(
    root: Path, name: str, shape: list[int], chunks: list[int], dtype: str, codecs: list[str]
) -> list[Finding]:
    """Whether an array's zarr.json, which this program does not read otherwise, describes the array."""
    path = root / name / GROUP_FILE
    try:
        document = json.loads(read_metadata_file(path))
        grid = document["chunk_grid"]["configuration"]["chunk_shape"]
        found = document["shape"], grid, document["data_type"], [codec["name"] for codec in document["codecs"]]
    except FileNotFoundError:
        return [Finding(name, None, f"missing: {path}")]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        return [Finding(name, None, f"{path} is no array metadata: {error!r}")]
    if found != (shape, chunks, dtype, codecs):
        return [Finding(name, None, f"{path} describes {found}, the array is {(shape, chunks, dtype, codecs)}")]
    return []


def _surplus(directory: Path, field: str, chunks: set[str]) -> list[Finding]:
    surplus = [e.path for e in os.scandir(directory) if e.name not in (GROUP_FILE, "c")]
    if (directory / "c").is_dir():
        for entry in os.scandir(directory / "c"):
            if entry.name not in chunks:
                surplus.append(entry.path)
            elif entry.is_dir():
                surplus += [e.path for e in os.scandir(entry.path) if e.name != "0"]
    return [Finding(field, None, f"unexpected: {path}") for path in sorted(surplus)]
