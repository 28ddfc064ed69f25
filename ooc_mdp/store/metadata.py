"""Reads a store's zarr.json and small arrays, and refuses what is not a whole store of this format.

Only the group's zarr.json is read: its attributes say of every field what the chunks hold. Attributes and small arrays
count once both hashes hold (`ooc_mdp.store.manifest`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import StoreError
from ooc_mdp.quoting import quote
from ooc_mdp.store.attributes import check_attributes
from ooc_mdp.store.chunk_file import CorruptChunkError, read_uncompressed
from ooc_mdp.store.layout import (
    FIELDS,
    FORMAT,
    FORMAT_VERSION,
    GROUP_FILE,
    JOURNAL_FILE,
    REWARDS_FORMAT,
    SMALL_ARRAYS,
    VIRTUAL_FORMAT,
    Field,
    small_array_shape,
    small_chunk_name,
)
from ooc_mdp.store.manifest import table_fingerprint
from ooc_mdp.store.mark import ForeignPathError, is_leftover
from ooc_mdp.store.regular_file import read_metadata_file
from ooc_mdp.store.seal import holds_digest
from ooc_mdp.store.sealed_file import SealError

__all__ = [
    "PARTIAL_SUFFIX",
    "PREVIOUS_SUFFIX",
    "ArrayMetadata",
    "check_is_store",
    "read_fields",
    "read_metadata",
    "read_small_arrays",
    "why_no_store",
]

PARTIAL_SUFFIX = ".partial"
PREVIOUS_SUFFIX = ".previous"
_REMEDY = "make the store again"


@dataclass(frozen=True, slots=True)
class ArrayMetadata:
    """What a store's attributes say of a field."""

    field: Field
    dtype: np.dtype[Any]
    """Type in the partition's table."""
    stored: np.dtype[Any]
    """Type of the chunks' values."""
    encoding: str | None
    """How they stand for the table's values; None where they are those."""
    cname: str
    """Compressor of the chunks' blosc frames."""
    shuffle: str
    """ "noshuffle", "shuffle" or "bitshuffle"."""


def read_metadata(root: Path, directory: int | None = None) -> dict[str, Any]:
    """The attributes of the store at root, as its zarr.json has them.

    Parameters
    ----------
    directory : open descriptor of root, which is read instead of what lies at the path now.

    Raises
    ------
    StoreError : it is no store of this format, or not what was written.
    """
    attributes = check_is_store(root, directory)
    if attributes["format"] == VIRTUAL_FORMAT:
        raise StoreError(f"{root} is a virtual store, which has no chunks; open it with ooc_mdp.open_store")
    if attributes["format"] == REWARDS_FORMAT:
        raise StoreError(f"{root} has rewards for the transitions of another store; open it with ooc_mdp.open_store")
    version = attributes.get("format_version")
    if version != FORMAT_VERSION:
        raise StoreError(
            f"{root} has format version {quote(version)}, this program reads {FORMAT_VERSION}; {_REMEDY}, or use the "
            "program's version that wrote it"
        )
    try:
        check_attributes(attributes)
    except SealError as error:
        raise StoreError(f"{root} is damaged ({error}); {_REMEDY}") from error
    if not holds_digest(attributes):
        raise StoreError(f"the attributes in {root / GROUP_FILE} are not those that were written; {_REMEDY}")
    return attributes


def check_is_store(root: Path, directory: int | None = None) -> dict[str, Any]:
    """Refuse what is no store of any format version, virtual ones and other rewards included, whole or damaged.

    Returns
    -------
    Its attributes, of which nothing but the format is known yet.

    Raises
    ------
    StoreError : it is half-written, missing, or something else.
    """
    if root.name.endswith(PARTIAL_SUFFIX):
        remedy = _remedy_of_partial(root, root.with_name(root.name.removesuffix(PARTIAL_SUFFIX)))
        raise StoreError(f"{root} is half-written: a store when its conversion ends; {remedy} if none is running")
    group = _read_json(root, directory)
    attributes = group.get("attributes")
    if group.get("node_type") != "group":
        raise StoreError(f"{root} is a Zarr array, not a store of this program")
    if not isinstance(attributes, dict) or attributes.get("format") not in (FORMAT, VIRTUAL_FORMAT, REWARDS_FORMAT):
        raise StoreError(f"{root} is a Zarr group, but not one written by this program")
    return attributes


def read_fields(root: Path, table: Mapping[str, Any]) -> dict[str, ArrayMetadata]:
    """The fields of a store by name, in the format's order; StoreError where one is not as the format allows."""
    given = table["fields"]
    missing = [f.name for f in FIELDS.values() if not f.optional and f.name not in given]
    if missing:
        raise StoreError(f"{root} lacks the fields {', '.join(missing)}; {_REMEDY}")
    return {name: _array_metadata(root, field, table) for name, field in FIELDS.items() if name in given}


