"""Stores whose chunks are compressed otherwise than this program does it."""

from __future__ import annotations

import numpy as np
from forge import chunk_path, reseal, write_frame
from numcodecs import blosc

from ooc_mdp.store import Store, open_store


def recoded(store: Store, name: str, cname: str, shuffle: str) -> Store:
    """The same store with a field's chunks compressed otherwise, and metadata that says so."""
    meta = store.fields[name]
    numbers = {"shuffle": blosc.SHUFFLE, "bitshuffle": blosc.BITSHUFFLE, "noshuffle": blosc.NOSHUFFLE}
    codec = blosc.Blosc(cname, 5, numbers[shuffle], typesize=meta.stored.itemsize)
    for p in range(store.n_partitions):
        path = chunk_path(store.path, name, p)
        frame = codec.encode(np.frombuffer(blosc.decompress(path.read_bytes()[:-4]), meta.stored).copy())
        write_frame(path, frame)
    reseal(store.path, lambda attributes: attributes["table"]["fields"][name].update(cname=cname, shuffle=shuffle))
    return open_store(store.path)
