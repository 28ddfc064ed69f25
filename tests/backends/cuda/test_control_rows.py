"""Rows of control problems from a GPU: the CPU's, wherever they are asked for."""

from __future__ import annotations

import importlib.util
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from control_cases import CASES, NAMES, agree

import ooc_mdp
from ooc_mdp.backends.cuda.control import rows as control_rows
from ooc_mdp.backends.cuda.control.rows import ControlRows, DeviceProblem, kernel_source
from ooc_mdp.backends.select import select_rows
from ooc_mdp.errors import MemoryBudgetError, MissingExtraError, OptionsError
from ooc_mdp.model.mdp import Rows
from ooc_mdp.problems.registry import make_problem

UNTRANSLATABLE = """
from typing import NamedTuple
from ooc_mdp.problems.control import Axis, ControlProblem

class Parameters(NamedTuple):
    mass: float = 1.0

def dynamics(state, control, p):
    x = state[0]
    while x > 1.0:
        x -= 1.0
    return (control[0] - x,)

problem = ControlProblem("one", "", (Axis("x", -1.0, 1.0),), ((-2.0,), (2.0,)), dynamics, Parameters())
"""


def host_rows(problem, arrays) -> Rows:
    """Rows from what lies on the device."""
    successors, probabilities, rewards, durations = (array.get() for array in arrays)
    a, k = problem.n_actions, len(problem.points) + 1
    n = rewards.size // a
    return Rows(
        np.arange(n + 1) * a,
        np.arange(n * a + 1) * k,
        successors.astype(np.int64),
        probabilities,
        rewards,
        durations=durations,
    )


def test_problems_that_differ_in_grid_and_parameters_share_a_kernel():
    one, other = (make_problem("mountain-car", {"grid": grid, "mass": mass}) for grid, mass in (("9", 1), ("20", 2)))
    assert kernel_source(one) == kernel_source(other)
    assert kernel_source(one) != kernel_source(make_problem("single-pendulum"))


def test_the_cpu_computes_rows_where_it_is_told_to():
    problem = make_problem("mountain-car", {"grid": "5"})
    assert select_rows(problem, "cpu") is problem


def test_auto_leaves_other_problems_to_the_cpu():
    problem = make_problem("GW-8x4")
    assert select_rows(problem, "auto") is problem


def test_a_device_that_does_not_exist_is_refused():
    with pytest.raises(OptionsError, match="unknown device 'gpu'"):
        select_rows(make_problem("mountain-car"), "gpu")


def test_rows_of_other_problems_are_not_asked_of_a_gpu():
    with pytest.raises(OptionsError, match="cuda:0 computes rows of control problems only, not those of 'random'"):
        select_rows(make_problem("random"), "cuda:0")


@pytest.mark.skipif(importlib.util.find_spec("cupy") is not None, reason="CuPy is installed")
def test_a_gpu_asked_for_by_name_needs_cupy():
    problem = make_problem("mountain-car")
    assert select_rows(problem, "auto") is problem
    with pytest.raises(MissingExtraError, match="cupy"):
        select_rows(problem, "cuda:0")


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "parameters"), CASES, ids=NAMES)
def test_the_device_gives_numbas_rows(name, parameters):
    problem = make_problem(name, parameters)
    states = np.arange(problem.n_states)
    computed = ControlRows(0).rows_on_device(problem, states)
    agree(problem.rows(states), host_rows(problem, computed), len(problem.points) + 1)


@pytest.mark.gpu
def test_states_may_lie_on_the_device_and_successors_be_narrow():
    import cupy

    problem = make_problem("double-pendulum", {"grid": "7"})
    states = np.array([2400, 3, 3, 17, 0])
    computed = ControlRows(0).rows_on_device(problem, cupy.asarray(states), np.uint32)
    assert computed[0].dtype == np.uint32
    agree(problem.rows(states), host_rows(problem, computed), 5)


@pytest.mark.gpu
def test_rows_come_back_in_pieces_and_to_many_threads(monkeypatch):
    monkeypatch.setattr(control_rows, "_PIECE", 10_000)
    problem = make_problem("mountain-car", {"grid": "40"})
    source = ControlRows(0)
    parts = [np.arange(i, 1600, 8) for i in range(8)]
    with ThreadPoolExecutor(4) as pool:
        for part, rows in zip(parts, pool.map(lambda part: source.rows(problem, part), parts), strict=True):
            agree(problem.rows(part), rows, 3)
    assert source.rows(problem, np.empty(0, np.int64)).n_rows == 0
    source.close()


@pytest.mark.gpu
def test_what_does_not_fit_is_refused(monkeypatch):
    import cupy

    problem = make_problem("mountain-car", {"grid": "40"})
    source = ControlRows(0)
    with pytest.raises(OptionsError, match=r"states 0 \.\. 1599"):
        source.rows(problem, np.array([1600]))
    with pytest.raises(OptionsError, match="cannot be int32"):
        source.rows_on_device(problem, np.arange(3), np.int32)
    with pytest.raises(OptionsError, match="there is no device cuda:99"):
        ControlRows(99)

    def full(*_):
        raise cupy.cuda.memory.OutOfMemoryError(1, 2, 3)

    monkeypatch.setattr(cupy, "empty", full)
    with pytest.raises(MemoryBudgetError, match=r"cuda:0 has no .* for the rows of 3 states"):
        source.rows_on_device(problem, np.arange(3))


@pytest.mark.gpu
def test_auto_takes_the_gpu_for_control_problems_that_it_can_run(tmp_path):
    problem = select_rows(make_problem("mountain-car"), "auto")
    assert isinstance(problem, DeviceProblem)
    file = tmp_path / "untranslatable.py"
    file.write_text(UNTRANSLATABLE)
    notes: list[str] = []
    other = make_problem(str(file))
    assert select_rows(other, "auto", notes.append) is other
    assert len(notes) == 1
    assert "untranslatable.py, line 10: " in notes[0]
    with pytest.raises(OptionsError, match=r"line 10: .*while"):
        select_rows(other, "cuda:0")


def whole_rows(store, width: int) -> Rows:
    """All rows of a store, in its numbering."""
    successors, probabilities, rewards, durations = [], [], [], []
    for p in range(store.n_partitions):
        table, _ = store.read(p)
        local = table.successors.astype(np.int64)
        outside = local >= table.n_states
        found = local + table.first_state
        found[outside] = table.halo[local[outside] - table.n_states]
        successors.append(found)
        probabilities.append(table.probabilities.astype(np.float64))
        rewards.append(table.rewards.astype(np.float64))
        durations.append(table.durations)
    n = sum(map(len, rewards))
    joined = [np.concatenate(parts) for parts in (successors, probabilities, rewards, durations)]
    return Rows(np.arange(n + 1), np.arange(n + 1) * width, *joined[:3], durations=joined[3])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "grid", "width"), [("mountain-car", "50", 3), ("double-pendulum", "8", 5)])
def test_a_store_generated_by_the_gpu_is_the_cpus(tmp_path, name, grid, width, dtype):
    stores = [
        ooc_mdp.generate(
            name, tmp_path / f"{device[:4]}.zarr", {"grid": grid}, partitions=9, dtype=dtype, device=device
        )
        for device in ("cpu", "cuda:0")
    ]
    cpu, gpu = (whole_rows(store, width) for store in stores)
    agree(cpu, gpu, width, ascending=False)
    assert "device" not in stores[0].facts.attributes["provenance"]
    assert stores[1].facts.attributes["provenance"]["device"] == "cuda:0"
