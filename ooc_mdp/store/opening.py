"""Opens a store: nothing of it is handed on before both hashes hold and all sizes fit together."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import StoreError
from ooc_mdp.model.partition import Coupling
from ooc_mdp.model.table import TableFacts
from ooc_mdp.store.attributes import flat_attributes
from ooc_mdp.store.check_sizes import size_error
from ooc_mdp.store.damage import REMEDY
from ooc_mdp.store.directory import Directory
from ooc_mdp.store.encodings import WITHOUT_LAST
from ooc_mdp.store.frames import frame_buffer_bytes, stored_fields
from ooc_mdp.store.load_sizes import largest_chunks, largest_sizes
from ooc_mdp.store.manifest import Manifest
from ooc_mdp.store.metadata import ArrayMetadata, read_fields, read_metadata, read_small_arrays, why_no_store
from ooc_mdp.store.reader import Store

__all__ = ["open_store"]

_HELD = (
    "partition_ptr",
    "partition_rows",
    "partition_transitions",
    "partition_halo",
    "partition_bytes",
    "reward_range",
    "duration_range",
    "row_sum_range",
    "max_successors",
)
"""Small arrays that are facts of the table."""


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
        facts=_facts(root, flat_attributes(attributes), fields, small),
        fields=fields,
        chunk_bytes=small["chunk_bytes"],
        manifest=manifest,
    )


def _facts(
    root: Path, attributes: dict[str, Any], fields: dict[str, ArrayMetadata], small: dict[str, npt.NDArray[Any]]
) -> TableFacts:
    """What a store says of its table, from metadata that has been checked."""
    held = {name: small[name] for name in _HELD}
    rows, transitions = held["partition_rows"], held["partition_transitions"]
    largest = largest_sizes(held["partition_ptr"], rows, transitions, held["partition_halo"])
    stored = stored_fields(fields, largest_chunks(fields, largest, rows, transitions), largest)
    durations = fields.get("durations")
    exact = None
    if durations is not None:
        exact = np.dtype(np.float32) if durations.encoding == "float32-delta2" else durations.stored
    return TableFacts(
        name=str(root),
        kind="store",
        fingerprint=str(attributes["fingerprint"]),
        attributes=attributes,
        dtypes={name: field.dtype for name, field in fields.items()},
        sense=str(attributes["sense"]),
        coupling=Coupling(*(small[f"coupling_{name}"] for name in ("ptr", "partitions", "mass"))),
        dyadic_probabilities=fields["probabilities"].encoding in WITHOUT_LAST,
        duration_dtype=exact,
        stored_fields=stored,
        frame_buffer_bytes=frame_buffer_bytes(stored, small["chunk_bytes"]),
        **held,
    )
