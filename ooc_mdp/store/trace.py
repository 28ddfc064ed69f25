"""The access trace of a solve, as CSV: one line an access, for cache curves and for the curious.

    access,partition,kind,visit,hit,sweeps,bound,priority,seconds
    0,17,frontier,1,0,12,3.1e-05,-inf,0.004

`kind` is frontier (the partition was swept) or auxiliary (read only to recompute a priority), `visit` how many of the
partition's accesses were frontier ones so far, `hit` whether it was resident and used since its load, `bound` and
`priority` the partition's residual bound and rank afterwards. Lines that start with # say
what the columns belong to and, between accesses, what the solver decided and why (`# remark after 1.250000 s: ...`).
The last line, `# sha256: HEX`, is the SHA-256 of all bytes before it.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from ooc_mdp.errors import OptionsError, StoreError
from ooc_mdp.store.checkpoint import checkpoint_path
from ooc_mdp.store.disk_errors import advice
from ooc_mdp.store.metadata import PARTIAL_SUFFIX, PREVIOUS_SUFFIX
from ooc_mdp.store.output_lock import lock_path
from ooc_mdp.store.stage_file import stages_path
from ooc_mdp.store.transaction import check_not_inside_store

__all__ = [
    "TRACE_COLUMNS",
    "TRACE_DIGEST",
    "TRACE_REMARK",
    "TRACE_TITLE",
    "TRACE_VERSION",
    "Trace",
    "check_trace",
]

TRACE_TITLE = "# ooc-mdp trace"
"""Begins the first line; the version follows."""

TRACE_REMARK = "# remark"
"""Begins a line between accesses that says what the solver decided."""

TRACE_DIGEST = "# sha256: "
"""Begins the last line; the SHA-256 of all bytes before that line follows, in hexadecimal."""

TRACE_VERSION = 3
"""1 had neither visit nor priority; 2 had no digest."""

TRACE_COLUMNS = ("access", "partition", "kind", "visit", "hit", "sweeps", "bound", "priority", "seconds")


def check_trace(trace: Path, replace: bool, output: Path | None) -> None:
    """Refuse, before any work, a trace that could not be written or would replace what may not be.

    Parameters
    ----------
    output : the result that is asked for as well.

    Raises
    ------
    StoreError : the place is no place for a file, inside a store or result, or taken.
    OptionsError : it is the output's, or its checkpoint's.
    """
    if trace.is_dir():
        raise StoreError(f"cannot write the trace {trace}: it is a directory; name a file in it")
    if not trace.parent.is_dir():
        raise StoreError(f"cannot write the trace {trace}: {trace.parent} is no directory")
    if output is not None and trace.resolve() in _places_of(output):
        raise OptionsError(f"the trace {trace} would take the place of the result or its checkpoint; name another file")
    check_not_inside_store(trace)
    if trace.is_symlink() and (trace.is_file() or not trace.exists()):
        raise StoreError(
            f"the trace {trace} is a symbolic link, which is not followed; give the path that it points to"
        )
    if not trace.is_file():  # a device or pipe is written to as it is
        return
    if not replace:
        raise StoreError(f"the trace {trace} exists; name another file, or replace it with --overwrite")
    with trace.open("rb") as file:
        begins = file.read(len(TRACE_TITLE))
    if begins not in (b"", TRACE_TITLE.encode()):
        raise StoreError(f"{trace} is no trace, and is not replaced by one; name another file")


def _places_of(output: Path) -> set[Path]:
    """The result, its checkpoint and its lock, and where they are written."""
    checkpoint = checkpoint_path(output)
    unfinished = [place.with_name(place.name + PARTIAL_SUFFIX) for place in (output, checkpoint)]
    previous = output.with_name(output.name + PREVIOUS_SUFFIX)
    own = (output, checkpoint, *unfinished, previous, lock_path(output), stages_path(output))
    return {place.resolve() for place in own}


def _open_for_writing(path: Path) -> BinaryIO:
    """A file, emptied, but none behind a link; a device or pipe as it is."""
    is_special = path.exists() and not path.is_file()
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (0 if is_special else os.O_TRUNC | os.O_NOFOLLOW)
    return open(os.open(path, flags, 0o666), "wb", buffering=1 << 16)


class Trace:
    """Writes accesses as they happen; the file is complete up to the last flush if the process dies.

    A disk that fills up ends the trace and not the solve: :meth:`close` says so. A context manager, which closes it;
    where an error ends the solve, the trace is not sealed, and readers find it cut off.

    Raises
    ------
    OptionsError : the file cannot be written.
    """

    def __init__(self, path: Path, facts: Mapping[str, object]) -> None:
        try:
            self._file = _open_for_writing(path)
        except OSError as error:
            raise OptionsError(f"cannot write the trace {path}: {error.strerror}") from None
        self._path = path
        self._failure: OSError | None = None
        self._digest = hashlib.sha256()
        self._write(f"{TRACE_TITLE} {TRACE_VERSION}\n")
        for name, value in facts.items():
            self._write(f"# {name}: {value}\n")
        self._write(",".join(TRACE_COLUMNS) + "\n")
        self._count = 0
        self._visits: dict[int, int] = {}
        self._started = time.monotonic()

    def access(self, partition: int, auxiliary: bool, hit: bool, sweeps: int, bound: float, priority: float) -> None:
        """Note one access.

        Parameters
        ----------
        sweeps : sweeps of this access, 0 where it was auxiliary.
        bound : the bound in force on the partition's residual afterwards.
        priority : the scheduler's rank of the partition afterwards, larger is sooner; -inf where it is not dirty.
        """
        kind = "auxiliary" if auxiliary else "frontier"
        visit = self._visits.get(partition, 0) + (not auxiliary)
        self._visits[partition] = visit
        seconds = time.monotonic() - self._started
        self._write(
            f"{self._count},{partition},{kind},{visit},{hit:d},{sweeps},{bound:.6g},{priority!r},{seconds:.6f}\n"
        )
        self._count += 1

    def remark(self, text: str) -> None:
        """Note between two accesses what the solver has decided."""
        self._write(f"{TRACE_REMARK} after {time.monotonic() - self._started:.6f} s: {text}\n")

    def close(self) -> None:
        """Seal the trace and write out what is left.

        Raises
        ------
        StoreError : the disk was full; lines are missing.
        """
        if not self._file.closed:
            self._write(f"{TRACE_DIGEST}{self._digest.hexdigest()}\n")
        self._end()

    def _end(self) -> None:
        """Write out what is left; StoreError where the disk was full."""
        try:
            self._file.close()
        except OSError as error:
            self._failure = self._failure or error
        if self._failure is not None:
            raise StoreError(
                f"the trace {self._path} is cut off: {self._failure.strerror}; {advice(self._failure)} and solve "
                f"again for a whole one"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            self._end()
        except StoreError as cut_off:
            error.add_note(str(cut_off))  # what went wrong first is to be said first

    def _write(self, line: str) -> None:
        content = line.encode()
        self._digest.update(content)
        if self._failure is None:
            try:
                self._file.write(content)
            except OSError as error:
                self._failure = error
