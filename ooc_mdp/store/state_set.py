"""A set of states at one bit a state."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ooc_mdp.model.mdp import IntArray

__all__ = ["StateSet"]


class StateSet:
    """Starts empty; not safe for marking from several threads at once."""

    def __init__(self, n_states: int) -> None:
        self.bits: npt.NDArray[np.uint8] = np.zeros(-(-n_states // 8), np.uint8)
        """Eight states a byte, the first in the lowest bit."""

    def mark(self, states: IntArray) -> None:
        """Add ascending states."""
        if states.size:
            byte = states >> 3
            starts = np.flatnonzero(np.diff(byte, prepend=-1))
            bits = np.left_shift(np.uint8(1), (states & 7).astype(np.uint8))
            self.bits[byte[starts]] |= np.bitwise_or.reduceat(bits, starts)

    def slice(self, first: int, last: int) -> npt.NDArray[np.bool_]:
        """bool [last-first]; which of the states first .. last-1 are in."""
        bits = np.unpackbits(self.bits[first >> 3 : -(-last // 8)], bitorder="little")
        return bits[first & 7 :][: last - first].astype(bool)
