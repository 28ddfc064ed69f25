"""Solves by the tiled engine: what they claim holds, within the memory that was planned, and resumes go on.

Without a GPU they run on the emulator of CUDA; the same checks run on a device where there is one.
"""

from __future__ import annotations

import itertools
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from claims import assert_that_all_claims_hold, scale_of
from emulated_device import EmulatedDevice
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_mdps import Case, actions, make_store, models, optimum, rows_of, stored
from store_models import Action, Model, ModelSource, State, random_model
from tiled_engine import (
    LAYOUTS,
    STORES,
    TILE_STATES,
    Engine,
    MakeDevice,
    ShuffledDevice,
    emulated,
    layout_of,
)

import ooc_mdp
from ooc_mdp.backends.base import SweepLimits
from ooc_mdp.backends.cuda.tiles.backend import TiledBackend
from ooc_mdp.backends.layout import Needs, SlotsTooSmall
from ooc_mdp.errors import MemoryBudgetError
from ooc_mdp.io.conversion import ConvertOptions, convert
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import Rows
from ooc_mdp.model.solution import Outcome, Solution
from ooc_mdp.model.table import Table
from ooc_mdp.options import CacheSize, RunOptions, SolveOptions
from ooc_mdp.reference import backup, policy_iteration
from ooc_mdp.solver import driver
from ooc_mdp.solver import local as solver
from ooc_mdp.solver import run as life_cycle
from ooc_mdp.solver.plan import plan_solve
from ooc_mdp.solver.verify import verify
from ooc_mdp.store import Store
from ooc_mdp.store.checkpoint import checkpoint_path
from ooc_mdp.store.result import unsaved_result

DISCOUNTS = {"car": 0.1, "pendulum": 0.1, "double pendulum": 0.02}
"""Control problems take small steps of time; all others are discounted by 0.8 a step."""
METHODS: list[dict[str, Any]] = [
    {"method": "p-eva"},
    {"method": "policy-iteration"},
    {"method": "vi", "sweeps_per_visit": 8},
    {"method": "vi"},
    {"method": "p-eva", "priority": "exact-h1"},
    {"method": "p-eva", "priority": "exact-h2"},
    {"method": "p-eva", "priority": "h2"},
]


@pytest.fixture
def solve(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Solution]:
    """Solves by the tiled engine with a cache of some slots."""

    def run(
        store: Table,
        make_device: MakeDevice,
        *,
        slots: int | None = None,
        output: Path | None = None,
        resume: bool = False,
        time_limit: float | None = None,
        **options: Any,
    ) -> Solution:
        monkeypatch.setattr(solver, "select_backend", lambda *_, **__: TiledBackend(make_device(), TILE_STATES))
        chosen = SolveOptions(options.pop("discount"), device="cuda:0", **options)
        if slots is not None:
            layout = layout_of(
                TiledBackend(emulated(), TILE_STATES), ModelFacts.of(store.facts, chosen.discount), slots
            )
            chosen = replace(chosen, cache=CacheSize(size=layout.cache_bytes))
        return solver.solve(store, chosen, RunOptions(output, resume=resume, time_limit=time_limit))

    return run


def assert_claims_hold_of_the_reference(solution: Solution, store: Store, discount: float) -> None:
    """As `claims.assert_that_all_claims_hold`, for models that are too large for rational arithmetic."""
    rows, sign, c = rows_of(store), 1.0 if store.sense == "max" else -1.0, solution.certificate
    best = policy_iteration(rows, discount, store.sense).values
    slack = 1e-12 * (1.0 + float(np.abs(best).max())) / (1.0 - discount)
    errors = sign * (best - solution.values)
    assert c.error_lower - slack <= errors.min()
    assert errors.max() <= c.error_upper + slack
    assert np.abs(errors).max() <= c.error_bound + slack
    residual = np.abs(backup(rows, solution.values, discount, store.sense).values - solution.values).max()
    assert residual <= c.residual_bound + slack
    counts = np.diff(rows.action_ptr)
    assert np.where(counts > 0, (solution.policy >= 0) & (solution.policy < counts), solution.policy == -1).all()
    loss = sign * (best - value_of(rows, solution.policy, discount))
    assert loss.max() <= c.policy_loss_bound + slack
    s = solution.statistics
    assert s.cache_peak_bytes <= s.cache_bytes
    assert s.hits + s.misses == s.accesses
    assert s.loads >= s.misses


