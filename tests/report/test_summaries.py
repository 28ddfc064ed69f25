"""The summary of a solve names what to try next."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_mdps import Case, make_store
from store_models import random_model

import ooc_mdp
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
