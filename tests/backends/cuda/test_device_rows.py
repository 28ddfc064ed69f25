"""A policy's rows on a device: what an improvement keeps, and rows beside tiles, against plain NumPy.

Without a GPU it runs on the emulator of CUDA; the same checks run on a device where there is one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from claims import residuals
from emulated_device import EmulatedDevice
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kept_rows import (
    DISCOUNT,
    Kept,
    assert_that_an_evaluation_is_true,
    assert_that_rows_are_the_policy_s,
)
from plain_rows import evaluated
from small_mdps import Case, make_store
from store_models import Action, Model, State, random_model
from tiled_engine import LAYOUTS, STORES, Engine, MakeDevice, emulated

from ooc_mdp.backends.base import SweepLimits
from ooc_mdp.backends.cuda.group import DeviceGroup
from ooc_mdp.backends.cuda.policy.rows import DeviceRows
from ooc_mdp.errors import OptionsError
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.store import Store


@pytest.mark.parametrize("name", STORES)
def test_an_improvement_makes_the_policy_greedy_and_keeps_its_rows(
    name: str, stores: Callable[[str], Store], device: MakeDevice
) -> None:
    store = stores(name)
    kept = Kept(store, device(), seed=len(name))
    order = np.random.default_rng(3).permutation(store.n_partitions)
    parts = [order[: store.n_partitions // 2].tolist(), order[store.n_partitions // 2 :].tolist()]
    sign = 1.0 if store.sense == "max" else -1.0
    for part in parts:
        found = kept.improve(part)
        policy, worth = kept.backend.policy(), kept.plain.worth(kept.values)
        for i, p in enumerate(part):
            states = kept.states(p)
            for s in range(states.start, states.stop):
                own = worth[kept.plain.state == s]
                assert policy[s] in (np.flatnonzero(own >= own.max() - 1e-12) if own.size else [-1])
            row_sum = float(kept.model.row_sums[p])
            measured = residuals(store.read(p)[0], kept.values, policy, sign, kept.discount, row_sum)
            assert found.measured[:, i] == pytest.approx(measured, rel=1e-9, abs=1e-9)
            assert found.changed[i] == (policy[states] >= 0).sum()
    again = kept.improve(order.tolist(), 1e6)
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
    engine.backend.open_rows(engine.store.facts.coupling)
    for _ in range(4):
        some = rng.choice(count, 2, replace=False).tolist()
        residents, p = [engine.residents[q] for q in some], np.array(some)
        swept, improved = engine.backend.back_up(residents), engine.backend.improve(residents, 1e-12)
        engine.bounds.propagate(p, np.maximum(swept.rise, 0.0), np.maximum(swept.fall, 0.0))
        engine.bounds.settle(p, improved.measured)
        engine.size = max(engine.size, float(np.abs(engine.backend.values()).max()))
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
    engine.backend.open_rows(engine.store.facts.coupling)
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
    policy[store.facts.partition_ptr[2] :] = -1  # no actions were chosen there
    kept.backend.start(kept.model, kept.backend.enlarged(kept.layout), before, policy)
    assert (kept.backend.values() == before).all()
    kept.residents = [kept.backend.admit(kept.backend.prepare(store.read(p)[0])) for p in range(store.n_partitions)]
    kept.backend.open_rows(store.facts.coupling)
    kept.improve(range(6))
    others = kept.of_states("second_best", "f8")
    before = kept.values
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
    kept.backend.open_rows(kept.store.facts.coupling)
    found = evaluated(kept.backend, 0.0, 100)
    assert found.backups == 0
    assert (kept.backend.values() == kept.values).all()


def test_more_states_than_a_row_can_name_are_refused(tmp_path: Path) -> None:
    store = make_store(Case(random_model(5, 20), partitions=2), tmp_path / "s")
    model = replace(ModelFacts.of(store.facts, DISCOUNT), n_states=1 << 32)
    device = EmulatedDevice(1 << 20)
    with pytest.raises(OptionsError, match="fewer than 2\\^32 states"):
        DeviceRows(DeviceGroup([device]), [device.stream()], model)
