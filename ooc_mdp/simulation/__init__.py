"""The policy of a solved control problem at work on the continuous dynamics."""

from ooc_mdp.simulation.options import PolicyKind, SimulationOptions
from ooc_mdp.simulation.result_problem import problem_of
from ooc_mdp.simulation.simulate import (
    RunOutcome,
    Simulation,
    Trajectory,
    parse_start,
    random_starts,
    simulate,
)

__all__ = [
    "PolicyKind",
    "RunOutcome",
    "Simulation",
    "SimulationOptions",
    "Trajectory",
    "parse_start",
    "problem_of",
    "random_starts",
    "simulate",
]
