"""Damage to files, one kind after another; whoever loops over it looks what a reader makes of each.

After each step, and when the loop ends, the file is as it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import numpy as np

__all__ = ["cut", "damaged", "exchanged", "files_of", "flipped", "replaced"]


def files_of(folder: Path) -> list[Path]:
    """All files below a folder, in a fixed order."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


def flipped(path: Path, bits: int | None = None) -> Iterator[str]:
    """Flip a bit: each one, or a sample of so many."""
    whole = path.read_bytes()
    chosen = np.arange(8 * len(whole))
    if bits is not None and bits < chosen.size:
        chosen = np.random.default_rng(chosen.size).choice(chosen, bits, replace=False)
    try:
        for bit in chosen.tolist():
            raw = bytearray(whole)
            raw[bit // 8] ^= 1 << bit % 8
            path.write_bytes(raw)
            yield f"bit {bit} of {path} flipped"
    finally:
        path.write_bytes(whole)


def cut(path: Path, lengths: int | None = None) -> Iterator[str]:
    """Shorten a file to each length, or to a sample; extend it by a byte; remove it."""
    whole = path.read_bytes()
    chosen = list(range(len(whole)))
    if lengths is not None and lengths < len(chosen):
        some = np.random.default_rng(len(whole)).choice(len(whole), lengths, replace=False).tolist()
        chosen = sorted({0, len(whole) - 1, *some})
    try:
        for length in chosen:
            path.write_bytes(whole[:length])
            yield f"{path} cut to {length} of {len(whole)} bytes"
        path.write_bytes(whole + b"\0")
        yield f"{path} extended by a byte"
    finally:
        path.write_bytes(whole)


def damaged(path: Path, bits: int | None = None, lengths: int | None = None) -> Iterator[str]:
    """All kinds of damage to one file."""
    yield from flipped(path, bits)
    yield from cut(path, lengths)


def exchanged(paths: list[Path]) -> Iterator[str]:
    """Exchange any two files that differ."""
    for a, b in combinations(paths, 2):
        yield from _instead({a: b.read_bytes(), b: a.read_bytes()}, f"{a} and {b} exchanged")


def replaced(paths: list[Path], folder: Path, other: Path) -> Iterator[str]:
    """Put another folder's file in the place of each that differs; then remove each."""
    for path in paths:
        content = (other / path.relative_to(folder)).read_bytes()
        yield from _instead({path: content}, f"{path} taken from {other}")
        whole = path.read_bytes()
        path.unlink()
        try:
            yield f"{path} removed"
        finally:
            path.write_bytes(whole)


def _instead(contents: dict[Path, bytes], what: str) -> Iterator[str]:
    before = {path: path.read_bytes() for path in contents}
    if before == contents:
        return
    try:
        for path, content in contents.items():
            path.write_bytes(content)
        yield what
    finally:
        for path, content in before.items():
            path.write_bytes(content)
