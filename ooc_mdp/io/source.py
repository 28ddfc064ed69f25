"""What a model reader is: a named format that recognises itself and opens a source of row blocks.

To add a format, write one module with a class that satisfies :class:`Format`, and add an instance to
``FORMATS`` in ``io/registry.py``. A reader checks everything that its file claims, in bounded memory:
counts announced by a file are compared with what follows, never used to allocate. Readers know nothing of
partitions, stores or Dask; they hand out jobs, and whoever runs the jobs decides where and how many at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ooc_mdp.model.mdp import Block

__all__ = ["Format", "Job", "ReadOptions", "Source"]

Job = Callable[[], Block]
"""Reads one block; may run in any thread, in any order; raises InputError with the line in the whole file."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What the user may say about a source."""

    rewards: Path | None = None
    """A reward file beside the transitions (transition list; PRISM .srew or .trew)."""
    reward_model: str | None = None
    """Name of the reward structure to take, where the source holds several (UMB, DRN, PRISM)."""
    renormalise: bool = False
    """Divide each row by its sum instead of refusing one that does not sum to 1."""
    segment_bytes: int = 16 << 20
    """Bytes of text that one job parses."""


class Source(Protocol):
    """An open model: its states in ascending order as jobs, each a block of consecutive states."""

    path: str
    format: str
    n_states: int | None
    """Number of states where the source announces it (jobs check against it), else None until all is read."""

    def jobs(self) -> Iterator[Job]:
        """Jobs in state order; together they cover every state once."""
        ...

    def finish(self) -> None:
        """Settle what only the whole file shows; called once after all jobs have succeeded.

        Raises InputError for it, e.g. for counts of the header or a successor beyond the last state. From here
        on `n_states` is an int.
        """
        ...

    def close(self) -> None:
        """Release files."""
        ...


class Format(Protocol):
    """A file format that can say whether a source is its own."""

    name: str
    """The word for --format."""
    description: str
    """One line for --help."""

    def detect(self, source: str, head: bytes) -> bool:
        """Whether this is our format, from the source's name and its first 4096 bytes."""
        ...

    def open(self, source: str, options: ReadOptions) -> Source:
        """Open and check what can be checked at once; raises InputError."""
        ...
