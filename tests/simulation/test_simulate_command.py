"""The command `simulate`: what it prints, writes and refuses."""

from __future__ import annotations

import csv
import json
import shlex
import shutil
import sys

import pytest
from command_line import ooc, refused
from paths import REPOSITORY
from simulated_problems import FOUR_AXES, LINE, MASS, any_policy

import ooc_mdp
from ooc_mdp.errors import MissingExtraError, StoreError
from ooc_mdp.problems.control import discretise
from ooc_mdp.problems.registry import make_problem
from ooc_mdp.simulation import (
    SimulationOptions,
    simulate,
)


def test_the_command_prints_a_line_a_start_and_the_share_of_success(pendulum):
    ran = ooc("simulate", pendulum, "--start", "initial", "--start", "0.1,0", "--random-starts", 2, "--duration", 10)
    assert ran.status == 0, ran.err
    lines = ran.out.splitlines()
    assert lines[0].startswith("start (angle, speed)")
    assert sum("  held  " in line for line in lines) == 4
    assert "success: 4 of 4 starts (100%); 4 of the 4 starts above the value threshold" in ran.out


def test_json_holds_the_figures_of_each_run(car):
    figures = ooc("simulate", car, "--random-starts", 6, "--seed", 3, "--json").figures
    assert figures["problem"] == "mountain-car"
    assert figures["starts"] == len(figures["runs"]) == 6
    assert figures["successes"] == sum(run["success"] for run in figures["runs"])
    assert figures["starts_above_value_threshold"] == sum(run["above_value_threshold"] for run in figures["runs"])
    worthy = [run["success"] for run in figures["runs"] if run["start_value"] > 0.5]
    assert worthy
    assert all(worthy)
    assert len(worthy) <= figures["successes_above_value_threshold"] <= figures["starts_above_value_threshold"]
    again = ooc_mdp.simulate(car, random=6, seed=3).summary()
    assert figures == json.loads(json.dumps(again))


def test_the_python_interface_takes_states_and_texts_and_begins_at_rest_unless_told(car):
    rest = ooc_mdp.simulate(ooc_mdp.open_result(car)).summary()["runs"]
    assert [run["start"] for run in rest] == [[-0.5, 0.0]]
    both = ooc_mdp.simulate(car, ["initial", (0.9, 0.1), "0.9,0.1"]).summary()["runs"]
    assert both[0] == rest[0]
    assert both[1] == both[2]


@pytest.mark.parametrize("own", [False, True])
def test_the_next_commands_of_a_solve_run_as_they_are_printed(tmp_path, own):
    problem = str(REPOSITORY / "docs/examples/reaction_wheel_pendulum.py") if own else "mountain-car"
    store, result = tmp_path / "a b.store", tmp_path / "r"
    assert ooc("generate", problem, store, "--grid", 8, "--device", "cpu").status == 0
    ran = ooc("solve", store, "--discount", 0.9, "--output", result, "--device", "cpu")
    (line,) = [line for line in ran.out.splitlines() if line.startswith("next")]
    commands = [shlex.split(text) for text in line.removeprefix("next").split(";")]
    assert [words[1] for words in commands] == ["report", "verify", "simulate"]
    assert ooc(*commands[2][1:]).status in (0, 1)  # 1 where the goal is not reached


def test_a_run_that_cannot_succeed_ends_with_status_1(car):
    assert ooc("simulate", car, "--start", "-0.9,-4").status == 1