@pytest.mark.parametrize("seed", range(4))
def test_claims_hold_where_rewards_are_denormal_float32s(
    seed: int, tmp_path: Path, solve: Callable[..., Solution], device: MakeDevice
) -> None:
    """Their products underflow where weights are read as 2^-896 of themselves, and lose more than float64 does."""
    rng = np.random.default_rng(seed)

    def action() -> Action:
        p = float(rng.random())
        to = rng.permutation(9)[:2].tolist()
        return Action(float(rng.integers(0, 1 << 10)) * 2.0**-149, {to[0]: p, to[1]: 1.0 - p})

    model = Model(tuple(State((action(), action())) for _ in range(9)))
    store = make_store(Case(model, dtype="float32", partitions=1), tmp_path / "s")
    rows = rows_of(store)
    solution = solve(store, device, discount=0.5, method="vi", epsilon=1e-55)
    assert_that_all_claims_hold(solution, store, rows, optimum(rows, 0.5), 0.5)
    assert verify(store, unsaved_result(solution, store)).holds


def value_of(rows: Rows, policy: np.ndarray, discount: float) -> np.ndarray:
    """The value of a policy, by the reference on the rows that the policy leaves."""
    kept = [rows.action_ptr[s] + a for s, a in enumerate(policy) if a >= 0]
    spans = [slice(rows.successor_ptr[j], rows.successor_ptr[j + 1]) for j in kept]
    only = Rows(
        action_ptr=np.concatenate([[0], np.cumsum(policy >= 0)]),
        successor_ptr=np.concatenate([[0], np.cumsum([s.stop - s.start for s in spans])]).astype(np.int64),
        successors=np.concatenate([rows.successors[s] for s in spans]),
        probabilities=np.concatenate([rows.probabilities[s] for s in spans]),
        rewards=rows.rewards[kept],
        terminal_rewards=rows.terminal_rewards,
        durations=None if rows.durations is None else rows.durations[kept],
    )
    return policy_iteration(only, discount).values


def each_solve() -> Iterator[Any]:
    """Every store by every method, for one target or both; every method for both. All but a few are slow.

    A target only says when to stop, so a slow solve is made for one of them: turn by turn over stores and methods.
    """
    numbered = itertools.product(enumerate(STORES), enumerate(METHODS), ["epsilon", "residual"])
    for (number, name), (i, method), target in numbered:
        if name == "a state a partition" and method.get("priority", "").startswith("exact-"):
            continue  # strongly coupled: one partition converges at a time, thousands of times over
        if (i, target) == (1, "residual"):
            continue  # policy iteration goes the same way to either target
        small = name in ("gridworld", "ragged") and i in (3, 4)
        quick = small or i == 1 or (i, target) in ((0, "epsilon"), (2, "residual"))
        if not quick and (number + i + (target == "epsilon")) % 2:
            continue
        words = " ".join(map(str, method.values()))
        yield pytest.param(name, method, target, marks=() if quick else pytest.mark.slow, id=f"{name}-{words}-{target}")


