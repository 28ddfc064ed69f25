"""The summary of a solve names what to try next."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small_mdps import Case, make_store
from store_models import random_model

import ooc_mdp
from ooc_mdp.report import summaries
from ooc_mdp.report.summaries import print_solution


@pytest.mark.parametrize("target", ["epsilon", "residual"])
def test_a_target_that_is_too_small_is_answered_with_the_least_that_is_possible(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str
) -> None:
    store = make_store(Case(random_model(3, 20)), tmp_path / "s")
    solution = ooc_mdp.solve(store, 0.9, device="cpu", **{target: 1e-30})  # type: ignore[arg-type]
    print_solution(solution.summary(), solution.outcome, None)
    said = capsys.readouterr().out
    assert (
        "precision_limit: the target is below what can be proved of float64 values; the least that is possible is "
        f"--{target} {solution.least_target:g}"
    ) in said


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [
        (0.12345678901249, 0.12345678901241, "[0.123456789012, 0.123456789013]"),
        (-0.12345678901241, 2.000000000001e-7, "[-0.123456789013, 2.00000000001e-07]"),
        (1e-320, 1.0, "[9.99988867182e-321, 1]"),
        (-np.inf, np.inf, "[-inf, inf]"),
        ("-inf", 0, "[-inf, 0]"),
    ],
)
def test_ends_of_an_interval_are_rounded_outward(low: float | str, high: float | str, shown: str) -> None:
    assert summaries._interval(low, high) == shown
    assert float(shown[1:].split(",")[0]) <= float(low)
    assert float(shown[:-1].split(", ")[1]) >= float(high)
