"""The command plan, and --plan of generate."""

from __future__ import annotations

import shlex

from command_line import ooc, refused

from ooc_mdp import plan
from ooc_mdp.report.forecasts import print_forecast


def test_plan_names_the_command_that_begins_the_solve(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = ooc("plan", place / "maze.store", "--discount", 0.9, "--cache", "30%", "--device", "cpu", "--json")
    assert ran.status == 0, ran.err
    figures = ran.figures
    assert figures["n_states"] == 1024
    assert figures["bytes_per_pass"] > 0
    assert figures["memory_bytes"] == sum(figures["memory"]["host"].values())
    assert list(tmp_path.iterdir()) == []
    words = shlex.split(figures["command"])
    assert words[:2] == ["ooc-mdp", "solve"]
    solved = ooc(*words[1:], "--json")
    assert solved.status == 0, solved.err
    assert solved.figures["cache_bytes"] == figures["cache_bytes"]
    assert (tmp_path / "maze.result").is_dir()


def test_plan_in_words_has_a_line_for_each_question(place):
    ran = ooc("plan", place / "maze.store", "--discount", 0.9, "--cache", "30%", "--device", "cpu", "--output", "a b")
    lines = dict(line.split(maxsplit=1) for line in ran.out.splitlines()[1:])
    assert {"table", "method", "memory", "disk", "one", "expected", "run"} <= set(lines)
    assert "1,024 states, 4,096 state-action pairs" in lines["table"]
    assert "(30.0% of the table)" in lines["method"]
    assert "process " in lines["memory"]
    assert lines["run"].endswith("--output 'a b'") or "--output" in lines["run"]


def test_plan_names_the_memory_that_a_change_of_the_method_takes(place):
    ran = ooc("plan", place / "maze.store", "--discount", 0.9, "--cache", "30%", "--device", "cpu")
    assert "beside the memory plan, if the solve comes to it: a change to policy iteration " in ran.err


def test_expected_work_is_shown_in_digits(capsys, place):
    figures = plan(place / "maze.store", 0.9, device="cpu").summary()
    work = {
        "passes": [8.19, 9.0, 11.9],
        "backups_per_state": [48.44, 1500.0, 2552.8],
        "seconds": [12.2, 17.0, 130.0],
        "basis": "solves",
    }
    expected = (
        "9 (8.19 to 11.9) passes over the table, 1,500 (48.4 to 2,550) backups per state: "
        "17.0 seconds (12.2 seconds to 2.2 minutes); from solves\n"
    )
    print_forecast({**figures, **work}, "ooc-mdp solve maze.store")
    assert expected in capsys.readouterr().out
    known = {name: [numbers[0]] * 3 for name, numbers in work.items() if name != "basis"}
    print_forecast({**figures, **known, "basis": "the trial"}, "ooc-mdp solve maze.store")
    assert "8.19 passes over the table, 48.4 backups per state: 12.2 seconds; from" in capsys.readouterr().out


def test_plan_of_a_problem_shows_what_its_store_will_take(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = ooc("plan", "GW-12x4", "--seed", 1)
    assert ran.status == 0
    assert "144 states, 576 state-action pairs, 2,288 transitions" in ran.out
    assert ran.out.splitlines()[-1].endswith("ooc-mdp generate GW-12x4 GW-12x4.store --seed 1")
    assert list(tmp_path.iterdir()) == []


def test_generate_with_plan_writes_nothing_and_refuses_what_is_too_large(tmp_path):
    small = ooc("generate", "GW-12x4", tmp_path / "s", "--plan", "--json", "--partitions", 4)
    assert small.status == 0
    assert small.figures["refusal"] is None
    assert small.figures["command"].endswith("--partitions 4")
    large = ooc("generate", "GW-1000000x4", tmp_path / "s", "--plan")
    assert large.status == 2
    assert "1,000,000,000,000 states" in large.out
    assert "of memory" in large.out
    assert list(tmp_path.iterdir()) == []


def test_options_of_a_problem_are_refused_for_a_store(place):
    assert "leave out --grid" in refused("plan", place / "maze.store", "--discount", 0.9, "--grid", "10,10")
    assert "there is no problem" in refused("plan", place / "missing.store", "--discount", 0.9)
