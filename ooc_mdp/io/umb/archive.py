"""The tar archive of a UMB file, plain or compressed with gzip or xz, read forward and in bounded memory.

Nothing is unpacked to disk under a member's name. Members of a plain tar are read in place; those of a compressed one
are copied to an anonymous temporary file, each only if it has the size that the caller expects. A compressed file is
always read to its end, where its checksums (CRC-32 of gzip, the checks of xz) are compared, before a caller gets any
byte of a member. The stream that tarfile reads moves forward only and gives a limited number of header bytes, so that a
hostile header cannot make it allocate. This module knows tar, not UMB's index.
"""

from __future__ import annotations

import gzip
import io
import lzma
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any, Protocol

import numpy as np

from ooc_mdp.errors import InputError, raise_system_failure
from ooc_mdp.io.arrays.array_stream import copy_to_temporary, is_unsafe_name, read_exactly
from ooc_mdp.io.compressed import XzStream
from ooc_mdp.io.files import open_file
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.quoting import quote

__all__ = [
    "ANY_SIZE",
    "Member",
    "NumberStream",
    "RationalStream",
    "is_archive",
    "locate_members",
    "nearest_rational",
    "read_member",
]

_GZIP, _XZ, _TAR, _TAR_AT = b"\x1f\x8b\x08", b"\xfd7zXZ\x00", b"ustar", 257
ANY_SIZE = -1
"""Expected of a member whose size nothing announces."""
_MOST_ANY = 1 << 40
"""Bytes of such a member that are believed."""
_HEADER_BUDGET = 64 << 20
"""Bytes of all headers together: about 100,000 members."""
_PIECE = 1 << 20
_DAMAGE = (OSError, EOFError, zlib.error, lzma.LZMAError)


def is_archive(head: bytes) -> bool:
    """Whether a file with this head is gzip, xz or POSIX tar, as UMB files are."""
    return head.startswith((_GZIP, _XZ)) or head[_TAR_AT : _TAR_AT + 5] == _TAR


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _Forward:
    """A stream for tarfile that only moves forward; `direct` is the file itself where it is not compressed."""

    def __init__(self, path: str, source: _Readable, direct: IO[bytes] | None) -> None:
        self._path = path
        self._source = source
        self._direct = direct
        self._position = 0
        self._budget = _HEADER_BUDGET

    def piece(self, size: int) -> bytes:
        """Up to `size` bytes of contents; InputError where the compressed data are damaged."""
        try:
            data = self._source.read(size)
        except _DAMAGE as error:
            raise_system_failure(error, self._path)
            what = "the compressed data are damaged" if self._direct is None else "the file cannot be read"
            raise InputError(self._path, f"{what} ({error or type(error).__name__}); write the file again") from None
        self._position += len(data)
        return data

    def read(self, size: int) -> bytes:
        """Header bytes, which tarfile reads by itself; they are counted."""
        self._budget -= size
        if self._budget < 0:
            raise InputError(self._path, "the archive's headers are too large; write the file again")
        pieces = []
        while size and (data := self.piece(size)):
            pieces.append(data)
            size -= len(data)
        return b"".join(pieces)

    def tell(self) -> int:
        return self._position

    def seek(self, position: int, whence: int = 0) -> int:
        if whence or position < self._position:
            raise io.UnsupportedOperation("this stream moves forward only")
        if self._direct is not None:
            self._position = self._direct.seek(position)
        while self._position < position and self.piece(min(_PIECE, position - self._position)):
            pass
        return self._position

    def check_rest(self) -> None:
        """Read a compressed file to its end, where its checksums are compared."""
        while self._direct is None and self.piece(_PIECE):
            pass


class Member:
    """The bytes of one member: `size` bytes of `file` from `offset` on."""

    def __init__(self, path: str, name: str, file: IO[bytes], offset: int, size: int) -> None:
        self.path = path
        self.name = name
        self._file = file
        self._offset = offset
        self.size = size

    def read(self, start: int, size: int) -> bytes:
        """`size` bytes from `start` on."""
        self._file.seek(self._offset + start)
        return read_exactly(self.path, self.name, self._file, size)


def _walk(path: str, file: IO[bytes]) -> Iterator[tuple[str, tarfile.TarInfo, _Forward]]:
    """Yield all regular members with their names, the stream at their contents; raises InputError for unsafe ones.

    After the last member a compressed file has been read to its end and its checksums have been compared.
    """
    start = file.read(6)
    file.seek(0)
    source: _Readable = file
    if start.startswith(_GZIP):
        source = gzip.GzipFile(fileobj=file)
    elif start == _XZ:
        source = XzStream(file)
    stream = _Forward(path, source, file if source is file else None)
    seen: set[str] = set()
    try:
        with tarfile.TarFile(fileobj=stream, mode="r") as archive:  # type: ignore[arg-type]
            for info in archive:
                name = info.name.removeprefix("./")
                if is_unsafe_name(name):
                    raise InputError(
                        path, f"member {quote(info.name)} points outside the archive; do not trust this file"
                    )
                if info.isdir():
                    continue
                if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or info.issparse():
                    kind = "a link" if info.issym() or info.islnk() else "not a plain file"
                    raise InputError(path, f"member {quote(info.name)} is {kind}; a UMB file holds plain files only")
                if name in seen:
                    raise InputError(path, f"member {quote(info.name)} is there twice; write the file again")
                seen.add(name)
                yield name, info, stream
        stream.check_rest()
    except tarfile.TarError as error:
        raise InputError(
            path,
            f"not a tar archive, as UMB is ({error}); if it is a compressed text, decompress it first",
        ) from None
    except (OSError, ValueError, OverflowError) as error:  # ValueError, OverflowError: sizes in headers
        raise_system_failure(error, path)
        raise InputError(path, f"the tar archive cannot be read ({error}); write the file again") from None


