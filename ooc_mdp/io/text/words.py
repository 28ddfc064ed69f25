"""Some of the different words of a text, such as its labels, as their places in the text."""

from __future__ import annotations

import numpy as np
from numba import njit

from ooc_mdp.io.text.file import Bytes
from ooc_mdp.model.mdp import IntArray

__all__ = ["add_word", "no_words", "texts_of"]

_MOST = 16
"""Words that are collected from one segment."""


def no_words() -> IntArray:
    """int64 [words, 2]: begin and end of each word; -1 where there is none yet."""
    return np.full((_MOST, 2), -1)


def texts_of(buffer: Bytes, words: IntArray) -> list[str]:
    """The words that were collected from the buffer."""
    found = words[words[:, 0] >= 0].tolist()
    return [buffer[begin:end].tobytes().decode("utf-8", "replace") for begin, end in found]


@njit(cache=True, nogil=True)
def add_word(buf, begin, end, words):  # type: ignore[no-untyped-def]
    """Add the word buf[begin:end] to `words`, unless it is there already or no room is left."""
    for k in range(words.shape[0]):
        if words[k, 0] < 0:
            words[k, 0] = begin
            words[k, 1] = end
            return
        same = words[k, 1] - words[k, 0] == end - begin
        at = begin
        while same and at < end:
            same = buf[words[k, 0] + at - begin] == buf[at]
            at += 1
        if same:
            return
