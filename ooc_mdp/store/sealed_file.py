"""One file that holds facts and arrays and ends with the SHA-256 of everything before it.

    title                          one line, such as "ooc-mdp checkpoint 5"
    uint64, uint64                 bytes of the whole file, bytes of the header; little-endian, as all numbers
    header                         JSON {"facts": ..., "arrays": [[name, type, shape], ...]}, then spaces
    arrays                         raw, in C order, one after another in the header's order
    SHA-256                        32 bytes

A reader compares the size and the hash first, with a buffer of fixed size: no memory is taken for arrays, and nothing
of the header is parsed, before both are right. Knows nothing of solves.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import raise_system_failure
from ooc_mdp.store.regular_file import MAX_METADATA_BYTES
from ooc_mdp.store.seal import canonical

__all__ = ["ForeignFileError", "SealError", "read_sealed_facts", "read_sealed_file", "write_sealed_file"]

_ALIGNMENT = 64
_PIECE = 1 << 20
_NUMBER = 8
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_DIGEST = hashlib.sha256().digest_size
_TYPES = frozenset({"<f8", "<f4", "<i8", "<i4", "<i2", "|i1", "<u8", "<u4", "<u2", "|u1", "|b1"})


class SealError(Exception):
    """What was read is not what was sealed; the message says where."""


class ForeignFileError(SealError):
    """The file does not begin with the title."""

    def __init__(self, beginning: bytes) -> None:
        self.beginning = beginning
        """Its first bytes, as many as the title has, or all if there are fewer."""
        super().__init__(f"it begins with {beginning!r}")


def write_sealed_file(path: Path, title: str, facts: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write facts (JSON) and arrays to a new file, piece by piece, without a second copy of a contiguous array.

    Raises
    ------
    OSError : the file cannot be written, or something is at the path.
    ValueError : a fact is no finite number, or an array has a type that the format does not know.
    """
    contiguous = {name: np.asarray(a, a.dtype.newbyteorder("<"), order="C") for name, a in arrays.items()}
    for name, array in contiguous.items():
        if array.dtype.str not in _TYPES:
            raise ValueError(f"{name} has the type {array.dtype}, which a sealed file does not hold")
    listed = [[name, array.dtype.str, list(array.shape)] for name, array in contiguous.items()]
    header = canonical({"facts": dict(facts), "arrays": listed})
    before = len(_first_line(title)) + 2 * _NUMBER
    header += b" " * (-(before + len(header)) % _ALIGNMENT)
    size = before + len(header) + sum(array.nbytes for array in contiguous.values()) + _DIGEST
    digest = hashlib.sha256()
    with open(os.open(path, _CREATE, 0o666), "wb") as file:
        for part in (_first_line(title), _number(size), _number(len(header)), header):
            digest.update(part)
            file.write(part)
        for array in contiguous.values():
            view = memoryview(array.reshape(-1).view(np.uint8).data)
            for start in range(0, len(view), _PIECE):
                digest.update(view[start : start + _PIECE])
                file.write(view[start : start + _PIECE])
        file.write(digest.digest())


def read_sealed_file(path: Path, title: str) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """Facts and arrays of a sealed file.

    Raises
    ------
    ForeignFileError : it has another title.
    SealError : its size, its hash or its header is wrong.
    OSError : it cannot be read, or is no regular file (EINVAL).
    SystemFailureError : the system lacks file descriptors or memory, or the disk fails.
    """
    with _regular(path) as file:
        facts, listed = _checked_header(file, title)
        arrays = {}
        for name, dtype, shape in listed:
            array = np.empty(shape, dtype)
            _filled(file, array.reshape(-1).view(np.uint8))
            arrays[name] = array
    return facts, arrays


def read_sealed_facts(path: Path, title: str) -> dict[str, Any]:
    """Facts of a sealed file, which is read and checked as a whole; errors are those of :func:`read_sealed_file`."""
    with _regular(path) as file:
        return _checked_header(file, title)[0]


@contextmanager
def _regular(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file, without waiting for a pipe or device; OSError (EINVAL) for any other."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(fd, "rb", buffering=0) as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file", str(path))
            yield file
    except OSError as error:
        raise_system_failure(error, path)
        raise


