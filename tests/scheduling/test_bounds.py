"""The bounds kept in RAM stay above the true residuals, whatever is visited in whatever order."""

from __future__ import annotations

import numpy as np
import pytest
from accounting import disturb, settle, swept
from claims import Residuals, residuals
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model_facts import facts_with
from small_mdps import Case, cases, stored

from ooc_mdp.backends.base import SweepLimits, VisitReport
from ooc_mdp.backends.cpu.backend import CpuBackend
from ooc_mdp.backends.layout import Needs
from ooc_mdp.errors import OptionsError
from ooc_mdp.model.contraction import Contraction
from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.model.partition import Coupling, PartitionTable
from ooc_mdp.scheduling.residual_bounds import ResidualBounds
from ooc_mdp.store import Store


class Work:
    """Visits of a store's partitions with the CPU's kernels, bounds beside them."""

    def __init__(self, store: Store, discount: float) -> None:
        self.store, self.discount = store, discount
        self.sign = 1.0 if store.sense == "max" else -1.0
        self.contraction = Contraction.of(
            discount,
            store.facts.duration_range[:, 0],
            store.facts.row_sum_range[:, 1],
            store.facts.max_successors,
            store.facts.row_sum_range[:, 0],
            int(store.facts.attributes["actions_per_state"]) > 0 and "durations" not in store.fields,
        )
        rewards = store.facts.reward_range if self.sign > 0 else -store.facts.reward_range[:, ::-1]
        self.bounds = ResidualBounds(store.facts.coupling, self.contraction, rewards, store.facts.max_successors)
        self.values, self.policy = np.zeros(store.n_states), np.full(store.n_states, -1, np.int32)
        self.tables = [store.read(p)[0] for p in range(store.n_partitions)]
        for table in self.tables:
            if table.initial_values.size:
                own = slice(table.first_state, table.first_state + table.n_states)
                self.values[own] = self.sign * table.initial_values
        if not self.values.any():
            self.bounds.at_zero_values(rewards)
        self.size = float(np.abs(self.values).max())
        self.backend = CpuBackend()
        model = facts_with(
            store.facts.partition_ptr.tolist(),
            discount,
            self.contraction.row_sum,
            partition_halo=store.facts.partition_halo,
            sign=self.sign,
        )
        self.backend.start(model, self.backend.layout(model, Needs()), self.values, self.policy)
        self.residents = [self.backend.admit(self.backend.prepare(t)) for t in self.tables]

    def visit(self, p: int, limits: SweepLimits) -> None:
        report, one = self.backend.sweep([self.residents[p]], limits).report(), np.array([p])
        self.bounds.settle(one, self.bounds.of_visit(one, report))
        self.bounds.propagate(one, report.boundary_rise, report.boundary_fall)
        self.size = max(self.size, float(np.abs(self.values).max()))

    def measure(self, p: int, replace: bool) -> None:
        measured = self.backend.measure(self.residents[p], 0.0)[0]
        settle(self.bounds, p, *(measured if replace else np.minimum(measured, self.bounds.of(p))))

    def true(self, table: PartitionTable) -> Residuals:
        row_sum = float(self.store.facts.row_sum_range[table.index, 1])
        return residuals(table, self.values, self.policy, self.sign, self.discount, row_sum)


