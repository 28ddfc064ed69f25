"""Arrays in .npy files and .npz archives, read forward in bounded memory; nothing is unpickled or unpacked.

A member of an archive is read once to its end, where its checksum is compared, before any number of it is used. It
then stays an open stream. The size in its header is compared with the bytes of the file before anything is read, and
memory grows with the bytes that arrive, never with an announced size. This module knows no format and no MDP.
"""

from __future__ import annotations

import io
import math
import re
import shutil
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Sequence
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy_format

from ooc_mdp.errors import InputError, raise_system_failure
from ooc_mdp.io.files import open_file
from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.quoting import quote

__all__ = [
    "ArrayStream",
    "ZipArrays",
    "copy_to_temporary",
    "is_unsafe_name",
    "open_npy",
    "read_exactly",
    "zip_names",
]

_PIECE = 1 << 20
"""Most bytes read from a stream at a time: memory grows with the bytes that arrive, not with an announced size."""
_CHECKED_PIECE = 1 << 18
_MAX_HEADER = 10_000
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError)
_BAD_HEADERS = (*_DAMAGE, ValueError, OverflowError)
"""Errors that zipfile raises for headers: also names that cannot be decoded, and offsets beyond 64 bits."""


def is_unsafe_name(name: str) -> bool:
    """Whether an archive member would be unpacked outside the target folder."""
    parts = re.split(r"[/\\]", name)
    return parts[0] == "" or ".." in parts or "\0" in name or re.match(r"[A-Za-z]:", name) is not None


def _input_error(path: str, name: str, message: str) -> InputError:
    return InputError(path, f"{name}: {message}" if name else message)


def _damaged(path: str, name: str, error: Exception) -> InputError:
    return _input_error(path, name, f"damaged ({error or type(error).__name__}); write the file again")


def copy_to_temporary(path: str, name: str, file: Any, size: int) -> IO[bytes]:
    """Copy `size` bytes of a stream into an anonymous temporary file that vanishes when closed.

    Raises
    ------
    InputError : the temporary folder has too little room, the stream is damaged or ends too early.
    """
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if size > free:
        raise _input_error(
            path,
            name,
            f"needs {size} bytes of temporary space, {tempfile.gettempdir()} has {free}; "
            "set TMPDIR to a folder with more room",
        )
    try:
        copy: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    except OSError as error:
        raise_system_failure(error, path)
        raise
    missing = size
    try:
        while missing:
            piece = _piece(path, name, file, missing)
            copy.write(piece)
            missing -= len(piece)
        copy.flush()
    except BaseException:
        copy.close()
        raise
    return copy


def read_exactly(path: str, name: str, file: Any, size: int) -> bytes:
    """The next `size` bytes of a stream; memory grows with the bytes that arrive. InputError if it ends earlier."""
    pieces = []
    missing = size
    while missing:
        pieces.append(_piece(path, name, file, missing))
        missing -= len(pieces[-1])
    return b"".join(pieces)


def _piece(path: str, name: str, file: Any, missing: int) -> bytes:
    """At least one and at most `missing` bytes of a stream that should have that many more."""
    try:
        piece: bytes = file.read(min(missing, _PIECE))
    except _DAMAGE as error:
        raise_system_failure(error, path)
        raise _damaged(path, name, error) from None
    if not piece:
        raise _input_error(path, name, f"ends {missing} bytes too early; write the file again")
    return piece


