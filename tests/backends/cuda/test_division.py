"""Divisions among devices: each partition has one owner, shares of bytes are equal, each part is one piece."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_facts import facts_with

from ooc_mdp.backends.cuda.tiles.division import Division
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import IntArray
from ooc_mdp.model.partition import Coupling

SIZES = st.lists(st.integers(1, 50), min_size=1, max_size=40)
DEVICES = st.integers(1, 8)
Divide = Callable[[ModelFacts, int], Division]
DIVIDE: st.SearchStrategy[Divide] = st.sampled_from([Division.cyclic, Division.contiguous])


def model_of(
    sizes: Sequence[int], grid: tuple[int, ...] | None = None, nbytes: Sequence[int] | None = None
) -> ModelFacts:
    counted = np.array(nbytes or [24 * n for n in sizes], np.int64)
    return facts_with([0, *np.cumsum(sizes).tolist()], partition_bytes=counted, partition_grid=grid)


def bytes_of(division: Division, model: ModelFacts) -> IntArray:
    return division.shares(model.partition_bytes)


@given(sizes=SIZES, devices=DEVICES, divide=DIVIDE)
def test_each_devices_partitions_follow_each_other_in_store_order(
    sizes: list[int], devices: int, divide: Divide
) -> None:
    division = divide(model_of(sizes), devices)
    assert sorted(division.order.tolist()) == list(range(len(sizes)))
    owners = division.owner[division.order].tolist()
    assert owners == sorted(owners)
    assert max(owners) < devices == division.devices
    for _, partitions in itertools.groupby(division.order.tolist(), division.owner.__getitem__):
        listed = list(partitions)
        assert listed == sorted(listed)
    end = 0
    for p in division.order.tolist():
        assert division.first[p] == end
        end += sizes[p]
    assert division.shares(np.array(sizes)).sum() == end


@given(sizes=SIZES, divide=DIVIDE)
def test_with_one_device_device_order_is_store_order(sizes: list[int], divide: Divide) -> None:
    division = divide(model_of(sizes), 1)
    assert not division.reordered
    assert division.first.tolist() == (np.cumsum(sizes) - sizes).tolist()
    assert not division.owner.any()


@given(sizes=SIZES, devices=DEVICES)
def test_a_contiguous_division_keeps_store_order_and_leaves_no_device_without(sizes: list[int], devices: int) -> None:
    division = Division.contiguous(model_of(sizes), devices)
    assert not division.reordered
    assert np.unique(division.owner).size == min(devices, len(sizes))


@given(sizes=SIZES, devices=DEVICES, divide=DIVIDE)
def test_shares_of_bytes_differ_by_no_more_than_partitions(sizes: list[int], devices: int, divide: Divide) -> None:
    model = model_of(sizes)
    shares = bytes_of(divide(model, devices), model)
    if divide == Division.cyclic:
        assert shares.max() - shares.min() <= max(24 * n for n in sizes)
    else:
        assert shares.max() <= model.table_bytes / min(devices, len(sizes)) + 24 * max(sizes) * devices


def test_tables_of_unequal_bytes_are_balanced_by_bytes_not_by_number() -> None:
    model = model_of([10] * 6, nbytes=[600, 100, 100, 100, 100, 200])
    assert bytes_of(Division.cyclic(model, 2), model).tolist() == [600, 600]
    assert Division.contiguous(model, 2).owner.tolist() == [0, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("grid", [(8, 8), (9, 12), (16, 4), (4, 4, 4), (4, 4, 2, 4)])
@pytest.mark.parametrize("devices", [2, 3, 4])
def test_partitions_next_to_each_other_on_a_grid_have_different_owners(grid: tuple[int, ...], devices: int) -> None:
    """Along the last axis all of them; along any other most of them, and each line of as many meets every device."""
    model = model_of([7] * math.prod(grid), grid)
    owner = Division.cyclic(model, devices).owner.reshape(grid)
    for axis in range(len(grid)):
        lines = np.moveaxis(owner, axis, -1)
        same = float((lines[..., 1:] == lines[..., :-1]).mean())
        assert same <= (0.0 if axis == len(grid) - 1 else 0.5)
        if grid[axis] >= 2 * devices:
            assert all(set(line.tolist()) == set(range(devices)) for line in lines.reshape(-1, grid[axis]))


def test_diagonals_of_a_square_meet_all_devices() -> None:
    owner = Division.cyclic(model_of([7] * 64, (8, 8)), 4).owner.reshape(8, 8)
    assert len(set(np.diagonal(owner).tolist())) == 4
    assert len(set(np.diagonal(owner[:, ::-1]).tolist())) >= 2


def test_strongly_coupled_models_are_divided_into_ranges() -> None:
    dense = Coupling(np.arange(0, 17 * 16, 16), np.tile(np.arange(16), 16), np.ones(256))
    model = facts_with(range(0, 170, 10), partition_bytes=np.full(16, 240), coupling=dense)
    assert model.strongly_coupled
    assert not Division.choose(model, 4).reordered
    assert Division.choose(model_of([10] * 16), 4).reordered


@given(sizes=SIZES, devices=DEVICES, ends=st.tuples(st.integers(0, 2000), st.integers(0, 2000)))
def test_pieces_are_the_places_of_states_in_device_order(sizes: list[int], devices: int, ends: tuple[int, int]) -> None:
    division = Division.cyclic(model_of(sizes), devices)
    places = np.concatenate([f + np.arange(n) for f, n in zip(division.first, sizes, strict=True)])
    begin, end = sorted(min(e, sum(sizes)) for e in ends)
    found = []
    for start, place, count in division.pieces(begin, end):
        assert start == begin + len(found)
        found += range(place, place + count)
    assert found == places[begin:end].tolist()


def test_pieces_of_store_order_are_one() -> None:
    division = Division.contiguous(model_of([5, 6, 7, 8]), 3)
    assert list(division.pieces(3, 20)) == [(3, 3, 17)]


def test_members_are_the_places_of_each_devices_partitions_in_a_list() -> None:
    division = Division.cyclic(model_of([5] * 7), 3)
    listed = np.array([6, 2, 0, 4])
    assert [m.tolist() for m in division.members(listed)] == [[0, 2], [3], [1]]
