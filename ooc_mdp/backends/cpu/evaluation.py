"""An evaluation of a policy on the CPU, which can be left at any time and gone on with: sweeps, and BiCGSTAB.

    sweeps of what changed  ─▶  measure  ─▶  slow?  ─▶  BiCGSTAB for what is missing  ─▶  sweeps ...

Where sweeps leave much of the residual (a discount near 1, a chain that mixes slowly), a Krylov solver finds z of
(1 - g P) z = r + g P V - V, and V becomes V + z if the solver's own residual is smaller than V's. Where that takes
long, and RAM has room, it has an approximate inverse: triangular solves in the topological order of the policy
(`ooc_mdp.backends.cpu.triangular_solver`).

An evaluation that is left keeps the solver's vectors: what it has found so far becomes part of V if that is better by
far, and it continues from there. Values from outside that change meanwhile leave it what it solves, with the old ones:
the measurement afterwards sees both. No bound rests on how values came about: residuals are measured at the values as
they stand, over all rows.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.base import Evaluation
from ooc_mdp.backends.cpu.krylov import Bicgstab
from ooc_mdp.backends.cpu.triangular_solver import TriangularSolver
from ooc_mdp.model.mdp import FloatArray

if TYPE_CHECKING:
    from ooc_mdp.backends.cpu.policy_rows import PolicyRows

__all__ = ["CpuEvaluation"]

_SWEEPS_PER_MEASUREMENT = 8
"""Sweeps of all partitions, or as many backups of some, before residuals are measured."""
_SLOW = 0.2
"""Share of the residual that such sweeps may leave, above which a Krylov solver goes on."""
_ITERATIONS = 200
"""Most iterations of a Krylov solver, two products each, between two measurements."""
_PLAIN_ITERATIONS = 30
"""Those after which it goes on with triangular solves, each of which takes one core as long as five products take
two."""
_AIM = 0.1
"""Share of the limit at which a Krylov solver ends: the policy is improved at what it leaves."""
_GAIN = 0.001
"""A Krylov solver's aim, as a share of the residual that it is given, where the limit is further away."""

_MIN_REDUCTION = 0.5
"""Share of what values miss that a solver must have come down to for values to take over what it has found halfway:
each change of values counts against the gaps of actions, whether or not the next one takes it back."""


class CpuEvaluation:
    """See `ooc_mdp.backends.base.PolicyEvaluation`.

    Parameters
    ----------
    rows : of the policy.
    values, policy : of the backend; values change in place.
    limit, most : the largest plain residual that is wanted; sweeps or products after which it ends all the same.
    """

    def __init__(
        self, rows: PolicyRows, values: FloatArray, policy: npt.NDArray[np.int32], limit: float, most: int
    ) -> None:
        self._rows, self._values, self._policy, self._limit = rows, values, policy, limit
        rows.before[:] = values
        self._states = rows.states()
        self._most = most * self._states
        self._backups = self._reported = 0
        """Of a state, in all, and at the last report."""
        self._measured = np.zeros((9, rows.valid.size))
        self._measured_at = -1
        """Of `rows.written`, when that was measured; -1: values have changed since."""
        self._solver: Bicgstab | None = None
        self._triangular: TriangularSolver | None = None
        self._missing = np.inf
        """Largest residual of the values as they stand, as the solver knows it."""
        self._steps = self._work()

    def advance(self, seconds: float) -> bool:
        """One step at least."""
        until = time.monotonic() + seconds
        for _ in self._steps:
            if time.monotonic() >= until:
                self._take_over(_MIN_REDUCTION)
                return False
        return True

    def report(self) -> Evaluation:
        """Measured, unless nothing has changed since that was done."""
        if self._measured_at != self._rows.written:
            self._measure()
        found, backups = self._measured, self._backups - self._reported
        self._reported = self._backups
        self._rows.before[:] = self._values
        self._measured_at = -1  # changes are now those from here on
        return Evaluation(backups, found[0], found[1], found[2:6], found[6], found[7], found[8])

    def _measure(self) -> float:
        """Measure all, and what that leaves to be swept; the largest residual."""
        rows = self._rows
        self._measured = rows.measure(self._values, rows.before, self._policy)
        self._measured_at = rows.written
        rows.inflow_bounds[:] = np.where(rows.valid, np.maximum(self._measured[4], self._measured[5]), 0.0)
        return float(rows.inflow_bounds.max(initial=0.0))

    def _work(self) -> Iterator[None]:
        """To the end; may be left wherever it yields."""
        residual = float(self._rows.inflow_bounds[self._rows.valid].max(initial=0.0))
        while True:
            if residual > self._limit:
                yield from self._sweeps()
            before, residual = residual, self._measure()
            if not residual > self._limit or self._backups >= self._most:
                return
            if residual > _SLOW * before:
                yield from self._solve(residual)

    def _sweeps(self) -> Iterator[None]:
        """Rounds of sweeps of what has something to do, until nothing has or it is time to measure."""
        until = self._backups + min(_SWEEPS_PER_MEASUREMENT * self._states, self._most)
        back = False
        while self._backups < until and (made := self._rows.sweep(self._values, self._limit, back)):
            self._measured_at = -1
            self._backups += made
            back = not back
            yield

    def _solve(self, residual: float) -> Iterator[None]:
        """Solve for what is missing: at first without an inverse, and with triangular solves where that takes long."""
        rows = self._rows
        goal = max(_AIM * self._limit, _GAIN * residual)
        left = max(1, min(_ITERATIONS, (self._most - self._backups) // max(2 * self._states, 1)))
        if not rows.stiff:
            first = min(left, _PLAIN_ITERATIONS)
            yield from self._iterate(goal, first)
            left -= first
            if self._missing > goal and first == _PLAIN_ITERATIONS:
                rows.free_vectors()  # in whose place the triangle is made
                rows.stiff = rows.has_room_for_triangle()
        if rows.stiff and left > 0:
            if self._triangular is None:
                rows.free_vectors()
                self._triangular = rows.triangular_solver()
            yield from self._iterate(goal, left)

    def _iterate(self, goal: float, most: int) -> Iterator[None]:
        """So many iterations, or until the solver has got there or broken down."""
        inverse = self._triangular if self._rows.stiff else None
        solver = self._solver = self._rows.solver(self._values, inverse)
        self._missing = solver.residual
        self._backups += self._states
        for _ in range(most):
            on = solver.iterate()
            self._backups += (2 if inverse is None else 4) * self._states
            if not on or solver.residual <= goal:
                break
            yield
        self._take_over(1.0)
        self._solver = None

    def _take_over(self, share: float) -> None:
        """Values become what the solver has found, if that leaves less than this share of what they miss."""
        solver = self._solver
        if solver is not None and solver.residual < share * self._missing and solver.add_to(self._values):
            self._missing, self._measured_at = solver.residual, -1
