"""Continuous-time control problems and their discretisation on regular grids."""

from ooc_mdp.problems.control.definition import Axis, ControlProblem, State
from ooc_mdp.problems.control.discretisation import DiscretisationOptions, DiscretisedProblem, discretise

__all__ = ["Axis", "ControlProblem", "DiscretisationOptions", "DiscretisedProblem", "State", "discretise"]
