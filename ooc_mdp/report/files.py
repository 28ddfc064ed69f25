"""Files that a report leaves behind: refused where something is there already, written whole or not at all."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from ooc_mdp.errors import OptionsError, StoreError

__all__ = ["check_output_file", "whole_file"]


def check_output_file(file: Path, *, overwrite: bool, sources: Iterable[Path] = ()) -> None:
    """Refuse what :func:`whole_file` could not write, before there is any work.

    Raises
    ------
    OptionsError : the file is one of the sources.
    StoreError : it exists and may not be replaced, or its folder does not exist.
    """
    if any(file.resolve() == source.resolve() for source in sources):
        raise OptionsError(f"{file} is read and cannot be written as well; name another file")
    if file.is_dir():
        raise StoreError(f"{file} is a directory; name a file in it")
    if not file.parent.is_dir():
        raise StoreError(f"{file} cannot be written: {file.parent} is no directory")
    if file.exists() and not overwrite:
        raise StoreError(f"{file} exists; name another file, or replace it with --overwrite")


@contextlib.contextmanager
def whole_file(file: Path, *, overwrite: bool) -> Iterator[Path]:
    """The path to write to; what is there becomes `file` in one step once the block ends without an error.

    Raises
    ------
    StoreError : the file exists and may not be replaced, or cannot be written.
    """
    check_output_file(file, overwrite=overwrite)
    temporary = file.with_name(f".{file.name}.partial")
    try:
        yield temporary
        temporary.replace(file)
    except OSError as error:
        raise StoreError(f"cannot write {file}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
