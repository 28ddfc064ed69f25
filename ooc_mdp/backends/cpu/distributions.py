"""Tables whose rows share a few distributions: each is kept once, and rows have its number, a byte.

A gridworld has some twenty distinct rows of probabilities, and probabilities are two thirds of its table. Sweeps of
many partitions wait for tables from memory, and take little more than half of the time where a row's probabilities are
a byte in place of 32. A control problem's rows, whose probabilities say where between grid points a state comes to, are
all different, which shows within the first of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.model.partition import PartitionTable
from ooc_mdp.runtime.arena import TableMemory
from ooc_mdp.runtime.compiled import inlined, loop

__all__ = ["share_distributions"]

_MOST = 64
"""Distributions that are looked for; a row may be compared with all of them."""

Numbers = npt.NDArray[np.uint8]


def share_distributions(table: PartitionTable, memory: TableMemory) -> tuple[PartitionTable, Numbers]:
    """The same table with its distinct distributions as its probabilities, and the number of each row's, uint8 [m].

    Where rows are of several lengths or have too many distributions: the table as it is, and no numbers.

    Parameters
    ----------
    memory : for the numbers.
    """
    width = table.successors_per_action
    if width == 0 or table.n_rows <= _MOST:
        return table, np.empty(0, np.uint8)
    distinct, found = np.empty((_MOST, width), table.probabilities.dtype), np.empty(table.n_rows, np.uint8)
    count = _number_rows(table.probabilities, table.actions_per_state or 1, distinct, found)
    if count == 0:
        return table, found[:0]
    numbers: Numbers = memory.empty(table.n_rows, np.uint8)  # only now: it would have left a hole between tables
    numbers[:] = found
    return replace(table, probabilities=distinct[:count].ravel()), numbers


@loop
def _number_rows(probabilities: npt.NDArray[Any], actions: int, distinct: npt.NDArray[Any], numbers: Numbers) -> int:
    """Number the distributions of all rows; how many there are, or 0 if they are too many.

    Parameters
    ----------
    actions : so many rows earlier another may well have the same distribution: that of the state before.
    distinct : [most, width]; gets the distributions.
    numbers : uint8 [m]
    """
    count, width = 0, distinct.shape[1]
    for j in range(numbers.size):
        first = probabilities[j * width]
        number = np.int64(numbers[j - actions]) if j >= actions else 0
        if count == 0 or not _same(distinct, number, probabilities, j):
            number = 0
            # Most differ in the first already; a call of the other function takes longer than that.
            while number < count and not (distinct[number, 0] == first and _same(distinct, number, probabilities, j)):
                number += 1
            if number == distinct.shape[0]:
                return 0
            if number == count:
                for k in range(width):
                    distinct[number, k] = probabilities[j * width + k]
                count += 1
        numbers[j] = number
    return count


@inlined
def _same(distinct: npt.NDArray[Any], number: int, probabilities: npt.NDArray[Any], j: int) -> bool:
    """Whether row j has that distribution."""
    same = True
    for k in range(distinct.shape[1]):
        same &= distinct[number, k] == probabilities[j * distinct.shape[1] + k]
        if not same:
            break
    return same
