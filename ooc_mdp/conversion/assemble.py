"""What convert and generate share: from a function that gives a partition's arrays to a whole store."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from ooc_mdp.conversion.options import ConvertOptions
from ooc_mdp.conversion.schedule import run_all
from ooc_mdp.model.numbering import Numbering
from ooc_mdp.store.journal import Journal
from ooc_mdp.store.layout import Length
from ooc_mdp.store.writer import PartitionArrays, StoreWriter

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
    restored: set[int] = set()

    def restore(p: int) -> None:
        if writer.restore(p, records[p]):
            restored.add(p)

    def run(task: Callable[[int], None], partitions: Iterable[int], step: str | None = None, before: int = 0) -> None:
        def tell(done: int) -> None:
            if progress is not None and step is not None:
                progress(step, before + done, n)

        run_all((partial(task, p) for p in partitions), options.workers, tell)

    run(restore, records)
    run(make, [p for p in range(n) if p not in restored], "partitions", len(restored))
    run(finish, range(n), "finish")
    about: dict[str, Any] = {
        "uuid": str(uuid.uuid4()),
        "provenance": {**description.provenance, **written_by()},
        "partitioning": dict(description.partitioning),
        "geometry": None if description.geometry is None else dict(description.geometry),
    }
    writer.finish(description.sense, numbering.state_order(), about)


def written_by() -> dict[str, str]:
    """Program, version and time, for provenance."""
    try:
        version = metadata.version("ooc-mdp")
    except metadata.PackageNotFoundError:
        version = "unknown"
    time = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"tool": "ooc-mdp", "version": version, "time": time}
