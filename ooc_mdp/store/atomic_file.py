"""Single output files: checked before the work, written in a temporary directory and moved into place when complete.

FOLDER/.NAME.partial/NAME    in a marked directory (`ooc_mdp.store.mark`), until it is FOLDER/NAME
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from ooc_mdp.errors import OptionsError, StoreError
from ooc_mdp.store.disk_errors import advice
from ooc_mdp.store.mark import is_leftover
from ooc_mdp.store.transaction import check_not_inside_store, fsync_path, temporary_directory

__all__ = ["atomic_file", "check_output_files"]


def check_output_files(*files: Path | None, overwrite: bool, sources: Iterable[Path] = ()) -> None:
    """Refuse what :func:`atomic_file` could not write, before there is any work.

    Parameters
    ----------
    files : all outputs of a command; None for one that is not asked for.
    sources : what the command reads.

    Raises
    ------
    OptionsError : a file is one of the sources, or named twice.
    StoreError : its directory does not exist or is a store or result, or exists and may not be replaced.
    """
    read, named = {source.resolve() for source in sources}, set()
    for file in files:
        if file is None:
            continue
        if file.resolve() in read:
            raise OptionsError(f"{file} is read and cannot be written as well; name another file")
        if file.resolve() in named:
            raise OptionsError(f"{file} is named for two outputs; name a file for each")
        named.add(file.resolve())
        _check_place(file, overwrite)


def _check_place(file: Path, overwrite: bool) -> None:
    if file.is_symlink():
        raise StoreError(f"{file} is a symbolic link, which is not replaced; give the path that it points to")
    if file.is_dir():
        raise StoreError(f"{file} is a directory; name a file in it")
    if not file.parent.is_dir():
        raise StoreError(f"{file} cannot be written: {file.parent} is no directory")
    check_not_inside_store(file)
    if file.exists() and not file.is_file():
        raise StoreError(f"{file} is a device or pipe, which is not replaced; name another file")
    if file.exists() and not overwrite:
        raise StoreError(f"{file} exists; name another file, or replace it with --overwrite")
    with contextlib.suppress(OSError):  # which opening it explains
        is_leftover(_scratch(file))


def _scratch(file: Path) -> Path:
    """The directory in which a file is written."""
    return file.with_name(f".{file.name}.partial")


@contextlib.contextmanager
def atomic_file(file: Path, *, overwrite: bool) -> Iterator[Path]:
    """Yield a path of the same name to write to; its contents are synchronized and become `file` in one step when the
    block ends without an error.

    Raises
    ------
    StoreError : the file exists and may not be replaced, is no regular file, or cannot be written.
    ForeignPathError : something that this program did not make has the temporary directory's name.
    BusyError : another process writes the file.
    """
    _check_place(file, overwrite)
    moved = False
    try:
        with temporary_directory(_scratch(file), file) as scratch:
            temporary = scratch / file.name
            yield temporary
            fsync_path(temporary)
            _check_place(file, overwrite)
            temporary.replace(file)
            moved = True
            fsync_path(file.parent)
    except OSError as error:
        reason = error.strerror or f"no room ({error})"
        if moved:
            raise StoreError(
                f"{file} is complete and in its place, but may be lost if the power fails: {reason}"
            ) from error
        raise StoreError(f"cannot write {file}: {reason}; {advice(error)}, or name a file elsewhere") from error
