"""Backends that solve a part of a model: they take others' values, and what they report of their own stays true.

The tiled engine runs on the emulator of CUDA where there is no GPU; the same checks run on a device where there is one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
from emulated_device import EmulatedDevice, emulated_group
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_mdps import Case, rows_of, stored
from store_models import Action, Model, State
from tiled_engine import TILE_STATES, Engine, LittleRoom, MakeDevice, emulated
from worker_clusters import placed

from ooc_mdp.backends.base import Backend, SweepLimits
from ooc_mdp.backends.cpu.backend import CpuBackend
from ooc_mdp.backends.cpu.scheduled import ScheduledBackend
from ooc_mdp.backends.cuda.device import CudaDevice
from ooc_mdp.backends.cuda.simple.backend import SimpleBackend
from ooc_mdp.backends.cuda.simple.literature.catalogue import PLAIN
from ooc_mdp.backends.cuda.tiles.backend import TiledBackend
from ooc_mdp.backends.layout import Needs
from ooc_mdp.backends.state_lists import ListChanges, StateLists
from ooc_mdp.distributed import worker
from ooc_mdp.distributed.solve import solve_distributed
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.options import CacheSize, ClusterOptions, SolveOptions
from ooc_mdp.reference import policy_iteration
from ooc_mdp.store import Store

QUIET = SweepLimits(0.0, 8, 1e-9, plain=True)
BACKENDS: dict[str, Callable[[], Backend]] = {
    "cpu": lambda: CpuBackend(threads=1),
    "emulated tiles": lambda: TiledBackend(emulated(), TILE_STATES),
    "tiles": lambda: TiledBackend(CudaDevice(0), TILE_STATES),
    "schedule": lambda: ScheduledBackend(PLAIN),
    "emulated simple kernel": lambda: SimpleBackend(emulated(), PLAIN),
    "simple kernel": lambda: SimpleBackend(CudaDevice(0), PLAIN),
}
ON_DEVICE = {"tiles", "simple kernel"}


def optimum(store: Store, discount: float) -> FloatArray:
    """V* in the store's order, of the maximisation."""
    best = policy_iteration(rows_of(store), discount, store.sense).values
    sign = 1.0 if store.sense == "max" else -1.0
    return sign * best[np.concatenate([store.original_states(p) for p in range(store.n_partitions)])]


