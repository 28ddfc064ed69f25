"""All or nothing: a store is written beside its place and appears there in one rename.

    STORE.partial/.lock   held by the writer with flock; it travels along with the rename and is removed after
                          it, so nobody can take STORE.partial while its content is on the way to STORE
    STORE                 absent, or the whole previous store, until the rename; the whole new one after it

A leftover of a dead writer holds no lock and is emptied by the next one. Replacing a store exchanges the two
directories in one step (renameat2); where the file system cannot, the old one waits as STORE.previous in
between, and the next writer puts it back if it finds no STORE. A writer that can go on where another was stopped says
so, and then finds STORE.partial as that one left it. This module knows no arrays.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from ooc_mdp.errors import StoreError
from ooc_mdp.store.disk_faults import BROKEN_DISK, NO_PERMISSION, NO_ROOM
from ooc_mdp.store.layout import GROUP_FILE, JOURNAL_FILE, LOCK_FILE
from ooc_mdp.store.metadata import PARTIAL_SUFFIX, PREVIOUS_SUFFIX, read_metadata

__all__ = ["InPlaceError", "check_outside", "check_target", "clear", "leftover", "sync", "writing"]

_RENAME_EXCHANGE = 2
_AT_FDCWD = -100
_FSYNC_THREADS = 8


@contextmanager
def writing(
    store: Path,
    overwrite: bool,
    recognise: Callable[[Path], object] = read_metadata,
    *,
    resume: bool = False,
    keep: Callable[[BaseException], bool] = lambda error: False,
) -> Iterator[Path]:
    """Yield the directory to write into; on leaving, sync and move it to `store`, or remove it on an error.

    Parameters
    ----------
    recognise : raises StoreError for what may not be overwritten, being not of the kind that is written.
    resume : yield what another writer left as it is, instead of empty.
    keep : whether an error leaves the directory as it is, for a later writer that resumes.

    Raises
    ------
    StoreError : `store` exists (and is not to be overwritten, or is something else), another process is
        writing it, or the disk is full or not writable.
    """
    _check_place(store)
    partial = store.with_name(store.name + PARTIAL_SUFFIX)
    moved = False
    try:
        with closing(_Lock(partial)) as lock:
            try:
                lock.take(store, empty=not resume)
                _restore_previous(store)
                _check_replaceable(store, overwrite, recognise)
                yield partial
                _sync_tree(partial)
                _check_replaceable(store, overwrite, recognise)
                _move_into_place(partial, store, lock)
            except BaseException as error:
                moved = lock.has_moved()
                if not isinstance(error, _Busy) and lock.holds() and (moved or not keep(error)):
                    _remove_tree(partial)
                raise
    except OSError as error:
        if moved:
            left = f"; remove {partial}, which is left of what was replaced" if partial.exists() else ""
            what = f"{store} is whole and in its place, but then {error.strerror} ({error.filename or store}){left}"
            raise InPlaceError(what) from error
        message = _plain_message(error, store, partial)
        if message is None:
            raise
        raise StoreError("; ".join([message, *getattr(error, "__notes__", [])])) from error


def check_target(store: Path, overwrite: bool) -> None:
    """Refuse, before there is any work, a place where no store can be written.

    Raises
    ------
    StoreError : what is there may not be replaced, or the place is no place for a store or inside another one.
    """
    _check_place(store)
    check_outside(store)
    if not store.with_name(store.name + PREVIOUS_SUFFIX).is_dir():  # which may be put back
        _check_replaceable(store, overwrite, read_metadata)


def check_outside(path: Path) -> None:
    """Refuse a place inside a store or result, which would be lost with it when that is replaced.

    Raises
    ------
    StoreError : it is inside one.
    """
    folder = path.parent.resolve()
    for around in (folder, *folder.parents):
        if (around / GROUP_FILE).is_file():
            raise StoreError(f"{path} would lie inside {around}, a Zarr group or store; choose a place outside it")


def leftover(store: Path) -> Path | None:
    """The partial directory that a killed or stopped writer left beside a store, if there is one and nobody has it."""
    partial = store.with_name(store.name + PARTIAL_SUFFIX)
    try:
        fd = os.open(partial / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return partial if partial.is_dir() else None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    finally:
        os.close(fd)
    return partial


def _check_place(store: Path) -> None:
    if store.name in ("", ".."):
        raise StoreError(f"{str(store)!r} names no new directory; give the path of one that is to be made")
    if store.name.endswith((PARTIAL_SUFFIX, PREVIOUS_SUFFIX)):
        raise StoreError(
            f"{store}: names that end in {PARTIAL_SUFFIX} or {PREVIOUS_SUFFIX} mark unfinished stores; "
            "choose another name"
        )
    if not store.parent.is_dir():
        raise StoreError(f"{store} cannot be written: the directory {store.parent} does not exist")


def _check_replaceable(store: Path, overwrite: bool, recognise: Callable[[Path], object]) -> None:
    if not os.path.lexists(store):
        return
    if not overwrite:
        raise StoreError(f"{store} exists; choose another name or overwrite it (--overwrite)")
    if store.is_symlink():
        raise StoreError(f"{store} is a symbolic link, which is not replaced; give the path that it points to")
    try:
        recognise(store)
    except StoreError as error:
        raise StoreError(f"{store} is not overwritten: {error}") from error


class InPlaceError(StoreError):
    """The new store is whole and in its place; what failed came after that."""


class _Busy(StoreError):
    """Another process holds the directory."""


class _Lock:
    """The locks of a partial directory and of the store that it replaces.

    A signal may stop it at any line: `close` then still gives back what was taken, and `holds` finds what was not.
    """

    def __init__(self, partial: Path) -> None:
        self._partial = partial
        self._fds: list[int] = []

    def take(self, store: Path, empty: bool) -> None:
        """Make the directory, emptied or not, and hold it until `close`."""
        while True:
            self._partial.mkdir(exist_ok=True)
            try:
                self.add(self._partial)
                if self._is_here(self._fds[0]):
                    break
            except BlockingIOError:
                raise _Busy(f"another process is writing {store}; wait for it or choose another name") from None
            except FileNotFoundError:
                pass  # the previous holder removed the directory between the two calls: look again
            except OSError:
                with suppress(OSError):
                    self._partial.rmdir()  # which goes if it is empty: ours, or that of one who then looks again
                raise
            self.close()
        if empty:
            clear(self._partial)

    def add(self, directory: Path) -> None:
        """Take the lock of a directory until `close`."""
        self._fds.append(os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666))
        fcntl.flock(self._fds[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)

    def holds(self) -> bool:
        """Whether what is in the partial directory's place is ours or nobody's: a store exchanged with it, too."""
        try:
            for fd in self._fds:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not any(map(self._is_here, self._fds)):
                self.add(self._partial)
            return any(map(self._is_here, self._fds))
        except OSError:
            return False

    def has_moved(self) -> bool:
        """Whether the partial directory has gone to its place."""
        return bool(self._fds) and not self._is_here(self._fds[0])

    def close(self) -> None:
        while self._fds:
            os.close(self._fds.pop())

    def _is_here(self, fd: int) -> bool:
        """False where the file that we opened was moved or removed."""
        try:
            return os.path.samestat(os.fstat(fd), os.stat(self._partial / LOCK_FILE))
        except FileNotFoundError:
            return False


def _move_into_place(partial: Path, store: Path, lock: _Lock) -> None:
    if not os.path.lexists(store):
        os.rename(partial, store)
        sync(store.parent)
    else:
        lock.add(store)
        if _exchange(partial, store):
            sync(store.parent)
            _remove_tree(partial)
        else:
            previous = store.with_name(store.name + PREVIOUS_SUFFIX)
            try:
                os.rename(store, previous)
                os.rename(partial, store)
            except BaseException:
                _restore_previous(store)
                raise
            sync(store.parent)
            _remove_tree(previous)
    (store / JOURNAL_FILE).unlink(missing_ok=True)
    (store / LOCK_FILE).unlink()


def _restore_previous(store: Path) -> None:
    previous = store.with_name(store.name + PREVIOUS_SUFFIX)
    if previous.is_dir():
        if os.path.lexists(store):
            _remove_tree(previous)
        else:
            os.rename(previous, store)


def _exchange(a: Path, b: Path) -> bool:
    """Swap two directories in one step; False where the system cannot."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    if renameat2(_AT_FDCWD, os.fsencode(a), _AT_FDCWD, os.fsencode(b), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(a), None, str(b))


