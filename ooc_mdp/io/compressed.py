"""Files compressed with gzip, xz or bzip2, as streams of the bytes that they hold.

Which of them a file is, its first bytes say, not its name. Memory is bounded: a stream gives as many bytes as are asked
for, and an xz dictionary above 256 MiB is an error. A file may hold several compressed streams, one after the other.
This module knows no format.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import zlib
from typing import IO, Protocol

from ooc_mdp.errors import InputError
from ooc_mdp.io.files import open_file

__all__ = ["SUFFIXES", "Decompressed", "XzStream", "compression", "plain_name"]

_MAGIC = {b"\x1f\x8b": "gzip", b"\xfd7zXZ\x00": "xz", b"BZh": "bzip2"}
SUFFIXES = (".gz", ".xz", ".bz2")
"""Endings of the names of such files."""
_XZ_MEMORY = 256 << 20
_PIECE = 1 << 16
_DAMAGE = (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError)


def compression(head: bytes) -> str | None:
    """The program that compressed a file with these first bytes; None if the file is not compressed."""
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)


def plain_name(path: str) -> str:
    """The path without the ending of a compressed file."""
    stem, suffix = os.path.splitext(path)
    return stem if suffix.lower() in SUFFIXES else path


class _Stream(Protocol):
    def read(self, size: int, /) -> bytes: ...


class XzStream:
    """An .xz file decompressed with a limit on its dictionary."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)

    def read(self, size: int, /) -> bytes:
        """At most `size` of the next bytes, none at the end; EOFError where the file is cut."""
        while True:
            waiting = b""
            if self._decompressor.eof:
                waiting = self._decompressor.unused_data.lstrip(b"\0") or self._file.read(_PIECE).lstrip(b"\0")
                if not waiting:
                    return b""
                self._decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)
            elif self._decompressor.needs_input:
                waiting = self._file.read(_PIECE)
                if not waiting:
                    raise EOFError("the xz data end in the middle")
            piece = self._decompressor.decompress(waiting, size)
            if piece:
                return piece


class Decompressed:
    """A file read from its beginning, decompressed where it is compressed; a context manager, which closes it.

    Raises
    ------
    InputError : as :func:`~ooc_mdp.io.files.open_file` does.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._file = open_file(path)
        self.kind = compression(self._file.read(6))
        """The program that compressed it; None if it is not compressed."""
        self._file.seek(0)
        self.compressed_bytes = os.fstat(self._file.fileno()).st_size
        self._stream: _Stream = self._file
        if self.kind == "gzip":
            self._stream = gzip.GzipFile(fileobj=self._file)
        elif self.kind == "bzip2":
            self._stream = bz2.BZ2File(self._file)
        elif self.kind == "xz":
            self._stream = XzStream(self._file)

    def read(self, size: int) -> bytes:
        """At most `size` of the next bytes, none at the end; raises InputError where compressed data are damaged."""
        try:
            return self._stream.read(size)
        except _DAMAGE as error:
            if self.kind is None:
                raise InputError(self.path, f"cannot be read ({error}); check the disk that it is on") from None
            raise InputError(self.path, self._damage(error)) from None

    def _damage(self, error: Exception) -> str:
        why = str(error) or type(error).__name__
        if isinstance(error, lzma.LZMAError) and "limit" in why.lower():
            return f"the xz data need a dictionary above {_XZ_MEMORY >> 20} MiB; compress the file with xz -6"
        return f"the compressed data are damaged or cut short ({self.kind}: {why}); write the file again"

    def __enter__(self) -> Decompressed:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()