def test_files_are_written_and_existing_ones_refused(car, tmp_path):
    outputs = ("--csv", tmp_path / "a.csv", "--plot", tmp_path / "a.png", "--animation", tmp_path / "a.gif")
    command = ("simulate", car, "--start", "0.8,0.5", "--start", "-0.5,0", *outputs)
    ran = ooc(*command)
    assert ran.status == 0, ran.err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.csv", "a.gif", "a.png"]
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "a.gif").read_bytes().startswith(b"GIF8")
    with (tmp_path / "a.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["run", "time", "position", "velocity", "action", "control0", "value"]
    assert {row["run"] for row in rows} == {"0", "1"}
    assert [float(rows[0][name]) for name in ("time", "position", "velocity")] == [0.0, 0.8, 0.5]
    before = (tmp_path / "a.csv").read_bytes()
    for option, file in zip(outputs[::2], outputs[1::2], strict=True):
        assert "--overwrite" in refused("simulate", car, option, file)
    assert ooc(*command, "--overwrite").status == 0
    assert (tmp_path / "a.csv").read_bytes() == before


@pytest.mark.parametrize("suffix", ["svg", "pdf"])
def test_plots_of_more_dimensions_are_drawn_too(suffix, tmp_path):
    from ooc_mdp.report.animation import animate
    from ooc_mdp.report.trajectory_plot import plot_trajectories

    problem = make_problem("double-pendulum", {"grid": "5"})
    values, policy = any_policy(problem)
    simulation = simulate(
        problem, values, policy, 0.9, [problem.problem.initial_state], SimulationOptions(duration=0.4)
    )
    file = tmp_path / f"a.{suffix}"
    plot_trajectories(simulation, values, file)
    assert file.stat().st_size > 5000
    with pytest.raises(StoreError, match="exists"):
        plot_trajectories(simulation, values, file)
    animate(simulation, tmp_path / "a.gif")
    from PIL import Image

    with Image.open(tmp_path / "a.gif") as image:
        assert image.n_frames == 11


def test_progress_of_the_files_is_reported(car, tmp_path, monkeypatch):
    monkeypatch.setattr("ooc_mdp.report.progress._LOG_SECONDS", 0.0)
    outputs = ("--csv", tmp_path / "a.csv", "--animation", tmp_path / "a.gif")
    said = ooc("simulate", car, "--start", "0.8,0.5", *outputs).err
    assert "writing files: 1 of 2" in said
    assert "drawing frames: 3 of " in said


def test_a_plot_counts_successes_where_there_is_a_goal(car, tmp_path):
    assert ooc("simulate", car, "--start", "0.8,0.5", "--plot", tmp_path / "a.svg").status == 0
    assert "of 1 starts succeed" in (tmp_path / "a.svg").read_text()


def test_the_plane_of_a_plot_takes_any_two_axes(car, tmp_path):
    assert (
        ooc(
            "simulate", car, "--start", "0.8,0.5", "--plot", tmp_path / "a.svg", "--plot-axes", "velocity,position"
        ).status
        == 0
    )
    ticks = (tmp_path / "a.svg").read_text()
    assert ticks.rindex("velocity (m/s)") < ticks.rindex("position (m)"), "the label across is drawn first"
    wrong = refused("simulate", car, "--plot", tmp_path / "b.svg", "--plot-axes", "velocity,height")
    assert "'velocity,height'; give two different ones of position, velocity" in wrong


def test_what_cannot_be_drawn_is_refused_before_the_runs(pendulum, tmp_path):
    assert ".png, .svg, .pdf" in refused("simulate", pendulum, "--plot", tmp_path / "a.jpg")
    assert ".gif or .mp4" in refused("simulate", pendulum, "--animation", tmp_path / "a.avi")
    too_long = refused("simulate", pendulum, "--animation", tmp_path / "a.gif", "--duration", 1000)
    assert "give --duration 60 or less" in too_long
    if shutil.which("ffmpeg") is None:
        assert "name a .gif" in refused("simulate", pendulum, "--animation", tmp_path / "a.mp4")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (("--policy", "vote"), "--controller"),
        (("--keep", "5"), "--hold-time"),
        (("--past-end",), "--continue-after-end"),
        (("--seconds=8",), "--duration"),
        (("--starts", "3"), "--random-starts"),
        (("--start", "rest"), "initial"),
    ],
)
def test_a_former_word_of_the_command_has_an_error_that_names_the_new_one(pendulum, old, new):
    message = refused("simulate", pendulum, *old)
    assert "is now called" in message
    assert new in message


@pytest.mark.parametrize("definition", [LINE, MASS, FOUR_AXES], ids=lambda problem: problem.name)
def test_problems_without_a_drawing_of_their_own_are_animated_in_the_plane_of_two_axes(definition, tmp_path):
    from PIL import Image

    from ooc_mdp.report.animation import animate

    problem = discretise(definition, {"grid": 5})
    values, policy = any_policy(problem)
    start = tuple(0.3 * axis.high for axis in definition.axes)
    simulation = simulate(problem, values, policy, 0.9, [start], SimulationOptions(duration=0.4))
    animate(simulation, tmp_path / "a.gif", axes=("x2", "x0") if definition is FOUR_AXES else None)
    with Image.open(tmp_path / "a.gif") as image:
        assert image.n_frames > 5


def test_files_that_can_be_written_are_written_where_another_fails(car, tmp_path, monkeypatch):
    from ooc_mdp.report import trajectory_plot

    def fails(*_, **__):
        raise OSError("no room")

    monkeypatch.setattr(trajectory_plot, "plot_trajectories", fails)
    outputs = ("--csv", tmp_path / "a.csv", "--plot", tmp_path / "a.png", "--animation", tmp_path / "a.gif")
    ran = ooc("simulate", car, "--start", "0.8,0.5", *outputs)
    assert ran.status == 2
    assert "a.png cannot be written: no room" in ran.err
    assert "success: " in ran.out
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.csv", "a.gif"]


@pytest.mark.parametrize("wrong", [("--plot", "a.jpg"), ("--animation", "a.avi"), ("--csv", "missing/a.csv")])
def test_a_file_that_cannot_be_written_is_refused_before_the_result_is_read(wrong, tmp_path):
    message = refused("simulate", tmp_path / "no.result", wrong[0], tmp_path / wrong[1])
    assert "no.result" not in message


def test_without_matplotlib_the_message_names_the_extra(monkeypatch, tmp_path):
    from ooc_mdp.report.animation import check_animation
    from ooc_mdp.report.figures import check_plot_file

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"ooc-mdp\[plot\]"):
        check_plot_file(tmp_path / "a.png")
    with pytest.raises(MissingExtraError, match=r"ooc-mdp\[plot\]"):
        check_animation(tmp_path / "a.gif", 1.0)
