"""Results for other programs: the grid's shape, names and coordinates, as xarray and any Zarr reader find them."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from solve_histories import history_of

import ooc_mdp
from ooc_mdp.model.solution import SolveHistory
from ooc_mdp.store.result import open_result, write_result
from ooc_mdp.store.result_grid import grid_of
from ooc_mdp.store.slabs import MAX_ELEMENTS, count_slabs, slab_chunks, slabs

RESERVED = frozenset({"state", "value"})


@pytest.fixture(scope="module")
def car(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ooc_mdp.Solution]:
    """A result of the mountain car in 12 x 8 points, with a history."""
    place = tmp_path_factory.mktemp("car")
    store = ooc_mdp.generate("mountain-car", place / "s", {"grid": "12,8"}, partitions=4)
    solved = replace(ooc_mdp.solve(store, 0.9, device="cpu"), history=history_of(5, 4))
    identity = {"fingerprint": store.fingerprint, "sense": store.sense, "criterion": "discounted", "discount": 0.9}
    write_result(place / "car.result", store, solved, identity)
    return place / "car.result", solved


def test_a_results_arrays_have_the_grids_shape_names_and_coordinates(car):
    path, solved = car
    group = zarr.open_group(path, mode="r")
    axes = group.attrs["about"]["geometry"]["axes"]
    names = tuple(axis["name"] for axis in axes)
    for name in ("value", "policy"):
        assert group[name].shape == (12, 8)
        assert group[name].metadata.dimension_names == names
    np.testing.assert_array_equal(group["value"][:], solved.values.reshape(12, 8))
    for axis, n in zip(axes, (12, 8), strict=True):
        coordinate = group[axis["name"]]
        assert coordinate.metadata.dimension_names == (axis["name"],)
        np.testing.assert_allclose(coordinate[:], np.linspace(axis["low"], axis["high"], n), rtol=1e-14)
        assert coordinate.attrs.asdict() == {"units": axis["unit"], "long_name": axis["name"]}
    assert group["value_chunks"].metadata.dimension_names == ("value_chunk", "value_chunk_field")
    assert group["history/hits"].metadata.dimension_names == ("time",)
    assert group["history/loads"].metadata.dimension_names == ("partition",)


def test_a_result_is_opened_flat_with_its_history_and_geometry(car):
    path, solved = car
    opened = open_result(path)
    np.testing.assert_array_equal(opened.solution.values, solved.values)
    np.testing.assert_array_equal(opened.solution.policy, solved.policy)
    assert opened.geometry is not None
    assert opened.geometry["shape"] == [12, 8]
    assert opened.solution.history is not None
    for field in fields(SolveHistory):
        kept, given = (getattr(s.history, field.name) for s in (opened.solution, solved))
        assert kept.dtype == given.dtype
        np.testing.assert_array_equal(kept, given)


def test_a_history_without_rows_is_kept(car, tmp_path):
    store = ooc_mdp.generate("random", tmp_path / "s", {"states": 20, "actions": 2, "seed": 0}, partitions=2)
    solved = replace(ooc_mdp.solve(store, 0.5, device="cpu"), history=history_of(0, 2))
    write_result(
        tmp_path / "r",
        store,
        solved,
        {"fingerprint": store.fingerprint, "sense": "max", "criterion": "discounted", "discount": 0.5},
    )
    history = open_result(tmp_path / "r").solution.history
    assert history is not None
    assert (history.seconds.size, history.loads.tolist()) == (0, [8, 9])
    assert zarr.open_group(tmp_path / "r", mode="r")["history/seconds"].shape == (0,)


def test_xarray_selects_values_by_position(car):
    xarray = pytest.importorskip("xarray")
    path, solved = car
    with xarray.open_zarr(path, consolidated=False, chunks=None, zarr_format=3) as opened:
        found = opened.value.sel(position=0.3, method="nearest")
        axis = opened.attrs["about"]["geometry"]["axes"][0]
        assert axis["name"] == "position"
        row = int(np.abs(np.linspace(axis["low"], axis["high"], 12) - 0.3).argmin())
        np.testing.assert_array_equal(found.values, solved.values.reshape(12, 8)[row])
        assert found.dims == ("velocity",)
        np.testing.assert_array_equal(opened.policy.values, solved.policy.reshape(12, 8))
        assert opened.policy.dtype == np.int32
        assert opened.position.attrs["long_name"] == "position"
    with xarray.open_zarr(path, group="history", consolidated=False, chunks=None, zarr_format=3) as history:
        np.testing.assert_array_equal(history.error_bound.values, solved.history.error_bound)
        assert dict(history.sizes) == {"time": 5, "partition": 4}
        np.testing.assert_array_equal(history.error_bound.coords["seconds"].values, solved.history.seconds)
        assert history.error_bound.attrs == {"long_name": "proved bound on the error of the values"}


def test_a_periodic_axis_does_not_repeat_its_first_point():
    axes = [
        {"name": "angle", "low": -1.0, "high": 1.0, "periodic": True, "unit": "rad"},
        {"name": "speed", "low": 0.0, "high": 3.0, "periodic": False, "unit": "rad/s"},
    ]
    grid = grid_of({"shape": [4, 4], "axes": axes}, 16, RESERVED)
    assert grid.dimensions == ("angle", "speed")
    assert grid.coordinates["angle"].positions.tolist() == [-1.0, -0.5, 0.0, 0.5]
    assert grid.coordinates["speed"].positions.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert grid.coordinates["angle"].attributes == {"units": "rad", "long_name": "angle"}


def axis(name: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "low": 0, "high": 1, **more}


@pytest.mark.parametrize(
    ("axes", "dimensions", "known"),
    [
        (None, ("axis_0", "axis_1"), set()),
        ([axis("x")], ("axis_0", "axis_1"), set()),
        ([axis("x"), axis("x")], ("axis_0", "axis_1"), {"axis_0", "axis_1"}),
        ([axis("value"), axis("y")], ("axis_0", "y"), {"axis_0", "y"}),
        ([axis("axis_1"), axis("a/b")], ("axis_0", "axis_1"), {"axis_0", "axis_1"}),
        ([axis("θ"), axis("..")], ("θ", "axis_1"), {"θ", "axis_1"}),
        ([{"name": "x"}, axis("y", low=2)], ("x", "y"), set()),
        ([axis("x", high=float("inf")), axis("y", low=None)], ("x", "y"), set()),
        ([axis("x", low=-1.7e308, high=1.7e308), axis("y", low=10**400)], ("x", "y"), set()),
        (["x", 3], ("axis_0", "axis_1"), set()),
    ],
)
def test_axes_that_cannot_be_named_or_placed_are_numbered(axes, dimensions, known):
    grid = grid_of({"shape": [3, 2], "axes": axes}, 6, RESERVED)
    assert grid.dimensions == dimensions
    assert set(grid.coordinates) == known


@pytest.mark.parametrize("geometry", [None, {}, {"shape": [3, 3]}, {"shape": []}, {"shape": "6"}, {"shape": [6.0]}, []])
def test_what_is_no_grid_of_the_states_has_one_axis(geometry):
    grid = grid_of(geometry, 6, RESERVED)
    assert (grid.dimensions, grid.shape, grid.coordinates) == (("state",), (6,), {})


@pytest.mark.parametrize(
    "shape", [(1,), (7,), (3 * MAX_ELEMENTS + 1,), (2, MAX_ELEMENTS + 5), (60, 60, 60, 60), (1500, 1500), (5, 1, 1)]
)
def test_chunks_of_any_shape_are_runs_that_cover_it(shape):
    chunks = slab_chunks(shape)
    assert np.prod(chunks) <= MAX_ELEMENTS
    found = list(slabs(shape, chunks))
    assert len(found) == len({slab.key for slab in found}) == count_slabs(shape, chunks)
    assert [found[0].start, *(slab.stop for slab in found)] == [*(slab.start for slab in found), np.prod(shape)]
    for slab in found:
        first = tuple(k * c for k, c in zip(slab.key, chunks, strict=True))
        assert np.ravel_multi_index(first, shape) == slab.start


def test_a_result_in_several_chunks_is_read_back(tmp_path, monkeypatch):
    monkeypatch.setattr("ooc_mdp.store.slabs.MAX_ELEMENTS", 20)
    store = ooc_mdp.generate("mountain-car", tmp_path / "s", {"grid": "13,8"}, partitions=4)
    solved = ooc_mdp.solve(store, 0.9, device="cpu", output=tmp_path / "r")
    group = zarr.open_group(tmp_path / "r", mode="r")
    assert group["value"].chunks == (2, 8)  # 7 chunks, the last one half full
    np.testing.assert_array_equal(group["value"][:], solved.values.reshape(13, 8))
    np.testing.assert_array_equal(open_result(tmp_path / "r").solution.values, solved.values)
    document = json.loads((tmp_path / "r" / "zarr.json").read_text())
    assert document["attributes"]["arrays"]["value"] == {"dtype": "float64", "shape": [13, 8], "chunks": [2, 8]}
