from __future__ import annotations

import builtins
import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_mdp.errors import MissingExtraError, OptionsError
from ooc_mdp.io.conversion.partitioning import (
    balanced_ranges,
    block_shape_for,
    blocks_for,
    default_partition_bytes,
    even_ranges,
    grid_order,
    metis_order,
    ranges_by_size,
    split_evenly,
)
from ooc_mdp.model.state_order import GridOrder, PermutedOrder, StateOrder, partition_of

shapes = st.lists(st.integers(1, 9), min_size=1, max_size=4).map(tuple)


def check_order(order: StateOrder, n: int) -> None:
    """Every state is in one partition, and both directions agree."""
    ptr = order.partition_ptr
    assert ptr[0] == 0
    assert ptr[-1] == n
    assert (np.diff(ptr) > 0).all()
    every = [order.states(p) for p in range(ptr.size - 1)]
    assert [e.size for e in every] == np.diff(ptr).tolist()
    assert all((np.diff(e) > 0).all() for e in every)
    joined = np.concatenate(every)
    assert sorted(joined.tolist()) == list(range(n))
    assert order.to_store(joined).tolist() == list(range(n))
    new = order.to_store(np.arange(n))
    expected = sorted((s, p) for p, e in enumerate(every) for s in e.tolist())
    assert partition_of(ptr, new).tolist() == [p for _, p in expected]


@given(st.lists(st.lists(st.integers(1, 50), min_size=1), min_size=1), st.integers(1, 100))
def test_ranges_are_cut_as_late_as_the_target_allows(pieces: list[list[int]], target: int) -> None:
    sizes = [b for piece in pieces for b in piece]
    order = ranges_by_size((np.array(p) for p in pieces), target)
    check_order(order, len(sizes))
    ptr = order.partition_ptr.tolist()
    held = [sum(sizes[a:b]) for a, b in pairwise(ptr)]
    for p, total in enumerate(held):
        assert total <= target or ptr[p + 1] - ptr[p] == 1
        if p + 1 < len(held):
            assert total + sizes[ptr[p + 1]] > target


@given(st.lists(st.lists(st.integers(1, 50), min_size=1), min_size=1), st.data())
def test_balanced_ranges_hold_about_equal_bytes(pieces: list[list[int]], data: st.DataObject) -> None:
    sizes = [b for piece in pieces for b in piece]
    partitions = data.draw(st.integers(1, len(sizes)))
    order = balanced_ranges((np.array(p) for p in pieces), sum(sizes), len(sizes), partitions)
    check_order(order, len(sizes))
    ptr = order.partition_ptr.tolist()
    assert len(ptr) == partitions + 1
    for a, b in pairwise(ptr):
        assert sum(sizes[a:b]) <= sum(sizes) / partitions + max(sizes) + 1 or b - a == 1


def test_a_heavy_state_shifts_the_cuts_of_balanced_ranges() -> None:
    order = balanced_ranges([np.array([1, 1, 1]), np.array([9, 1, 1, 1, 1, 1, 1])], 18, 10, 2)
    assert order.partition_ptr.tolist() == [0, 4, 10]
    assert balanced_ranges([np.array([50, 1, 1])], 52, 3, 3).partition_ptr.tolist() == [0, 1, 2, 3]


def test_a_state_above_the_target_has_a_range_of_its_own() -> None:
    assert ranges_by_size([np.array([1, 1, 9, 1]), np.array([1, 9])], 3).partition_ptr.tolist() == [0, 2, 3, 5, 6]


