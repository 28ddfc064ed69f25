"""Locks an output before the work that makes it: a second process with the same output is refused, naming the first.

    OUTPUT.lock   held with flock from before the work until the output is in its place, then removed

    {"format": "ooc-mdp-lock", "pid": 12, "host": "name", "started": "2026-01-31T12:00:00+00:00",
     "command": "ooc-mdp solve ...", "process": "boot and time of its start", "token": "of this lock"}

The lock covers what lies beside the output as well: its checkpoint, and the directory in which it is written. A process
that is killed leaves the file without a lock on it, and the next one takes it over. Where the file system has no flock,
the file's existence is the lock: it is left behind where its process is of this host and does not run any more.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import secrets
import shlex
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from ooc_mdp.errors import StoreError
from ooc_mdp.store.disk_errors import NO_SPACE, advice
from ooc_mdp.store.locks import BusyError, is_at, refuse_readers, try_lock

__all__ = ["LOCK_SUFFIX", "lock_path", "locked_output", "refuse_busy"]

LOCK_SUFFIX = ".lock"

_FORMAT = "ooc-mdp-lock"
_BEGINNING = f'{{"format": "{_FORMAT}"'.encode()
_MAX_BYTES = 1 << 16
_MAX_COMMAND = 1000
"""Characters of the command line that are kept."""
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
"""How file systems say that they have no hard links."""


def lock_path(output: Path) -> Path:
    """The file that is locked for an output, beside it."""
    place = output.absolute()
    return place.parent / (place.name + LOCK_SUFFIX)


@contextmanager
def locked_output(output: Path | None, check: Callable[[Path], None] = lambda _: None) -> Iterator[None]:
    """Keep an output, and what lies beside it, from other processes for as long as it is worked on.

    Parameters
    ----------
    output : a store or result that is going to be written; None where there is none.
    check : raises where the output cannot be written; called before the lock is taken, because nothing is written
        beside such a place, and again under the lock, because another process may just have finished.

    Raises
    ------
    BusyError : another process is writing the output, or reading what would be replaced.
    StoreError : the lock's file cannot be written, or something else has its name.
    """
    if output is None:
        yield
        return
    check(output)
    lock = _OutputLock(output)
    try:
        try:
            lock.take()
        except OSError as error:
            raise StoreError(
                f"{output} cannot be written: its lock {lock.path} cannot be made ({error.strerror or error}); "
                f"{advice(error)}, or choose another name"
            ) from error
        check(output)
        refuse_readers(output)
        yield
    finally:
        lock.release()


def refuse_busy(output: Path) -> None:
    """Refuse an output that another process is writing or reading, without locking it: before its input is opened.

    Raises
    ------
    BusyError : as from :func:`locked_output`, which is still needed.
    """
    lock = _OutputLock(output)
    try:
        fd = os.open(lock.path, _FLAGS)
    except OSError:  # which is for `locked_output` to explain
        fd = None
    if fd is not None:
        try:
            owner = _Owner.read(fd)
            if owner is not None and owner.may_run() and not try_lock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB):
                raise lock.unknown(owner)
        except BlockingIOError:
            raise lock.busy(owner) from None
        finally:
            os.close(fd)
    refuse_readers(output)


_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class _Owner:
    """The process that a lock's file names."""

    pid: int
    host: str
    started: str
    """When it took the lock."""
    command: str
    process: str
    """What tells it from a later process of the same number; empty where the system does not say."""
    token: str = ""
    """Tells its locks from each other."""

    @classmethod
    def this_process(cls) -> _Owner:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        command = shlex.join(sys.argv)[:_MAX_COMMAND]
        return cls(os.getpid(), platform.node(), now, command, _process_of(os.getpid()), secrets.token_hex(8))

    @classmethod
    def read(cls, fd: int) -> _Owner | None:
        """Who the open file names; None where it is empty or was cut off."""
        content = os.pread(fd, _MAX_BYTES, 0) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
        try:
            document = json.loads(content)
            names = (str(document[name]) for name in ("host", "started", "command", "process"))
            return cls(int(document["pid"]), *names) if document["format"] == _FORMAT else None
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None

    def content(self) -> bytes:
        return json.dumps({"format": _FORMAT, **asdict(self)}).encode() + b"\n"

    def is_here(self) -> bool:
        return self.host == platform.node()

    def may_run(self) -> bool:
        """False where it is a process of this host that has ended."""
        if not self.is_here():
            return True
        try:
            os.kill(self.pid, 0)
        except (ProcessLookupError, OverflowError):
            return False
        except PermissionError:
            pass  # it runs, as another user
        now = _process_of(self.pid)
        return not (self.process and now) or self.process == now

    def __str__(self) -> str:
        return f" (pid {self.pid} on {self.host}, since {self.started})"


