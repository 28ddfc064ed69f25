"""Which files a store has too many or too few, and whether what other Zarr readers read is true.

The content of chunks is checked elsewhere.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from ooc_mdp.store.annotations import ANNOTATIONS
from ooc_mdp.store.check_table import Finding
from ooc_mdp.store.layout import GROUP_FILE, JOURNAL_FILE, SMALL_ARRAYS, small_array_shape
from ooc_mdp.store.mark import MARK_FILE
from ooc_mdp.store.reader import Store
from ooc_mdp.store.regular_file import read_metadata_file

__all__ = ["check_files"]

_FIELD_CODECS = ["bytes", "blosc", "crc32c"]
_SMALL_CODECS = ["bytes", "crc32c"]
_Described = tuple[list[int], list[int], str, list[str]]
"""Shape, shape of a chunk, type and codecs."""


def check_files(store: Store) -> list[Finding]:
    """A finding for each file that should not be there, and for each chunk that should and is not."""
    findings = []
    expected = {name: _chunks(store, name) for name in store.fields}
    for entry in sorted(os.scandir(store.path), key=lambda e: e.name):
        if entry.name in store.fields and entry.is_dir():
            findings += _surplus(Path(entry.path), entry.name, expected[entry.name])
        elif entry.name not in (GROUP_FILE, JOURNAL_FILE, MARK_FILE, ANNOTATIONS) and entry.name not in SMALL_ARRAYS:
            findings.append(Finding(entry.name, None, f"unexpected: {entry.path}"))
    for name, arrays in expected.items():
        for length, chunks in arrays.items():
            for chunk, p in chunks.items():
                path = store.path / name / length / chunk
                if not path.is_file():
                    findings.append(Finding(name, p, f"missing: {path}"))
            shape, dtype = [store.n_partitions, int(length)], store.fields[name].stored.name
            findings += _check_array(store.path / name / length, name, (shape, [1, int(length)], dtype, _FIELD_CODECS))
    for name, (dtype, _) in SMALL_ARRAYS.items():
        n_entries = store.facts.coupling.partitions.size
        shape = list(small_array_shape(name, store.n_partitions, n_entries, len(store.fields)))
        findings += _check_array(store.path / name, name, (shape, shape, dtype, _SMALL_CODECS))
    return findings


def _chunks(store: Store, name: str) -> dict[str, dict[str, int]]:
    """The partition of each of a field's chunks, by array and file."""
    arrays: dict[str, dict[str, int]] = {}
    for p in range(store.n_partitions):
        _, length, chunk = store.chunk_name(name, p).split("/")
        arrays.setdefault(length, {})[chunk] = p
    return arrays


def _check_array(array: Path, name: str, described: _Described) -> list[Finding]:
    """Whether an array's zarr.json, which this program does not read otherwise, describes the array."""
    path = array / GROUP_FILE
    try:
        document = json.loads(read_metadata_file(path))
        grid = document["chunk_grid"]["configuration"]["chunk_shape"]
        found = document["shape"], grid, document["data_type"], [codec["name"] for codec in document["codecs"]]
    except FileNotFoundError:
        return [Finding(name, None, f"missing: {path}")]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        return [Finding(name, None, f"{path} is no array metadata: {error!r}")]
    if found != described:
        return [Finding(name, None, f"{path} describes {found}, the array is {described}")]
    return []


def _surplus(directory: Path, field: str, arrays: Mapping[str, Mapping[str, int]]) -> list[Finding]:
    surplus = []
    for entry in os.scandir(directory):
        if entry.name in arrays and entry.is_dir():
            expected = {GROUP_FILE, *arrays[entry.name]}
            surplus += [e.path for e in os.scandir(entry.path) if e.name not in expected]
        elif entry.name != GROUP_FILE:
            surplus.append(entry.path)
    return [Finding(field, None, f"unexpected: {path}") for path in sorted(surplus)]
