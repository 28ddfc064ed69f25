"""From rows in the source's numbering to one partition's arrays: renumbering, halo, types, coupling row.

Reference for the coupling row, with s over p's states and q over partitions:

    w[p,q] = max_{s,a} sum_{s' in q} p(s'|s,a),   of the stored probabilities, in float64, times 1 + 1e-12

Rows of infinite duration end the process: their successors count for the halo, but not for w and not for the range of
row sums, since a change of value behind them changes nothing.
Rows are checked here once more, whoever made them, because a solver's guarantees rest on them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from ooc_mdp.errors import InputError
from ooc_mdp.model.mdp import ROW_SUM_TOLERANCE, FloatArray, IntArray, Rows
from ooc_mdp.model.state_order import StateOrder
from ooc_mdp.store.layout import successor_dtype
from ooc_mdp.store.partition_arrays import PartitionArrays

__all__ = ["local_successors", "localise"]

_ROUND_UP = 1 + 1e-12
_TOLERANCE = ROW_SUM_TOLERANCE * 1.001
"""A little more than readers allow, because they may add up a row in another order."""
_NO_SUCCESSOR, _BAD_PROBABILITY, _BAD_SUCCESSOR, _BAD_SUM = 1, 2, 3, 4


def localise(
    rows: Rows,
    states: IntArray,
    p: int,
    numbering: StateOrder,
    n_states: int,
    dtype: np.dtype[np.floating],
    source: str,
) -> PartitionArrays:
    """Partition p's arrays from the rows of its states.

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
        raise InputError(source, f"{rows.n_states} states came where {states.size} were asked for")
    with np.errstate(over="ignore"):
        probabilities = rows.probabilities.astype(dtype)
        rewards = rows.rewards.astype(dtype)
    _check_values(rows, rewards, states, source)
    code, row = _check_rows(rows.successor_ptr, rows.successors, rows.probabilities, n_states, _TOLERANCE)
    if code:
        raise InputError(source, f"{_name_row(rows, states, row)}: {_explain(code, rows, row, n_states)}")
    successors, halo = local_successors(numbering.to_store(rows.successors), p, numbering.partition_ptr)
    n_own = states.size
    owners = owner(numbering.partition_ptr, halo)
    partitions = np.union1d(owners, [p])
    mass, low, high = _row_masses(
        rows.successor_ptr,
        successors,
        probabilities,
        n_own,
        np.searchsorted(partitions, owners),
        int(np.searchsorted(partitions, p)),
        partitions.size,
        np.empty(0) if rows.durations is None else rows.durations,
    )
    return PartitionArrays(
        action_ptr=rows.action_ptr,
        successor_ptr=rows.successor_ptr,
        successors=successors,
        probabilities=probabilities,
        rewards=rewards,
        halo=halo,
        coupling_partitions=partitions,
        coupling_mass=mass * _ROUND_UP,
        row_sum_range=(low, high) if low <= high else (1.0, 1.0),
        terminal_rewards=rows.terminal_rewards,
        durations=rows.durations,
        initial_values=rows.initial_values,
        action_labels=rows.action_labels,
        original_state=states if numbering.state_order()["kind"] == "array" else None,
    )


def local_successors(
    successors: IntArray, p: int, partition_ptr: IntArray
) -> tuple[npt.NDArray[np.unsignedinteger], IntArray]:
    """Partition p's successors (int64 [nnz], new numbers) as local ones in the narrowest type, and p's halo."""
    first, last = int(partition_ptr[p]), int(partition_ptr[p + 1])
    n_own = last - first
    local = successors - first
    outside = np.flatnonzero((local < 0) | (local >= n_own))
    halo = np.unique(local[outside])
    local[outside] = np.searchsorted(halo, local[outside]) + n_own
    halo += first
    return local.astype(successor_dtype(n_own + halo.size)), halo


def _check_values(rows: Rows, rewards: npt.NDArray[np.floating], states: IntArray, source: str) -> None:
    """Refuse values that are not finite, or not in the stored type, and durations that are not above 0."""
    bad = np.flatnonzero(~np.isfinite(rewards))
    if bad.size:
        row = int(bad[0])
        raise InputError(
            source,
            f"{_name_row(rows, states, row)}: the reward {rows.rewards[row]} is not a finite {rewards.dtype}"
            + ("; store float64 (--dtype float64)" if np.isfinite(rows.rewards[row]) else ""),
        )
    if rows.durations is not None:
        bad = np.flatnonzero(~(rows.durations > 0))
        if bad.size:
            row = int(bad[0])
            value = rows.durations[row]
            raise InputError(source, f"{_name_row(rows, states, row)}: the duration {value} is not positive")
    for name, values in (("state reward", rows.terminal_rewards), ("initial value", rows.initial_values)):
        if values is not None and not np.isfinite(values).all():
            i = int(np.flatnonzero(~np.isfinite(values))[0])
            raise InputError(source, f"state {states[i]}: the {name} {values[i]} is not finite")


def _name_row(rows: Rows, states: IntArray, row: int) -> str:
    i = int(np.searchsorted(rows.action_ptr, row, side="right")) - 1
    return f"state {states[i]}, action {row - int(rows.action_ptr[i])}"


def _explain(code: int, rows: Rows, row: int, n_states: int) -> str:
    span = slice(int(rows.successor_ptr[row]), int(rows.successor_ptr[row + 1]))
    match code:
        case 1:
            return "no successors"
        case 2:
            return f"probabilities {rows.probabilities[span]} are not all finite and at least 0"
        case 3:
            return f"successors {rows.successors[span]} are not increasing and below {n_states}"
        case _:
            return f"probabilities sum to {float(rows.probabilities[span].sum())!r}, not 1"


@njit(nogil=True, cache=True)
def _check_rows(
    successor_ptr: IntArray, successors: IntArray, probabilities: FloatArray, n_states: int, tolerance: float
) -> tuple[int, int]:
    """Code of the first thing wrong and its row; (0, 0) if all is well."""
    for row in range(successor_ptr.size - 1):
        begin, end = successor_ptr[row], successor_ptr[row + 1]
        if begin >= end:
            return _NO_SUCCESSOR, row
        total = 0.0
        before = -1
        for j in range(begin, end):
            if not (0.0 <= probabilities[j] < np.inf):
                return _BAD_PROBABILITY, row
            if successors[j] <= before or successors[j] >= n_states:
                return _BAD_SUCCESSOR, row
            before = successors[j]
            total += probabilities[j]
        if abs(total - 1.0) > tolerance:
            return _BAD_SUM, row
    return 0, 0


@njit(nogil=True, cache=True)
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

    Partitions are counted as positions in the coupling row: `halo_owner` [h] and `own` give them. Rows of infinite
    duration do not count; without others the least sum is above the largest.
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
