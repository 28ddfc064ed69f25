"""A Zarr group whose chunks are bound to its attributes; any Zarr reader opens it.

    zarr.json                attributes, among them
                               arrays         {name: {dtype, shape, chunks}}; chunks null: a small array
                               arrays_digest  SHA-256 of `arrays` and of all small arrays
                               digest         SHA-256 of all other attributes
    NAME/zarr.json           for other readers; ours takes nothing from it
    NAME/c/0/...             chunks of NAME: bytes, blosc (zstd), crc32c
    NAME_chunks/c/0/0        small, int64 [n_chunks, 2]: bytes of each chunk's file, CRC-32C of what precedes its own
    SMALL/c/0                a small array is one chunk: bytes, crc32c

The CRC-32C of a whole file would be one and the same number for all files that end with their own; therefore it is
that of the file without its last four bytes. Knows no solves: which attributes and arrays there are is the caller's.
"""

from __future__ import annotations

import json
import math
import os
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt
from numcodecs import blosc

from ooc_mdp.quoting import quote
from ooc_mdp.store.closed_object import ANYTHING, OBJECT, SHA256, Rule
from ooc_mdp.store.layout import GROUP_FILE
from ooc_mdp.store.regular_file import read_metadata_file, read_regular_file
from ooc_mdp.store.seal import DIGEST, canonical, digest_of, hash_of, holds_digest
from ooc_mdp.store.sealed_file import SealError
from ooc_mdp.store.slabs import count_slabs, slab_chunks, slabs

__all__ = ["SealedGroup", "SealedGroupWriter", "group_attributes", "sealed_names", "write_group_file"]

_ARRAYS, _ARRAYS_DIGEST = "arrays", "arrays_digest"

_TITLE = "ooc-mdp arrays"
_CHUNKS = "_chunks"
_TYPES = ("float64", "int64", "int32", "uint8")
_CRC = 4
_HEADER = struct.Struct("<4xIII")
"""Of a blosc frame: bytes when decoded, of a block, of the frame."""
_NAME = re.compile(r"[^\W\d]\w*(/[^\W\d]\w*)?")
_CODEC = {"cname": "zstd", "clevel": 3}


