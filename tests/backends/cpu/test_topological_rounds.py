"""Sweeps in the topological order of the policy: the order, packed rows, and that no certificate rests on either."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit
from small_mdps import Case, cases, distance, make_store, model_of_shape, optimum, rows_of, stored
from store_models import Action, State
from store_models import Model as SourceModel

import ooc_mdp
from ooc_mdp.backends.base import Resident, SweepLimits
from ooc_mdp.backends.cpu import table as cpu_tables
from ooc_mdp.backends.cpu import topological_rounds
from ooc_mdp.backends.cpu.addresses import address_of
from ooc_mdp.backends.cpu.backend import CpuBackend
from ooc_mdp.backends.cpu.packed import (
    PackScratch,
    count_outdated,
    make_plain,
    pack,
    packed_at,
    packed_bytes,
    patch,
    sweep_packed,
    topological_order,
)
from ooc_mdp.backends.cpu.table import SweptTable, open_table
from ooc_mdp.backends.cpu.topological_rounds import PackedBuffers
from ooc_mdp.backends.cpu.views import Model, view_of
from ooc_mdp.backends.layout import Needs
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.partition import PartitionTable
from ooc_mdp.options import CacheSize, RunOptions, SolveOptions
from ooc_mdp.solver.local import solve
from ooc_mdp.store import Store

ACTIONS, WIDTH = 3, 3


def ordered(towards: list[int]) -> np.ndarray:
    """The order of states that go where the list says."""
    n = len(towards)
    order, scratch = np.empty(n, np.uint32), np.empty((3, n), np.int32)
    topological_order(n, np.array(towards, np.int32), *scratch, order)
    np.testing.assert_array_equal(scratch[2][order], np.arange(n))
    return order


class Rows:
    """A random table of one partition, and its policy's packed rows."""

    def __init__(self, seed: int, n: int, halo: int, discount: float) -> None:
        rng = np.random.default_rng(seed)
        self.n, self.halo, self.model = n, halo, Model(discount, 1.0)
        p = rng.random((n * ACTIONS, WIDTH)) ** 3
        self.table = PartitionTable(
            index=0,
            first_state=0,
            n_states=n,
            actions_per_state=ACTIONS,
            successors_per_action=WIDTH,
            action_ptr=np.empty(0, np.uint32),
            successor_ptr=np.empty(0, np.uint32),
            successors=rng.integers(0, n + halo, n * ACTIONS * WIDTH).astype(np.uint16),
            probabilities=(p / p.sum(axis=1, keepdims=True)).ravel(),
            rewards=rng.normal(size=n * ACTIONS),
            durations=np.empty(0),
            terminal_rewards=np.empty(0),
            initial_values=np.empty(0),
            halo=np.arange(n, n + halo),
            boundary=np.zeros(n, np.bool_),
        )
        self.swept = SweptTable(self.table, np.empty(0), False)
        self.policy = rng.integers(0, ACTIONS, n).astype(np.int32)
        self.values = np.append(np.zeros(n), rng.normal(size=halo))
        self.packed = np.zeros(packed_bytes(n, WIDTH, 2), np.uint8)
        self.scratch = PackScratch(
            np.zeros(3 * n + halo), np.empty(n, np.int64), np.empty((4, n), np.int32), np.empty((WIDTH + 1) * n),
            np.empty(WIDTH * n, np.uint32), False,
        )  # fmt: skip

    @property
    def local(self) -> np.ndarray:
        """Own and halo values, where sweeps change them."""
        return self.scratch.workspace[2 * self.n :]

    def pack(self, relaxation: float) -> None:
        """Pack the rows of the present policy."""
        _pack(*self.fixed, self.model, self.packed, self.scratch, relaxation)

    def patch(self, relaxation: float) -> None:
        """Replace the rows of states that have another action now."""
        _patch(*self.fixed, self.model, self.packed, self.scratch, relaxation)

    def outdated(self) -> int:
        """States that have another action than the packed one."""
        return int(_outdated(*self.fixed, self.packed, self.scratch))

    def make_plain(self) -> None:
        """Make the steps those of plain Gauss-Seidel."""
        _make_plain(*self.fixed, self.packed)

    def sweep(self) -> float:
        """The largest change of a sweep."""
        return float(_sweep(*self.fixed, self.packed, self.scratch))

    @property
    def fixed(self) -> tuple[Any, ...]:
        """Specialisation, table, values and policy."""
        return self.swept.spec, self.swept.row, self.values, self.policy

    def worth(self) -> np.ndarray:
        """The policy's values, halo values given."""
        n, table, discount = self.n, self.table, self.model.discount
        rows = np.arange(n) * ACTIONS + self.policy
        moves = np.zeros((n, n + self.halo))
        for k in range(WIDTH):
            np.add.at(moves, (np.arange(n), table.successors[rows * WIDTH + k]), table.probabilities[rows * WIDTH + k])
        outside = moves[:, n:] @ self.values[n:]
        return np.linalg.solve(np.eye(n) - discount * moves[:, :n], table.rewards[rows] + discount * outside)


