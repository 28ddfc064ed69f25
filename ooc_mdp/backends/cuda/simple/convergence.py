"""When a visit looks at the changes of its passes, and the looks that copy changes to the host.

A look waits for the device and costs as much as several sweeps of a small partition, so that passes run in growing
batches between two; or as many at a time as a test of Inamoto, Higami and Kobayashi says, their techniques 1 to 4:

    change [n] ─────────────────────────────▶ host: the largest of n           states:K, 8 bytes a state
    change [n] ─ largest_of_blocks ─ maxima ─▶ host: the largest of n / block   blocks:K, 8 bytes a block

All this only decides after which pass a visit ends. What a pass is, and what is proved afterwards, is known elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, repeat

import numpy as np

from ooc_mdp.backends.base import Resident
from ooc_mdp.backends.cuda.device import Device, Stream
from ooc_mdp.options import Stopping

__all__ = ["CopiedChanges", "batches"]

_BATCHES = (8, 16, 32)
"""Passes before each look where no test is asked for; then as many as the last."""


def batches(stopping: Stopping | None) -> Iterator[int]:
    """Passes before each look, without end."""
    return chain(_BATCHES, repeat(_BATCHES[-1])) if stopping is None else repeat(stopping.every)


class CopiedChanges:
    """Changes of one pass over one partition, copied to page-locked memory.

    Parameters
    ----------
    block : states of a block whose largest change is found on the device; at most 1024.
    """

    def __init__(self, stopping: Stopping, block: int) -> None:
        self._stopping, self._block = stopping, block

    def maxima(self, states: int) -> int:
        """Blocks whose largest changes are found on the device; 0 where those of all states are copied."""
        return -(-states // self._block) if self._stopping.copied == "blocks" else 0

    def copied(self, states: int) -> int:
        """Numbers that a look copies."""
        return self.maxima(states) or states

    def start(self, device: Device, states: int, change: np.uint64, maxima: np.uint64) -> None:
        """Allocate for partitions of so many states, whose changes lie at one address, those of blocks at another."""
        self._host = device.pinned(8 * self.copied(states)).view(np.float64)
        self._change, self._maxima = change, maxima

    def largest(self, resident: Resident, stream: Stream) -> float:
        """The largest change in the last pass; waits for the device."""
        table, _, kernels = resident.arrays
        blocks, source = self.maxima(resident.n_states), self._change
        if blocks:
            source = self._maxima
            arguments = (table, self._change, self._maxima)
            kernels["largest_of_blocks"](stream, blocks, self._block, arguments, 8 * self._block)
        copied = self._host[: self.copied(resident.n_states)]
        stream.download(copied.view(np.uint8), int(source))
        stream.wait()
        return max(float(copied.max()), -float(copied.min()))