def _checked_header(
    file: BinaryIO, title: str
) -> tuple[dict[str, Any], list[tuple[str, np.dtype[Any], tuple[int, ...]]]]:
    """Facts and the list of arrays of a file whose size and hash are right; the file is then at its first array."""
    size = os.fstat(file.fileno()).st_size
    start, header_bytes = _check_size(file, title, size)
    _check_hash(file, size)
    file.seek(start)
    facts, listed = _header(bytes(_filled(file, np.empty(header_bytes, np.uint8))))
    due = size - start - header_bytes - _DIGEST
    if sum(math.prod(shape) * dtype.itemsize for _, dtype, shape in listed) != due:
        raise SealError(f"its header lists arrays of other sizes than the {due} bytes that follow")
    return facts, listed


def _first_line(title: str) -> bytes:
    return f"{title}\n".encode()


def _number(value: int) -> bytes:
    return value.to_bytes(_NUMBER, "little")


def _check_size(file: BinaryIO, title: str, size: int) -> tuple[int, int]:
    """Where the header starts, and its size."""
    line = _first_line(title)
    prefix = file.read(len(line) + 2 * _NUMBER)
    if prefix[: len(line)] != line:
        raise ForeignFileError(prefix[: len(line)])
    if len(prefix) < len(line) + 2 * _NUMBER:
        raise SealError(f"it is cut off after {size} bytes")
    whole = int.from_bytes(prefix[len(line) : len(line) + _NUMBER], "little")
    header = int.from_bytes(prefix[len(line) + _NUMBER :], "little")
    if whole != size:
        raise SealError(f"it has {size} bytes and was written with {whole}")
    if header > min(MAX_METADATA_BYTES, size - len(prefix) - _DIGEST):
        raise SealError(f"its header would take {header} of {size} bytes")
    return len(prefix), header


def _check_hash(file: BinaryIO, size: int) -> None:
    digest, buffer = hashlib.sha256(), np.empty(_PIECE, np.uint8)
    file.seek(0)
    left = size - _DIGEST
    while left:
        piece = _filled(file, buffer[: min(_PIECE, left)])
        digest.update(piece)
        left -= len(piece)
    if digest.digest() != bytes(_filled(file, np.empty(_DIGEST, np.uint8))):
        raise SealError("its SHA-256 is not the one that it ends with: its bytes have changed since it was written")


def _filled(file: BinaryIO, memory: npt.NDArray[np.uint8]) -> memoryview:
    """The next bytes of the file, in all of the memory."""
    view, done = memoryview(memory.data), 0
    while done < len(view):
        got = file.readinto(view[done:])  # type: ignore[attr-defined]
        if not got:
            raise SealError("it shrank while it was read")
        done += got
    return view


def _header(text: bytes) -> tuple[dict[str, Any], list[tuple[str, np.dtype[Any], tuple[int, ...]]]]:
    """Facts, and name, type and shape of each array; of bytes whose hash is right, but whose writer is not trusted."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SealError(f"its header is no JSON ({error})") from error
    if not isinstance(document, dict) or set(document) != {"facts", "arrays"}:
        raise SealError("its header does not consist of facts and arrays")
    facts, arrays = document["facts"], document["arrays"]
    if not isinstance(facts, dict) or not isinstance(arrays, list):
        raise SealError("its header does not list facts and arrays")
    listed: list[tuple[str, np.dtype[Any], tuple[int, ...]]] = []
    for entry in arrays:
        if not _describes_an_array(entry) or any(name == entry[0] for name, _, _ in listed):
            raise SealError(f"its header describes an array as {str(entry)[:80]}")
        listed.append((entry[0], np.dtype(entry[1]), tuple(entry[2])))
    return facts, listed


def _describes_an_array(entry: Any) -> bool:
    return (
        isinstance(entry, list)
        and len(entry) == 3
        and isinstance(entry[0], str)
        and isinstance(entry[1], str)
        and entry[1] in _TYPES
        and isinstance(entry[2], list)
        and len(entry[2]) <= 32
        and all(type(n) is int and n >= 0 for n in entry[2])
    )