@njit
def _pack(spec, row, values, policy, model, packed, scratch, relaxation):
    table = open_table(row)
    view = view_of(table, 0, scratch.workspace, values, policy)
    pack(spec, table, model, view, packed_at(address_of(packed), table.n, table.width), scratch, relaxation)


@njit
def _patch(spec, row, values, policy, model, buffer, scratch, relaxation):
    table = open_table(row)
    view = view_of(table, 0, scratch.workspace, values, policy)
    packed = packed_at(address_of(buffer), table.n, table.width)
    patch(spec, table, model, view, packed, scratch.integers[3], relaxation)


@njit
def _outdated(spec, row, values, policy, buffer, scratch):
    table = open_table(row)
    view = view_of(table, 0, scratch.workspace, values, policy)
    return count_outdated(spec, table, view, packed_at(address_of(buffer), table.n, table.width))


@njit
def _make_plain(spec, row, values, policy, buffer):
    table = open_table(row)
    make_plain(spec, table, packed_at(address_of(buffer), table.n, table.width))


@njit
def _sweep(spec, row, values, policy, buffer, scratch):
    table = open_table(row)
    view = view_of(table, 0, scratch.workspace, values, policy)
    return sweep_packed(spec, table, view, packed_at(address_of(buffer), table.n, table.width))[0]


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
def test_sweeps_over_packed_rows_end_at_the_policys_values(seed: int, n: int, halo: int, discount: float) -> None:
    rows = Rows(seed, n, halo, discount)
    rows.pack(0.8)
    rows.local[n:] = rows.values[n:]
    exact = rows.worth()
    rows.local[:n] = exact
    assert rows.sweep() <= 1e-12  # whatever the steps, the values stay where they should end
    rows.local[:n] = 0.0
    rows.make_plain()
    for _ in range(400):
        rows.sweep()
    np.testing.assert_allclose(rows.local[:n], exact, rtol=0, atol=1e-11)


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 30), relaxation=st.sampled_from([0.0, 0.8]))
def test_patched_rows_of_a_policy_keep_its_values(seed: int, n: int, relaxation: float) -> None:
    rows = Rows(seed, n, 2, 0.9)
    rows.pack(relaxation)
    rng = np.random.default_rng(seed)
    moved = rng.random(n) < 0.3
    before = rows.policy.copy()
    rows.policy[moved] = rng.integers(ACTIONS)
    assert rows.outdated() == np.count_nonzero(rows.policy != before)
    rows.patch(relaxation)
    assert rows.outdated() == 0
    rows.local[:n], rows.local[n:] = rows.worth(), rows.values[n:]
    assert rows.sweep() <= 1e-12


@given(seed=st.integers(0, 2**32 - 1), relaxation=st.sampled_from([0.0, 0.8]))
def test_patched_rows_are_to_the_last_bit_those_packed_anew_in_the_same_order(seed: int, relaxation: float) -> None:
    """Actions are exchanged for others of equal rows, so that the order stays."""
    rows = Rows(seed, 20, 2, 0.9)
    for a in (rows.table.successors, rows.table.probabilities, rows.table.rewards):
        each = a.reshape(20, ACTIONS, -1)
        each[:] = each[:, :1]
    rows.pack(relaxation)
    rows.policy[:7] = (rows.policy[:7] + 1) % ACTIONS
    rows.patch(relaxation)
    patched = rows.packed.copy()
    rows.pack(relaxation)
    np.testing.assert_array_equal(rows.packed, patched)


def with_steps(patch: pytest.MonkeyPatch, relaxation: float) -> None:
    """Rounds with that relaxation factor, in partitions of whatever shape and policy."""
    patch.setattr(topological_rounds, "_RELAXATION", relaxation)
    patch.setattr(topological_rounds, "_MIN_LATER", 0.0)
    patch.setattr(topological_rounds, "_MAX_LATER", 1.0)


@pytest.mark.parametrize("relaxation", [0.8, 5.0])
@settings(max_examples=15)
@given(case=cases(), discount=st.sampled_from([0.5, 0.9, 0.99]), share=st.sampled_from([0.5, 1.0]))
def test_certificates_hold_whatever_the_steps(relaxation: float, case: Case, discount: float, share: float) -> None:
    with pytest.MonkeyPatch.context() as patch, stored(case) as store:
        with_steps(patch, relaxation)
        options = SolveOptions(discount, epsilon=1e-3, method="p-eva", cache=CacheSize(share=share), device="cpu")
        solution = solve(store, options, RunOptions(time_limit=0.5))  # short durations can take minutes
        exact = optimum(rows_of(store), discount, case.sense)
    assert max(abs(x) for x in distance(solution.values, exact)) <= solution.error_bound


