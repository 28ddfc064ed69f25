"""What the user may choose for a table that is made, checked once, as one frozen dataclass.

Its fields are the options of the commands that make tables, and keywords of the functions that do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypedDict

import numpy as np

from ooc_mdp.arguments import DTYPE, described, whole_number, with_keywords
from ooc_mdp.errors import OptionsError
from ooc_mdp.option_fields import COUNT, SIZE, OptionType, documentation, one_of, option, read_options
from ooc_mdp.quoting import quote
from ooc_mdp.runtime import quotas

__all__ = ["ConvertOptions", "TableKeywords", "options_of", "read_axes", "with_table_keywords"]

DType = Literal["float32", "float64"]
Partitioner = Literal["ranges", "grid", "metis"]
Sense = Literal["max", "min"]

_THREADS_PER_CORE = 64
"""Threads at most; each holds a partition."""


def read_axes(name: str, value: Any) -> tuple[int, ...]:
    """A whole number for each axis of a grid, such as (100, 200), "100,200" or "100x200"; raises OptionsError."""
    if isinstance(value, str):
        try:
            value = [int(number) for number in value.replace("x", ",").split(",")]
        except ValueError:
            raise OptionsError(f"{name} {quote(value)} is no list of numbers; write for example 100,200") from None
    if isinstance(value, bytes | Mapping | Set) or not isinstance(value, Iterable):
        raise OptionsError(f"{name} is {described(value)}; give a whole number for each axis, such as (30, 30)")
    axes = tuple(whole_number(f"{name} along an axis", each) for each in value)
    if not axes or min(axes) < 1:
        raise OptionsError(f"{name} is {axes}; give at least one axis and 1 along each")
    return axes


def _read_dtype(name: str, value: Any) -> str:
    try:
        dtype: str = np.dtype(DTYPE.check(name, value)).name
    except TypeError:
        dtype = str(value)
    if dtype not in ("float32", "float64"):
        raise OptionsError(f"{name} is {quote(dtype)}; give float32 or float64")
    return dtype


_AXES = OptionType(str, read_axes)


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """How states are divided into partitions, the type of the numbers, and what computes them."""

    heading: ClassVar[str] = "Partitions"

    sense: Sense | None = option(
        None,
        one_of(Sense),
        "Whether values are maximised or minimised.  [default: the problem's own; max for a file]",
    )
    partitioner: Partitioner | None = option(
        None,
        one_of(Partitioner),
        "Ranges of consecutive states, blocks of a grid, or METIS (holds the state graph in memory).  [default: grid "
        "where the states are a grid, else ranges]",
    )
    partition_size: int | None = option(
        None, SIZE, "Decoded bytes of a partition, such as 64MiB.  [default: 1/256 of the table, 64KiB to 64MiB]"
    )
    partitions: int | None = option(None, COUNT, "Number of partitions, instead of a size.")
    partition_grid: tuple[int, ...] | None = option(
        None, _AXES, "Partitions along each axis of a grid, such as 30,30, instead of a size."
    )
    partition_shape: tuple[int, ...] | None = option(
        None, _AXES, "Points of a partition along each axis of a grid, such as 10,10, instead of a size."
    )
    dtype: DType = option(
        None,
        OptionType(DType, _read_dtype),
        "Type of probabilities and rewards.  [default: the problem's own; float64 for a file]",
    )
    threads: int = option(
        None,
        COUNT,
        "Threads of this process that parse, compute and write.  [default: all cores]",
        heading="Threads and workers",
    )
    shape: tuple[int, ...] | None = None
    """Points along each axis of a grid, in C order."""
    overwrite: bool = False
    """Replace a store of the same name when the new one is complete."""
    resume: bool = False
    """Continue a run with the same options that was stopped (generate only)."""

    def __post_init__(self) -> None:
        read_options(self)
        if self.shape is not None:
            object.__setattr__(self, "shape", read_axes("grid", self.shape))
        cores = quotas.cores()
        for name, default in (("dtype", "float64"), ("threads", cores)):
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)
        if self.threads > _THREADS_PER_CORE * cores:
            raise OptionsError(
                f"threads is {self.threads}; give at most {_THREADS_PER_CORE * cores}, {_THREADS_PER_CORE} for each of "
                f"the {cores} cores"
            )
        chosen = [
            n
            for n in ("partition_size", "partitions", "partition_shape", "partition_grid")
            if getattr(self, n) is not None
        ]
        if len(chosen) > 1:
            raise OptionsError(f"{' and '.join(chosen)} contradict each other; give one of them")
        if self.in_blocks and self.partitioner not in (None, "grid"):
            raise OptionsError(f"{chosen[0]} needs the partitioner grid, not {self.partitioner}")

    @property
    def in_blocks(self) -> bool:
        """Whether the options divide a grid along each axis."""
        return self.partition_shape is not None or self.partition_grid is not None

    @property
    def stored_dtype(self) -> np.dtype[np.floating]:
        """The dtype as NumPy's."""
        return np.dtype(self.dtype)

    def grid_shape(self, n_states: int, own: tuple[int, ...] | None = None) -> tuple[int, ...] | None:
        """The grid of the model, if there is one: the option, else the model's own; it must have n_states states."""
        shape = self.shape or own
        if shape is None:
            return None
        if math.prod(shape) != n_states:
            raise OptionsError(f"a grid of shape {shape} has {math.prod(shape)} states, the model has {n_states}")
        return tuple(shape)


class TableKeywords(TypedDict, total=False):
    """How a table is made: the options as keywords that functions which make tables share."""

    sense: Literal["max", "min"] | None
    partitioner: Literal["ranges", "grid", "metis"] | None
    partition_size: str | int | None
    partitions: int | None
    partition_grid: Sequence[int] | str | None
    partition_shape: Sequence[int] | str | None
    dtype: Literal["float32", "float64"] | None
    threads: int | None


with_table_keywords = with_keywords(TableKeywords, documentation(ConvertOptions))
"""Lists `TableKeywords` in a function's signature and docstring in place of ``**table``; checks all keywords."""


def options_of(
    table: TableKeywords,
    *,
    default_dtype: DType,
    grid: Sequence[int] | str | None = None,
    overwrite: bool = False,
    resume: bool = False,
) -> ConvertOptions:
    """The options that keywords ask for, where the states may be a grid; raises OptionsError."""
    own: dict[str, Any] = {"dtype": default_dtype, "partitioner": None if grid is None else "grid", "shape": grid}
    given = {name: value for name, value in table.items() if value is not None}
    return ConvertOptions(**own | given, overwrite=overwrite, resume=resume)
