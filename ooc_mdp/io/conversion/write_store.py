"""Write a whole store from a function that returns a partition's arrays; shared by convert and generate."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.io.conversion.executor import Executor
from ooc_mdp.model.state_order import StateOrder
from ooc_mdp.store.journal import Journal
from ooc_mdp.store.partition_arrays import PartitionArrays
from ooc_mdp.store.partition_entry import PartitionEntry
from ooc_mdp.store.partition_writer import PartitionWriter
from ooc_mdp.store.schema import TableSchema
from ooc_mdp.store.writer import StoreWriter

__all__ = ["Progress", "StoreDescription", "tool_provenance", "write_store"]

Progress = Callable[[str, int, int | None], None]
"""Called with a step, the parts done and their total (None: unknown): states in "read", otherwise partitions."""


@dataclass(frozen=True, slots=True)
class StoreDescription:
    """The part of a store's attributes that its writer cannot count."""

    sense: str
    partitioning: Mapping[str, Any]
    """Method and parameters."""
    provenance: Mapping[str, Any]
    """Source, format, options."""
    geometry: Mapping[str, Any] | None = None
    """Axes of a grid, where there is one."""


@dataclass(frozen=True, slots=True)
class MakePartition:
    """Computes a partition and writes its chunks: a task that any process can run."""

    arrays: Callable[[int], PartitionArrays]
    writer: PartitionWriter

    def __call__(self, task: tuple[int, TableSchema]) -> PartitionEntry:
        """Write partition p as far as the schema is known, and return its entry."""
        p, schema = task
        return self.writer.write(p, self.arrays(p), schema)


@dataclass(frozen=True, slots=True)
class FinishPartition:
    """Brings a partition's chunks to the schema of the whole table: a task."""

    writer: PartitionWriter
    schema: TableSchema

    def __call__(self, task: tuple[PartitionEntry, npt.NDArray[np.bool_]]) -> PartitionEntry:
        """Return the partition's final entry."""
        return self.writer.finish(task[0], self.schema, task[1])


@dataclass(frozen=True, slots=True)
class RestorePartition:
    """Checks whether the chunks of an earlier run are intact: a task."""

    writer: PartitionWriter

    def __call__(self, task: tuple[int, Mapping[str, Any]]) -> PartitionEntry | None:
        """Return their entry, or None if a chunk is damaged."""
        return self.writer.restore(*task)


def write_store(
    root: Path,
    order: StateOrder,
    arrays: Callable[[int], PartitionArrays],
    description: StoreDescription,
    schema: TableSchema,
    executor: Executor,
    progress: Progress | None = None,
    journal: Journal | None = None,
) -> None:
    """Write a store into the directory `root`, whose partition p is arrays(p); each p is computed once.

    With a journal, partitions that it contains and whose chunks are intact are not computed; others are added to it.

    Parameters
    ----------
    arrays : returns a partition's arrays; any process of the executor may call it.
    schema : the part of the table's schema that is known in advance.
    """
    store, writer = StoreWriter(root, order.partition_ptr, schema), PartitionWriter(root)
    n = store.n_partitions

    def on_done(entry: PartitionEntry) -> None:
        if store.add(entry) and journal is not None:
            journal.append(entry.partition, entry.record())

    def run(entries: Generator[PartitionEntry, None, None], step: str, before: int) -> None:
        with closing(entries):
            for done, _ in enumerate(entries, before + 1):
                if progress is not None:
                    progress(step, done, n)

    if journal is not None:
        with closing(executor.map(RestorePartition(writer), journal.records.items())) as restored:
            for entry in restored:
                if entry is not None:
                    store.add(entry)
    missing = [p for p in range(n) if p not in store]
    tasks = ((p, store.schema) for p in missing)
    run(executor.map(MakePartition(arrays, writer), tasks, on_done), "partitions", n - len(missing))
    written = ((store.entry(p), store.boundary(p)) for p in range(n))
    run(executor.map(FinishPartition(writer, store.schema), written, on_done), "finish", 0)
    about: dict[str, Any] = {
        "uuid": str(uuid.uuid4()),
        "provenance": {**description.provenance, **tool_provenance()},
        "partitioning": dict(description.partitioning),
        "geometry": None if description.geometry is None else dict(description.geometry),
    }
    store.finish(description.sense, order.state_order(), about)


def tool_provenance() -> dict[str, str]:
    """Program, version and time, for provenance."""
    try:
        version = metadata.version("ooc-mdp")
    except metadata.PackageNotFoundError:
        version = "unknown"
    time = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"tool": "ooc-mdp", "version": version, "time": time}
