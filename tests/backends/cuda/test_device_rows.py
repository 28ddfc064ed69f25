"""A policy's rows on a device: what an improvement keeps, and what an evaluation makes of it, against plain NumPy.

Without a GPU it runs on the emulator of CUDA; the same checks run on a device where there is one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from claims import residuals
from emulated_device import EmulatedDevice
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plain_rows import Plain, evaluated
from small_mdps import Case, make_store
from store_models import Action, Model, State, random_model
from tiled_engine import LAYOUTS, STORES, TILE_STATES, Engine, MakeDevice, ShuffledDevice, emulated

from ooc_mdp.backends.base import Evaluation, Improvement, Resident, SweepLimits
from ooc_mdp.backends.cuda.device import Device
from ooc_mdp.backends.cuda.policy.evaluation import DeviceEvaluation, EvaluationOptions
from ooc_mdp.backends.cuda.policy.layout import RowSizes, reward_dtype, varies
from ooc_mdp.backends.cuda.policy.rows import DeviceRows
from ooc_mdp.backends.cuda.tiles.backend import TiledBackend
from ooc_mdp.backends.layout import Needs
from ooc_mdp.errors import MemoryBudgetError, OptionsError
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.store import Store

DISCOUNT = 0.95
SWEEPING = EvaluationOptions(worth_solving=math.inf)
SOLVING = EvaluationOptions(worth_solving=0)
WAYS = pytest.mark.parametrize("options", [SWEEPING, SOLVING], ids=["sweeps", "solver"])


class Kept:
    """A backend at random values, with all partitions resident."""

    def __init__(
        self,
        store: Store,
        device: Device,
        *,
        seed: int = 0,
        discount: float = DISCOUNT,
        policy: Sequence[int] | None = None,
        options: EvaluationOptions = SWEEPING,
    ) -> None:
        self.store, self.discount = store, discount
        self.model: ModelFacts = ModelFacts.of(store, discount)
        self.plain = Plain.of(store, discount)
        self.values = 10 * np.random.default_rng(seed).normal(size=store.n_states)
        self.backend = TiledBackend(device, TILE_STATES)
        chosen = None if policy is None else np.array(policy, np.int32)
        self.layout = self.backend.layout(self.model, Needs())
        self.backend.start(self.model, self.layout, self.values, chosen)
        read = self.backend.reader(store) or store.read
        self.residents: list[Resident] = [
            self.backend.admit(self.backend.prepare(read(p)[0])) for p in range(store.n_partitions)
        ]
        self.backend.open_rows(store.coupling)
        assert self.backend._rows is not None
        self.backend._rows.options = options

    def improve(self, partitions: Sequence[int], margin: float = 0.0) -> Improvement:
        return self.backend.improve([self.residents[p] for p in partitions], margin)

    def states(self, p: int) -> slice:
        return slice(int(self.store.partition_ptr[p]), int(self.store.partition_ptr[p + 1]))

    def of_states(self, name: str, dtype: npt.DTypeLike) -> FloatArray:
        """What rows have once a state."""
        return np.array(self._array(name, self.store.n_states, dtype), np.float64)

    def _array(self, name: str, size: int, dtype: npt.DTypeLike, start: int = 0) -> npt.NDArray[Any]:
        rows = self.backend._rows
        assert rows is not None
        host = np.empty(size, dtype)
        at = rows._at[name] + start * host.itemsize
        if rows.on_device:
            self.backend._stream.download(host, at)
            self.backend._stream.wait()
            return host
        for pinned in rows._pinned:
            begin = at - pinned.ctypes.data
            if 0 <= begin < pinned.size:
                return pinned[begin : begin + host.nbytes].view(dtype).copy()
        raise AssertionError(f"{name} is not in the host's memory")

    def backup(self, values: FloatArray) -> FloatArray:
        """float64 [n]: r + g P V by the rows that are kept."""
        rows = self.backend._rows
        assert rows is not None
        reward = self.of_states("rewards", reward_dtype(self.model))
        own = varies(self.model)
        g = self.of_states("discounts", "f8") if own else np.full(values.size, self.discount)
        expected = np.zeros(values.size)
        for p, place in enumerate(rows._descriptors):
            own, size = self.states(p), int(place["width"]) * int(place["pitch"])
            n = own.stop - own.start
            planes = [
                self._array(name, size, dtype, int(place["entries"])).reshape(-1, int(place["pitch"]))[:, :n]
                for name, dtype in (("successors", "u4"), ("probabilities", self.model.probability_dtype))
            ]
            expected[own] = (planes[1].astype(float) * values[planes[0]]).sum(axis=0)
        return reward + g * expected


def solved(work: DeviceEvaluation) -> bool:
    """Whether its solver, let run, made values any better."""
    steps = work._solve()
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return bool(end.value)


def assert_that_rows_are_the_policy_s(kept: Kept, scale: float = 1.0) -> None:
    """At the values where it was improved, and at others."""
    values, policy = kept.backend.values(), kept.backend.policy()
    assert kept.of_states("second_best", "f8") == pytest.approx(
        kept.plain.best_other(values, policy), rel=1e-12, abs=1e-12 * scale
    )
    for at in (values, np.random.default_rng(1).normal(size=values.size)):
        assert kept.backup(at) == pytest.approx(kept.plain.backup(at, policy), rel=1e-12, abs=1e-12 * scale)


def assert_that_an_evaluation_is_true(
    kept: Kept, found: Evaluation, before: FloatArray, others: FloatArray, partitions: Sequence[int]
) -> None:
    """All fields, at the values that resulted."""
    values, policy = kept.backend.values(), kept.backend.policy()
    residual = kept.plain.backup(values, policy) - values
    g = np.zeros(values.size)
    rows = kept.plain.chosen(policy)
    g[kept.plain.state[rows]] = kept.plain.discount[rows]
    close = {"rel": 1e-6, "abs": 1e-12 * np.abs(values).max()}
    for p in partitions:
        own = kept.states(p)
        assert found.rise[p] == (values - before)[own].max()
        assert found.fall[p] == -(values - before)[own].min()
        normalised = residual[own] / (1 - g[own] * kept.model.row_sums[p])
        expected = (normalised.max(), -normalised.min(), residual[own].max(), -residual[own].min())
        assert found.measured[:, p] == pytest.approx(expected, **close)
        assert found.second_best[p] == (others - values)[own].max()
        assert (found.largest_value[p], found.smallest_value[p]) == (values[own].max(), values[own].min())


# --------------------------------------------------------------------------------------------------- improvements


@pytest.mark.parametrize("name", STORES)
def test_an_improvement_makes_the_policy_greedy_and_keeps_its_rows(
    name: str, stores: Callable[[str], Store], device: MakeDevice
) -> None:
    store = stores(name)
    kept = Kept(store, device(), seed=len(name))
    order = np.random.default_rng(3).permutation(store.n_partitions)
    parts = [order[: store.n_partitions // 2].tolist(), order[store.n_partitions // 2 :].tolist()]
    found = {p: (f, i) for part in parts for f in [kept.improve(part)] for i, p in enumerate(part)}
    values, policy = kept.backend.values(), kept.backend.policy()
    assert (values == kept.values).all()
    worth = kept.plain.worth(values)
    for s in range(store.n_states):
        own = worth[kept.plain.state == s]
        assert policy[s] in (np.flatnonzero(own >= own.max() - 1e-12) if own.size else [-1])
    assert_that_rows_are_the_policy_s(kept)
    for p, (improvement, i) in found.items():
        table = store.read(p)[0]
        sign = 1.0 if store.sense == "max" else -1.0
        measured = residuals(table, values, policy, sign, kept.discount, float(kept.model.row_sums[p]))
        assert improvement.measured[:, i] == pytest.approx(measured, rel=1e-9, abs=1e-9)
        assert improvement.changed[i] == (policy[kept.states(p)] >= 0).sum()
    again = kept.improve(order.tolist())
    assert not again.changed.any()
    assert (kept.backend.policy() == policy).all()
    assert_that_rows_are_the_policy_s(kept)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_state_keeps_its_action_unless_another_is_better_by_more_than_the_margin(
    name: str, stores: Callable[[str], Store]
) -> None:
    """Whatever values, policy and margin; kernels are those of one store, so examples cost no compilation."""
    store = stores(name)
    first = Kept(store, emulated())

    @settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
    @given(seed=st.integers(0, 2**16), margin=st.sampled_from([0.0, 1e-9, 0.3, 3.0, 1e6]), known=st.booleans())
    def check(seed: int, margin: float, known: bool) -> None:
        counts = np.bincount(first.plain.state, minlength=store.n_states)
        some = np.random.default_rng(seed).integers(0, np.maximum(counts, 1))
        before = np.where(counts > 0, some, -1) if known else np.full(store.n_states, -1)
        kept = Kept(store, emulated(), seed=seed, policy=before.tolist())
        found = kept.improve(range(store.n_partitions), margin)
        policy, worth = kept.backend.policy(), kept.plain.worth(kept.values)
        for s in range(store.n_states):
            own = worth[kept.plain.state == s]
            if not own.size:
                assert policy[s] == -1
            elif known and own.max() - own[before[s]] <= margin:
                assert policy[s] == before[s]
            else:
                assert policy[s] == own.argmax()
        for p in range(store.n_partitions):
            own_states = kept.states(p)
            assert found.changed[p] == (policy != before)[own_states].sum()
        assert_that_rows_are_the_policy_s(kept)

    check()


@pytest.mark.parametrize("name", LAYOUTS)
def test_rows_are_those_of_actions_that_sweeps_have_changed_meanwhile(
    name: str, stores: Callable[[str], Store], device: MakeDevice
) -> None:
    kept = Kept(stores(name), device(), seed=5)
    everything = range(kept.store.n_partitions)
    kept.improve(everything)
    before = kept.backend.policy()
    kept.backend.relax(kept.residents, SweepLimits(0.0, 3)).report()
    assert (kept.backend.policy() != before).any()
    kept.improve(everything, 1e6)
    assert_that_rows_are_the_policy_s(kept)


def test_of_actions_that_tie_the_lowest_is_taken_and_the_other_is_q2(tmp_path: Path, device: MakeDevice) -> None:
    twice = Action(1.0, {1: 1.0})
    model = Model((State((Action(0.5, {1: 1.0}), twice, twice)), State(()), State((twice,))))
    store = make_store(Case(model, partitions=2), tmp_path / "s")
    order = np.concatenate([store.original_states(p) for p in range(2)])
    for given_policy, expected in ((None, 1), (2, 2), (0, 1)):
        policy = None
        if given_policy is not None:
            policy = np.array([given_policy, -1, 0])[order].tolist()
        kept = Kept(store, device(), policy=policy)
        kept.improve([0, 1])
        assert kept.backend.policy()[order.tolist().index(0)] == expected
        others = kept.of_states("second_best", "f8")
        backup = kept.plain.backup(kept.values, kept.backend.policy())
        assert others[order.tolist().index(0)] == backup[order.tolist().index(0)]
        assert others[order.tolist().index(1)] == others[order.tolist().index(2)] == -np.inf


# ---------------------------------------------------------------------------------------------------- evaluations


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
    before = kept.values
    swept = np.zeros(store.n_states, np.bool_)
    for some in ([1, 3], [0]):  # the second time there is a partition more
        kept.improve(some)
        for p in some:
            swept[kept.states(p)] = True
        if options is SOLVING:
            evaluated(kept.backend, math.inf, 1)
            rows = kept.backend._rows
            assert rows is not None
            work = DeviceEvaluation(rows, kept.backend._stream, 1e-6, 10_000, lambda: None)
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
        before = values


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", ["car", "ragged"])
def test_an_evaluation_is_true_in_whatever_order_blocks_and_threads_run(
    name: str, seed: int, stores: Callable[[str], Store]
) -> None:
    store = stores(name)
    kept = Kept(store, ShuffledDevice(seed), seed=seed, options=SOLVING)
    everything = list(range(store.n_partitions))
    kept.improve(everything)
    assert_that_rows_are_the_policy_s(kept)
    others = kept.of_states("second_best", "f8")
    found = evaluated(kept.backend, 1e-8, 10_000)
    assert_that_an_evaluation_is_true(kept, found, kept.values, others, everything)
    assert np.maximum(found.measured[2], found.measured[3]).max() <= 1e-8


@pytest.mark.parametrize(("on_device", "solves"), [(True, False), (False, True), (False, False)])
def test_rows_may_lie_in_the_host_s_memory_and_the_solver_may_find_no_room(
    on_device: bool, solves: bool, stores: Callable[[str], Store], device: MakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RowSizes, "placed", lambda self, room: (on_device, solves))
    store = stores("car")
    kept = Kept(store, device(), seed=1, options=SOLVING)
    everything = list(range(store.n_partitions))
    kept.improve(everything)
    assert_that_rows_are_the_policy_s(kept)
    others = kept.of_states("second_best", "f8")
    found = evaluated(kept.backend, 1e-8, 10_000)
    assert_that_an_evaluation_is_true(kept, found, kept.values, others, everything)
    assert np.maximum(found.measured[2], found.measured[3]).max() <= 1e-8


def test_rows_go_to_the_host_and_the_solver_goes_without_as_room_shrinks(tmp_path: Path) -> None:
    """Long rows take more than the solver's vectors, short ones less."""
    wide, narrow = (
        make_store(Case(random_model(6, 96, max_successors=k, uniform=True), partitions=3), tmp_path / str(k))
        for k in (25, 1)
    )
    solving, sweeping, far, farther = (True, True), (True, False), (False, True), (False, False)
    for store, ways in ((wide, [solving, sweeping, far, farther]), (narrow, [solving, sweeping, farther])):
        model, device = ModelFacts.of(store, DISCOUNT), emulated()
        free, chosen = device.memory_free(), []
        whole = DeviceRows(device, device.stream(), model)
        room = whole_bytes = free - device.memory_free()
        assert room <= DeviceRows.nbytes(model)
        whole.close()
        assert device.memory_free() == free
        while room > 0:
            try:
                rows = DeviceRows(device, device.stream(), model, room)
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
            DeviceRows(device, device.stream(), model, room)


