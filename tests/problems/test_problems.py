"""Generated problems: rows are rows, functions of the state alone, and as the sources print them."""

from __future__ import annotations

import itertools
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ooc_mdp.errors import OptionsError
from ooc_mdp.model.mdp import Rows
from ooc_mdp.problems.registry import PROBLEMS, make_problem

# Jóhannsson 2009, table 6.1: side, states, reward states; each with 1, 2 and 4 successors.
TABLE_6_1 = [(64, 4_096, 5), (256, 65_536, 65), (512, 262_144, 260), (1024, 1_048_576, 1_024)]
TABLE_6_1_COST = {
    (64, 1): 16_384,
    (64, 2): 32_768,
    (64, 4): 65_536,
    (256, 1): 262_144,
    (256, 2): 524_288,
    (256, 4): 1_048_576,
    (512, 1): 1_048_576,
    (512, 2): 2_097_152,
    (512, 4): 4_194_304,
    (1024, 1): 4_194_304,
    (1024, 2): 8_388_608,
    (1024, 4): 16_777_216,
}


def all_rows(problem) -> Rows:
    return problem.rows(np.arange(problem.n_states))


def row(rows: Rows, j: int) -> dict[int, float]:
    part = slice(rows.successor_ptr[j], rows.successor_ptr[j + 1])
    return dict(zip(rows.successors[part].tolist(), rows.probabilities[part].tolist(), strict=True))


def check_rows(rows: Rows, n_states: int) -> None:
    lengths = np.diff(rows.successor_ptr)
    inside = np.ones(rows.n_transitions, dtype=bool)
    inside[rows.successor_ptr[:-1]] = False
    assert rows.action_ptr[0] == rows.successor_ptr[0] == 0
    assert rows.action_ptr[-1] == rows.n_rows == rows.rewards.size
    assert rows.successor_ptr[-1] == rows.n_transitions == rows.probabilities.size
    assert lengths.min() >= 1
    assert (np.diff(rows.successors, prepend=-1)[inside] > 0).all()
    assert rows.successors.min() >= 0
    assert rows.successors.max() < n_states
    assert rows.probabilities.min() > 0
    sums = np.add.reduceat(rows.probabilities, rows.successor_ptr[:-1])
    assert np.abs(sums - 1).max() <= 1e-15


def same_rows(one: Rows, other: Rows) -> bool:
    return all(np.array_equal(getattr(one, f.name), getattr(other, f.name)) for f in fields(Rows)[:5])


problems = st.one_of(
    st.builds(
        lambda h, w, k, x, seed: make_problem(
            "gridworld", {"height": h, "width": w, "successors": k, "scramble": x, "seed": seed}
        ),
        st.integers(1, 9),
        st.integers(1, 9),
        st.sampled_from([1, 2, 4]),
        st.sampled_from([0.0, 0.3, 0.5]),
        st.integers(0, 2**63 - 1),
    ),
    st.builds(
        lambda h, w, x, seed: make_problem("quintanilla", {"height": h, "width": w, "scramble": x, "seed": seed}),
        st.integers(1, 9),
        st.integers(1, 9),
        st.sampled_from([0.0, 0.5]),
        st.integers(0, 2**63 - 1),
    ),
    st.builds(
        lambda s, a, share, seed: make_problem(
            "random", {"states": s, "actions": a, "successors": max(1, int(share * s)), "seed": seed}
        ),
        st.integers(1, 60),
        st.integers(1, 5),
        st.floats(0, 1),
        st.integers(0, 2**63 - 1),
    ),
)


@given(problems)
def test_every_row_is_a_distribution_over_increasing_states(problem):
    check_rows(all_rows(problem), problem.n_states)


@given(problems, st.data())
def test_a_states_rows_do_not_depend_on_what_else_is_asked_for(problem, data):
    whole = all_rows(problem)
    states = data.draw(st.lists(st.integers(0, problem.n_states - 1), min_size=1, max_size=12))
    together = problem.rows(np.array(states))
    for i, s in enumerate(states):
        alone = problem.rows(np.array([s]))
        assert same_rows(alone, cut(whole, s))
        assert same_rows(alone, cut(together, i))


