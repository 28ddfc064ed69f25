"""A policy's rows on the CPU: what an improvement keeps, and what an evaluation makes of it, against plain NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from claims import residuals
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plain_rows import Plain, assert_that_a_sweep_is_true, evaluated
from small_mdps import Case, cases, make_store, stored
from store_models import Action, Model, State, random_model

from ooc_mdp.backends.base import Evaluation, Improvement
from ooc_mdp.backends.cpu import evaluation as cpu_evaluation
from ooc_mdp.backends.cpu import policy_rows as cpu_policy
from ooc_mdp.backends.cpu import table as cpu_tables
from ooc_mdp.backends.cpu.backend import CpuBackend
from ooc_mdp.backends.cpu.evaluation import CpuEvaluation
from ooc_mdp.backends.cpu.krylov import VECTORS, Bicgstab
from ooc_mdp.backends.cpu.policy_rows import PolicyRows
from ooc_mdp.backends.cpu.triangular_solver import STATE_BYTES
from ooc_mdp.backends.layout import Needs
from ooc_mdp.errors import MemoryBudgetError
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.model.partition import PartitionTable
from ooc_mdp.runtime.arena import TableMemory
from ooc_mdp.store import Store

few = settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
DISCOUNTS = st.sampled_from([0.0, 0.5, 0.9, 0.999])


class Kept:
    """A backend at random values, with all partitions resident and room for rows."""

    def __init__(
        self,
        store: Store,
        discount: float,
        *,
        seed: int = 0,
        threads: int = 2,
        policy: Sequence[int] | None = None,
        mapped: bool = False,
    ) -> None:
        self.store, self.model = store, ModelFacts.of(store.facts, discount)
        self.plain = Plain.of(store, discount)
        self.before = 10 * np.random.default_rng(seed).normal(size=store.n_states)
        self.backend = CpuBackend("voted", threads)
        chosen = None if policy is None else np.array(policy, np.int32)
        layout = replace(self.backend.layout(self.model, Needs()), rows_room=0 if mapped else 1 << 62)
        self.backend.start(self.model, layout, self.before.copy(), chosen)
        self.residents = [self.backend.admit(self.backend.prepare(store.read(p)[0])) for p in range(store.n_partitions)]
        self.backend.open_rows(store.facts.coupling)

    @property
    def rows(self) -> PolicyRows:
        assert self.backend._rows is not None
        return self.backend._rows

    def __enter__(self) -> Kept:
        return self

    def __exit__(self, *_: object) -> None:
        self.backend.close()

    @property
    def values(self) -> FloatArray:
        return self.backend.values().copy()

    @property
    def policy(self) -> npt.NDArray[np.int32]:
        return self.backend.policy().copy()

    def states(self, p: int) -> slice:
        return slice(int(self.store.facts.partition_ptr[p]), int(self.store.facts.partition_ptr[p + 1]))

    def improve(self, partitions: Sequence[int], margin: float = 0.0) -> Improvement:
        """Partitions swept and improved; `before` are the values that this leaves."""
        residents, before = [self.residents[p] for p in partitions], self.values
        swept = self.backend.back_up(residents)
        self.before = self.values
        assert_that_a_sweep_is_true(self.plain, swept, before, self.before, [self.states(p) for p in partitions])
        found = self.backend.improve(residents, margin)
        assert (self.values == self.before).all()
        return found

    def backup(self, values: FloatArray) -> FloatArray:
        """float64 [n]: r + g P V by the rows that are kept."""
        rows = self.rows
        g = rows.discounts if rows.discounts.size else np.full(values.size, self.model.discount)
        expected = np.zeros(values.size)
        for p, (place, width) in enumerate(zip(rows.begin.tolist(), rows.widths.tolist(), strict=False)):
            own = self.states(p)
            entries = slice(place, place + width * (own.stop - own.start))
            terms = rows.probabilities[entries].astype(float) * values[rows.successors[entries]]
            expected[own] = terms.reshape(own.stop - own.start, width).sum(axis=1)
        return rows.rewards + g * expected


def assert_that_rows_are_the_policy_s(kept: Kept) -> None:
    """At the values where it was improved, and at others."""
    values, policy = kept.values, kept.policy
    size = max(float(np.abs(kept.plain.reward).max(initial=0.0)), float(np.abs(values).max()))
    close = {"rel": 1e-12, "abs": 1e-12 * size}
    assert kept.rows.second_best == pytest.approx(kept.plain.best_other(values, policy), **close)
    for at in (values, np.random.default_rng(1).normal(size=values.size)):
        assert kept.backup(at) == pytest.approx(kept.plain.backup(at, policy), **close)


def assert_that_an_evaluation_is_true(
    kept: Kept, found: Evaluation, before: FloatArray, partitions: Sequence[int]
) -> None:
    """All fields, at the values that resulted."""
    values, policy, others = kept.values, kept.policy, kept.rows.second_best
    residual = kept.plain.backup(values, policy) - values if (kept.rows.valid).all() else kept.backup(values) - values
    g = np.zeros(values.size)
    chosen = kept.plain.chosen(policy)
    g[kept.plain.state[chosen]] = kept.plain.discount[chosen]
    size = max(float(np.abs(values).max()), float(np.abs(kept.plain.reward).max(initial=0.0)))
    close = {"rel": 1e-6, "abs": 1e-10 * size}
    for p in partitions:
        own = kept.states(p)
        assert found.rise[p] == (values - before)[own].max()
        assert found.fall[p] == -(values - before)[own].min()
        normalised = residual[own] / (1 - g[own] * kept.model.row_sums[p])
        expected = (normalised.max(), -normalised.min(), residual[own].max(), -residual[own].min())
        assert found.measured[:, p] == pytest.approx(expected, **close)
        assert found.second_best[p] == (others - values)[own].max()
        assert (found.largest_value[p], found.smallest_value[p]) == (values[own].max(), values[own].min())


def slow_walk(n: int = 400) -> Model:
    """Along a line, back and forth, with a way out at one end: sweeps cross it a state at a time."""

    def state(i: int) -> State:
        if i == 0:
            return State((), 5.0)
        ways = {max(i - 1, 0): 0.5, min(i + 1, n - 1): 0.5}
        ways = ways if len(ways) == 2 else {i: 1.0}
        return State((Action(float(i % 7), ways), Action(float(i % 7) - 3.0, ways)))

    return Model(tuple(state(i) for i in range(n)))


def long_way(n: int = 300) -> Model:
    """A long way to state 0, in small steps and with slips; numbers of states say nothing of where they lie on it."""
    at = np.concatenate([[0], 1 + np.random.default_rng(0).permutation(n - 1)])
    place = np.argsort(at)

    def state(s: int) -> State:
        i = int(place[s])
        if i == 0:
            return State((), 5.0)
        ways = {int(at[i - 1]): 0.02, s: 0.975, int(at[min(i + 1, n - 1)]): 0.005}
        ways = ways if len(ways) == 3 else {int(at[i - 1]): 0.02, s: 0.98}
        return State((Action(float(i % 5), ways), Action(float(i % 5) - 9.0, {s: 1.0})))

    return Model(tuple(state(s) for s in range(n)))


# --------------------------------------------------------------------------------------------------- improvements


@pytest.mark.parametrize("successors", ["gathered", "global"])
@few
@given(
    case=cases(),
    discount=DISCOUNTS,
    seed=st.integers(0, 2**16),
    margin=st.sampled_from([0.0, 1e-9, 0.3, 3.0, 1e9]),
    known=st.booleans(),
    threads=st.integers(1, 3),
)
def test_an_improvement_makes_the_policy_greedy_within_a_margin_and_keeps_its_rows(
    successors: str, case: Case, discount: float, seed: int, margin: float, known: bool, threads: int
) -> None:
    """Ties, ragged rows, states without action, durations, minimisation, tables with global successors."""
    with pytest.MonkeyPatch.context() as patch, stored(case) as store:
        if successors == "global":
            read = Store.read_into

            def wide(self: Store, p: int, *memory: TableMemory | None) -> tuple[PartitionTable, int]:
                table, size = read(self, p, *memory)
                return replace(table, successors=table.successors.astype(np.uint32)), size

            patch.setattr(Store, "read_into", wide)
            patch.setattr(cpu_tables, "MAX_GATHERED", 0)
        counts = np.bincount(Plain.of(store, discount).state, minlength=store.n_states)
        some = np.random.default_rng(seed).integers(0, np.maximum(counts, 1))
        before = np.where(counts > 0, some, -1) if known else np.full(store.n_states, -1)
        with Kept(store, discount, seed=seed, threads=threads, policy=before.tolist()) as kept:
            everything = list(range(store.n_partitions))
            found = kept.improve(everything, margin)
            values, policy, worth = kept.values, kept.policy, kept.plain.worth(kept.before)
            slack = 1e-12 * max(1.0, float(np.abs(worth).max(initial=0.0)))
            for s in range(store.n_states):
                own = worth[kept.plain.state == s]
                if not own.size:
                    assert policy[s] == -1
                elif known and own.max() - own[before[s]] < margin - slack:
                    assert policy[s] == before[s]
                elif policy[s] != before[s] or not known:
                    assert own[policy[s]] >= own.max() - slack
                else:
                    assert own.max() - own[before[s]] <= margin + slack
            assert_that_rows_are_the_policy_s(kept)
            for p in everything:
                sign = 1.0 if store.sense == "max" else -1.0
                row_sum = float(kept.model.row_sums[p])
                measured = residuals(store.read(p)[0], values, policy, sign, discount, row_sum)
                size = max(1.0, float(np.abs(worth).max(initial=0.0)), float(np.abs(values).max()))
                close = {"rel": 1e-9, "abs": 1e-11 * size / (1 - discount)}
                assert found.measured[:, p] == pytest.approx(measured, **close)
                assert found.changed[p] == (policy != before)[kept.states(p)].sum()
            assert not kept.improve(everything[::-1], np.inf).changed.any()
            assert_that_rows_are_the_policy_s(kept)


def test_of_actions_that_tie_the_lowest_is_taken_and_the_other_is_q2(tmp_path: Path) -> None:
    twice = Action(1.0, {1: 1.0})
    model = Model((State((Action(0.5, {1: 1.0}), twice, twice)), State(()), State((twice,))))
    store = make_store(Case(model, partitions=2), tmp_path / "s")
    order = np.concatenate([store.original_states(p) for p in range(2)])
    first, second, third = (order.tolist().index(s) for s in range(3))
    for given_policy, expected in ((None, 1), (2, 2), (0, 1)):
        policy = None if given_policy is None else np.array([given_policy, -1, 0])[order].tolist()
        with Kept(store, 0.95, policy=policy) as kept:
            kept.improve([0, 1])
            assert kept.policy[first] == expected
            backup = kept.plain.backup(kept.before, kept.policy)
            assert kept.rows.second_best[first] == backup[first]
            assert kept.rows.second_best[second] == kept.rows.second_best[third] == -np.inf


# ---------------------------------------------------------------------------------------------------- evaluations


@few
@given(
    case=cases(),
    discount=DISCOUNTS,
    seed=st.integers(0, 2**16),
    threads=st.integers(1, 3),
    mapped=st.booleans(),
    slow=st.sampled_from([0.0, 0.2, np.inf]),
)
def test_an_evaluation_reaches_the_policy_s_values(
    case: Case, discount: float, seed: int, threads: int, mapped: bool, slow: float
) -> None:
    """By sweeps alone, by the solver after each measurement, and by whichever is due; rows in RAM and in a file."""
    with pytest.MonkeyPatch.context() as patch, stored(case) as store:
        patch.setattr(
            cpu_evaluation, "_SLOW", slow if discount <= 0.9 else min(slow, 0.2)
        )  # sweeps alone take too long
        with Kept(store, discount, seed=seed, threads=threads, mapped=mapped) as kept:
            everything = list(range(store.n_partitions))
            kept.improve(everything)
            policy = kept.policy
            exact = kept.plain.values_of(policy, kept.before, np.ones(store.n_states, np.bool_))
            limit = 1e-9 * max(float(np.abs(exact).max()), float(np.abs(kept.plain.reward).max(initial=0.0)), 1.0)
            found = evaluated(kept.backend, limit, 100_000)
            assert_that_an_evaluation_is_true(kept, found, kept.before, everything)
            assert np.maximum(found.measured[2], found.measured[3]).max() <= limit
            assert (kept.policy == policy).all()
            largest = float((kept.plain.discount * kept.model.row_sums.max()).max(initial=0.0))
            assert np.abs(kept.values - exact).max() <= limit / (1 - largest) * (1 + 1e-6) * 2
            again = evaluated(kept.backend, limit, 100_000)
            assert again.backups == 0  # nothing was left to do
            assert (again.rise == 0).all()
            assert (again.fall == 0).all()


@few
@given(case=cases(), discount=DISCOUNTS, seed=st.integers(0, 2**16), data=st.data())
def test_partitions_without_rows_keep_their_values(case: Case, discount: float, seed: int, data: st.DataObject) -> None:
    with stored(case) as store, Kept(store, discount, seed=seed) as kept:
        swept = np.zeros(store.n_states, np.bool_)
        order = data.draw(st.permutations(range(store.n_partitions)))
        half = (store.n_partitions + 1) // 2
        done: list[int] = []
        for some in (order[:half], order[half:]):  # the second time there are more
            if not some:
                continue
            kept.improve(some)
            before = kept.before
            done += some
            for p in some:
                swept[kept.states(p)] = True
            size = max(float(np.abs(before).max()), float(np.abs(kept.plain.reward).max(initial=0.0)))
            limit, largest = 1e-10 * size, float((kept.plain.discount * kept.model.row_sums.max()).max(initial=0.0))
            found = evaluated(kept.backend, limit, 100_000)
            values = kept.values
            assert (values[~swept] == before[~swept]).all()
            exact = kept.plain.values_of(np.where(swept, kept.policy, -1), before, swept)
            # A residual within the limit leaves an error of limit / (1 - gamma ** duration).
            assert values == pytest.approx(exact, rel=1e-6, abs=max(1e-6 * size, 2 * limit / (1 - largest)))
            for p in done:
                assert found.rise[p] == (values - before)[kept.states(p)].max()


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_where_sweeps_are_slow_a_krylov_solver_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    """A walk along a line at discount 0.999: sweeps need thousands."""
    store = make_store(Case(slow_walk(), dtype=dtype, partitions=6), tmp_path / "s")
    backups = {}
    for way, slow in (("sweeps", np.inf), ("either", cpu_evaluation._SLOW)):
        monkeypatch.setattr(cpu_evaluation, "_SLOW", slow)
        with Kept(store, 0.999) as kept:
            everything = list(range(store.n_partitions))
            kept.improve(everything)
            found = evaluated(kept.backend, 1e-7, 1_000_000)
            assert_that_an_evaluation_is_true(kept, found, kept.before, everything)
            assert np.maximum(found.measured[2], found.measured[3]).max() <= 1e-7
            exact = kept.plain.values_of(kept.policy, kept.before, np.ones(store.n_states, np.bool_))
            assert np.abs(kept.values - exact).max() <= 1e-7 / (1 - 0.999)
            backups[way] = found.backups
    assert backups["either"] < backups["sweeps"] / 5


@pytest.mark.parametrize("partitions", [1, 5])
@pytest.mark.parametrize("shape", [{}, {"durations": True, "terminal": 0.2}, {"uniform": True}])
def test_a_solve_along_the_flow_leaves_nothing_of_what_comes_before(
    tmp_path: Path, partitions: int, shape: dict[str, Any]
) -> None:
    store = make_store(Case(random_model(3, 60, **shape), partitions=partitions), tmp_path / "s")
    with Kept(store, 0.95) as kept:
        kept.improve(range(partitions))
        rows = kept.rows
        if partitions > 1:
            rows.valid[1] = False
        solver = rows.triangular_solver()
        n, zero = store.n_states, kept.backup(np.zeros(store.n_states))
        matrix = np.stack([kept.backup(unit) - zero for unit in np.eye(n)], axis=1)
        place = np.argsort(solver.order)
        matrix[place[:, None] < place[None, :]] = 0.0
        if partitions > 1:
            matrix[kept.states(1)] = 0.0
        right = np.random.default_rng(1).normal(size=n)
        found = np.empty(n)
        solver.solve(right, found)
        assert found == pytest.approx(np.linalg.solve(np.eye(n) - matrix, right), rel=1e-5, abs=1e-5)  # of float32


def test_along_a_long_way_triangular_solves_replace_most_of_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(Case(long_way(), partitions=6), tmp_path / "s")
    left = {}
    for way, free in (("without", 0), ("with", None)):
        monkeypatch.setattr(cpu_policy, "available_bytes", lambda free=free: free)
        with Kept(store, 0.9999) as kept:
            everything = list(range(store.n_partitions))
            kept.improve(everything)
            found = evaluated(kept.backend, 1e-7, 1500)
            assert_that_an_evaluation_is_true(kept, found, kept.before, everything)
            left[way] = np.maximum(found.measured[2], found.measured[3]).max()
    assert left["with"] <= 1e-7
    assert left["without"] > 1e-3


@pytest.mark.parametrize("model", [slow_walk(), long_way()], ids=["walk", "way"])
def test_an_evaluation_that_is_left_after_every_step_takes_no_more_products(tmp_path: Path, model: Model) -> None:
    """Nothing that a solver has done is lost, with and without triangular solves; all reports are true."""
    store = make_store(Case(model, partitions=6), tmp_path / "s")
    everything = list(range(store.n_partitions))
    sweeps = []
    for seconds in (np.inf, 0.0):
        with Kept(store, 0.999, threads=1) as kept:
            kept.improve(everything)
            evaluation, before, done = kept.backend.evaluation(1e-7, 100_000), kept.before, False
            backups, left = 0, -1
            while not done:
                done = evaluation.advance(seconds)
                found = evaluation.report()
                assert_that_an_evaluation_is_true(kept, found, before, everything)
                before = kept.values
                backups, left = backups + found.backups, left + 1
            assert np.maximum(found.measured[2], found.measured[3]).max() <= 1e-7
            assert left > 30 if seconds == 0 else left == 0
            sweeps.append(backups / store.n_states)
    whole, pieces = sweeps
    assert pieces <= 1.15 * whole  # rounding decides when a solver ends: 0.95 to 1.08 at discounts close to this one


def test_values_that_others_change_under_an_evaluation_are_seen_in_the_end(tmp_path: Path) -> None:
    """They are of a partition without rows, which those with rows read."""
    store = make_store(Case(slow_walk(), partitions=6), tmp_path / "s")
    with Kept(store, 0.999) as kept:
        with_rows = list(range(store.n_partitions - 1))
        others = kept.states(store.n_partitions - 1)
        kept.improve(with_rows)
        states = np.arange(others.start, others.stop)
        evaluation, changes = kept.backend.evaluation(1e-7, 100_000), 12
        while not evaluation.advance(0.0):
            if changes:
                changes -= 1
                kept.backend.write(states, np.full(states.size, 10.0 * changes), np.array([5]), np.array([0, 80]))
                evaluation.report()
        assert changes == 0
        found, values = evaluation.report(), kept.values
        assert (values[others] == 0.0).all()
        assert np.maximum(found.measured[2], found.measured[3])[with_rows].max() <= 1e-7
        swept = np.ones(store.n_states, np.bool_)
        swept[others] = False
        exact = kept.plain.values_of(np.where(swept, kept.policy, -1), values, swept)
        assert values == pytest.approx(exact, rel=1e-5, abs=1e-4)
        kept.backend.write(states, np.full(states.size, 1e3), np.array([5]), np.array([0, states.size]))
        late = evaluation.report()
        assert np.maximum(late.measured[2], late.measured[3])[with_rows].max() > 1


@pytest.mark.parametrize("scale", [1e-300, 1e-200, 1.0, 1e200, 1e300])
def test_a_solver_needs_as_many_iterations_whatever_the_size_of_numbers(scale: float) -> None:
    rng = np.random.default_rng(4)
    matrix, right = np.eye(40) - 0.99 * rng.dirichlet(np.ones(40), 40), rng.normal(size=40)

    def run(right: FloatArray) -> tuple[int, FloatArray]:
        first = float(np.abs(right).max())
        vectors = np.full((VECTORS, right.size), np.nan)
        vectors[0] = right
        solver = Bicgstab(lambda x, out: np.matmul(matrix, x, out=out), vectors, None, 1, lambda work: work(0))
        values, count = np.zeros(40), 0
        assert solver.residual == first
        while solver.residual > 1e-9 * first and count < 100 and solver.iterate():
            count += 1
        assert solver.residual <= 1e-9 * first
        assert solver.add_to(values)
        return count, values

    count, values = run(right.copy())
    unit = 2.0 ** round(np.log2(scale))
    again, scaled = run(unit * right)
    assert again == count
    np.testing.assert_array_equal(scaled, unit * values)


def _spoil_the_residual(solver: Bicgstab) -> None:
    solver._largest *= 1e3


@pytest.mark.parametrize(
    "spoil",
    [
        lambda solver: solver._p.fill(np.nan),
        lambda solver: solver._p.fill(np.inf),
        lambda solver: solver.found.fill(np.nan),
        _spoil_the_residual,
    ],
    ids=["no number", "infinite", "found no number", "larger"],
)
def test_a_solver_that_fails_leaves_the_values_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Bicgstab], None]
) -> None:
    same: list[bool] = []
    iterate, iterate_all = Bicgstab.iterate, CpuEvaluation._iterate

    def failing(solver: Bicgstab) -> bool:
        spoil(solver)
        return spoil is not _spoil_the_residual and iterate(solver)

    def watched(evaluation: CpuEvaluation, goal: float, most: int) -> Iterator[None]:
        before = evaluation._values.copy()
        yield from iterate_all(evaluation, goal, most)
        same.append(bool((evaluation._values == before).all()))

    store = make_store(Case(slow_walk(60), partitions=3), tmp_path / "s")
    monkeypatch.setattr(CpuEvaluation, "_iterate", watched)
    monkeypatch.setattr(Bicgstab, "iterate", failing)
    with Kept(store, 0.99) as kept:
        everything = list(range(store.n_partitions))
        kept.improve(everything)
        measured = evaluated(kept.backend, 1e-8, 100_000)
        assert_that_an_evaluation_is_true(kept, measured, kept.before, everything)
        assert np.maximum(measured.measured[2], measured.measured[3]).max() <= 1e-8
    assert len(same) > 1
    assert all(same)


def test_an_evaluation_ends_after_as_many_sweeps_as_it_may_make(tmp_path: Path) -> None:
    store = make_store(Case(slow_walk(), partitions=6), tmp_path / "s")
    for most in (1, 3, 30):
        with Kept(store, 0.9999) as kept:
            everything = list(range(store.n_partitions))
            kept.improve(everything)
            found = evaluated(kept.backend, 1e-12, most)
            assert_that_an_evaluation_is_true(kept, found, kept.before, everything)
            assert 0 < found.backups <= (2 * most + 8) * store.n_states
            assert np.maximum(found.measured[2], found.measured[3]).max() > 1e-12


# --------------------------------------------------------------------------------------------------------- memory


def test_bytes_are_those_of_the_arrays(tmp_path: Path) -> None:
    for i, shape in enumerate([{}, {"durations": True}, {"uniform": True}]):
        store = make_store(Case(random_model(i, 50, **shape), dtype="float32", partitions=4), tmp_path / str(i))  # type: ignore[arg-type]
        with Kept(store, 0.9) as kept:
            rows = kept.rows
            arrays = (rows.successors, rows.probabilities, rows.rewards, rows.discounts, rows.second_best)
            working = (8 * (1 + VECTORS) + STATE_BYTES) * store.n_states
            triangle = 8 * rows.successors.size
            assert PolicyRows.nbytes(kept.model) == sum(a.nbytes for a in arrays) + triangle + working
            assert PolicyRows.nbytes(kept.model, mapped=True) == working
            assert rows.probabilities.dtype == np.float32
            kept.improve(range(4))
            packed = rows.triangular_solver()
            arrays = (*packed._triangle, packed._at_place)
            assert sum(a.nbytes for a in arrays) <= triangle + STATE_BYTES * store.n_states


def test_a_disk_without_room_for_rows_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    store = make_store(Case(random_model(0, 20), partitions=2), tmp_path / "s")
    monkeypatch.setattr(cpu_policy.os, "posix_fallocate", full)
    with pytest.raises(MemoryBudgetError, match=r"No space left on device.*point TMPDIR at a larger disk"):
        Kept(store, 0.9, mapped=True)
