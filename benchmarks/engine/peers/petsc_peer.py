"""PETSc (petsc4py): inexact policy iteration with a Krylov solver, as madupite does it.

madupite (Gargiani et al.) is a C++ library over PETSc. Its policy is greedy at the present values; (1 - g P) V = r of
that policy is solved from there until the residual's 2-norm is at most alpha times the largest entry of the Bellman
residual; and so on until that entry is below the tolerance. The same is done here, in that order and with the same
PETSc objects: all rows in one AIJ matrix, the policy's copied out of it by MatCreateSubMatrix, 1 - g P as a shell, no
preconditioner. "ipi:gmres" is its default, "ipi:bcgs" BiCGSTAB; a third word is alpha, else 1e-4 as in madupite's
examples. One process: PETSc has no threads, and madupite would have a rank on each core. Iterations are the Krylov
solver's.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from petsc4py import PETSc
from table import Asked, Model, Solved, run

_MAX_INNER = 1000


class _Shell:
    """1 - g P as PETSc calls it."""

    def __init__(self, rows: PETSc.Mat, discount: float) -> None:
        self._rows, self._discount = rows, discount

    def mult(self, _: PETSc.Mat, x: PETSc.Vec, y: PETSc.Vec) -> None:
        self._rows.mult(x, y)
        y.aypx(-self._discount, x)


def prepare(model: Model, asked: Asked) -> Callable[[], Solved]:
    _, krylov, alpha, *_ = [*asked.method.split(":"), "1e-4"]
    n, actions = model.n_states, model.actions
    csr = (model.row_ptr.astype(PETSc.IntType), model.successors.astype(PETSc.IntType), model.weights)
    rows = PETSc.Mat().createAIJ((n * actions, n), csr=csr, comm=PETSc.COMM_SELF)
    rewards = model.rewards.reshape(n, actions)

    def solve() -> Solved:
        values, expected = rows.createVecs()
        iterations = 0
        while True:
            rows.mult(values, expected)
            worth = rewards + model.discount * expected.array_r.reshape(n, actions)
            policy = worth.argmax(axis=1)
            residual = float(np.abs(np.take_along_axis(worth, policy[:, None], 1)[:, 0] - values.array_r).max())
            if residual < asked.tolerance or iterations >= asked.max_iterations:
                return Solved(values.array_r.copy(), iterations)
            chosen = PETSc.IS().createGeneral((np.arange(n) * actions + policy).astype(PETSc.IntType), PETSc.COMM_SELF)
            own = rows.createSubMatrix(chosen)
            shell = PETSc.Mat().createPython((n, n), _Shell(own, model.discount), comm=PETSc.COMM_SELF)
            shell.setUp()
            right = PETSc.Vec().createWithArray(rewards[np.arange(n), policy], comm=PETSc.COMM_SELF)
            solver = PETSc.KSP().create(PETSc.COMM_SELF)
            solver.setOperators(shell)
            solver.setType(krylov)
            solver.getPC().setType("none")
            solver.setInitialGuessNonzero(True)
            solver.setTolerances(rtol=1e-40, atol=residual * float(alpha), max_it=_MAX_INNER)
            solver.solve(right, values)
            iterations += solver.getIterationNumber()
            for each in (solver, shell, own, chosen, right):
                each.destroy()

    return solve


if __name__ == "__main__":
    run("petsc4py", prepare)
