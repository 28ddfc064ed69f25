"""Text of the user's in messages and tables: nothing of it acts on a terminal, and no message is as long as a file.

A name, label or token may come from a file that somebody else wrote. What a terminal would obey (control characters,
escape sequences, line ends, marks that turn the direction of writing) is shown as an escape such as \\x1b in its place.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["MOST_CHARACTERS", "listed", "printable", "quote", "shorten"]

MOST_CHARACTERS = 80
"""Of one name or token in a message."""
_LISTED = 8
"""Names that a message lists."""


def printable(text: object, keep: str = "") -> str:
    """The text with an escape for each character that is not printable, but for those to keep.

    Parameters
    ----------
    keep : characters that stay as they are, such as the line ends of a text of several lines.
    """
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in shown)


def shorten(text: object, most: int = MOST_CHARACTERS) -> str:
    """The beginning of a text, which ends in an ellipsis where anything is left out."""
    shown = str(text)
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def listed(names: Sequence[object]) -> str:
    """The first of several names, shortened and printable, and how many more there are."""
    named = ", ".join(shorten(printable(name)) for name in names[:_LISTED])
    return f"{named} and {len(names) - _LISTED} more" if len(names) > _LISTED else named


def quote(value: object, most: int = MOST_CHARACTERS) -> str:
    """A value as Python writes it, or the beginning of a text in quotes, for a message."""
    return repr(shorten(value, most)) if isinstance(value, str) else shorten(repr(value), most)
