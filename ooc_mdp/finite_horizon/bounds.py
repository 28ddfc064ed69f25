"""How far rounding may have moved the values of a stage: the sum over the stages after it, outward.

    e_t(p) = g rho_p max_q e_{t+1}(q) + (k_p + 4) u (|r|_p + g rho_p max_q (|V_{t+1}|_q + e_{t+1}(q))),   q read by p

Per partition p: k_p is its longest row, rho_p its largest row sum, u the unit roundoff. A sum of k products rounds by
k + 1 units of sum p |V| at most in any order, the discount and the reward by one each (``docs/theory/
finite-horizon.md``). As the values, the bounds of two stages are kept: partitions are a stage apart at most.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.model.contraction import UNIT_ROUNDOFF, UP, underflow_of
from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.model.table import TableFacts

__all__ = ["StageBounds"]


class StageBounds:
    """Bounds of every partition in two stages, and of whole stages.

    Parameters
    ----------
    facts : of the table.
    stages : T.
    discount : of each stage.
    """

    def __init__(self, facts: TableFacts, stages: int, discount: float) -> None:
        n_partitions, longest = facts.n_partitions, facts.max_successors
        self._coupling = facts.coupling
        self._factor = discount * facts.row_sum_range[:, 1] * (1 + (longest + 2) * UNIT_ROUNDOFF) * UP
        self._units = (longest + 4) * UNIT_ROUNDOFF
        self._rewards = np.abs(facts.reward_range).max(axis=1, initial=0.0)
        self._underflow = underflow_of(facts.dtypes["probabilities"])
        self.errors, self.sizes = np.zeros((2, n_partitions)), np.zeros((2, n_partitions))
        """float64 [2, P]: by the parity of the stages that a partition has done, no value is further from the exact
        one, and none is larger in size."""
        self.of_stages = np.zeros(stages + 1)
        """float64 [T+1]: the largest error of any partition in each stage, of those that have done it."""
        self.residual = 0.0
        """No value is further from the exact backup of the values that it was computed from."""
        self._stages = stages

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What a checkpoint holds, by name."""
        return {
            "errors": self.errors,
            "sizes": self.sizes,
            "stage_errors": self.of_stages,
            "residual": np.array([self.residual]),
        }

    def restore(self, saved: dict[str, npt.NDArray[Any]]) -> None:
        """Continue from what a checkpoint holds."""
        self.errors[:], self.sizes[:] = saved["errors"], saved["sizes"]
        self.of_stages[:], self.residual = saved["stage_errors"], float(saved["residual"][0])

    def begin(self, values: FloatArray, partition_ptr: npt.NDArray[np.int64]) -> None:
        """Take in the final values, float64 [n] in the order of partitions."""
        self.sizes[0] = np.maximum.reduceat(np.abs(values), partition_ptr[:-1])

    def advance(self, p: int, done: int, size: float) -> float:
        """Partition p has done a stage more than the `done` before, and its largest value has this size.

        Returns
        -------
        the bound of the partition in that stage
        """
        read = self._coupling.read_by(p)
        following = done % 2
        of_read = float(self.errors[following, read].max()), float(self.sizes[following, read].max())
        error = self.record(p, self._stages - done - 1, *of_read)
        self.errors[1 - following, p], self.sizes[1 - following, p] = error, size
        return error

    def record(self, p: int, stage: int, error: float, size: float) -> float:
        """The error of a stage of partition p, which enters that of the whole stage.

        Parameters
        ----------
        error, size : of the values that it reads, which are of the stage after.
        """
        factor = float(self._factor[p])
        rounding = float(self._units[p] * (self._rewards[p] + factor * (size + error)) + self._underflow) * UP
        found = (factor * error + rounding) * UP
        self.residual = max(self.residual, rounding)
        self.of_stages[stage] = max(float(self.of_stages[stage]), found)
        return found

    def step_of_all(self, error: float) -> float:
        """What an error of every value becomes of it in the stage before."""
        return float(self._factor.max(initial=0.0)) * error * UP
