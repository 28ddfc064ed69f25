"""Questions about goals on the command line and in Python: what is printed, kept in results, resumed and refused."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from command_line import ooc

import ooc_mdp
from ooc_mdp import Discounted, Reachability, RewardToGoal, TotalReward
from ooc_mdp.events import SolveProgress
from ooc_mdp.model.criterion import Criterion, option_of
from ooc_mdp.solver import session
from ooc_mdp.undiscounted import totals

DRN = """@type: MDP
@parameters

@reward_models
steps toll
@nr_states
4
@model
state 0 [1, 0] init
\taction 0 [0, 2]
\t\t1 : 0.5
\t\t2 : 0.5
\taction 1 [0, 0]
\t\t0 : 0.75
\t\t3 : 0.25
state 1 [1, 0] goal
\taction 0
\t\t1 : 1
state 2 [1, 0] lost
\taction 0
\t\t2 : 1
state 3 [1, 0] side
\taction 0
\t\t0 : 0.5
\t\t1 : 0.5
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.drn"
    path.write_text(DRN)
    return path


def answer(*words: object) -> dict:
    ran = ooc("solve", *words, "--json")
    assert ran.status == 0, ran.err
    return json.loads(ran.out)


STA = "(x,on)\n0:(0,false)\n1:(3,true)\n2:(-1,true)\n3:(3,false)\n"
TRA = "4 5 8\n0 0 1 0.5\n0 0 2 0.5\n0 1 0 0.75\n0 1 3 0.25\n1 0 1 1\n2 0 2 1\n3 0 0 0.5\n3 0 1 0.5\n"


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["--goal", 'x=3 & on & !"crashed"'], 1.0),
        (["--goal", "x=3", "--sense", "min"], 0.5),
        (["--goal", "x < 0"], 0.5),
        (["--goal", "x = 3 & on", "--avoid", "x=3 & !on"], 0.5),
        (["--goal", "on & x + 1 = 4", "--within", "2"], 0.5),
    ],
)
def test_goals_compare_state_variables(tmp_path: Path, words: list[str], value: float):
    path = tmp_path / "m.tra"
    path.write_text(TRA)
    path.with_suffix(".sta").write_text(STA)
    path.with_suffix(".lab").write_text('0="init" 1="crashed"\n0: 0\n2: 1\n')
    figures = answer(path, *words, "--epsilon", "1e-9")
    assert float(figures["initial"][0]["value"]) == pytest.approx(value, abs=1e-8)


def test_a_goal_that_names_no_variable_of_the_model_lists_those_that_there_are(tmp_path: Path):
    path = tmp_path / "m.tra"
    path.write_text(TRA)
    path.with_suffix(".sta").write_text(STA)
    ran = ooc("solve", path, "--goal", "on & y=3")
    assert ran.status == 2
    assert "character 6: there is no variable 'y'; there are: variables x, on" in ran.err


def test_arrays_are_asked_by_their_variables():
    P = np.zeros((4, 2, 4))
    P[0] = [[0, 0.5, 0.5, 0], [0.75, 0, 0, 0.25]]
    P[1:] = np.eye(4)[1:, None]
    P[3, :] = [0.5, 0.5, 0, 0]
    store = ooc_mdp.from_arrays(P, np.zeros((4, 2)), layout="state-first", variables={"x": [0, 3, -1, 3]}, initial=0,
                                partitions=2)  # fmt: skip
    least = ooc_mdp.solve(store, Reachability("x = 3", avoid="x < 0", sense="min"))
    assert least.values[0] == pytest.approx(0.5, abs=1e-6)


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["--goal", "goal"], 1.0),
        (["--goal", "goal", "--sense", "min"], 0.5),
        (["--goal", '"lost"'], 0.5),
        (["--goal", "goal", "--avoid", "side"], 0.5),
        (["--goal", "goal", "--within", "2"], 0.5),
        (["--goal", "goal", "--within", "3", "--avoid", "lost"], 0.5625),
        (["--goal", "goal | lost", "--sense", "min"], 1.0),
        (["--reward", "steps", "--goal", "goal", "--sense", "min"], 10.0),
        (["--reward", "steps", "--goal", "goal"], math.inf),
        (["--reward", "toll", "--goal", "goal | lost", "--sense", "max"], 2.0),
        (["--reward", "toll", "--total", "--infinite"], 2.0),
        (["--reward", "toll", "--total", "--sense", "min"], 0.0),
        (["--reward", "steps", "--discount", "0.5"], 2.0),
    ],
)
def test_one_command_answers_from_a_model_file(model: Path, words: list[str], value: float):
    figures = answer(model, *words, "--epsilon", "1e-9")
    assert [each["state"] for each in figures["initial"]] == [0]
    found = {name: float(x) for name, x in figures["initial"][0].items()}
    assert found["lower"] <= value <= found["upper"]
    assert found["value"] == pytest.approx(value, abs=1e-9)


