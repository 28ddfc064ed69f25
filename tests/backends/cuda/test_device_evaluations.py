"""Evaluations of a policy on a device's rows, against plain NumPy.

Without a GPU they run on the emulator of CUDA; the same checks run on a device where there is one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from kept_rows import (
    DISCOUNT,
    MIXING,
    SOLVING,
    SWEEPING,
    WAYS,
    Kept,
    assert_that_an_evaluation_is_true,
    assert_that_rows_are_the_policy_s,
    solved,
)
from plain_rows import evaluated
from small_mdps import Case, make_store
from store_models import Action, Model, State, random_model
from tiled_engine import LAYOUTS, STORES, MakeDevice, ShuffledDevice, emulated

from ooc_mdp.backends.cuda.group import DeviceGroup
from ooc_mdp.backends.cuda.policy.evaluation import DeviceEvaluation, EvaluationOptions
from ooc_mdp.backends.cuda.policy.layout import MIXED, RowSizes
from ooc_mdp.backends.cuda.policy.rows import DeviceRows
from ooc_mdp.errors import MemoryBudgetError
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.store import Store


@WAYS
@pytest.mark.parametrize("name", STORES)
def test_an_evaluation_reaches_the_policy_s_values(
    name: str, options: EvaluationOptions, stores: Callable[[str], Store], device: MakeDevice
) -> None:
    store = stores(name)
    kept = Kept(store, device(), seed=len(name), options=options)
    everything = list(range(store.n_partitions))
    kept.improve(everything)
    others = kept.of_states("second_best", "f8")
    policy = kept.backend.policy()
    limit = 1e-8
    found = evaluated(kept.backend, limit, 10_000)
    assert_that_an_evaluation_is_true(kept, found, kept.values, others, everything)
    assert np.maximum(found.measured[2], found.measured[3]).max() <= limit
    assert (kept.backend.policy() == policy).all()
    exact = kept.plain.values_of(policy, kept.values, np.ones(store.n_states, np.bool_))
    largest = float((kept.plain.discount * kept.model.row_sums.max()).max(initial=0.0))
    assert np.abs(kept.backend.values() - exact).max() <= limit / (1 - largest) * (1 + 1e-6)
    assert 0 < found.backups < 10_000 * store.n_states


@WAYS
@pytest.mark.parametrize("name", LAYOUTS)
def test_partitions_without_rows_keep_their_values(
    name: str,
    options: EvaluationOptions,
    stores: Callable[[str], Store],
    device: MakeDevice,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("emulated_device._POISON", 0x7F)  # doubles near the largest
    store = stores(name)
    kept = Kept(store, device(), seed=1, options=options)
    swept = np.zeros(store.n_states, np.bool_)
    for some in ([1, 3], [0]):  # the second time there is a partition more
        kept.improve(some)
        before = kept.values
        for p in some:
            swept[kept.states(p)] = True
        if options is SOLVING:
            evaluated(kept.backend, math.inf, 1)
            rows = kept.backend._rows
            assert rows is not None
            work = DeviceEvaluation(rows, 1e-6, 10_000, lambda: None)
            work._sweep(1)
            assert solved(work), "vectors are 0 where there are no rows"
            kept.backend._memory.upload("values", before)
        found = evaluated(kept.backend, 1e-9, 10_000)
        values, policy = kept.backend.values(), kept.backend.policy()
        assert (values[~swept] == before[~swept]).all()
        exact = kept.plain.values_of(np.where(swept, policy, -1), before, swept)
        assert values == pytest.approx(exact, rel=1e-6, abs=1e-6)
        for p in some:
            assert found.rise[p] == (values - before)[kept.states(p)].max()
        assert np.isfinite(found.measured).all()


def assert_that_all_is_evaluated(kept: Kept) -> None:
    """All partitions are improved, and the policy is evaluated to a small residual."""
    everything = list(range(kept.store.n_partitions))
    kept.improve(everything)
    assert_that_rows_are_the_policy_s(kept)
    others = kept.of_states("second_best", "f8")
    found = evaluated(kept.backend, 1e-8, 10_000)
    assert_that_an_evaluation_is_true(kept, found, kept.values, others, everything)
    assert np.maximum(found.measured[2], found.measured[3]).max() <= 1e-8


@pytest.mark.parametrize(("seed", "many"), [(1, 0), (2, 1 << 30)], ids=["claims", "strides"])
@pytest.mark.parametrize("name", ["car", "ragged"])
def test_an_evaluation_is_true_in_whatever_order_blocks_and_threads_run(
    name: str, seed: int, many: int, stores: Callable[[str], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ooc_mdp.backends.cuda.policy.launches._MANY", many)
    store = stores(name)
    kept = Kept(store, ShuffledDevice(seed), seed=seed, options=SOLVING)
    assert_that_all_is_evaluated(kept)


@pytest.mark.parametrize(("on_device", "solves"), [(True, False), (False, True), (False, False)])
def test_rows_may_lie_in_the_host_s_memory_and_the_solver_may_find_no_room(
    on_device: bool, solves: bool, stores: Callable[[str], Store], device: MakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RowSizes, "placed", lambda self, room: (on_device, solves))
    store = stores("car")
    kept = Kept(store, device(), seed=1, options=SOLVING)
    assert_that_all_is_evaluated(kept)


def test_rows_go_to_the_host_and_the_solver_goes_without_as_room_shrinks(tmp_path: Path) -> None:
    """Long rows take more than the solver's vectors, short ones less."""
    wide, narrow = (
        make_store(Case(random_model(6, 96, max_successors=k, uniform=True), partitions=3), tmp_path / str(k))
        for k in (25, 1)
    )
    solving, sweeping, far, farther = (True, True), (True, False), (False, True), (False, False)
    for store, ways in ((wide, [solving, sweeping, far, farther]), (narrow, [solving, sweeping, farther])):
        model, device = ModelFacts.of(store.facts, DISCOUNT), emulated()
        free, chosen = device.memory_free(), []
        whole = DeviceRows(DeviceGroup([device]), [device.stream()], model)
        room = whole_bytes = free - device.memory_free()
        assert room <= DeviceRows.nbytes(model)
        whole.close()
        assert device.memory_free() == free
        while room > 0:
            try:
                rows = DeviceRows(DeviceGroup([device]), [device.stream()], model, room)
            except MemoryBudgetError:
                break
            taken = free - device.memory_free()
            assert taken <= room
            chosen.append((rows.on_device, rows.solves))
            planned = DeviceRows.placed(model, room + DeviceRows.nbytes(model) - whole_bytes)
            assert planned is not None
            assert taken <= planned[0]
            assert (planned[1] == 0) == rows.on_device
            assert planned[1] == sum(-(-pinned.size // 256) * 256 for pinned in rows._pinned)
            rows.close()
            room -= 256
        assert list(dict.fromkeys(chosen)) == ways
        with pytest.raises(MemoryBudgetError, match=r"lower --cache by \d+ or use --method p-eva"):
            DeviceRows(DeviceGroup([device]), [device.stream()], model, room)


def test_mixing_and_the_solver_take_fewer_backups_than_sweeps_where_chains_mix_well(
    stores: Callable[[str], Store], device: MakeDevice
) -> None:
    backups = []
    for options in (EvaluationOptions(), MIXING, SOLVING, SWEEPING):
        kept = Kept(stores("random"), device(), discount=0.999, options=options)
        kept.improve(range(5))
        found = evaluated(kept.backend, 1e-4, 100_000)
        assert np.maximum(found.measured[2], found.measured[3]).max() <= 1e-4
        backups.append(found.backups)
    chosen, mixed, solved, swept = backups
    assert max(chosen, mixed, solved) < swept / 10


def mixed_values(batches: list[tuple[FloatArray, FloatArray]]) -> FloatArray:
    """Anderson's mixing of batches of sweeps, each values before and after it, as its papers have it."""
    residuals = [after - before for before, after in batches]
    last = batches[-1][1]
    if len(batches) == 1:
        return last
    chosen = range(max(1, len(batches) - MIXED), len(batches))
    of_residuals = np.transpose([residuals[j] - residuals[j - 1] for j in chosen])
    of_values = np.transpose([batches[j][1] - batches[j - 1][1] for j in chosen])
    weights = np.linalg.lstsq(of_residuals, residuals[-1], rcond=None)[0]
    return last - of_values @ weights


@pytest.mark.parametrize("name", ["car", "ragged"])
def test_batches_are_mixed_as_anderson_s_papers_have_it(
    name: str, stores: Callable[[str], Store], device: MakeDevice
) -> None:
    store = stores(name)
    kept = Kept(store, device(), discount=0.999, options=MIXING)
    kept.improve(range(store.n_partitions))
    evaluated(kept.backend, math.inf, 1)
    rows = kept.backend._rows
    assert rows is not None
    work = DeviceEvaluation(rows, 0.0, 10_000, lambda: None)
    batches: list[tuple[FloatArray, FloatArray]] = []
    mixed = 0
    for _ in range(3 + MIXED):
        before = kept.backend.values()
        work._mixing.begin_batch()
        work._sweep(2)
        after = kept.backend.values()
        if batches and np.linalg.norm(after - before) >= np.linalg.norm(batches[-1][1] - batches[-1][0]):
            batches.clear()  # it changed more than the one before
        batches.append((before, after))
        work._mixing.mix()
        size = np.abs(mixed_values(batches) - after).max()
        assert kept.backend.values() == pytest.approx(mixed_values(batches), abs=1e-3 * size + 1e-12)
        mixed += size > 0
    assert mixed >= 3


def test_values_that_have_no_products_are_not_mixed(tmp_path: Path, device: MakeDevice) -> None:
    """Changes that do not come down, and a policy whose values are right from the start."""
    states = (State((Action(0.0, {1: 1.0}),)), State((Action(0.0, {0: 1.0}),)))
    kept = Kept(make_store(Case(Model(states), partitions=2), tmp_path / "s"), device(), options=MIXING)
    kept.backend._memory.upload("values", np.zeros(2))
    kept.improve([0, 1])
    evaluated(kept.backend, math.inf, 1)
    rows = kept.backend._rows
    assert rows is not None
    work = DeviceEvaluation(rows, 0.0, 100, lambda: None)
    for _ in range(4):
        work._mixing.begin_batch()
        work._sweep(1)
        work._mixing.mix()
    assert (kept.backend.values() == 0.0).all()


def test_the_solver_is_tried_when_mixing_has_had_its_time(tmp_path: Path) -> None:
    """On a ring of 600 states with one reward."""
    states = tuple(State((Action(float(s == 0), {(s - 1) % 600: 1.0}),)) for s in range(600))
    store = make_store(Case(Model(states), partitions=4), tmp_path / "s")
    tried = []
    for patience in (math.inf, 16.0):
        options = EvaluationOptions(mix_from=0, patience=patience)
        kept = Kept(store, emulated(), discount=0.9999, options=options)
        kept.improve(range(4))
        evaluated(kept.backend, math.inf, 1)
        rows = kept.backend._rows
        assert rows is not None
        work = DeviceEvaluation(rows, 1e-7, 400, lambda: None)
        work.advance(math.inf)
        tried.append(math.isfinite(work._missing))
        assert work._done > 16
    assert tried == [False, True]


def test_an_evaluation_ends_where_rounding_begins_and_at_the_most_sweeps(
    stores: Callable[[str], Store], device: MakeDevice
) -> None:
    store = stores("ragged")
    kept = Kept(store, device())
    kept.improve(range(store.n_partitions))
    found = evaluated(kept.backend, 1e-9, 3)
    assert found.backups == 3 * store.n_states
    rows = kept.backend._rows
    assert rows is not None
    work = DeviceEvaluation(rows, 0.0, 10**9, lambda: None)
    work._sweep(1)
    assert work._limit == rows.rounding(float(np.abs(kept.backend.values()).max())) > 0
    found = evaluated(kept.backend, 0.0, 10**9)
    assert np.abs(found.measured[2:]).max() <= 1e-12 * np.abs(kept.backend.values()).max()
    assert evaluated(kept.backend, 1e-3, 10**9).backups == store.n_states


def test_values_too_large_for_the_solver_s_sums_are_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: MakeDevice
) -> None:
    monkeypatch.setattr("ooc_mdp.model.facts.MAX_VALUE", math.inf)  # solves refuse such rewards
    rng = np.random.default_rng(0)
    actions = (Action(1e200 * rng.normal(), {int(s): 0.5 for s in rng.choice(40, 2, False)}) for _ in range(40))
    model = Model(tuple(State((action,)) for action in actions))
    kept = Kept(make_store(Case(model, partitions=3), tmp_path / "s"), device(), options=SOLVING)
    kept.improve([0, 1, 2])
    evaluated(kept.backend, math.inf, 1)
    rows = kept.backend._rows
    assert rows is not None
    work = DeviceEvaluation(rows, 1e190, 1000, lambda: None)
    before = kept.backend.values()
    assert not solved(work)
    assert (kept.backend.values() == before).all()
    assert work._done == 1, "it is found out by the first product, and nothing need be judged"
    found = evaluated(kept.backend, 1e190, 10_000)
    assert np.maximum(found.measured[2], found.measured[3]).max() <= 1e190


def test_a_solver_that_is_stopped_too_early_leaves_no_values_that_miss_more(tmp_path: Path) -> None:
    """On a cycle with one reward, where an iteration makes things better or worse."""
    states = tuple(State((Action(float(s == 0), {(s + 1) % 60: 1.0}),)) for s in range(60))
    store = make_store(Case(Model(states), partitions=4), tmp_path / "s")
    options = EvaluationOptions(mix_from=0, patience=0, iterations=1, max_stalled=1)
    kept = Kept(store, emulated(), discount=0.98, options=options)
    kept.improve(range(4))
    rows = kept.backend._rows
    assert rows is not None
    evaluated(kept.backend, math.inf, 1)  # what is resident is known to the device
    work = DeviceEvaluation(rows, 1e-7, 100_000, lambda: None)
    judged = set()
    for _ in range(8):
        work._sweep(8)
        before = kept.backend.values()
        missing = np.abs(kept.backup(before) - before).max()
        better, values = solved(work), kept.backend.values()
        assert better or (values == before).all()
        assert not better or np.abs(kept.backup(values) - values).max() < missing
        judged.add(better)
    assert judged == {True, False}
    found = evaluated(kept.backend, 1e-7, 100_000)
    assert np.maximum(found.measured[2], found.measured[3]).max() <= 1e-7


@pytest.mark.parametrize("discount", [0.95, 0.999])
def test_an_evaluation_that_is_left_after_every_batch_takes_no_more_products(
    discount: float, stores: Callable[[str], Store], device: MakeDevice
) -> None:
    """Nothing that the solver has done is lost, and what is reported in between is true."""
    store = stores("random")
    everything = list(range(store.n_partitions))
    sweeps = []
    for seconds in (math.inf, 0.0):
        kept = Kept(store, device(), discount=discount, options=EvaluationOptions(mix_from=10, patience=0))
        kept.improve(everything)
        others = kept.of_states("second_best", "f8")
        evaluation, before, done = kept.backend.evaluation(1e-8, 10_000), kept.values, False
        backups, left = 0, -1
        while not done:
            done = evaluation.advance(seconds)
            found = evaluation.report()
            assert_that_an_evaluation_is_true(kept, found, before, others, everything)
            before = kept.backend.values()
            backups, left = backups + found.backups, left + 1
        assert np.maximum(found.measured[2], found.measured[3]).max() <= 1e-8
        assert left > 3 if seconds == 0 else left == 0
        sweeps.append(backups // store.n_states)
    whole, pieces = sweeps
    assert pieces <= whole + 8  # a batch of sweeps at the end, where rounding decides


@pytest.mark.parametrize("name", ["car", "random"])
def test_values_that_others_change_under_an_evaluation_are_seen_in_the_end(
    name: str, stores: Callable[[str], Store], device: MakeDevice
) -> None:
    """They are of a partition without rows, which those with rows read."""
    store = stores(name)
    kept = Kept(store, device(), discount=0.99, options=SOLVING)
    last = store.n_partitions - 1
    kept.improve(range(last))
    others = kept.states(last)
    states = np.arange(others.start, others.stop)
    evaluation, changes = kept.backend.evaluation(1e-8, 10_000), 3
    while not evaluation.advance(0.0):
        if changes:
            changes -= 1
            values = np.full(states.size, 10.0 * changes)
            kept.backend.write(states, values, np.array([last]), np.array([0, states.size]))
            evaluation.report()
    assert changes == 0
    found, values = evaluation.report(), kept.backend.values()
    assert (values[others] == 0.0).all()
    assert np.maximum(found.measured[2], found.measured[3])[:last].max() <= 1e-8
    swept = np.ones(store.n_states, np.bool_)
    swept[others] = False
    exact = kept.plain.values_of(np.where(swept, kept.backend.policy(), -1), values, swept)
    assert values == pytest.approx(exact, rel=1e-5, abs=1e-5)
