"""Stores whose chunks are compressed otherwise than this program does it."""

from __future__ import annotations

import json
from pathlib import Path

import google_crc32c
import numpy as np
from numcodecs import blosc

from ooc_mdp.store import Store, open_store
from ooc_mdp.store.layout import chunk_path


def recoded(store: Store, name: str, cname: str, shuffle: str) -> Store:
    """The same store with a field's chunks compressed otherwise, and metadata that says so."""
    meta = store.fields[name]
    numbers = {"shuffle": blosc.SHUFFLE, "bitshuffle": blosc.BITSHUFFLE, "noshuffle": blosc.NOSHUFFLE}
    codec = blosc.Blosc(cname, 5, numbers[shuffle], typesize=meta.stored.itemsize)
    for p in range(store.n_partitions):
        path = chunk_path(store.path, name, p, 0)
        frame = codec.encode(np.frombuffer(blosc.decompress(path.read_bytes()[:-4]), meta.stored).copy())
        write_frame(path, frame)
    path = store.path / name / "zarr.json"
    document = json.loads(path.read_text())
    next(c for c in document["codecs"] if c["name"] == "blosc")["configuration"].update(cname=cname, shuffle=shuffle)
    path.write_text(json.dumps(document))
    return open_store(store.path)


def write_frame(path: Path, frame: bytes) -> None:
    path.write_bytes(frame + google_crc32c.value(frame).to_bytes(4, "little"))