def _process_of(pid: int) -> str:
    """The boot, and the time since then at which a process began."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # The name, in parentheses, may hold spaces; the beginning is field 22 of all, the 20th after the name.
        return f"{boot} {Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[19]}"
    except (OSError, IndexError):
        return ""


class _OutputLock:
    """The lock of one output. A signal may stop `take` at any line: `release` then gives back what was taken."""

    def __init__(self, output: Path) -> None:
        self.output = output
        self.path = lock_path(output)
        self._fd: int | None = None
        self._content = b""
        """What the file holds where its existence is the lock; empty elsewhere."""

    def take(self) -> None:
        """Lock the output until `release`, taking over what a process that has ended left."""
        owner = _Owner.this_process()
        while True:
            try:
                self._fd = os.open(self.path, _FLAGS | os.O_RDWR | os.O_CREAT, 0o666)
            except (IsADirectoryError, NotADirectoryError):
                raise self._foreign() from None
            except OSError as error:
                if error.errno == errno.ELOOP:  # a symbolic link
                    raise self._foreign() from None
                raise
            self._check_ours(self._fd)
            try:
                has_locks = try_lock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                other = _Owner.read(self._fd)
                self._close()
                raise self.busy(other) from None
            if not has_locks:
                self._close()
                self._take_by_name(owner)
                return
            if is_at(self._fd, self.path, follow=False):
                break
            self._close()  # its owner removed it between the two calls: look again
        os.ftruncate(self._fd, 0)
        try:
            os.pwrite(self._fd, owner.content(), 0)
        except OSError as error:
            if error.errno not in NO_SPACE:  # the lock holds on a full disk, too, but names no process
                raise

    def release(self) -> None:
        """Give back the lock and remove its file; a file that cannot be removed is in no one's way."""
        with suppress(OSError):
            if self._content:
                if self.path.read_bytes() == self._content:
                    self.path.unlink()
            elif self._fd is not None:
                ours = try_lock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # again, as a signal may have come before
                if ours and is_at(self._fd, self.path, follow=False):
                    self.path.unlink()
        self._close()

    def busy(self, owner: _Owner | None) -> BusyError:
        by = owner or ""
        return BusyError(f"another process is writing {self.output}{by}; wait for it or choose another name")

    def unknown(self, owner: _Owner) -> BusyError:
        """The error where nothing but the file says that the output is being written."""
        if owner.is_here():
            return self.busy(owner)
        return BusyError(
            f"another process is writing {self.output}{owner}, says {self.path}; this file system has no locks that "
            f"would show whether it still runs: wait for it, or remove {self.path} if it does not"
        )

    def _take_by_name(self, owner: _Owner) -> None:
        """Make the file whole under another name, and link it to its own, which only one process can do."""
        mine = self.path.with_name(f"{self.path.name}.{owner.token}")
        aside = mine.with_name(f"{mine.name}.left")
        try:
            self._content = owner.content()
            mine.write_bytes(self._content)
            while not _link(mine, self.path, self._content):
                self._remove_left(aside)
        finally:
            for file in (mine, aside):
                file.unlink(missing_ok=True)

    def _remove_left(self, aside: Path) -> None:
        """Remove the file of a process that has ended; BusyError where it may run."""
        try:
            fd = os.open(self.path, _FLAGS)
        except FileNotFoundError:
            return
        try:
            owner = _Owner.read(fd)
            if owner is not None and owner.may_run():
                raise self.unknown(owner)
            with suppress(FileNotFoundError):
                self.path.rename(aside)
                if not is_at(fd, aside, follow=False):  # another process was faster, and this is its lock
                    with suppress(FileExistsError):
                        os.link(aside, self.path)
                aside.unlink()
        finally:
            os.close(fd)

    def _check_ours(self, fd: int) -> None:
        """Refuse to take over a file that is no lock."""
        content = os.pread(fd, len(_BEGINNING), 0) if stat.S_ISREG(os.fstat(fd).st_mode) else b"no file"
        if not _BEGINNING.startswith(content.rstrip(b"\0")):
            self._close()
            raise self._foreign()

    def _foreign(self) -> StoreError:
        return StoreError(
            f"{self.output} cannot be locked: {self.path} is no lock of ooc-mdp; move it, or choose another name"
        )

    def _close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


def _link(mine: Path, path: Path, content: bytes) -> bool:
    """Give a file a second name; False where something has that name. A new file where there are no links."""
    try:
        os.link(mine, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        try:
            with path.open("xb") as file:
                file.write(content)
        except FileExistsError:
            return False
    return True
