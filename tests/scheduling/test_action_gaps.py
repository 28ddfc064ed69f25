"""The drift of action gaps: no action can have become better than it says, whatever values did meanwhile."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plain_rows import Plain
from small_mdps import Case, cases, stored

from ooc_mdp.backends.base import Evaluation
from ooc_mdp.model.contraction import Contraction
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.model.partition import Coupling
from ooc_mdp.scheduling.action_gaps import ActionGaps
from ooc_mdp.scheduling.residual_bounds import ResidualBounds
from ooc_mdp.store import Store

few = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
DISCOUNTS = st.sampled_from([0.0, 0.5, 0.9, 0.9999])
SIZES = st.sampled_from([0.0, 1e-9, 1.0, 1e6])


def gaps_of(store: Store, discount: float) -> ActionGaps:
    facts = ModelFacts.of(store.facts, discount)
    return ActionGaps(store.facts.coupling, facts.contraction, facts.min_weights)


def rounding_of(store: Store, discount: float, size: float) -> float:
    """Of a backup at values of that size, which Q2 and what it is compared with are."""
    contraction, facts = ModelFacts.of(store.facts, discount).contraction, store.facts
    return ResidualBounds.rounding_of(contraction, facts.reward_range, facts.max_successors, size, plain=True)


def largest_of_each(store: Store, of_states: FloatArray) -> FloatArray:
    return np.maximum.reduceat(of_states, store.facts.partition_ptr[:-1])


def some_policy(plain: Plain, rng: np.random.Generator) -> npt.NDArray[np.int32]:
    counts = np.bincount(plain.state, minlength=plain.terminal.size)
    return np.where(counts > 0, rng.integers(0, np.maximum(counts, 1)), -1).astype(np.int32)


def some_change(rng: np.random.Generator, store: Store, alike: float, apart: float) -> FloatArray:
    """Of all states by about `alike`, and by about `apart` more or less; not at all in some partitions."""
    change = alike * rng.normal() + apart * rng.normal(size=store.n_states)
    still = rng.random(store.n_partitions) < 0.3
    change[np.repeat(still, np.diff(store.facts.partition_ptr))] = 0.0
    return change


@few
@given(
    case=cases(),
    discount=DISCOUNTS,
    seed=st.integers(0, 2**32 - 1),
    sizes=st.lists(st.tuples(SIZES, SIZES), min_size=1, max_size=4),
)
def test_no_other_action_is_worth_more_than_q2_and_the_drift(
    case: Case, discount: float, seed: int, sizes: list[tuple[float, float]]
) -> None:
    """Rows of any sum or that end the process, durations, no actions, partitions swept and improved between."""
    rng = np.random.default_rng(seed)
    with stored(case) as store:
        plain, gaps = Plain.of(store, discount), gaps_of(store, discount)
        owner = np.repeat(np.arange(store.n_partitions), np.diff(store.facts.partition_ptr))
        policy = some_policy(plain, rng)
        values = 10 * rng.normal(size=store.n_states)
        second = plain.best_other(values, policy)
        size = float(np.abs(values).max())

        def check() -> None:
            allowed = second + gaps.drift[owner] + 2 * rounding_of(store, discount, size)
            assert (plain.best_other(values, policy) <= allowed).all()

        for alike, apart in sizes:
            before, values = values, values + some_change(rng, store, alike, apart)
            gaps.add_rise(largest_of_each(store, values - before))
            size = max(size, float(np.abs(values).max()))
            check()
            batches = np.array_split(rng.permutation(store.n_partitions)[: rng.integers(store.n_partitions + 1)], 2)
            rise = np.zeros(store.n_partitions)
            for batch in batches:
                own, before = np.isin(owner, batch), values
                values = np.where(own, values + some_change(rng, store, alike, apart), values)
                size = max(size, float(np.abs(values).max()))
                rise[batch] = largest_of_each(store, values - before)[batch]
                second[own] = plain.best_other(values, policy)[own]
            gaps.improve(batches, rise)
            assert (gaps.drift[batches[-1]] == 0.0).all(), "nothing has changed since"
            check()


@few
@given(case=cases(), discount=DISCOUNTS, seed=st.integers(0, 2**32 - 1), sizes=st.tuples(SIZES, SIZES))
def test_bounds_over_all_actions_hold_after_an_evaluation(
    case: Case, discount: float, seed: int, sizes: tuple[float, float]
) -> None:
    rng = np.random.default_rng(seed)
    with stored(case) as store:
        plain, gaps = Plain.of(store, discount), gaps_of(store, discount)
        row_sums = ModelFacts.of(store.facts, discount).contraction.row_sum
        owner = np.repeat(np.arange(store.n_partitions), np.diff(store.facts.partition_ptr))
        policy, before = some_policy(plain, rng), 10 * rng.normal(size=store.n_states)
        second = plain.best_other(before, policy)
        change = some_change(rng, store, *sizes)
        values = before + change
        rows = plain.chosen(policy)
        scale = np.ones(store.n_states)
        scale[plain.state[rows]] = 1 - plain.discount[rows] * row_sums[owner[plain.state[rows]]]
        kept = plain.backup(values, policy) - values
        gaps.add_rise(largest_of_each(store, values - before))
        found = Evaluation(
            0,
            largest_of_each(store, values - before),
            largest_of_each(store, before - values),
            np.stack([largest_of_each(store, x) for x in (kept / scale, -kept / scale, kept, -kept)]),
            largest_of_each(store, second - values),
            largest_of_each(store, values),
            -largest_of_each(store, -values),
        )
        rise, fall, plain_rise, plain_fall = gaps.residuals(found)
        others = plain.worth(values) - values[plain.state]
        normalised = others / (1 - plain.discount * row_sums[owner[plain.state]])
        rounding = 2 * rounding_of(store, discount, float(np.abs([before, values]).max()))
        of_rows = owner[plain.state]
        assert (others <= plain_rise[of_rows] + rounding).all()
        inverse = ModelFacts.of(store.facts, discount).contraction.normaliser
        assert (normalised <= rise[of_rows] + rounding * inverse[of_rows]).all()
        assert (kept <= plain_rise[owner]).all()
        assert (fall == found.measured[1]).all()
        assert (plain_fall == found.measured[3]).all()


def one(discount: float, row_sum: float = 1.0, least: float = 1.0) -> tuple[Coupling, Contraction, FloatArray]:
    """Two partitions that read each other: half of the mass stays."""
    coupling = Coupling(np.array([0, 2, 4]), np.array([0, 1, 0, 1]), np.full(4, 0.5 * row_sum))
    contraction = Contraction.of(discount, np.ones(2), np.full(2, row_sum), np.full(2, 2))
    return coupling, contraction, np.full(2, discount * least)


@pytest.mark.parametrize("by", [3.0, -3.0])
def test_a_rise_of_all_values_alike_closes_no_gap(by: float) -> None:
    """Q2 rises by the discount times what V rises by, or falls so; rows with a sum below 1 fall by less."""
    gaps = ActionGaps(*one(0.99))
    for _ in range(5):
        gaps.add_rise(np.full(2, by))
    assert gaps.drift == pytest.approx(np.full(2, 5 * 0.99 * by), rel=1e-9)
    lossy = ActionGaps(*one(0.99, least=0.5))
    lossy.add_rise(np.full(2, by))
    assert lossy.drift == pytest.approx(np.full(2, 0.99 * by * (1.0 if by > 0 else 0.5)), rel=1e-9)


def test_what_rises_next_door_counts_by_the_mass_that_is_read_there() -> None:
    gaps = ActionGaps(*one(0.9))
    gaps.add_rise(np.array([0.0, 2.0]))
    assert gaps.drift == pytest.approx(np.full(2, 0.9), rel=1e-9)
    gaps.improve([np.array([1])], np.zeros(2))
    gaps.add_rise(np.array([-2.0, 0.0]))
    assert gaps.drift == pytest.approx(np.array([0.0, -0.9]), rel=1e-9, abs=1e-9)


def test_masses_of_different_rows_count_no_more_than_a_row_in_all() -> None:
    """Each of nine partitions may be read whole by another row: in all a row reads 1, not 9."""
    n = 9
    coupling = Coupling(n * np.arange(n + 1), np.tile(np.arange(n), n), np.ones(n * n))
    gaps = ActionGaps(coupling, Contraction.of(0.9, np.ones(n), np.ones(n), np.full(n, 2)), np.full(n, 0.9))
    gaps.add_rise(np.linspace(1.0, 2.0, n))
    assert gaps.drift == pytest.approx(np.full(n, 0.9 * 2.0), rel=1e-9)


def test_a_partition_without_other_actions_is_bounded_by_its_policy() -> None:
    gaps = ActionGaps(*one(0.9))
    gaps.add_rise(np.array([1.0, -5.0]))
    measured = np.array([[0.5, 0.2], [0.1, 0.3], [0.05, 0.02], [0.01, 0.03]])
    none, zero = np.full(2, -np.inf), np.zeros(2)
    assert (gaps.residuals(Evaluation(0, zero, zero, measured, none, zero, zero)) == measured).all()


def test_terms_that_cancel_out_leave_what_was_rounded_away() -> None:
    """A rise of 1e6 here and a fall of as much there: nothing by the sum, but not to the last bit."""
    gaps = ActionGaps(*one(0.9))
    gaps.add_rise(np.array([1e6, -1e6]))
    assert 1e-10 < float(gaps.drift.min()) <= float(gaps.drift.max()) < 1e-3
