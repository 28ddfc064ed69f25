"""All tables of a problem in one file that several processes map: in RAM once, and ready before a solve begins.

    record of partition p:  number of arrays | their lengths | length of the head | head | arrays, each on 64 bytes
    the head is the table pickled without its arrays (protocol 5), which stay where they are in the mapping

The thesis's processors hold their partitions' tables in RAM before the clock starts. Here a load is a lookup, and pages
that workers of one machine map are the same.
"""

from __future__ import annotations

import mmap
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.model.partition import PartitionTable
from ooc_mdp.model.table_source import Loader, TableSource

__all__ = ["SharedTables"]

_ALIGNED = 64
_TOLD = (
    "name", "kind", "fingerprint", "attributes", "fields", "dyadic_probabilities", "duration_dtype", "sense",
    "n_states", "n_partitions", "partition_ptr", "partition_halo", "partition_bytes", "reward_range", "duration_range",
    "row_sum_range", "max_successors", "coupling",
)  # fmt: skip
"""What of a `TableSource` is as small as a few numbers a partition."""


class SharedTables:
    """A table source (`ooc_mdp.model.table_source.TableSource`) over such a file; it is pickled by its path.

    Parameters
    ----------
    source : whose tables are written.
    path : of the file, which is created; it must be there as long as someone reads tables.
    """

    stored_fields = ()
    """None: tables do not come from chunks."""
    frame_buffer_bytes = 0

    def __init__(self, source: TableSource, path: Path) -> None:
        self._told: dict[str, Any] = {name: getattr(source, name) for name in _TOLD}
        self._path = path
        self._mapped: mmap.mmap | None = None
        self._source: TableSource | None = source
        """Where this object was made: what only the end of a solve asks for, such as the order of states."""
        starts = np.zeros(source.n_partitions + 1, np.int64)
        with path.open("wb") as file, ThreadPoolExecutor(os.cpu_count()) as threads:
            records = threads.map(lambda p: _record(source.read(p)[0]), range(source.n_partitions))
            for p, record in enumerate(records):
                file.write(record)
                starts[p + 1] = file.tell()
        self._starts = starts

    def hold(self) -> AbstractContextManager[None]:
        """Nothing: the file is this object's own."""
        return nullcontext()

    def __getstate__(self) -> dict[str, Any]:
        return {"_told": self._told, "_path": self._path, "_starts": self._starts, "_mapped": None, "_source": None}

    def __getattr__(self, name: str) -> Any:
        """Everything but the tables is the source's."""
        if name.startswith("_"):
            raise AttributeError(name)
        return self._told[name] if name in self._told else getattr(self._source, name)

    def read(self, p: int) -> tuple[PartitionTable, int]:
        """Partition p's table, whose arrays lie in the mapping and cannot be written to."""
        if self._mapped is None:
            with self._path.open("rb") as file:
                self._mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return _table(memoryview(self._mapped)[self._starts[p] : self._starts[p + 1]]), 0

    def read_field(self, name: str, p: int) -> tuple[npt.NDArray[Any], int]:
        """One field of partition p's table."""
        return getattr(self.read(p)[0], name), 0

    def loader(self, device: str) -> Loader:
        """How the CPU gets at it."""
        return Loader(self.read, 0)


def _record(table: PartitionTable) -> bytes:
    arrays: list[pickle.PickleBuffer] = []
    head = pickle.dumps(table, protocol=5, buffer_callback=arrays.append)
    raw = [array.raw() for array in arrays]
    record = bytearray(np.array([len(raw), *(r.nbytes for r in raw), len(head)], np.int64).tobytes() + head)
    for r in raw:
        record += bytes(-len(record) % _ALIGNED) + r
    return bytes(record + bytes(-len(record) % _ALIGNED))


def _table(record: memoryview) -> PartitionTable:
    count = int(np.frombuffer(record, np.int64, 1)[0])
    *lengths, head = np.frombuffer(record, np.int64, count + 1, 8).tolist()
    at = 8 * (count + 2)
    arrays, end = [], at + head
    for length in lengths:
        start = end + -end % _ALIGNED
        end = start + length
        arrays.append(record[start:end])
    table: PartitionTable = pickle.loads(record[at : at + head], buffers=arrays)
    return table
