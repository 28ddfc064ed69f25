"""Animations of simulated runs: what stays is drawn once, frames are as if drawn anew, and progress is reported."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulated_problems import LINE, MASS, any_policy

from ooc_mdp.problems.control import discretise
from ooc_mdp.problems.registry import make_problem
from ooc_mdp.report import animation
from ooc_mdp.simulation import Simulation, SimulationOptions, simulate

PROBLEMS = [
    ("mountain-car", (-0.5, 0.0)),
    ("single-pendulum", (3.0, 0.0)),
    (MASS, (0.5, 0.0)),
    (LINE, (-0.5,)),
]


def simulated(definition, start) -> Simulation:
    known = isinstance(definition, str)
    problem = make_problem(definition, {"grid": "9"}) if known else discretise(definition, {"grid": "9"})
    values, policy = any_policy(problem)
    return simulate(problem, values, policy, 0.9, [start], SimulationOptions(duration=0.3, controller="vote"))


def frames(file: Path) -> list[bytes]:
    from PIL import Image

    with Image.open(file) as image:
        found = []
        for number in range(image.n_frames):
            image.seek(number)
            found.append(image.convert("RGB").tobytes())
    return found


@pytest.mark.parametrize(("definition", "start"), PROBLEMS)
def test_frames_are_those_of_a_figure_that_is_drawn_anew(definition, start, tmp_path, monkeypatch):
    simulation = simulated(definition, start)
    animation.animate(simulation, tmp_path / "a.gif")

    def drawer(figure, panel, moving):
        figure.canvas.draw()
        figure.set_layout_engine("none")  # which moves some pictures by a pixel from one frame to the next
        return figure.canvas.draw

    monkeypatch.setattr(animation, "_frame_drawer", drawer)
    animation.animate(simulation, tmp_path / "b.gif")
    assert len(set(frames(tmp_path / "a.gif"))) > 5
    assert frames(tmp_path / "a.gif") == frames(tmp_path / "b.gif")


def test_the_figure_is_not_drawn_for_each_frame(tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    drawn, draw = [], Figure.draw
    monkeypatch.setattr(Figure, "draw", lambda figure, renderer: drawn.append(1) or draw(figure, renderer))
    animation.animate(simulated(*PROBLEMS[0]), tmp_path / "a.gif")
    assert len(frames(tmp_path / "a.gif")) == 9
    assert len(drawn) <= 3


def test_the_frames_drawn_so_far_are_reported(tmp_path):
    seen = []
    animation.animate(simulated(*PROBLEMS[0]), tmp_path / "a.gif", progress=lambda *report: seen.append(report))
    assert seen == [("drawing frames", number, 9) for number in range(10)]
