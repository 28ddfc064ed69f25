"""The Python file that a result or a virtual store names: data until the user trusts it, and it is unchanged.

Nothing is run here: the caller gets the bytes whose SHA-256 was compared, and runs those.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ooc_mdp.errors import OptionsError
from ooc_mdp.store.regular_file import read_regular_file

__all__ = ["file_contents", "is_recorded", "trusted_file"]

_MAX_FILE_BYTES = 16 << 20
"""A problem's file is refused above this."""


def file_contents(path: str) -> bytes:
    """All bytes of a problem's file; raises OSError or ValueError."""
    return read_regular_file(path, _MAX_FILE_BYTES).tobytes()


def is_recorded(recorded: Any, contents: bytes) -> bool:
    """Whether the recorded SHA-256 is that of the contents."""
    return _sha256(contents) == _text(recorded, "sha256")


def trusted_file(
    place: Path, recorded: Any, trust: bool, otherwise: str, note: Callable[[str], None]
) -> tuple[str, bytes]:
    """Path and contents of a recorded file, where it is trusted and unchanged.

    Parameters
    ----------
    place : the result or store that names the file.
    recorded : what it records: path and SHA-256.
    otherwise : what else the user can do, for messages.
    note : called with a sentence before the file is returned, which is then run.

    Raises
    ------
    OptionsError : the file is not trusted, cannot be read, or is another one.
    """
    path, digest = _text(recorded, "path"), _text(recorded, "sha256")
    if path is None or digest is None:
        raise OptionsError(f"{place} belongs to the problem of a Python file that it does not name; {otherwise}")
    contents, now = b"", "the file cannot be read"
    try:
        contents = file_contents(path)
        now = f"SHA-256 {_sha256(contents)}"
    except (OSError, ValueError) as error:
        now = f"no file that can be read ({getattr(error, 'strerror', None) or error})"
    shown = f"{path!r} (recorded SHA-256 {digest!r}; there now: {now})"
    if not trust:
        raise OptionsError(
            f"{place} belongs to the problem of the Python file {shown}, which is not run only because {place.name} "
            f"names it; {otherwise}, or run the recorded one with --trust (in Python trust=True)"
        )
    if now != f"SHA-256 {digest}":
        raise OptionsError(f"--trust runs only the file that was recorded, and {shown} is another; {otherwise}")
    note(f"running the Python file {path!r} (SHA-256 {digest}), which {place} names")
    return path, contents


def _sha256(contents: bytes) -> str:
    return hashlib.sha256(contents).hexdigest()


def _text(recorded: Any, key: str) -> str | None:
    value = recorded.get(key) if isinstance(recorded, dict) else None
    return value if isinstance(value, str) else None
