"""The generated problems by name.

To add one: a module with a frozen dataclass of options and a class that satisfies
:class:`~ooc_mdp.problems.problem.Problem`, or with a :class:`~ooc_mdp.problems.control.ControlProblem`, then an
entry in `PROBLEMS`. A problem's module is imported when the problem is made, so that listing the problems compiles
nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from os import PathLike, fspath

from ooc_mdp.errors import OptionsError
from ooc_mdp.problems.parameters import Parameter, parse_parameters
from ooc_mdp.problems.problem import Problem
from ooc_mdp.quoting import quote

__all__ = ["PROBLEMS", "Problem", "ProblemEntry", "built_in_problem", "make_problem", "registered_name"]


@dataclass(frozen=True, slots=True)
class ProblemEntry:
    """One problem of the registry: where it is defined."""

    summary: str
    """One line for listings."""
    module: str
    """Inside `ooc_mdp.problems`; imported by `make`."""
    name: str
    """The problem's class in that module, or a :class:`~ooc_mdp.problems.control.ControlProblem`."""
    options: str | None = None
    """The class of the problem's options; None for a control problem, which is discretised."""

    @property
    def grid(self) -> bool:
        """Whether it takes the parameter grid, points along each axis."""
        return self.options is None

    def make(self, name: str, parameters: Mapping[str, Parameter]) -> Problem:
        """Problem from its parameters (texts are turned into the options' types); raises OptionsError."""
        module = import_module(f"ooc_mdp.problems.{self.module}")
        defined = getattr(module, self.name)
        if self.options is not None:
            problem: Problem = defined(parse_parameters(getattr(module, self.options), parameters, name))
            return problem
        from ooc_mdp.problems.control import discretise

        return discretise(defined, parameters)


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
        raise OptionsError(f"the name {quote(name)} already says {said}; leave it out of the parameters")
    _check_registered(problem, name)
    if "grid" in given and not PROBLEMS[problem].grid:
        with_grid = ", ".join(n for n, entry in PROBLEMS.items() if entry.grid)
        raise OptionsError(
            f"problem {problem!r} takes no grid; these do: {with_grid}, and control problems in .py files"
        )
    return PROBLEMS[problem].make(problem, sizes | given)


def registered_name(name: str) -> str:
    """The name in `PROBLEMS` of a problem that is called by it or by a short name; raises OptionsError."""
    problem, _ = _parsed(name)
    _check_registered(problem, name)
    return problem


def _check_registered(problem: str, name: str) -> None:
    if problem not in PROBLEMS:
        raise OptionsError(
            f"there is no problem {quote(name)}; there are {', '.join(PROBLEMS)},"
            " short names such as GW-512x4, GW-512x512x4 and QK-100, and control problems in .py files"
        )


def _parsed(name: str) -> tuple[str, dict[str, Parameter]]:
    """Registry name and the sizes of a short name; other names as they are."""
    if match := re.fullmatch(r"GW-(\d+)(?:x(\d+))?x(\d+)", name, re.ASCII | re.IGNORECASE):
        height, width, successors = match.groups()
        return "gridworld", {"height": height, "width": width or height, "successors": successors}
    if match := re.fullmatch(r"QK-(\d+)(?:x(\d+))?", name, re.ASCII | re.IGNORECASE):
        height, width = match.groups()
        return "quintanilla", {"height": height, "width": width or height}
    return name, {}


PROBLEMS: dict[str, ProblemEntry] = {
    "gridworld": ProblemEntry(
        "Jóhannsson's gridworlds GW-HEIGHTxWIDTHxSUCCESSORS: few reward states, local moves",
        "gridworlds.johannsson",
        "Gridworld",
        "GridworldOptions",
    ),
    "quintanilla": ProblemEntry(
        "Quintanilla and Kolisetti's worlds QK-HEIGHTxWIDTH: 0.8/0.1/0.1 moves, a tenth of the cells pays",
        "gridworlds.quintanilla",
        "QuintanillaWorld",
        "QuintanillaOptions",
    ),
    "animat": ProblemEntry(
        "Inamoto, Higami and Kobayashi's agent that eats what lies in a plane of cells; -p costs=true minimises",
        "gridworlds.animat",
        "Animat",
        "AnimatOptions",
    ),
    "integer-mountain-car": ProblemEntry(
        "Inamoto, Higami and Kobayashi's mountain car on integers, deterministic: velocity x position, 3 thrusts",
        "integer_mountain_car",
        "IntegerMountainCar",
        "IntegerMountainCarOptions",
    ),
    "queueing-network": ProblemEntry(
        "three queues: arrivals are routed to one of two, which feed the third, slow or fast; for --average",
        "queueing_network",
        "QueueingNetwork",
        "QueueingNetworkOptions",
    ),
    "mountain-car": ProblemEntry(
        "the car on the hill, thesis of Wingate: 2 dimensions, 3 thrusts; --grid 300,300",
        "control.mountain_car",
        "problem",
    ),
    "single-pendulum": ProblemEntry(
        "one link to swing up and balance: 2 dimensions, 2 torques",
        "control.pendulums",
        "single_pendulum",
    ),
    "double-pendulum": ProblemEntry(
        "two links, a torque on the first, the second to swing up and balance: 4 dimensions, 2 torques",
        "control.pendulums",
        "double_pendulum",
    ),
    "triple-pendulum": ProblemEntry(
        "three links, a torque on the first, the third to swing up and balance: 6 dimensions, 2 torques",
        "control.pendulums",
        "triple_pendulum",
    ),
    "random": ProblemEntry(
        "states, actions, successors, seed: successors anywhere, no locality",
        "random_mdp",
        "RandomMdp",
        "RandomMdpOptions",
    ),
}
"""Every problem that `make_problem` knows, by name."""
