"""A table is facts and a reader: what is known of an MDP before any partition is read, and how one is read.

    Table ─┬─ facts    sizes, types, ranges, coupling: a few numbers per partition, in RAM; a value that others replace
           └─ methods  one partition's table, from a store on disk or computed on demand; any thread

What is made of another table (:class:`DerivedTable`) replaces the facts that differ and reads through it. Solver,
stager, verification and results know nothing else of it. To add a table, derive from :class:`Table` and have
``tests/io/test_recomputed_table.py`` compare its partitions with a store's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.model.annotations import NO_ANNOTATIONS, Annotations
from ooc_mdp.model.html_table import html_table
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.partition import Coupling, PartitionTable, RawPartition, StoredField
from ooc_mdp.model.state_order import GridOrder
from ooc_mdp.runtime.arena import TableMemory
from ooc_mdp.sizes import counted, format_bytes

__all__ = ["DerivedTable", "Loader", "Table", "TableFacts"]


@dataclass(frozen=True, eq=False)
class TableFacts:
    """Everything that is known of a table before a partition is read."""

    name: str
    """What messages and results call the table: a path, or the name of a problem."""
    kind: str
    """ "store" or "recomputed"."""
    fingerprint: str
    """Identity of the table: results and checkpoints belong to one."""
    attributes: Mapping[str, Any]
    """As ``docs/reference/store-format.md`` lists them: state_order, partitioning, provenance, ..."""
    dtypes: Mapping[str, np.dtype[Any]]
    """Types of the fields that the table has, by name."""
    sense: str
    """ "max" or "min"."""
    partition_ptr: IntArray
    """int64 [P+1]; partition p owns states partition_ptr[p] .. partition_ptr[p+1]-1."""
    partition_rows: IntArray
    """int64 [P]; (state, action) pairs."""
    partition_transitions: IntArray
    """int64 [P]; transitions."""
    partition_halo: IntArray
    """int64 [P]; halo states."""
    partition_bytes: IntArray
    """int64 [P]; decoded bytes of each partition's table."""
    reward_range: FloatArray
    """float64 [P,2]; least and largest reward, terminal ones included; (0, 0) if there is none."""
    duration_range: FloatArray
    """float64 [P,2]; least and largest duration, which may be infinite; (1, 1) without durations."""
    row_sum_range: FloatArray
    """float64 [P,2]; least and largest float64 sum of a row's probabilities, of the rows that do not end the process;
    (1, 1) without such rows."""
    max_successors: IntArray
    """int64 [P]; transitions of the longest row."""
    coupling: Coupling
    """Largest probability mass that one row of p sends into q; every p reads itself."""
    dyadic_probabilities: bool
    """Whether each row's probabilities are known to be multiples of 2**-24 that sum to 1: 1 minus the others is then
    the last of them, without rounding in float32 too."""
    duration_dtype: np.dtype[Any] | None
    """Type that is known to hold every duration exactly; None where the table has none."""
    stored_fields: tuple[StoredField, ...] = ()
    """How chunks hold the fields of the tables; empty where tables do not come from chunks."""
    frame_buffer_bytes: int = 0
    """Bytes of a buffer that holds the chunks of any partition; 0 where there are none."""

    @property
    def n_states(self) -> int:
        """Number of states."""
        return int(self.partition_ptr[-1])

    @property
    def n_partitions(self) -> int:
        """Number of partitions P."""
        return self.partition_ptr.size - 1

    @property
    def actions_per_state(self) -> int:
        """A where every state has A > 0 actions, else 0."""
        return int(self.attributes["actions_per_state"])

    @property
    def successors_per_action(self) -> int:
        """K where every row has K transitions, else 0."""
        return int(self.attributes["successors_per_action"])

    @property
    def grid(self) -> GridOrder | None:
        """The numbering of states that are a grid, if they are."""
        order = self.attributes["state_order"]
        return GridOrder.from_order(order, self.partition_ptr) if order["kind"] == "grid" else None


@dataclass(frozen=True, slots=True)
class Loader:
    """How a table's partitions come to a device: backends take from it the way that suits them."""

    read: Callable[[int], tuple[PartitionTable, int]]
    """Partition p's table, and the bytes read from disk for it; any thread, like the others."""
    scratch_bytes: int
    """Most bytes that one read holds beside the table that it gives."""
    on_device: bool = False
    """Whether the table's large arrays, and the scratch, are in the device's memory already."""
    read_into: Callable[[int, TableMemory, TableMemory | None], tuple[PartitionTable, int]] | None = None
    """`read` into memory of the caller's, the halo into other memory if that is given, where the table can."""
    padding: float = 0.0
    """Share by which the arrays that `read_into` makes are longer in memory than in the table."""
    read_frames: Callable[[int, npt.NDArray[np.uint8]], RawPartition] | None = None
    """Partition p's chunks, checked but not decompressed, in the caller's memory, where tables come from chunks."""
    prefetch: Callable[[int], None] | None = None
    """Ask the system to read partition p ahead, where that is of use; returns without waiting."""


