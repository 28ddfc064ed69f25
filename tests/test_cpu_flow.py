"""Sweeps along the flow of the policy: the order, the slab, and that no certificate rests on either."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_mdps import Case, cases, distance, make_store, model_of_shape, optimum, rows_of, stored
from store_models import Action, Model, State

import ooc_mdp
from ooc_mdp.backends.base import Resident, SweepLimits
from ooc_mdp.backends.cpu import along_flow
from ooc_mdp.backends.cpu import table as cpu_tables
from ooc_mdp.backends.cpu.along_flow import Slabs
from ooc_mdp.backends.cpu.backend import CpuBackend
from ooc_mdp.backends.cpu.packed import flow_order, gather, lay_slab, mend_slab, sweep_slab, without_lookahead
from ooc_mdp.options import CacheSize, SolveOptions
from ooc_mdp.solver.local import solve
from ooc_mdp.solver.plan import model_of
from ooc_mdp.store import Store

ACTIONS, WIDTH = 3, 3


def ordered(towards: list[int]) -> np.ndarray:
    """The order of states that go where the list says."""
    n = len(towards)
    order, scratch = np.empty(n, np.uint32), np.empty((3, n), np.int32)
    flow_order(n, np.array(towards, np.int32), *scratch, order)
    np.testing.assert_array_equal(scratch[2][order], np.arange(n))
    return order


class Rows:
    """A random table of one partition, and its policy's slab."""

    def __init__(self, seed: int, n: int, halo: int, discount: float) -> None:
        rng = np.random.default_rng(seed)
        self.n, self.halo, self.discount = n, halo, discount
        self.successors = rng.integers(0, n + halo, n * ACTIONS * WIDTH).astype(np.uint16)
        p = rng.random((n * ACTIONS, WIDTH)) ** 3
        self.probabilities = (p / p.sum(axis=1, keepdims=True)).ravel()
        self.rewards = rng.normal(size=n * ACTIONS)
        self.policy = rng.integers(0, ACTIONS, n).astype(np.int32)
        self.local = np.append(np.zeros(n), rng.normal(size=halo))
        self.keep, self.base, self.weights = np.empty(n), np.empty(n), np.empty(n * WIDTH)
        self.order, self.choices = np.empty(n, np.uint32), np.empty(n, np.int32)
        self.rows, self.scratch = np.empty(n * WIDTH, np.uint16), np.empty((4, n), np.int32)
        self.shape: tuple[Any, ...] = ((0,) * ACTIONS, (0,) * WIDTH, ACTIONS, WIDTH)

    def find_order(self) -> tuple[np.ndarray, ...]:
        """Gather the policy's rows and order them."""
        gathered = np.empty(self.n), np.empty(self.n * WIDTH), np.empty(self.n * WIDTH, np.uint16)
        none = np.empty(0)
        gather(
            *self.shape, self.policy, self.n, np.empty(1, np.uint32), self.successors, self.probabilities,
            self.rewards, none, none, *gathered, self.scratch[0], self.discount, 1.0,
        )  # fmt: skip
        flow_order(self.n, *self.scratch, self.order)
        return gathered

    def lay(self, lookahead: float, gathered: tuple[np.ndarray, ...]) -> None:
        """Bring them into the order that there is."""
        lay_slab(
            (0,) * WIDTH, WIDTH, self.n, self.policy, *gathered, self.order, self.scratch[3], self.choices, self.keep,
            self.base, self.weights, self.rows, lookahead,
        )  # fmt: skip

    def mend(self, lookahead: float) -> None:
        """Replace the rows of states that have another action now."""
        mend_slab(
            *self.shape, self.policy, self.n, np.empty(1, np.uint32), self.successors, self.probabilities,
            self.rewards, np.empty(0), self.order, self.scratch[3], self.choices, self.keep, self.base, self.weights,
            self.rows, self.discount, 1.0, lookahead,
        )  # fmt: skip

    def sweep(self, changes: np.ndarray) -> float:
        """The largest change of a sweep."""
        slab = self.order, self.keep, self.base, self.weights, self.rows
        return float(sweep_slab((0,) * WIDTH, WIDTH, self.n, self.local, changes, *slab)[0])

    def worth(self) -> np.ndarray:
        """The policy's values, halo values given."""
        n = self.n
        rows = np.arange(n) * ACTIONS + self.policy
        moves = np.zeros((n, n + self.halo))
        for k in range(WIDTH):
            np.add.at(moves, (np.arange(n), self.successors[rows * WIDTH + k]), self.probabilities[rows * WIDTH + k])
        outside = moves[:, n:] @ self.local[n:]
        return np.linalg.solve(np.eye(n) - self.discount * moves[:, :n], self.rewards[rows] + self.discount * outside)


