"""Where tiles and slots lie: arithmetic only, for the kernels of ``tiles/tiles.cuh``.

A slot has room for the largest partition of a store; a partition takes one slot, whatever its size, so that nothing
is allocated or moved while a solve runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.cuda.layout import ALIGNMENT, aligned, c_type
from ooc_mdp.backends.cuda.tiles.division import Division
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import IntArray

__all__ = ["MAX_ROUNDS", "SLOT_PARTS", "TILE_STATES", "SlotLayout", "SweepThread", "Tiling", "halo_dtype", "is_ragged"]

MAX_ROUNDS = 64
"""As in tiles/tiles.cuh."""
_LINE = 128
"""Bytes of which a tile's record takes a multiple."""
TILE_STATES = 512
"""States of a tile, about."""
_WARP = 32
SLOT_PARTS = ("boundary_count", "boundary", "reported", "tiles", "table")
"""What a slot may hold."""
_REGISTERS = 64 << 10
"""Of a multiprocessor."""
_HELD_ENTRIES = 24
"""Transitions of a state whose row a thread keeps in registers, as in tiles/tiles.cuh."""
_WORKING_REGISTERS = 40
"""Registers of a thread beside the rows that it keeps."""
_MAX_AXES = 7
"""As in tiles/tiles.cuh; boxes of more are taken as runs of states."""
_MAX_INPUTS = 96
_SHARED = 96 << 10
"""Bytes of shared memory that a block takes at most."""
_DIMENSIONS = 8
"""Of the Krylov space in which a window is solved."""
_MAX_LISTED = 8
"""States of a halo whose numbers a thread holds, as in tiles/sweeps.cu."""
_BLOCK_SHARED = 5 << 9
"""Bytes of shared memory of a sweeping block beside all that: its variables, and what the system takes."""


def _weights(facts: ModelFacts) -> int:
    """Probabilities of a row that are stored."""
    return facts.successors_per_action - 1 if facts.dyadic_probabilities else facts.successors_per_action


def is_ragged(facts: ModelFacts) -> bool:
    """Whether rows stay as the table has them: they differ in size, or states need more than 32 bits."""
    return facts.actions_per_state == 0 or facts.successors_per_action == 0 or facts.n_states >= 1 << 32


def halo_dtype(facts: ModelFacts) -> np.dtype[np.integer]:
    """Type of halo states on the device."""
    return np.dtype(np.uint32) if facts.n_states < 1 << 32 else np.dtype(np.int64)


def _record(facts: ModelFacts, tiling: Tiling, local: bool) -> list[tuple[str, int]]:
    """Parts of a tile's record and their bytes, as in tiles.cuh; the halo, which comes last, without its states."""
    n, a, k = tiling.threads, facts.actions_per_state, facts.successors_per_action
    real, durations = facts.probability_dtype.itemsize, facts.duration_dtype
    rows = [
        ("weights", a * _weights(facts) * n * real),
        ("rewards", a * n * real),
        ("durations", a * n * (0 if durations is None else durations.itemsize)),
        ("successors", a * k * n * (2 if local else 4)),
    ]
    lists = [("inputs", 4 * tiling.max_inputs)]
    return (([] if is_ragged(facts) else rows) + lists) + ([("halo", 0)] if local else [])


def _power_of_two(least: int) -> int:
    return 1 << max(least - 1, 1).bit_length()


