"""Copies of stores in which one thing is another, sealed as a program that writes stores could do it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
from forge import chunk_path, read_small, reseal, seal, write_frame, write_small

from ooc_mdp.store import Store, open_store
from ooc_mdp.store.blosc_frame import encode_frame
from ooc_mdp.store.encodings import encode

Change = Callable[[np.ndarray], object]


def with_small_array(store: Store, path: Path, name: str, change: Change) -> Path:
    """A copy of a store in which a small array was changed in place."""
    shutil.copytree(store.path, path)
    values = read_small(path, name)
    change(values)
    write_small(path, name, values)
    seal(path)
    return path


def with_values(store: Store, path: Path, name: str, p: int, change: Change, as_stored: bool = False) -> Path:
    """A copy of a store in which the values of a chunk were changed in place.

    Parameters
    ----------
    as_stored : change what the chunk holds; else what that stands for, which the field's encoding must be able to hold.
    """
    shutil.copytree(store.path, path)
    write_values(store, path, name, p, change, as_stored)
    reseal(path)
    return path


def write_values(store: Store, path: Path, name: str, p: int, change: Change, as_stored: bool = False) -> None:
    """Change a chunk of a copy of the store in place, without the seal."""
    meta = store.fields[name]
    values = store.read_field(name, p)[0].copy()
    layout = None if meta.encoding is None else store._row_layout(p, store.sizes(p), {})
    if layout is not None and as_stored:
        values = encode(str(meta.encoding), values, layout)
    change(values)
    if layout is not None and not as_stored:
        values = encode(str(meta.encoding), values, layout)
    frame = encode_frame(meta.field, values.astype(meta.stored, copy=False), meta.encoding)
    write_frame(chunk_path(path, name, p), frame)


def opened_with_small_array(store: Store, path: Path, name: str, change: Change) -> Store:
    """:func:`with_small_array`, open."""
    return open_store(with_small_array(store, path, name, change))
