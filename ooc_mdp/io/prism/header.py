"""The first lines of PRISM's explicit files: comments, then a line of counts.

    # Transitions (MDP)          the type of the model, as recent versions of PRISM write it
    # Reward structure "name"    in a reward file
    3 4 6                        the counts

This module knows no transitions and no rewards.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ooc_mdp.errors import InputError
from ooc_mdp.io.foreign import text_kind
from ooc_mdp.io.text.errors import Field, diagnose_fields, encoding_error, error_at, number_error
from ooc_mdp.io.text.file import TextFile
from ooc_mdp.io.text.source import iter_lines

__all__ = ["Header", "first_text", "read_header"]

_LOOK = 1 << 14
_TYPE = re.compile(r"# ?transitions ?\((\w+)\)", re.IGNORECASE)
_STRUCTURE = "# reward structure"


@dataclass(slots=True)
class Header:
    """What the first lines of a file say."""

    kind: str | None = None
    """The type of the model, in capitals, where a comment has it."""
    name: str | None = None
    """The name of the reward structure, where a comment has it."""
    counts: tuple[int, ...] = ()
    at: int = 0
    """Offset of the line of counts."""
    end: int = 0
    """Offset after that line."""


def read_header(file: TextFile, allowed: Sequence[Sequence[Field]], what: str) -> Header:
    """Read comments and the line of counts.

    Parameters
    ----------
    allowed : the counts that the line may have; its number of fields decides, and the first is named otherwise.
    what : what is expected, for messages.

    Raises
    ------
    InputError : there is no such line, or a count is not a number or negative.
    """
    header = Header()
    header.at, header.end, text = first_text(file, what, lambda comment: _read_comment(header, comment))
    header.counts = _counts(file, header.at, text, allowed, what)
    return header


def first_text(
    file: TextFile, what: str, on_comment: Callable[[str], None] = lambda comment: None
) -> tuple[int, int, str]:
    """The offset, the end and the text of the first line that is neither blank nor a comment.

    Parameters
    ----------
    what : what is expected there, for messages.
    on_comment : called with each comment and blank line before it.

    Raises
    ------
    InputError : there is no such line, or it is not UTF-8 text.
    """
    if file.size == 0:
        raise InputError(file.path, f"the file is empty; {what} is expected", 1)
    for offset, buffer in iter_lines(file, 0, file.size, _LOOK):
        at = offset
        for raw in buffer.tobytes().split(b"\n")[:-1]:
            line = raw.removeprefix(b"\xef\xbb\xbf") if at == 0 else raw
            if at == 0 and line[:2] in (b"\xff\xfe", b"\xfe\xff"):
                raise InputError(file.path, "a UTF-16 file (byte-order mark); save it as UTF-8 text", 1)
            error = encoding_error(line)
            if error is not None:
                raise error_at(file, at, error)
            text = line.decode("utf-8").strip()
            if text and not text.startswith("#"):
                return at, min(file.size, at + len(raw) + 1), text
            on_comment(text)
            at += len(raw) + 1
    raise error_at(file, file.size - 1, f"nothing but blank lines and comments; {what} is expected")


def _read_comment(header: Header, text: str) -> None:
    match = _TYPE.match(text)
    if match is not None:
        header.kind = match[1].upper()
    elif text.lower().startswith(_STRUCTURE):
        name = text[len(_STRUCTURE) :].strip().removeprefix(":").strip()
        header.name = name.removeprefix('"').removesuffix('"') or header.name


def _counts(file: TextFile, at: int, text: str, allowed: Sequence[Sequence[Field]], what: str) -> tuple[int, ...]:
    texts = text.split()
    fields = next((fields for fields in allowed if len(fields) == len(texts)), allowed[0])
    if len(texts) != len(fields) or any(map(number_error, texts, fields)):
        kind = text_kind(file.read(0, 4096))
        if kind is not None:
            raise error_at(file, at, f"this is {kind}")
        raise error_at(file, at, f"{diagnose_fields(texts, fields, 'a header')}; {what} is expected")
    counts = tuple(int(number) for number in texts)
    for count, field in zip(counts, fields, strict=True):
        if count < 0:
            raise error_at(file, at, f"{field.name} is {count}; it cannot be negative")
    return counts
