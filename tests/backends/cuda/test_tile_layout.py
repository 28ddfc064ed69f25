"""Tiles and slots are arithmetic: every state lies in one tile, nothing in a slot lies on anything else."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_facts import facts_with

from ooc_mdp.backends.cuda.tiles.layout import SlotLayout, SweepThread, Tiling, halo_dtype, is_ragged
from ooc_mdp.model.facts import ModelFacts

FLOAT32 = np.dtype(np.float32)
REALS = st.sampled_from([np.dtype(np.float32), np.dtype(np.float64)])


def model_with(
    sizes: Sequence[int],
    shapes: npt.NDArray[np.int32] | None = None,
    actions: int = 3,
    width: int = 4,
    exact: bool = True,
    real: npt.DTypeLike = np.float32,
    durations: np.dtype[np.floating] | None = FLOAT32,
    largest_bytes: int = 10_000,
) -> ModelFacts:
    return facts_with(
        [0, *np.cumsum(sizes).tolist()],
        partition_bytes=np.full(len(sizes), largest_bytes),
        partition_halo=np.full(len(sizes), 10),
        block_shapes=shapes,
        actions_per_state=actions,
        successors_per_action=width,
        dyadic_probabilities=exact,
        probability_dtype=np.dtype(real),
        duration_dtype=durations,
    )


@st.composite
def grids(draw: st.DrawFn) -> npt.NDArray[np.int32]:
    """int32 [P, d]; shapes of blocks in 1 to 6 dimensions, of which the first are the largest along each axis."""
    d = draw(st.integers(1, 6))
    longest = {1: 400, 2: 40, 3: 12, 4: 7, 5: 5, 6: 4}[d]
    shape = st.lists(st.integers(1, longest), min_size=d, max_size=d)
    return np.array(draw(st.lists(shape, min_size=1, max_size=4)), np.int32)


def places_of(tiling: Tiling, extent: Sequence[int]) -> list[tuple[int, int]]:
    """Tile and thread of each state of a box in C order, as the kernels count them."""
    across = [-(-e // t) for e, t in zip(extent, tiling.shape, strict=True)]
    places = []
    for at in itertools.product(*map(range, extent)):
        tile = offset = 0
        for x, t, a in zip(at, tiling.shape, across, strict=True):
            tile, offset = tile * a + x // t, offset * t + x % t
        places.append((tile, offset))
    return places


@settings(max_examples=60)
@given(shapes=grids(), states=st.sampled_from([1, 2, 16, 31, 64, 256]))
def test_every_state_lies_in_one_tile(shapes: npt.NDArray[np.int32], states: int) -> None:
    sizes = shapes.prod(axis=1).tolist()
    tiling = Tiling.of(model_with(sizes, shapes), states)
    assert tiling.box == math.prod(tiling.shape) <= (states if shapes.shape[1] == 1 else states * 5 // 4)
    assert tiling.threads % 32 == 0
    assert tiling.box <= tiling.threads < tiling.box + 32
    assert tiling.total == tiling.per_partition.sum()
    for extent, size, tiles in zip(shapes.tolist(), sizes, tiling.per_partition.tolist(), strict=True):
        places = places_of(tiling, extent)
        assert len(set(places)) == size
        assert all(0 <= tile < tiles and 0 <= offset < tiling.box for tile, offset in places)
        assert {tile for tile, _ in places} == set(range(tiles))


@settings(max_examples=60)
@given(shapes=grids(), states=st.sampled_from([16, 64, 256]))
def test_tiles_waste_few_threads_of_the_largest_block(shapes: npt.NDArray[np.int32], states: int) -> None:
    largest = shapes.max(axis=0)
    tiling = Tiling.of(model_with([int(largest.prod())], largest[None]), states)
    held = int(tiling.per_partition[0]) * tiling.box
    # an axis of e points in tiles of at most t is cut into ceil(e / t): each tile lacks less than a point on average
    lost = math.prod(1 + 1 / t if t < e else 1.0 for e, t in zip(largest.tolist(), tiling.shape, strict=True))
    assert largest.prod() <= held <= largest.prod() * lost


@given(sizes=st.lists(st.integers(1, 500), min_size=1, max_size=5), states=st.sampled_from([1, 32, 256]))
def test_without_a_grid_tiles_are_runs(sizes: list[int], states: int) -> None:
    tiling = Tiling.of(model_with(sizes, None), states)
    assert tiling.extents.tolist() == [[n] for n in sizes]
    assert tiling.per_partition.tolist() == [-(-n // tiling.box) for n in sizes]


def test_more_axes_than_a_tile_has_are_taken_for_a_run() -> None:
    shapes = np.full((2, 9), 2, np.int32)
    tiling = Tiling.of(model_with([512, 512], shapes), 64)
    assert tiling.extents.tolist() == [[512], [512]]
    assert tiling.per_partition.tolist() == [8, 8]


@settings(max_examples=100)
@given(
    shapes=grids(),
    actions=st.integers(0, 300),
    width=st.integers(0, 9),
    exact=st.booleans(),
    real=REALS,
    durations=st.sampled_from([None, np.dtype(np.float32), np.dtype(np.float64)]),
    local=st.booleans(),
    halo=st.sampled_from([0, 256, 1024]),
    states=st.sampled_from([16, 256]),
)
def test_nothing_in_a_slot_lies_on_anything_else(
    shapes: npt.NDArray[np.int32],
    actions: int,
    width: int,
    exact: bool,
    real: np.dtype[np.floating],
    durations: np.dtype[np.floating] | None,
    local: bool,
    halo: int,
    states: int,
) -> None:
    sizes, exact = shapes.prod(axis=1).tolist(), exact and width > 0
    model = model_with(sizes, shapes, actions, width, exact, real, durations, largest_bytes=12_345)
    tiling = Tiling.of(model, states)
    local = local and not is_ragged(model)
    layout = SlotLayout.of(model, tiling, local, halo if local else 0)
    tiles, n, entries = int(tiling.per_partition.max()), model.largest_partition, tiling.threads
    assert tiles * entries >= n
    record = {"inputs": 4 * tiling.max_inputs}
    if not is_ragged(model):
        stored = width - 1 if exact else width
        record |= {
            "weights": actions * stored * entries * real.itemsize,
            "successors": actions * width * entries * (2 if local else 4),
            "rewards": actions * entries * real.itemsize,
            "durations": actions * entries * (durations.itemsize if durations is not None else 0),
        }
    if local:
        record["halo"] = 4 * halo
    due = {
        "boundary_count": 4,
        "boundary": 4 * layout.boundary_room,
        "reported": 8 * layout.boundary_room,
        "tiles": tiles * layout.record_bytes,
    }
    if is_ragged(model):
        due["table"] = model.largest_table_bytes
    for parts, begins, end, alignment in (
        (record, layout.record, layout.record_bytes, 16),
        (due, layout.offsets, layout.nbytes, 256),
    ):
        spans = sorted((begins[name], begins[name] + size) for name, size in parts.items() if size)
        assert all(start % alignment == 0 for start, _ in spans)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
        assert spans[-1][1] <= end <= sum(size + alignment for size in parts.values()) + 16 * 256
    assert layout.record_bytes % 128 == 0
    defines = layout.defines(model, tiling)
    assert (defines["TILE"], defines["BOX"], defines["DIMS"]) == (tiling.threads, tiling.box, len(tiling.shape))
    assert (defines["LOCAL"], defines["RAGGED"]) == (local, is_ragged(model))
    threads = layout.sweep_threads(tiling)
    assert (defines["STATES"], defines["THREADS"]) == (layout.thread.states, threads)
    assert threads % 32 == 0
    assert tiling.threads <= threads * layout.thread.states < tiling.threads + 32 * layout.thread.states
    assert layout.thread.states == 1 or (local and actions * width <= 24)
    assert int(defines["BLOCKS"]) * threads * layout.thread.registers <= 64 << 10
    assert defines["RECORD"] == layout.record_bytes
    assert all(defines[f"AT_{name.upper()}"] == f"{layout.offsets[name]}ll" for name, size in due.items() if size)
    assert layout.narrow_policy(model) == (0 < actions <= 256 and not is_ragged(model))


@given(halo=st.integers(0, 30_000), states=st.sampled_from([16, 64, 256, 1024]))
def test_tables_of_keys_are_powers_of_two_with_room_to_spare(halo: int, states: int) -> None:
    model = model_with([5000], None)
    tiling = Tiling.of(model, states)
    layout = SlotLayout.of(model, tiling, True, halo)
    for size, room in ((layout.halo_hash, halo), (layout.inputs_hash(tiling), tiling.max_inputs)):
        assert size & (size - 1) == 0
        assert size > room
    assert layout.visit_shared(tiling) >= 8 * (tiling.threads + halo)
    assert layout.lay_out_shared(tiling) >= 4 * layout.inputs_hash(tiling) + 4 * layout.halo_hash
    if layout.fits(tiling):
        assert max(layout.visit_shared(tiling), layout.lay_out_shared(tiling)) <= 227 << 10
        assert tiling.threads + halo < 1 << 16, "successors of a tile are 16-bit numbers"


@given(
    actions=st.integers(1, 12),
    width=st.integers(1, 9),
    halo=st.integers(0, 5000),
    states=st.sampled_from([32, 256, 512]),
    room=st.sampled_from([0, 100 << 10, 228 << 10]),
)
def test_tiles_are_staged_where_as_many_blocks_have_room_as_their_registers_allow(
    actions: int, width: int, halo: int, states: int, room: int
) -> None:
    model = model_with([5000], None, actions, width)
    tiling = Tiling.of(model, states)
    layout = SlotLayout.of(model, tiling, True, halo)
    staged = layout.staged(model, tiling, room)
    defines = layout.defines(model, tiling, staged)
    assert (defines["STAGED"], defines["LISTED"]) == (staged, layout.listed(tiling))
    listed = min(max(halo, 1), 8 * layout.sweep_threads(tiling))
    assert layout.listed(tiling) == listed
    least = layout.record["halo"] + 4 * listed + 2 * 8 * tiling.threads + 8
    blocks = int(defines["BLOCKS"])
    if staged:
        assert staged >= least
        assert blocks * (layout.visit_shared(tiling) + staged) <= room
    elif actions * width <= 24:
        assert blocks * (layout.visit_shared(tiling) + least + (3 << 10)) > room - blocks * 512


@pytest.mark.parametrize(
    ("actions", "width", "states", "ragged"),
    [(3, 4, 100, False), (0, 4, 100, True), (3, 0, 100, True), (3, 4, 1 << 33, True)],
)
def test_rows_stay_as_they_are_where_they_differ_or_states_need_64_bits(
    actions: int, width: int, states: int, ragged: bool
) -> None:
    model = model_with([states], None, actions, width)
    assert is_ragged(model) == ragged
    assert halo_dtype(model) == (np.uint32 if states < 1 << 32 else np.int64)


@pytest.mark.parametrize(
    ("actions", "width", "real", "local", "states", "registers", "ahead"),
    [
        (3, 3, np.float32, True, 2, 80, False),
        (2, 6, np.float32, True, 2, 128, True),
        (4, 4, np.float32, True, 2, 128, False),
        (3, 3, np.float64, True, 2, 128, True),
        (8, 3, np.float32, True, 1, 64, False),
        (5, 5, np.float32, True, 1, 64, False),
        (3, 3, np.float32, False, 1, 64, False),
    ],
)
def test_a_thread_takes_two_states_where_their_rows_fit_its_registers(
    actions: int, width: int, real: type, local: bool, states: int, registers: int, ahead: bool
) -> None:
    assert SweepThread.of(model_with([64], None, actions, width, real=real), local) == SweepThread(
        states, registers, ahead
    )