def test_the_answer_at_the_initial_state_is_printed_first_with_its_interval(model: Path):
    ran = ooc("solve", model, "--goal", "goal", "--sense", "min", "--epsilon", "1e-6")
    assert re.match(r"initial +0\.5 in \[0\.4999\d*, 0\.50000\d*\], state 0\n", ran.out)
    assert "converted to a temporary store" in ran.err


@pytest.mark.parametrize(
    "question",
    [
        Reachability("goal", "side", sense="min"),
        Reachability("goal", within=3),
        RewardToGoal("goal", "steps"),
        RewardToGoal("goal", "steps", "min"),
        TotalReward("toll", "max", infinite=True),
        Discounted(0.5, "steps", "min"),
    ],
)
def test_a_result_on_disk_records_the_question_and_is_verified(model: Path, tmp_path: Path, question: Criterion):
    store = ooc_mdp.convert(model, tmp_path / "s")
    solution = ooc_mdp.solve(store, question, output=tmp_path / "r")
    result = ooc_mdp.open_result(tmp_path / "r")
    np.testing.assert_array_equal(result.values, solution.values)
    assert result.identity["criterion"] == question.name
    assert ooc_mdp.verify(store, result).holds
    assert ooc("verify", tmp_path / "s", tmp_path / "r").status == 0
    again = ooc_mdp.solve(store, question, output=tmp_path / "r", resume=True)
    np.testing.assert_array_equal(again.values, solution.values)
    with pytest.raises(ooc_mdp.OptionsError, match="belongs to"):
        ooc_mdp.solve(store, Reachability("lost"), output=tmp_path / "r", resume=True)
    shown = ooc("inspect", tmp_path / "r").out
    assert f"question       {option_of(question)}\n" in shown
    ooc_mdp.write_report(result, tmp_path / "r.html")


def test_a_tighter_target_continues_from_a_result_with_infinite_values(model: Path, tmp_path: Path):
    store = ooc_mdp.convert(model, tmp_path / "s")
    question = RewardToGoal("goal", "steps", "min")
    first = ooc_mdp.solve(store, question, epsilon=0.1, output=tmp_path / "r")
    assert np.isinf(first.values).tolist() == [False, False, True, False]
    second = ooc_mdp.solve(store, question, epsilon=1e-9, output=tmp_path / "r", resume=True)
    assert second.error_bound <= 1e-9
    assert np.isinf(second.values[2])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--goal", "gaol"], "there is no label 'gaol'; there are: labels goal, init, lost, side"),
        (["--goal", "goal &"], "a label or a variable is expected after 'goal &'"),
        (["--goal", "goal", "--within", "-1"], "within is -1 steps"),
        (["--goal", "goal", "--sense", "up"], "sense is 'up'; give max or min"),
        (["--reward", "tolls", "--goal", "goal"], "there is no reward model 'tolls'; there are: steps, toll"),
        (["--reward", "toll"], "add --goal EXPR, --total or --discount D"),
        (["--discount", "0.9"], "the model has the reward models steps, toll: name one (--reward NAME"),
        (["--avoid", "goal"], "give exactly one of"),
        (["--reward", "toll", "--goal", "goal", "--within", "3"], "a reward until a goal has no --within; leave it"),
        (["--reward", "toll", "--goal", "goal", "--avoid", "lost"], "a reward until a goal has no --avoid; leave it"),
        (["--discount", "0.9", "--goal", "goal"], "give exactly one of"),
        (["--goal", "Pmax=? [F goal]"], "only states are named here; write --goal goal --sense max"),
        (["--goal", "goal", "--method", "vi"], "has a method of its own"),
        (["--goal", "goal", "--device", "cuda:0"], "is solved on the CPU only"),
        (["--goal", "goal", "--workers", "2"], "is solved on one machine only"),
        (["--reward", "toll", "--discount", "0.9", "--workers", "2"], "the store's own rewards and sense"),
    ],
)
def test_what_is_no_question_is_refused(model: Path, tmp_path: Path, words: list[str], message: str):
    ooc_mdp.convert(model, tmp_path / "s")
    ran = ooc("solve", tmp_path / "s", *words)
    assert ran.status != 0
    assert message in ran.err.replace("\n", " ")


def test_rewards_without_a_name_are_listed_as_the_tables(tmp_path: Path):
    (tmp_path / "m.tra").write_text(TRA)
    (tmp_path / "m.srew").write_text("4 1\n0 1\n")
    store = ooc_mdp.convert(tmp_path / "m.tra", tmp_path / "s")
    with pytest.raises(ooc_mdp.OptionsError, match="there is no reward model 'srew'; there are: table"):
        ooc_mdp.solve(store, RewardToGoal("init", "srew"))