# ----------------------------------------------------------------------------------------------- values and policies


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.gpu] * (n in ON_DEVICE)) for n in BACKENDS])
def test_what_is_written_is_read_and_all_else_stays(
    name: str, stores: Callable[[str], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists are longer than a piece of page-locked memory, in any order, and empty."""
    monkeypatch.setattr("ooc_mdp.backends.cuda.tiles.exchange._PIECE", 8 * 7)
    monkeypatch.setattr("ooc_mdp.backends.cuda.tiles.exchange._STATES_A_BLOCK", 5)
    store, rng = stores("car"), np.random.default_rng(0)
    backend = BACKENDS[name]()
    expected, policy = rng.normal(size=store.n_states), rng.integers(0, 3, store.n_states).astype(np.int32)
    model = ModelFacts.of(store.facts, 0.9)
    backend.start(model, backend.layout(model, Needs()), expected.copy(), policy.copy())
    for partitions in ((4, 0), (1,), (4,)):
        chosen = []
        for p in partitions:
            own = np.arange(store.facts.partition_ptr[p], store.facts.partition_ptr[p + 1])
            chosen.append(rng.permutation(own)[: own.size // 2])
            policy[own] = rng.integers(0, 3, own.size)
            backend.write_policy(p, policy[own])
        states = np.concatenate(chosen)
        expected[states] = rng.normal(size=states.size)
        backend.write(states, expected[states], np.array(partitions), np.cumsum([0, *(c.size for c in chosen)]))
    backend.write(np.empty(0, np.int64), np.empty(0), np.array([1]), np.zeros(2, np.int64))
    np.testing.assert_array_equal(backend.values(), expected)
    np.testing.assert_array_equal(backend.policy(), policy)
    grid = store.facts.grid
    assert grid is not None
    np.testing.assert_array_equal(backend.values(grid), grid.to_source(expected))
    np.testing.assert_array_equal(backend.policy(grid), grid.to_source(policy))
    of = {p: rng.permutation(np.arange(*store.facts.partition_ptr[p : p + 2]))[: 9 + 3 * p] for p in (4, 0, 3, 1)}
    lists = StateLists.of(of)
    for which in (np.array([3, 0]), np.array([2]), np.arange(4), np.empty(0, np.int64)):
        states, ptr = (
            np.concatenate([np.empty(0, np.int64), *(list(of.values())[i] for i in which)]),
            lists.places(which)[1],
        )
        before = backend.gather(lists, which)
        np.testing.assert_array_equal(before, expected[states])
        after = before + rng.choice([0.0, 1.0, -2.0], before.size)
        if which.size == 1:
            after = before
        found = backend.write_lists(lists, which, after)
        expected[states] = after
        if which.size:
            known = ListChanges.between(before, after, ptr)
            for name in ("rise", "fall", "largest"):
                np.testing.assert_array_equal(getattr(found, name), getattr(known, name))
    np.testing.assert_array_equal(backend.values(), expected)
    values, chosen_actions = np.empty(90), np.empty(90, np.int32)
    backend.copy(25, values, chosen_actions)
    np.testing.assert_array_equal(values, expected[25:115])
    np.testing.assert_array_equal(chosen_actions, policy[25:115])
    asked = rng.integers(0, store.n_states, 50)
    np.testing.assert_array_equal(backend.read(asked), expected[asked])
    assert backend.read(asked[:0]).size == 0
    backend.close()


def test_a_partition_that_nobody_has_visited_gets_its_greedy_actions_when_it_is_measured(
    stores: Callable[[str], Store], device: MakeDevice
) -> None:
    """Its policy is that of an owner who has made none; the terminal states of the others tell which is which."""
    store = stores("ragged")
    engine = Engine(store, 0.9, device())
    terminal = np.concatenate([np.diff(table.action_ptr) == 0 for table in engine.tables])
    for p in range(store.n_partitions):
        engine.load(p)
        engine.backend.write_policy(p, np.full(engine.tables[p].n_states, -1 if p else 0, np.int32))
        engine.backend.measure(engine.residents[p], 0.0)
    policy, first = engine.backend.policy(), engine.own(0)
    assert not policy[first].any()
    assert terminal[first.stop :].any()
    np.testing.assert_array_equal(policy[first.stop :] == -1, terminal[first.stop :])


# ----------------------------------------------------------------------------------- what tiles know of their inputs


def wander(engine: Engine, data: st.DataObject, steps: int) -> None:
    """Loads, evictions, batches and values from outside in any order; bounds hold after each."""
    rng = np.random.default_rng(data.draw(st.integers(0, 1000), label="seed"))
    everyone = range(engine.store.n_partitions)
    for _ in range(steps):
        here = list(engine.residents)
        absent = [p for p in everyone if p not in engine.residents]
        what = data.draw(st.sampled_from(["load", "evict", "sweep", "sweep", "write", "write"]))
        if what == "load" and absent and len(here) < engine.slots:
            engine.load(int(rng.choice(absent)))
        elif what == "evict" and here:
            engine.evict(int(rng.choice(here)))
        elif what == "sweep" and here:
            some = rng.choice(here, int(rng.integers(1, len(here) + 1)), replace=False).tolist()
            before = engine.backend.values()
            report = engine.sweep_together(some, SweepLimits(0.0, 3, float(rng.choice([1e-6, 0.1])), plain=True))
            after = engine.backend.values()
            for i, p in enumerate(some):
                change = (after - before)[engine.own(p)][engine.tables[p].boundary]
                assert report.boundary_rise[i] >= change.max(initial=0.0)
                assert report.boundary_fall[i] >= -change.min(initial=0.0)
        elif what == "write":
            written = []
            for p in rng.choice(everyone, int(rng.integers(1, len(everyone))), replace=False).tolist():
                own = np.arange(engine.own(p).start, engine.own(p).stop)
                states = rng.choice(own, int(rng.integers(1, own.size + 1)), replace=False)
                size = float(rng.choice([1e-12, 1e-3, 1.0, 1e6]))
                written.append((p, states, engine.backend.read(states) + size * rng.normal(size=states.size)))
            engine.write(*written)
        else:
            continue
        engine.assert_that_the_bounds_are_true()


@pytest.mark.parametrize("name", ["car", "ragged", "random"])
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_bounds_stay_above_the_true_residuals_whatever_values_come_from_outside(
    name: str, data: st.DataObject, stores: Callable[[str], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "ooc_mdp.backends.cuda.tiles.launches._ROUNDS", 2
    )  # few, so that batches end before all is quiet
    kind = data.draw(st.sampled_from([TiledBackend, LittleRoom]))
    engine = Engine(stores(name), 0.9, emulated(), slots=4, backend=kind)
    engine.load(0, 1)
    wander(engine, data, steps=10)


def test_tiles_that_read_too_many_others_to_list_them_see_every_write(device: MakeDevice) -> None:
    """Tiles of one state, each with all others for its successors; one partition is never here."""
    n, limits = 40, SweepLimits(0.0, 4, 1e-6, plain=True)
    model = Model(tuple(State((Action(float(s % 3), dict.fromkeys(range(n), 1 / n)),)) for s in range(n)))
    with stored(Case(model, partitions=4)) as store:
        engine = Engine(store, 0.5, device(), tile_states=1)
        engine.load(0, 1, 2)
        assert engine.inputs(0)[0] is None
        last = engine.own(3)
        for change in (1.0, -3.0, 1e-3):
            while int(engine.sweep_together([0, 1, 2], limits).backups.sum()):
                pass
            before = engine.backend.values()
            engine.write((3, np.array([last.start]), before[last.start : last.start + 1] + change))
            engine.sweep_together([0, 1, 2], limits)
            engine.assert_that_the_bounds_are_true()
            assert (engine.backend.values()[: last.start] != before[: last.start]).all()


@pytest.mark.parametrize("name", ["gridworld", "random"])
def test_tiles_that_read_nothing_of_what_was_written_are_left_alone(
    name: str, stores: Callable[[str], Store], device: MakeDevice
) -> None:
    """And those that do are swept, as often as needed: bounds come down to the limit again."""
    store = stores(name)
    engine = Engine(store, 0.5, device())
    ours = list(range(1, store.n_partitions))
    engine.load(*ours)

    def settle() -> int:
        done = total = int(engine.sweep_together(ours, QUIET).backups.sum())
        while done:
            done = int(engine.sweep_together(ours, QUIET).backups.sum())
            total += done
        return total

    settle()
    halos = np.concatenate([engine.tables[p].halo for p in ours])
    (read,) = np.nonzero(np.isin(np.arange(engine.own(0).stop), halos))
    for states, change in ((read, 0.0), (read[:1], 1.0), (read, 1e-3)):
        engine.write((0, states, engine.backend.read(states) + change))
        assert (settle() > 0) == (change > 0)
        assert engine.bounds.plain()[ours].max() <= 4e-9
    engine.assert_that_the_bounds_are_true()


def test_with_the_others_true_values_a_part_comes_to_its_own(
    stores: Callable[[str], Store], device: MakeDevice
) -> None:
    store, discount = stores("random"), 0.8
    engine, best = Engine(store, discount, device(), slots=2), optimum(store, discount)
    ours, others = [0, 1], [2, 3, 4]
    engine.load(*ours)
    for share in (0.5, 1.0):  # the others come to theirs by and by
        for p in others:
            own = engine.own(p)
            engine.write((p, np.arange(own.start, own.stop), share * best[own]))
        while int(engine.sweep_together(ours, QUIET).backups.sum()):
            pass
    proved = engine.bounds.normalised()[ours].max()
    assert proved <= 1e-7
    mine = slice(engine.own(0).start, engine.own(1).stop)
    assert np.abs(engine.backend.values() - best)[mine].max() <= proved + 1e-12


# --------------------------------------------------------------------------------------------- two solvers by turns


@pytest.mark.parametrize(
    ("name", "method", "placement", "each"),
    [
        ("car", "p-eva", "random", 1),
        ("car", "p-eva", "blocks", 2),
        ("gridworld", "p-eva", "blocks, rebalanced", 1),
        ("random", "policy-iteration", "random", 1),
        ("random", "policy-iteration", "random", 2),
    ],
)
def test_two_solvers_with_devices_of_their_own_agree_with_the_reference(
    name: str, method: str, placement: str, each: int, stores: Callable[[str], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One device each, or a group of two."""
    from distributed import Client

    store, discount = stores(name), {"car": 0.1}.get(name, 0.8)
    groups: list[tuple[EmulatedDevice, ...]] = []
    lock = threading.Lock()

    def tiles(*_: object) -> TiledBackend:
        with lock:
            groups.append((emulated(),) if each == 1 else emulated_group(each, seed=len(groups)))
            first, *others = groups[-1]
            return TiledBackend(first, TILE_STATES, others)

    # Few: on the emulator an idle round costs as much as any.
    monkeypatch.setattr("ooc_mdp.backends.cuda.tiles.launches._ROUNDS", 8)
    monkeypatch.setattr(worker, "select_backend", tiles)
    slot = TiledBackend(emulated(), TILE_STATES).layout(ModelFacts.of(store.facts, discount), Needs()).largest_entry
    options = SolveOptions(discount, epsilon=1e-4, method=method, device="cpu", cache=CacheSize(size=2 * slot))
    with Client(processes=False, n_workers=2, threads_per_worker=1, dashboard_address=":0") as client:
        solution = solve_distributed(store, options, asked=ClusterOptions(client, **placed(placement)))
    best = policy_iteration(rows_of(store), discount, store.sense).values
    assert len(groups) == 2
    assert solution.outcome.proved
    assert solution.error_bound <= 1e-4
    assert np.abs(solution.values - best).max() <= solution.error_bound
    assert all(worker.messages for worker in solution.statistics.workers)
