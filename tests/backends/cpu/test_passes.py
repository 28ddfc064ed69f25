"""Synchronous passes that leave actions out: to the last bit what they are with all actions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_mdps import Case, cases, make_store, stored
from store_models import Action, Model, State

import ooc_mdp
from ooc_mdp.backends.base import Resident, SweepLimits
from ooc_mdp.backends.cpu.backend import CpuBackend
from ooc_mdp.backends.layout import Needs
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.store import Store


class Both:
    """The same passes twice: as they are, and with everything forgotten before each piece of them."""

    def __init__(self, store: Store, discount: float, backends: tuple[CpuBackend, CpuBackend]) -> None:
        self.backends, self.residents = backends, list[list[Resident]]()
        model = ModelFacts.of(store.facts, discount)
        for backend in backends:
            backend.start(model, backend.layout(model, Needs(synchronous=True)), None, None)
            each = [backend.admit(backend.prepare(store.read(p)[0])) for p in range(store.n_partitions)]
            self.residents.append(each)

    def sweep(self, partitions: slice = slice(None)) -> None:
        """Over some partitions, and compare what was measured."""
        reports = []
        for backend, residents in zip(self.backends, self.residents, strict=True):
            if backend is self.backends[1]:
                backend._end_passes()
            reports.append(backend.sweep_synchronously(residents[partitions]))
        np.testing.assert_array_equal(reports[0].residuals, reports[1].residuals)
        np.testing.assert_array_equal(reports[0].largest_value, reports[1].largest_value)
        self.compare()

    def commit(self) -> None:
        """Of a pass that is over."""
        for backend in self.backends:
            backend.commit()
        self.compare()

    def compare(self) -> None:
        """Values and policy."""
        a, b = self.backends
        np.testing.assert_array_equal(a.values(), b.values())
        np.testing.assert_array_equal(a.policy(), b.policy())

    @property
    def settled(self) -> float:
        """Share of the states whose other actions the next pass leaves out."""
        passes = self.backends[0]._passes
        assert passes is not None
        kept = passes.kept(self.backends[0].values())
        return float((passes._until > kept.drift + kept.margin).mean())


@contextmanager
def both(store: Store, discount: float) -> Iterator[Both]:
    with closing(CpuBackend("voted", 2)) as a, closing(CpuBackend("voted", 2)) as b:
        yield Both(store, discount, (a, b))


def scaled(model: Model, scale: float) -> Model:
    """The model with rewards that many times as large."""
    return replace(
        model,
        states=tuple(
            replace(
                state,
                actions=tuple(replace(action, reward=scale * action.reward) for action in state.actions),
                terminal_reward=scale * state.terminal_reward,
            )
            for state in model.states
        ),
    )


@settings(max_examples=60, deadline=None)
@given(
    case=cases(),
    discount=st.sampled_from([0.0, 0.5, 0.9, 0.9999]),
    events=st.lists(
        st.sampled_from(["pass", "pass", "pass", "shift", "write", "policy", "relax", "half"]), min_size=8, max_size=16
    ),
    seed=st.integers(0, 2**32 - 1),
    scale=st.sampled_from([1.0, 1.0, 1e130, 1e-41]),
)
def test_whatever_happens_between_passes_they_are_what_passes_over_all_actions_are(
    case: Case, discount: float, events: list[str], seed: int, scale: float
) -> None:
    case = replace(case, model=scaled(case.model, scale), dtype="float64" if scale != 1.0 else case.dtype)
    with stored(case) as store, both(store, discount) as two:
        for event in events:
            rng = np.random.default_rng(seed)
            seed += 1
            if event == "shift":
                two.sweep()  # its backups are lost
            for backend, residents in zip(two.backends, two.residents, strict=True):
                drawn = np.random.default_rng(seed)
                if event == "shift":
                    backend.shift(scale * float(drawn.normal()) * 10.0 ** int(drawn.integers(-3, 4)))
                elif event == "write":
                    state, none = drawn.integers(store.n_states, size=1), np.empty(0, np.int64)
                    backend.write(state, scale * drawn.normal(size=1), none, none)
                elif event == "policy":
                    n = residents[0].n_states
                    backend.write_policy(0, np.full(n, -1, np.int32))
                elif event == "relax":
                    backend.sweep(residents[:1], SweepLimits(1e-6, 2)).report()
            if event == "half":
                two.sweep(slice(0, 1))
            if event in ("pass", "half"):
                for p in rng.permutation(store.n_partitions).tolist():
                    two.sweep(slice(p, p + 1))
                two.commit()
            two.compare()


def test_most_states_of_a_random_model_are_settled_after_some_passes(tmp_path: Path) -> None:
    """And none is for longer than its action stays the best, through a shift as well."""
    store = ooc_mdp.generate("random", tmp_path / "s", {"states": 3000, "actions": 4, "seed": 1}, partitions=4)
    with both(store, 0.95) as two:
        for number in range(30):
            two.sweep()
            if number == 12:
                for backend in two.backends:
                    backend.shift(0.25)
            else:
                two.commit()
        assert two.settled > 0.9


def test_rows_that_sum_to_unequal_numbers_are_looked_at_again_after_a_shift(tmp_path: Path) -> None:
    """Where all values are shifted by 10^6, an action whose row sums to 1 - 10^-6 loses 0.9 against another."""
    first = Action(0.0, {0: 0.5, 1: 0.5})
    second = Action(0.5, {0: 0.5, 1: 0.5 - 0.9e-6})
    store = make_store(Case(Model((State((first, second)), State((first, second)))), partitions=1), tmp_path / "s")
    with both(store, 0.9) as two:
        for _ in range(3):
            two.sweep()
            two.commit()
        assert two.settled == 1.0
        assert two.backends[0].policy().tolist() == [1, 1]
        for backend in two.backends:
            backend.shift(1e6)
        assert two.settled == 0.0
        two.sweep()
        assert two.backends[0].policy().tolist() == [0, 0]


@pytest.mark.parametrize("scale", [1e130, 1e39, 1e-37, 1e-40, 1e-44])
def test_actions_that_become_the_best_are_found_whatever_the_size_of_rewards(scale: float, tmp_path: Path) -> None:
    """Beyond what float32 holds, and among its denormal numbers, which round by up to half of themselves."""
    stays = State((Action(-0.3 * scale, {3: 1.0}), Action(-1.1 * scale, {1: 1.0})))
    ends = State((), terminal_reward=-0.3 * scale)
    mixes = State((Action(0.7 * scale, {3: 0.5, 1: 0.5}), Action(-0.7 * scale, {0: 0.5, 1: 0.5})))
    store = make_store(Case(Model((stays, ends, mixes, mixes)), "min", partitions=2), tmp_path / "s")
    with both(store, 0.9) as two:
        for _ in range(40):
            two.sweep()
            two.commit()
    solved = ooc_mdp.solve(store, discount=0.9, epsilon=1e-3 * scale, device="cpu", method="p-eva")
    assert solved.outcome.proved
    checked = ooc_mdp.verify(store, solved)
    assert checked.holds, checked


def test_no_gap_is_kept_larger_than_it_is(tmp_path: Path) -> None:
    gaps = 10.0 ** np.linspace(-50, 60, 1101)
    states = [State((Action(0.0, {i: 1.0}), Action(-float(gap), {i: 1.0}))) for i, gap in enumerate(gaps)]
    store = make_store(Case(Model(tuple(states)), partitions=3), tmp_path / "s")
    with both(store, 0.9) as two:
        two.sweep()
        passes = two.backends[0]._passes
        assert passes is not None
        until = passes._until.astype(np.float64)
        assert (until <= gaps).all()
        usual = (gaps > 1e-37) & (gaps < 1e38)
        assert (until[usual] >= 0.9999 * gaps[usual]).all()


def test_the_plan_names_what_passes_allocate(tmp_path: Path) -> None:
    store = ooc_mdp.generate("random", tmp_path / "s", {"states": 300, "seed": 1}, partitions=3)
    with both(store, 0.9) as two:
        two.sweep()
        passes, model = two.backends[0]._passes, ModelFacts.of(store.facts, 0.9)
        assert passes is not None
        host = two.backends[0].layout(model, Needs(synchronous=True)).host
        assert host["commit buffer"] == passes._backups.nbytes
        assert host["settled actions"] == passes._until.nbytes + passes._passed.nbytes