def cut(rows: Rows, i: int) -> Rows:
    first, last = rows.action_ptr[i], rows.action_ptr[i + 1]
    start, stop = rows.successor_ptr[first], rows.successor_ptr[last]
    return Rows(
        rows.action_ptr[i : i + 2] - first,
        rows.successor_ptr[first : last + 1] - start,
        rows.successors[start:stop],
        rows.probabilities[start:stop],
        rows.rewards[first:last],
    )


@given(problems)
def test_name_and_parameters_make_the_same_problem_again(problem):
    again = make_problem(problem.name, problem.parameters())
    as_text = make_problem(problem.name, {k: str(v) for k, v in problem.parameters().items()})
    assert again.parameters() == as_text.parameters() == problem.parameters()
    assert same_rows(all_rows(again), all_rows(problem))
    assert same_rows(all_rows(as_text), all_rows(problem))


@pytest.mark.parametrize("name", ["GW-16x20x4", "QK-16x20", "random"])
def test_axes_are_named_for_each_side_of_a_grid_and_weights_are_exact_where_said(name):
    problem = make_problem(name)
    geometry = problem.geometry()
    assert (geometry is None) == (problem.shape is None)
    if geometry is not None:
        assert [axis["high"] - axis["low"] + 1 for axis in geometry["axes"]] == list(problem.shape)
        assert all(set(axis) == {"name", "low", "high", "periodic", "unit"} for axis in geometry["axes"])
    scaled = problem.rows(np.arange(200)).probabilities * 2.0**24
    assert problem.dyadic_probabilities == bool((scaled == np.round(scaled)).all())


@pytest.mark.parametrize("name", ["gridworld", "quintanilla", "random"])
def test_another_seed_is_another_problem(name):
    one, other = (make_problem(name, {"seed": seed}) for seed in (0, 1))
    assert not np.array_equal(all_rows(one).rewards, all_rows(other).rewards)


def test_no_states_have_no_rows():
    for name in PROBLEMS:
        rows = make_problem(name, {}).rows(np.empty(0, dtype=np.int64))
        assert rows.n_states == rows.n_rows == rows.n_transitions == 0


@pytest.mark.parametrize(("side", "states", "rewarded"), TABLE_6_1)
@pytest.mark.parametrize("successors", [1, 2, 4])
def test_table_6_1_of_johannsson(side, states, rewarded, successors):
    problem = make_problem(f"GW-{side}x{side}x{successors}", {})
    rows = all_rows(problem)
    assert problem.n_states == rows.n_states == states
    assert problem.shape == (side, side)
    assert set(np.diff(rows.action_ptr)) == {4}
    lengths = np.diff(rows.successor_ptr)
    inner = np.zeros((side, side), dtype=bool)
    inner[1:-1, 1:-1] = True
    assert set(lengths.reshape(states, 4)[inner.ravel()].ravel()) == {successors}
    assert rows.n_rows * successors == TABLE_6_1_COST[side, successors]
    paid = problem.cell_rewards(np.arange(states))
    assert np.count_nonzero(paid) == rewarded
    assert paid[paid > 0].min() >= 2
    assert paid.max() < 20


def test_short_names_take_one_side_or_two():
    assert make_problem("GW-512x4").parameters() == make_problem("GW-512x512x4").parameters()
    assert make_problem("gw-5x7x2").shape == (5, 7)
    assert make_problem("QK-100").n_states == 10_000
    assert make_problem("QK-20x30", {"seed": "3"}).parameters()["seed"] == 3


def test_an_action_goes_its_way_and_slips_as_documented():
    up_from_the_middle = {1: {1}, 2: {1, 5}, 4: {1, 3, 5, 7}}
    for k, expected in up_from_the_middle.items():
        rows = make_problem(f"GW-3x3x{k}").rows(np.array([4]))
        assert set(row(rows, 0)) == expected
        assert row(rows, 0)[1] == {1: 1.0, 2: 0.9, 4: 0.7}[k]
    intended = [max(row(rows, a), key=row(rows, a).__getitem__) for a in range(4)]
    assert intended == [1, 5, 7, 3]


def test_walls_hold_as_in_the_thesis_listing():
    # Listing A.1: up, right, down, left of state 0 of 64 x 64 lead to 0, 1, 64, 0.
    rows = make_problem("GW-64x1").rows(np.array([0, 4095]))
    assert rows.successors.tolist() == [0, 1, 64, 0, 4031, 4095, 4095, 4094]