@given(st.integers(1, 40).flatmap(lambda n: st.lists(st.integers(-1, n - 1), min_size=n, max_size=n)))
def test_each_state_has_one_place_and_comes_after_where_it_goes_but_for_one_of_each_cycle(towards: list[int]) -> None:
    order = ordered(towards)
    assert sorted(order.tolist()) == list(range(len(towards)))
    place = np.argsort(order)
    before_its_goal = [s for s, t in enumerate(towards) if t >= 0 and place[t] >= place[s]]
    cycles = set()
    for start in range(len(towards)):
        s = start
        for _ in towards:
            s = towards[s] if s >= 0 else -1
        if s >= 0:  # after so many steps it is on a cycle
            cycle = {s}
            t = towards[s]
            while t != s:
                cycle.add(t)
                t = towards[t]
            cycles.add(frozenset(cycle))
    assert len(before_its_goal) == len(cycles)
    assert all(any(s in cycle for cycle in cycles) for s in before_its_goal)


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 30),
    halo=st.integers(0, 5),
    discount=st.sampled_from([0.0, 0.5, 0.9]),
)
def test_sweeps_over_a_slab_end_at_the_policys_values(seed: int, n: int, halo: int, discount: float) -> None:
    rows = Rows(seed, n, halo, discount)
    gathered = rows.find_order()
    rows.lay(0.8, gathered)
    exact, changes = rows.worth(), np.zeros(n)
    rows.local[:n] = exact
    assert rows.sweep(changes) <= 1e-12  # whatever the steps, the values stay where they should end
    rows.local[:n] = 0.0
    without_lookahead(n, WIDTH, rows.keep, rows.base, rows.weights)
    for _ in range(400):
        rows.sweep(changes)
    np.testing.assert_allclose(rows.local[:n], exact, rtol=0, atol=1e-11)


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 30), lookahead=st.sampled_from([0.0, 0.8]))
def test_a_mended_slab_is_one_laid_anew_in_the_same_order(seed: int, n: int, lookahead: float) -> None:
    rows = Rows(seed, n, 2, 0.9)
    rows.lay(lookahead, rows.find_order())
    order = rows.order.copy()
    rng = np.random.default_rng(seed)
    rows.policy[rng.random(n) < 0.3] = rng.integers(ACTIONS)
    rows.mend(lookahead)
    mended = [a.copy() for a in (rows.keep, rows.base, rows.weights, rows.rows, rows.choices)]
    gathered = rows.find_order()
    rows.order[:], rows.scratch[3][order] = order, np.arange(n)
    rows.lay(lookahead, gathered)
    for was, is_now in zip(mended, (rows.keep, rows.base, rows.weights, rows.rows, rows.choices), strict=True):
        np.testing.assert_allclose(was, is_now, rtol=1e-14, atol=1e-300)


def with_steps(patch: pytest.MonkeyPatch, lookahead: float) -> None:
    """Rounds of so much lookahead, in partitions of whatever shape and flow."""
    patch.setattr(along_flow, "_LOOKAHEAD", lookahead)
    patch.setattr(along_flow, "_LEAST_LATER", 0.0)
    patch.setattr(along_flow, "_MOST_LATER", 1.0)


@pytest.mark.parametrize("lookahead", [0.8, 5.0])
@settings(max_examples=15)
@given(case=cases(), discount=st.sampled_from([0.5, 0.9, 0.99]), share=st.sampled_from([0.5, 1.0]))
def test_certificates_hold_whatever_the_steps(lookahead: float, case: Case, discount: float, share: float) -> None:
    with pytest.MonkeyPatch.context() as patch, stored(case) as store:
        with_steps(patch, lookahead)
        options = SolveOptions(discount, epsilon=1e-3, method="p-eva", cache=CacheSize(share=share), device="cpu")
        solution = solve(store, options)
        exact = optimum(rows_of(store), discount, case.sense)
    assert max(abs(x) for x in distance(solution.values, exact)) <= solution.error_bound