class ArrayStream:
    """One .npy file, plain or inside an archive, read forward.

    Parameters
    ----------
    path : the file named in messages.
    name : the member's name in messages, empty for a plain file.
    file : its bytes, from the beginning.
    size : number of bytes; compared with the header.

    Raises
    ------
    InputError : not .npy data, Python objects, a structured or string dtype, or a size that does not fit.
    """

    def __init__(self, path: str, name: str, file: Any, size: int) -> None:
        self.path = path
        self.name = name
        self._file = file
        self.shape, self.fortran_order, self.dtype = self._header(size)
        self.count = math.prod(self.shape)
        self.offset = size - self.count * self.dtype.itemsize
        """Bytes before the first value."""

    def error(self, message: str) -> InputError:
        """An error that names this member."""
        return _input_error(self.path, self.name, message)

    def _bytes(self, count: int) -> bytes:
        return read_exactly(self.path, self.name, self._file, count)

    def _header(self, size: int) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
        if size < 10:
            raise self.error(f"{size} bytes are too few for an .npy array; write the file again")
        start = self._bytes(8)
        if start[:6] != npy_format.MAGIC_PREFIX:
            raise self.error("not an .npy array; write it with numpy.save or numpy.savez")
        version = (start[6], start[7])
        if version not in ((1, 0), (2, 0)):
            raise self.error(f".npy version {version[0]}.{version[1]} is not one of plain arrays (1.0, 2.0)")
        width = 2 if version == (1, 0) else 4
        start += self._bytes(width)
        length = int.from_bytes(start[8:], "little")
        if length > min(_MAX_HEADER, size - len(start)):
            raise self.error(f"announces a header of {length} bytes, longer than any plain array's")
        header = io.BytesIO(start[8:] + self._bytes(length))
        read = npy_format.read_array_header_1_0 if width == 2 else npy_format.read_array_header_2_0
        try:
            shape, fortran_order, dtype = read(header, max_header_size=_MAX_HEADER)
        except Exception as error:  # NumPy tokenises the text and evaluates it, which raises errors of many kinds
            why = str(error)[:200] or "no reason given"
            raise self.error(
                f"its .npy header cannot be read: {type(error).__name__}: {why}; write the file again"
            ) from None
        if dtype.hasobject:
            raise self.error("holds Python objects (a pickle), which are never loaded; save plain numbers")
        there = size - len(start) - length
        announced = dtype.itemsize
        for extent in shape:
            announced *= int(extent)
        if any(extent < 0 for extent in shape) or announced != there:
            raise self.error(f"its header announces {announced} bytes (shape {shape}), {there} are there")
        return shape, fortran_order, dtype

    def require(self, kinds: str, *ndims: int) -> ArrayStream:
        """Check the dtype's kind against `kinds` ("iu", "f", "S") and the number of dimensions against `ndims`."""
        if self.dtype.kind not in kinds or (self.dtype.kind != "S" and self.dtype.itemsize > 8):
            wanted = {"i": "integers", "f": "floats up to float64", "S": "bytes"}
            words = " or ".join(word for kind, word in wanted.items() if kind in kinds)
            raise self.error(f"dtype is {self.dtype}; it must be {words}")
        if len(self.shape) not in ndims:
            words = " or ".join(str(n) for n in ndims)
            raise self.error(f"has {len(self.shape)} dimensions (shape {self.shape}); it must have {words}")
        if self.fortran_order and len(self.shape) > 1:
            raise self.error("saved in Fortran order; save numpy.ascontiguousarray of it")
        return self

    def read(self, count: int) -> np.ndarray[Any, Any]:
        """The next `count` values (in C order), as int64, float64 or bytes."""
        values = np.frombuffer(self._bytes(count * self.dtype.itemsize), self.dtype)
        if self.dtype.kind == "f":
            return values.astype(np.float64, copy=False)
        if self.dtype.kind in "iu":
            if self.dtype.kind == "u" and values.size and int(values.max()) > np.iinfo(np.int64).max:
                raise self.error(f"holds {int(values.max())}, which does not fit in int64")
            return values.astype(np.int64, copy=False)
        return values

    def read_floats(self, count: int) -> FloatArray:
        """The next `count` values as float64."""
        return self.read(count).astype(np.float64, copy=False)

    def to_temporary_file(self) -> IO[bytes]:
        """All values in an anonymous temporary file, which can be read in any order."""
        return copy_to_temporary(self.path, self.name, self._file, self.count * self.dtype.itemsize)

    def close(self) -> None:
        """Close the stream."""
        self._file.close()