def test_an_answer_that_the_graph_decides_is_proved_without_an_error(model: Path, tmp_path: Path):
    store = ooc_mdp.convert(model, tmp_path / "s")
    solution = ooc_mdp.solve(store, Reachability("goal | lost"), output=tmp_path / "r")
    assert solution.values.tolist() == [1, 1, 1, 1]
    found = solution.certificate
    assert (found.error_bound, found.error_lower, found.error_upper, found.policy_loss_bound) == (0, 0, 0, 0)
    checked = ooc_mdp.verify(store, tmp_path / "r")
    assert (checked.holds, checked.error_bound) == (True, 0)


def test_a_solve_without_a_proof_has_the_answers_that_the_graph_decides(model: Path, tmp_path: Path):
    store = ooc_mdp.convert(model, tmp_path / "s")
    solution = ooc_mdp.solve(store, RewardToGoal("goal", "steps", "min"), epsilon=1e-300)
    assert solution.outcome is ooc_mdp.Outcome.PRECISION_LIMIT
    assert solution.values[2] == math.inf
    assert solution.certificate.error_bound == math.inf
    assert solution.values[0] == pytest.approx(10, abs=1e-6)


def test_the_same_goal_of_another_table_is_another_question(model: Path, tmp_path: Path):
    ooc_mdp.solve(ooc_mdp.convert(model, tmp_path / "s"), Reachability("goal"), output=tmp_path / "r")
    model.write_text(DRN.replace("lost", "goal"))
    other = ooc_mdp.convert(model, tmp_path / "t")
    with pytest.raises(ooc_mdp.OptionsError, match="solved from another table"):
        ooc_mdp.verify(other, tmp_path / "r")


def test_a_limit_leaves_a_checkpoint_from_which_the_question_continues(tmp_path: Path):
    n = 400
    P = np.zeros((2, n, n))
    for s in range(n):
        P[0, s, min(s + 1, n - 1)] += 0.5
        P[0, s, max(s - 1, 0)] += 0.5
        P[1, s, s] = 1
    labels = {"goal": [n - 1]}
    store = ooc_mdp.from_arrays(P, np.ones((n, 2)), layout="action-first", labels=labels, partitions=8)
    question = RewardToGoal("goal", sense="min")
    seen: list[object] = []
    stopped = ooc_mdp.solve(store, question, output=tmp_path / "r", time_limit=1e-9)
    assert stopped.outcome is ooc_mdp.Outcome.TIME_LIMIT
    solution = ooc_mdp.solve(store, question, output=tmp_path / "r", resume=True, progress=seen.append)
    assert solution.outcome is ooc_mdp.Outcome.PROVED
    exact = (n - 1) * n - np.arange(n) * (np.arange(n) + 1)
    assert (np.abs(solution.values - exact) <= solution.error_bound).all()


@pytest.mark.parametrize("question", [Reachability("goal"), TotalReward(sense="min")])
def test_a_long_search_of_the_graph_is_noted_and_its_progress_is_seen(
    question: Criterion, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(totals, "_FIRST_NOTE", 0.0)
    monkeypatch.setattr(totals, "_NEXT_NOTE", 0.0)
    monkeypatch.setattr(session, "_REPORT_SECONDS", 0.0)
    n = 60
    order = np.random.default_rng(3).permutation(n)
    P = np.zeros((1, n, n))
    P[0, order[:-1], order[1:]] = 1
    P[0, order[-1], order[-1]] = 1
    rewards = np.ones((n, 1))
    rewards[order[-1]] = 0
    store = ooc_mdp.from_arrays(P, rewards, layout="action-first", labels={"goal": [order[-1]]}, partitions=12)
    notes, seen = list[str](), list[SolveProgress]()
    ooc_mdp.solve(store, question, note=notes.append, progress=seen.append)
    searching = [note for note in notes if "the graph is searched before values are computed" in note]
    passes = [int(re.search(r"pass (\d+), \d+ of 12 partitions left", note)[1]) for note in searching]  # type: ignore[index]
    assert passes == sorted(passes)
    assert passes[-1] > 5
    assert any(each.dirty < 12 for each in seen[: len(searching)])


def test_messages_and_results_name_the_model_file_that_is_solved(model: Path, tmp_path: Path):
    (tmp_path / "ends.tra").write_text("2 1 1\n0 0 1 1\n")
    ran = ooc("solve", tmp_path / "ends.tra", "--average")
    assert ran.status != 0
    assert f"state 1 of {tmp_path / 'ends.tra'} has no action" in ran.err.replace("\n", " ")
    solved = ooc("solve", model, "--goal", "goal", "--output", tmp_path / "r")
    assert solved.status == 0, solved.err
    assert json.loads(ooc("inspect", tmp_path / "r", "--json").out)["store"] == "model.drn"