class _Contents:
    """The contents of the member at a stream's position, for copy_to_temporary()."""

    def __init__(self, stream: _Forward) -> None:
        self._stream = stream

    def read(self, size: int) -> bytes:
        return self._stream.piece(size)


def read_member(path: str, wanted: str, limit: int) -> bytes | None:
    """A small member as bytes, wherever it is in the archive; None if there is none of that name.

    Raises
    ------
    InputError : it has more than `limit` bytes, a member is unsafe, or the archive is damaged.
    """
    found = None
    with open_file(path) as file:
        for name, info, stream in _walk(path, file):
            if name == wanted:
                if info.size > limit:
                    raise InputError(path, f"{name} has {info.size} bytes, more than {limit}")
                stream.seek(info.offset_data)
                found = read_exactly(path, name, _Contents(stream), info.size)
    return found


def locate_members(
    path: str, file: IO[bytes], expected: Callable[[str], int | None], keep: Callable[[IO[bytes]], object]
) -> dict[str, Member]:
    """Find the members for which `expected` gives a size, and check that they have it.

    Parameters
    ----------
    path, file : the open archive; the members of a plain tar are read from `file` later on.
    expected : size in bytes of a member that is wanted, ANY_SIZE where it may have any, None for one that is skipped.
    keep : called with each temporary file, which the caller must close.

    Raises
    ------
    InputError : a size that differs, an unsafe member, a damaged archive, no room for temporary files.
    """
    members: dict[str, Member] = {}
    length = os.fstat(file.fileno()).st_size
    head = file.read(_TAR_AT + 5)
    compressed = head.startswith((_GZIP, _XZ))
    file.seek(0)
    for name, info, stream in _walk(path, file):
        size = expected(name)
        if size is None:
            continue
        if size == ANY_SIZE and 0 <= info.size <= _MOST_ANY:
            size = info.size
        if info.size != size:
            raise InputError(path, f"{name} has {info.size} bytes; the counts of index.json ask for {size}")
        if not compressed:
            if info.offset_data + size > length:
                raise InputError(path, f"{name} runs past the end of the file; it was cut short")
            members[name] = Member(path, name, file, info.offset_data, size)
            continue
        stream.seek(info.offset_data)
        copy = copy_to_temporary(path, name, _Contents(stream), size)
        keep(copy)
        members[name] = Member(path, name, copy, 0, size)
    return members


class NumberStream:
    """A member of numbers of one type, read forward."""

    def __init__(self, member: Member, dtype: str) -> None:
        self.name = member.name
        self._member = member
        self._dtype = np.dtype(dtype)
        self.count = member.size // self._dtype.itemsize
        self._next = 0

    def _take(self, count: int) -> np.ndarray[Any, Any]:
        start, self._next = self._next, self._next + count
        size = self._dtype.itemsize
        return np.frombuffer(self._member.read(size * start, size * count), self._dtype)

    def read(self, count: int) -> IntArray:
        """The next `count` numbers as int64; raises InputError for those that do not fit."""
        values = self._take(count)
        if values.size and int(values.max()) > np.iinfo(np.int64).max:
            raise InputError(self._member.path, f"{self.name}: {int(values.max())} does not fit in int64")
        return values.astype(np.int64)

    def read_floats(self, count: int) -> FloatArray:
        """The next `count` numbers as float64."""
        return self._take(count).astype(np.float64)


class RationalStream:
    """A member of rationals of `width` bytes, each a signed numerator and an unsigned denominator."""

    def __init__(self, member: Member, width: int) -> None:
        self._member = member
        self._width = width
        self._next = 0

    def read_floats(self, count: int) -> FloatArray:
        """The next `count` rationals, each as the float64 nearest to it."""
        start, self._next = self._next, self._next + count
        data = self._member.read(self._width * start, self._width * count)
        half = self._width // 2
        values = np.empty(count)
        for i in range(count):
            at = i * self._width
            numerator = int.from_bytes(data[at : at + half], "little", signed=True)
            denominator = int.from_bytes(data[at + half : at + self._width], "little")
            if denominator == 0:
                raise InputError(self._member.path, f"{self._member.name}: entry {start + i} has denominator 0")
            values[i] = nearest_rational(numerator, denominator)
        return values


def nearest_rational(numerator: int, denominator: int) -> float:
    """The float64 nearest to a rational, infinite where it is beyond them."""
    try:
        return numerator / denominator
    except OverflowError:
        return float(np.inf) if numerator > 0 else -float(np.inf)