def test_the_solver_takes_fewer_products_than_sweeps_where_chains_mix_slowly(
    stores: Callable[[str], Store], device: MakeDevice
) -> None:
    """By itself, as the pace of the first sweeps tells."""
    backups = []
    for options in (EvaluationOptions(), SWEEPING):
        kept = Kept(stores("random"), device(), discount=0.999, options=options)
        kept.improve(range(5))
        found = evaluated(kept.backend, 1e-6, 100_000)
        assert np.maximum(found.measured[2], found.measured[3]).max() <= 1e-6
        backups.append(found.backups)
    solved, swept = backups
    assert solved < swept / 10


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
    work = DeviceEvaluation(rows, kept.backend._stream, 0.0, 10**9, lambda: None)
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
    work = DeviceEvaluation(rows, kept.backend._stream, 1e190, 1000, lambda: None)
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
    options = EvaluationOptions(worth_solving=0, iterations=1, max_stalled=1)
    kept = Kept(store, emulated(), discount=0.98, options=options)
    kept.improve(range(4))
    rows = kept.backend._rows
    assert rows is not None
    evaluated(kept.backend, math.inf, 1)  # what is resident is known to the device
    work = DeviceEvaluation(rows, kept.backend._stream, 1e-7, 100_000, lambda: None)
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
        kept = Kept(store, device(), discount=discount, options=EvaluationOptions(worth_solving=10))
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


