"""What is known of a model before any partition is read: arithmetic on a table's small arrays, done once per solve.

    table (a few numbers per partition, the coupling matrix) + discount ─▶ ModelFacts

Planning, residual bounds and backends read the facts; nothing here reads a partition or knows a backend, a cache or a
store. Everything that the facts are made from is in RAM as soon as a table is open.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import OptionsError
from ooc_mdp.model.contraction import Contraction
from ooc_mdp.model.mdp import FloatArray, IntArray, discounts
from ooc_mdp.model.partition import Coupling, StoredField
from ooc_mdp.model.table import TableFacts

__all__ = ["MAX_VALUE", "ModelFacts", "check_reward_range"]

MAX_VALUE = 1e150
"""Of values, whose squares are added up."""
_MANY_PARTITIONS_READ = 12.0
"""Partitions that a partition reads on average from which on policy iteration is quicker than P-EVA: gridworlds and the
car read 4 to 8, double pendulums in four axes 16 and more."""


@dataclass(frozen=True, eq=False)
class ModelFacts:
    """Sizes, types, discounts and coupling of P partitions; made by :meth:`of`, and never changed."""

    name: str
    """What messages call the table."""
    n_states: int
    partition_ptr: IntArray
    """int64 [P+1]; partition p owns states partition_ptr[p] .. partition_ptr[p+1]-1."""
    partition_rows: IntArray
    """int64 [P]; (state, action) pairs of each partition."""
    partition_transitions: IntArray
    """int64 [P]; transitions of each partition."""
    partition_bytes: IntArray
    """int64 [P]; decoded bytes of each table."""
    partition_halo: IntArray
    """int64 [P]; halo states of each partition."""
    discount: float
    """Discount factor of one unit of time, below 1."""
    sign: float
    """1.0 to maximise, -1.0 to minimise: it multiplies every reward."""
    reward_range: FloatArray
    """float64 [P, 2]; least and largest reward of each partition, of the maximisation."""
    contraction: Contraction
    """What discounts and row sums make of a change of values."""
    coupling: Coupling
    """w[p,q]; largest probability mass that one row of p sends into q."""
    min_weights: FloatArray
    """float64 [P]; at most the row sum times the discount of every row of each partition, rounded down."""
    row_widths: IntArray
    """int64 [P]; most successors of a row of each partition."""
    block_shapes: npt.NDArray[np.int32] | None
    """int32 [P, d]; points along each axis of the grid block that each partition's states fill in C order, if any."""
    partition_grid: tuple[int, ...] | None
    """Partitions along each axis of the grid, numbered in C order, if any."""
    actions_per_state: int
    """Rows of every state, or 0 where they differ."""
    successors_per_action: int
    """Transitions of every row, or 0 where they differ."""
    dyadic_probabilities: bool
    """Whether each row's probabilities are multiples of 2**-24 that sum to 1: the last is known from the others."""
    probability_dtype: np.dtype[Any]
    """Of probabilities and rewards."""
    successor_dtype: np.dtype[Any]
    duration_dtype: np.dtype[Any] | None
    """Narrowest type that holds every duration; None where there are none."""
    stored_fields: tuple[StoredField, ...]
    """How chunks hold the table's fields; empty where there are no chunks."""
    frame_buffer_bytes: int
    """Of a buffer for any partition's chunks; 0 where there are no chunks."""

    @classmethod
    def of(cls, table: TableFacts, discount: float) -> ModelFacts:
        """Compute the facts of an open table.

        Parameters
        ----------
        discount : below 1.

        Raises
        ------
        OptionsError : no error can be proved at this discount, or values may grow too large for float64.
        """
        least, largest = table.row_sum_range.T
        widths, grid, actions = table.max_successors, table.grid, table.actions_per_state
        uniform = actions > 0 and "durations" not in table.dtypes
        contraction = Contraction.of(discount, table.duration_range[:, 0], largest, widths, least, uniform)
        weights = discounts(discount, table.duration_range[:, 1]) * least
        check_reward_range(table, float(contraction.normaliser.max()))
        return cls(
            name=table.name,
            n_states=table.n_states,
            partition_ptr=table.partition_ptr,
            partition_rows=table.partition_rows,
            partition_transitions=table.partition_transitions,
            partition_bytes=table.partition_bytes,
            partition_halo=table.partition_halo,
            discount=discount,
            sign=1.0 if table.sense == "max" else -1.0,
            reward_range=table.reward_range if table.sense == "max" else -table.reward_range[:, ::-1],
            contraction=contraction,
            coupling=table.coupling,
            min_weights=np.asarray(weights * (1 - (widths + 4) * 2.0**-52)),
            row_widths=widths,
            block_shapes=None if grid is None else grid.block_shapes(),
            partition_grid=None if grid is None else grid.partition_grid,
            actions_per_state=actions,
            successors_per_action=table.successors_per_action,
            dyadic_probabilities=table.dyadic_probabilities,
            probability_dtype=table.dtypes["probabilities"],
            successor_dtype=table.dtypes["successors"],
            duration_dtype=table.duration_dtype,
            stored_fields=table.stored_fields,
            frame_buffer_bytes=table.frame_buffer_bytes,
        )

    @property
    def n_partitions(self) -> int:
        """Number of partitions P."""
        return self.partition_ptr.size - 1

    @property
    def row_sums(self) -> FloatArray:
        """float64 [P]; the rounded-up largest row sum of each partition, for normalised residuals."""
        return self.contraction.row_sum

    @cached_property
    def largest_partition(self) -> int:
        """Most states of a partition."""
        return int(np.diff(self.partition_ptr).max())

    @cached_property
    def largest_halo(self) -> int:
        """Most halo states of a partition."""
        return int(self.partition_halo.max(initial=0))

    @cached_property
    def max_rows(self) -> int:
        """Rows of a partition at most; where states differ in them, as many as its bytes have room for."""
        if self.actions_per_state:
            return self.largest_partition * self.actions_per_state
        weight, width = self.probability_dtype.itemsize, self.successors_per_action
        least = weight + (width * (weight + self.successor_dtype.itemsize) if width else 4)  # reward, and its pointer
        return self.largest_table_bytes // least

    @cached_property
    def most_transitions(self) -> int:
        """Transitions of a partition at most; where rows differ in them, as many as its bytes have room for."""
        if self.actions_per_state and self.successors_per_action:
            return self.max_rows * self.successors_per_action
        return self.largest_table_bytes // (self.probability_dtype.itemsize + self.successor_dtype.itemsize)

    @cached_property
    def longest_row(self) -> int:
        """Most successors of a row."""
        return int(self.row_widths.max(initial=0))

    @cached_property
    def table_bytes(self) -> int:
        """Decoded bytes of all tables together."""
        return int(self.partition_bytes.sum())

    @cached_property
    def largest_table_bytes(self) -> int:
        """Decoded bytes of the largest partition's table."""
        return int(self.partition_bytes.max())

    @property
    def mean_partitions_read(self) -> float:
        """How many others a partition reads on average."""
        return float(self.coupling.mass.size - self.n_partitions) / self.n_partitions

    @property
    def densely_coupled(self) -> bool:
        """Whether partitions read more from outside than they own, and from most of the others: no place matters more
        than another."""
        return self.partition_halo.sum() > self.n_states and 2 * self.coupling.mass.size > self.n_partitions**2

    @property
    def strongly_coupled(self) -> bool:
        """Whether partitions read so many others, or so much of the model, that visits by priority do not pay."""
        return self.densely_coupled or self.mean_partitions_read >= _MANY_PARTITIONS_READ

    @cached_property
    def rows_per_state(self) -> float:
        """Transitions of a state over those of one of its rows, about."""
        if self.actions_per_state:
            return float(self.actions_per_state)
        width = self.successors_per_action or float(self.row_widths.mean()) or 1.0
        return max(1.0, self.table_bytes / self.n_states / (8.0 * width))


def check_reward_range(table: TableFacts, steps: float) -> None:
    """Raise OptionsError where rewards may add up to values whose squares float64 does not hold.

    Parameters
    ----------
    steps : by how much discounted sums may exceed the largest reward.
    """
    largest = float(np.abs(table.reward_range).max(initial=0.0))
    if not largest * steps <= MAX_VALUE:
        raise OptionsError(
            f"{table.name}: rewards up to {largest:.3g} add up to {largest * steps:.3g} at this discount, and numbers "
            f"above {MAX_VALUE:.0e} are too large for float64 once they are squared; give rewards in a larger "
            f"unit (divide all of them by one number), and multiply the values by it"
        )
