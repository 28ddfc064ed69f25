"""Where a policy's rows lie on a device, and what they and their evaluation take: arithmetic only.

``policy/rows.cuh`` draws a partition's planes. What takes most: width * (4 + real) bytes of each state for rows, 8 for
Q2, 8 for values as they were, 48 for a Krylov solver's vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.cuda.layout import aligned, c_type
from ooc_mdp.backends.cuda.tiles.layout import is_ragged
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import IntArray

__all__ = [
    "BLOCK",
    "EVALUATION",
    "IMPROVED",
    "MAX_SWEEPS",
    "PROGRESS",
    "RESULTS",
    "ROWS",
    "VECTORS",
    "RowSizes",
    "chunks_of",
    "descriptors_of",
    "kernel_defines",
    "reward_dtype",
    "total_of",
    "varies",
]

MAX_SWEEPS = 64
"""Sweeps between two looks of the host, at most: MAX_SWEEPS of policy/rows.cu."""
BLOCK = 256
"""States of a chunk."""
RESULTS, IMPROVED = 9, 5
"""Results per partition of `measure_rows` and `improve_tiles`."""
_MAX_BLOCKS = 1 << 12
"""That a device runs at once, for what is planned before there is one."""
_WARP = 32
_MAX_UNROLLED = 16
"""Longest row whose entries a thread asks for all at once."""
VECTORS = ("z", "r", "shadow", "p", "v", "t")
_DESCRIPTOR = np.dtype([("entries", "i8"), ("pitch", "u4"), ("width", "u4")])
_CHUNK = np.dtype(
    [("state", "i8"), ("entry", "i8"), ("states", "u4"), ("pitch", "u4"), ("width", "u4"), ("partition", "u4")]
)
PROGRESS = np.dtype(
    [
        *((name, "f8") for name in ("stop", "rho", "alpha", "omega", "beta", "residual", "first_residual")),
        ("size", "f8"),
        ("change", "f8", MAX_SWEEPS),
        ("claims", "u4", MAX_SWEEPS),
        *((name, "u4") for name in ("tickets", "state", "products", "unused")),
    ]
)
_ROW_FIELDS = ("descriptors", "successors", "probabilities", "rewards", "discounts", "second_best")
ROWS = np.dtype([(name, "u8") for name in _ROW_FIELDS])
EVALUATION = np.dtype(
    [
        ("rows", ROWS),
        ("chunks", "u8"),
        ("count", "i8"),
        *((name, "u8") for name in ("values", "start", *VECTORS, "progress", "partials", "row_sums", "results")),
        ("discount", "f8"),
    ]
)
"""Structures of policy/rows.cuh and policy/rows.cu."""


@dataclass(frozen=True, slots=True)
class RowSizes:
    """Bytes by name: of rows, of what every evaluation takes, and of the Krylov solver's vectors."""

    rows: Mapping[str, int]
    work: Mapping[str, int]
    vectors: Mapping[str, int]

    @classmethod
    def of(cls, model: ModelFacts, blocks: int = _MAX_BLOCKS) -> RowSizes:
        """Where so many blocks add up sums at the same time."""
        states, widths = _states(model), _widths(model)
        n, partitions = model.n_states, states.size
        entries = int((_pitches(states) * widths).sum())
        chunks = int((-(-states // BLOCK)).sum())
        rows = {
            "successors": 4 * entries,
            "probabilities": model.probability_dtype.itemsize * entries,
            "rewards": n * reward_dtype(model).itemsize,
            "discounts": 8 * n if varies(model) else 0,
            "second_best": 8 * n,
        }
        work = {
            "descriptors": _DESCRIPTOR.itemsize * partitions,
            "row_sums": 8 * partitions,
            "start": 8 * n,
            "chunks": _CHUNK.itemsize * chunks,
            "progress": PROGRESS.itemsize,
            "partials": 24 * blocks,
            "results": 8 * RESULTS * partitions,
            "batch": 4 * partitions,
            "improved": 8 * IMPROVED * partitions,
        }
        return cls(rows, work, dict.fromkeys(VECTORS, 8 * n))

    def placed(self, room: int) -> tuple[bool, bool] | None:
        """Whether rows lie on the device, and whether there is room for the solver; None where nothing fits.

        Rows first: sweeps from the host's memory take some fifty times as long. The solver reads them less often.
        """
        for on_device, solves in ((True, True), (True, False), (False, True), (False, False)):
            if self.on_device(on_device, solves) <= room:
                return on_device, solves
        return None

    def on_device(self, rows: bool, solves: bool) -> int:
        """Bytes of the device's memory."""
        return total_of(self.work) + total_of(self.rows) * rows + total_of(self.vectors) * solves


def _states(model: ModelFacts) -> IntArray:
    return np.diff(model.partition_ptr)


def _widths(model: ModelFacts) -> IntArray:
    return np.maximum(model.row_widths, 1)


def _pitches(states: IntArray) -> IntArray:
    return -(-states // _WARP) * _WARP


def varies(model: ModelFacts) -> bool:
    """Whether discounts are kept state by state: there are durations, or states without actions may be."""
    return model.duration_dtype is not None or is_ragged(model)


def reward_dtype(model: ModelFacts) -> np.dtype[Any]:
    """Those of terminal states are doubles."""
    return np.dtype(np.float64) if is_ragged(model) else model.probability_dtype


def total_of(sizes: Mapping[str, int]) -> int:
    """Bytes of parts in one allocation."""
    return sum(map(aligned, sizes.values()))


def descriptors_of(model: ModelFacts) -> npt.NDArray[Any]:
    """RowsDescriptor [P]: where the planes of each partition's rows begin, their pitches and widths."""
    states, widths = _states(model), _widths(model)
    pitches = _pitches(states)
    descriptors = np.zeros(states.size, _DESCRIPTOR)
    descriptors["pitch"], descriptors["width"] = pitches, widths
    descriptors["entries"] = np.cumsum(pitches * widths) - pitches * widths
    return descriptors


def chunks_of(
    model: ModelFacts, partitions: IntArray, descriptors: npt.NDArray[Any], first: IntArray
) -> npt.NDArray[Any]:
    """Chunk [chunks]: of all states of some partitions, in their order; `first` are the partitions' first states."""
    states = _states(model)
    counts = -(-states[partitions] // BLOCK)
    owner = np.repeat(partitions, counts)
    begin = BLOCK * (np.arange(owner.size) - np.repeat(np.cumsum(counts) - counts, counts))
    chunks = np.empty(owner.size, _CHUNK)
    chunks["partition"] = owner
    chunks["state"] = first[owner] + begin
    chunks["entry"] = descriptors["entries"][owner] + begin
    chunks["states"] = np.minimum(states[owner] - begin, BLOCK)
    chunks["pitch"], chunks["width"] = descriptors["pitch"][owner], descriptors["width"][owner]
    return chunks


def kernel_defines(model: ModelFacts) -> dict[str, str | int]:
    """What kernels that know rows are compiled with."""
    widths = _widths(model)
    same = int(widths[0]) if np.ptp(widths) == 0 and widths[0] <= _MAX_UNROLLED else 0
    return {
        "REAL": c_type(model.probability_dtype),
        "REWARD": c_type(reward_dtype(model)),
        "VARIES": int(varies(model)),
        "ROW_WIDTH": same,
    }
