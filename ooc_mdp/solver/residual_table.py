"""A model's table with the residuals of given values for its rewards: what is missing of the values is its optimum.

    r'(s,a) = r(s,a) + g(s,a) sum p V(s') - V(s),      V* = V + c*,      c*(s) = max_a r'(s,a) + g(s,a) sum p c*(s')

So c* can be found by any solver in float64, to 16 digits of its own size instead of those of V. Rewards are measured in
twice the precision of float64 whenever a partition is read (`ooc_mdp.backends.cpu.double_double`); successors and
probabilities are those of the table, in its own order of partitions, to be maximised.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.cpu.double_double import PreciseResiduals, add, precise_residuals
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.partition import PartitionTable
from ooc_mdp.model.table import Loader, Table

__all__ = ["Measured", "PreciseValues", "ResidualTable", "measure_each"]

_NO_POLICY_USES = 4.0
"""Rows whose residual lies further below 0 than so many times the error bound belong to no optimal policy: they are
given that residual, so that their size does not enter the rounding of the others. (2 (1 + g rho) would do.)"""


class PreciseValues:
    """A value vector in twice the precision of float64: high + low, float64 [n] each, of the maximisation."""

    def __init__(self, values: FloatArray) -> None:
        self.high, self.low = values, np.zeros_like(values)

    def add(self, change: FloatArray) -> None:
        """Add a vector; `high` becomes the float64 values that are nearest."""
        add(self.high, self.low, change)

    def round(self) -> None:
        """Let the values be what `high` is."""
        self.low[:] = 0.0


@dataclass(frozen=True, slots=True)
class Measured:
    """Residuals of all partitions at one value vector, all rounding included."""

    rise: float
    """V* lies at most this above the values in every state,"""
    fall: float
    """and at most this below."""
    plain: float
    """The plain Bellman residual is at most this."""
    rounding: float
    """The part of them that is rounding."""
    reward_range: FloatArray
    """float64 [P, 2]; the range of each partition's residuals, those of all rows."""
    policy: npt.NDArray[np.int32]
    """int32 [n]; greedy."""

    @property
    def error(self) -> float:
        """The proved error."""
        return max(self.rise, self.fall)


def measure_each(
    table: Table, facts: ModelFacts, values: PreciseValues, policy: npt.NDArray[np.int32]
) -> Iterator[tuple[PartitionTable, int, PreciseResiduals]]:
    """Read partition after partition, and measure each; `policy` becomes greedy.

    Yields
    ------
    the table, the bytes read for it, what was measured
    """
    row_sums = facts.contraction.row_sum
    for p in range(table.n_partitions):
        rows, n_bytes = table.read(p)
        found = precise_residuals(rows, facts.discount, facts.sign, values.high, values.low, float(row_sums[p]), policy)
        yield rows, n_bytes, found


class ResidualTable(Table):
    """A table of the residuals, to be maximised.

    Parameters
    ----------
    table : of the model.
    facts : of the model.
    values : that residuals are those of; must not change meanwhile.
    measured : at these values.
    """

    def __init__(self, table: Table, facts: ModelFacts, values: PreciseValues, measured: Measured) -> None:
        self._source, self._facts, self._values = table, facts, values
        self._least = -_NO_POLICY_USES * measured.error
        self._spare = np.empty(table.n_states, np.int32)
        """For policies that are measured on the way."""
        kept = {name: t for name, t in table.facts.dtypes.items() if name not in ("initial_values", "action_labels")}
        float64 = np.dtype(np.float64)
        ptr, itemsize = table.facts.partition_ptr, facts.probability_dtype.itemsize
        self.facts = replace(
            table.facts,
            kind="recomputed",
            sense="max",
            dtypes={**kept, "rewards": float64, "terminal_rewards": float64},
            reward_range=np.maximum(measured.reward_range, self._least),
            # At most: rewards may be twice as wide as the source's, and all states have terminal rewards.
            partition_bytes=facts.partition_bytes + 16 * np.diff(ptr) + 8 * facts.partition_bytes // itemsize,
            dyadic_probabilities=False,
            stored_fields=(),
            frame_buffer_bytes=0,
        )

    def load_code(self) -> None:
        """Load the loops that reading the source takes."""
        self._source.load_code()

    def loader(self, device: str) -> Loader:
        """Tables are measured on the host."""
        return Loader(self.read, self._source.loader("cpu").scratch_bytes)

    def read(self, p: int) -> tuple[PartitionTable, int]:
        """Partition p's table with residuals for rewards, and the bytes read for it."""
        table, n_bytes = self._source.read(p)
        facts, values = self._facts, self._values
        found = precise_residuals(
            table, facts.discount, facts.sign, values.high, values.low, float(facts.row_sums[p]), self._spare
        )
        rewards = np.maximum(found.rewards, self._least)
        refined = replace(table, rewards=rewards, terminal_rewards=found.terminal_rewards, initial_values=np.empty(0))
        return refined, n_bytes

    def original_states(self, p: int) -> IntArray:
        """States are numbered as in the store."""
        return np.arange(*self.facts.partition_ptr[p : p + 2])

    def to_source(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The values themselves."""
        return values