@pytest.mark.parametrize("total", [0, 7, 1 << 31, 2_250_000_000_000_001, (1 << 63) - 1])
@pytest.mark.parametrize("parts", [1, 3, 4096])
def test_even_shares_of_any_total_are_those_of_whole_numbers(total: int, parts: int) -> None:
    assert split_evenly(total, parts).tolist() == [i * total // parts for i in range(parts + 1)]


def test_ranges_of_more_states_than_fit_a_product_of_64_bits_rise() -> None:
    states = 1 << 60
    check = even_ranges(states, 1000).partition_ptr
    assert check[-1] == states
    assert np.ptp(np.diff(check)) <= 1
    pieces = [np.full(4, 1 << 60)]
    assert balanced_ranges(pieces, 4 << 60, 4, 4).partition_ptr.tolist() == [0, 1, 2, 3, 4]


@given(st.integers(1, 200), st.data())
def test_even_ranges_differ_by_at_most_one_state(n: int, data: st.DataObject) -> None:
    partitions = data.draw(st.integers(1, n))
    order = even_ranges(n, partitions)
    check_order(order, n)
    assert np.ptp(np.diff(order.partition_ptr)) <= 1
    assert order.partition_ptr.size == partitions + 1


@given(shapes, st.data())
def test_blocks_of_any_shape_hold_every_state_once(shape: tuple[int, ...], data: st.DataObject) -> None:
    block = tuple(data.draw(st.integers(1, n + 2)) for n in shape)
    order = grid_order(shape, block, None, 1)
    check_order(order, math.prod(shape))
    again = GridOrder.from_order(order.state_order(), order.partition_ptr)
    assert again.partition_ptr.tolist() == order.partition_ptr.tolist()
    every = np.arange(math.prod(shape))
    assert again.to_store(every).tolist() == order.to_store(every).tolist()


@given(shapes, st.data())
def test_values_in_the_order_of_blocks_come_to_their_places_of_the_grid(
    shape: tuple[int, ...], data: st.DataObject
) -> None:
    cuts = [data.draw(st.sets(st.integers(1, n - 1))) if n > 1 else set() for n in shape]
    order = GridOrder(shape, [[0, *sorted(cut), n] for n, cut in zip(shape, cuts, strict=True)])
    every = np.arange(math.prod(shape))
    values = np.empty(every.size, np.int32)
    values[order.to_store(every)] = every
    assert order.to_source(values).tolist() == every.tolist()


def test_the_numbers_of_a_grid_run_through_one_block_after_another() -> None:
    order = grid_order((4, 6), (2, 3), None, 1)
    assert order.to_store(np.arange(24)).reshape(4, 6).tolist() == [
        [0, 1, 2, 6, 7, 8],
        [3, 4, 5, 9, 10, 11],
        [12, 13, 14, 18, 19, 20],
        [15, 16, 17, 21, 22, 23],
    ]


@given(shapes, st.data())
def test_the_centre_of_a_block_is_the_mean_of_its_cells_middles(shape: tuple[int, ...], data: st.DataObject) -> None:
    order = grid_order(shape, tuple(data.draw(st.integers(1, n + 2)) for n in shape), None, 1)
    centres = order.block_centres()
    assert centres.shape == (order.partition_ptr.size - 1, len(shape))
    for p, centre in enumerate(centres):
        points = np.stack(np.unravel_index(order.states(p), shape), axis=1)
        np.testing.assert_allclose(centre, (points.mean(axis=0) + 0.5) / shape)


@given(shapes, st.integers(1, 500))
def test_blocks_stay_within_the_target_and_near_to_cubes(shape: tuple[int, ...], states: int) -> None:
    block = block_shape_for(shape, states)
    assert math.prod(block) <= states
    assert all(b <= n for b, n in zip(block, shape, strict=True))
    for i, n in enumerate(shape):
        if block[i] < n:
            assert math.prod(block) // block[i] * (block[i] + 1) > states
    order = grid_order(shape, None, None, states)
    check_order(order, math.prod(shape))
    assert np.diff(order.partition_ptr).max() <= states


@pytest.mark.parametrize(
    ("shape", "states", "blocks"),
    [
        ((60, 60, 80, 80), 89_900, (4, 4, 4, 4)),
        ((20, 20, 20, 20), 624, (4, 4, 4, 4)),
        ((93, 93, 93, 93), 292_000, (4, 4, 4, 4)),
        ((400, 400, 200), 124_900, (9, 9, 4)),
        ((1600, 1600), 10_000, (17, 17)),
        ((2400, 100), 10_000, (25, 1)),
        ((3, 3), 1, (3, 3)),
        ((3, 3), 100, (1, 1)),
    ],
)
def test_blocks_by_default_have_as_nearly_as_possible_the_states_that_are_wanted(
    shape: tuple[int, ...], states: int, blocks: tuple[int, ...]
) -> None:
    order = grid_order(shape, None, None, states, at_most=False)
    assert tuple(len(e) - 1 for e in order.state_order()["edges"]) == blocks


@pytest.mark.parametrize(
    ("shape", "states", "blocks"),
    [
        ((1600, 1600), 10_000, (17, 17)),
        ((1500, 1500), 10_000, (15, 15)),
        ((400, 400), 10_000, (4, 4)),
        ((8, 8), 1, (8, 8)),
        ((2400, 100), 10_000, (25, 1)),
    ],
)
def test_no_border_of_many_blocks_is_in_the_middle_of_an_axis(
    shape: tuple[int, ...], states: int, blocks: tuple[int, ...]
) -> None:
    edges = grid_order(shape, None, None, states).state_order()["edges"]
    assert tuple(len(e) - 1 for e in edges) == blocks
    for n, e in zip(shape, edges, strict=True):
        assert n // 2 not in e or len(e) - 1 in (4, 8)


@pytest.mark.parametrize(
    ("shape", "states", "block"),
    [
        ((100, 100), 900, (30, 30)),
        ((100, 100), 930, (30, 31)),
        ((4, 100), 900, (4, 100)),
        ((4, 1000), 900, (4, 225)),
        ((16, 16, 16, 16), 256, (4, 4, 4, 4)),
        ((10,), 3, (3,)),
    ],
)
def test_block_shapes_of_common_grids(shape: tuple[int, ...], states: int, block: tuple[int, ...]) -> None:
    assert block_shape_for(shape, states) == block


@given(shapes, st.integers(1, 60))
def test_a_number_of_blocks_is_met_exactly_or_refused(shape: tuple[int, ...], partitions: int) -> None:
    total = math.prod(shape)
    try:
        order = grid_order(shape, None, partitions, 1)
    except OptionsError:
        assert partitions > total or not any(math.prod(b) == partitions for b in np.ndindex(*(n + 1 for n in shape)))
    else:
        check_order(order, total)
        assert order.partition_ptr.size == partitions + 1


def test_blocks_are_shared_out_with_little_surface() -> None:
    assert blocks_for((300, 300), 100) == (10, 10)
    assert blocks_for((1000, 10), 100) == (100, 1)
    assert blocks_for((20, 20, 20), 12) == (2, 2, 3)


def test_a_refused_number_of_blocks_names_the_nearest() -> None:
    with pytest.raises(OptionsError, match="into 13 blocks; 12 is the nearest"):
        blocks_for((10, 10), 13)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=60))
def test_any_assignment_is_an_order(part: list[int]) -> None:
    check_order(PermutedOrder(np.array(part)), len(part))


def test_metis_cuts_between_two_cliques() -> None:
    pytest.importorskip("pymetis")
    inside = [(a, b) for half in (0, 1) for a in range(half, 20, 2) for b in range(half, 20, 2)]
    source, target = np.array([*inside, (0, 1)]).T
    order = metis_order(lambda: iter([(source, target)]), np.ones(20, np.int64), 2)
    check_order(order, 20)
    assert {tuple(order.states(p) % 2) for p in (0, 1)} == {(0,) * 10, (1,) * 10}


def test_metis_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: object) -> object:
        if name == "pymetis":
            raise ImportError(name)
        return real(name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"ooc-mdp\[metis\]"):
        metis_order(lambda: iter(()), np.ones(4, np.int64), 2)


def test_the_default_size_lies_between_its_bounds() -> None:
    assert default_partition_bytes(1) == 64 << 10
    assert default_partition_bytes(1 << 30) == 4 << 20
    assert default_partition_bytes(1 << 40) == 64 << 20
