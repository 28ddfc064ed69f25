"""What convert and generate share: from a function that gives a partition's arrays to a whole store."""

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

__all__ = ["Description", "Progress", "assemble", "written_by"]

Progress = Callable[[str, int, int | None], None]
"""Called with a step, parts done, and of how many (None: unknown): states in "read", else partitions."""


@dataclass(frozen=True, slots=True)
class Description:
    """What a store's attributes say beyond what its writer counts."""

    sense: str
    partitioning: Mapping[str, Any]
    """Method and parameters."""
    provenance: Mapping[str, Any]
    """Source, format, options."""
    geometry: Mapping[str, Any] | None = None
    """Axes of a grid, where there is one."""


@dataclass(frozen=True, slots=True)
class MakePartition:
    """Compute a partition and write its chunks: one task, which another process can run."""

    arrays: Callable[[int], PartitionArrays]
    writer: PartitionWriter

    def __call__(self, task: tuple[int, TableSchema]) -> PartitionEntry:
        """The entry of partition p, written as far as the schema is known."""
        p, schema = task
        return self.writer.write(p, self.arrays(p), schema)


@dataclass(frozen=True, slots=True)
class FinishPartition:
    """Bring a partition's chunks to the schema of the whole table: one task."""

    writer: PartitionWriter
    schema: TableSchema

    def __call__(self, task: tuple[PartitionEntry, npt.NDArray[np.bool_]]) -> PartitionEntry:
        """The partition's final entry."""
        return self.writer.finish(task[0], self.schema, task[1])


@dataclass(frozen=True, slots=True)
class RestorePartition:
    """Look whether an earlier run's chunks are intact: one task."""

    writer: PartitionWriter

    def __call__(self, task: tuple[int, Mapping[str, Any]]) -> PartitionEntry | None:
        """Their entry, or None."""
        return self.writer.restore(*task)


def assemble(
    root: Path,
    numbering: StateOrder,
    arrays: Callable[[int], PartitionArrays],
    description: Description,
    schema: TableSchema,
    executor: Executor,
    progress: Progress | None = None,
    journal: Journal | None = None,
) -> None:
    """Fill the directory `root` with a store whose partition p is arrays(p); each p is asked for once.

    With a journal, partitions that it has and whose chunks are intact are not asked for, and others are noted in it.

    Parameters
    ----------
    arrays : any process of the executor may call it.
    schema : what is known of the table beforehand.
    """
    store, writer = StoreWriter(root, numbering.partition_ptr, schema), PartitionWriter(root)
    n = store.n_partitions

    def keep(entry: PartitionEntry) -> None:
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
    run(executor.map(MakePartition(arrays, writer), tasks, keep), "partitions", n - len(missing))
    written = ((store.entry(p), store.boundary(p)) for p in range(n))
    run(executor.map(FinishPartition(writer, store.schema), written, keep), "finish", 0)
    about: dict[str, Any] = {
        "uuid": str(uuid.uuid4()),
        "provenance": {**description.provenance, **written_by()},
        "partitioning": dict(description.partitioning),
        "geometry": None if description.geometry is None else dict(description.geometry),
    }
    store.finish(description.sense, numbering.state_order(), about)


def written_by() -> dict[str, str]:
    """Program, version and time, for provenance."""
    try:
        version = metadata.version("ooc-mdp")
    except metadata.PackageNotFoundError:
        version = "unknown"
    time = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"tool": "ooc-mdp", "version": version, "time": time}