STEPS = st.lists(
    st.tuples(
        st.integers(0, 11),
        st.sampled_from(["visit", "visit", "visit", "measure", "replace"]),
        st.integers(1, 4),
        st.sampled_from([-1.0, 0.0, 1e-3, 1e9]),
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(case=cases(), discount=st.sampled_from([0.0, 0.5, 0.9, 0.9999]), steps=STEPS)
def test_each_bound_stays_above_the_true_residual(
    case: Case, discount: float, steps: list[tuple[int, str, int, float]]
) -> None:
    with stored(case) as store:
        work = Work(store, discount)
    bounds = work.bounds
    for p, what, most, change in steps:
        if what == "visit":
            work.visit(p % store.n_partitions, SweepLimits(change, most))
        else:
            work.measure(p % store.n_partitions, what == "replace")
        slack = [bounds.rounding(work.size), bounds.rounding(work.size, plain=True)]
        for q, table in enumerate(work.tables):
            kept = (bounds.rise[q], bounds.fall[q], bounds.plain_rise[q], bounds.plain_fall[q])
            for true, bound, rounding in zip(work.true(table), kept, np.repeat(slack, 2), strict=True):
                assert true <= bound + 1e-9 * abs(bound) + 2 * rounding  # its own rounding and the test's
        assert bounds.normalised().max() + slack[0] == max(
            -bounds.error_interval(work.size)[0], bounds.error_interval(work.size)[1]
        )
        assert bounds.error(work.size) == bounds.normalised().max() + slack[0]


def two_partitions(
    mass: tuple[float, float, float, float] = (0.5, 0.5, 0.25, 0.75), least: float | None = None
) -> ResidualBounds:
    """w = [[0.5, 0.5], [0.25, 0.75]] by default, gamma 0.5; rows sum to 1 at most and `least` at least."""
    coupling = Coupling(np.array([0, 2, 4]), np.array([0, 1, 0, 1]), np.array(mass))
    min_sums = None if least is None else np.full(2, least)
    contraction = Contraction.of(0.5, np.ones(2), np.ones(2), np.array([2, 2]), min_sums, uniform_discount=True)
    return ResidualBounds(coupling, contraction, np.array([[-1.0, 2.0], [0.0, 0.0]]), np.array([2, 2]))


def test_nothing_is_known_before_the_first_visit_of_given_values() -> None:
    bounds = two_partitions()
    assert np.isinf(bounds.normalised()).all()
    assert bounds.error_interval(1.0) == (-np.inf, np.inf)
    swept(bounds, 0, 0.0, 0.0)
    assert bounds.normalised().tolist() == [0.0, np.inf]


def test_zero_values_are_as_wrong_as_rewards_are_large() -> None:
    bounds = two_partitions()
    bounds.at_zero_values(np.array([[-1.0, 2.0], [0.0, 0.5]]))
    assert bounds.plain_rise.tolist() == [2.0, 0.5]
    assert bounds.plain_fall.tolist() == [1.0, 0.0]
    assert bounds.rise == pytest.approx([4.0, 1.0])


def test_a_sweep_leaves_the_part_of_its_change_that_the_partition_reads_of_itself() -> None:
    bounds = two_partitions()
    swept(bounds, 1, 8.0, 4.0)
    assert (bounds.plain_rise[1], bounds.plain_fall[1]) == pytest.approx((3.0, 1.5))
    assert (bounds.rise[1], bounds.fall[1]) == pytest.approx((6.0, 3.0))
    assert bounds.plain_rise[1] >= 3.0
    assert np.isinf(bounds.rise[0])


def test_a_visit_disturbs_its_dependents_and_nobody_else() -> None:
    bounds = two_partitions()
    swept(bounds, 0, 0.0, 0.0)
    swept(bounds, 1, 0.0, 0.0)
    disturb(bounds, 0, 8.0, 16.0)
    inflow = bounds.inflow_of(np.array([0]), np.array([16.0]))
    assert bounds.dependents(0).tolist() == [1]
    assert (inflow.partition.tolist(), inflow.source.tolist()) == ([1], [0])
    assert inflow.plain == pytest.approx([2.0])
    assert inflow.normalised == pytest.approx([4.0])
    assert bounds.plain_rise == pytest.approx([0.0, 1.0])
    assert bounds.plain_fall == pytest.approx([0.0, 2.0])
    assert bounds.rise == pytest.approx([0.0, 2.0])
    disturb(bounds, 1, 0.0, 0.0)
    assert bounds.rise[0] == 0.0


def test_changes_too_small_to_move_a_sum_still_raise_it() -> None:
    bounds = two_partitions()
    swept(bounds, 1, 8.0, 8.0)
    before = bounds.rise[1], bounds.fall[1], bounds.plain_rise[1], bounds.plain_fall[1]
    disturb(bounds, 0, 1e-30, 1e-30)
    after = bounds.rise[1], bounds.fall[1], bounds.plain_rise[1], bounds.plain_fall[1]
    assert all(b > a for a, b in zip(before, after, strict=True))
    assert after == pytest.approx(before, rel=1e-15)


def test_a_measurement_tightens_what_the_last_change_proves_and_replaces_what_was_known() -> None:
    bounds, one, none = two_partitions(), np.array([0]), np.zeros(1)
    measured, change = np.array([[1.0], [9.0], [0.5], [9.0]]), np.full((2, 1), 8.0)
    report = VisitReport(one, one, none, none, none, none, none, residuals=measured, last_change=change)
    bounds.settle(one, bounds.of_visit(one, report))
    assert (bounds.rise[0], bounds.fall[0]) == pytest.approx((1.0, 4.0))
    assert (bounds.plain_rise[0], bounds.plain_fall[0]) == pytest.approx((0.5, 2.0))
    settle(bounds, 0, 5.0, 9.0, 3.0, 7.0)
    kept = bounds.rise[0], bounds.fall[0], bounds.plain_rise[0], bounds.plain_fall[0]
    assert kept == pytest.approx((5.0, 9.0, 3.0, 7.0))


def test_the_policy_loses_at_most_what_lies_between_both_ends() -> None:
    bounds = two_partitions()
    for p in (0, 1):
        settle(bounds, p, 1.0, 2.0 * p, 0.0, 0.0)
    lower, upper = bounds.error_interval(1.0)
    assert (lower, upper) == pytest.approx((-2.0, 1.0))
    assert bounds.policy_loss_bound(1.0) == upper - lower


def test_rounding_grows_with_values_rows_and_discount() -> None:
    bounds = two_partitions()
    assert 0 < bounds.rounding(0.0) < bounds.rounding(10.0) < 1e-13
    assert bounds.rounding(10.0, plain=True) < bounds.rounding(10.0)
    one = Contraction.of(0.5, np.ones(2), np.ones(2), np.array([2, 2]))
    arguments = np.array([[-1.0, 2.0], [0.0, 0.0]]), np.array([2, 200])
    assert ResidualBounds.rounding_of(one, *arguments, 10.0) > bounds.rounding(10.0)


@pytest.mark.parametrize(("gamma", "shortest", "total"), [(0.999, 1.0, 1.01), (0.5, 1e-18, 1.0), (1 - 2e-16, 1.0, 1.0)])
def test_a_discount_that_row_sums_undo_is_refused(gamma: float, shortest: float, total: float) -> None:
    with pytest.raises(OptionsError, match=r"partition 1 .*not below 1.*lower the discount.*--normalize"):
        Contraction.of(gamma, np.array([1.0, shortest]), np.array([0.5, total]), np.array([1, 1]))


def test_the_shortest_duration_decides_the_discount() -> None:
    c = Contraction.of(0.81, np.array([0.5, 2.0]), np.ones(2), np.array([1, 1]))
    assert c.discount == pytest.approx([0.9, 0.6561])
    assert (c.discount >= [0.9, 0.6561]).all()
    assert (c.row_sum > 1).all()
    assert c.normaliser == pytest.approx([10.0, 1 / 0.3439])


@st.composite
def couplings(draw: st.DrawFn) -> tuple[Coupling, Contraction]:
    """Up to 6 partitions, each reading itself and some of the others."""
    n = draw(st.integers(1, 6))
    reads = [sorted({p} | draw(st.sets(st.integers(0, n - 1)))) for p in range(n)]
    shares = st.floats(0.01, 1.0)
    mass = np.array([draw(shares) for row in reads for _ in row])
    ptr = np.concatenate([[0], np.cumsum([len(row) for row in reads])])
    durations = np.array(draw(st.lists(st.sampled_from([0.25, 1.0, 3.0]), min_size=n, max_size=n)))
    contraction = Contraction.of(0.9, durations, np.ones(n), np.full(n, 3))
    return Coupling(ptr, np.concatenate(reads).astype(np.int64), mass), contraction


CHANGES = st.one_of(st.just(0.0), st.floats(1e-12, 1e6))
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("disturb"), st.dictionaries(st.integers(0, 5), st.tuples(CHANGES, CHANGES), max_size=6)),
        st.tuples(st.just("replace"), st.dictionaries(st.integers(0, 5), st.tuples(*[CHANGES] * 4), max_size=6)),
    ),
    max_size=12,
)