@pytest.mark.parametrize("lookahead", [0.8, 5.0])
@pytest.mark.parametrize("shape", [(2, 2), (2, 3)])
def test_certificates_hold_for_steps_with_loops_made_for_a_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int], lookahead: float
) -> None:
    """Two shapes, whatever the examples: each that is met takes many seconds to compile."""
    store = make_store(Case(model_of_shape(40, *shape), partitions=3), tmp_path / "s")
    monkeypatch.setattr(cpu_tables, "_LEAST_COMPILED_FOR", 1)
    with_steps(monkeypatch, lookahead)
    backend, residents = started(store, 0.9)
    assert {(len(k.actions), len(k.width)) for k in (r.arrays[0].kind for r in residents)} == {shape}
    assert all(backend._slabs.suits(r) for r in residents)
    backend.close()
    exact = ooc_mdp.reference.policy_iteration(rows_of(store), 0.9).values
    for share in (0.5, 1.0):
        solution = solve(
            store, SolveOptions(0.9, epsilon=1e-6, method="p-eva", cache=CacheSize(share=share), device="cpu")
        )
        assert np.abs(solution.values - exact).max() <= solution.error_bound <= 1e-6


def started(store: Store, discount: float) -> tuple[CpuBackend, list[Resident]]:
    """A backend at values of 0, with all partitions of the store resident."""
    backend = CpuBackend("voted", 2)
    backend.start(model_of(store, SolveOptions(discount)), None, None)
    return backend, [backend.admit(backend.prepare(store.read(p)[0])) for p in range(store.n_partitions)]


def test_a_gridworld_is_swept_along_its_flow_and_proved_in_fewer_backups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ooc_mdp.generate("GW-48x4", tmp_path / "s", partitions=4)
    exact = ooc_mdp.reference.policy_iteration(rows_of(store), 0.95).values
    backups = []
    for suits in (True, False):
        with monkeypatch.context() as patch:
            if not suits:
                patch.setattr(Slabs, "suits", lambda self, resident: False)
            asked = SolveOptions(0.95, epsilon=1e-6, method="p-eva", cache=CacheSize(share=1.0), device="cpu")
            solutions = [solve(store, asked) for _ in range(6)]  # what is swept first depends on what arrives first
        assert all(np.abs(s.values - exact).max() <= s.error_bound <= 1e-6 for s in solutions)
        backups.append(sum(s.statistics.backups for s in solutions))
    assert backups[0] < 0.85 * backups[1]


def test_a_partition_that_steps_serve_badly_is_left_to_the_other_rounds(tmp_path: Path) -> None:
    store = ooc_mdp.generate("GW-64x4", tmp_path / "s", partitions=4)
    backend, residents = started(store, 0.95)
    assert all(backend._slabs.suits(r) for r in residents)
    backend.visit_together(residents, [SweepLimits(1e-9, 5)] * 4).reports()
    assert all(backend._slabs.suits(r) for r in residents)
    backend._doubts[1] = along_flow._MOST_DOUBTS + 1
    backend.visit_together(residents, [SweepLimits(1e-9, 5)] * 4).reports()
    assert [backend._slabs.suits(r) for r in residents] == [True, False, True, True]
    backend.close()


def test_models_with_durations_are_not_swept_along_the_flow(tmp_path: Path) -> None:
    states = tuple(State((Action(1.0, {(i + 1) % 300: 1.0}, 0.5),)) for i in range(300))
    backend, (resident,) = started(make_store(Case(Model(states, durations=True)), tmp_path / "s"), 0.9)
    assert not backend._slabs.suits(resident)
    assert "policy rows" not in backend.plan(backend._model)
    backend.close()


def test_slabs_take_no_more_than_the_plan_says_and_the_least_recently_visited_gives_way(tmp_path: Path) -> None:
    store = ooc_mdp.generate("GW-64x4", tmp_path / "s", partitions=4)
    backend, residents = started(store, 0.95)
    planned = backend.plan(backend._model)["policy rows"]
    slabs = Slabs(backend._model, 2, 2, True)
    for chosen in ([0, 1], [1, 2], [3]):
        slabs.take([residents[p] for p in chosen])
    assert list(slabs.slabs) == [2, 3]
    slabs.take([residents[p] for p in (0, 3, 1)])  # three at once, with room for two
    assert [slabs.ready(residents[p]) for p in (0, 3, 1)] == [True, True, False]
    assert slabs.suits(residents[1])
    backend.visit_together(residents, [SweepLimits(1e-9, 5)] * 4).reports()
    slabs = backend._slabs
    held = [*slabs.slabs.values(), *slabs.scratch, *slabs.gathered, *slabs.gathered_rows]
    held += [slabs.suited, slabs.laid, slabs.changed, slabs.lookahead]
    assert len(slabs.slabs) == 4
    assert sum(a.nbytes for a in held) <= planned
    backend.close()
