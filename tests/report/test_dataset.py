"""Results as Datasets of xarray, from a solution in memory and by the engine that opens them from disk."""

from __future__ import annotations

import sys
import tomllib
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from made_results import made_result
from paths import REPOSITORY

pytest.importorskip("xarray")

import xarray

import ooc_mdp
from ooc_mdp.errors import MissingExtraError, OptionsError, StoreError
from ooc_mdp.report.xarray_backend import ResultBackend
from ooc_mdp.store.result import Result

AXES = [
    {"name": "angle", "low": -2.0, "high": 2.0, "periodic": True, "unit": "rad"},
    {"name": "level", "low": 0.0, "high": 4.0, "periodic": False, "unit": ""},
]


def tank(controls: list[list[float]], **changes: object) -> Result:
    """A made-up result on 4 x 5 points with controls."""
    policy = np.array([0, 1, -1, 1] * 5, np.int32)
    result = made_result((4, 5), policy=policy, **changes)
    return replace(result, geometry={"shape": [4, 5], "axes": AXES, "controls": controls})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with maze.store and maze.result."""
    folder = tmp_path_factory.mktemp("dataset")
    ooc_mdp.generate("GW-8x4", folder / "maze.store", {"seed": 1}, partitions=2, threads=1)
    ooc_mdp.solve(folder / "maze.store", 0.9, device="cpu", output=folder / "maze.result")
    return folder


def test_states_have_the_grids_axes_with_units_and_the_control_values():
    result = tank([[-1.0], [2.5]])
    found = result.to_xarray()
    assert found.value.dims == ("angle", "level")
    np.testing.assert_array_equal(found.value, result.values.reshape(4, 5))
    assert found.angle.values.tolist() == [-2.0, -1.0, 0.0, 1.0]
    assert (found.angle.attrs["units"], "units" in found.level.attrs) == ("rad", False)
    np.testing.assert_array_equal(found.control.values.ravel()[:4], [-1.0, 2.5, np.nan, 2.5])
    assert found.controls.values.tolist() == [-1.0, 2.5]
    assert float(found.value.sel(angle=0.9, level=2.1, method="nearest")) == result.values[17]
    assert (found.attrs["model"], found.attrs["source"]) == ("made-up", "store")
    assert (found.attrs["error_bound"], found.attrs["outcome"], found.attrs["sense"]) == (0.001, "proved", "max")


def test_controls_of_several_components_have_an_axis_of_their_own():
    found = tank([[-1.0, 0.0], [2.5, 3.0]]).to_xarray()
    assert found.control.dims == ("angle", "level", "input")
    assert found.control.values[0, 1].tolist() == [2.5, 3.0]


def test_proved_bounds_and_the_sources_actions_are_variables_where_there_are_some():
    bounds = {"value_lower": np.zeros(20), "value_upper": np.ones(20), "source_actions": np.arange(20)}
    found = tank([[0.0], [1.0]], **bounds).to_xarray()
    assert {"value_lower", "value_upper", "action"} <= set(found)
    assert "control" not in found


def test_states_without_a_grid_and_axes_with_the_name_of_a_variable_are_numbered():
    assert replace(made_result((6,)), geometry=None).to_xarray().value.dims == ("state",)
    axes = [{**AXES[0], "name": "control"}, {**AXES[1], "name": "value"}]
    named = replace(tank([[0.0], [1.0]]), geometry={"shape": [4, 5], "axes": axes, "controls": [[0.0], [1.0]]})
    assert named.to_xarray().value.dims == ("axis_0", "axis_1")


def test_the_history_is_over_its_seconds():
    solution = made_result((4, 4)).solution
    found = solution.to_xarray("history")
    assert solution.history is not None
    np.testing.assert_array_equal(found.time, solution.history.seconds)
    assert found.time.attrs["units"] == "s"
    np.testing.assert_array_equal(found.error_bound, solution.history.error_bound)
    assert found.loads.dims == ("partition",)
    with pytest.raises(OptionsError, match="carries no history"):
        replace(solution, history=None).to_xarray("history")
    with pytest.raises(OptionsError, match="has no group 'stages'; give 'history'"):
        solution.to_xarray("stages")


def test_xarray_opens_a_result_by_its_engine(place):
    result = ooc_mdp.open_result(place / "maze.result")
    with xarray.open_dataset(place / "maze.result", engine=ResultBackend, drop_variables="policy") as opened:
        xarray.testing.assert_identical(opened, result.to_xarray().drop_vars("policy"))
    with xarray.open_dataset(place / "maze.result", engine=ResultBackend, group="history") as history:
        assert set(history.coords) == {"time"}
    backend = ResultBackend()
    assert backend.guess_can_open(str(place / "maze.result"))
    assert not backend.guess_can_open(place / "maze.store")
    assert not backend.guess_can_open(3)
    with pytest.raises(StoreError, match="give the directory that --output named"):
        xarray.open_dataset(place / "maze.store", engine=ResultBackend)


def test_the_package_declares_the_engine():
    declared = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"]
    module, _, name = declared["xarray.backends"]["ooc-mdp"].partition(":")
    assert getattr(import_module(module), name) is ResultBackend


def test_a_solution_of_a_table_in_memory_is_a_dataset_too(place):
    solution = ooc_mdp.solve(place / "maze.store", 0.9, device="cpu")
    found = solution.to_xarray()
    assert found.value.dims == ("row", "column")
    assert found.attrs["fingerprint"] == ooc_mdp.open_store(place / "maze.store").fingerprint


def test_without_xarray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(MissingExtraError, match=r"needs the package xarray.*ooc-mdp\[xarray\]"):
        tank([[0.0], [1.0]]).to_xarray()