# ------------------------------------------------------------------------------------------------- beside the tiles


@pytest.mark.parametrize("name", ["car", "random", "ragged"])
def test_bounds_of_tiles_hold_after_an_evaluation(
    name: str, stores: Callable[[str], Store], device: MakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ooc_mdp.backends.cuda.tiles.launches._ROUNDS", 2)
    engine = Engine(stores(name), 0.9, device())
    count = engine.store.n_partitions
    everything = list(range(count))
    rng = np.random.default_rng(4)
    engine.load(*everything)
    engine.sweep_together(everything, SweepLimits(0.0, 2, 1e-2))
    engine.backend.open_rows(engine.store.coupling)
    for _ in range(4):
        some = rng.choice(count, 2, replace=False).tolist()
        engine.backend.improve([engine.residents[p] for p in some], 1e-12)
        engine.visited |= set(some)
        engine.assert_that_the_bounds_are_true()
        found = evaluated(engine.backend, float(rng.choice([1e-6, 1e-2])), 100)
        rows = engine.backend._rows
        assert rows is not None
        kept = np.flatnonzero(rows.valid)
        engine.bounds.propagate(kept, np.maximum(found.rise[kept], 0.0), np.maximum(found.fall[kept], 0.0))
        engine.size = max(engine.size, float(np.abs(engine.backend.values()).max()))
        for p in kept.tolist():
            engine.measure(p, 0.0)
        engine.assert_that_the_bounds_are_true()
        for _ in range(2):
            swept = rng.choice(count, 3, replace=False).tolist()
            engine.sweep_together(swept, SweepLimits(0.0, 2, float(rng.choice([0.0, 1e-2]))))
            engine.assert_that_the_bounds_are_true()


@pytest.mark.parametrize("name", ["car", "random", "ragged"])
def test_tiles_that_were_quiet_are_visited_after_an_evaluation(
    name: str, stores: Callable[[str], Store], device: MakeDevice
) -> None:
    """Values of the optimal policy become those of one that looks a step ahead, and tiles do not claim the former's."""
    engine = Engine(stores(name), 0.9, device())
    everything = list(range(engine.store.n_partitions))
    engine.load(*everything)
    engine.backend.open_rows(engine.store.coupling)
    engine.backend.improve([engine.residents[p] for p in everything], 0.0)
    for _ in range(20):
        report = engine.sweep_together(everything, SweepLimits(0.0, 8, 1e-4, plain=True))
        assert report.residuals is not None
        if report.residuals[2].max() <= 1e-4:
            break
    quiet = engine.backend.values()
    found = evaluated(engine.backend, 1e-9, 10_000)
    assert np.abs(engine.backend.values() - quiet).max() > 0.1, "the policies differ"
    engine.bounds.propagate(np.array(everything), np.maximum(found.rise, 0.0), np.maximum(found.fall, 0.0))
    for p in everything:
        engine.measure(p, 0.0)
    for some in ([0], [1, 2], everything):
        engine.sweep_together(some, SweepLimits(0.0, 8, 1e-4, plain=True))
        engine.assert_that_the_bounds_are_true()


def test_rows_are_opened_again_after_a_start_with_larger_slots(
    stores: Callable[[str], Store], device: MakeDevice
) -> None:
    store = stores("car")
    kept = Kept(store, device(), seed=2)
    kept.improve([0, 1])
    evaluated(kept.backend, 1e-3, 10)
    before, policy = kept.backend.values(), kept.backend.policy()
    policy[store.partition_ptr[2] :] = -1  # nobody has chosen actions there
    kept.backend.start(kept.model, kept.backend.enlarged(kept.layout), before, policy)
    assert (kept.backend.values() == before).all()
    kept.residents = [kept.backend.admit(kept.backend.prepare(store.read(p)[0])) for p in range(store.n_partitions)]
    kept.backend.open_rows(store.coupling)
    kept.improve(range(6))
    others = kept.of_states("second_best", "f8")
    found = evaluated(kept.backend, 1e-8, 10_000)
    assert_that_an_evaluation_is_true(kept, found, before, others, range(6))
    assert np.maximum(found.measured[2], found.measured[3]).max() <= 1e-8


def test_rows_opened_again_are_none(stores: Callable[[str], Store], device: MakeDevice) -> None:
    at = device()
    kept = Kept(stores("car"), at)
    free = kept.backend.free_bytes()
    kept.improve([0])
    kept.backend.close_rows()
    assert kept.backend.free_bytes() > free or not isinstance(at, EmulatedDevice), "a driver frees larger pieces"
    kept.backend.open_rows(kept.store.coupling)
    found = evaluated(kept.backend, 0.0, 100)
    assert found.backups == 0
    assert (kept.backend.values() == kept.values).all()


def test_more_states_than_a_row_can_name_are_refused(tmp_path: Path) -> None:
    store = make_store(Case(random_model(5, 20), partitions=2), tmp_path / "s")
    model = replace(ModelFacts.of(store, DISCOUNT), n_states=1 << 32)
    device = EmulatedDevice(1 << 20)
    with pytest.raises(OptionsError, match="fewer than 2\\^32 states"):
        DeviceRows(device, device.stream(), model)
