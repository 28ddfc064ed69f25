"""The zarr.json files and small arrays of a store; zarr-python writes the metadata, so Zarr can read it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt
import zarr
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec

from ooc_mdp.store.chunks import write_file
from ooc_mdp.store.layout import FIELDS, FORMAT, FORMAT_VERSION, GROUP_FILE, SMALL_ARRAYS, chunk_path

__all__ = ["remove_metadata", "write_metadata"]


def write_metadata(
    root: Path,
    fields: Mapping[str, tuple[np.dtype[Any], int]],
    small: Mapping[str, npt.NDArray[Any]],
    attributes: Mapping[str, Any],
) -> None:
    """Describe the chunks already under root: fields with type and padded length; write the small arrays."""
    attributes = {"format": FORMAT, "format_version": FORMAT_VERSION, **attributes}
    group = zarr.create_group(root, zarr_format=3, attributes=attributes)
    for name, (dtype, max_len) in fields.items():
        codec = FIELDS[name].codec(attributes["encodings"].get(name))
        blosc = BloscCodec(
            typesize=dtype.itemsize,
            cname=codec.cname,
            clevel=codec.clevel,
            shuffle=codec.shuffle,
            blocksize=0,
        )
        group.create_array(
            name,
            shape=(attributes["n_partitions"], max_len),
            chunks=(1, max_len),
            dtype=dtype,
            serializer=BytesCodec(),
            compressors=(blosc, Crc32cCodec()),
            filters=None,
            fill_value=0,
        )
    for name, values in small.items():
        dtype = np.dtype(SMALL_ARRAYS[name][0])
        group.create_array(
            name,
            shape=values.shape,
            chunks=values.shape,
            dtype=dtype,
            serializer=BytesCodec(),
            compressors=(Crc32cCodec(),),
            filters=None,
            fill_value=0,
        )
        data = np.ascontiguousarray(values, dtype.newbyteorder("<")).tobytes()
        path = chunk_path(root, name, *(0 for _ in values.shape))
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, data, google_crc32c.value(data).to_bytes(4, "little"))


def remove_metadata(root: Path) -> None:
    """Remove what :func:`write_metadata` wrote, or began to; chunks of fields stay."""
    for name in SMALL_ARRAYS:
        shutil.rmtree(root / name, ignore_errors=True)
    for path in (root, *(root / name for name in FIELDS)):
        (path / GROUP_FILE).unlink(missing_ok=True)
        for begun in path.glob("zarr.*.partial"):  # zarr was killed before it gave the file its name
            begun.unlink()
