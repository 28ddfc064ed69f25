"""What a store in the making has finished, so that a later run can go on: a file beside its chunks.

    line 1      what is being made: problem, parameters, options, versions
    others      one partition each, written when all of its chunks are: what the writer knows of it, and its chunks'
                checksums; a later line about the same partition replaces an earlier one. Where rows are added in
                blocks, one block each, by its first state

Each line begins with the crc32c of the rest. A line that was cut off, and all after it, do not count; whether chunks
are what a line says is checked when a run goes on, so nothing needs to reach the disk in order. This module knows no
arrays.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import google_crc32c

from ooc_mdp.store.layout import JOURNAL_FILE

__all__ = ["Journal", "describe_differences"]


_APPEND = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


class Journal:
    """One journal, open for appending; any thread may append. A context manager, which closes it."""

    def __init__(self, file: int, header: dict[str, Any], records: dict[int, dict[str, Any]]) -> None:
        self.header = header
        self.records = records
        """Finished partitions, as they were when the journal was opened."""
        self.has_entries = bool(records)
        """Whether any partition is finished, now."""
        self._file = file
        self._lock = threading.Lock()

    @classmethod
    def create(cls, root: Path, header: Mapping[str, Any]) -> Self:
        """An empty journal in a directory that has none."""
        file = os.open(root / JOURNAL_FILE, _APPEND | os.O_CREAT | os.O_EXCL, 0o666)
        _write(file, header)
        return cls(file, json.loads(json.dumps(header)), {})

    @classmethod
    def resume(cls, root: Path) -> Self | None:
        """The journal of a directory, what follows its last whole line cut off; None if it has none."""
        try:
            file = os.open(root / JOURNAL_FILE, _APPEND)
        except FileNotFoundError:
            return None
        with os.fdopen(os.dup(file), "rb") as lines:
            documents, whole = _documents(lines.read())
        if not documents:
            os.close(file)
            return None
        os.ftruncate(file, whole)
        return cls(file, documents[0], {int(record["partition"]): record for record in documents[1:]})

    def append(self, p: int, record: Mapping[str, Any]) -> None:
        """Partition p is finished; lines are written one after the other, so that at most the last one is torn.

        Raises
        ------
        OSError : there is no room; the lines so far stay whole.
        """
        with self._lock:
            _write(self._file, {"partition": p, **record})
            self.has_entries = True

    def close(self) -> None:
        """No more is appended."""
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def describe_differences(begun: Mapping[str, Any], asked: Mapping[str, Any]) -> list[str]:
    """In which of its parts a header differs from another, in words; nested parts by their own names."""
    found = []
    asked = json.loads(json.dumps(asked))
    for name in sorted(set(begun) | set(asked)):
        one, other = begun.get(name), asked.get(name)
        if isinstance(one, dict) and isinstance(other, dict):
            found += describe_differences(one, other)
        elif one != other:
            found.append(f"{name} was {one}, is {other}")
    return found


def _write(file: int, document: Mapping[str, Any]) -> None:
    text = json.dumps(document).encode()
    line = b"%08x %s\n" % (google_crc32c.value(text), text)
    size = os.fstat(file).st_size
    rest = memoryview(line)
    try:
        while rest:  # a disk that fills up takes a part, and refuses the rest with a reason
            rest = rest[os.write(file, rest) :]
    except OSError:
        os.ftruncate(file, size)
        raise


def _documents(content: bytes) -> tuple[list[dict[str, Any]], int]:
    """The whole lines from the start, and where they end."""
    documents, end = [], 0
    while (stop := content.find(b"\n", end)) >= 0:
        check, _, text = content[end:stop].partition(b" ")
        if check != b"%08x" % google_crc32c.value(text):
            break
        documents.append(json.loads(text))
        end = stop + 1
    return documents, end