@dataclass(frozen=True, slots=True)
class _Array:
    """What `arrays` lists of one."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    chunks: tuple[int, ...] | None

    @property
    def document(self) -> dict[str, Any]:
        """As the attributes have it."""
        chunks = None if self.chunks is None else list(self.chunks)
        return {"dtype": self.dtype.name, "shape": list(self.shape), "chunks": chunks}


class SealedGroupWriter:
    """Writes arrays into a directory, chunk by chunk; the group's own file, which seals them, comes last."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._arrays: dict[str, _Array] = {}
        self._small: dict[str, npt.NDArray[Any]] = {}

    def write(
        self,
        name: str,
        values: npt.NDArray[Any],
        shape: tuple[int, ...],
        dimensions: tuple[str, ...],
        chunks: tuple[int, ...] | None = None,
    ) -> None:
        """Write an array in chunks, and its manifest.

        Parameters
        ----------
        values : the elements in C order; [product of shape].
        dimensions : names of the axes.
        chunks : their shape, runs in C order; as large as they may be by default.
        """
        if values.size != math.prod(shape):
            raise ValueError(f"{name} has {values.size} values, which do not fill the shape {shape}")
        self.write_runs(name, values.dtype, lambda start, stop: values[start:stop], shape, dimensions, chunks)

    def write_runs(
        self,
        name: str,
        dtype: np.dtype[Any],
        read: Callable[[int, int], npt.NDArray[Any]],
        shape: tuple[int, ...],
        dimensions: tuple[str, ...],
        chunks: tuple[int, ...] | None = None,
    ) -> None:
        """:meth:`write` of an array that is not in memory.

        Parameters
        ----------
        read : start, stop: the elements in C order from one to the other; called with ascending runs.
        """
        array = self._array(name, dtype, shape, chunks or slab_chunks(shape))
        assert array.chunks is not None
        manifest = np.empty((count_slabs(shape, array.chunks), 2), np.int64)
        codec = blosc.Blosc(shuffle=blosc.SHUFFLE, typesize=array.dtype.itemsize, **_CODEC)
        length = math.prod(array.chunks)
        for i, slab in enumerate(slabs(shape, array.chunks)):
            part = np.ascontiguousarray(read(slab.start, slab.stop), array.dtype.newbyteorder("<"))
            if part.size < length:
                part = np.concatenate([part, np.zeros(length - part.size, part.dtype)])
            frame = codec.encode(part)
            crc = google_crc32c.value(frame)
            manifest[i] = len(frame) + _CRC, crc
            _write_file(_chunk_file(self._root, name, slab.key), frame, crc.to_bytes(_CRC, "little"))
            del part, frame  # before the next are made
        _write_array_file(self._root / name, array, dimensions, {}, array.chunks)
        self._arrays[name] = array
        axes = (f"{name}_chunk", f"{name}_chunk_field")
        self._write_small(name + _CHUNKS, manifest, axes, {"long_name": f"bytes and CRC-32C of the chunks of {name}"})

    def write_small(
        self, name: str, values: npt.NDArray[Any], dimensions: tuple[str, ...], attributes: Mapping[str, str]
    ) -> None:
        """Write an array of one axis and few values, as one chunk; the name may have a subgroup before it, and empty
        attributes are left out."""
        self._arrays[name] = self._array(name, values.dtype, values.shape, None)
        self._write_small(name, values, dimensions, {key: text for key, text in attributes.items() if text})

    def seal(self, attributes: Mapping[str, Any]) -> None:
        """Write the group's file: these attributes, and what binds the arrays to them."""
        for group in sorted({name.split("/")[0] for name in self._arrays if "/" in name}):
            write_group_file(self._root / group, {})
        listed = {name: array.document for name, array in self._arrays.items()}
        sealed = {**attributes, _ARRAYS: listed, _ARRAYS_DIGEST: hash_of(_TITLE, listed, self._small)}
        sealed = json.loads(canonical(sealed))  # what a reader will hash
        write_group_file(self._root, {**sealed, DIGEST: digest_of(sealed)})

    def _array(self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...], chunks: tuple[int, ...] | None) -> _Array:
        if not _NAME.fullmatch(name) or name in self._arrays or dtype.name not in _TYPES:
            raise ValueError(f"no sealed array is called {quote(name)} and has the type {dtype}, or it is there twice")
        return _Array(dtype, shape, chunks)

    def _write_small(
        self, name: str, values: npt.NDArray[Any], dimensions: tuple[str, ...], attributes: Mapping[str, str]
    ) -> None:
        if values.size:
            data = np.ascontiguousarray(values, values.dtype.newbyteorder("<")).tobytes()
            crc = google_crc32c.value(data).to_bytes(_CRC, "little")
            _write_file(_chunk_file(self._root, name, (0,) * values.ndim), data, crc)
        chunks = tuple(max(1, n) for n in values.shape)
        _write_array_file(self._root / name, _Array(values.dtype, values.shape, None), dimensions, attributes, chunks)
        self._small[name] = values


def sealed_names(own: Mapping[str, Rule]) -> dict[str, Rule]:
    """The closed list of a sealed group's attributes: its own, its format, which is checked before, and the seal's."""
    before: dict[str, Rule] = {"format": ANYTHING, "format_version": ANYTHING}
    return {**before, **own, _ARRAYS: OBJECT, _ARRAYS_DIGEST: SHA256, DIGEST: SHA256}


def group_attributes(root: Path) -> dict[str, Any]:
    """Attributes of a group, without a look at its seal.

    Raises
    ------
    SealError : its zarr.json is no JSON of a group.
    OSError : it cannot be read, or is no regular file.
    """
    try:
        document = json.loads(read_metadata_file(root / GROUP_FILE))
    except (ValueError, RecursionError) as error:
        raise SealError(f"its {GROUP_FILE} cannot be read: {error}") from error
    attributes = document.get("attributes") if isinstance(document, dict) else None
    if not isinstance(attributes, dict):
        raise SealError(f"its {GROUP_FILE} has no attributes")
    return attributes


