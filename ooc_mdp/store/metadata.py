"""Reads a store's zarr.json files and small arrays, and refuses what is not a whole store of this format."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import StoreError
from ooc_mdp.store.attributes import fault_of
from ooc_mdp.store.chunks import ChunkDamage, read_plain
from ooc_mdp.store.layout import (
    FIELDS,
    FORMAT,
    FORMAT_VERSION,
    GROUP_FILE,
    JOURNAL_FILE,
    READABLE_VERSIONS,
    SMALL_ARRAYS,
    Field,
    chunk_path,
    chunk_shape_of_small,
)

__all__ = ["PARTIAL_SUFFIX", "PREVIOUS_SUFFIX", "ArrayMetadata", "read_metadata", "read_small_arrays"]

PARTIAL_SUFFIX = ".partial"
PREVIOUS_SUFFIX = ".previous"


@dataclass(frozen=True, slots=True)
class ArrayMetadata:
    """What a field's zarr.json says."""

    field: Field
    dtype: np.dtype[Any]
    """Type in the partition's table (the halo's: on disk)."""
    n_chunks: int
    """One a partition."""
    max_len: int
    """Values in a chunk, padding included."""
    stored: np.dtype[Any]
    """Type of the chunks' values."""
    encoding: str | None
    """How they stand for the table's values; None where they are those."""
    cname: str
    """Compressor of the chunks' blosc frames; empty if the metadata does not say."""
    shuffle: str
    """ "noshuffle", "shuffle" or "bitshuffle"; empty likewise."""


def read_metadata(root: Path) -> tuple[dict[str, Any], dict[str, ArrayMetadata]]:
    """Attributes and fields of the store at root, or StoreError."""
    attributes = _attributes(root)
    encodings = attributes.get("encodings", {})
    if not set(encodings) <= set(attributes["fields"]):
        raise StoreError(f"{root} names encodings of fields that it does not have: {encodings}; {_REMEDY}")
    n_partitions = attributes["n_partitions"]
    fields: dict[str, ArrayMetadata] = {}
    for name in attributes["fields"]:
        if name not in FIELDS:
            raise StoreError(f"{root} has a field {name} that format {FORMAT_VERSION} does not know; {_REMEDY}")
        meta = _array_metadata(root, FIELDS[name], attributes)
        if meta.max_len < 1 or meta.n_chunks != n_partitions:
            raise StoreError(f"field {name} of {root} has not one chunk for each of {n_partitions} partitions")
        fields[name] = meta
    missing = [f.name for f in FIELDS.values() if not f.optional and f.name not in fields]
    if missing:
        raise StoreError(f"{root} lacks the fields {', '.join(missing)}; {_REMEDY}")
    return attributes, fields