def clear(directory: Path) -> None:
    """Remove everything but the lock file from a directory whose lock we hold."""
    for entry in directory.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != LOCK_FILE:
            entry.unlink()


def _remove_tree(directory: Path) -> None:
    """Remove a directory whose lock we hold, lock file last, unless a new writer takes it at that moment."""
    if not directory.is_dir():
        return
    clear(directory)
    (directory / LOCK_FILE).unlink(missing_ok=True)
    try:
        directory.rmdir()
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
            raise


def _sync_tree(root: Path) -> None:
    paths = [Path(top, name) for top, _, names in os.walk(root) for name in names]
    paths += [Path(top) for top, _, _ in os.walk(root)]
    with ThreadPoolExecutor(_FSYNC_THREADS) as threads:
        for _ in threads.map(sync, paths):
            pass


def sync(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _plain_message(error: OSError, store: Path, partial: Path) -> str | None:
    """What to tell the user where writing the store failed; None where the error is about something else."""
    if error.errno is None:
        return None
    reason = os.strerror(error.errno)
    if error.errno in NO_ROOM:
        return f"{store} was not written: no room ({reason}); free space or choose another disk"
    if error.errno in BROKEN_DISK and error.filename is None:  # of a write, or of a read of what it is made from
        return f"{store} was not written: {reason}; look at the disks that are read and written, or choose others"
    name = str(error.filename)
    if name not in (str(store.parent), str(store), str(partial)) and not name.startswith(f"{partial}{os.sep}"):
        return None
    if error.errno in NO_PERMISSION:
        return f"{store} was not written: {reason}: {name}; check the directory's permissions"
    if error.errno in BROKEN_DISK:
        return f"{store} was not written: {reason}: {name}; look at the disk, or choose another"
    return None