@pytest.mark.parametrize("relaxation", [0.8, 5.0])
@pytest.mark.parametrize("shape", [pytest.param((2, 2), marks=pytest.mark.slow), (2, 3)])
def test_certificates_hold_for_steps_with_loops_made_for_a_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int], relaxation: float
) -> None:
    """Two shapes, whatever the examples: each that is met takes many seconds to compile."""
    store = make_store(Case(model_of_shape(40, *shape), partitions=3), tmp_path / "s")
    monkeypatch.setattr(cpu_tables, "MIN_COMPILED_FOR", 1)
    with_steps(monkeypatch, relaxation)
    backend, residents = started(store, 0.9)
    assert {(len(k.actions), len(k.width)) for k in (r.arrays[0].spec for r in residents)} == {shape}
    assert all(backend._packed_buffers.suits(r) for r in residents)
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
    model = ModelFacts.of(store.facts, discount)
    backend.start(model, backend.layout(model, Needs()), None, None)
    return backend, [backend.admit(backend.prepare(store.read(p)[0])) for p in range(store.n_partitions)]


def test_a_gridworld_is_swept_in_topological_order_and_proved_in_fewer_backups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ooc_mdp.generate("GW-32x4", tmp_path / "s", partitions=4)
    exact = ooc_mdp.reference.policy_iteration(rows_of(store), 0.95).values
    backups = []
    for suits in (True, False):
        with monkeypatch.context() as patch:
            if not suits:
                patch.setattr(PackedBuffers, "suits", lambda self, resident: False)
            asked = SolveOptions(0.95, epsilon=1e-6, method="p-eva", cache=CacheSize(share=1.0), device="cpu")
            solutions = [solve(store, asked) for _ in range(6)]  # what is swept first depends on what arrives first
        assert all(np.abs(s.values - exact).max() <= s.error_bound <= 1e-6 for s in solutions)
        backups.append(sum(s.statistics.backups for s in solutions))
    assert backups[0] < 0.85 * backups[1]


def test_a_partition_that_steps_serve_badly_is_left_to_the_other_rounds(tmp_path: Path) -> None:
    store = ooc_mdp.generate("GW-64x4", tmp_path / "s", partitions=4)
    backend, residents = started(store, 0.95)
    assert all(backend._packed_buffers.suits(r) for r in residents)
    backend.relax(residents, SweepLimits(1e-9, 5)).report()
    assert all(backend._packed_buffers.suits(r) for r in residents)
    backend._failures[1] = topological_rounds.MAX_FAILURES_PACKED + 1
    backend.relax(residents, SweepLimits(1e-9, 5)).report()
    assert [backend._packed_buffers.suits(r) for r in residents] == [True, False, True, True]
    backend.close()


def test_models_with_durations_are_not_swept_in_topological_order(tmp_path: Path) -> None:
    states = tuple(State((Action(1.0, {(i + 1) % 300: 1.0}, 0.5),)) for i in range(300))
    backend, (resident,) = started(make_store(Case(SourceModel(states, durations=True)), tmp_path / "s"), 0.9)
    assert not backend._packed_buffers.suits(resident)
    assert "policy rows" not in backend.layout(backend._facts, Needs()).host
    backend.close()


def test_packed_rows_take_no_more_than_the_plan_says_and_the_least_recently_visited_gives_way(tmp_path: Path) -> None:
    store = ooc_mdp.generate("GW-64x4", tmp_path / "s", partitions=4)
    backend, residents = started(store, 0.95)
    planned = backend.layout(backend._facts, Needs()).host["policy rows"]
    buffers = PackedBuffers(backend._facts, 2, 2, 0, True)
    for chosen in ([0, 1], [1, 2], [3]):
        buffers.assign([residents[p] for p in chosen])
    assert list(buffers.by_partition) == [2, 3]
    assert buffers.assign([residents[p] for p in (0, 3, 1)]) == {0, 3}  # three at once, with room for two
    assert buffers.suits(residents[1])
    backend.relax(residents, SweepLimits(1e-9, 5)).report()
    buffers = backend._packed_buffers
    held = [*buffers.by_partition.values(), *buffers.scratch[:3]]
    held += [buffers.suited, *buffers.known, buffers.addresses]
    assert len(buffers.by_partition) == 4
    assert sum(a.nbytes for a in held) <= planned
    backend.close()


@pytest.mark.parametrize("share", [0.25, 0.5, 1.0])
def test_there_are_packed_rows_for_every_partition_of_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    """Of a table that is larger than what packed rows may take whatever the cache."""
    monkeypatch.setattr(topological_rounds, "_MAX_BYTES", 1 << 17)
    store = ooc_mdp.generate("GW-128x4", tmp_path / "s", partitions=64)
    backend, model = CpuBackend("voted", 1), ModelFacts.of(store.facts, 0.95)
    layout = backend.layout(model, Needs(cache=CacheSize(share=share)))
    backend.start(model, layout, None, None)
    residents = [backend.admit(backend.prepare(store.read(p)[0])) for p in range(round(share * 64))]
    for r in residents:
        backend._packed_buffers.assign([r])
    assert set(backend._packed_buffers.by_partition) == {r.index for r in residents}
    assert sum(a.nbytes for a in backend._packed_buffers.by_partition.values()) <= layout.host["policy rows"]
    backend.close()
