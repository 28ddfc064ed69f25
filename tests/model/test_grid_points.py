"""Values and controls between the points of a grid are those of the discretisation's own interpolation."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

import ooc_mdp
from ooc_mdp.errors import OptionsError
from ooc_mdp.model.grid_points import GridPoints, interpolated
from ooc_mdp.problems.control.kuhn import Grid
from ooc_mdp.simulation.closed_loop import value_at

AXES = [
    {"name": "angle", "low": -3.0, "high": 3.0, "periodic": True, "clipped": False},
    {"name": "speed", "low": -2.0, "high": 1.0, "periodic": False, "clipped": True},
    {"name": "place", "low": 0.5, "high": 2.0, "periodic": False, "clipped": False},
]
SHAPE = (5, 4, 3)


def grid(axes: list[int]) -> GridPoints:
    shape = [SHAPE[i] for i in axes]
    return GridPoints.of({"axes": [AXES[i] for i in axes], "shape": shape}, int(np.prod(shape)))


def compiled(points: GridPoints) -> Grid:
    spans = points.high - points.low
    return Grid(
        points.points, tuple(points.strides.tolist()), tuple(points.low.tolist()), tuple(points.high.tolist()),
        tuple(spans.tolist()), tuple(points.steps.tolist()), tuple(points.periodic.tolist()),
        tuple(points.clipped.tolist()),
    )  # fmt: skip


@pytest.mark.parametrize("axes", [[0], [2], [0, 1], [1, 2, 0]])
def test_interpolation_is_that_of_the_compiled_simulation(axes: list[int]) -> None:
    points = grid(axes)
    rng = np.random.default_rng(len(axes))
    values = rng.normal(size=int(np.prod(points.points)))
    low, high = (
        points.low - 4 * (points.periodic | points.clipped),
        points.high + 4 * (points.periodic | points.clipped),
    )
    x = np.concatenate([rng.uniform(low, high, (200, len(axes))), points.coordinates(np.arange(values.size))])
    found = interpolated(points, values, points.checked(x))
    due = [value_at(tuple(row), compiled(points), values) for row in x.tolist()]
    assert np.abs(found - due).max() <= 1e-12
    assert np.abs(found[200:] - values).max() <= 1e-12


def test_linear_functions_are_interpolated_exactly() -> None:
    points = grid([1, 2])
    states = np.arange(12)
    values = points.coordinates(states) @ [2.0, -3.0]
    x = np.random.default_rng(0).uniform(points.low, points.high, (50, 2))
    assert np.abs(interpolated(points, values, x) - x @ [2.0, -3.0]).max() <= 1e-13
    vertices, weights = points.simplex(x)
    assert np.abs(weights.sum(axis=1) - 1).max() <= 1e-15
    assert (weights >= 0).all()
    assert vertices.min() >= 0


def test_the_nearest_point_is_the_one_at_the_least_distance_along_each_axis() -> None:
    points = grid([0, 1])
    x = np.random.default_rng(1).uniform([-9, -2], [9, 1], (100, 2))
    places = points.coordinates(np.arange(20))
    around = np.abs(x[:, None, :] - places)
    turns = 6.0 * np.round(around[..., 0] / 6.0)
    distance = np.hypot(np.abs(around[..., 0] - turns) / points.steps[0], around[..., 1] / points.steps[1])
    assert np.array_equal(points.nearest(points.checked(x)), distance.argmin(axis=1))


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory: pytest.TempPathFactory) -> ooc_mdp.Solution:
    folder = tmp_path_factory.mktemp("pendulum")
    store = ooc_mdp.generate("single-pendulum", folder / "s", {"grid": "16,11"}, device="cpu", partitions=4)
    return ooc_mdp.solve(store, 0.9, device="cpu", output=folder / "r")


def test_a_controller_in_a_loop_gets_control_values(pendulum: ooc_mdp.Solution) -> None:
    geometry = pendulum.geometry
    assert geometry is not None
    controls = np.array(geometry["controls"])
    points = GridPoints.of(geometry, pendulum.values.size)
    states = np.arange(pendulum.values.size)
    x = points.coordinates(states)
    assert np.array_equal(pendulum.policy_at(x), pendulum.policy)
    assert np.array_equal(pendulum.control_at(x), controls[pendulum.policy])
    assert np.abs(pendulum.value_at(x) - pendulum.values).max() <= 1e-12
    one = pendulum.control_at([0.1, 0.2])
    assert one.shape == (controls.shape[1],)
    assert np.ndim(pendulum.value_at([0.1, 0.2])) == 0
    kept = ooc_mdp.open_result(Path(pendulum.table.name).with_name("r"))  # type: ignore[union-attr]
    for name in ("value_at", "policy_at", "control_at"):
        for of in (kept, kept.solution):
            assert np.array_equal(getattr(of, name)(x[:5]), getattr(pendulum, name)(x[:5]))


@pytest.mark.parametrize("low", [0.0, float("nan"), -1e300])
def test_points_beyond_an_axis_name_the_axis_and_its_limits(low: float) -> None:
    points = grid([1, 2])
    with pytest.raises(OptionsError, match=r"point 1 has place = .*, and the axis reaches from 0.5 to 2"):
        points.checked([[0.0, 1.0], [0.0, low]])


@pytest.mark.parametrize("x", [[0.0], [[0.0, 1.0, 2.0]], "x", 1.0])
def test_points_of_another_shape_are_refused(x: object) -> None:
    with pytest.raises(OptionsError, match="point"):
        grid([1, 2]).checked(x)


def test_states_that_are_no_grid_with_axes_have_nothing_between_them(pendulum: ooc_mdp.Solution) -> None:
    solution = ooc_mdp.solve(np.ones((1, 2, 2)) / 2, np.zeros((2, 1)), 0.5)
    for ask, name in itertools.product(([0.0], [[0.0]]), ("value_at", "policy_at")):
        with pytest.raises(OptionsError, match="no grid"):
            getattr(solution, name)(ask)
    with pytest.raises(OptionsError, match="no control values"):
        solution.control_at([0.0])
    with pytest.raises(OptionsError, match="no stages"):
        pendulum.value_at([0.0, 0.0], stage=2)


def test_a_plan_has_actions_and_kept_values_of_each_stage(tmp_path: Path) -> None:
    network = ooc_mdp.open_problem("queueing-network", {"capacity": 3}, device="cpu")
    solution = ooc_mdp.solve(network, ooc_mdp.FiniteHorizon(4, kept_stages=(2,)), device="cpu", output=tmp_path / "r")
    assert solution.stages is not None
    x = [[0.2, 1.0, 3.0], [2.0, 0.6, 1.4]]
    states = [1 * 4 + 3, 2 * 16 + 1 * 4 + 1]
    for of in (solution, ooc_mdp.open_result(tmp_path / "r")):
        assert np.array_equal(of.policy_at(x, stage=1), solution.stages.policy(1)[states])
        assert of.value_at([2, 1, 1], stage=2) == solution.stages.values(2)[states[1]]
        with pytest.raises(OptionsError, match="--keep-stages 3"):
            of.value_at(x, stage=3)
