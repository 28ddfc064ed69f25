"""A question about a goal that float64 cannot answer: what is proved, why it is no more, and what to ask instead."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from command_line import ooc

import ooc_mdp
from ooc_mdp import Reachability
from ooc_mdp.model.table import Table


def walk(tiny: float, path: Path) -> Table:
    """Two states exchange the process, but for a tiny probability that it reaches the goal, and less that it is lost;
    from the second an action leads on to where the goal is nearly certain."""
    P = np.zeros((2, 5, 5))
    P[:, 0, 1] = 1
    P[0, 1, 0], P[0, 1, 2], P[0, 1, 3] = 1 - 1.1 * tiny, tiny, 0.1 * tiny
    P[1, 1, 4] = 1
    P[:, [2, 3], [2, 3]] = 1
    P[:, 4, [2, 3]] = 0.99, 0.01
    labels = {"goal": [2]}
    return ooc_mdp.from_arrays(P, np.zeros((5, 2)), layout="action-first", labels=labels, initial=0, path=path)


@pytest.fixture
def store(tmp_path: Path) -> Table:
    return walk(1e-15, tmp_path / "s")


def test_a_probability_over_too_many_steps_ends_with_what_is_proved_why_and_what_to_ask(store: Table, tmp_path: Path):
    ran = ooc("solve", tmp_path / "s", "--goal", "goal")
    assert ran.status == 1
    assert "STOPPED nothing is proved (target: 1.0e-06)" in ran.out
    (outcome,) = (line for line in ran.out.splitlines() if line.startswith("outcome"))
    assert outcome == (
        "outcome precision_limit: 2 of 5 states have the exact answer of the graph, and nothing is proved of the "
        "others: a good policy may go on for an expected 2e+15 steps before the process ends, and over so many the "
        "rounding of float64 hides by how much a lower and an upper value differ; ask for the probability within K "
        "steps (--within K), which is proved and at most this one"
    )


@pytest.mark.parametrize("epsilon", [None, 0.01])
def test_what_a_solve_at_the_limit_of_float64_guesses_is_a_probability(store: Table, epsilon: float | None):
    solution = ooc_mdp.solve(store, Reachability("goal"), epsilon=epsilon)
    assert solution.outcome is ooc_mdp.Outcome.PRECISION_LIMIT
    assert solution.certificate.proof == "nothing is proved"
    assert (solution.values >= 0).all()
    assert (solution.values <= 1).all()


def test_a_larger_error_is_named_where_it_may_be_reached(tmp_path: Path):
    store = walk(1e-12, tmp_path / "t")
    solution = ooc_mdp.solve(store, Reachability("goal"))
    assert solution.outcome is ooc_mdp.Outcome.PRECISION_LIMIT
    named = float(re.search(r"; --epsilon (\S+) may be large enough$", solution.message)[1])  # type: ignore[index]
    assert ooc_mdp.solve(store, Reachability("goal"), epsilon=named).outcome is ooc_mdp.Outcome.PROVED


def test_the_probability_within_a_number_of_steps_is_proved_there(store: Table, tmp_path: Path):
    figures = json.loads(ooc("solve", tmp_path / "s", "--goal", "goal", "--within", 4, "--json").out)
    assert figures["outcome"] == "proved"
    assert figures["initial"][0]["value"] == pytest.approx(0.99)


def test_an_error_that_is_asked_for_and_too_small_is_what_to_change(store: Table):
    solution = ooc_mdp.solve(store, Reachability("goal", sense="min"), epsilon=1e-300)
    assert "ask for a larger --epsilon" in solution.message
