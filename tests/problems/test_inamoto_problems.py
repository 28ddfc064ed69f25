"""The problems of Inamoto, Higami and Kobayashi: rows against plain Python, solutions against hand and counting."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from command_line import ooc
from hypothesis import given
from hypothesis import strategies as st

import ooc_mdp
from ooc_mdp import reference
from ooc_mdp.errors import OptionsError
from ooc_mdp.model.mdp import Rows
from ooc_mdp.problems.gridworlds.animat import Animat, AnimatOptions
from ooc_mdp.problems.integer_mountain_car import IntegerMountainCar, IntegerMountainCarOptions
from ooc_mdp.problems.registry import make_problem

UP_RIGHT_DOWN_LEFT = ((-1, 0), (0, 1), (1, 0), (0, -1))

planes = st.builds(
    lambda height, width, share, low, more, deviation, costs, seed: Animat(
        AnimatOptions(height, width, math.ceil(share * height * width), low, low + more, deviation, costs, seed)
    ),
    st.integers(1, 9),
    st.integers(1, 9),
    st.floats(0, 1, exclude_min=True),
    st.sampled_from([0.5, 2.0]),
    st.sampled_from([0.0, 18.0]),
    st.sampled_from([0.0, 0.1, 0.3, 0.375, 0.75, 1.0]) | st.floats(0, 1, allow_subnormal=False),
    st.booleans(),
    st.integers(0, 2**63 - 1),
)
scales = st.integers(1, 150).map(lambda hundreds: 100 * hundreds) | st.just(10_000)


def all_rows(problem: Animat | IntegerMountainCar) -> Rows:
    return problem.rows(np.arange(problem.n_states))


def row(rows: Rows, j: int) -> dict[int, float]:
    part = slice(rows.successor_ptr[j], rows.successor_ptr[j + 1])
    return dict(zip(rows.successors[part].tolist(), rows.probabilities[part].tolist(), strict=True))


def moved(problem: Animat, cell: int, action: int) -> dict[int, float]:
    """Successors of a cell with their probabilities, in plain Python."""
    o = problem.options
    outcomes: dict[int, float] = {}
    for direction, (down, right) in enumerate(UP_RIGHT_DOWN_LEFT):
        chance = 1 - o.deviation if direction == action else o.deviation / 3
        i, j = cell // o.width + down, cell % o.width + right
        target = i * o.width + j if 0 <= i < o.height and 0 <= j < o.width else cell
        if chance > 0:
            outcomes[target] = outcomes.get(target, 0.0) + chance
    return outcomes


@given(planes, st.data())
def test_an_animat_moves_as_it_wants_or_deviates_and_eats_where_it_arrives(problem: Animat, data: st.DataObject):
    states = data.draw(st.lists(st.integers(0, problem.n_states - 1), min_size=1, max_size=12))
    rows = problem.rows(np.array(states))
    food = problem.food_values(np.arange(problem.n_states))
    o = problem.options
    assert rows.action_ptr.tolist() == list(range(0, 4 * len(states) + 1, 4))
    for i, s in enumerate(states):
        for action in range(4):
            expected = moved(problem, s, action)
            found = row(rows, 4 * i + action)
            assert list(found) == sorted(expected)
            assert found == pytest.approx(expected, rel=1e-15, abs=1e-15)
            eaten = sum(chance * food[target] for target, chance in expected.items())
            wanted = o.food_high - eaten if o.costs else eaten
            assert rows.rewards[4 * i + action] == pytest.approx(wanted, abs=1e-13)


@given(planes)
def test_food_is_as_much_and_worth_as_much_as_asked(problem: Animat):
    food = problem.food_values(np.arange(problem.n_states))
    o = problem.options
    assert np.count_nonzero(food) == o.food
    assert food[food > 0].min() >= o.food_low
    assert food.max() <= o.food_high
    rows = all_rows(problem)
    assert rows.rewards.min() >= 0
    assert rows.rewards.max() <= o.food_high * (1 + 1e-15)


@given(planes)
def test_weights_are_exact_only_where_the_problem_says_so(problem: Animat):
    scaled = all_rows(problem).probabilities * 2.0**24
    if problem.dyadic_probabilities:
        assert (scaled == np.rint(scaled)).all()
    elif problem.n_states > 1 and min(problem.shape or ()) > 2:
        assert (scaled != np.rint(scaled)).any()


@pytest.mark.parametrize(
    ("deviation", "exact"), [(0.0, True), (0.375, True), (0.75, True), (0.1, False), (0.3, False), (1.0, False)]
)
def test_deviations_in_quarters_of_eighths_have_exact_weights(deviation: float, exact: bool):
    assert Animat(AnimatOptions(deviation=deviation)).dyadic_probabilities == exact


def test_the_animat_of_the_paper_is_a_plane_of_a_million_cells_with_johannssons_parameters():
    problem = make_problem("animat")
    assert problem.n_states == 1_048_576
    assert problem.shape == (1024, 1024)
    assert (problem.sense, problem.parameters()["food"]) == ("max", 1024)
    states = np.random.default_rng(5).integers(0, problem.n_states, 20_000)
    ours, theirs = problem.rows(states), make_problem("GW-1024x4").rows(states)
    assert np.array_equal(ours.successors, theirs.successors)
    np.testing.assert_allclose(ours.probabilities, theirs.probabilities, rtol=1e-15)
    np.testing.assert_allclose(ours.rewards, theirs.rewards, rtol=1e-14)
    assert np.count_nonzero(problem.food_values(np.arange(problem.n_states))) == 1024


def solved(problem: str, parameters: dict[str, str | int | float], folder: Path, discount: float) -> np.ndarray:
    """Values by the out-of-core solver to 1e-9, through a cache of half the table."""
    store = ooc_mdp.generate(problem, folder / "s", parameters, partitions=12 if problem != "animat" else 2)
    solution = ooc_mdp.solve(store, discount, epsilon=1e-9, cache="60%", device="cpu")
    assert solution.outcome is ooc_mdp.Outcome.PROVED
    return solution.values


@pytest.mark.parametrize("costs", [False, True])
def test_two_cells_with_food_in_one_have_the_value_worked_out_by_hand(costs: bool, tmp_path: Path):
    # Beside the food (F): the wanted way leads to it, three others stay. On it: only one of three deviations leaves.
    #   N = w (1 + g F) + d g N,     F = (1 - d/3) (1 + g F) + d/3 g N,     w = 1 - d;  costs: 1/(1 - g) less these.
    d, g = 0.3, 0.9
    w, stay, leave = 1 - d, 1 - d / 3, d / 3
    determinant = (1 - d * g) * (1 - stay * g) - w * g * leave * g
    near = (w * (1 - stay * g) + w * g * stay) / determinant
    on = (stay * (1 - d * g) + leave * g * w) / determinant
    parameters: dict[str, str | int | float] = {"height": 1, "width": 2, "food": 1, "food_low": 3, "food_high": 3}
    problem = make_problem("animat", parameters | {"costs": costs})
    assert isinstance(problem, Animat)
    at_food = problem.food_values(np.arange(2)) > 0
    expected = 3 * np.where(at_food, on, near)
    if costs:
        expected = 3 / (1 - g) - expected
    exact = reference.policy_iteration(all_rows(problem), g, problem.sense)
    np.testing.assert_allclose(exact.values, expected, rtol=1e-12)
    np.testing.assert_allclose(solved("animat", parameters | {"costs": str(costs)}, tmp_path, g), expected, atol=1e-9)


@given(st.integers(2, 7), st.integers(2, 7), st.integers(0, 2**32), st.sampled_from([0.0, 0.3, 0.6]))
def test_costs_are_the_same_problem_seen_from_the_other_side(height: int, width: int, seed: int, deviation: float):
    one, other = (
        Animat(AnimatOptions(height, width, 2, deviation=deviation, costs=costs, seed=seed)) for costs in (False, True)
    )
    most = reference.policy_iteration(all_rows(one), 0.9, one.sense)
    least = reference.policy_iteration(all_rows(other), 0.9, other.sense)
    assert (one.sense, other.sense) == ("max", "min")
    np.testing.assert_allclose(least.values, 20 / (1 - 0.9) - most.values, rtol=1e-12)


def sweeps_of_equation_17(discount: float, epsilon: float, largest_cost: float) -> int:
    return math.ceil((math.log((1 - discount) * epsilon) - math.log(2 * discount * largest_cost)) / math.log(discount))


def sweeps_until_equation_15(rows: Rows, sense: str, discount: float, epsilon: float) -> tuple[int, np.ndarray]:
    """Number of sweeps from 0 until the largest change is at most R(epsilon), and the greedy policy then."""
    threshold = (1 - discount) * epsilon / (2 * discount)
    values = np.zeros(rows.n_states)
    for sweep in range(1, 10_000):
        new = reference.backup(rows, values, discount, sense)
        change, values = np.abs(new.values - values).max(), new.values
        if change <= threshold:
            return sweep, reference.backup(rows, values, discount, sense).policy
    raise AssertionError("no convergence")


@pytest.mark.parametrize("costs", [False, True])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_papers_test_of_convergence_proves_its_policy_within_its_number_of_sweeps(costs: bool, seed: int):
    discount, epsilon = 0.9, 0.1
    problem = Animat(AnimatOptions(8, 9, 4, costs=costs, seed=seed))
    rows = all_rows(problem)
    sweeps, policy = sweeps_until_equation_15(rows, problem.sense, discount, epsilon)
    assert sweeps <= sweeps_of_equation_17(discount, epsilon, 20.0) + 1
    chosen = rows.action_ptr[:-1] + policy
    lengths = np.diff(rows.successor_ptr)[chosen]
    kept = np.concatenate([np.arange(rows.successor_ptr[j], rows.successor_ptr[j + 1]) for j in chosen])
    followed = Rows(
        np.arange(problem.n_states + 1),
        np.concatenate([[0], np.cumsum(lengths)]),
        rows.successors[kept],
        rows.probabilities[kept],
        rows.rewards[chosen],
    )
    best = reference.policy_iteration(rows, discount, problem.sense).values
    assert np.abs(reference.policy_iteration(followed, discount, problem.sense).values - best).max() <= epsilon


def test_the_papers_number_of_sweeps_counts_the_first_as_0():
    # Food of one value everywhere: sweep k + 1 changes every state by exactly discount**k of it.
    problem = Animat(AnimatOptions(3, 3, 9, 1.0, 1.0, deviation=0.0))
    sweeps, _ = sweeps_until_equation_15(all_rows(problem), "max", 0.9, 0.1)
    assert sweeps == sweeps_of_equation_17(0.9, 0.1, 1.0) + 1


def driven(scale: int, velocity: int, position: int, action: int) -> tuple[int, int]:
    """One step of the integer mountain car in plain Python, exact but for the cosine."""
    x, v = Fraction(position, scale), Fraction(velocity, scale)
    v += Fraction(action - 1, 1000) - Fraction(25, 10_000) * Fraction(math.cos(3 * position / scale))
    v = min(max(v, Fraction(-7, 100)), Fraction(7, 100))
    x = min(max(x + v, Fraction(-12, 10)), Fraction(5, 10))
    to_v, to_x = (math.floor(scale * z + Fraction(1, 2)) for z in (v, x))
    return (0 if to_x * 10 == -12 * scale else to_v), to_x


@given(scales, st.data())
def test_a_car_goes_where_singh_and_suttons_equations_lead(scale: int, data: st.DataObject):
    problem = IntegerMountainCar(IntegerMountainCarOptions(scale))
    left, right, fastest = -12 * scale // 10, scale // 2, 7 * scale // 100
    positions = st.integers(left, right) | st.sampled_from([left, left + 1, -1, 0, 1, right - 1, right])
    velocities = st.integers(-fastest, fastest) | st.sampled_from([-fastest, 0, fastest])
    pairs = data.draw(st.lists(st.tuples(velocities, positions), min_size=1, max_size=20))
    states = [(v + fastest) * (right - left + 1) + x - left for v, x in pairs]
    rows = problem.rows(np.array(states))
    for i, (v, x) in enumerate(pairs):
        first, last = rows.action_ptr[i], rows.action_ptr[i + 1]
        assert last - first == (0 if x == right else 3)
        for a in range(last - first):
            to_v, to_x = driven(scale, v, x, a)
            assert row(rows, first + a) == {(to_v + fastest) * (right - left + 1) + to_x - left: 1.0}
    assert (rows.rewards == 1.0).all()
    assert rows.terminal_rewards is None


def test_the_integer_mountain_car_of_the_paper_has_24_million_states_and_its_velocity_outside():
    problem = make_problem("integer-mountain-car")
    assert problem.n_states == 1_401 * 17_001 == 23_818_401
    assert problem.shape == (1_401, 17_001)
    geometry = problem.geometry()
    assert geometry is not None
    assert [axis["name"] for axis in geometry["axes"]] == ["velocity", "position"]
    assert (problem.sense, problem.dyadic_probabilities, problem.default_dtype) == ("min", True, "float32")
    # From rest at x = 0, where gravity takes 25 integers of velocity: thrusts of 10 give -35, -25, -15.
    rest = 700 * 17_001 + 12_000
    found = [divmod(s, 17_001) for s in problem.rows(np.array([rest])).successors.tolist()]
    assert found == [(700 + v, 12_000 + v) for v in (-35, -25, -15)]


def test_every_state_of_the_integer_mountain_car_leads_to_one_that_exists():
    problem = make_problem("integer-mountain-car")
    goals = transitions = 0
    for first in range(0, problem.n_states, 1 << 21):
        rows = problem.rows(np.arange(first, min(first + (1 << 21), problem.n_states)))
        assert rows.successors.min() >= 0
        assert rows.successors.max() < problem.n_states
        velocity, position = np.divmod(rows.successors, 17_001)
        assert (velocity[position == 0] == 700).all()
        goals += np.count_nonzero(np.diff(rows.action_ptr) == 0)
        transitions += rows.n_transitions
    assert goals == 1_401
    assert transitions == 3 * (23_818_401 - 1_401)


def coasting(discount: float) -> np.ndarray:
    """Values at scale 100, where rounding leaves neither thrust nor gravity: the velocity is what it was."""
    values = np.empty((15, 171))
    for velocity in range(-7, 8):
        for position in range(171):
            steps = math.ceil((170 - position) / velocity) if velocity > 0 else math.inf if position < 170 else 0
            values[velocity + 7, position] = (1 - discount**steps) / (1 - discount)
    return values.ravel()


def test_a_car_that_can_only_coast_has_the_value_worked_out_by_hand(tmp_path: Path):
    expected = coasting(0.9)
    problem = make_problem("integer-mountain-car", {"scale": 100})
    exact = reference.policy_iteration(problem.rows(np.arange(problem.n_states)), 0.9, problem.sense)
    np.testing.assert_allclose(exact.values, expected, rtol=1e-12)
    np.testing.assert_allclose(solved("integer-mountain-car", {"scale": 100}, tmp_path, 0.9), expected, atol=1e-9)


def shortest_times(rows: Rows) -> np.ndarray:
    """Steps to the nearest goal by breadth-first search backwards; rows of one successor each."""
    times = np.where(np.diff(rows.action_ptr) == 0, 0, -1)
    state = np.repeat(np.arange(rows.n_states), np.diff(rows.action_ptr))
    for time in range(rows.n_states):
        found = state[(times[rows.successors] == time) & (times[state] < 0)]
        if not found.size:
            return times
        times[found] = time + 1
    raise AssertionError("more steps than states")


def test_the_least_cost_is_the_shortest_time_that_a_search_counts(tmp_path: Path):
    problem = make_problem("integer-mountain-car", {"scale": 500})
    times = shortest_times(problem.rows(np.arange(problem.n_states)))
    assert (times.min(), times.max()) == (0, 111)
    expected = (1 - 0.95**times) / (1 - 0.95)
    np.testing.assert_allclose(solved("integer-mountain-car", {"scale": 500}, tmp_path, 0.95), expected, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "parameters", "states", "shape", "sense"),
    [
        ("animat", ("height=40", "width=50", "costs=true", "deviation=0.1", "food=7"), 2_000, [40, 50], "min"),
        ("integer-mountain-car", ("scale=1000",), 239_841, [141, 1701], "min"),
    ],
)
def test_the_command_line_generates_them(
    name: str, parameters: tuple[str, ...], states: int, shape: list[int], sense: str, tmp_path: Path
):
    options = [word for parameter in parameters for word in ("-p", parameter)]
    made = ooc("generate", name, tmp_path / "s", *options, "--partitions", 20, "--json")
    assert made.status == 0, made.err
    store = ooc_mdp.open_store(tmp_path / "s")
    assert store.n_states == states
    assert store.n_partitions >= 20
    assert store.sense == sense
    assert store.facts.attributes["geometry"]["shape"] == shape
    assert store.facts.attributes["partitioning"]["method"] == "grid"


@pytest.mark.parametrize(
    ("name", "parameters", "said"),
    [
        ("animat", {"deviation": 1.1}, r"deviation = 1.1 is outside 0.0 .. 1.0"),
        ("animat", {"food_low": 5, "food_high": 4}, "food_low = 5.0 is above food_high = 4.0"),
        ("animat", {"food_low": -1}, "food_low = -1.0 is outside"),
        ("animat", {"height": 2, "width": 2, "food": 5}, r"food = 5 is outside 0 .. 4"),
        ("animat", {"scramble": 0.1}, r"no parameter .scramble.; it takes height=1024, .* food=\(by the size\)"),
        ("integer-mountain-car", {"scale": 90}, "scale = 90 is outside 100"),
        ("integer-mountain-car", {"scale": 250}, "scale = 250 is no multiple of 100.* give 200"),
    ],
)
def test_wrong_parameters_are_refused_with_what_would_be_right(
    name: str, parameters: dict[str, str | int | float], said: str
):
    with pytest.raises(OptionsError, match=said):
        make_problem(name, parameters)
