"""All or nothing: a store is written beside its place and appears there in one rename.

    STORE.partial   marked (`ooc_mdp.store.mark`) and locked by the writer (flock on the directory, see
                    `ooc_mdp.store.locks`), until it is STORE
    STORE           absent, or the whole previous store, until the rename; the whole new one after it

A previous store that another process holds is not replaced: that is checked before the work and before the rename.

A leftover of a dead writer has the mark and no lock, and is emptied by the next one; what has one of these names and no
mark is not touched. Replacing a store marks the old one and exchanges the two directories in one step (renameat2);
where the file system cannot, the old one waits as STORE.previous in between, and the next writer puts it back if it
finds no STORE. A writer that can go on where another was stopped says so, and then finds STORE.partial as that one left
it. This module knows no arrays.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from ooc_mdp.errors import StoreError
from ooc_mdp.store.disk_errors import why_not_written
from ooc_mdp.store.layout import GROUP_FILE, JOURNAL_FILE
from ooc_mdp.store.locks import (
    BusyError,
    OpenDirectory,
    holder_of,
    is_at,
    lock_against_readers,
    refuse_readers,
    try_lock,
)
from ooc_mdp.store.mark import (
    MARK_FILE,
    NOT_A_DIRECTORY,
    ForeignPathError,
    claim_directory,
    empty_directory,
    is_leftover,
    mark_directory,
    remove_marked,
    remove_special_files,
    unmark_directory,
)
from ooc_mdp.store.metadata import PARTIAL_SUFFIX, PREVIOUS_SUFFIX, check_is_store

__all__ = [
    "CommittedError",
    "atomic_directory",
    "check_destination",
    "check_leftovers",
    "check_not_inside_store",
    "fsync_path",
    "stale_partial",
    "temporary_directory",
]

_RENAME_EXCHANGE = 2
_AT_FDCWD = -100
_FSYNC_THREADS = 8


@contextmanager
def atomic_directory(
    store: Path,
    overwrite: bool,
    check_replaceable: Callable[[Path], object] = check_is_store,
    *,
    resume: bool = False,
    keep_partial: Callable[[BaseException], bool] = lambda error: False,
) -> Iterator[Path]:
    """Yield the directory to write into; on leaving, sync and move it to `store`, or remove it on an error.

    Parameters
    ----------
    check_replaceable : raises StoreError for what may not be overwritten, being not of the kind that is written.
    resume : yield what another writer left as it is, instead of empty.
    keep_partial : whether an error leaves the directory as it is, for a later writer that resumes.

    Raises
    ------
    StoreError : `store` exists (and is not to be overwritten, or is something else), another process is
        writing it, or the disk is full or not writable.
    ForeignPathError : something that this program did not make has the name of the directory to write into.
    BusyError : another process writes `store`, or reads what is to be replaced.
    """
    _check_place(store)
    partial = store.with_name(store.name + PARTIAL_SUFFIX)
    moved = False
    try:
        with closing(_Lock(partial)) as lock:
            try:
                lock.take(store, empty=not resume)
                _restore_previous(store)
                _check_overwrite(store, overwrite, check_replaceable)
                refuse_readers(store)
                yield partial
                _sync_tree(partial)
                _check_overwrite(store, overwrite, check_replaceable)
                _move_into_place(partial, store, lock)
            except BaseException as error:
                moved = lock.has_moved()
                if not isinstance(error, _WrittenError) and lock.holds() and (moved or not keep_partial(error)):
                    remove_marked(partial)
                    if moved:
                        unmark_directory(store)
                if isinstance(error, BusyError) and hasattr(error, "__notes__"):
                    raise BusyError("; ".join([str(error), *error.__notes__])) from None
                raise
    except OSError as error:
        if moved:
            left = f"; remove {partial}, which is left of what was replaced" if partial.exists() else ""
            what = f"{store} is whole and in its place, but then {error.strerror} ({error.filename or store}){left}"
            raise CommittedError(what) from error
        message = why_not_written(error, store, partial)
        if message is None:
            raise
        raise StoreError("; ".join([message, *getattr(error, "__notes__", [])])) from error


def check_destination(store: Path, overwrite: bool) -> None:
    """Refuse, before there is any work, a place where no store can be written.

    Raises
    ------
    StoreError : what is there may not be replaced, or the place is no place for a store or inside another one.
    """
    _check_place(store)
    check_not_inside_store(store)
    if not store.with_name(store.name + PREVIOUS_SUFFIX).is_dir():  # which may be put back
        _check_overwrite(store, overwrite, check_is_store)


def check_leftovers(store: Path) -> None:
    """Refuse a place beside which something of the user's has the name of what is unfinished.

    Raises
    ------
    ForeignPathError : it has.
    """
    for suffix in (PARTIAL_SUFFIX, PREVIOUS_SUFFIX):
        with suppress(OSError):  # which opening it explains
            is_leftover(store.with_name(store.name + suffix))


@contextmanager
def temporary_directory(directory: Path, output: Path) -> Iterator[Path]:
    """Yield an empty, marked directory in which an output is made; it is removed on leaving.

    Raises
    ------
    ForeignPathError : something that this program did not make has its name.
    BusyError : another process makes the same output.
    OSError : it cannot be made.
    """
    with closing(_Lock(directory)) as lock:
        try:
            lock.take(output, empty=True)
            yield directory
        finally:
            if lock.holds():
                with suppress(OSError):
                    remove_marked(directory)


def check_not_inside_store(path: Path) -> None:
    """Refuse a place inside a store or result, which would be lost with it when that is replaced.

    Raises
    ------
    StoreError : it is inside one.
    """
    folder = path.parent.resolve()
    for around in (folder, *folder.parents):
        if (around / GROUP_FILE).is_file():
            raise StoreError(f"{path} would lie inside {around}, a Zarr group or store; choose a place outside it")


def stale_partial(store: Path) -> Path | None:
    """The partial directory that a killed or stopped writer left beside a store, unless a process has it."""
    partial = store.with_name(store.name + PARTIAL_SUFFIX)
    try:
        if not is_leftover(partial):
            return None
        opened = OpenDirectory(partial, follow=False)
    except (FileNotFoundError, ForeignPathError):
        return None
    except OSError:
        return partial
    try:
        try_lock(opened.fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    finally:
        opened.close()
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
    check_leftovers(store)


def _check_overwrite(store: Path, overwrite: bool, check_replaceable: Callable[[Path], object]) -> None:
    if not os.path.lexists(store):
        return
    if not overwrite:
        raise StoreError(f"{store} exists; choose another name or overwrite it (--overwrite)")
    if store.is_symlink():
        raise StoreError(f"{store} is a symbolic link, which is not replaced; give the path that it points to")
    try:
        check_replaceable(store)
    except StoreError as error:
        raise StoreError(f"{store} is not overwritten: {error}") from error


class CommittedError(StoreError):
    """The new store is whole and in its place; what failed came after that."""


class _WrittenError(BusyError):
    """Another process writes the partial directory."""


class _Lock:
    """The locks of a partial directory and of the store that it replaces.

    A signal may stop it at any line: `close` then still gives back what was taken, and `holds` finds what was not.
    """

    def __init__(self, partial: Path) -> None:
        self._partial = partial
        self._opened: list[OpenDirectory] = []

    def take(self, store: Path, empty: bool) -> None:
        """Make and mark the directory, emptied or not, and hold it until `close`."""
        while True:
            with suppress(FileExistsError):
                self._partial.mkdir()
            try:
                self._opened.append(OpenDirectory(self._partial, follow=False))
                try_lock(self._opened[0].fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_here(self._opened[0]):
                    break
            except BlockingIOError:
                by = holder_of(self._opened[0].fd)
                raise _WrittenError(
                    f"another process is writing {store}{by}; wait for it or choose another name"
                ) from None
            except FileNotFoundError:
                pass  # the previous holder moved or removed the directory between the two calls: look again
            except OSError as error:
                if error.errno in NOT_A_DIRECTORY:
                    raise ForeignPathError(self._partial) from None
                with suppress(OSError):
                    self._partial.rmdir()  # which goes if it is empty: ours, or that of one who then looks again
                raise
            self.close()
        claim_directory(self._opened[0].fd, self._partial)
        if empty:
            empty_directory(self._opened[0].fd)
        else:
            remove_special_files(self._opened[0].fd)

    def take_replaced(self, store: Path) -> int:
        """Hold the store that is to be replaced, too, and return its descriptor; BusyError where it is being read."""
        self._opened.append(OpenDirectory(store, follow=False))
        lock_against_readers(self._opened[-1].fd, store)
        return self._opened[-1].fd

    def holds(self) -> bool:
        """Whether what is in the partial directory's place is ours or no one's: a store exchanged with it, too."""
        try:
            if not any(map(self._is_here, self._opened)):
                self._opened.append(OpenDirectory(self._partial, follow=False))
            here = list(filter(self._is_here, self._opened))
            for opened in here:
                try_lock(opened.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return any(map(self._is_here, here))
        except OSError:
            return False

    def has_moved(self) -> bool:
        """Whether the partial directory has gone to its place."""
        return bool(self._opened) and not self._is_here(self._opened[0])

    def release_moved(self) -> None:
        """Give back the lock of what has gone to its place, where others may hold it now."""
        try_lock(self._opened[0].fd, fcntl.LOCK_UN)

    def close(self) -> None:
        while self._opened:
            self._opened.pop().close()

    def _is_here(self, opened: OpenDirectory) -> bool:
        """False where the directory that we opened was moved or removed."""
        return is_at(opened.fd, self._partial, follow=False)


def _move_into_place(partial: Path, store: Path, lock: _Lock) -> None:
    replaced = None
    if not os.path.lexists(store):
        os.rename(partial, store)
    else:
        old = lock.take_replaced(store)
        try:
            mark_directory(old, store)
            if _swap_directories(partial, store):
                replaced = partial
            else:
                replaced = store.with_name(store.name + PREVIOUS_SUFFIX)
                os.rename(store, replaced)
                os.rename(partial, store)
        except BaseException:
            if not lock.has_moved():
                try:
                    _restore_previous(store)
                finally:
                    unmark_directory(store)
            raise
    lock.release_moved()
    fsync_path(store.parent)
    if replaced is not None:
        remove_marked(replaced)
    (store / JOURNAL_FILE).unlink(missing_ok=True)
    unmark_directory(store)


def _restore_previous(store: Path) -> None:
    """Put back a store that waits for the one that was to replace it, or remove it where that has come."""
    previous = store.with_name(store.name + PREVIOUS_SUFFIX)
    if not is_leftover(previous):
        return
    if os.path.lexists(store):
        remove_marked(previous)
    elif (previous / MARK_FILE).is_file():
        os.rename(previous, store)
        unmark_directory(store)


def _swap_directories(a: Path, b: Path) -> bool:
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


def _sync_tree(root: Path) -> None:
    paths = [Path(top, name) for top, _, names in os.walk(root) for name in names]
    paths += [Path(top) for top, _, _ in os.walk(root)]
    with ThreadPoolExecutor(_FSYNC_THREADS) as threads:
        for _ in threads.map(fsync_path, paths):
            pass


def fsync_path(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
