"""Stages on a device have the bits of stages on the host: on the emulator of CUDA, and on a GPU where there is one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from emulated_device import EmulatedDevice
from small_mdps import Case, make_store
from store_models import Action, Model, State, random_model
from tiled_engine import ShuffledDevice

import ooc_mdp
from ooc_mdp import FiniteHorizon
from ooc_mdp.backends.cuda.device import CudaDevice, Device
from ooc_mdp.errors import MemoryBudgetError
from ooc_mdp.finite_horizon import engine
from ooc_mdp.finite_horizon.device import DeviceStages
from ooc_mdp.solver.session import Session

DEVICES: dict[str, Callable[[], Device]] = {"shuffled": lambda: ShuffledDevice(1), "cuda": lambda: CudaDevice(0)}
ON = [pytest.param("shuffled"), pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Solves take the device whatever they ask for."""
    made: Device = DEVICES[request.param]()
    backend = DeviceStages(made)
    monkeypatch.setattr(engine, "stage_backend", lambda _: backend)
    return backend.name


def case_of(name: str) -> Case:
    match name:
        case "ragged":
            return Case(random_model(3, 400, terminal=0.3), "min", "float32", 5)
        case "uniform":
            return Case(random_model(4, 300, uniform=True), "max", "float64", 4)
        case _:
            ending = Action(2.0, {0: 1.0}, float("inf"))
            rows = tuple(State((ending, Action(0.3 * s, {(s + 1) % 40: 0.5, s: 0.5}))) for s in range(40))
            return Case(Model(rows, durations=True), "max", "float64", 3)


@pytest.mark.parametrize("device", ON, indirect=True)
@pytest.mark.parametrize("discount", [1.0, 0.9])
@pytest.mark.parametrize("name", ["ragged", "uniform", "ending"])
def test_stages_on_a_device_are_those_of_the_host(
    name: str, discount: float, tmp_path: Path, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(case_of(name), tmp_path / "s")
    final = np.random.default_rng(1).normal(size=store.n_states)
    asked = FiniteHorizon(9, discount, final, (0, 4))
    there = ooc_mdp.solve(store, asked, cache="45%", output=tmp_path / "r")
    assert there.device == device
    assert {"values", "values of the stage after", "cache"} <= set(there.memory_plan["device"])
    monkeypatch.undo()
    here = ooc_mdp.solve(store, asked, device="cpu")
    assert there.stages is not None
    assert here.stages is not None
    np.testing.assert_array_equal(there.values, here.values)
    for stage in range(9):
        np.testing.assert_array_equal(there.stages.policy(stage), here.stages.policy(stage))
    np.testing.assert_array_equal(there.stages.values(4), here.stages.values(4))
    assert ooc_mdp.verify(store, tmp_path / "r").holds


@pytest.mark.parametrize("device", ON, indirect=True)
def test_a_solve_on_a_device_that_was_stopped_goes_on(
    tmp_path: Path, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, asked = make_store(case_of("ragged"), tmp_path / "s"), FiniteHorizon(9)
    looks, ended = iter(range(1000)), Session.ended
    with monkeypatch.context() as patch:
        late = ooc_mdp.Outcome.TIME_LIMIT
        patch.setattr(Session, "ended", lambda session: late if next(looks) == 20 else ended(session))
        assert ooc_mdp.solve(store, asked, output=tmp_path / "r").outcome is late
    there = ooc_mdp.solve(store, asked, output=tmp_path / "r", resume=True)
    monkeypatch.undo()
    np.testing.assert_array_equal(there.values, ooc_mdp.solve(store, asked, device="cpu").values)


def test_a_device_without_room_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make_store(case_of("ragged"), tmp_path / "s")
    backend = DeviceStages(EmulatedDevice())
    monkeypatch.setattr(engine, "stage_backend", lambda _: backend)
    with pytest.raises(MemoryBudgetError, match="--device-memory"):
        ooc_mdp.solve(store, FiniteHorizon(3), device_memory=1000)
