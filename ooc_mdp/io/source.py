"""The protocols of a model reader: a named format that detects its files and opens a source of row blocks.

To add a format, write one module with a class that satisfies :class:`Format`, and name its module and
instance in ``_READERS`` of ``io/registry.py``. A reader checks everything that its file claims, in bounded memory:
counts announced by a file are compared with what follows, never used to allocate. Readers know nothing of
partitions, stores or Dask; they yield block readers, and the caller decides where these run and how many at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ooc_mdp.model.mdp import Block

if TYPE_CHECKING:
    from ooc_mdp.io.annotations import SourceAnnotations
    from ooc_mdp.io.left_out import LeftOut

__all__ = ["BlockReader", "Format", "ReadOptions", "Source", "reward_files"]

BlockReader = Callable[[], Block]
"""Reads one block; it may run in any thread, in any order, and raises InputError with the line in the whole file."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options that a user can set for a source."""

    rewards: Path | None = None
    """Reward file of a transition list or a PRISM .tra file (.srew or .trew)."""
    named_rewards: tuple[tuple[str, Path], ...] = ()
    """Names of reward structures with their files; a name may have a file for states and one for transitions."""
    reward_model: str | None = None
    """Name of the reward structure that becomes the table's, where the source has several (UMB, DRN, PRISM)."""
    normalize: bool = False
    """Divide each row by its sum instead of refusing one that does not sum to 1."""
    sense: str = "max"
    """ "max" or "min": which infinite reward means that an action is not available."""
    segment_bytes: int = 16 << 20
    """Bytes of text that one block reader parses."""


def reward_files(given: Any) -> dict[str, Any]:
    """Options of :class:`ReadOptions` for a path, or for one or several paths by the names of their structures."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        return {"rewards": Path(given)}
    single = (str, PathLike)
    paths = ((name, [each] if isinstance(each, single) else each) for name, each in given.items())
    return {"named_rewards": tuple((name, Path(path)) for name, own in paths for path in own)}


class Source(Protocol):
    """An open model, read in blocks of consecutive states."""

    path: str
    format: str
    n_states: int | None
    """Number of states where the source announces it (blocks are checked against it), else None until all is read."""
    left_out: LeftOut
    """What the source has and a store does not keep; complete once all blocks were read."""

    annotations: SourceAnnotations
    """Labels and names of reward models, which a store keeps; complete once `check_totals` was called."""

    def blocks(self) -> Iterator[BlockReader]:
        """Block readers in state order; together they cover every state once."""
        ...

    def check_totals(self) -> None:
        """Check what only the whole file shows; called once, after all blocks were read.

        From then on `n_states` is an int.

        Raises
        ------
        InputError : counts differ from those of the header, or a successor is beyond the last state.
        """
        ...

    def close(self) -> None:
        """Release files."""
        ...


class Format(Protocol):
    """A file format. To add one, see the module's docstring."""

    name: str
    """The word for --format."""
    description: str
    """One line for --help."""
    reward_options: tuple[str, ...]
    """Those of "rewards", "named_rewards" and "reward_model" that the format takes; others are refused."""

    def detect(self, source: str, head: bytes) -> bool:
        """Whether a source has this format, from its name and its first 4096 bytes."""
        ...

    def open(self, source: str, options: ReadOptions) -> Source:
        """Open a source and check what can be checked before it is read; raises InputError."""
        ...
