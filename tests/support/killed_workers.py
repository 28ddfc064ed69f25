"""Worker processes of a conversion that are killed at the n-th partition that they write, whoever writes it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from distributed import Worker
from distributed.diagnostics.plugin import WorkerPlugin

from ooc_mdp.store.partition_arrays import PartitionArrays
from ooc_mdp.store.partition_entry import PartitionEntry
from ooc_mdp.store.partition_writer import PartitionWriter
from ooc_mdp.store.schema import TableSchema

__all__ = ["KillAt", "writers"]


class KillAt(WorkerPlugin):
    """Kills the process that writes the n-th partition (0: none), when its chunks are written and its entry is not.

    Parameters
    ----------
    folder : gets a file for each partition that is begun, named after its number in the order of beginnings and holding
        the process, and is seen by all workers.
    """

    name = "kill-at"

    def __init__(self, folder: Path, number: int) -> None:
        self.folder, self.number = folder, number

    def setup(self, worker: Worker) -> None:
        write = PartitionWriter.write

        def counted(
            self: PartitionWriter, p: int, part: PartitionArrays, schema: TableSchema, plugin: KillAt = self
        ) -> PartitionEntry:
            number = plugin.begin(p)
            entry = write(self, p, part, schema)
            if number == plugin.number:
                os.kill(os.getpid(), signal.SIGKILL)
            return entry

        PartitionWriter.write = counted  # type: ignore[method-assign]

    def begin(self, p: int) -> int:
        """The number of a partition in the order of beginnings, which no two share."""
        number = 1
        while True:
            try:
                file = os.open(self.folder / str(number), os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            except FileExistsError:
                number += 1
                continue
            with os.fdopen(file, "w") as text:
                text.write(f"{os.getpid()} {p}")
            return number


def writers(folder: Path) -> list[tuple[int, int]]:
    """(process, partition) of each beginning, in order."""
    begun = [tuple(map(int, (folder / str(i)).read_text().split())) for i in range(1, len(os.listdir(folder)) + 1)]
    return [(process, p) for process, p in begun]