def read_small_arrays(root: Path, attributes: dict[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """Every small array, by name."""
    n_partitions, n_entries = attributes["n_partitions"], attributes["n_couplings"]
    small = {}
    for name, (dtype, kind) in SMALL_ARRAYS.items():
        shape = chunk_shape_of_small(kind, n_partitions, n_entries)
        path = chunk_path(root, name, *(0 for _ in shape))
        try:
            small[name] = read_plain(path, np.dtype(dtype), shape)
        except FileNotFoundError:
            raise StoreError(f"{name} of {root} is missing: {path} does not exist; {_REMEDY}") from None
        except (ChunkDamage, OSError) as error:
            raise StoreError(f"{name} of {root} is damaged in {path}: {error}; {_REMEDY}") from error
    return small


_REMEDY = "convert again"


def _attributes(root: Path) -> dict[str, Any]:
    if root.name.endswith(PARTIAL_SUFFIX):
        remedy = _remedy_of_partial(root, root.with_name(root.name.removesuffix(PARTIAL_SUFFIX)))
        raise StoreError(f"{root} is half-written: a store when its conversion ends; {remedy} if none is running")
    if not (root / GROUP_FILE).is_file():
        raise StoreError(_why_no_store(root))
    group = _read_json(root / GROUP_FILE)
    attributes = group.get("attributes")
    if group.get("node_type") != "group":
        raise StoreError(f"{root} is a Zarr array, not a store of this program")
    if not isinstance(attributes, dict) or attributes.get("format") != FORMAT:
        raise StoreError(f"{root} is a Zarr group, but not one written by this program")
    version = attributes.get("format_version")
    if version not in READABLE_VERSIONS:
        raise StoreError(
            f"{root} has format version {version}, this program reads {' and '.join(map(str, READABLE_VERSIONS))}; "
            f"{_REMEDY}, or use the program's version that wrote it"
        )
    fault = fault_of(attributes)
    if fault is not None:
        raise StoreError(f"{root} {fault}; {_REMEDY}")
    return attributes


def _why_no_store(root: Path) -> str:
    if root.exists():
        return f"{root} is no store: it has no {GROUP_FILE}; give the directory that convert or generate wrote"
    partial = root.with_name(root.name + PARTIAL_SUFFIX)
    previous = root.with_name(root.name + PREVIOUS_SUFFIX)
    if previous.exists():
        return f"{root} does not exist, but {previous} was being replaced by it; rename it back or {_REMEDY}"
    if partial.exists():
        remedy = _remedy_of_partial(partial, root)
        return f"{root} is half-written ({partial} exists): wait for its conversion or {remedy}"
    return f"{root} does not exist; make a store with convert or generate"


def _remedy_of_partial(partial: Path, store: Path) -> str:
    if (partial / JOURNAL_FILE).is_file():
        return f"go on with it (generate PROBLEM {store} --resume, with the options that it was begun with)"
    return _REMEDY


def _array_metadata(root: Path, field: Field, attributes: dict[str, Any]) -> ArrayMetadata:
    encoding = attributes.get("encodings", {}).get(field.name)
    if encoding is not None and encoding not in field.encodings:
        raise StoreError(
            f"field {field.name} of {root} is encoded as {encoding!r}, which this program does not know; {_REMEDY}, or "
            "use the program's version that wrote it"
        )
    dtypes = field.dtypes if encoding is None else field.encodings[encoding]
    meta = _read_json(root / field.name / GROUP_FILE)
    try:
        (n_chunks, max_len), chunks = meta["shape"], meta["chunk_grid"]["configuration"]["chunk_shape"]
        codecs = [codec["name"] for codec in meta["codecs"]]
        data_type = meta["data_type"]
        blosc = dict(meta["codecs"][1].get("configuration", {}))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise StoreError(f"{root / field.name / GROUP_FILE} is no array metadata ({error}); {_REMEDY}") from error
    if data_type not in dtypes or codecs != ["bytes", "blosc", "crc32c"] or chunks != [1, max_len]:
        raise StoreError(
            f"field {field.name} of {root} is {data_type} in chunks {chunks} with codecs {codecs}, which "
            f"format {FORMAT_VERSION} does not allow; {_REMEDY}"
        )
    if not isinstance(max_len, int):
        raise StoreError(f"field {field.name} of {root} has chunks of {max_len!r} values; {_REMEDY}")
    if encoding is not None and encoding.endswith("planes"):
        needed = ("actions_per_state", "successors_per_action")[: 1 if field.length == "rows" else 2]
        if not all(attributes[name] for name in needed):
            raise StoreError(f"field {field.name} of {root} is encoded as {encoding!r} of rows that differ; {_REMEDY}")
    stored = np.dtype(data_type)
    table = {"probabilities": np.dtype(attributes["dtype"]), "durations": np.dtype(np.float64)}.get(field.name, stored)
    names = (str(blosc.get(name, "")) for name in ("cname", "shuffle"))
    return ArrayMetadata(field, table, n_chunks, max_len, stored, encoding, *names)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise StoreError(f"{path} is missing; {_REMEDY}") from None
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} cannot be read: {error}; {_REMEDY}") from error
    if not isinstance(document, dict):
        raise StoreError(f"{path} is no Zarr metadata; {_REMEDY}")
    return document
