"""An option is written once, as a field of a frozen dataclass: its default, what it takes, and a sentence of help.

    @dataclass(frozen=True, slots=True)
    class RunOptions:
        heading: ClassVar[str] = "Output and limits"
        time_limit: float | None = option(None, POSITIVE, "Seconds until the solve stops with a checkpoint.")

        def __post_init__(self) -> None:
            read_options(self)

The rest is made of the fields: the command line's options (`ooc_mdp.cli.choices`), and the signature and docstring of a
function that takes them as keywords (`ooc_mdp.arguments.with_keywords`). What is read from text, such as "22%", may be
given as text everywhere.
"""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from ooc_mdp import arguments
from ooc_mdp.arguments import Kind, positive_number, real_number, whole_number
from ooc_mdp.errors import OptionsError
from ooc_mdp.quoting import quote
from ooc_mdp.sizes import parse_bytes

__all__ = [
    "COUNT",
    "FLAG",
    "NOT_NEGATIVE",
    "PATH",
    "POSITIVE",
    "SIZE",
    "WORD",
    "Option",
    "OptionType",
    "documentation",
    "one_of",
    "option",
    "options_in",
    "read_options",
]

_WIDTH = 110
"""Characters of a line of a docstring."""


@dataclass(frozen=True, slots=True)
class OptionType:
    """What an option takes."""

    parsed: Any
    """The type that the command line parses: bool, int, float, str, Path, or a Literal of words."""
    read: Callable[[str, Any], Any]
    """Check a value that is given for the option of a name, and convert it to the field's type; raises OptionsError."""


@dataclass(frozen=True, slots=True)
class Option:
    """An option, as a field declares it."""

    name: str
    """Of the field: "time_limit" is --time-limit on the command line."""
    default: Any
    takes: OptionType
    help: str
    """For the command line and for Python; what a default of None means is written as "[default: ...]"."""
    heading: str
    """Over the options of one subject, in the command line's help."""
    metavar: str | None
    """What the command line's help writes for a value; None for the name of its type, or its words."""

    @property
    def words(self) -> str:
        """Its name in a sentence."""
        return self.name.replace("_", " ")


def option(
    default: Any, takes: OptionType, help: str, *, heading: str | None = None, metavar: str | None = None
) -> Any:
    """A field that is an option; without a heading it comes under that of its class."""
    metadata = {"takes": takes, "help": help, "heading": heading, "metavar": metavar}
    return dataclasses.field(default=default, metadata=metadata)


def options_in(*classes: Any) -> Iterator[Option]:
    """The options that the fields of some dataclasses declare, in their order."""
    for each in classes:
        for field in dataclasses.fields(each):
            if field.metadata:
                declared = {**field.metadata, "heading": field.metadata["heading"] or each.heading}
                yield Option(field.name, field.default, **declared)


def read_options(options: Any) -> None:
    """Read and check what the options of a new object were given. None is kept where it is the default."""
    for each in options_in(type(options)):
        value = getattr(options, each.name)
        if value is not None or each.default is not None:
            object.__setattr__(options, each.name, each.takes.read(each.words, value))


def documentation(*classes: Any) -> str:
    """The options of some dataclasses as parameters of a docstring."""
    lines = []
    for each in options_in(*classes):
        text = f"{each.name} : {' '.join(each.help.split())}"
        lines += textwrap.wrap(text, _WIDTH, subsequent_indent="    ", break_on_hyphens=False)
    return "\n".join(lines)


def one_of(words: Any) -> OptionType:
    """One of the words of a Literal."""
    known = ", ".join(get_args(words))
    kind = Kind(lambda value: isinstance(value, str), f"one of {known}")

    def read(name: str, value: Any) -> Any:
        if kind.check(name, value) not in get_args(words):
            raise OptionsError(f"unknown {name} {quote(value)}; there are {known}")
        return value

    return OptionType(words, read)


def _read_not_negative(name: str, value: Any) -> float:
    number = real_number(name, value)
    if not number >= 0:
        raise OptionsError(f"{name} must not be negative, not {number}")
    return number


def _read_count(name: str, value: Any) -> int:
    number = whole_number(name, value)
    if number < 1:
        raise OptionsError(f"{name} is {number}; give at least 1")
    return number


FLAG = OptionType(bool, lambda name, value: bool(arguments.FLAG.check(name, value)))
WORD = OptionType(str, arguments.TEXT.check)
PATH = OptionType(Path, lambda name, value: Path(arguments.PATH.check(name, value)))
SIZE = OptionType(str, lambda name, value: parse_bytes(value, name))
"""Bytes, such as 67108864 or "64MiB"."""
POSITIVE = OptionType(float, positive_number)
NOT_NEGATIVE = OptionType(float, _read_not_negative)
COUNT = OptionType(int, _read_count)
"""A whole number of at least 1."""
