"""Sizes as a user writes them, "256MiB" or "22%", and as numbers inside; and numbers as a user reads them.

:func:`parse_bytes` and :class:`CacheSize` read what is given; bytes are `int` everywhere else.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal

from ooc_mdp.arguments import MOST, whole_number
from ooc_mdp.errors import OptionsError
from ooc_mdp.quoting import quote

__all__ = ["CacheSize", "counted", "format_bytes", "format_seconds", "parse_bytes"]

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12} | {
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.ASCII | re.IGNORECASE)
_LARGEST_PERCENTAGE = 100


def parse_bytes(text: str | float, name: str = "") -> int:
    """Bytes in "64MiB", "1.5GB", "4096".

    Parameters
    ----------
    name : of the argument, for messages.

    Raises
    ------
    OptionsError : the text is no size, or not positive.
    """
    where = f"{name}: " if name else ""
    if not isinstance(text, str):
        size = whole_number(name or "a size", text, "; write for example 67108864, '64MiB' or '1.5GB'")
    else:
        match = _SIZE.fullmatch(text)
        unit = _UNITS.get(match[2].lower()) if match else None
        if match is None or unit is None:
            raise OptionsError(f"{where}{quote(text)} is no size; write for example 67108864, 64MiB or 1.5GB")
        exact = Decimal(match[1]) * unit
        size = whole_number(name or "a size", int(min(exact, Decimal(MOST + 1))))
    if size <= 0:
        raise OptionsError(f"{where}a size of {size} bytes cannot hold anything; give a positive one")
    return size


def format_bytes(size: int | float) -> str:
    """Bytes for people: "64.0 MiB"."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.2f} TiB"


def counted(number: int, noun: str) -> str:
    """A number of things for people: "1 partition", "1,600 partitions"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def format_seconds(seconds: float) -> str:
    """A time for people: "320 ms", "2.5 seconds", "9.1 hours"."""
    if seconds < 1.0:
        return "less than 1 ms" if seconds < 1e-3 else f"{1000 * seconds:.0f} ms"
    for unit, length in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:.1f} seconds"


@dataclass(frozen=True, slots=True)
class CacheSize:
    """Size of a partition cache: bytes (`size`), a number of partitions, or a share of the table."""

    size: int | None = None
    share: float | None = None
    """Fraction of the table, in (0, 1]."""
    partitions: int | None = None
    """Number of partitions, of the curves that `ooc_mdp.report.cache_report` prints."""

    @classmethod
    def parse(cls, text: str | float) -> CacheSize:
        """Read a budget of a solve, "256MiB", "22%" or 0.22 (of the table); raises OptionsError.

        A number without a unit is bytes; in a text one up to 100 is refused, since a share is meant.
        """
        if isinstance(text, float) and 0 < text <= 1:
            return cls(share=text)
        if isinstance(text, str) and text.strip().endswith("%"):
            try:
                share = float(text.strip()[:-1]) / 100
            except ValueError:
                raise OptionsError(f"{quote(text)} is no percentage; write for example 22%") from None
            if not 0 < share <= 1:
                raise OptionsError(f"a cache of {quote(text)} of the table: give a percentage above 0 and up to 100")
            return cls(share=share)
        bare = text.strip() if isinstance(text, str) else ""
        if re.fullmatch(r"[0-9]*\.?[0-9]+", bare) and 0 < (number := float(bare)) <= _LARGEST_PERCENTAGE:
            share, size = number if number >= 1 else 100 * number, math.floor(number)
            raise OptionsError(
                f"a cache of {bare} is {counted(size, 'byte')}, which hold no partition; did you mean {share:.12g}% of "
                f"the table, or {bare}MiB? (for bytes, write {bare}B)"
            )
        size = parse_bytes(text, "cache")
        return cls(size=size)

    @classmethod
    def parse_partitions(cls, text: str) -> CacheSize:
        """Read a size of a cache curve, "32" or "22%"; raises OptionsError."""
        if text.strip().endswith("%"):
            return cls.parse(text)
        if not re.fullmatch(r"\s*0*[1-9][0-9]{0,14}\s*", text):
            raise OptionsError(
                f"{quote(text)} is no cache size; write a number of partitions, such as 32, or a share, such as 22%"
            )
        return cls(partitions=int(text))

    @property
    def text(self) -> str:
        """The size as it is written: "22%", "67108864", or "32 partitions"."""
        if self.share is not None:
            return f"{100 * self.share:.12g}%"
        return str(self.size) if self.size is not None else f"{self.partitions} partitions"

    def resolve(self, table_bytes: int, largest_partition: int) -> int:
        """Bytes of the budget for a table and a largest partition of the given decoded sizes.

        A share is never less than the largest partition: 22% of a table of three partitions can be solved too.
        """
        if self.size is not None:
            return self.size
        return max(math.ceil((self.share or 1.0) * table_bytes), largest_partition)

    def resolve_partitions(self, n_partitions: int) -> int:
        """Partitions of the cache: a share is rounded down, but to 1 at least; raises OptionsError for too many."""
        if self.partitions is None:
            return max(math.floor(round((self.share or 1.0) * n_partitions, 6)), 1)
        if self.partitions > n_partitions:
            raise OptionsError(
                f"a cache of {self.partitions} partitions is larger than the table, which has {n_partitions}; "
                f"give --sizes as shares, such as 22%"
            )
        return self.partitions
