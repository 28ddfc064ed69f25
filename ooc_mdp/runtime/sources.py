"""Which source files a module's compiled loops are made of: its own, and those of all modules that it imports."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path

__all__ = ["imported_modules", "stamp"]

_PACKAGE = Path(__file__).resolve().parents[1]
_IMPORT = re.compile(rf"^from ({_PACKAGE.name}[\w.]*) import (\([^)]*\)|.*)", re.MULTILINE)
"""Imports at the left margin: what is imported within functions, or for types alone, is not part of compiled code."""


def stamp(module: str) -> str:
    """Hash of the sources of a module of this package and of all that it imports, directly or not."""
    digest = hashlib.sha256()
    for name in sorted(imported_modules(module)):
        digest.update(f"{name} {len(_source(name))} ".encode() + _source(name))
    return digest.hexdigest()


def imported_modules(module: str) -> set[str]:
    """Names of this and of all modules of the package that it imports; none of a module of other packages."""
    found: set[str] = set()
    new = {module}
    while new:
        name = new.pop()
        if _file(name) is not None:
            found.add(name)
            new |= _imports(name) - found
    return found


@cache
def _imports(module: str) -> set[str]:
    """Modules that it may import by itself: `from a import b` names a, and a.b unless b is a member of a."""
    named = _IMPORT.findall(_source(module).decode())
    return {name for base, members in named for name in (base, *(f"{base}.{m}" for m in re.findall(r"\w+", members)))}


@cache
def _source(module: str) -> bytes:
    file = _file(module)
    return file.read_bytes() if file else b""


@cache
def _file(module: str) -> Path | None:
    """Its source, where it is a module of this package whose files are at hand."""
    package, *path = module.split(".")
    if package != _PACKAGE.name:
        return None
    at = _PACKAGE.joinpath(*path)
    return next((file for file in (at.with_name(f"{at.name}.py"), at / "__init__.py") if file.is_file()), None)