def test_moves_into_walls_merge_with_other_ways_of_staying():
    rows = make_problem("GW-3x4").rows(np.array([0]))
    assert row(rows, 0) == pytest.approx({0: 0.8, 1: 0.1, 3: 0.1}, abs=1e-15)
    lone = make_problem("gridworld", {"height": 1, "width": 1}).rows(np.array([0]))
    assert lone.successors.tolist() == [0, 0, 0, 0]


def test_a_gridworld_pays_on_arrival_and_reward_states_are_not_terminal():
    problem = make_problem("GW-64x4", {"seed": 7, "scramble": 0.1})
    rows, paid = all_rows(problem), problem.cell_rewards(np.arange(4096))
    expected = np.add.reduceat(rows.probabilities * paid[rows.successors], rows.successor_ptr[:-1])
    np.testing.assert_allclose(rows.rewards, expected, rtol=1e-14)
    assert set(np.diff(rows.action_ptr)[paid > 0]) == {4}


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 2**63 - 1), st.data())
def test_the_number_of_reward_states_is_exact(height, width, seed, data):
    n = height * width
    wanted = data.draw(st.integers(1, n))
    options = {"height": height, "width": width, "reward_states": wanted, "seed": seed}
    assert np.count_nonzero(make_problem("gridworld", options).cell_rewards(np.arange(n))) == wanted


def test_reward_states_are_spread_evenly():
    problem = make_problem("gridworld", {"height": 512, "width": 512, "reward_states": 16_384, "seed": 5})
    counts = (problem.cell_rewards(np.arange(2**18)) > 0).reshape(32, 16, 32, 16).sum(axis=(1, 3))
    # 1,024 blocks of 16 expected reward states each: chi-square has mean 1,023 and deviation 45.
    assert abs(((counts - 16) ** 2 / 16).sum() - 1023) < 5 * 45


@pytest.mark.parametrize("share", [0.0, 0.05, 0.1, 0.15, 0.3, 0.5])
@pytest.mark.parametrize("successors", [1, 4])
def test_the_scrambled_share_is_the_one_asked_for(share, successors):
    # Section 6.3's domain: 65,536 states, four actions. 4.5 deviations of a binomial share.
    local, scrambled = (all_rows(make_problem(f"GW-256x{successors}", {"scramble": x})) for x in (0.0, share))
    cell = np.repeat(np.arange(65_536), np.diff(scrambled.successor_ptr[::4]))
    step = np.abs(np.stack(np.divmod(scrambled.successors, 256)) - np.stack(np.divmod(cell, 256))).sum(axis=0)
    away = np.count_nonzero(step > 1) / (65_536 * 4 * successors)
    expected = share * (1 - 5 / 65_536)
    assert abs(away - expected) <= 4.5 * np.sqrt(share * (1 - share) / (65_536 * 4 * successors))
    assert same_rows(local, scrambled) == (share == 0.0)


@pytest.mark.parametrize(("side", "transitions"), [(100, 119_992), (200, 479_992), (500, 2_999_992), (750, 6_749_992)])
def test_quintanilla_and_kolisettis_samples_have_their_number_of_transitions(side, transitions):
    assert all_rows(make_problem(f"QK-{side}")).n_transitions == transitions


def test_quintanilla_and_kolisettis_snippet_of_state_0():
    rows = make_problem("QK-100").rows(np.array([0]))
    assert row(rows, 0) == pytest.approx({0: 0.9, 1: 0.1}, abs=1e-15)
    assert row(rows, 3) == pytest.approx({100: 0.8, 1: 0.1, 0: 0.1}, abs=1e-15)


def test_quintanilla_and_kolisettis_rewards_are_paid_in_the_state():
    problem = make_problem("QK-750")
    paid = problem.cell_rewards(np.arange(problem.n_states))
    assert np.array_equal(all_rows(problem).rewards, np.repeat(paid, 4))
    assert set(np.unique(paid)) == {-10.0, -0.003, 10.0}
    for amount in (-10.0, 10.0):
        assert abs(np.mean(paid == amount) - 0.05) < 5 * np.sqrt(0.05 * 0.95 / problem.n_states)


