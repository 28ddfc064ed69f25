"""Certified values of control problems against an optimum from another method: the difference is within the bound.

The optimum is that of policy iteration in memory with SciPy's linear solvers (`independent.py`), which shares only the
problem's rows with the solver.
"""

from __future__ import annotations

from pathlib import Path

import independent
import numpy as np
import pytest

import ooc_mdp
from ooc_mdp.problems.control import DiscretisedProblem
from ooc_mdp.problems.registry import make_problem

QUICK = (
    "mountain-car:24", "single-pendulum:24:hold=0", "single-pendulum:24:hold=1", "double-pendulum:6:hold=0",
    "double-pendulum:6",
)  # fmt: skip
SLOW = (
    "mountain-car:100", "mountain-car:200", "mountain-car:400", "single-pendulum:100:hold=0",
    "single-pendulum:200:hold=0", "single-pendulum:400:hold=0", "single-pendulum:100:hold=1",
    "single-pendulum:200:hold=1", "double-pendulum:10:hold=0", "double-pendulum:10:hold=1", "double-pendulum:11",
    "double-pendulum:16:hold=0",
)  # fmt: skip
LARGEST_LU = 12_000
"""States beyond which systems of more than two dimensions are solved iteratively: LU fills in too much."""
DISCOUNT = 0.9


@pytest.mark.parametrize("case", [*QUICK, *(pytest.param(c, marks=pytest.mark.slow) for c in SLOW)])
def test_certified_values_agree_with_an_independent_optimum_within_the_bound(tmp_path: Path, case: str) -> None:
    name, grid, said = (*case.split(":"), "")[:3]
    parameters = {"grid": grid, **dict(pair.split("=", 1) for pair in said.split(",") if pair)}
    problem = make_problem(name, parameters)
    assert isinstance(problem, DiscretisedProblem)
    plane = len(problem.points) <= 2
    store = ooc_mdp.generate(
        name, tmp_path / "store", parameters, partitions=16 if case in QUICK else 100, device="cpu"
    )
    method = "p-eva" if plane else "vi"
    solution = ooc_mdp.solve(store, DISCOUNT, epsilon=1e-3, cache="22%", method=method, device="cpu")
    linear = "lu" if plane or problem.n_states <= LARGEST_LU else "bicgstab"
    found = independent.optimum(independent.model_of(problem, DISCOUNT), linear)
    assert solution.outcome is ooc_mdp.Outcome.PROVED
    assert solution.error_bound <= 1e-3
    assert found.error <= 1e-8
    assert found.values.max() > 0.2
    assert np.abs(solution.values - found.values).max() <= solution.error_bound + found.error
