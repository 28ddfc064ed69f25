"""Blocks of rows that are added one by one, in any order, and kept on disk until all states have theirs.

    FOLDER/.journal     what is being built, and one line for each block, when its file is whole
    FOLDER/0000000000   the rows of the block that begins with that state (`row_spool`)

A process that is killed loses the blocks that it was adding and no others: when the folder is opened again, each file
is compared with the length and the checksum in its line, and a file that differs does not count.
"""

from __future__ import annotations

import threading
from bisect import bisect_right, insort
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ooc_mdp.errors import InputError
from ooc_mdp.io.conversion.from_problem import open_journal
from ooc_mdp.io.conversion.row_spool import Spool, SpoolFile, write_spool_file
from ooc_mdp.model.mdp import Block
from ooc_mdp.store.chunk_file import crc32c_function

__all__ = ["AddedRows"]

_SHOWN = 5
"""Gaps that a message lists."""


class AddedRows:
    """The blocks of a folder; any thread may add one.

    Parameters
    ----------
    folder : holds the blocks, and those of an earlier process where `resume` is given.
    header : what is being built; blocks of an earlier process are of no other header.
    name : names the store in messages.

    Raises
    ------
    StoreError : the folder has blocks of something else.
    """

    def __init__(self, folder: Path, n_states: int, header: Mapping[str, Any], name: str, resume: bool) -> None:
        self._folder, self._n_states, self._name = folder, n_states, name
        self._lock = threading.Lock()
        folder.mkdir(exist_ok=True)
        self._journal = open_journal(folder, header, resume)
        self._files: dict[int, SpoolFile] = {}
        self._ranges: list[tuple[int, int]] = []
        """First state and one past the last of each block, ascending; those that are being written, too."""
        for record in self._journal.records.values():
            file = _restored(folder, record)
            if file is not None:
                self._files[file.first_state] = file
                insort(self._ranges, (file.first_state, file.end_state))

    @property
    def n_added(self) -> int:
        """Number of states whose rows are on disk."""
        return sum(file.n_states for file in self._files.values())

    def add(self, block: Block) -> None:
        """Write a block, and count it once it is whole.

        Raises
        ------
        InputError : rows of some of its states are there, or states are beyond the last.
        """
        first, last = block.first_state, block.first_state + block.rows.n_states
        self._reserve(first, last)
        try:
            path = self._folder / f"{first:010d}"
            file = write_spool_file(path, block)
            self._journal.append(first, _record(file))
        except BaseException:
            with self._lock:
                self._ranges.remove((first, last))
            raise
        with self._lock:
            self._files[first] = file

    def missing(self) -> list[tuple[int, int]]:
        """Ranges of states without rows: the first, and one past the last."""
        gaps, end = [], 0
        with self._lock:
            for first, last in [*self._ranges, (self._n_states, self._n_states)]:
                if first > end:
                    gaps.append((end, first))
                end = max(end, last)
        return gaps

    def spool(self) -> Spool:
        """All rows, once no state is without.

        Raises
        ------
        InputError : some are.
        """
        gaps = self.missing()
        if gaps:
            listed = ", ".join(f"{first}..{last - 1}" for first, last in gaps[:_SHOWN])
            more = f" and {len(gaps) - _SHOWN} other ranges" if len(gaps) > _SHOWN else ""
            raise InputError(self._name, f"the rows of the states {listed}{more} are missing; add them before commit")
        return Spool([self._files[first] for first in sorted(self._files)])

    def close(self) -> None:
        """Close the journal; no more is added."""
        self._journal.close()

    def _reserve(self, first: int, last: int) -> None:
        if not 0 <= first < last <= self._n_states:
            raise InputError(
                self._name,
                f"a block has the states {first}..{last - 1}; the {self._n_states} states are 0..{self._n_states - 1}",
            )
        with self._lock:
            i = bisect_right(self._ranges, (first, last))
            for begin, end in self._ranges[max(i - 1, 0) : i + 1]:
                if begin < last and first < end:
                    raise InputError(
                        self._name,
                        f"the states {max(begin, first)}..{min(end, last) - 1} have their rows already; add each state "
                        "once (missing() lists those without rows)",
                    )
            insort(self._ranges, (first, last))


def _record(file: SpoolFile) -> dict[str, Any]:
    """What the journal says of a block."""
    content = asdict(file)
    content["path"] = file.path.name
    return {**content, **_checked(file.path)}


def _checked(path: Path) -> dict[str, int]:
    """Length and CRC-32C of a file."""
    content = np.memmap(path, np.uint8, "r")
    return {"n_bytes": content.size, "crc32c": int(crc32c_function()(content))}


def _restored(folder: Path, record: Mapping[str, Any]) -> SpoolFile | None:
    """The file of a block that another process wrote; None where it is not as it was written."""
    path = folder / str(record["path"])
    if not path.is_file() or _checked(path) != {name: record[name] for name in ("n_bytes", "crc32c")}:
        return None
    named = {name: record[name] for name in SpoolFile.__dataclass_fields__ if name != "path"}
    for name in ("actions", "successors"):
        named[name] = tuple(named[name])
    return SpoolFile(path=path, **named)