@pytest.mark.parametrize(("name", "method", "target"), list(each_solve()))
def test_what_a_solve_claims_holds_of_the_reference(
    name: str,
    method: dict[str, Any],
    target: str,
    stores: Callable[[str], Store],
    solve: Callable[..., Solution],
    device: MakeDevice,
) -> None:
    store, discount = stores(name), DISCOUNTS.get(name, 0.8)
    slots = max(2, store.n_partitions // 2)
    solution = solve(store, device, slots=slots, discount=discount, **{target: 1e-3}, **method)
    assert solution.outcome.proved
    assert_claims_hold_of_the_reference(solution, store, discount)
    bound = solution.error_bound if target == "epsilon" else solution.certificate.residual_bound
    assert bound <= 1e-3


@pytest.mark.parametrize("name", ["gridworld", "random"])
@pytest.mark.parametrize("seed", [1, 2])
def test_claims_hold_in_whatever_order_blocks_and_threads_run(
    name: str, seed: int, stores: Callable[[str], Store], solve: Callable[..., Solution]
) -> None:
    solution = solve(stores(name), lambda: ShuffledDevice(seed), slots=3, discount=0.5, epsilon=1e-3)
    assert solution.outcome.proved
    assert_claims_hold_of_the_reference(solution, stores(name), 0.5)


def test_a_solve_without_discounting_ahead_takes_the_best_reward(
    stores: Callable[[str], Store], solve: Callable[..., Solution], device: MakeDevice
) -> None:
    for name in ("gridworld", "ragged"):
        solution = solve(stores(name), device, slots=2, discount=0.0, epsilon=1e-9)
        assert solution.outcome.proved
        assert_claims_hold_of_the_reference(solution, stores(name), 0.0)


def test_recomputed_tables_need_no_frames(solve: Callable[..., Solution], device: MakeDevice) -> None:
    table = ooc_mdp.open_problem("mountain-car", {"grid": "12"}, partition_grid=[2, 2])
    solution = solve(table, device, slots=2, discount=0.1, epsilon=1e-3)
    stored = solver.solve(table, SolveOptions(0.1, epsilon=1e-3, device="cuda:0"))
    assert solution.outcome.proved
    assert np.abs(solution.values - stored.values).max() <= solution.error_bound + stored.error_bound


@st.composite
def ragged_cases(draw: st.DrawFn) -> Case:
    """Rows differ in size, so that four kernels do for all: with and without durations, float32 and float64."""
    model = draw(models(max_states=7, shortest=0.3))
    n = len(model.states) + 2
    last = tuple(
        State(tuple(draw(actions(n, None)) for _ in range(count)), 0.0, draw(st.sampled_from([0.0, 7.0])))
        for count in (1, 2)
    )
    first = State((Action(1.0, {n - 1: 1.0}), Action(0.5, {n - 1: 0.5, n - 2: 0.5}), Action(0.0, {0: 1.0})))
    return Case(
        replace(model, states=(first, *model.states[1:], *last)),
        draw(st.sampled_from(["max", "min"])),
        draw(st.sampled_from(["float64", "float32"])),
        draw(st.integers(1, n)),
    )


@settings(max_examples=6, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(
    case=ragged_cases(),
    discount=st.sampled_from([0.0, 0.5, 0.8]),
    method=st.sampled_from(METHODS),
    target=st.sampled_from(["epsilon", "residual"]),
    data=st.data(),
)
def test_every_claim_holds_of_the_exact_optimum(
    case: Case,
    discount: float,
    method: dict[str, Any],
    target: str,
    data: st.DataObject,
    solve: Callable[..., Solution],
) -> None:
    with stored(case) as store:
        rows = rows_of(store)
        best = optimum(rows, discount, case.sense)
        wanted = data.draw(st.sampled_from([1e-5, 1e-2])) * scale_of(rows, best)
        slots = data.draw(st.integers(1, store.n_partitions), label="slots")
        asked = {target: wanted, "time_limit": 2.0, **method}
        solution = solve(store, emulated, slots=slots, discount=discount, **asked)
        assert solution.outcome.proved or solution.outcome is Outcome.TIME_LIMIT
        assert_that_all_claims_hold(solution, store, rows, best, discount)


@pytest.mark.parametrize("share", [1e-11, 1e-13, 1e-15])
def test_a_target_near_rounding_is_reached_or_given_up(
    share: float,
    stores: Callable[[str], Store],
    solve: Callable[..., Solution],
    device: MakeDevice,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is given up sooner than usual: 20,000 backups of each state take an emulated device half a minute."""
    monkeypatch.setattr(driver, "_IDLE_BACKUPS", 1000)
    store = stores("gridworld")
    solution = solve(store, device, discount=0.8, epsilon=share * 5, time_limit=600.0)
    assert_claims_hold_of_the_reference(solution, store, 0.8)
    assert solution.outcome in (Outcome.PROVED, Outcome.PRECISION_LIMIT)


def test_a_target_that_turns_out_smaller_than_it_seemed_is_reached(
    tmp_path: Path, solve: Callable[..., Solution], device: MakeDevice
) -> None:
    """Nobody takes the action of the largest loss, beside whose size the range of the values is nothing."""
    loss = Action(-1e5, {0: 1.0})
    states = (State((Action(1 + i / 64, {i: 1.0}), *([loss] if i % 3 else []))) for i in range(64))
    store = make_store(Case(Model(tuple(states)), partitions=4), tmp_path / "s")
    solution = solve(store, device, discount=0.9, method="p-eva", time_limit=600.0)
    assert solution.outcome is Outcome.PROVED
    assert_claims_hold_of_the_reference(solution, store, 0.9)


# ---------------------------------------------------------------------------------------- memory, and where it ends


def far_reading(n: int, shape: tuple[int, ...] | None, path: Path) -> Store:
    """A uniform model whose states read any others: tiles of 16 states read more of them than slots have room for."""
    options = ConvertOptions(shape=shape, partitions=4 if shape else 1, threads=1)
    return convert(ModelSource(random_model(7, n, max_successors=16, uniform=True)), path, options)


@pytest.mark.parametrize("shape", [(24, 30), None])
@pytest.mark.parametrize("method", [{"method": "p-eva"}, {"method": "vi", "sweeps_per_visit": 4}], ids=["p-eva", "vi"])
def test_slots_that_are_too_small_are_made_larger_and_nothing_is_lost(
    tmp_path: Path,
    shape: tuple[int, ...] | None,
    method: dict[str, Any],
    solve: Callable[..., Solution],
    device: MakeDevice,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    enlarged = []
    usual = TiledBackend.enlarged
    monkeypatch.setattr(TiledBackend, "enlarged", lambda self, old: (enlarged.append(old), usual(self, old))[1])
    store = far_reading(720, shape, tmp_path / "s")
    solution = solve(store, device, discount=0.5, epsilon=1e-3, **method)
    assert enlarged
    assert solution.outcome.proved
    assert_claims_hold_of_the_reference(solution, store, 0.5)


def test_a_partition_that_does_not_fit_leaves_its_slot_free(tmp_path: Path, device: MakeDevice) -> None:
    engine = Engine(far_reading(720, None, tmp_path / "s"), 0.5, device(), slots=1)
    for _ in range(3):
        with pytest.raises(SlotsTooSmall, match=r"a tile of partition 0 reads more than \d+ states outside"):
            engine.load(0)
    larger, loader = engine.backend.enlarged(engine.layout), engine.store.loader("cuda:0")
    engine.backend.start(engine.model, larger, None, None, loader)
    engine.load(0)
    engine.sweep(0, SweepLimits(0.0, 3, 1e-3))
    engine.assert_that_the_bounds_are_true()


def test_larger_slots_leave_states_without_a_policy_without_one(tmp_path: Path, device: MakeDevice) -> None:
    """As a resumed solve begins; no action must not become one that a residual is measured of."""
    engine = Engine(far_reading(720, None, tmp_path / "s"), 0.5, device(), slots=1)
    larger, loader = engine.backend.enlarged(engine.layout), engine.store.loader("cuda:0")
    engine.backend.start(engine.model, larger, np.full(720, 100.0), np.full(720, -1, np.int32), loader)
    engine.load(0)
    measured, _ = engine.measure(0, 0.0)
    assert engine.backend.policy().max() < 3  # actions
    assert measured == pytest.approx(engine.true(0)[0], rel=1e-6)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_budget_of_one_slot_is_enough_and_a_byte_less_is_refused_with_its_size(
    name: str, stores: Callable[[str], Store], solve: Callable[..., Solution], device: MakeDevice
) -> None:
    store, discount = stores(name), DISCOUNTS.get(name, 0.5)
    with pytest.raises(MemoryBudgetError, match=r"a slot .* takes .*--device-memory to at least") as no:
        solve(store, device, discount=discount, epsilon=1e-1, device_memory=1)
    least = int(re.findall(r"to at least (\d+)", str(no.value))[0])
    with pytest.raises(MemoryBudgetError, match=f"to at least {least}"):
        solve(store, device, discount=discount, epsilon=1e-1, device_memory=least - 1)
    solution = solve(store, device, discount=discount, epsilon=1e-1, device_memory=least)
    assert solution.outcome.proved
    model = ModelFacts.of(store.facts, discount)
    slot = TiledBackend(device(), TILE_STATES).layout(model, Needs()).largest_entry
    assert solution.statistics.cache_peak_bytes == solution.statistics.cache_bytes == slot
    assert sum((solution.memory_plan or {})["device"].values()) == least
    backend = TiledBackend(device(), TILE_STATES)
    with pytest.raises(MemoryBudgetError, match=rf"partition \d+ needs .* raise --cache to at least {slot},"):
        backend.layout(model, Needs(CacheSize(size=slot - 1)))
    layout = backend.layout(model, Needs(CacheSize(size=2 * slot - 1)))
    assert (layout.largest_entry, layout.batch_size) == (slot, 1)


@pytest.mark.parametrize("method", ["auto", "policy-iteration"])
def test_within_a_budget_a_policys_rows_have_the_room_that_was_planned_for_them(
    method: str, stores: Callable[[str], Store], solve: Callable[..., Solution], device: MakeDevice
) -> None:
    solution = solve(stores("random"), device, discount=0.8, epsilon=1e-3, device_memory=1 << 21, method=method)
    assert solution.outcome is Outcome.PROVED
    assert "policy-iteration" in solution.method
    assert (solution.memory_plan or {})["device"]["rows of the policy"] > 0


def test_what_is_allocated_is_what_was_planned(stores: Callable[[str], Store]) -> None:
    for name in STORES:
        device = emulated()
        engine = Engine(stores(name), 0.9, device, slots=2)
        free = EmulatedDevice.memory_free(device)
        engine.load(0)
        engine.sweep(0, SweepLimits(0.0, 2))
        assert device.memory_free() == free, "a solve allocates while it runs"
        assert engine.layout.device["cache"] == 2 * engine.layout.largest_entry
        assert (1 << 26) - free <= sum(engine.layout.device.values())
        engine.backend.close()
        assert device.memory_free() == 1 << 26


def test_what_is_page_locked_beside_tables_on_their_way_is_what_was_planned(stores: Callable[[str], Store]) -> None:
    class Counting(EmulatedDevice):
        locked = 0

        def pinned(self, nbytes: int) -> npt.NDArray[np.uint8]:
            self.locked += nbytes
            return EmulatedDevice.pinned(self, nbytes)

    device, store = Counting(1 << 26), stores("random")
    engine = Engine(store, 0.9, device, slots=2)
    engine.load(0)
    engine.sweep(0, SweepLimits(0.0, 2))
    engine.backend.values()
    engine.backend.policy()
    planned = engine.layout.host["page-locked"]
    assert planned - (1 << 16) <= device.locked <= planned
    plan = plan_solve(store, SolveOptions(0.9), engine.backend, engine.model, writes=False).memory
    assert plan.host["page-locked"] == planned
    engine.backend.close()


def test_a_device_without_memory_is_refused_by_name(stores: Callable[[str], Store]) -> None:
    store = stores("gridworld")
    model = ModelFacts.of(store.facts, 0.9)
    backend = TiledBackend(EmulatedDevice(1 << 10), TILE_STATES)
    with pytest.raises(MemoryBudgetError, match=r"values, policy and tiles of 99 states need .* on emulated:0"):
        backend.start(model, layout_of(backend, model, 4), None, None)
    device, layout = emulated(), layout_of(backend, model, 1)
    slot = layout.device["cache"]
    TiledBackend(device, TILE_STATES).start(model, layout, None, None)
    taken = (1 << 26) - device.memory_free() - slot
    with pytest.raises(MemoryBudgetError, match=r"loads of partitions need .* on emulated:0, .*smaller partitions"):
        TiledBackend(EmulatedDevice(taken - 1), TILE_STATES).start(model, layout, None, None)
    backend = TiledBackend(EmulatedDevice(taken + slot), TILE_STATES)
    with pytest.raises(MemoryBudgetError, match=r"has .* free, the cache's 4 slots take .*; lower --cache"):
        backend.start(model, layout_of(backend, model, 4), None, None)


# ------------------------------------------------------------------------------------------------- and going on


def each_resume() -> Iterator[Any]:
    """Two backends by four methods on one store, and turn by turn on two others: these are slow."""
    methods = {"p-eva": METHODS[0], "policy": METHODS[1], "vi": METHODS[2], "exact": METHODS[4]}
    for (i, (words, method)), (j, first_on) in itertools.product(
        enumerate(methods.items()), enumerate(["cpu", "tiles"])
    ):
        yield pytest.param("gridworld", method, first_on, id=f"{first_on}-{words}-gridworld")
        other = ("ragged", "random")[(i + j) % 2]
        yield pytest.param(other, method, first_on, marks=pytest.mark.slow, id=f"{first_on}-{words}-{other}")


@pytest.mark.parametrize(("name", "method", "first_on"), list(each_resume()))
def test_a_solve_goes_on_from_a_checkpoint_of_either_backend(
    name: str,
    method: dict[str, Any],
    first_on: str,
    tmp_path: Path,
    stores: Callable[[str], Store],
    solve: Callable[..., Solution],
    device: MakeDevice,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first run stops after its first partition, so that most states have no policy in the checkpoint."""
    store, options = stores(name), {"discount": 0.8, "epsilon": 1e-3}
    ticks = iter([False, False, True])
    with monkeypatch.context() as patch:
        patch.setattr(life_cycle, "signals", lambda: nullcontext(lambda: next(ticks, True)))
        if first_on == "cpu":
            on_cpu = SolveOptions(0.8, epsilon=1e-3, device="cpu", **method)
            begun = solver.solve(store, on_cpu, RunOptions(tmp_path / "r"))
        else:
            begun = solve(store, device, slots=1, output=tmp_path / "r", **options, **method)
    assert begun.outcome is Outcome.INTERRUPTED
    for exact in ({}, {"priority": "exact-h1", "method": "p-eva", "sweeps_per_visit": 1}):
        output = tmp_path / f"resumed {len(exact)}"
        shutil.copy(checkpoint_path(tmp_path / "r"), checkpoint_path(output))
        solution = solve(store, device, slots=2, output=output, resume=True, **options, **(method | exact))
        assert solution.outcome.proved
        assert solution.statistics.solve_seconds >= begun.statistics.solve_seconds
        assert_claims_hold_of_the_reference(solution, store, 0.8)
        shutil.copy(checkpoint_path(tmp_path / "r"), checkpoint_path(tmp_path / "cpu"))
        on_cpu = SolveOptions(0.8, epsilon=1e-3, device="cpu", **(method | exact))
        monkeypatch.undo()
        solution = solver.solve(store, on_cpu, RunOptions(tmp_path / "cpu", resume=True, overwrite=True))
        assert_claims_hold_of_the_reference(solution, store, 0.8)


@pytest.mark.parametrize("later", ["cpu", "tiles"])
def test_no_policy_is_made_up_for_what_no_run_has_visited(
    later: str, tmp_path: Path, solve: Callable[..., Solution], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint holds some action for every state; the later run measures the terminal one and never sweeps it."""
    model = Model((State((Action(-2.0, {0: 1.0}), Action(-1.0, {1: 0.5, 0: 0.5}))), State(())))
    store, output = make_store(Case(model, partitions=2), tmp_path / "s"), tmp_path / "r"
    options: dict[str, Any] = {"discount": 0.8, "epsilon": 1e-6}
    with monkeypatch.context() as patch:
        patch.setattr(life_cycle, "signals", lambda: nullcontext(lambda: True))
        solve(store, emulated, slots=1, output=output, **options)
    exact = options | {"priority": "exact-h1"}
    if later == "tiles":
        solution = solve(store, emulated, output=output, resume=True, **exact)
    else:
        monkeypatch.undo()
        on_cpu = SolveOptions(0.8, epsilon=1e-6, priority="exact-h1", device="cpu")
        solution = solver.solve(store, on_cpu, RunOptions(output, resume=True))
    assert solution.policy.tolist() == [1, -1]
    assert_claims_hold_of_the_reference(solution, store, 0.8)