class ZipArrays:
    """An open .npz; all member names were checked, and are the same in the directory and before each member.

    A damaged name would hide an optional array from every format.

    Raises
    ------
    InputError : not a zip archive, encrypted, a damaged name, or a member that points outside (.., an absolute path,
        a drive letter) or is a link or a device.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._file = open_file(path)
        self._checked: set[str] = set()
        try:
            self._zip = zipfile.ZipFile(self._file)
            self.members = {info.filename: info for info in self._zip.infolist()}
            self._check_members(self._zip.infolist())
            for info in self._zip.infolist():
                self._opened(info).close()
        except InputError:
            self._file.close()
            raise
        except _BAD_HEADERS as error:
            self._file.close()
            raise_system_failure(error, path)
            raise InputError(path, f"not a readable .npz archive: {error}; write it again with numpy.savez") from None

    def _check_members(self, members: Sequence[zipfile.ZipInfo]) -> None:
        seen: set[str] = set()
        for info in members:
            name = info.orig_filename
            if info.filename in seen:
                raise InputError(self.path, f"member {quote(name)} is there twice; write the file again")
            seen.add(info.filename)
            if is_unsafe_name(name):
                raise InputError(self.path, f"member {quote(name)} points outside the archive; do not trust this file")
            kind = stat.S_IFMT(info.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                what = "a symbolic link" if kind == stat.S_IFLNK else "a special file"
                raise InputError(self.path, f"member {quote(name)} is {what}; an archive of arrays holds none")
            if info.comment:  # a damaged length makes the directory's next entries the comment of this one
                raise InputError(
                    self.path,
                    f"damaged: member {quote(name)} has a comment of {len(info.comment)} bytes, which numpy.savez "
                    "never writes; write the file again with numpy.savez",
                )
            if info.flag_bits & 1:
                raise InputError(self.path, f"member {quote(name)} is encrypted; write it without a password")
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise InputError(
                    self.path,
                    f"member {quote(name)} uses compression method {info.compress_type}; write the file with "
                    "numpy.savez or numpy.savez_compressed",
                )

    def _check_contents(self, info: zipfile.ZipInfo) -> None:
        """Read a member to its end, where zipfile compares its checksum."""
        with self._opened(info) as file:
            missing = info.file_size
            while missing:
                missing -= len(_piece(self.path, info.filename, file, min(missing, _CHECKED_PIECE)))
            try:
                file.read(1)  # compares the checksum of an empty member too
            except _DAMAGE as error:
                raise_system_failure(error, self.path)
                raise _damaged(self.path, info.filename, error) from None
        self._checked.add(info.filename)

    def _opened(self, info: zipfile.ZipInfo) -> IO[bytes]:
        try:
            return self._zip.open(info)
        except _BAD_HEADERS as error:
            raise_system_failure(error, self.path)
            raise _damaged(self.path, info.filename, error) from None

    def has(self, name: str) -> bool:
        """Whether there is an array of that name (without .npy)."""
        return f"{name}.npy" in self.members

    def check_names(self, known: Sequence[str]) -> None:
        """Raise InputError for the first member that is none of the arrays `known` (without .npy)."""
        for member in self.members:
            name = member.removesuffix(".npy")
            if name == member or name not in known:
                raise InputError(
                    self.path,
                    f"member {member[:80]!r} is none that is read: the arrays of this format are {', '.join(known)} "
                    "(.npy each); rename it or leave it out",
                )

    def open(self, name: str) -> ArrayStream:
        """The array of that name (without .npy), at its beginning; several may be open at the same time.

        On the first call all of it is read, in bounded memory, and InputError raised if its checksum (CRC-32) differs.
        """
        info = self.members[f"{name}.npy"]
        if info.filename not in self._checked:
            self._check_contents(info)
        return ArrayStream(self.path, info.filename, self._opened(info), info.file_size)

    def close(self) -> None:
        """Close the archive and its streams."""
        self._zip.close()
        self._file.close()


def zip_names(path: str) -> frozenset[str]:
    """Names of the members of a zip archive, unchanged; empty if it cannot be read."""
    try:
        with open_file(path) as file, zipfile.ZipFile(file) as archive:
            return frozenset(info.orig_filename for info in archive.infolist())
    except _BAD_HEADERS as error:
        raise_system_failure(error, path)
        return frozenset()


def open_npy(path: str) -> ArrayStream:
    """A plain .npy file at its beginning; raises InputError as :class:`ArrayStream` does."""
    file = open_file(path)
    try:
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        return ArrayStream(path, "", file, size)
    except BaseException:
        file.close()
        raise
