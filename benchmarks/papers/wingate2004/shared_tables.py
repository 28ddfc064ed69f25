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
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.model.mdp import IntArray
from ooc_mdp.model.partition import PartitionTable
from ooc_mdp.model.table import Loader, Table

__all__ = ["SharedTables"]

_ALIGNED = 64


class SharedTables(Table):
    """A table over such a file; it is pickled by its path.

    Parameters
    ----------
    source : whose tables are written.
    path : of the file, which is created; it must be there as long as someone reads tables.
    """

    def __init__(self, source: Table, path: Path) -> None:
        self.facts = replace(source.facts, stored_fields=(), frame_buffer_bytes=0)
        self._path = path
        self._mapped: mmap.mmap | None = None
        self._source: Table | None = source
        """Where this object was made: what only the end of a solve asks for, such as the order of states."""
        starts = np.zeros(source.n_partitions + 1, np.int64)
        with path.open("wb") as file, ThreadPoolExecutor(os.cpu_count()) as threads:
            records = threads.map(lambda p: _record(source.read(p)[0]), range(source.n_partitions))
            for p, record in enumerate(records):
                file.write(record)
                starts[p + 1] = file.tell()
        self._starts = starts

    def __getstate__(self) -> dict[str, Any]:
        return {"facts": self.facts, "_path": self._path, "_starts": self._starts, "_mapped": None, "_source": None}

    def read(self, p: int) -> tuple[PartitionTable, int]:
        """Partition p's table, whose arrays lie in the mapping and cannot be written to."""
        if self._mapped is None:
            with self._path.open("rb") as file:
                self._mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return _table(memoryview(self._mapped)[self._starts[p] : self._starts[p + 1]]), 0

    def loader(self, device: str) -> Loader:
        """How the CPU gets at it."""
        return Loader(self.read, 0)

    def original_states(self, p: int) -> IntArray:
        """As the source has them, where this object was made."""
        assert self._source is not None
        return self._source.original_states(p)

    def to_source(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """In the order of the source's states, where this object was made."""
        assert self._source is not None
        return self._source.to_source(values)


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
