"""Average rewards on a device prove what they prove on the host: on the emulator of CUDA, and on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from emulated_device import EmulatedDevice
from exact_gains import KINDS, exact_gains, random_gain_model
from small_mdps import Case, make_store, rows_of, stored
from store_models import Action, Model, State
from tiled_engine import ShuffledDevice

import ooc_mdp
from ooc_mdp import AverageReward
from ooc_mdp.average import engine
from ooc_mdp.average.backends import FOUND, System
from ooc_mdp.average.device import DeviceGains
from ooc_mdp.average.host import HostGains
from ooc_mdp.backends.cuda.device import CudaDevice, Device
from ooc_mdp.errors import MemoryBudgetError, OptionsError
from ooc_mdp.model.solution import Outcome
from ooc_mdp.model.table import Table
from ooc_mdp.options import SolveOptions
from ooc_mdp.solver.session import Session
from ooc_mdp.store import Store
from ooc_mdp.undiscounted.tables import finish

DEVICES: dict[str, Callable[[], Device]] = {"shuffled": lambda: ShuffledDevice(1), "cuda": lambda: CudaDevice(0)}
ON = [pytest.param("shuffled"), pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> DeviceGains:
    """Solves take the device whatever they ask for."""
    made = DeviceGains(DEVICES[request.param]())
    monkeypatch.setattr(engine, "gain_backend", lambda _: made)
    return made


def network(folder: Path, capacity: int = 5) -> Store:
    parameters = {"capacity": capacity}
    return ooc_mdp.generate("queueing-network", folder / "q.store", parameters=parameters, partitions=6)


def started(table: Table, backend: DeviceGains | HostGains, values: np.ndarray) -> None:
    backend.load_code(table)
    backend.plan(table, SolveOptions(AverageReward()))
    backend.start(table, values)


def read_all(table: Table, backend: DeviceGains | HostGains, margin: float) -> np.ndarray:
    """What the improvement of each partition finds."""
    for p in range(table.n_partitions):
        resident = backend.admit(backend.fetch(p)[0])
        backend.improve(resident, margin)
        backend.release(resident)
    partitions, found = backend.found()
    assert partitions.tolist() == list(range(table.n_partitions))
    assert found.shape == (table.n_partitions, FOUND)
    return found


def ring(n: int) -> Model:
    """Stay for a reward, or move without one: of many actions some tie."""
    rng = np.random.default_rng(3)

    def state(s: int) -> State:
        moves = tuple(Action(0.0, {(s + d) % n: 0.75, s: 0.25}) for d in (-1, 1, 1))
        return State((Action(float(rng.random()), {s: 1.0}), *moves[: s % 4]))

    return Model(tuple(state(s) for s in range(n)))


STORES = {
    "network": network,
    "ragged": lambda folder: make_store(Case(ring(70), "min", "float32", 5), folder / "r.store"),
}


@pytest.mark.parametrize("backend", ON, indirect=True)
@pytest.mark.parametrize("name", STORES)
def test_a_reading_on_a_device_finds_the_numbers_of_the_host(name: str, tmp_path: Path, backend: DeviceGains) -> None:
    store, rng = STORES[name](tmp_path), np.random.default_rng(1)
    host, h = HostGains(), rng.normal(size=store.n_states)
    started(store, backend, h)
    started(store, host, h)
    for margin in (0.0, 0.3, 0.0):
        np.testing.assert_array_equal(read_all(store, backend, margin), read_all(store, host, margin))
        np.testing.assert_array_equal(backend.policy(), host.policy())
        np.testing.assert_array_equal(backend.advantage(), host.advantage())
        there, here = backend.step(0.5, 0.1), host.step(0.5, 0.1)
        np.testing.assert_array_equal(there, here)
        np.testing.assert_array_equal(backend.values(), host.values())
    host.close()


@pytest.mark.parametrize("backend", ON, indirect=True)
@pytest.mark.parametrize("name", STORES)
def test_rows_on_a_device_have_the_bounds_of_the_table(name: str, tmp_path: Path, backend: DeviceGains) -> None:
    store = STORES[name](tmp_path)
    host, h = HostGains(), np.random.default_rng(1).normal(size=store.n_states)
    for each in (backend, host):
        started(store, each, h)
        read_all(store, each, 0.0)
        each.begin_trial()
    there, here = backend.measure(), host.measure()
    # Rows have the partition's longest width there, and fused sums: bounds may be a little wider.
    np.testing.assert_allclose(there.low, here.low, atol=1e-12)
    np.testing.assert_allclose(there.high, here.high, atol=1e-12)
    assert (there.high >= here.low).all()
    assert there.rounding <= 4 * here.rounding
    assert there.size == here.size == np.abs(h).max()
    assert not there.least.any()
    assert not there.largest.any()
    host.close()


@pytest.mark.parametrize("backend", ON, indirect=True)
@pytest.mark.parametrize("discount", [1.0, 0.99])
def test_evaluations_on_a_device_solve_the_equation_and_can_be_withdrawn(
    tmp_path: Path, backend: DeviceGains, discount: float
) -> None:
    store = network(tmp_path)
    h = np.random.default_rng(1).normal(size=store.n_states)
    started(store, backend, h)
    read_all(store, backend, 0.0)
    backend.begin_trial()
    before = backend.measure()
    made = finish(backend.evaluate(System(before.middle, 1e-9, 10_000, discount)))
    after = backend.measure()
    assert made > store.n_states
    change = backend.values() - h
    ptr = store.facts.partition_ptr
    np.testing.assert_array_equal(after.least, np.minimum.reduceat(change, ptr[:-1]))
    np.testing.assert_array_equal(after.largest, np.maximum.reduceat(change, ptr[:-1]))
    # x = g; or h = r - c + d P h, where x = c + (1 - d) P h.
    assert after.spread < (1e-7 if discount == 1 else 0.011 * np.ptp(backend.values()))
    assert after.size == np.abs(backend.values()).max()
    backend.withdraw()
    np.testing.assert_array_equal(backend.values(), h)
    backend.take(h + 1.0)
    np.testing.assert_array_equal(backend.values(), h + 1.0)


@pytest.mark.parametrize("backend", ON, indirect=True)
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_values_that_are_no_numbers_prove_nothing(tmp_path: Path, backend: DeviceGains, wrong: float) -> None:
    store = network(tmp_path)
    started(store, backend, np.zeros(store.n_states))
    read_all(store, backend, 0.0)
    h = np.zeros(store.n_states)
    h[7] = wrong
    backend._stream.upload(int(backend._at["values"]), h)
    backend.begin_trial()
    found = backend.measure()
    assert found.size == np.inf
    assert (found.low.min(), found.high.max()) == (-np.inf, np.inf)
    finish(backend.evaluate(System(0.0, 1e-9, 100)))
    np.testing.assert_array_equal(backend.values(), h)


@pytest.mark.parametrize("backend", ON, indirect=True)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("first", "count"), [(0, 2), pytest.param(2, 10, marks=pytest.mark.slow)])
def test_the_interval_of_a_device_holds_the_exact_gains(
    first: int, count: int, kind: str, backend: DeviceGains
) -> None:
    for seed in range(first, first + count):
        model = random_gain_model(seed, kind)
        case = Case(model, ("max", "min")[seed % 2], partitions=1 + seed % min(4, len(model.states)))
        with stored(case) as store:
            epsilon = 1e-7 * float(np.abs(store.facts.reward_range).max())
            solution = ooc_mdp.solve(store, AverageReward(), epsilon=epsilon, cache="45%")
            gains = exact_gains(rows_of(store), store.sense)
            claims = solution.certificate
            assert Fraction(claims.lower) <= min(gains) <= max(gains) <= Fraction(claims.upper)
            assert solution.outcome is Outcome.PROVED
            assert (solution.value_lower is None) == (min(gains) == max(gains))
            assert solution.device == backend.name
            assert ooc_mdp.verify(store, solution).holds


@pytest.mark.parametrize("backend", ON, indirect=True)
def test_steps_alone_close_the_interval_where_rows_do_not_fit(
    tmp_path: Path, backend: DeviceGains, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring_of_seven = tuple(State((Action(float(s == 3), {(s + 1) % 7: 1.0}),)) for s in range(7))
    store = make_store(Case(Model(ring_of_seven), partitions=3), tmp_path / "m.store")
    monkeypatch.setattr("ooc_mdp.backends.cuda.policy.rows.DeviceRows.nbytes", lambda model: 1 << 50)
    solution = ooc_mdp.solve(store, AverageReward(), epsilon=1e-3, cache="50%")
    assert solution.outcome is Outcome.PROVED
    assert solution.statistics.policy_evaluations == 0
    assert "rows of the policy" not in solution.memory_plan["device"]
    assert solution.certificate.lower <= 1 / 7 <= solution.certificate.upper


@pytest.mark.parametrize("backend", ON, indirect=True)
def test_a_solve_on_a_device_that_was_stopped_goes_on_and_its_result_holds(
    tmp_path: Path, backend: DeviceGains, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, result = network(tmp_path), tmp_path / "r"
    looks, ended, late = iter(range(1000)), Session.ended, ooc_mdp.Outcome.TIME_LIMIT
    with monkeypatch.context() as patch:
        patch.setattr(Session, "ended", lambda session: late if next(looks) == 20 else ended(session))
        assert ooc_mdp.solve(store, AverageReward(), epsilon=1e-6, cache="30%", output=result).outcome is late
    solution = ooc_mdp.solve(store, AverageReward(), epsilon=1e-6, cache="30%", output=result, resume=True)
    assert solution.outcome is Outcome.PROVED
    assert ooc_mdp.verify(store, result).holds
    assert {"values", "advantages", "rows of the policy", "cache"} <= set(solution.memory_plan["device"])
    monkeypatch.undo()
    here = ooc_mdp.solve(store, AverageReward(), epsilon=1e-6, device="cpu")
    assert here.gain is not None
    assert solution.gain is not None
    assert max(here.gain[0], solution.gain[0]) <= min(here.gain[1], solution.gain[1])


def test_a_state_without_actions_is_named_by_a_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "gain_backend", lambda _: DeviceGains(EmulatedDevice()))
    model = Model((State((Action(1.0, {1: 1.0}),)), State(())))
    with pytest.raises(OptionsError, match="state 1"):
        ooc_mdp.solve(make_store(Case(model, partitions=2), tmp_path / "s"), AverageReward())


def test_a_budget_of_the_device_is_kept_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    budget, device = 400_000, EmulatedDevice()
    monkeypatch.setattr(engine, "gain_backend", lambda _: DeviceGains(device))
    peak, allocate = [0], device.allocate

    def counted(nbytes: int) -> int:
        at = allocate(nbytes)
        peak[0] = max(peak[0], EmulatedDevice().memory_free() - device.memory_free())
        return at

    monkeypatch.setattr(device, "allocate", counted)
    solution = ooc_mdp.solve(network(tmp_path), AverageReward(), epsilon=1e-3, device_memory=budget)
    assert solution.outcome is Outcome.PROVED
    assert solution.statistics.policy_evaluations > 0
    assert peak[0] <= budget


def test_a_device_without_room_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "gain_backend", lambda _: DeviceGains(EmulatedDevice()))
    with pytest.raises(MemoryBudgetError, match="--device-memory"):
        ooc_mdp.solve(network(tmp_path), AverageReward(), device_memory=1000)
