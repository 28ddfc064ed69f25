"""The policy of a solved control problem at work on the continuous dynamics."""

from ooc_mdp.simulation.result_problem import other_problem, problem_of
from ooc_mdp.simulation.simulate import parse_start, random_starts, simulate
from ooc_mdp.simulation.trajectory import RunOutcome, Simulation, Trajectory
from ooc_mdp.simulation_options import Controller, SimulationOptions

__all__ = [
    "Controller",
    "RunOutcome",
    "Simulation",
    "SimulationOptions",
    "Trajectory",
    "other_problem",
    "parse_start",
    "problem_of",
    "random_starts",
    "simulate",
]
