"""Build one partition's arrays from rows in the source's numbering: local numbers, halo, types, coupling row.

The coupling row of partition p, with s over p's states and q over partitions:

    w[p,q] = max_{s,a} sum_{s' in q} p(s'|s,a),   of the stored probabilities, in float64, times 1 + 1e-12

Rows of infinite duration end the process: their successors count for the halo, but not for w and not for the range of
row sums, since a change of value behind them changes nothing.
Rows are checked here by the rules of `io/checked_rows.py`, whether a reader or a problem made them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import InputError
from ooc_mdp.io.checked_rows import check_rows
from ooc_mdp.model.mdp import FloatArray, IntArray, Rows
from ooc_mdp.model.state_order import StateOrder, partition_of
from ooc_mdp.runtime.compiled import loop
from ooc_mdp.store.layout import successor_dtype
from ooc_mdp.store.partition_arrays import PartitionArrays

__all__ = ["build_partition", "local_successors", "with_coupling"]

_ROUND_UP = 1 + 1e-12
_SPARSE = 4
"""Range of values, in multiples of their number, from which on they are sorted; on a device they always are."""


def build_partition(
    rows: Rows,
    states: IntArray,
    p: int,
    order: StateOrder,
    n_states: int,
    dtype: np.dtype[np.floating],
    source: str,
) -> PartitionArrays:
    """Build partition p's arrays from the rows of its states.

    Parameters
    ----------
    rows : rows of `states`, successors in the source's numbering.
    states : int64 [n]; original states of p, in the order of their new numbers.
    n_states : states of the whole model.
    dtype : type in which probabilities and rewards are stored.
    source : name for messages.

    Raises
    ------
    InputError : rows are no probability distributions over the states, or a value does not fit `dtype`.
    """
    if rows.n_states != states.size:
        raise InputError(source, f"it gave the rows of {rows.n_states} states, not of {states.size}")
    check_rows(source, states, rows, n_states)
    probabilities, rewards = rows.probabilities.astype(dtype, copy=False), _stored_rewards(rows, states, dtype, source)
    successors, halo = local_successors(order.to_store(rows.successors), p, order.partition_ptr)
    return with_coupling(
        PartitionArrays(
            action_ptr=rows.action_ptr,
            successor_ptr=rows.successor_ptr,
            successors=successors,
            probabilities=probabilities,
            rewards=rewards,
            halo=halo,
            coupling_partitions=np.empty(0, np.int64),
            coupling_mass=np.empty(0),
            row_sum_range=(1.0, 1.0),
            terminal_rewards=rows.terminal_rewards,
            durations=rows.durations,
            initial_values=rows.initial_values,
            action_labels=rows.action_labels,
            original_state=states if order.state_order()["kind"] == "array" else None,
        ),
        p,
        order.partition_ptr,
    )


def with_coupling(part: PartitionArrays, p: int, partition_ptr: IntArray) -> PartitionArrays:
    """Partition p's arrays with its coupling row and the range of its row sums."""
    owners = partition_of(partition_ptr, part.halo)
    partitions = np.union1d(owners, [p])
    mass, low, high = _row_masses(
        part.successor_ptr,
        part.successors,
        part.probabilities,
        int(partition_ptr[p + 1] - partition_ptr[p]),
        np.searchsorted(partitions, owners),
        int(np.searchsorted(partitions, p)),
        partitions.size,
        np.empty(0) if part.durations is None else part.durations,
    )
    return replace(
        part,
        coupling_partitions=partitions,
        coupling_mass=mass * _ROUND_UP,
        row_sum_range=(low, high) if low <= high else (1.0, 1.0),
    )


def _stored_rewards(
    rows: Rows, states: IntArray, dtype: np.dtype[np.floating], source: str
) -> npt.NDArray[np.floating]:
    """The rewards in the stored type; InputError where it cannot hold one."""
    with np.errstate(over="ignore"):
        rewards = rows.rewards.astype(dtype, copy=False)
    overflows = np.flatnonzero(~np.isfinite(rewards))
    if overflows.size:
        row = int(overflows[0])
        state = states[np.searchsorted(rows.action_ptr, row, side="right") - 1]
        raise InputError(
            source,
            f"state {state}: the reward {rows.rewards[row]} is not a finite {dtype}; store float64 (--dtype float64)",
        )
    return rewards


