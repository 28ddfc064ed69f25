"""The different words among many places of a text, such as the names of its actions."""

from __future__ import annotations

import numpy as np

from ooc_mdp.io.text.file import Bytes
from ooc_mdp.model.mdp import IntArray
from ooc_mdp.runtime.compiled import loop

__all__ = ["distinct_words"]

_FNV_BASIS, _FNV_PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
"""Of the hash function FNV-1a with 64 bits."""


def distinct_words(buffer: Bytes, spans: IntArray) -> tuple[IntArray, list[str]]:
    """Which word stands at each of the places, and the different words in the order in which they appear.

    Parameters
    ----------
    spans : int64 [places, 2]; where each word begins and ends in the buffer; begin -1 for no word.

    Returns
    -------
    IntArray : int64 [places]; positions in the list, -1 for no word.
    """
    slots = np.full(1 << max(4, int(2 * spans.shape[0]).bit_length()), -1)
    number, firsts = np.empty(spans.shape[0], np.int64), np.empty(spans.shape[0], np.int64)
    found = _number_words(buffer, np.ascontiguousarray(spans), slots, number, firsts)
    places = spans[firsts[:found]].tolist()
    return number, [buffer[begin:end].tobytes().decode("utf-8", "replace") for begin, end in places]


@loop
def _number_words(buf, spans, slots, number, firsts):  # type: ignore[no-untyped-def]
    """Number words by open addressing in `slots`, whose length is a power of 2; returns how many differ."""
    found = 0
    mask = slots.size - 1
    for i in range(spans.shape[0]):
        begin, end = spans[i, 0], spans[i, 1]
        if begin < 0:
            number[i] = -1
            continue
        key = _FNV_BASIS
        for k in range(begin, end):
            key = (key ^ np.uint64(buf[k])) * _FNV_PRIME
        slot = np.int64(key & np.uint64(mask))
        while slots[slot] >= 0 and not _same(buf, spans[firsts[slots[slot]]], begin, end):
            slot = (slot + 1) & mask
        if slots[slot] < 0:
            slots[slot] = found
            firsts[found] = i
            found += 1
        number[i] = slots[slot]
    return found


@loop
def _same(buf, known, begin, end):  # type: ignore[no-untyped-def]
    """Whether buf[begin:end] is the word at `known` (begin and end)."""
    same = known[1] - known[0] == end - begin
    k = 0
    while same and k < end - begin:
        same = buf[known[0] + k] == buf[begin + k]
        k += 1
    return same
