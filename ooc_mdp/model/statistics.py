"""What a solve cost: loads, hits, bytes, sweeps and seconds, of the whole solve and of each worker."""

from __future__ import annotations

from dataclasses import dataclass, field

from ooc_mdp.model.table import TableFacts

__all__ = ["SolveStatistics", "WorkerStatistics"]


@dataclass(frozen=True, slots=True)
class WorkerStatistics:
    """What one of several workers did."""

    worker: int
    host: str
    device: str
    lost: bool
    """Whether it was lost on the way: then figures are those of its last report."""
    partitions: int
    """That it owned in the end."""
    loads: int
    bytes_read: int
    hit_rate: float
    backups: int
    idle_seconds: float
    """Waiting for others' values, with nothing of its own to do."""
    messages: int
    """Sent to other workers."""
    bytes_sent: int
    bytes_staged: int = 0
    """Copied from the shared store to its node, in a solve that stages partitions."""
    bytes_read_staged: int = 0
    """Loaded from copies on its node, with prefetched partitions that were not used."""
    bytes_read_shared: int = 0
    """Loaded from the shared store in a solve that stages partitions, likewise."""


@dataclass(slots=True)
class SolveStatistics:
    """What the solve cost; a resumed solve counts on."""

    n_states: int = 0
    n_partitions: int = 0
    cache_bytes: int = 0
    """Budget of the partition cache."""
    cache_peak_bytes: int = 0
    """Most bytes that the cache held."""
    table_bytes: int = 0
    """Decoded bytes of all partitions."""
    accesses: int = 0
    hits: int = 0
    misses: int = 0
    auxiliary_accesses: int = 0
    auxiliary_hits: int = 0
    loads: int = 0
    bytes_read: int = 0
    bytes_decoded: int = 0
    """Of the tables that were loaded into the cache."""
    visits: int = 0
    """Residencies in which a partition was swept."""
    sweeps: int = 0
    """Sweeps of a partition."""
    backups: int = 0
    """Backups of a state."""
    policy_evaluations: int = 0
    """Evaluations of the policy on its rows, without the table."""
    partitions_unread: int = 0
    solve_seconds: float = 0.0
    """Of work, those of resumed runs included."""
    source: str = "store"
    """Where tables came from: "store" (disk) or "recomputed"."""
    load_seconds: float = 0.0
    """Seconds of all threads together in reading and decoding tables, or in recomputing them."""
    workers: list[WorkerStatistics] = field(default_factory=list)
    """Of a solve on several."""

    @classmethod
    def of_table(cls, facts: TableFacts, cache_bytes: int) -> SolveStatistics:
        """Those of a solve that has done nothing yet, with such a budget of the cache."""
        return cls(
            n_states=facts.n_states,
            n_partitions=facts.n_partitions,
            cache_bytes=cache_bytes,
            table_bytes=int(facts.partition_bytes.sum()),
            source=facts.kind,
        )

    def __post_init__(self) -> None:
        """Take plain dictionaries, as files have them, for workers' statistics."""
        self.workers = [w if isinstance(w, WorkerStatistics) else WorkerStatistics(**w) for w in self.workers]

    @property
    def loads_per_partition(self) -> float:
        """Loads over partitions."""
        return self.loads / self.n_partitions if self.n_partitions else 0.0

    @property
    def hit_rate(self) -> float:
        """Hits an access, auxiliary accesses included."""
        accesses = self.accesses + self.auxiliary_accesses
        return (self.hits + self.auxiliary_hits) / accesses if accesses else 0.0