class SealedGroup:
    """Reads a sealed group: opening compares the digests and reads the small arrays, `read` compares each chunk.

    Raises
    ------
    SealError : a digest is wrong, or a small array is missing or damaged.
    """

    def __init__(self, root: Path, attributes: dict[str, Any]) -> None:
        self._root = root
        self._check_digest(attributes)
        self.arrays = {name: _described(name, entry) for name, entry in attributes[_ARRAYS].items()}
        """What there is, by name, without the manifests."""
        self.small: dict[str, npt.NDArray[Any]] = {}
        """The small arrays, manifests included."""
        for name, array in self.arrays.items():
            if array.chunks is None:
                self.small[name] = _read_small(root, name, array)
            else:
                manifest = _Array(np.dtype(np.int64), (count_slabs(array.shape, array.chunks), 2), None)
                self.small[name + _CHUNKS] = _read_small(root, name + _CHUNKS, manifest)
        if hash_of(_TITLE, attributes[_ARRAYS], self.small) != attributes.get(_ARRAYS_DIGEST):
            names = ", ".join(sorted(self.small))
            raise SealError(f"one of the arrays {names} is not the one that {_ARRAYS_DIGEST} was made of")

    def read(self, name: str) -> npt.NDArray[Any]:
        """All elements of an array in C order, each chunk compared with the manifest before it is decoded.

        Raises
        ------
        SealError : a chunk is missing, damaged, or another one.
        """
        array = self.arrays[name]
        if array.chunks is None:
            return self.small[name].reshape(-1)
        return self.read_run(name, 0, math.prod(array.shape))[0]

    def read_run(self, name: str, start: int, stop: int) -> tuple[npt.NDArray[Any], int]:
        """The elements of a chunked array in C order from one to another, and the bytes read for them.

        Raises
        ------
        SealError : a chunk is missing, damaged, or another one.
        """
        array = self.arrays[name]
        assert array.chunks is not None
        out, total = np.empty(stop - start, array.dtype), 0
        size = math.prod(array.chunks) * array.dtype.itemsize
        for slab in slabs(array.shape, array.chunks, start, stop):
            length, crc = self.small[name + _CHUNKS][slab.number].tolist()
            first, last = max(slab.start, start), min(slab.stop, stop)
            path = _chunk_file(self._root, name, slab.key)
            frame = _checked(self._root, path, length, crc, most=size + blosc.MAX_OVERHEAD + _CRC)
            whole = (first, last) == (slab.start, slab.stop)
            part = out[first - start : last - start] if whole else np.empty(slab.stop - slab.start, array.dtype)
            _decode(frame, part.view(np.uint8), size, path.relative_to(self._root))
            if not whole:
                out[first - start : last - start] = part[first - slab.start : last - slab.start]
            total += length
        return out, total

    def _check_digest(self, attributes: dict[str, Any]) -> None:
        if not holds_digest(attributes):
            raise SealError("its attributes are not those that were sealed: their digest is another")
        if not isinstance(attributes.get(_ARRAYS), dict):
            raise SealError(f"its attribute {_ARRAYS} lists no arrays")


def _described(name: str, entry: Any) -> _Array:
    """An entry of `arrays`, checked: a digest does not vouch for its writer."""
    wrong = SealError(f"its attribute {_ARRAYS} describes {quote(name)} as {quote(entry)}")
    if not _NAME.fullmatch(name) or not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "chunks"}:
        raise wrong
    shape, chunks = entry["shape"], entry["chunks"]
    if entry["dtype"] not in _TYPES or not _are_lengths(shape) or not (chunks is None or _are_lengths(chunks)):
        raise wrong
    array = _Array(np.dtype(entry["dtype"]), tuple(shape), None if chunks is None else tuple(chunks))
    if array.chunks is None and len(array.shape) != 1:
        raise wrong
    if array.chunks is not None:
        try:
            count_slabs(array.shape, array.chunks)
        except ValueError as error:
            raise wrong from error
    return array


def _are_lengths(value: Any) -> bool:
    return isinstance(value, list) and 1 <= len(value) <= 32 and all(type(n) is int and 0 <= n < 1 << 62 for n in value)


