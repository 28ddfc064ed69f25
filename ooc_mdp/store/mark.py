"""The mark of directories that this program made for unfinished output: nothing else is ever emptied or removed.

    NAME.partial/.ooc-mdp-temporary    there from the beginning, and the last file that is removed

A directory that is empty may be taken and marked. One that holds anything and no mark is the user's, whatever its name
is, and a symbolic link is never followed. All of it is relative to the descriptor of the open directory.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from contextlib import closing, suppress
from pathlib import Path

from ooc_mdp.errors import StoreError
from ooc_mdp.store.locks import OpenDirectory

__all__ = [
    "MARK_FILE",
    "NOT_A_DIRECTORY",
    "ForeignPathError",
    "claim_directory",
    "empty_directory",
    "is_leftover",
    "is_marked",
    "mark_directory",
    "remove_marked",
    "remove_special_files",
    "unmark_directory",
]

MARK_FILE = ".ooc-mdp-temporary"

NOT_A_DIRECTORY = (errno.ENOTDIR, errno.ELOOP)
"""How the system refuses to open a file or a symbolic link as a directory."""

_TEXT = b"unfinished output of ooc-mdp, which removes this directory or gives it another name\n"
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class ForeignPathError(StoreError):
    """Something that this program did not make has the name of a temporary file or directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        kind = "a symbolic link" if path.is_symlink() else "a directory" if path.is_dir() else "a file"
        super().__init__(
            f"{path} is {kind} that ooc-mdp did not make, and has the name that unfinished output would take; it is "
            f"left as it is: move it, or choose another name for the output"
        )

    def __reduce__(self) -> tuple[type[ForeignPathError], tuple[Path]]:
        return type(self), (self.path,)


def is_marked(directory: int) -> bool:
    """Whether an open directory has the mark; one that a killed process had only begun to write counts."""
    try:
        mark = os.open(MARK_FILE, _READ, dir_fd=directory)
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno in (*NOT_A_DIRECTORY, errno.ENXIO):  # a link, or a socket
            return False
        raise
    try:
        return stat.S_ISREG(os.fstat(mark).st_mode) and _TEXT.startswith(os.read(mark, len(_TEXT) + 1).rstrip(b"\0"))
    finally:
        os.close(mark)


def mark_directory(directory: int, path: Path) -> None:
    """Give an open directory the mark; OSError, naming the file at the path, where that is not possible."""
    try:
        mark = os.open(MARK_FILE, _CREATE, 0o666, dir_fd=directory)
    except OSError as error:
        if error.errno == errno.EEXIST and is_marked(directory):
            return
        error.filename = str(path / MARK_FILE)
        raise
    try:
        os.write(mark, _TEXT)
    finally:
        os.close(mark)


def unmark_directory(directory: Path) -> None:
    """Remove the mark of a directory that has become an output; what is no directory has none."""
    with suppress(FileNotFoundError, NotADirectoryError):
        (directory / MARK_FILE).unlink()


def claim_directory(directory: int, path: Path) -> None:
    """Mark an open directory that is empty; one with a mark is ours already.

    Raises
    ------
    ForeignPathError : it holds something, and no mark.
    """
    if not _may_be_taken(directory):
        raise ForeignPathError(path)
    mark_directory(directory, path)


def is_leftover(path: Path) -> bool:
    """Whether a path is a directory that has the mark or is empty; False where nothing is there.

    Raises
    ------
    ForeignPathError : it is something else.
    """
    try:
        opened = OpenDirectory(path, follow=False)
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno in NOT_A_DIRECTORY:
            raise ForeignPathError(path) from None
        raise
    try:
        if _may_be_taken(opened.fd):
            return True
    finally:
        opened.close()
    raise ForeignPathError(path)


def empty_directory(directory: int) -> None:
    """Remove everything but the mark from an open directory that is ours and locked."""
    for name in os.listdir(directory):
        if name == MARK_FILE:
            continue
        if stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
            shutil.rmtree(name, dir_fd=directory)
        else:
            os.unlink(name, dir_fd=directory)


def remove_marked(directory: Path) -> None:
    """Remove a directory whose lock we hold, if it has the mark or is empty, its mark last."""
    try:
        opened = OpenDirectory(directory, follow=False)
    except OSError as error:
        if error.errno in (errno.ENOENT, *NOT_A_DIRECTORY):
            return
        raise
    with closing(opened):
        if is_marked(opened.fd):
            empty_directory(opened.fd)
            os.unlink(MARK_FILE, dir_fd=opened.fd)
        elif not _is_empty(opened.fd):
            return
    try:
        directory.rmdir()
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
            raise


def remove_special_files(directory: int) -> None:
    """Remove links, pipes and devices from an open directory that is ours, so that nothing is written through them."""
    for _, folders, files, fd in os.fwalk(".", dir_fd=directory):
        for name in (*folders, *files):
            mode = os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                os.unlink(name, dir_fd=fd)


def _may_be_taken(directory: int) -> bool:
    """Whether an open directory has the mark or is empty; the mark may come from another process in between."""
    return is_marked(directory) or _is_empty(directory) or is_marked(directory)


def _is_empty(directory: int) -> bool:
    """Whether an open directory holds nothing."""
    with os.scandir(directory) as entries:
        return next(entries, None) is None
