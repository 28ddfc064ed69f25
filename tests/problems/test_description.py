"""What is said of each problem: parameters with defaults and meanings, axes, controls, and the text of its module."""

from __future__ import annotations

import pytest
from command_line import ooc, refused
from paths import DOCS

from ooc_mdp.errors import OptionsError
from ooc_mdp.problems.description import describe_problem
from ooc_mdp.problems.registry import PROBLEMS, make_problem


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_problem_is_described_with_the_parameters_that_it_takes(name):
    found = describe_problem(name)
    assert found.text
    assert found.summary == PROBLEMS[name].summary
    made = make_problem(name, {"grid": "5"} if PROBLEMS[name].grid else {})
    assert [parameter.name for parameter in found.parameters if parameter.name in made.parameters()] == [
        parameter.name for parameter in found.parameters
    ]
    assert set(made.parameters()) == {parameter.name for parameter in found.parameters}
    assert bool(found.axes) == bool(found.controls) == PROBLEMS[name].grid


def test_a_control_problem_has_axes_controls_and_the_meaning_of_its_parameters():
    found = describe_problem("double-pendulum")
    assert [axis["name"] for axis in found.axes] == ["angle1", "angle2", "speed1", "speed2"]
    assert found.controls == ((-1.0,), (1.0,))
    known = {parameter.name: (parameter.default, parameter.meaning) for parameter in found.parameters}
    assert known["friction"] == ("0", "Torque that brakes each link, per rad/s.")
    assert known["grid"][0] == "30,30,30,30"
    assert "Lagrange's equations" in found.text


def test_short_names_and_files_are_described_too():
    assert describe_problem("GW-64x4") == describe_problem("gridworld")
    found = describe_problem(str(DOCS / "examples" / "dubins_car.py"))
    assert found.name == "dubins-car"
    assert {p.name: p.meaning for p in found.parameters}["pillar"] == "Radius of the pillars, m."
    assert "(Dubins)" in found.text


def test_what_is_no_problem_is_refused(tmp_path):
    with pytest.raises(OptionsError, match="no problem 'GV-8x4'; there are gridworld"):
        describe_problem("GV-8x4")
    with pytest.raises(OptionsError, match="there is no problem file"):
        describe_problem(str(tmp_path / "none.py"))


def test_the_command_lists_all_problems_and_describes_one():
    listed = ooc("problems")
    assert listed.status == 0, listed.err
    for name, entry in PROBLEMS.items():
        assert name in listed.out
        assert entry.summary in listed.out
    assert [each["name"] for each in ooc("problems", "--json").figures["problems"]] == list(PROBLEMS)
    shown = ooc("problems", "mountain-car").out
    for text in (
        "position  -1    1   m",
        "held at the bound",
        "controls  -1, 0, 1",
        "Speed of exit at which",
        "run-up",
    ):
        assert text in shown
    assert "ooc-mdp generate mountain-car mountain-car.store --grid 100,100" in shown
    assert ooc("problems", "mountain-car", "--json").figures["parameters"][1]["default"] == "4"
    assert "there is no problem 'car'" in refused("problems", "car")
