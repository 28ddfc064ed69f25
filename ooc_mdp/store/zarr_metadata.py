"""The zarr.json files and small arrays of a store; zarr-python words the metadata, so Zarr can read it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
import numpy.typing as npt
import zarr
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec
from zarr.storage import MemoryStore

from ooc_mdp.store.chunk_file import write_file
from ooc_mdp.store.layout import (
    BLOCK_BYTES,
    FIELDS,
    FORMAT,
    FORMAT_VERSION,
    GROUP_FILE,
    SEPARATOR,
    SMALL_ARRAYS,
    Codec,
    array_name,
    small_chunk_name,
)
from ooc_mdp.store.manifest import table_fingerprint
from ooc_mdp.store.seal import digest_of

__all__ = ["StoredAs", "remove_metadata", "write_metadata"]


class StoredAs(NamedTuple):
    """How the chunks of a field are stored."""

    dtype: np.dtype[Any]
    encoding: str | None
    lengths: Sequence[int]
    """Padded lengths of the chunks that there are."""


_FIELD_GROUP = {"attributes": {}, "zarr_format": 3, "node_type": "group"}


def write_metadata(
    root: Path,
    fields: Mapping[str, StoredAs],
    small: Mapping[str, npt.NDArray[Any]],
    sizes: Mapping[str, Any],
    about: Mapping[str, Any],
) -> None:
    """Describe and seal the chunks already under root; write the small arrays.

    Parameters
    ----------
    fields : by name, in the format's order.
    small : every small array.
    sizes : the attributes of `table` but `fields`.
    about : the attributes of that name.
    """
    described = {}
    for name, (dtype, encoding, lengths) in fields.items():
        codec = FIELDS[name].codec(encoding)
        for length in lengths:
            shape = (sizes["n_partitions"], length)
            _describe(root / array_name(name, length), shape, (1, length), dtype, codec)
        write_file(root / name / GROUP_FILE, json.dumps(_FIELD_GROUP, indent=2).encode())
        described[name] = {
            "stored": dtype.name,
            "encoding": encoding,
            "cname": codec.cname,
            "shuffle": codec.shuffle,
        }
    typed = {n: np.ascontiguousarray(a, np.dtype(SMALL_ARRAYS[n][0]).newbyteorder("<")) for n, a in small.items()}
    for name, values in typed.items():
        _describe(root / name, values.shape, values.shape, values.dtype, None)
        path = root / small_chunk_name(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        data = values.tobytes()
        write_file(path, data, google_crc32c.value(data).to_bytes(4, "little"))
    table = {**sizes, "fields": described}
    write_group(root, {"table": table, "about": dict(about), "fingerprint": table_fingerprint(table, typed)})


def write_group(root: Path, attributes: Mapping[str, Any]) -> None:
    """Write the group's zarr.json with these attributes, sealed."""
    # What is hashed must be what is read back: lists for tuples, say.
    sealed = json.loads(json.dumps({"format": FORMAT, "format_version": FORMAT_VERSION, **attributes}))
    sealed["digest"] = digest_of(sealed)
    zarr.create_group(root, zarr_format=3, attributes=sealed)


def _describe(
    root: Path, shape: tuple[int, ...], chunks: tuple[int, ...], dtype: np.dtype[Any], codec: Codec | None
) -> None:
    """Write the zarr.json of an array as zarr-python would."""
    metadata = json.loads(_array_like(len(shape), dtype, codec))
    metadata["shape"] = [int(n) for n in shape]
    metadata["chunk_grid"]["configuration"]["chunk_shape"] = [int(n) for n in chunks]
    if codec is not None:
        metadata["chunk_key_encoding"]["configuration"]["separator"] = SEPARATOR
    root.mkdir(exist_ok=True)
    write_file(root / GROUP_FILE, json.dumps(metadata, indent=2).encode())


@cache
def _array_like(dimensions: int, dtype: np.dtype[Any], codec: Codec | None) -> str:
    """What zarr-python writes of an array that differs in its shape only: each time it takes two milliseconds."""
    compressors: list[Any] = [Crc32cCodec()]
    if codec is not None:
        blosc = BloscCodec(
            typesize=dtype.itemsize,
            cname=codec.cname,
            clevel=codec.clevel,
            shuffle=codec.shuffle,
            blocksize=BLOCK_BYTES,
        )
        compressors.insert(0, blosc)
    files: dict[str, Any] = {}
    zarr.create_array(
        MemoryStore(files),
        shape=(1,) * dimensions,
        chunks=(1,) * dimensions,
        dtype=dtype,
        serializer=BytesCodec(),
        compressors=compressors,
        filters=None,
        fill_value=0,
    )
    text: str = files[GROUP_FILE].to_bytes().decode()
    return text


def remove_metadata(root: Path) -> None:
    """Remove what :func:`write_metadata` wrote, or began to; chunks of fields stay."""
    for name in SMALL_ARRAYS:
        shutil.rmtree(root / name, ignore_errors=True)
    for path in (root, *(root / name for name in FIELDS), *(a for name in FIELDS for a in (root / name).glob("*"))):
        (path / GROUP_FILE).unlink(missing_ok=True)
        for begun in path.glob("zarr.*.partial"):  # zarr was killed before it gave the file its name
            begun.unlink()
