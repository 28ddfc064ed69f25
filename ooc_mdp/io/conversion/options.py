"""Options of making a store, checked once."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ooc_mdp.arguments import described, whole_number
from ooc_mdp.errors import OptionsError
from ooc_mdp.quoting import quote
from ooc_mdp.sizes import parse_bytes

__all__ = ["ConvertOptions", "options_of"]

_THREADS_PER_CORE = 64
"""Threads at most; each holds a partition."""


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """Options of convert and generate."""

    sense: Literal["max", "min"] | None = None
    """Whether values are maximised or minimised; None means the problem's own, or "max" for a file."""
    partitioner: Literal["ranges", "grid", "metis"] | None = None
    """How states are divided into partitions; None means "grid" where there is a shape, else "ranges"."""
    partition_size: int | None = None
    """Decoded bytes that a partition should not exceed; None means 1/256 of the table, 64 KiB to 64 MiB."""
    partitions: int | None = None
    """Number of partitions, instead of a size."""
    shape: tuple[int, ...] | None = None
    """Points along each axis of a grid, in C order."""
    partition_shape: tuple[int, ...] | None = None
    """States of a partition along each axis, instead of a size (grid only)."""
    partition_grid: tuple[int, ...] | None = None
    """Number of partitions along each axis, instead of a size (grid only)."""
    dtype: Literal["float32", "float64"] = "float64"
    """Type in which probabilities and rewards are stored."""
    threads: int = field(default_factory=lambda: os.cpu_count() or 1)
    """Threads of this process that parse, compute and write; memory grows with their number."""
    overwrite: bool = False
    """Replace a store of the same name when the new one is complete."""
    resume: bool = False
    """Continue a run with the same options that was stopped (generate only)."""

    def __post_init__(self) -> None:
        self._normalise()
        if self.sense not in (None, "max", "min"):
            raise OptionsError(f"sense is {quote(self.sense)}; give max or min")
        if self.partitioner not in (None, "ranges", "grid", "metis"):
            raise OptionsError(f"partitioner is {quote(self.partitioner)}; give ranges, grid or metis")
        if self.dtype not in ("float32", "float64"):
            raise OptionsError(f"dtype is {quote(self.dtype)}; give float32 or float64")
        for name in ("partition_size", "partitions", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise OptionsError(f"{name} is {value}; give at least 1")
        cores = os.cpu_count() or 1
        if self.threads > _THREADS_PER_CORE * cores:
            raise OptionsError(
                f"threads is {self.threads}; give at most {_THREADS_PER_CORE * cores}, {_THREADS_PER_CORE} for each of "
                f"the {cores} cores"
            )
        for name in ("shape", "partition_shape", "partition_grid"):
            value = getattr(self, name)
            if value is not None and (not value or min(value) < 1):
                raise OptionsError(f"{name} is {value}; give at least one axis and 1 along each")
        chosen = [
            n
            for n in ("partition_size", "partitions", "partition_shape", "partition_grid")
            if getattr(self, n) is not None
        ]
        if len(chosen) > 1:
            raise OptionsError(f"{' and '.join(chosen)} contradict each other; give one of them")
        if self.in_blocks and self.partitioner not in (None, "grid"):
            raise OptionsError(f"{chosen[0]} needs the partitioner grid, not {self.partitioner}")

    def _normalise(self) -> None:
        """Convert numbers to int and a dtype to its name; raises OptionsError for anything else."""
        for name in ("partition_size", "partitions", "threads"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, whole_number(name, value))
        dtype: Any = self.dtype
        try:
            object.__setattr__(self, "dtype", np.dtype(dtype).name)
        except TypeError:
            raise OptionsError(f"dtype is {quote(dtype)}; give float32 or float64") from None

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


def options_of(
    table: Mapping[str, Any],
    *,
    default_dtype: Literal["float32", "float64"],
    grid: Sequence[int] | None = None,
    overwrite: bool = False,
    resume: bool = False,
) -> ConvertOptions:
    """Parse and validate the keywords of :class:`ooc_mdp.tables.TableKeywords`; raises OptionsError."""
    size, threads, dtype = table.get("partition_size"), table.get("threads"), table.get("dtype")
    given = {} if threads is None else {"threads": threads}
    return ConvertOptions(
        sense=table.get("sense"),
        partitioner=table.get("partitioner") or ("grid" if grid is not None else None),
        partition_size=None if size is None else parse_bytes(size, "partition_size"),
        partitions=table.get("partitions"),
        shape=_axis_lengths("grid", grid),
        partition_shape=_axis_lengths("partition_shape", table.get("partition_shape")),
        partition_grid=_axis_lengths("partition_grid", table.get("partition_grid")),
        dtype=default_dtype if dtype is None else dtype,
        overwrite=overwrite,
        resume=resume,
        **given,
    )


def _axis_lengths(name: str, given: object) -> tuple[int, ...] | None:
    """Whole numbers along the axes of a grid; OptionsError for anything else."""
    if given is None:
        return None
    if isinstance(given, str | bytes | Mapping | Set) or not isinstance(given, Iterable):
        raise OptionsError(f"{name} is {described(given)}; give a whole number for each axis, such as (30, 30)")
    return tuple(whole_number(f"{name} along an axis", each) for each in given)
