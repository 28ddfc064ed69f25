"""The hash that two writings of the same table in the same partitions have in common."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np

from ooc_mdp.mdp import IntArray

__all__ = ["fingerprint_of"]


def fingerprint_of(
    sense: str, dtype: str, partition_ptr: IntArray, checksums: Iterable[tuple[str, Sequence[int]]]
) -> str:
    """Hash of what the values of a store are made of.

    Parameters
    ----------
    checksums : for each field, in the store's order, its name and the crc32c of each partition's chunk.
    """
    digest = hashlib.blake2b(f"{sense} {dtype}".encode(), digest_size=16)
    digest.update(partition_ptr.astype("<i8").tobytes())
    for name, crcs in checksums:
        digest.update(name.encode() + np.array(crcs, "<u4").tobytes())
    return digest.hexdigest()
