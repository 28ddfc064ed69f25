"""A text file whose bytes are read by offset, from any thread, plain or compressed.

A compressed file is decompressed once, when it is opened, into an unnamed file in the folder for temporary files
(TMPDIR), which vanishes when it is closed: it takes the text's size on disk there, and a megabyte of memory. Offsets
and lines are those of the text. This module knows no format.
"""

from __future__ import annotations

import os
import tempfile
import threading
import weakref
from typing import IO

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import InputError
from ooc_mdp.io.compressed import Decompressed
from ooc_mdp.io.files import open_file
from ooc_mdp.io.text.numbers import MAX_LINE

__all__ = ["Bytes", "TextFile"]

Bytes = npt.NDArray[np.uint8]
_PIECE = 1 << 20
_RATIO = 500
"""A larger file that expands more than this is taken for a decompression bomb: models expand 2 to 100 times."""
_UNSUSPICIOUS = 256 << 20
"""Bytes of text that any compressed file may hold."""


class TextFile:
    """An open text file.

    Raises
    ------
    InputError : it is not a regular file or may not be read; its compressed data are damaged, expand beyond reason or
        have no room in the folder for temporary files.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        """Named in messages."""
        self._text: IO[bytes] | None = None
        self._lock = threading.Lock()
        self.size = 0
        """Bytes of text."""
        with Decompressed(self.path) as source:
            if source.kind is None:
                self.size = source.compressed_bytes
                return
            self._text = self._temporary()
            self._release = weakref.finalize(self, self._text.close)
            try:
                self._decompress(source, self._text)
            except BaseException:
                self._release()
                raise

    def _temporary(self) -> IO[bytes]:
        """A new file without a name, which the finalizer closes."""
        try:
            file: IO[bytes] = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        except OSError as error:
            why = f"no file for its text can be made ({error.strerror or error})"
            raise InputError(self.path, f"{why}; set TMPDIR to a folder that may be written to") from None
        return file

    def _decompress(self, source: Decompressed, text: IO[bytes]) -> None:
        most = max(_UNSUSPICIOUS, _RATIO * source.compressed_bytes)
        since_newline = 0
        while piece := source.read(_PIECE):
            newline = piece.rfind(b"\n")
            since_newline = since_newline + len(piece) if newline < 0 else len(piece) - newline - 1
            self.size += len(piece)
            if since_newline > MAX_LINE + _PIECE:
                what = f"holds a line of more than {MAX_LINE} bytes"
                raise InputError(self.path, f"the {source.kind} file {what}; is it a text file?")
            if self.size > most:
                what = f"of {source.compressed_bytes} bytes expands to more than {most}, as no model does"
                raise InputError(self.path, f"the {source.kind} file {what}; decompress it first if it is one")
            self._keep(text, piece)

    def _keep(self, text: IO[bytes], piece: bytes) -> None:
        try:
            view = memoryview(piece)
            while view:
                view = view[text.write(view) :]
        except OSError as error:
            folder = tempfile.gettempdir()
            why = f"its text has no room in {folder} ({error.strerror}): {self.size} bytes so far"
            raise InputError(self.path, f"{why}; set TMPDIR to a folder with more room, or decompress it") from None

    def readinto(self, begin: int, view: memoryview) -> None:
        """Fill a view with the bytes from `begin` on; raises InputError where the file ends earlier."""
        if self._text is not None:
            with self._lock:
                self._fill(self._text, begin, view)
            return
        with open_file(self.path) as file:
            self._fill(file, begin, view)

    def _fill(self, file: IO[bytes], begin: int, view: memoryview) -> None:
        file.seek(begin)
        done = 0
        while done < len(view):
            got = file.readinto(view[done:])  # type: ignore[attr-defined]
            if not got:
                why = f"ends at byte {begin + done}, earlier than before: it changed while being read"
                raise InputError(self.path, why)
            done += got

    def read(self, begin: int, size: int) -> bytes:
        """At most `size` bytes from `begin` on: fewer at the end of the file."""
        piece = bytearray(max(0, min(size, self.size - begin)))
        self.readinto(begin, memoryview(piece))
        return bytes(piece)

    def close(self) -> None:
        """Remove the decompressed text; a plain file does not stay open between reads."""
        if self._text is not None:
            self._release()
