"""Where a policy's rows lie on a device, and what they and their evaluation take: arithmetic only.

``policy/rows.cuh`` draws a partition's planes. What takes most: width * (4 + real) bytes of each state for rows, 8 for
Q2, 8 for values as they were, 48 for what speeds sweeps up: six vectors of mixing or of a Krylov solver.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.cuda.group import parts_of
from ooc_mdp.backends.cuda.layout import aligned, c_type
from ooc_mdp.backends.cuda.policy.parts import RowParts
from ooc_mdp.backends.cuda.tiles.layout import is_ragged
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import IntArray

__all__ = [
    "BLOCK",
    "IMPROVED",
    "MAX_SWEEPS",
    "MIXED",
    "PROGRESS",
    "RESULTS",
    "ROWS",
    "SUMS",
    "VECTORS",
    "RowSizes",
    "chunks_of",
    "descriptors_of",
    "evaluation_dtype",
    "kernel_defines",
    "parts_of_rows",
    "reward_dtype",
    "total_of",
    "varies",
]

MAX_SWEEPS = 64
"""Sweeps between two looks of the host, at most: MAX_SWEEPS of policy/rows.cu."""
BLOCK = 256
"""States of a chunk."""
RESULTS, IMPROVED = 9, 5
"""Results per partition of `measure_rows`, and of policy/improve.cu."""
_MAX_BLOCKS = 1 << 12
"""That a device runs at once, for what is planned before there is one."""
MIXED = 3
"""Directions that sweeps are mixed by, at most: MIXED of policy/mixing.cu."""
SUMS = 1 + 2 * MIXED
"""Of a kernel over all states, at most: MOST_SUMS of policy/rows.cu."""
_DECISIONS = 4
"""Kernels whose sums something is decided by: DECISIONS of policy/krylov.cu."""
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
        ("sums", "f8", SUMS),
        ("claims", "u4", MAX_SWEEPS),
        *((name, "u4") for name in ("state", "products")),
    ]
)
_ROW_FIELDS = ("descriptors", "successors", "probabilities", "rewards", "discounts", "second_best")
ROWS = np.dtype([(name, "u8") for name in _ROW_FIELDS])
"""Structures of policy/rows.cuh and policy/rows.cu."""


@cache
def evaluation_dtype(members: int) -> np.dtype[Any]:
    """The structure Evaluation of kernels for so many devices."""
    addresses = ("values", "start", *VECTORS, "progress", "partials", "ticket", "row_sums", "results")
    return np.dtype(
        [
            ("rows", ROWS),
            ("chunks", "u8"),
            ("count", "i8"),
            ("member", "i8"),
            *((name, "u8") for name in addresses),
            ("discount", "f8"),
            ("centre", "f8"),
            ("progress_of", "u8", (members,)),
            ("sums_of", "u8", (members,)),
        ]
    )


Ends = tuple[int, ...]
"""Bytes at which each device's part of what is spread over a group ends; one number, the size, on one device."""


@dataclass(frozen=True, slots=True)
class RowSizes:
    """Bytes by name: of rows, of what every evaluation takes, and of the vectors that speed it up."""

    rows: Mapping[str, Ends]
    start: Mapping[str, Ends]
    """Values as they were at the beginning."""
    vectors: Mapping[str, Ends]
    work: Mapping[str, int]
    """On each device."""
    page: int
    """Bytes of whose multiples the parts of what is spread consist."""

    @classmethod
    def of(cls, facts: ModelFacts, parts: RowParts, blocks: int = _MAX_BLOCKS, page: int = 1) -> RowSizes:
        """Where so many blocks of a device add up sums at the same time."""
        states, chunks = _states(facts), _chunks(facts)
        ends = parts.ends(states)
        entries = parts.ends(_pitches(states) * _widths(facts))
        partitions = states.size
        rows = {
            "successors": _times(4, entries),
            "probabilities": _times(facts.probability_dtype.itemsize, entries),
            "rewards": _times(reward_dtype(facts).itemsize, ends),
            "discounts": _times(8 * varies(facts), ends),
            "second_best": _times(8, ends),
        }
        work = {
            "descriptors": _DESCRIPTOR.itemsize * partitions,
            "row_sums": 8 * partitions,
            "chunks": _CHUNK.itemsize * int(np.diff(parts.begins(chunks)).max()),
            "progress": PROGRESS.itemsize,
            "partials": 8 * SUMS * blocks,
            "ticket": 4,
            "sums": 24 * _DECISIONS * parts.devices,
            "results": 8 * RESULTS * partitions,
            "batch": 4 * partitions,
            "improved": 8 * IMPROVED * partitions,
        }
        vector = _times(8, ends)
        return cls(rows, {"start": vector}, dict.fromkeys(VECTORS, vector), work, page)

    def placed(self, room: int) -> tuple[bool, bool] | None:
        """Whether rows lie on the devices, and whether there is room for the vectors; None where nothing fits.

        Rows first: sweeps from the host's memory take some fifty times as long. With vectors they are read less often.

        Parameters
        ----------
        room : bytes of each device.
        """
        for on_device, solves in ((True, True), (True, False), (False, True), (False, False)):
            if self.on_device(on_device, solves) <= room:
                return on_device, solves
        return None

    def spread(self, rows: bool, solves: bool) -> dict[str, Ends]:
        """What is spread over the devices."""
        return {**self.start, **(self.vectors if solves else {}), **(self.rows if rows else {})}

    def on_device(self, rows: bool, solves: bool) -> int:
        """Bytes of the memory of the device that has most of them."""
        parts = [parts_of(ends, self.page) for ends in self.spread(rows, solves).values()]
        if len(parts[0]) == 1:
            return total_of(self.work) + sum(aligned(size) for (size,) in parts)
        return total_of(self.work) + max(map(sum, zip(*parts, strict=True)))

    def in_host(self) -> dict[str, int]:
        """Bytes of rows in the host's memory, where they lie there."""
        return {name: ends[-1] for name, ends in self.rows.items()}