class Table(ABC):
    """An MDP's table in partitions; safe to read from many threads."""

    facts: TableFacts

    @property
    def name(self) -> str:
        """What messages and results call the table."""
        return self.facts.name

    @property
    def fingerprint(self) -> str:
        """Identity of the table."""
        return self.facts.fingerprint

    @property
    def sense(self) -> str:
        """ "max" or "min"."""
        return self.facts.sense

    @property
    def n_states(self) -> int:
        """Number of states."""
        return self.facts.n_states

    @property
    def n_partitions(self) -> int:
        """Number of partitions P."""
        return self.facts.n_partitions

    def __repr__(self) -> str:
        states, partitions = counted(self.n_states, "state"), counted(self.n_partitions, "partition")
        return f"<{type(self).__name__} {self.name}: {states}, {partitions}>"

    def _repr_html_(self) -> str:
        """The sizes, as a notebook shows them."""
        facts, provenance = self.facts, dict(self.facts.attributes.get("provenance") or {})
        shape = dict(facts.attributes.get("geometry") or {}).get("shape")
        rows = [
            ("model", str(provenance.get("source", "unknown"))),
            ("sense", "maximise" if self.sense == "max" else "minimise"),
            ("states", f"{self.n_states:,}" + (f" = {' x '.join(map(str, shape))}" if shape else "")),
            ("state-action pairs", f"{int(facts.partition_rows.sum()):,}"),
            ("transitions", f"{int(facts.partition_transitions.sum()):,}"),
            ("partitions", f"{self.n_partitions:,}"),
            ("table", format_bytes(int(facts.partition_bytes.sum()))),
            ("fingerprint", self.fingerprint[:12]),
        ]
        return html_table(f"{type(self).__name__} {self.name}", rows)

    @abstractmethod
    def read(self, p: int) -> tuple[PartitionTable, int]:
        """Partition p's table, and the bytes read from disk for it."""

    @abstractmethod
    def loader(self, device: str) -> Loader:
        """How partitions are read for a backend of this name ("cpu", "cuda:0")."""

    def read_field(self, name: str, p: int) -> tuple[npt.NDArray[Any], int]:
        """One field of partition p's table, empty if the table lacks it, and the bytes read for it."""
        table, n_bytes = self.read(p)
        return getattr(table, name), n_bytes

    @property
    def annotations(self) -> Annotations:
        """Labels and reward models that are kept beside the table."""
        return NO_ANNOTATIONS

    def pass_bytes(self, loads: FloatArray | None = None) -> int:
        """Bytes that are read from disk where each partition is loaded once; 0 where none are.

        Parameters
        ----------
        loads : float64 [P]; how often each is loaded instead.
        """
        return 0

    def load_code(self) -> None:
        """Load the compiled loops that reading takes, so that a memory plan counts them; reads nothing."""
        return

    def hold(self) -> AbstractContextManager[None]:
        """Keep the table as it is while a solve reads it: a store is not replaced meanwhile."""
        return nullcontext()

    def checking_sha256(self) -> Table:
        """The same table, each chunk's SHA-256 compared as it is read, where there are chunks."""
        return self

    def contradictions(self, part: PartitionTable) -> Sequence[object]:
        """In what a partition that was read differs from the facts, all of these recomputed; nothing where the facts
        are no claims of a file's."""
        return ()

    def contradictions_bytes(self) -> IntArray:
        """int64 [P]; bytes of RAM that `contradictions` takes beside each partition's table."""
        return np.zeros(self.n_partitions, np.int64)

    def action_counts(self, p: int) -> IntArray:
        """int64 [n]; number of actions of each state of partition p."""
        uniform = self.facts.actions_per_state
        if uniform:
            return np.full(int(np.diff(self.facts.partition_ptr[p : p + 2])[0]), uniform, np.int64)
        return np.diff(self.read_field("action_ptr", p)[0]).astype(np.int64)

    @abstractmethod
    def original_states(self, p: int) -> IntArray:
        """int64 [n]; the source's numbers of partition p's states."""

    @abstractmethod
    def to_source(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Values in the order of partitions, in the source's order of states; `values` itself if both are the same."""


class DerivedTable(Table):
    """A table that is made of another one partition by partition, with facts of its own.

    What is not overridden is the other table's; to derive one, define `read`, `loader` and the facts.
    """

    base: Table

    @property
    def annotations(self) -> Annotations:
        """Those of the other table."""
        return self.base.annotations

    def pass_bytes(self, loads: FloatArray | None = None) -> int:
        """As the other table."""
        return self.base.pass_bytes(loads)

    def load_code(self) -> None:
        """As the other table."""
        self.base.load_code()

    def hold(self) -> AbstractContextManager[None]:
        """As the other table."""
        return self.base.hold()

    def contradictions(self, part: PartitionTable) -> Sequence[object]:
        """Those of the other table's partition, which is read again."""
        return self.base.contradictions(self.base.read(part.index)[0])

    def contradictions_bytes(self) -> IntArray:
        """Those of the other table, and its partition."""
        return self.base.contradictions_bytes() + self.base.facts.partition_bytes

    def action_counts(self, p: int) -> IntArray:
        """As the other table."""
        return self.base.action_counts(p)

    def original_states(self, p: int) -> IntArray:
        """As the other table."""
        return self.base.original_states(p)

    def to_source(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """As the other table."""
        return self.base.to_source(values)