def four(bounds: ResidualBounds) -> FloatArray:
    return np.array(list(bounds.arrays().values()))


@settings(max_examples=150)
@given(coupled=couplings(), events=EVENTS)
def test_many_at_a_time_give_the_bounds_of_one_after_the_other_rounded_upwards(
    coupled: tuple[Coupling, Contraction], events: list[tuple[str, dict[int, tuple[float, ...]]]]
) -> None:
    coupling, contraction = coupled
    n = contraction.normaliser.size
    one, many = (ResidualBounds(coupling, contraction, np.zeros((n, 2)), np.full(n, 3)) for _ in range(2))
    for bounds in (one, many):
        bounds.at_zero_values(np.tile([-1.0, 2.0], (n, 1)))
    for what, found in events:
        of = {p: numbers for p, numbers in found.items() if p < n}
        p = np.array(list(of), np.int64)
        numbers = np.array(list(of.values())).reshape(len(of), 2 if what == "disturb" else 4).T
        if what == "disturb":
            for q, (up, down) in of.items():
                disturb(one, q, up, down)
            many.propagate(p, *numbers)
        else:
            for q, measured in of.items():
                settle(one, q, *measured)
            many.settle(p, numbers)
        assert (four(many) >= four(one) * (1 - 1e-14)).all()
        assert four(many) == pytest.approx(four(one), rel=1e-10)
        for alone, together in zip(one._accumulated, many._accumulated, strict=True):
            np.testing.assert_array_equal(alone, together)


