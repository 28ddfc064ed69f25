"""A solve that is stopped says whether it can be continued: only where there is a checkpoint."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_line import ooc

import ooc_mdp
from ooc_mdp import Reachability
from ooc_mdp.model.table import Table


@pytest.fixture
def store(tmp_path: Path) -> Table:
    """A walk from 0 to the goal, whose steps pay 1."""
    n = 6
    P = np.zeros((1, n, n))
    P[0, np.arange(n), np.minimum(np.arange(n) + 1, n - 1)] = 0.5
    P[0, np.arange(n), np.maximum(np.arange(n) - 1, 0)] += 0.5
    P[0, n - 1] = np.eye(n)[n - 1]
    rewards = np.ones((n, 1))
    rewards[n - 1] = 0
    labels = {"goal": [n - 1]}
    return ooc_mdp.from_arrays(P, rewards, layout="action-first", labels=labels, initial=0, path=tmp_path / "s")


@pytest.mark.parametrize(
    "words",
    [
        ("--goal", "goal"),
        ("--goal", "goal", "--within", 3),
        ("--reward", "table", "--goal", "goal", "--sense", "min"),
        ("--total", "--infinite"),
        ("--total",),
    ],
)
def test_a_solve_that_is_stopped_before_it_has_values_promises_no_resume(
    store: Table, tmp_path: Path, words: tuple[object, ...]
):
    ran = ooc("solve", tmp_path / "s", *words, "--output", tmp_path / "r", "--time-limit", 1e-9, "--json")
    figures = json.loads(ran.out)
    assert (ran.status, figures["outcome"], figures["checkpoint"]) == (1, "time_limit", None)
    assert "there is no checkpoint to go on from" in figures["message"]
    assert "--resume" not in figures["message"]
    assert not list(tmp_path.glob("r*"))


@pytest.mark.parametrize("words", [("--horizon", 3), ("--average",), ("--discount", 0.99)])
def test_a_stop_at_the_first_step_names_resume_where_there_is_a_checkpoint(
    store: Table, tmp_path: Path, words: tuple[object, ...]
):
    ran = ooc("solve", tmp_path / "s", *words, "--output", tmp_path / "r", "--time-limit", 1e-9, "--json")
    figures, left = json.loads(ran.out), tmp_path / "r.checkpoint"
    assert figures["checkpoint"] == (str(left) if left.exists() else None)
    assert ("--resume" in figures["message"]) == left.exists()


def test_a_search_of_the_graph_that_is_interrupted_promises_no_resume_anywhere(store: Table, tmp_path: Path):
    stopped = ooc_mdp.solve(store, Reachability("goal"), output=tmp_path / "r", time_limit=1e-9)
    for outcome in (ooc_mdp.Outcome.TIME_LIMIT, ooc_mdp.Outcome.INTERRUPTED, ooc_mdp.Outcome.WORKERS_LOST):
        solution = replace(stopped, outcome=outcome)
        assert "--resume" not in outcome.message + solution.message + solution._repr_html_()
        kept = replace(solution, checkpoint="r.checkpoint")
        assert "go on with --resume" in kept.message
        assert "go on with --resume" in kept._repr_html_()


def test_a_solve_that_is_stopped_with_values_names_its_checkpoint(store: Table, tmp_path: Path):
    stopped = ooc_mdp.solve(store, 0.999, output=tmp_path / "r", time_limit=1e-9)
    assert stopped.checkpoint == str(tmp_path / "r.checkpoint")
    assert Path(stopped.checkpoint).exists()
    assert ooc_mdp.solve(store, 0.999, output=tmp_path / "r", resume=True).checkpoint is None
    assert ooc_mdp.solve(store, 0.999, time_limit=1e-9).checkpoint is None


def test_a_solve_that_is_stopped_names_the_earlier_result_that_it_leaves(store: Table, tmp_path: Path):
    asked = ("solve", tmp_path / "s", "--goal", "goal", "--output", tmp_path / "r")
    assert ooc(*asked).status == 0
    ran = ooc(*asked, "--overwrite", "--time-limit", 1e-9)
    assert f"the earlier one, {tmp_path / 'r'}, is as it was, and no checkpoint" in ran.out
