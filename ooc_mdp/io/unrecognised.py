"""Messages for a source in no known format: what it seems to be, and what to do.

Only the first bytes, and the names in a zip archive, are examined; nothing here reads a model.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from ooc_mdp.errors import InputError
from ooc_mdp.io.arrays.array_stream import ZipArrays
from ooc_mdp.io.compressed import Decompressed, plain_name
from ooc_mdp.io.foreign import binary_kind, name_kind, text_kind
from ooc_mdp.quoting import printable, shorten

__all__ = ["diagnose"]

_SUFFIXES = {
    ".tra": "prism",
    ".drn": "drn",
    ".umb": "umb",
    ".xml": "johannsson-xml",
    ".npz": "arrays",
    ".txt": "johannsson or transition-list",
}


def diagnose(source: str, head: bytes, names: Sequence[str], compressed: str | None = None) -> InputError:
    """The error to raise for a source in no known format.

    Parameters
    ----------
    source : a regular file or a folder.
    head : the file's first 4096 bytes, decompressed; empty for a folder.
    names : the formats there are.
    compressed : the program that compressed the file; None if it is not compressed.

    Raises
    ------
    InputError : for a zip archive that is damaged or has an unsafe member; an unreadable file.
    """
    if os.path.isdir(source):
        return _folder(source)
    if compressed is None and head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return _zip(source)
    binary = binary_kind(head)
    if binary is not None:
        inside = f"this {compressed} file holds" if compressed else "this is"
        return InputError(source, f"{inside} {binary}", 1 if binary.startswith("UTF") else None)
    if not head.strip(b" \t\r\n"):
        return _blank(source, head, names)
    if head.lstrip().startswith(b"{"):
        return _json(source, head)
    if _is_utf16(head):
        return InputError(source, "this seems to be UTF-16 text; save it as UTF-8", 1)
    if b"\0" in head:
        return InputError(source, f"this is binary data of no known kind; {_known(names)}")
    text = text_kind(head)
    if text is not None:
        return InputError(source, f"this is {text}", 1)
    named = name_kind(plain_name(source))
    if named is not None:
        return InputError(source, f"by its name this is {named}", 1)
    guess = _SUFFIXES.get(os.path.splitext(plain_name(source))[1].lower())
    meant = f"; by its name it may be {guess}: name it with --format to see what is wrong" if guess else ""
    return InputError(source, f"not recognised{meant}; {_known(names)}", 1)


def _known(names: Sequence[str]) -> str:
    return f"the formats are {', '.join(names)} (choose one with --format)"


def _folder(source: str) -> InputError:
    if os.path.exists(os.path.join(source, "zarr.json")):
        return InputError(source, "this is a Zarr store, not a model to convert; solve it instead")
    return InputError(
        source,
        "this is a directory without P.npy or P0.npz; only format mdptoolbox reads one, else give a file",
    )


def _zip(source: str) -> InputError:
    archive = ZipArrays(source)
    members = sorted(archive.members)
    archive.close()
    if any(name.rsplit("/", 1)[-1] in ("zarr.json", ".zgroup", ".zarray") for name in members):
        return InputError(source, "this is a zipped Zarr store; unpack it and give the directory itself")
    shown = (
        ", ".join(shorten(printable(name)) for name in members[:6]) + (", ..." if len(members) > 6 else "") or "nothing"
    )
    return InputError(
        source,
        f"this archive holds {shown}; format arrays needs state_ptr, indptr, indices and data, "
        "format mdptoolbox needs P and R",
    )


def _blank(source: str, head: bytes, names: Sequence[str]) -> InputError:
    """The error for a file that begins blank: either all of it is, or something follows."""
    lines = 0
    with Decompressed(source) as file:
        while piece := file.read(1 << 20):
            if piece.strip(b" \t\r\n"):
                return InputError(source, f"the first {len(head)} bytes are blank; {_known(names)}")
            lines += piece.count(b"\n")
    return InputError(source, "the file holds nothing but blank lines; write the model again", max(1, lines))


def _json(source: str, head: bytes) -> InputError:
    if b'"zarr_format"' in head:
        return InputError(source, "this is Zarr metadata; to solve a store, give its directory")
    if b'"jani-version"' in head:
        return InputError(source, "this is a JANI model; export it with storm --exportbuild FILE.umb")
    return InputError(source, "this is JSON, which no format uses; a UMB file is the whole archive")


def _is_utf16(head: bytes) -> bool:
    even, odd = head[::2], head[1::2]
    half = max(1, len(odd))
    return (odd.count(0) > 0.9 * half and even.count(0) == 0) or (even.count(0) > 0.9 * half and odd.count(0) == 0)
