"""A solve may begin from any values: they change what it costs, and nothing in what it proves."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import ooc

import ooc_mdp
from ooc_mdp.errors import OptionsError
from ooc_mdp.model.criterion import Criterion
from ooc_mdp.store import Store

METHODS: list[dict[str, Any]] = [
    {"method": "vi"},
    {"method": "p-eva"},
    {"method": "p-eva", "priority": "exact-h2"},
    {"method": "policy-iteration"},
    {"method": "auto", "cache": "40%"},
]
GOALS: list[Criterion] = [
    ooc_mdp.TotalReward(),
    ooc_mdp.Reachability("goal"),
    ooc_mdp.RewardToGoal("ends"),
]


@pytest.fixture(scope="module")
def maze(tmp_path_factory: pytest.TempPathFactory) -> Store:
    place = tmp_path_factory.mktemp("maze")
    return ooc_mdp.generate("GW-16x4", place / "s", {"seed": 1}, partitions=4)  # type: ignore[return-value]


@pytest.fixture(scope="module")
def walk() -> Store:
    """A walk on a line that costs 1 a step until one of the ends, where it stays."""
    n = 12
    P, R = np.zeros((n, 2, n)), np.full((n, 2), -1.0)
    for s, a in itertools.product(range(1, n - 1), range(2)):
        P[s, a, [s + 2 * a - 1, s, s - 2 * a + 1]] = 0.8, 0.1, 0.1
    P[0, :, 0] = P[n - 1, :, n - 1] = 1.0
    R[[0, n - 1]] = 0.0
    return ooc_mdp.from_arrays(P, R, layout="state-first", labels={"goal": [n - 1], "ends": [0, n - 1]}, partitions=3)


@pytest.fixture(scope="module")
def ring() -> Store:
    rng = np.random.default_rng(5)
    return ooc_mdp.from_arrays(
        rng.dirichlet(np.ones(9), (9, 2)), rng.normal(size=(9, 2)), layout="state-first", partitions=3
    )


def garbage(n: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(-1000, 1000, n)


@pytest.mark.parametrize("how", METHODS, ids=str)
def test_the_proof_holds_from_any_values(maze: Store, how: dict[str, Any]) -> None:
    due = ooc_mdp.solve(maze, 0.9, epsilon=1e-6, device="cpu", **how)
    for initial in (garbage(maze.n_states), due, due.values + 1.0, -due.values):
        found = ooc_mdp.solve(maze, 0.9, epsilon=1e-6, device="cpu", initial=initial, **how)
        assert found.outcome is ooc_mdp.Outcome.PROVED
        assert np.abs(found.values - due.values).max() <= 2e-6
        assert ooc_mdp.verify(maze, found).holds


@pytest.mark.parametrize("how", METHODS, ids=str)
def test_the_solution_itself_is_proved_by_one_look(maze: Store, how: dict[str, Any]) -> None:
    due = ooc_mdp.solve(maze, 0.9, epsilon=1e-6, device="cpu", **how)
    again = ooc_mdp.solve(maze, 0.9, epsilon=1e-5, device="cpu", initial=due, **how)
    assert again.outcome is ooc_mdp.Outcome.PROVED
    assert again.statistics.backups <= 0.5 * due.statistics.backups


@pytest.mark.parametrize("question", [*GOALS, ooc_mdp.RewardToGoal("goal")], ids=str)
def test_undiscounted_questions_are_proved_from_any_values(walk: Store, question: Criterion) -> None:
    due = ooc_mdp.solve(walk, question, epsilon=1e-8)
    for initial in (garbage(12), due, np.full(12, np.inf)):
        found = ooc_mdp.solve(walk, question, epsilon=1e-8, initial=initial)
        assert found.outcome is ooc_mdp.Outcome.PROVED
        known = np.isfinite(due.values)
        assert np.array_equal(found.values[~known], due.values[~known])
        assert np.abs(found.values[known] - due.values[known]).max() <= 2e-8
        assert ooc_mdp.verify(walk, found).holds


def test_an_average_reward_is_proved_from_any_values(ring: Store) -> None:
    due = ooc_mdp.solve(ring, ooc_mdp.AverageReward(), epsilon=1e-8)
    for initial in (garbage(9), due):
        found = ooc_mdp.solve(ring, ooc_mdp.AverageReward(), epsilon=1e-8, initial=initial)
        assert found.outcome is ooc_mdp.Outcome.PROVED
        assert found.gain is not None
        assert due.gain is not None
        assert max(found.gain[0], due.gain[0]) <= min(found.gain[1], due.gain[1])


@pytest.mark.parametrize("question", [ooc_mdp.FiniteHorizon(3), ooc_mdp.Reachability("goal", within=3)], ids=str)
def test_steps_that_begin_at_the_end_take_no_values(walk: Store, question: Criterion) -> None:
    with pytest.raises(OptionsError, match="leave out --initial"):
        ooc_mdp.solve(walk, question, initial=np.zeros(12))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.zeros(5), "values of 5 states, and .* has 9"),
        ([float("nan")] * 9, "state 0 is nan"),
        (np.full(9, 1e200), "too large"),
        ("/no/such.npy", "neither a result nor a .npy file"),
        (["a"] * 9, "no array of numbers"),
    ],
)
def test_values_that_are_none_of_the_states_are_refused(ring: Store, given: object, message: str) -> None:
    with pytest.raises(OptionsError, match=message):
        ooc_mdp.solve(ring, 0.9, device="cpu", initial=given)


def car(points: int) -> Any:
    return ooc_mdp.open_problem("mountain-car", {"grid": (points, points)}, device="cpu", partitions=4)


def test_a_coarser_grid_saves_work_on_a_finer_one(tmp_path: Path) -> None:
    ooc_mdp.solve(car(21), 0.9, device="cpu", output=tmp_path / "coarse")
    said: list[str] = []
    cold = ooc_mdp.solve(car(41), 0.9, device="cpu", epsilon=1e-4, method="vi")
    warm = ooc_mdp.solve(
        car(41), 0.9, device="cpu", epsilon=1e-4, method="vi", initial=tmp_path / "coarse", note=said.append
    )
    assert warm.outcome is ooc_mdp.Outcome.PROVED
    assert warm.statistics.sweeps < cold.statistics.sweeps
    assert np.abs(warm.values - cold.values).max() <= 2e-4
    assert f"beginning from the values of {tmp_path / 'coarse'}" in said


def test_a_grid_of_other_axes_is_refused() -> None:
    other = ooc_mdp.solve(
        ooc_mdp.open_problem("single-pendulum", {"grid": (5, 5)}, device="cpu"), 0.9, device="cpu", epsilon=1e-2
    )
    with pytest.raises(OptionsError, match="give a result of the same problem"):
        ooc_mdp.solve(car(11), 0.9, device="cpu", initial=other)


def test_a_checkpoint_is_continued_before_given_values(maze: Store, tmp_path: Path) -> None:
    given, said = np.full(maze.n_states, 3.0), []
    ooc_mdp.solve(maze, 0.9, method="vi", device="cpu", output=tmp_path / "r", time_limit=1e-9)
    ooc_mdp.solve(maze, 0.9, device="cpu", output=tmp_path / "r", resume=True, initial=given, note=said.append)
    assert any("checkpoint" in each for each in said)
    assert not any("beginning from" in each for each in said)


CRITERIA: list[tuple[str, Criterion, float, float]] = [
    ("maze", ooc_mdp.Discounted(0.9), 1e-2, 1e-6),
    *(("walk", question, 1e-2, 1e-6) for question in GOALS),
    ("ring", ooc_mdp.AverageReward(), 1e-2, 1e-7),
]


@pytest.mark.parametrize(("name", "question", "coarse", "fine"), CRITERIA, ids=lambda x: getattr(x, "name", None))
def test_a_tighter_proof_continues_from_the_result(
    request: pytest.FixtureRequest, tmp_path: Path, name: str, question: Criterion, coarse: float, fine: float
) -> None:
    store, said = request.getfixturevalue(name), []
    ooc_mdp.solve(store, question, epsilon=coarse, output=tmp_path / "r", device="cpu")
    tight = ooc_mdp.solve(
        store, question, epsilon=fine, output=tmp_path / "r", resume=True, note=said.append, device="cpu"
    )
    assert tight.outcome is ooc_mdp.Outcome.PROVED
    assert tight.error_bound <= fine
    assert ooc_mdp.verify(store, tmp_path / "r").holds
    assert any("continuing from its values" in each for each in said)


def test_a_plan_that_proves_less_is_solved_anew_and_says_so(walk: Store, tmp_path: Path) -> None:
    said: list[str] = []
    ooc_mdp.solve(walk, ooc_mdp.FiniteHorizon(3), output=tmp_path / "r", device="cpu")
    ooc_mdp.solve(
        walk, ooc_mdp.FiniteHorizon(3), epsilon=1e-300, output=tmp_path / "r", resume=True, note=said.append,
        device="cpu",
    )  # fmt: skip
    assert any("solving anew" in each for each in said)
    assert not any("continuing" in each for each in said)


def test_the_command_line_begins_from_a_result(maze: Store, tmp_path: Path) -> None:
    assert ooc("solve", maze.name, "--discount", 0.9, "--device", "cpu", "--output", tmp_path / "a").status == 0
    np.save(tmp_path / "v.npy", ooc_mdp.open_result(tmp_path / "a").values)
    for given in (tmp_path / "a", tmp_path / "v.npy"):
        ran = ooc("solve", maze.name, "--discount", 0.9, "--device", "cpu", "--initial", given)
        assert ran.status == 0
        assert f"beginning from the values of {given}" in ran.err