def test_no_visits_at_the_same_time_change_nothing() -> None:
    bounds = two_partitions()
    bounds.at_zero_values(np.array([[-1.0, 2.0], [0.0, 0.5]]))
    before = four(bounds)
    bounds.propagate(np.empty(0, np.int64), np.empty(0), np.empty(0))
    bounds.settle(np.empty(0, np.int64), np.empty((4, 0)))
    bounds.propagate(np.array([0, 1]), np.zeros(2), np.zeros(2))
    np.testing.assert_array_equal(four(bounds), before)


@pytest.mark.parametrize("change", [np.nan, np.inf])
@pytest.mark.parametrize("side", [0, 1])
def test_a_change_that_is_no_finite_number_proves_nothing_of_those_that_read_it(change: float, side: int) -> None:
    bounds = two_partitions()
    bounds.settle(np.array([0, 1]), np.zeros((4, 2)))
    assert not bounds.above(1.0, 0.0, True).any()
    for moved in (change, 0.0, 1e-9):
        ends = np.zeros((2, 1))
        ends[side] = moved
        bounds.propagate(np.array([0]), *ends)
        for plain in (True, False):
            np.testing.assert_array_equal(bounds.above(1.0, 0.0, plain), [False, True])
        assert not bounds.residual() <= 1.0
    bounds.settle(np.array([1]), np.zeros((4, 1)))
    assert not bounds.above(1.0, 0.0, True).any()
    assert bounds.above(1.0, np.nan, True).all()


