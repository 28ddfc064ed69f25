"""The generated problems by name.

To add one: a module with a frozen dataclass of options and a class that satisfies
:class:`~ooc_mdp.problems.base.Problem`, then an entry in `PROBLEMS`. Makers import their module when called,
so that listing the problems compiles nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from os import PathLike, fspath

from ooc_mdp.errors import OptionsError
from ooc_mdp.problems.base import Problem
from ooc_mdp.problems.configuration import Parameter, configure

__all__ = ["PROBLEMS", "Problem", "ProblemEntry", "built_in_problem", "make_problem"]


@dataclass(frozen=True, slots=True)
class ProblemEntry:
    """One problem of the registry."""

    summary: str
    """One line for listings."""
    make: Callable[[Mapping[str, Parameter]], Problem]
    """Problem from its parameters (texts are turned into the options' types); raises OptionsError."""
    grid: bool = False
    """Whether it takes the parameter grid, points along each axis."""


def make_problem(name: str | PathLike[str], parameters: Mapping[str, Parameter] | None = None) -> Problem:
    """The problem `name` with `parameters`.

    Short names stand for a problem and its sizes: GW-512x4 and GW-512x512x4 (side or height and width, then
    successors, as in Jóhannsson's table 6.1), QK-100 and QK-100x200. A name that ends in .py is a file that assigns
    a :class:`~ooc_mdp.problems.control.ControlProblem` to the name ``problem``.

    Raises
    ------
    OptionsError : no such problem, or parameters that are unknown, out of range or said twice.
    """
    name, given = fspath(name), dict(parameters or {})
    if name.endswith(".py"):
        from ooc_mdp.problems.control.user_file import load_problem

        return load_problem(name, given)
    return built_in_problem(name, given)


def built_in_problem(name: str, parameters: Mapping[str, Parameter]) -> Problem:
    """The problem of the registry with that name, which may come from a result: no file is ever run.

    Raises
    ------
    OptionsError : as :func:`make_problem`, and for the name of a file.
    """
    given = dict(parameters)
    problem, sizes = _parsed(name)
    twice = sorted(set(sizes) & set(given))
    if twice:
        said = ", ".join(f"{n} = {sizes[n]}" for n in twice)
        raise OptionsError(f"the name {name!r} already says {said}; leave it out of the parameters")
    if problem not in PROBLEMS:
        raise OptionsError(
            f"there is no problem {name!r}; there are {', '.join(PROBLEMS)},"
            " short names such as GW-512x4, GW-512x512x4 and QK-100, and control problems in .py files"
        )
    if "grid" in given and not PROBLEMS[problem].grid:
        with_grid = ", ".join(n for n, entry in PROBLEMS.items() if entry.grid)
        raise OptionsError(
            f"problem {problem!r} takes no grid; these do: {with_grid}, and control problems in .py files"
        )
    return PROBLEMS[problem].make(sizes | given)


def _parsed(name: str) -> tuple[str, dict[str, Parameter]]:
    """Registry name and the sizes that a short name stands for; other names as they are."""
    if match := re.fullmatch(r"GW-(\d+)(?:x(\d+))?x(\d+)", name, re.ASCII | re.IGNORECASE):
        height, width, successors = match.groups()
        return "gridworld", {"height": height, "width": width or height, "successors": successors}
    if match := re.fullmatch(r"QK-(\d+)(?:x(\d+))?", name, re.ASCII | re.IGNORECASE):
        height, width = match.groups()
        return "quintanilla", {"height": height, "width": width or height}
    return name, {}


def _gridworld(parameters: Mapping[str, Parameter]) -> Problem:
    from ooc_mdp.problems.gridworld import Gridworld, GridworldOptions

    return Gridworld(configure(GridworldOptions, parameters, "gridworld"))


def _quintanilla(parameters: Mapping[str, Parameter]) -> Problem:
    from ooc_mdp.problems.gridworld import QuintanillaOptions, QuintanillaWorld

    return QuintanillaWorld(configure(QuintanillaOptions, parameters, "quintanilla"))


def _animat(parameters: Mapping[str, Parameter]) -> Problem:
    from ooc_mdp.problems.animat import Animat, AnimatOptions

    return Animat(configure(AnimatOptions, parameters, "animat"))


def _integer_mountain_car(parameters: Mapping[str, Parameter]) -> Problem:
    from ooc_mdp.problems.integer_mountain_car import IntegerMountainCar, IntegerMountainCarOptions

    return IntegerMountainCar(configure(IntegerMountainCarOptions, parameters, "integer-mountain-car"))


def _random(parameters: Mapping[str, Parameter]) -> Problem:
    from ooc_mdp.problems.random_mdp import RandomMdp, RandomMdpOptions

    return RandomMdp(configure(RandomMdpOptions, parameters, "random"))


def _control(module: str, name: str) -> Callable[[Mapping[str, Parameter]], Problem]:
    """Maker of the control problem that a module of this package calls `name`."""

    def make(parameters: Mapping[str, Parameter]) -> Problem:
        from ooc_mdp.problems.control import discretise

        definition = getattr(import_module(f"ooc_mdp.problems.control.{module}"), name)
        return discretise(definition, parameters)

    return make


PROBLEMS: dict[str, ProblemEntry] = {
    "gridworld": ProblemEntry(
        "Jóhannsson's gridworlds GW-HEIGHTxWIDTHxSUCCESSORS: few reward states, local moves",
        _gridworld,
    ),
    "quintanilla": ProblemEntry(
        "Quintanilla and Kolisetti's worlds QK-HEIGHTxWIDTH: 0.8/0.1/0.1 moves, a tenth of the cells pays",
        _quintanilla,
    ),
    "animat": ProblemEntry(
        "Inamoto, Higami and Kobayashi's agent that eats what lies in a plane of cells; -p costs=true minimises",
        _animat,
    ),
    "integer-mountain-car": ProblemEntry(
        "Inamoto, Higami and Kobayashi's mountain car on integers, deterministic: velocity x position, 3 thrusts",
        _integer_mountain_car,
    ),
    "mountain-car": ProblemEntry(
        "the car on the hill, thesis of Wingate: 2 dimensions, 3 thrusts; -p grid=300,300",
        _control("mountain_car", "problem"),
        grid=True,
    ),
    "single-pendulum": ProblemEntry(
        "one link to swing up and balance: 2 dimensions, 2 torques",
        _control("pendulums", "single_pendulum"),
        grid=True,
    ),
    "double-pendulum": ProblemEntry(
        "two links, a torque on the first, the second to swing up and balance: 4 dimensions, 2 torques",
        _control("pendulums", "double_pendulum"),
        grid=True,
    ),
    "triple-pendulum": ProblemEntry(
        "three links, a torque on the first, the third to swing up and balance: 6 dimensions, 2 torques",
        _control("pendulums", "triple_pendulum"),
        grid=True,
    ),
    "random": ProblemEntry("states, actions, successors, seed: successors anywhere, no locality", _random),
}
"""Every problem that `make_problem` knows, by name."""