def test_a_random_mdp_has_exactly_its_successors_and_any_order_of_adding_gives_one():
    rows = all_rows(make_problem("random", {"states": 700, "actions": 3, "successors": 500, "seed": 4}))
    assert set(np.diff(rows.successor_ptr)) == {500}
    table = rows.probabilities.reshape(-1, 500)
    for order in (slice(None), slice(None, None, -1)):
        assert (np.cumsum(table[:, order], axis=1)[:, -1] == 1.0).all()


def test_a_random_mdps_successors_and_rewards_are_uniform():
    rows = all_rows(make_problem("random", {"states": 1000, "actions": 8, "successors": 5, "reward_low": -1}))
    counts = np.bincount(rows.successors, minlength=1000)
    # 40 expected a state, drawn without replacement: chi-square has mean 1,000 (1 - 5/1,000), deviation 45.
    assert abs(((counts - 40) ** 2 / 40).sum() - 995) < 5 * 45
    assert rows.rewards.min() >= -1
    assert rows.rewards.max() < 1
    assert abs(rows.rewards.mean()) < 5 * np.sqrt(1 / 3 / 8000)


def test_pairs_of_successors_in_small_random_mdps_are_equally_likely():
    rows = all_rows(make_problem("random", {"states": 5, "actions": 10_000, "successors": 2}))
    pairs = [tuple(pair) for pair in rows.successors.reshape(-1, 2).tolist()]
    counts = np.array([pairs.count(pair) for pair in itertools.combinations(range(5), 2)])
    assert counts.sum() == 50_000
    assert ((counts - 5000) ** 2 / 5000).sum() < 9 + 5 * np.sqrt(18)


@pytest.mark.parametrize(
    ("name", "parameters", "said"),
    [
        ("nowhere", {}, "there are gridworld, quintanilla, .*, random"),
        ("GW-64x3", {}, "successors = 3; it can be 1, 2 or 4"),
        ("GW-64x4", {"height": 3}, "already says height = 64"),
        ("gridworld", {"hight": 3}, "no parameter 'hight'; it takes height=64, width=64"),
        ("gridworld", {"hight": 3}, r"successors=4, reward_states=\(by the size\), scramble=0.0"),
        ("animat", {"hight": 3}, r"width=1024, food=\(by the size\), food_low=2.0"),
        ("mountain-car", {"mas": 3}, "it takes grid=100,100, time_unit=1.0, max_step=0.1, max_duration=1.0, mass=1.0"),
        ("double-pendulum", {"mas": 3}, "it takes grid=30,30,30,30, time_unit=1.0"),
        ("gridworld", {"height": "three"}, "height = 'three' is not a value of type int"),
        ("random", {"seed": 10**5000}, "problem 'random': seed is more than 64 bits hold"),
        ("random", {"seed": "9" * 400}, "seed = 9+ is outside 0 .. 9223372036854775807"),
        ("random", {"reward_low": 10**5000}, "problem 'random': reward_low is larger than any float"),
        ("gridworld", {"height": np.float32(64.7)}, r"height = np.float32\(64.7\) is not a value of type int"),
        ("gridworld", {"height": np.complex64(3 + 1j)}, "height = .* is not a value of type int"),
        ("gridworld", {"height": 2.5}, "height = 2.5 is not"),
        ("gridworld", {"height": 0}, "height = 0 is outside 1"),
        ("gridworld", {"height": 2, "width": 2, "reward_states": 5}, "reward_states = 5 is outside 0 .. 4"),
        ("quintanilla", {"scramble": 0.6}, r"scramble = 0.6 is outside 0.0 .. 0.5"),
        ("quintanilla", {"scramble": "nan"}, "scramble = 'nan' is not"),
        ("quintanilla", {"seed": -1}, "seed = -1 is outside"),
        ("random", {"states": 3, "successors": 4}, "successors = 4 is outside 1 .. 3"),
        ("random", {"states": True}, "states = True is not"),
        ("random", {"reward_low": 2}, "reward_low = 2.0 is above reward_high = 1.0"),
    ],
)
def test_a_wrong_name_or_parameter_is_refused_with_what_there_is(name, parameters, said):
    with pytest.raises(OptionsError, match=said):
        make_problem(name, parameters)


def test_states_that_do_not_exist_are_refused():
    with pytest.raises(OptionsError, match=r"states 0 .. 4095; rows were asked of states 3 .. 4096"):
        make_problem("GW-64x1").rows(np.array([4096, 3]))