def test_what_flowed_in_before_a_replacement_is_forgotten_for_the_replaced_only() -> None:
    bounds = two_partitions()
    bounds.settle(np.array([0, 1]), np.zeros((4, 2)))
    bounds.propagate(np.array([0, 1]), np.array([8.0, 8.0]), np.zeros(2))
    assert bounds.plain_rise == pytest.approx([2.0, 1.0])
    bounds.settle(np.array([1]), np.zeros((4, 1)))
    bounds.propagate(np.array([0, 1]), np.array([8.0, 8.0]), np.zeros(2))
    assert bounds.plain_rise == pytest.approx([4.0, 1.0])


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(case=cases(), discount=st.sampled_from([0.5, 0.9]), rounds=st.integers(1, 4), data=st.data())
def test_bounds_of_partitions_swept_together_stay_above_the_true_residuals(
    case: Case, discount: float, rounds: int, data: st.DataObject
) -> None:
    with stored(case) as store:
        work = Work(store, discount)
    bounds = work.bounds
    for _ in range(rounds):
        chosen = sorted(data.draw(st.sets(st.integers(0, store.n_partitions - 1), min_size=1)))
        report = work.backend.sweep([work.residents[p] for p in chosen], SweepLimits(0.0, 2)).report()
        work.size = max(work.size, float(np.abs(work.values).max()))
        bounds.propagate(np.array(chosen), report.boundary_rise, report.boundary_fall)
        measured = np.array([work.backend.measure(work.residents[p], 0.0)[0] for p in chosen])
        bounds.settle(np.array(chosen), measured.T)
        slack = np.repeat([bounds.rounding(work.size), bounds.rounding(work.size, plain=True)], 2)
        for q, table in enumerate(work.tables):
            for true, bound, rounding in zip(work.true(table), four(bounds)[:, q], slack, strict=True):
                assert true <= bound + 1e-9 * abs(bound) + 2 * rounding


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(case=cases(), discount=st.sampled_from([0.0, 0.5, 0.9, 0.9999]), by=st.floats(-1e7, 1e7), chosen=st.booleans())
def test_bounds_of_shifted_values_stay_above_the_true_residuals(
    case: Case, discount: float, by: float, chosen: bool
) -> None:
    """Whatever the shift; and one that the bounds propose leaves no state worse off than each is proved to be now."""
    with stored(case) as store:
        work = Work(store, discount)
    bounds = work.bounds
    for p in range(store.n_partitions):
        work.measure(p, replace=True)
    size = float(np.abs(work.values).max())
    proposed = bounds.best_shift(size)
    by = proposed if chosen else by
    low, high = -bounds.fall.max(), bounds.rise.max()
    assert proposed == 0 or low > 0 or high < 0
    bounds.apply_shift(by, size)
    work.values += by
    work.size = max(work.size, float(np.abs(work.values).max()))
    if chosen and by:
        least = low if low > 0 else -high
        assert bounds.error(work.size) <= least * (1 + 1e-9)
        assert bounds.error(work.size) <= 0.34 * max(abs(low), abs(high)) * (1 + 1e-9)
    slack = np.repeat([bounds.rounding(work.size), bounds.rounding(work.size, plain=True)], 2)
    for q, table in enumerate(work.tables):
        for true, bound, rounding in zip(work.true(table), four(bounds)[:, q], slack, strict=True):
            assert true <= bound + 1e-9 * abs(bound) + 2 * rounding


def test_values_that_all_err_alike_are_shifted_to_the_middle() -> None:
    """Two partitions, gamma 0.5: N in [3, 5] and in [4, 7] leave 2 on either side of a shift by 5."""
    bounds = two_partitions(least=1.0)
    settle(bounds, 0, 5.0, -3.0, 2.5, -1.5)
    settle(bounds, 1, 7.0, -4.0, 3.5, -2.0)
    assert bounds.best_shift(1.0) == pytest.approx(5.0)
    bounds.apply_shift(5.0, 1.0)
    assert bounds.rise == pytest.approx([0.0, 2.0], abs=1e-9)
    assert bounds.fall == pytest.approx([2.0, 1.0])
    assert bounds.plain_fall == pytest.approx([1.0, 0.5])
    assert bounds.best_shift(6.0) == 0.0


@pytest.mark.parametrize(
    ("rise", "fall"),
    [
        ((5.0, 7.0), (-3.0, 0.0)),  # a state is settled, as one without action
        ((5.0, 7.0), (-3.0, -1.0)),  # some state would be worse off than it is now
        ((5.0, np.inf), (-3.0, np.inf)),
    ],
)
def test_values_are_not_shifted_where_some_state_may_suffer(
    rise: tuple[float, float], fall: tuple[float, float]
) -> None:
    for high, low in ((rise, fall), (fall, rise)):
        bounds = two_partitions(least=1.0)
        for p in range(2):
            settle(bounds, p, high[p], low[p], high[p] / 2, low[p] / 2)
        assert bounds.best_shift(1.0) == 0.0


def test_rows_that_sum_to_less_move_less_with_a_shift() -> None:
    """gamma 0.5, sums from 0.5 to 1: N falls by 1 to 1.5 of a shift, so that 6 leaves 7 - 6 and 4 - 9."""
    bounds = two_partitions(least=0.5)
    for p in range(2):
        settle(bounds, p, 7.0, -4.0, 3.5, -2.0)
    bounds.apply_shift(6.0, 1.0)
    assert bounds.rise == pytest.approx([1.0, 1.0])
    assert bounds.fall == pytest.approx([5.0, 5.0])
    unknown = two_partitions()
    for p in range(2):
        settle(unknown, p, 7.0, -6.0, 3.5, -3.0)
    assert unknown.best_shift(1.0) == 0.0
