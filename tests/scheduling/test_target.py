"""The stopping rule: what is asked, what stands in for it meanwhile, when it is reached and when it cannot be."""

from __future__ import annotations

import numpy as np
import pytest
from accounting import settle, swept

from ooc_mdp.model.contraction import Contraction
from ooc_mdp.model.partition import Coupling
from ooc_mdp.model.solution import Outcome
from ooc_mdp.options import SolveOptions
from ooc_mdp.scheduling.residual_bounds import ResidualBounds
from ooc_mdp.scheduling.target import RELATIVE_EPSILON, Target


def bounds(
    level: float, plain: float | None = None, largest_reward: float = 1.0, discount: float = 0.5
) -> ResidualBounds:
    """One partition that reads itself, at the given residuals."""
    made = ResidualBounds(
        Coupling(np.array([0, 1]), np.array([0]), np.ones(1)),
        Contraction.of(discount, np.ones(1), np.ones(1), np.array([2])),
        np.array([[-largest_reward, largest_reward]]),
        np.array([2]),
    )
    settle(made, 0, level, level, level if plain is None else plain, 0.0)
    return made


def target(b: ResidualBounds, values: tuple[float, float], span: float = 0.0, **options: float) -> Target:
    made = Target(SolveOptions(0.5, **options), b, span)
    made.update_value_range(*values, max(map(abs, values)))
    return made


def test_the_default_is_a_share_of_the_values_range() -> None:
    assert target(bounds(0.0), (-1.0, 3.0)).tolerance == 4 * RELATIVE_EPSILON


def test_one_state_has_its_size_for_a_range() -> None:
    assert target(bounds(0.0), (-7.0, -7.0)).tolerance == 7 * RELATIVE_EPSILON


def test_values_that_may_be_one_number_have_their_size_for_a_range() -> None:
    apart = 1e-13
    assert target(bounds(apart), (5.0, 5.0 + apart)).tolerance == pytest.approx(5 * RELATIVE_EPSILON)
    assert target(bounds(apart / 10), (5.0, 5.0 + 1e-10)).tolerance == pytest.approx(1e-10 * RELATIVE_EPSILON, rel=1e-4)


def test_values_of_nothing_but_rounding_ask_for_what_rounding_allows() -> None:
    made = target(bounds(0.0), (0.0, 0.0))
    assert made.tolerance == 4 * made.rounding > 0
    assert made.reached()
    assert made.outcome is Outcome.PROVED


def test_no_rewards_and_no_values_are_exact() -> None:
    made = target(bounds(0.0, largest_reward=0.0), (0.0, 0.0))
    assert (made.tolerance, made.rounding) == (0.0, 0.0)
    assert made.reached()
    assert made.outcome is Outcome.PROVED


def test_the_span_of_rewards_stands_in_until_the_range_is_known() -> None:
    b = bounds(1e-5)
    made = target(b, (0.0, 0.01), span=1.0)
    assert made.active_tolerance == RELATIVE_EPSILON
    assert not made.dirty().any()
    assert not made.reached()
    assert made.active_tolerance == made.tolerance == 0.01 * RELATIVE_EPSILON
    assert made.dirty().all()
    settle(b, 0, 1e-7, 0.0, 0.0, 0.0)
    assert made.reached()


def test_a_share_of_the_range_is_no_target_before_the_range_is_known() -> None:
    made = target(bounds(1e-5), (0.0, 0.01), span=1.0)
    assert not made.known_at(1.0)
    assert made.known_at(0.005)
    assert target(bounds(1e-5), (0.0, 0.01), epsilon=1e-3).known_at(1.0)


def test_the_error_is_never_more_than_the_range_of_all_discounted_sums_allows() -> None:
    """Rewards from -1 to 1 at discount 0.5: V* lies between -2 and 2."""
    assert target(bounds(1e6), (0.0, 0.5)).trivial_error() == pytest.approx(2.5)
    assert target(bounds(1e6), (-3.0, 0.5)).trivial_error() == pytest.approx(5.0)
    assert target(bounds(1e6, largest_reward=0.0), (0.0, 0.0)).trivial_error() == 0.0


def test_an_epsilon_is_what_is_asked() -> None:
    made = target(bounds(1e-3), (0.0, 1.0), span=100.0, epsilon=1e-2)
    assert made.tolerance == made.active_tolerance == 1e-2
    assert made.threshold == 1e-2 - made.rounding
    assert made.reached()


def test_rounding_counts_against_the_target() -> None:
    made = target(bounds(1e-3), (0.0, 1.0), epsilon=1e-3)
    assert made.dirty().all()
    assert not made.reached()


def test_sweeps_for_a_target_below_rounding_end_at_what_they_can_reach() -> None:
    b = bounds(1.0)
    made = target(b, (0.0, 1.0), epsilon=1e-20)
    assert made.active_tolerance == 2 * made.rounding
    assert not made.reached()
    assert made.change_limits(np.array([0]), 0.5)[0] > 0
    settle(b, 0, made.rounding / 2, 0.0, 0.0, 0.0)
    assert made.reached()
    assert made.outcome is Outcome.PRECISION_LIMIT


def test_a_bound_below_the_target_is_proved_however_much_of_it_is_rounding() -> None:
    b = bounds(0.0)
    made = target(b, (0.0, 1.0), epsilon=1.1 * b.rounding(1.0))
    assert made.reached()
    assert made.outcome is Outcome.PROVED


def test_the_papers_rule_looks_at_the_plain_residual() -> None:
    made = target(bounds(1.0, plain=1e-3), (0.0, 1.0), residual=1e-2)
    assert made.plain
    assert made.tolerance == 1e-2
    assert made.reached()
    assert made.bounds().tolist() == pytest.approx([1e-3])


def test_a_sweep_within_the_change_limit_leaves_its_share_of_the_target() -> None:
    b = bounds(1.0)
    made = target(b, (0.0, 1.0), epsilon=1e-2)
    limit = made.change_limits(np.array([0]), 0.25)[0]
    swept(b, 0, limit, limit)
    assert b.normalised()[0] == pytest.approx(0.25 * made.threshold)
    plain = target(b, (0.0, 1.0), residual=1e-2)
    limit = plain.change_limits(np.array([0]), 0.25)[0]
    swept(b, 0, limit, limit)
    assert b.plain()[0] == pytest.approx(0.25 * plain.threshold)


def test_changes_have_no_limit_where_hardly_anything_is_left_of_them() -> None:
    made = target(bounds(0.0, largest_reward=1e130, discount=1e-300), (0.0, 1e130), epsilon=1e126)
    assert made.change_limits(np.array([0]), 0.5)[0] == np.inf


def test_a_partition_that_does_not_read_itself_is_done_after_one_sweep() -> None:
    b = bounds(1.0)
    b.own_mass[0] = 0.0
    assert target(b, (0.0, 1.0), epsilon=1e-2).change_limits(np.array([0]), 0.25)[0] == np.inf