def _times(itemsize: int, ends: Ends) -> Ends:
    return tuple(itemsize * end for end in ends)


def parts_of_rows(facts: ModelFacts, first: IntArray | None = None, devices: int = 1) -> RowParts:
    """How a model's rows are divided.

    Parameters
    ----------
    first : int64 [P]; first state of each partition as the devices number them; None as the store does.
    """
    states = _states(facts)
    entry = 4 + facts.probability_dtype.itemsize
    nbytes = entry * _pitches(states) * _widths(facts) + 8 * (4 + len(VECTORS)) * states
    return RowParts.of(facts.partition_ptr[:-1] if first is None else first, nbytes, devices)


def _chunks(facts: ModelFacts) -> IntArray:
    return -(-_states(facts) // BLOCK)


def _states(facts: ModelFacts) -> IntArray:
    return np.diff(facts.partition_ptr)


def _widths(facts: ModelFacts) -> IntArray:
    return np.maximum(facts.row_widths, 1)


def _pitches(states: IntArray) -> IntArray:
    return -(-states // _WARP) * _WARP


def varies(facts: ModelFacts) -> bool:
    """Whether discounts are kept state by state: there are durations, or states without actions may be."""
    return facts.duration_dtype is not None or is_ragged(facts)


def reward_dtype(facts: ModelFacts) -> np.dtype[Any]:
    """Those of terminal states are doubles."""
    return np.dtype(np.float64) if is_ragged(facts) else facts.probability_dtype


def total_of(sizes: Mapping[str, int]) -> int:
    """Bytes of parts in one allocation."""
    return sum(map(aligned, sizes.values()))


def descriptors_of(facts: ModelFacts, parts: RowParts) -> npt.NDArray[Any]:
    """RowsDescriptor [P]: where the planes of each partition's rows begin, their pitches and widths."""
    states, widths = _states(facts), _widths(facts)
    pitches = _pitches(states)
    descriptors = np.zeros(states.size, _DESCRIPTOR)
    descriptors["pitch"], descriptors["width"] = pitches, widths
    descriptors["entries"] = parts.starts(pitches * widths)
    return descriptors


def chunks_of(
    facts: ModelFacts, kept: npt.NDArray[np.bool_], descriptors: npt.NDArray[Any], parts: RowParts
) -> tuple[npt.NDArray[Any], IntArray]:
    """Chunks of all states of the partitions that are kept (bool [P]), in the order of states; where devices' begin.

    Returns
    -------
    Chunk [chunks], and int64 [devices + 1]: numbers of chunks.
    """
    states, first = _states(facts), parts.starts(_states(facts))
    partitions = parts.order[kept[parts.order]]
    counts = -(-states[partitions] // BLOCK)
    owner = np.repeat(partitions, counts)
    begin = BLOCK * (np.arange(owner.size) - np.repeat(np.cumsum(counts) - counts, counts))
    chunks = np.empty(owner.size, _CHUNK)
    chunks["partition"] = owner
    chunks["state"] = first[owner] + begin
    chunks["entry"] = descriptors["entries"][owner] + begin
    chunks["states"] = np.minimum(states[owner] - begin, BLOCK)
    chunks["pitch"], chunks["width"] = descriptors["pitch"][owner], descriptors["width"][owner]
    return chunks, parts.begins(np.where(kept, _chunks(facts), 0))


def kernel_defines(facts: ModelFacts, members: int = 1) -> dict[str, str | int]:
    """What kernels that know rows are compiled with, for so many devices."""
    widths = _widths(facts)
    same = int(widths[0]) if np.ptp(widths) == 0 and widths[0] <= _MAX_UNROLLED else 0
    return {
        "REAL": c_type(facts.probability_dtype),
        "REWARD": c_type(reward_dtype(facts)),
        "VARIES": int(varies(facts)),
        "ROW_WIDTH": same,
        "MEMBERS": members,
    }
