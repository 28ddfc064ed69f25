"""Every error that a user can cause, each saying what, where, the numbers and the remedy.

The command line turns any :class:`OocMdpError` into a short message and exit status 2; anything else that
escapes is a defect of ours. Nothing here imports the rest of the package but `ooc_mdp.quoting`.
"""

from __future__ import annotations

import errno
import os
from os import PathLike
from typing import Any

from ooc_mdp.quoting import shorten

__all__ = [
    "ClusterError",
    "DamagedStoreError",
    "InputError",
    "MemoryBudgetError",
    "MissingExtraError",
    "OocMdpError",
    "OptionsError",
    "StoreError",
    "SystemFailureError",
    "UndefinedTotalError",
    "raise_system_failure",
    "system_remedy",
]

_MOST_CHARACTERS = 1000
"""Of a message about a file, whatever names and tokens it quotes from there."""

_REMEDIES = {
    errno.EMFILE: "this process may not open more files; allow more (ulimit -n 1024, for example) and try again",
    errno.ENFILE: "the system may not open more files; end other programs, or allow more (sysctl fs.file-max)",
    errno.ENOMEM: "end other programs, or lower --cache, --partition-size and --threads",
    errno.EIO: "look at the disk, or choose another",
    errno.ESTALE: "mount the file system again",
}
"""What to do about failures of the system that say nothing about the file that was asked for."""


class OocMdpError(Exception):
    """Base of the errors that the user can mend."""


class ClusterError(OocMdpError):
    """A Dask cluster cannot be reached, or its workers do not start or do not fit together."""


class OptionsError(OocMdpError):
    """An option is out of its range or contradicts another."""


class UndefinedTotalError(OptionsError):
    """Undiscounted totals are infinite or undefined.

    Parameters
    ----------
    message : which states, why, and the remedy.
    states : some of the states at fault, in the source's numbers.
    """

    def __init__(self, message: str, states: tuple[int, ...]) -> None:
        self.message = message
        self.states = states
        super().__init__(message, states)

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.states)


class InputError(OocMdpError):
    """A model file is not what its format promises.

    Parameters
    ----------
    path : the file (or other source) at fault.
    message : what is wrong and how to mend it, without file and line.
    line : 1-based line, counting comments and blank lines; None where the format has no lines.
    """

    def __init__(self, path: str | PathLike[str], message: str, line: int | None = None) -> None:
        self.path = str(path)
        self.message = message
        self.line = line
        super().__init__(path, message, line)

    def __str__(self) -> str:
        where = self.path if self.line is None else f"{self.path}, line {self.line}"
        return f"{where}: {shorten(self.message, _MOST_CHARACTERS)}"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.message, self.line)


class StoreError(OocMdpError):
    """A store or a result is missing, half-written, damaged or of another format version."""


class DamagedStoreError(StoreError):
    """A file of an open store is not the one in its manifest any more, or the store was replaced while it was read."""


class SystemFailureError(OocMdpError):
    """The operating system lacks what reading takes, or a disk fails; the files themselves may be whole."""


def system_remedy(error: BaseException) -> str | None:
    """What to do about a failure of the system; None for errors that say something about the file."""
    code = error.errno if isinstance(error, OSError) else None
    return None if code is None else _REMEDIES.get(code)


def raise_system_failure(error: BaseException, path: str | PathLike[str], purpose: str = "read") -> None:
    """Raise SystemFailureError where an error is no fault of the file that was being read; else do nothing.

    Parameters
    ----------
    purpose : what cannot be done with the path.
    """
    remedy = system_remedy(error)
    if remedy is not None and isinstance(error, OSError) and error.errno is not None:
        why = os.strerror(error.errno)
        raise SystemFailureError(f"{os.fspath(path)} cannot be {purpose}: {why}; {remedy}") from error


class MemoryBudgetError(OocMdpError):
    """A budget cannot hold what must be in memory at once."""


class MissingExtraError(OocMdpError):
    """An optional package is not installed; the message names the extra that brings it."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        self.package = package
        self.extra = extra
        self.purpose = purpose
        super().__init__(
            f"{purpose} needs the package {package}, which is not installed: pip install 'ooc-mdp[{extra}]'"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.package, self.extra, self.purpose)
