"""Ranges of colours, steps of contours and words of actions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from made_results import made_result

from ooc_mdp.errors import OptionsError
from ooc_mdp.report.maps.colours import action_words, contour_levels, value_range

GENERATOR = np.random.default_rng(5)
USUAL = GENERATOR.uniform(-3.0, 8.0, 900)


def test_a_penalty_far_below_the_other_values_takes_no_colours():
    values = np.concatenate([USUAL, np.full(100, -100.0)])
    shown = value_range(values, "max")
    assert (shown.low, shown.high) == (USUAL.min(), USUAL.max())
    assert (shown.below, shown.above, shown.extend, shown.words) == (0.1, 0.0, "min", "10% below")
    costs = value_range(-values, "min")
    assert (costs.low, costs.high) == (-USUAL.max(), -USUAL.min())
    assert (costs.extend, costs.words) == ("max", "10% above")


@pytest.mark.parametrize(
    "values", [USUAL, np.concatenate([USUAL, [100.0]]), np.append(np.zeros(99), -1.0)], ids=["even", "peak", "constant"]
)
def test_other_values_are_all_in_the_range(values):
    shown = value_range(values, "max")
    assert (shown.low, shown.high, shown.words) == (values.min(), values.max(), "")


def test_limits_of_the_user_are_kept_and_infinite_ones_are_the_extremes():
    assert value_range(USUAL, "max", (-1.0, 2.0)).low == -1.0
    assert value_range(np.append(USUAL, -100.0), "max", (-np.inf, np.inf)).low == -100.0
    with pytest.raises(OptionsError, match="are 2 and 1; give the lower one first"):
        value_range(USUAL, "max", (2.0, 1.0))


@pytest.mark.parametrize("values", [np.full(4, 3.0), np.full(3, np.inf), np.array([0.0, np.nan])])
def test_equal_and_infinite_values_have_a_range_too(values):
    shown = value_range(values, "max")
    assert np.isfinite([shown.low, shown.high]).all()
    assert shown.low < shown.high


@pytest.mark.parametrize(("bound", "step"), [(0.0, 2.0), (0.9, 2.0), (1.1, 5.0), (4.0, 10.0)])
def test_contours_are_at_least_twice_the_error_bound_apart(bound, step):
    levels = contour_levels(value_range(np.array([0.0, 11.0]), "max"), bound)
    np.testing.assert_allclose(levels, np.arange(0.0, 11.1, step))


@pytest.mark.parametrize("bound", [6.0, np.inf])
def test_values_that_no_proof_tells_apart_have_no_contours(bound):
    assert contour_levels(value_range(np.array([0.0, 11.0]), "max"), bound).size == 0


def test_actions_are_called_by_their_control_values():
    result = made_result((2, 3), policy=np.array([0, 1, 1, -1, 1, 0], np.int32))
    assert [(w.action, w.words, w.share) for w in action_words(result)] == [
        (-1, "no action", 1 / 6), (0, "action 0", 1 / 3), (1, "action 1", 1 / 2)
    ]  # fmt: skip
    for controls, words in (([[-1.0], [0.5]], "control 0.5"), ([[0, 1], [2, 3]], "control (2, 3)")):
        known = replace(result, geometry={**result.geometry, "controls": controls})
        assert [word.words for word in action_words(known)][2] == words


def test_actions_are_called_by_the_sources_numbers():
    result = made_result((4,), policy=np.array([0, 1, 0, 0], np.int32), source_actions=np.array([7, 9, 7, 7]))
    assert [word.words for word in action_words(result)] == ["action 7", "action 9"]