def _read_small(root: Path, name: str, array: _Array) -> npt.NDArray[Any]:
    size = math.prod(array.shape) * array.dtype.itemsize
    if size == 0:
        return np.empty(array.shape, array.dtype)
    content = _checked(root, _chunk_file(root, name, (0,) * len(array.shape)), size + _CRC, None, most=size + _CRC)
    return content.view(array.dtype.newbyteorder("<")).astype(array.dtype, copy=False).reshape(array.shape)


def _checked(root: Path, path: Path, length: int, crc: int | None, most: int) -> npt.NDArray[np.uint8]:
    """A file of so many bytes, without the CRC-32C that ends it and that must be right; `crc` is the manifest's."""
    name = path.relative_to(root)
    if not _CRC < length <= most:
        raise SealError(f"{name} cannot have {length} bytes, at most {most} are possible")
    try:
        content = read_regular_file(path, length)
    except OSError as error:
        raise SealError(f"{name}: {error.strerror}") from error
    if content.size != length:
        raise SealError(f"{name} has {content.size} bytes, and was written with {length}")
    body = content[:-_CRC]
    found, own = int(google_crc32c.value(body)), int.from_bytes(content[-_CRC:].tobytes(), "little")
    if found != own:
        raise SealError(f"{name} has the CRC-32C {found:#010x} and was written with {own:#010x}")
    if crc not in (None, found):
        raise SealError(f"{name} is a whole chunk with the CRC-32C {found:#010x}, and should be one with {crc:#010x}")
    return body


def _decode(frame: npt.NDArray[np.uint8], out: npt.NDArray[np.uint8], size: int, name: Path) -> None:
    """Decode a blosc frame of `size` bytes into memory of that size, or the beginning of it into less."""
    if frame.size < _HEADER.size:
        raise SealError(f"{name} is too short for a blosc frame")
    decoded, _, frame_bytes = _HEADER.unpack_from(frame.data)
    if (decoded, frame_bytes) != (size, frame.size):
        raise SealError(
            f"{name} holds {decoded} bytes in a frame of {frame_bytes}, expected are {size} in one of {frame.size}"
        )
    target = out if out.size == size else np.empty(size, np.uint8)
    try:
        blosc.decompress(frame, target)
    except (RuntimeError, ValueError) as error:
        raise SealError(f"{name} cannot be decoded: {error}") from error
    if target is not out:
        out[:] = target[: out.size]


def _chunk_file(root: Path, name: str, key: tuple[int, ...]) -> Path:
    return root.joinpath(name, "c", *map(str, key))


def _write_file(path: Path, *parts: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for part in parts:
            file.write(part)


def write_group_file(root: Path, attributes: Mapping[str, Any]) -> None:
    """Write the zarr.json of a group, in one step."""
    document = {"attributes": dict(attributes), "zarr_format": 3, "node_type": "group"}
    temporary = root / f"{GROUP_FILE}.new"
    _write_file(temporary, json.dumps(document, indent=2, allow_nan=False).encode())
    os.replace(temporary, root / GROUP_FILE)


def _write_array_file(
    root: Path, array: _Array, dimensions: tuple[str, ...], attributes: Mapping[str, str], chunks: tuple[int, ...]
) -> None:
    """Write the zarr.json of an array, by the Zarr v3 specification."""
    codecs: list[dict[str, Any]] = [{"name": "bytes", "configuration": {"endian": "little"}}]
    if array.chunks is not None:
        configuration = {"typesize": array.dtype.itemsize, "shuffle": "shuffle", "blocksize": 0, **_CODEC}
        codecs.append({"name": "blosc", "configuration": configuration})
    codecs.append({"name": "crc32c"})
    document = {
        "shape": list(array.shape),
        "data_type": array.dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunks)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0.0 if array.dtype.kind == "f" else 0,
        "codecs": codecs,
        "attributes": dict(attributes),
        "dimension_names": list(dimensions),
        "zarr_format": 3,
        "node_type": "array",
        "storage_transformers": [],
    }
    _write_file(root / GROUP_FILE, json.dumps(document, indent=2).encode())
