"""Where a solve stands in one line: its parts, the remaining time, and key=value."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from ooc_mdp.events import SolveProgress
from ooc_mdp.report.solve_line import Remaining, fitted, log_line, status_line

SEEN = SolveProgress(1.0, 0.5, 0.25, "epsilon", 2, 4, 0.5, 3 << 20, 0.0, 7, 12.0)


def test_the_bound_that_must_come_down_is_named_first_with_its_target():
    assert status_line(SEEN, 0.0, None)[0] == "error ≤ 1.00e+00 (target 2.5e-01)"
    plain = status_line(replace(SEEN, stopping_rule="residual"), 0.0, None)
    assert plain[0] == "residual ≤ 5.00e-01 (target 2.5e-01)"
    assert not any("error" in part for part in plain)


def test_no_target_and_no_bound_are_shown_while_they_are_not_known():
    assert status_line(replace(SEEN, target=None), 0.0, None)[0] == "error ≤ 1.00e+00"
    assert status_line(replace(SEEN, error_bound=math.inf), 0.0, None)[0] == "no error is proved yet"
    assert status_line(replace(SEEN, stages=(3, 40)), 0.0, None)[0] == "3 of 40 stages done"


@pytest.mark.parametrize("width", range(0, 60, 7))
def test_a_line_is_never_wider_than_asked_and_loses_its_last_parts_first(width):
    line = fitted(["error ≤ 1.0", "2 of 4 dirty", "7 loads", "hit rate 50%"], width)
    assert len(line) <= width
    assert "error ≤ 1.0, 2 of 4 dirty, 7 loads, hit rate 50%".startswith(line)


def test_a_log_line_is_key_and_value():
    line = log_line(SEEN, 1 << 20, 65.4)
    assert line == (
        "t=12 error=1.00e+00 residual=5.00e-01 target=2.5e-01 dirty=2/4 loads=7 hit=0.500 read=3.0MiB rate=1.0MiB/s "
        "left=65"
    )
    assert "target" not in log_line(replace(SEEN, target=None), 0.0, None)
    assert "left" not in log_line(SEEN, 0.0, None)


def reports(bounds: list[float], every: float = 1.0) -> Remaining:
    found = Remaining()
    for i, bound in enumerate(bounds):
        found.add(replace(SEEN, error_bound=bound, seconds=i * every))
    return found


def test_the_remaining_time_follows_from_a_steady_fall():
    steady = reports([10.0 * 0.5**i for i in range(31)])
    assert steady.seconds(10.0 * 0.5**40) == pytest.approx(10.0)
    assert steady.seconds(1e9) == 0.0


@pytest.mark.parametrize(
    "bounds",
    [
        [1.0] * 60,
        [0.5**i for i in range(10)],
        [2.0**i for i in range(60)],
        [*([1.0] * 57), 0.5, 0.25, 0.125],
        [math.inf] * 60,
    ],
    ids=["no fall", "too few", "a rise", "a fall at the end only", "nothing known"],
)
def test_no_remaining_time_is_named_that_is_not_credible(bounds):
    assert reports(bounds).seconds(1e-9) is None


def test_no_remaining_time_without_a_target_or_in_the_first_seconds():
    falling = [0.5**i for i in range(30)]
    assert reports(falling).seconds(None) is None
    assert reports(falling, every=0.1).seconds(1e-12) is None


def test_another_solve_begins_anew():
    found = reports([0.5**i for i in range(30)])
    found.add(replace(SEEN, seconds=0.0))
    assert found.seconds(1e-12) is None
