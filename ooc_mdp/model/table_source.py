"""What a solver needs of whatever holds an MDP's table in partitions: a store on disk, or a problem that is recomputed.

Small arrays (a few numbers a partition, and the coupling) are in RAM; `read` gives one partition's table, from wherever
it comes. Solver, stager, verification and results know this protocol only. To add a source, define these and have
``tests/io/test_recomputed_table.py`` compare its tables with a store's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.partition import Coupling, PartitionTable, StoredField
from ooc_mdp.runtime.arena import TableMemory

__all__ = ["Loader", "TableSource", "TypedField"]


@dataclass(frozen=True, slots=True)
class Loader:
    """How a source's tables come to a device."""

    read: Callable[[int], tuple[PartitionTable, int]]
    """Partition p's table, and the bytes read from disk for it; any thread."""
    scratch_bytes: int
    """Most bytes that one read holds beside the table that it gives."""
    on_device: bool = False
    """Whether the table's large arrays, and the scratch, are in the device's memory already."""
    read_into: Callable[[int, TableMemory], tuple[PartitionTable, int]] | None = None
    """`read` into memory of the caller's, where the source can."""
    padding: float = 0.0
    """Share by which the arrays that `read_into` makes are longer in memory than in the table."""


class TypedField(Protocol):
    """A field of the table, of which solvers need the type only."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of its values."""
        ...


class TableSource(Protocol):
    """An MDP's table in partitions; safe to read from many threads."""

    @property
    def name(self) -> str:
        """What messages and results call it: a path, or the name of a problem."""
        ...

    @property
    def kind(self) -> str:
        """ "store" or "recomputed"."""
        ...

    @property
    def fingerprint(self) -> str:
        """Identity of the table: results and checkpoints belong to one."""
        ...

    @property
    def attributes(self) -> Mapping[str, Any]:
        """As ``docs/reference/store-format.md`` lists them: actions_per_state, successors_per_action, ..."""
        ...

    @property
    def fields(self) -> Mapping[str, TypedField]:
        """The fields that the table has, by name."""
        ...

    @property
    def dyadic_probabilities(self) -> bool:
        """Whether each row's probabilities are known to be multiples of 2**-24 that sum to 1: 1 minus the others is
        then the last of them, without rounding in float32 too."""
        ...

    @property
    def duration_dtype(self) -> np.dtype[Any] | None:
        """Type that is known to hold every duration exactly; None where the table has none."""
        ...

    @property
    def stored_fields(self) -> tuple[StoredField, ...]:
        """How chunks hold the fields of the tables; empty where tables do not come from chunks."""
        ...

    @property
    def frame_buffer_bytes(self) -> int:
        """Bytes of a buffer that holds the chunks of any partition; 0 where there are none."""
        ...

    @property
    def sense(self) -> str:
        """ "max" or "min"."""
        ...

    @property
    def n_states(self) -> int:
        """Number of states."""
        ...

    @property
    def n_partitions(self) -> int:
        """Number of partitions P."""
        ...

    @property
    def partition_ptr(self) -> IntArray:
        """int64 [P+1]; partition p owns states partition_ptr[p] .. partition_ptr[p+1]-1."""
        ...

    @property
    def partition_rows(self) -> IntArray:
        """int64 [P]; (state, action) pairs."""
        ...

    @property
    def partition_transitions(self) -> IntArray:
        """int64 [P]; transitions."""
        ...

    @property
    def partition_halo(self) -> IntArray:
        """int64 [P]; halo states."""
        ...

    @property
    def partition_bytes(self) -> IntArray:
        """int64 [P]; decoded bytes of each table."""
        ...

    @property
    def reward_range(self) -> FloatArray:
        """float64 [P,2]; least and largest reward, terminal ones included."""
        ...

    @property
    def duration_range(self) -> FloatArray:
        """float64 [P,2]; least and largest duration."""
        ...

    @property
    def row_sum_range(self) -> FloatArray:
        """float64 [P,2]; least and largest sum of a row's probabilities, of the rows that do not end the process."""
        ...

    @property
    def max_successors(self) -> IntArray:
        """int64 [P]; transitions of the longest row."""
        ...

    @property
    def coupling(self) -> Coupling:
        """Largest probability mass that one row of p sends into q."""
        ...

    def load_code(self) -> None:
        """Load the compiled loops that reading takes, so that a memory plan counts them; reads nothing."""
        ...

    def loader(self, device: str) -> Loader:
        """How tables are read for a backend of this name ("cpu", "cuda:0")."""
        ...

    def hold(self) -> AbstractContextManager[None]:
        """Keep the tables as they are while a solve reads them: a store is not replaced meanwhile."""
        ...

    def read(self, p: int) -> tuple[PartitionTable, int]:
        """Partition p's table, and the bytes read from disk for it."""
        ...

    def read_field(self, name: str, p: int) -> tuple[npt.NDArray[Any], int]:
        """One field of partition p's table, empty if the table lacks it, and the bytes read for it."""
        ...

    def action_counts(self, p: int) -> IntArray:
        """int64 [n]; number of actions of each state of partition p."""
        ...

    def original_states(self, p: int) -> IntArray:
        """int64 [n]; the source's numbers of partition p's states."""
        ...

    def to_source(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Values in the order of partitions, in the source's order of states."""
        ...
