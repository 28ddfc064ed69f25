"""What the coordinator of several solvers has of the model's values: copies, of which those of the lost go on."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ooc_mdp.distributed.messages import Values, pieces_of
from ooc_mdp.mdp import IntArray

__all__ = ["Known"]

_COPY_THREADS, _COPY_STATES = 8, 4 << 20
"""That put values in their places, and how many states each does at a time."""


@dataclass(slots=True)
class Known:
    """Values, policy and bounds of all partitions, as far as the coordinator has copies."""

    values: npt.NDArray[np.float64]
    """float64 [n], store order, of the maximisation."""
    policy: npt.NDArray[np.int32]
    visited: npt.NDArray[np.bool_]
    copied: npt.NDArray[np.bool_]
    """bool [P]; whether there is a copy: values that are another's than the first ones."""
    bounds: npt.NDArray[np.float64] | None = None
    """float64 [4, P] as in `Values`; None: nothing is known."""
    value_size: float = 0.0

    def take(self, values: Values, partition_ptr: IntArray) -> None:
        """Copies of some partitions; bounds of all values together are known no longer."""
        self.bounds = None
        pieces: list[tuple[slice, slice]] = []
        for ours, theirs in pieces_of(values.partitions, partition_ptr):
            for start in range(0, ours.stop - ours.start, _COPY_STATES):
                size = min(_COPY_STATES, ours.stop - ours.start - start)
                pieces.append((_part(ours, start, size), _part(theirs, start, size)))

        def copy(piece: tuple[slice, slice]) -> None:
            self.values[piece[0]] = values.values[piece[1]]
            self.policy[piece[0]] = values.policy[piece[1]]

        with ThreadPoolExecutor(min(_COPY_THREADS, os.cpu_count() or 1)) as threads:
            for _ in threads.map(copy, pieces):
                pass
        self.visited[values.partitions] = values.visited
        self.copied[values.partitions] = True

    def of(self, partitions: IntArray, partition_ptr: IntArray, with_bounds: bool) -> Values | None:
        """What is known of partitions, of those of which there are copies; None if there are none."""
        partitions = partitions[self.copied[partitions]]
        if not partitions.size:
            return None
        pieces = [piece for piece, _ in pieces_of(partitions, partition_ptr)]
        return Values(
            partitions,
            np.concatenate([self.values[piece] for piece in pieces]),
            np.concatenate([self.policy[piece] for piece in pieces]),
            self.visited[partitions],
            self.bounds[:, partitions] if with_bounds and self.bounds is not None else None,
        )


def _part(piece: slice, start: int, size: int) -> slice:
    return slice(piece.start + start, piece.start + start + size)
