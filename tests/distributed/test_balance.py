from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_mdp.distributed.balance import assign_nearest, bisect, fill_empty, rebalance


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Costs, some of them equal, weights and targets."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    items, owners = draw(st.integers(1, 60)), draw(st.integers(1, 6))
    cost = rng.integers(0, draw(st.sampled_from([1, 3, 10**6])), (items, owners)).astype(np.float64)
    weight = draw(st.sampled_from([1.0, 10.0, 1e6])) ** rng.random(items)
    target = 0.1 + rng.random(owners)
    return cost, weight, target / target.sum() * weight.sum()


def assert_no_move_helps(owner: np.ndarray, weight: np.ndarray, target: np.ndarray, allowed: np.ndarray) -> None:
    over = np.bincount(owner, weight, target.size) - target
    if (np.abs(over) > allowed).any():
        gap = over[owner][:, None] - over[None]  # [item, taker]
        assert (weight[:, None] >= 0.999 * gap - 1e-9 * weight.sum()).all()


@given(problems())
def test_weights_come_near_to_their_targets_or_no_single_move_helps(problem: tuple[np.ndarray, ...]) -> None:
    cost, weight, target = problem
    owner = assign_nearest(cost, weight, target)
    assert owner.shape == weight.shape
    assert_no_move_helps(owner, weight, target, 0.01 * target)


def test_items_go_to_the_least_cost_where_that_is_balanced_already() -> None:
    rng = np.random.default_rng(0)
    cost = rng.random((40, 4))
    owner = cost.argmin(axis=1)
    weight = rng.random(40) + 0.5
    np.testing.assert_array_equal(assign_nearest(cost, weight, np.bincount(owner, weight, 4)), owner)


def test_prices_find_the_cheapest_way_to_share_out_a_line() -> None:
    """Owners at 0 and 1 that are to have 3 and 7 tenths of a line: the cut is at 0.3, whatever is nearer."""
    at = (np.arange(1000) + 0.5) / 1000
    owner = assign_nearest(np.stack([at**2, (1 - at) ** 2], axis=1), np.ones(1000), np.array([300.0, 700.0]))
    assert np.count_nonzero(np.diff(owner)) == 1
    assert np.count_nonzero(owner == 0) == pytest.approx(300, abs=3)


def test_cells_stay_whole_when_they_grow_through_their_neighbours() -> None:
    """Of three owners on a line the first lacks most; what the third has too much must come by way of the second."""
    at = (np.arange(1000) + 0.5) / 1000
    cost = (at[:, None] - np.array([0.0, 0.1, 1.0])) ** 2
    owner = assign_nearest(cost, np.ones(1000), np.full(3, 1000 / 3))
    assert np.count_nonzero(np.diff(owner)) == 2
    assert np.bincount(owner).tolist() == pytest.approx([333] * 3, abs=4)


@given(problems(), st.floats(0, 0.2))
def test_evening_out_ends_within_what_is_allowed_or_where_no_single_move_helps(
    problem: tuple[np.ndarray, ...], share: float
) -> None:
    cost, weight, target = problem
    before = np.zeros(weight.size, np.int64)
    after = rebalance(before, cost, weight, target, share * target)
    assert not before.any()
    assert_no_move_helps(after, weight, target, share * target)


def test_evening_out_moves_what_loses_least_by_it() -> None:
    cost = np.array([[0.0, 9.0], [0.0, 1.0], [0.0, 5.0], [0.0, 2.0]])
    owner = rebalance(np.zeros(4, np.int64), cost, np.ones(4), np.full(2, 2.0), np.zeros(2))
    assert owner.tolist() == [0, 1, 0, 1]


def test_the_lightest_item_of_who_has_too_much_fills_an_empty_hand() -> None:
    owner = fill_empty(np.array([0, 0, 0, 1, 1]), np.array([5.0, 1.0, 3.0, 0.1, 0.1]), np.array([4.0, 4.0, 1.2]))
    assert owner.tolist() == [0, 2, 0, 1, 1]


@given(st.lists(st.integers(0, 7), min_size=1, max_size=30), st.integers(8, 12), st.data())
def test_nobody_is_left_without_an_item_while_another_has_two(
    owner: list[int], owners: int, data: st.DataObject
) -> None:
    weight = np.array(data.draw(st.lists(st.floats(1, 9), min_size=len(owner), max_size=len(owner))))
    filled = fill_empty(np.array(owner), weight, np.full(owners, weight.sum() / owners))
    counts = np.bincount(filled, minlength=owners)
    assert np.count_nonzero(counts) == min(len(owner), owners)
    assert np.count_nonzero(filled != owner) == np.count_nonzero(counts) - len(set(owner))


@given(st.integers(1, 3), st.integers(1, 40), st.data())
def test_a_split_gives_every_owner_something(axes: int, items: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    owners = data.draw(st.integers(1, min(items, 9)))
    weight, target = 100 ** rng.random(items), 100 ** rng.random(owners)
    owner = bisect(rng.integers(0, 6, (items, axes)), weight, target)
    assert sorted(set(owner.tolist())) == list(range(owners))


@given(st.lists(st.integers(1, 9), min_size=2, max_size=40), st.floats(0.1, 0.9))
def test_a_split_of_a_line_misses_by_half_an_item_at_most(weights: list[int], share: float) -> None:
    weight = np.array(weights, np.float64)
    owner = bisect(np.arange(weight.size)[:, None], weight, np.array([share, 1 - share]))
    assert (np.diff(owner) >= 0).all()
    missed = abs(weight[owner == 0].sum() - share * weight.sum())
    alone = np.bincount(owner).min() == 1  # an owner may have to take a first item that is too heavy
    assert missed <= weight.max() / 2 + 1e-9 or alone
