"""Acyclic tables, as with time in the state, are loaded once, to the bits of any other schedule."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small_mdps import Case, make_store
from store_models import Action, Model, State

import ooc_mdp
from ooc_mdp import FiniteHorizon
from ooc_mdp.errors import OptionsError
from ooc_mdp.finite_horizon import plan as planning
from ooc_mdp.finite_horizon.acyclic import plan_acyclic, topological_order
from ooc_mdp.model.partition import Coupling
from ooc_mdp.model.solution import Outcome
from ooc_mdp.solver.session import Session
from ooc_mdp.store import Store

TIMES, PLACES = 24, 30


def timed_model(seed: int, times: int = TIMES, places: int = PLACES, longest: int = 1) -> Model:
    """State (time, place); a step takes `longest` units of time at most, and the process ends with the last one."""
    rng = np.random.default_rng(seed)

    def state(time: int) -> State:
        if time == times - 1:
            return State((), float(rng.normal()))
        actions = []
        for _ in range(int(rng.integers(6, 12))):
            later = min(time + int(rng.integers(1, longest + 1)), times - 1)
            reached = rng.choice(places, 4, replace=False) + later * places
            weights = rng.dirichlet(np.ones(4)).tolist()
            actions.append(Action(float(rng.normal()), dict(zip(reached.tolist(), weights, strict=True))))
        return State(tuple(actions))

    return Model(tuple(state(time) for time in range(times) for _ in range(places)))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Partitions of two times each."""
    return make_store(Case(timed_model(1), "max", "float64", TIMES // 2), tmp_path / "s")


def solutions(
    store: Store, asked: FiniteHorizon, cache: str, monkeypatch: pytest.MonkeyPatch
) -> list[ooc_mdp.Solution]:
    """By one load of each partition, and by skewed stages."""
    once = ooc_mdp.solve(store, asked, device="cpu", cache=cache)
    with monkeypatch.context() as patch:
        patch.setattr(planning, "plan_acyclic", lambda *_: None)
        return [once, ooc_mdp.solve(store, asked, device="cpu", cache=cache)]


def assert_same(found: ooc_mdp.Solution, due: ooc_mdp.Solution) -> None:
    assert found.stages is not None
    assert due.stages is not None
    np.testing.assert_array_equal(found.values, due.values)
    np.testing.assert_array_equal(found.stages.errors, due.stages.errors)
    for stage in range(due.stages.count):
        np.testing.assert_array_equal(found.stages.policy(stage), due.stages.policy(stage))
    for stage in due.stages.kept:
        np.testing.assert_array_equal(found.stages.values(stage), due.stages.values(stage))


@pytest.mark.parametrize("stages", [2, 7, 23, 40])
@pytest.mark.parametrize("final", [False, True])
def test_each_partition_of_a_table_with_time_is_loaded_once(
    store: Store, monkeypatch: pytest.MonkeyPatch, stages: int, final: bool
) -> None:
    values = np.random.default_rng(2).normal(size=store.n_states) if final else None
    asked = FiniteHorizon(stages, 0.95, values, (0, 1, stages))
    once, skewed = solutions(store, asked, "60%", monkeypatch)
    assert_same(once, skewed)
    assert once.statistics.loads == store.n_partitions
    if stages > 7:
        assert skewed.statistics.loads > store.n_partitions
    assert ooc_mdp.verify(store, once).holds


def test_stages_after_the_process_has_ended_are_not_computed_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    once, skewed = solutions(store, FiniteHorizon(100), "60%", monkeypatch)
    assert_same(once, skewed)
    assert skewed.statistics.sweeps == 100 * store.n_partitions
    assert once.statistics.sweeps < (TIMES + 1) * store.n_partitions


@pytest.mark.parametrize("seed", range(8))
def test_branches_that_meet_again_read_the_stages_that_they_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Steps of several lengths: partitions read several others, which come before them or after them in the store."""
    model = timed_model(seed, times=9, places=4, longest=4)
    if seed % 2:
        last = len(model.states) - 1
        turned = [
            State(
                tuple(Action(a.reward, {last - s: p for s, p in a.successors.items()}) for a in state.actions),
                state.terminal_reward,
            )
            for state in reversed(model.states)
        ]
        model = Model(tuple(turned))
    store = make_store(Case(model, "min", "float64", 9), tmp_path / "s")
    once, skewed = solutions(store, FiniteHorizon(12, kept_stages=(3,)), "99%", monkeypatch)
    assert_same(once, skewed)
    assert once.statistics.loads == 9


def test_a_run_that_was_stopped_loads_each_partition_once_in_all(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, output = FiniteHorizon(30, 0.9, kept_stages=(4,)), tmp_path / "r"
    whole = ooc_mdp.solve(store, asked, device="cpu", cache="60%")
    looks, ended = iter(range(1000)), Session.ended
    with monkeypatch.context() as patch:
        late = Outcome.TIME_LIMIT
        patch.setattr(Session, "ended", lambda session: late if next(looks) % 5 == 4 else ended(session))
        assert ooc_mdp.solve(store, asked, device="cpu", cache="60%", output=output).outcome is late
    with pytest.raises(OptionsError, match="too small; give --cache as it was"):
        ooc_mdp.solve(store, asked, device="cpu", cache="20%", output=output, resume=True)
    with monkeypatch.context() as patch:
        looks = iter(range(1000))
        patch.setattr(Session, "ended", lambda session: late if next(looks) % 5 == 4 else ended(session))
        assert ooc_mdp.solve(store, asked, device="cpu", cache="60%", output=output, resume=True).outcome is late
    found = ooc_mdp.solve(store, asked, device="cpu", cache="100%", output=output, resume=True)
    assert_same(found, whole)
    assert found.statistics.sweeps == whole.statistics.sweeps


def test_a_cache_without_room_for_histories_takes_skewed_stages(store: Store) -> None:
    largest = int(store.facts.partition_bytes.max())
    plan = plan_acyclic(store.facts, 10**9, 2, 30)
    assert plan is not None
    assert plan.history_bytes >= 8 * PLACES * 30
    assert plan_acyclic(store.facts, 3 * largest + plan.history_bytes, 2, 30) is not None
    assert plan_acyclic(store.facts, 3 * largest + plan.history_bytes - 1, 2, 30) is None
    small = ooc_mdp.solve(store, FiniteHorizon(30), device="cpu", cache=largest)
    assert small.statistics.loads > 10 * store.n_partitions


def test_an_order_is_topological_or_there_is_none() -> None:
    def order(*reads: set[int]) -> list[int] | None:
        rows = [sorted({p, *read}) for p, read in enumerate(reads)]
        ptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
        partitions = np.concatenate(rows).astype(np.int64)
        found = topological_order(Coupling(ptr, partitions, np.ones(partitions.size)))
        return None if found is None else found.tolist()

    assert order({1}, {2}, set()) == [2, 1, 0]
    assert order({1, 2}, {3}, {3}, set()) == [3, 1, 2, 0]
    assert order({1}, {0}) is None
    assert order({1}, {2}, {0}) is None