def local_successors(
    successors: IntArray, p: int, partition_ptr: IntArray
) -> tuple[npt.NDArray[np.unsignedinteger], IntArray]:
    """Convert partition p's successors (int64 [nnz], new numbers) to local numbers; returns them and p's halo."""
    first, last = int(partition_ptr[p]), int(partition_ptr[p + 1])
    n_own = last - first
    if type(successors) is np.ndarray:
        low, high, outside = _outside(successors, first, last)
        if high - low <= _SPARSE * outside:
            return _renumbered(successors, first, n_own, low, high)
    local = successors - first
    outside = np.flatnonzero((local < 0) | (local >= n_own))
    halo = np.unique(local[outside])
    local[outside] = np.searchsorted(halo, local[outside]) + n_own
    halo += first
    return local.astype(successor_dtype(n_own + halo.size)), halo


def _renumbered(
    successors: IntArray, first: int, n_own: int, low: int, high: int
) -> tuple[npt.NDArray[np.unsignedinteger], IntArray]:
    """As :func:`local_successors`, where those of other partitions lie close together, from `low` to `high`.

    They are marked in an array of their range, which takes a fraction of the time of a search.
    """
    marks = np.zeros(high - low + 1, np.bool_)
    _mark(successors, first, n_own, low, marks)
    place = np.cumsum(marks, dtype=np.uint32)
    place += np.uint32(n_own - 1)
    halo = np.flatnonzero(marks) + low
    local = np.empty(successors.size, successor_dtype(n_own + halo.size))
    _renumber(successors, first, n_own, low, place, local)
    return local, halo


@loop
def _outside(successors, first, last):  # type: ignore[no-untyped-def]
    """The least and the largest successor of other partitions (0 and 0 if there is none), and how many these are."""
    low, high, count = np.int64(0), np.int64(0), 0
    for successor in successors:
        if successor < first or successor >= last:
            low = successor if count == 0 or successor < low else low
            high = successor if count == 0 or successor > high else high
            count += 1
    return low, high, count


@loop
def _mark(successors, first, n_own, low, marks):  # type: ignore[no-untyped-def]
    """Mark the successors of other partitions."""
    for successor in successors:
        if successor < first or successor >= first + n_own:
            marks[successor - low] = True


@loop
def _renumber(successors, first, n_own, low, place, local):  # type: ignore[no-untyped-def]
    """Fill in local numbers: those of own states, and behind them the places in the halo."""
    for k in range(successors.size):
        successor = successors[k]
        if first <= successor < first + n_own:
            local[k] = successor - first
        else:
            local[k] = place[successor - low]


@loop
def _row_masses(
    successor_ptr: IntArray,
    successors: npt.NDArray[np.unsignedinteger],
    probabilities: npt.NDArray[np.floating],
    n_own: int,
    halo_owner: IntArray,
    own: int,
    n_partitions: int,
    durations: FloatArray,
) -> tuple[FloatArray, float, float]:
    """Largest mass of one row into each partition [n_partitions], and the least and largest sum of a row.

    Partitions are numbered by their positions in the coupling row: `halo_owner` [h] and `own` contain them. Rows of
    infinite duration do not count; if there are no others, the least sum is above the largest.
    """
    mass = np.zeros(n_partitions)
    row_mass = np.zeros(n_partitions)
    low, high = np.inf, -np.inf
    for row in range(successor_ptr.size - 1):
        if durations.size > 0 and durations[row] == np.inf:
            continue
        total = 0.0
        for j in range(successor_ptr[row], successor_ptr[row + 1]):
            s = np.int64(successors[j])
            q = own if s < n_own else halo_owner[s - n_own]
            x = np.float64(probabilities[j])
            row_mass[q] += x
            total += x
        for j in range(successor_ptr[row], successor_ptr[row + 1]):
            s = np.int64(successors[j])
            q = own if s < n_own else halo_owner[s - n_own]
            if row_mass[q] > mass[q]:
                mass[q] = row_mass[q]
            row_mass[q] = 0.0
        low = min(low, total)
        high = max(high, total)
    return mass, low, high
