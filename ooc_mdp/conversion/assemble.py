"""What convert and generate share: from a function that gives a partition's arrays to a whole store."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from ooc_mdp.conversion.options import ConvertOptions
from ooc_mdp.conversion.schedule import run_in_order
from ooc_mdp.store.journal import Journal
from ooc_mdp.store.layout import Length
from ooc_mdp.store.numbering import Numbering
from ooc_mdp.store.writer import PartitionArrays, StoreWriter

__all__ = ["Description", "Progress", "assemble", "written_by"]

Progress = Callable[[str, int, int | None], None]
"""Called with a step ("read", "partitions", "finish"), parts done, and of how many (None: unknown)."""

_WINDOW = 1024
"""Partition tasks given to Dask at a time; their results are nothing, so only the graph takes memory."""


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


def assemble(
    root: Path,
    numbering: Numbering,
    arrays: Callable[[int], PartitionArrays],
    description: Description,
    options: ConvertOptions,
    progress: Progress | None = None,
    lengths: Mapping[Length, int] | None = None,
    exact_weights: bool = False,
    journal: Journal | None = None,
) -> None:
    """Fill the directory `root` with a store whose partition p is arrays(p); each p is asked for once.

    With a journal, partitions that it has and whose chunks are intact are not asked for, and others are noted in it.
    """
    writer = StoreWriter(root, numbering.partition_ptr, options.stored_dtype, lengths, exact_weights)
    n = writer.n_partitions

    def note(p: int) -> None:
        if journal is not None:
            journal.append(p, writer.record(p))

    def make(p: int) -> None:
        writer.write_partition(p, arrays(p))
        note(p)

    def finish(p: int) -> None:
        if writer.finish_partition(p):
            note(p)

    records = {} if journal is None else journal.records
    checks = (partial(writer.restore, p, record) for p, record in records.items())
    intact = run_in_order(checks, options.workers, _WINDOW)
    restored = {p for p, whole in zip(records, intact, strict=True) if whole}
    missing = [p for p in range(n) if p not in restored]
    for step, task, partitions in (("partitions", make, missing), ("finish", finish, range(n))):
        tasks = (partial(task, p) for p in partitions)
        for done, _ in enumerate(run_in_order(tasks, options.workers, _WINDOW), n - len(partitions) + 1):
            if progress is not None:
                progress(step, done, n)
    attributes: dict[str, Any] = {
        "sense": description.sense,
        "state_order": numbering.state_order(),
        "partitioning": dict(description.partitioning),
        "provenance": {**description.provenance, **written_by()},
        "uuid": str(uuid.uuid4()),
    }
    if description.geometry is not None:
        attributes["geometry"] = dict(description.geometry)
    writer.finish(attributes)


def written_by() -> dict[str, str]:
    """Program, version and time, for provenance."""
    try:
        version = metadata.version("ooc-mdp")
    except metadata.PackageNotFoundError:
        version = "unknown"
    time = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"tool": "ooc-mdp", "version": version, "time": time}