def read_small_arrays(
    root: Path, attributes: Mapping[str, Any], directory: int | None = None
) -> dict[str, npt.NDArray[Any]]:
    """Every small array, by name; StoreError unless they are those of the fingerprint."""
    table = attributes["table"]
    small = {}
    for name, (dtype, _) in SMALL_ARRAYS.items():
        shape = small_array_shape(name, table["n_partitions"], table["n_couplings"], len(table["fields"]))
        chunk = small_chunk_name(name)
        try:
            place = root / chunk if directory is None else chunk
            small[name] = read_uncompressed(place, np.dtype(dtype).newbyteorder("<"), shape, directory)
        except FileNotFoundError:
            raise StoreError(f"{name} of {root} is missing: {root / chunk} does not exist; {_REMEDY}") from None
        except (CorruptChunkError, OSError) as error:
            raise StoreError(f"{name} of {root} is damaged in {root / chunk}: {error}; {_REMEDY}") from error
    if table_fingerprint(table, small) != attributes["fingerprint"]:
        raise StoreError(
            f"the fingerprint of {root} does not match: one of its small arrays ({', '.join(small)}) is not the one "
            f"that was written; {_REMEDY}"
        )
    return small


def why_no_store(root: Path) -> str:
    """Why a path without a zarr.json is no store, and what to do."""
    if root.exists():
        return f"{root} is no store: it has no {GROUP_FILE}; give the directory that convert or generate wrote"
    partial = root.with_name(root.name + PARTIAL_SUFFIX)
    previous = root.with_name(root.name + PREVIOUS_SUFFIX)
    if _is_leftover(previous):
        return f"{root} does not exist, but {previous} was being replaced by it; rename it back or {_REMEDY}"
    if _is_leftover(partial):
        remedy = _remedy_of_partial(partial, root)
        return f"{root} is half-written ({partial} exists): wait for its conversion or {remedy}"
    return f"{root} does not exist; make a store with convert or generate"


def _is_leftover(path: Path) -> bool:
    try:
        return is_leftover(path)
    except (OSError, ForeignPathError):
        return False


def _remedy_of_partial(partial: Path, store: Path) -> str:
    if (partial / JOURNAL_FILE).is_file():
        return f"go on with it (generate PROBLEM {store} --resume, with the options that it was begun with)"
    return _REMEDY


def _array_metadata(root: Path, field: Field, table: Mapping[str, Any]) -> ArrayMetadata:
    given = table["fields"][field.name]
    encoding = given["encoding"]
    if encoding is not None and encoding not in field.encodings:
        raise StoreError(
            f"field {field.name} of {root} is encoded as {quote(encoding)}, which this program does not know; "
            f"{_REMEDY}, or use the program's version that wrote it"
        )
    allowed = field.dtypes if encoding is None else field.encodings[encoding]
    if given["stored"] not in allowed:
        raise StoreError(
            f"field {field.name} of {root} is stored as {quote(given['stored'])}, which format {FORMAT_VERSION} "
            f"does not allow; {_REMEDY}"
        )
    if encoding is not None and encoding.endswith("delta2"):
        needed = ("actions_per_state", "successors_per_action")[: 1 if field.length == "rows" else 2]
        if not all(table[name] for name in needed):
            raise StoreError(
                f"field {field.name} of {root} is encoded as {quote(encoding)} of rows that differ; {_REMEDY}"
            )
    stored = np.dtype(given["stored"])
    wide = {"probabilities": table["dtype"], "durations": np.float64, "halo": np.int64}
    dtype = np.dtype(wide.get(field.name, stored))
    if field.name == "probabilities" and encoding is None and stored != dtype:
        raise StoreError(f"probabilities of {root} are stored as {stored}, the table's type is {dtype}; {_REMEDY}")
    return ArrayMetadata(field, dtype, stored, encoding, given["cname"], given["shuffle"])


def _read_json(root: Path, directory: int | None) -> dict[str, Any]:
    path = root / GROUP_FILE
    try:
        content = read_metadata_file(path if directory is None else GROUP_FILE, directory=directory)
        document = json.loads(content)
    except (FileNotFoundError, NotADirectoryError):
        raise StoreError(why_no_store(root)) from None
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(f"{path} cannot be read: {error}; {_REMEDY}") from error
    if not isinstance(document, dict):
        raise StoreError(f"{path} is no Zarr metadata; {_REMEDY}")
    return document
