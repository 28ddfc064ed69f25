"""Opens a store: nothing of it is handed on before both hashes hold and all sizes fit together."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from ooc_mdp.errors import StoreError
from ooc_mdp.model.partition import Coupling
from ooc_mdp.store.attributes import flat_attributes
from ooc_mdp.store.check_sizes import size_error
from ooc_mdp.store.damage import REMEDY
from ooc_mdp.store.directory import Directory
from ooc_mdp.store.manifest import Manifest
from ooc_mdp.store.metadata import read_fields, read_metadata, read_small_arrays, why_no_store
from ooc_mdp.store.reader import Store

__all__ = ["open_store"]

_HELD = (
    "partition_ptr",
    "partition_rows",
    "partition_transitions",
    "partition_halo",
    "partition_bytes",
    "chunk_bytes",
    "reward_range",
    "duration_range",
    "row_sum_range",
    "max_successors",
)
"""Small arrays that are fields of a Store."""


def open_store(path: str | PathLike[str]) -> Store:
    """Open a store for reading.

    Raises
    ------
    StoreError : the path is missing, half-written, of another format version, damaged or no store at all.
    """
    root = Path(path)
    try:
        directory = Directory(root)
    except OSError as error:
        if root.is_dir():
            raise StoreError(f"{root} cannot be opened: {error.strerror}; check its permissions") from error
        raise StoreError(why_no_store(root)) from error
    attributes = read_metadata(root, directory.fd)
    table = attributes["table"]
    fields = read_fields(root, table)
    small = read_small_arrays(root, attributes, directory.fd)
    manifest = Manifest(tuple(fields), *(small[f"chunk_{name}"] for name in ("lengths", "crc32c", "sha256")))
    error_found = size_error(table, small, fields, manifest)
    if error_found is not None:
        raise StoreError(f"{root} {error_found}; {REMEDY}")
    return Store(
        directory=directory,
        attributes=flat_attributes(attributes),
        fields=fields,
        coupling=Coupling(*(small[f"coupling_{name}"] for name in ("ptr", "partitions", "mass"))),
        manifest=manifest,
        checks_sha256=False,
        **{name: small[name] for name in _HELD},
    )