@dataclass(frozen=True, slots=True)
class Tiling:
    """How the states of each partition are divided into tiles."""

    shape: tuple[int, ...]
    """States of a tile along each axis of a partition's box."""
    extents: npt.NDArray[np.int64]
    """int64 [P, d]; the boxes: of one axis, of all states, where a store has no grid."""
    per_partition: npt.NDArray[np.int64]
    """int64 [P]; tiles."""

    @classmethod
    def of(cls, facts: ModelFacts, states: int = TILE_STATES) -> Tiling:
        """Boxes of about as many points along each axis, as evenly cut as the largest box allows."""
        sizes = np.diff(facts.partition_ptr)
        extents = sizes[:, None]
        if facts.block_shapes is not None and facts.block_shapes.shape[1] <= _MAX_AXES:
            extents = facts.block_shapes.astype(np.int64)
        shape = _shape(tuple(extents.max(axis=0).tolist()), states)
        per_partition = np.prod(-(-extents // np.array(shape)), axis=1, dtype=np.int64)
        return cls(shape, extents, per_partition)

    def first_colours(self, facts: ModelFacts) -> IntArray:
        """int64 [P]; colour of each partition's first tile, so that colours go on across borders of partitions.

        1 where an odd number of tiles precede it along all axes of a grid of partitions, else 0.
        """
        grid = facts.partition_grid
        if grid is None or len(grid) != len(self.shape):
            return np.zeros(self.per_partition.size, np.int64)
        across = -(-self.extents // np.array(self.shape)).reshape(*grid, len(grid))
        before = sum(np.cumsum(across[..., axis], axis) - across[..., axis] for axis in range(len(grid)))
        return np.asarray(before).reshape(-1) % 2

    @property
    def box(self) -> int:
        """States of a full tile."""
        return math.prod(self.shape)

    @property
    def threads(self) -> int:
        """Entries of a tile in a plane; threads of a block that lays one out."""
        return -(-self.box // _WARP) * _WARP

    @property
    def total(self) -> int:
        """Tiles of all partitions."""
        return int(self.per_partition.sum())

    @property
    def neighbourhood(self) -> int:
        """States around a tile, one deep."""
        return math.prod(t + 2 for t in self.shape) - self.box

    @property
    def max_inputs(self) -> int:
        """Tiles that a tile may list as its inputs."""
        return min(_MAX_INPUTS, max(32, 3 ** len(self.shape) - 1))


_MIN_GAIN = 1.1
"""By how much fewer threads another shape must do than powers of two, with which the engine was measured."""


@cache
def _shape(extents: tuple[int, ...], states: int) -> tuple[int, ...]:
    """Points along each axis of a tile of about `states`: powers of two, or what leaves far fewer threads idle.

    At most `states`, a quarter more where that wastes much less of a grid.
    """
    shape = _powers_of_two(extents, states)
    for most in (states, states + states // 4 if len(extents) > 1 else states):
        tight = _tight(extents, most)
        if _threads(extents, shape) > _MIN_GAIN * _threads(extents, tight):
            shape = tight
    return shape


def _threads(extents: Sequence[int], shape: Sequence[int]) -> int:
    """Threads of all tiles of a block."""
    return math.prod(-(-e // t) for e, t in zip(extents, shape, strict=True)) * -(-math.prod(shape) // _WARP) * _WARP


def _powers_of_two(extents: Sequence[int], states: int) -> tuple[int, ...]:
    """Powers of two as equal as can be, the longest last, where memory is contiguous; then as the extents divide."""
    shape = [1] * len(extents)
    while math.prod(shape) * 2 <= states:
        open_axes = [d for d in reversed(range(len(extents))) if shape[d] < extents[d]]
        if not open_axes:
            break
        shape[min(open_axes, key=lambda d: shape[d])] *= 2
    return tuple(-(-e // -(-e // t)) for e, t in zip(extents, shape, strict=True))


def _tight(extents: Sequence[int], states: int) -> tuple[int, ...]:
    """The box with the fewest threads in all, a point of its halo counted as half a thread."""
    choices = [sorted({-(-e // -(-e // t)) for t in range(1, min(e, states) + 1)}) for e in extents]
    best, least = tuple(1 for _ in extents), math.inf

    def extend(shape: tuple[int, ...], room: int) -> None:
        nonlocal best, least
        if len(shape) < len(extents):
            for t in choices[len(shape)]:
                if t <= room:
                    extend((*shape, t), room // t)
            return
        halo = math.prod(min(t + 2, e) for t, e in zip(shape, extents, strict=True)) - math.prod(shape)
        tiles = math.prod(-(-e // t) for e, t in zip(extents, shape, strict=True))
        cost = _threads(extents, shape) + tiles * halo / 2
        if cost <= least:
            best, least = shape, cost

    extend((), states)
    return best


@dataclass(frozen=True, slots=True)
class SweepThread:
    """What a thread has that sweeps a tile: the more registers it takes, the fewer of them a multiprocessor holds."""

    states: int
    registers: int
    """At most."""
    ahead: bool
    """Whether rows become doubles once a visit, in registers, or again in each iteration."""

    @classmethod
    def of(cls, facts: ModelFacts, local: bool) -> SweepThread:
        """Two states where their rows fit, in as few registers as they fit in."""
        if local and facts.actions_per_state * facts.successors_per_action <= _HELD_ENTRIES:
            for registers, ahead in ((80, False), (128, True), (128, False)):
                if 2 * cls._row_registers(facts, ahead) + _WORKING_REGISTERS <= registers:
                    return cls(2, registers, ahead)
        return cls(1, 64, False)

    @staticmethod
    def _row_registers(facts: ModelFacts, ahead: bool) -> int:
        """Of a state's weights, successors, rewards and discounts."""
        a, k = facts.actions_per_state, facts.successors_per_action
        weights, words = (k, 2) if ahead else (_weights(facts), facts.probability_dtype.itemsize // 4)
        return a * (weights + 1) * words + -(-a * k // 2) + (0 if facts.duration_dtype is None else 2 * a)


@dataclass(frozen=True, slots=True)
class SlotLayout:
    """What a slot holds and where; offsets in bytes."""

    local: bool
    """Whether successors are numbers within the tile and its halo, iterated in shared memory."""
    halo: int
    """Room for the halo of a tile (states)."""
    record: Mapping[str, int]
    """Where each part of a tile's record begins in it, by name."""
    record_bytes: int
    boundary_room: int
    """Boundary states whose values are kept apart; where a partition has more, its tiles' changes stand for them."""
    table_room: int
    """Bytes for a table that is kept as it is."""
    thread: SweepThread
    """What a thread of a sweep has."""
    offsets: Mapping[str, int]
    nbytes: int

    @classmethod
    def of(cls, facts: ModelFacts, tiling: Tiling, local: bool, halo: int) -> SlotLayout:
        """Sized for the largest partition."""
        boundary = min(facts.largest_partition, 1024 + 2 * facts.largest_halo)
        record = _record(facts, tiling, local)
        fields = {name: sum(size for _, size in record[:i]) for i, (name, _) in enumerate(record)}
        record_bytes = -(-(sum(size for _, size in record) + (4 * max(halo, 1) if local else 0)) // _LINE) * _LINE
        room = facts.largest_table_bytes + 12 * ALIGNMENT if is_ragged(facts) else 0
        sizes = {
            "boundary_count": 4,
            "boundary": 4 * boundary,
            "reported": 8 * boundary,
            "tiles": int(tiling.per_partition.max()) * record_bytes,
            "table": room,
        }
        offsets = dict(zip(sizes, np.cumsum([0, *(aligned(s) for s in sizes.values())]).tolist(), strict=False))
        nbytes = sum(aligned(s) for s in sizes.values())
        return cls(local, halo, fields, record_bytes, boundary, room, SweepThread.of(facts, local), offsets, nbytes)

    def sweep_threads(self, tiling: Tiling) -> int:
        """Threads of a block that sweeps a tile."""
        return -(-tiling.threads // self.thread.states // _WARP) * _WARP

    def blocks(self, tiling: Tiling) -> int:
        """Blocks that a multiprocessor should hold."""
        return max(1, _REGISTERS // (self.thread.registers * self.sweep_threads(tiling)))

    def listed(self, tiling: Tiling) -> int:
        """States of a halo whose numbers are staged."""
        return min(max(self.halo, 1), _MAX_LISTED * self.sweep_threads(tiling))

    def staged(self, facts: ModelFacts, tiling: Tiling, room: int) -> int:
        """Bytes of shared memory to which a block brings the rows of its next tile; 0 where they do not go there.

        Parameters
        ----------
        room : bytes of shared memory of a multiprocessor whose blocks can have them filled while they run, or 0.
        """
        if not self.local or not 0 < facts.actions_per_state * facts.successors_per_action <= _HELD_ENTRIES:
            return 0
        record = -(-(self.record["halo"] + 4 * self.listed(tiling) + 12) // _LINE) * _LINE
        staged = record + 16 * tiling.threads + _LINE
        block = self.visit_shared(tiling) + staged + _BLOCK_SHARED
        return staged if self.blocks(tiling) * block <= room else 0

    def defines(
        self, facts: ModelFacts, tiling: Tiling, staged: int = 0, division: Division | None = None
    ) -> dict[str, str | int]:
        """What the kernels are compiled with, where blocks stage so many bytes; `division`: None of one device."""
        durations = facts.duration_dtype
        return {
            "MEMBERS": 1 if division is None else division.devices,
            "REORDERED": int(division is not None and division.reordered),
            "STAGED": staged,
            "LISTED": self.listed(tiling),
            "LOCAL": int(self.local),
            "RAGGED": int(is_ragged(facts)),
            "ACTIONS": facts.actions_per_state,
            "WIDTH": facts.successors_per_action,
            "WEIGHTS": _weights(facts),
            "TILE": tiling.threads,
            "STATES": self.thread.states,
            "THREADS": self.sweep_threads(tiling),
            "BLOCKS": self.blocks(tiling),
            "AHEAD": int(self.thread.ahead),
            "BOX": tiling.box,
            "DIMS": len(tiling.shape),
            "TILE_SHAPE": "{" + ", ".join(map(str, tiling.shape)) + "}",
            "HALO": max(self.halo, 1),
            "DIMENSIONS": _DIMENSIONS,
            "HALO_HASH": self.halo_hash,
            "INPUTS": tiling.max_inputs,
            "INPUTS_HASH": self.inputs_hash(tiling),
            "REAL": c_type(facts.probability_dtype),
            "INDEX": c_type(facts.successor_dtype),
            "HAS_TAU": int(durations is not None),
            "TAU": "double" if durations is None else c_type(durations),
            "HALO_STATE": c_type(halo_dtype(facts)),
            "CHOICE": "unsigned char" if self.narrow_policy(facts) else "int",
            "RECORD": self.record_bytes,
            "BOUNDARY_ROOM": self.boundary_room,
            **{f"AT_{part.upper()}": f"{self.offsets.get(part, 0)}ll" for part in SLOT_PARTS},
        }

    @staticmethod
    def narrow_policy(facts: ModelFacts) -> bool:
        """Whether an action takes one byte on the device."""
        return 0 < facts.actions_per_state <= 256 and not is_ragged(facts)

    @property
    def halo_hash(self) -> int:
        """Entries of the table in which a tile's halo is gathered."""
        return _power_of_two(self.halo + self.halo // 2) if self.local else 1

    @staticmethod
    def inputs_hash(tiling: Tiling) -> int:
        """Entries of the table in which a tile's inputs are gathered."""
        return _power_of_two(2 * tiling.max_inputs)

    def visit_shared(self, tiling: Tiling) -> int:
        """Bytes of shared memory of a block for the values of a tile, without what it stages."""
        return -(-8 * (tiling.threads + max(self.halo, 1)) // _LINE) * _LINE if self.local else 0

    def window_shared(self, facts: ModelFacts, tiling: Tiling) -> int:
        """Bytes of shared memory of a block that solves a window; 0 where rows are not such that it can."""
        held = self.local and 0 < facts.actions_per_state * facts.successors_per_action <= _HELD_ENTRIES
        return 8 * tiling.threads * (2 + _DIMENSIONS + 1) if held else 0

    def lay_out_shared(self, tiling: Tiling) -> int:
        """Bytes of shared memory of a block that lays a tile out."""
        return 4 * self.inputs_hash(tiling) + (4 * self.halo_hash if self.local else 0)

    def fits(self, tiling: Tiling) -> bool:
        """Whether a block's shared memory is large enough."""
        return self.visit_shared(tiling) <= _SHARED and self.lay_out_shared(tiling) <= _SHARED and self.halo < 1 << 15
