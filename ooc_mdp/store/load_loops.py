"""The loops behind `ooc_mdp.store.check_load`; imported on first use, because Numba takes long to import.

They allocate nothing and release the interpreter lock. Indices were compared with the arrays before.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ooc_mdp.runtime.compiled import loop, part

__all__ = ["Measured", "mark_boundary", "measure_partition"]

Words = npt.NDArray[np.unsignedinteger[Any]]
Floats = npt.NDArray[np.floating[Any]]
Int64s = npt.NDArray[np.int64]


class Measured(NamedTuple):
    """What one partition's arrays give. A range of nothing, or with something that is no number, is (nan, nan)."""

    least_reward: float
    largest_reward: float
    least_duration: float
    largest_duration: float
    least_sum: float
    """Of the rows that do not end the process; 1 where there is none, as the largest."""
    largest_sum: float
    furthest_from_1: float
    """How far the sum of any row is from 1."""
    wrong_row: int
    """The first with a probability that is negative or no number, or -1."""
    halo_fault: int
    """0 none, 1 its states do not ascend, 2 some are of the partition itself, 3 partitions are not those coupled."""


@loop
def measure_partition(
    successors: Words, probabilities: Floats, successor_ptr: npt.NDArray[np.uint32], width: int,
    rewards: Floats, durations: Floats, terminal_rewards: Floats, action_ptr: npt.NDArray[np.uint32],
    n: int, halo: Int64s, p: int, partition_ptr: Int64s, coupled: Int64s, ends: Int64s, mass: Floats,
) -> Measured:  # fmt: skip
    """Ranges, row sums and the mass into each coupled partition, in one pass over partition p of n states.

    Parameters
    ----------
    successors, probabilities : [z]; row j's lie at j * width, or from successor_ptr[j] where `width` is 0.
    durations : [m] or empty; infinite for rows that end the process.
    action_ptr : [n + 1], or empty where no state is terminal.
    coupled : int64 [k], ascending.
    ends : int64 [k, 2], 0 before; where in the halo the states of each lie.
    mass : float64 [k], 0 before; the largest mass that a row sends into each.
    """
    fault, own, slots = _place_halo(halo, p, partition_ptr, coupled, ends)
    least_reward, largest_reward = _range_of_rewards(rewards, terminal_rewards, action_ptr)
    least_duration, largest_duration = _range_of(durations)
    row_mass = np.zeros(coupled.size)
    least, largest, furthest_from_1, wrong = np.inf, -np.inf, 0.0, -1
    for j in range(rewards.size):
        lo = np.uint64(j * width) if width > 0 else np.uint64(successor_ptr[j])
        count = width if width > 0 else np.int64(successor_ptr[j + 1]) - np.int64(successor_ptr[j])
        total, furthest, unsound = 0.0, np.int64(0), 0
        for k in range(count):
            at = lo + np.uint64(k)
            probability = np.float64(probabilities[at])
            unsound += not probability >= 0.0  # true where it is no number
            total += probability
            furthest = max(furthest, np.int64(successors[at]))
        if unsound > 0 and wrong < 0:
            wrong = j
        furthest_from_1 = max(furthest_from_1, abs(total - 1.0))
        if durations.size > 0 and np.isinf(durations[j]):
            continue
        least, largest = min(least, total), max(largest, total)
        if fault != 0:
            continue
        if furthest < n:
            mass[own] = max(mass[own], total)
            continue
        for k in range(count):
            at = lo + np.uint64(k)
            s = np.int64(successors[at])
            row_mass[own if s < n else slots[s - n]] += np.float64(probabilities[at])
        for k in range(count):
            s = np.int64(successors[lo + np.uint64(k)])
            q = own if s < n else slots[s - n]
            mass[q] = max(mass[q], row_mass[q])
            row_mass[q] = 0.0
    if least > largest:
        least = largest = 1.0
    return Measured(
        least_reward, largest_reward, least_duration, largest_duration, least, largest, furthest_from_1, wrong, fault
    )


@part
def _place_halo(
    halo: Int64s, p: int, partition_ptr: Int64s, coupled: Int64s, ends: Int64s
) -> tuple[int, int, npt.NDArray[np.int32]]:
    """Fault of the halo as of :class:`Measured`, place of p in `coupled`, and that of each halo state's partition."""
    slots = np.empty(halo.size, np.int32)
    own, i = 0, 0
    for j in range(1, halo.size):
        if halo[j] <= halo[j - 1]:
            return 1, own, slots
    for k in range(coupled.size):
        q = coupled[k]
        first, end = partition_ptr[q], partition_ptr[q + 1]
        begin = i
        while i < halo.size and first <= halo[i] < end:
            slots[i] = k
            i += 1
        if q == p:
            own = k
            if i > begin:
                return 2, own, slots
        elif i == begin:
            return 3, own, slots
        else:
            ends[k, 0], ends[k, 1] = begin, i
    return (0 if i == halo.size else 3), own, slots


@part
def _range_of(numbers: Floats) -> tuple[float, float]:
    """Least and largest, (nan, nan) of nothing and where one is no number."""
    least, largest, unsound = np.inf, -np.inf, numbers.size == 0
    for number in numbers:
        least, largest = min(least, number), max(largest, number)
        unsound |= number != number
    return (np.nan, np.nan) if unsound else (np.float64(least), np.float64(largest))


@part
def _range_of_rewards(
    rewards: Floats, terminal_rewards: Floats, action_ptr: npt.NDArray[np.uint32]
) -> tuple[float, float]:
    """Range of the rows' rewards and of those of terminal states."""
    least, largest = _range_of(rewards)
    for s in range(action_ptr.size - 1):
        if action_ptr[s] == action_ptr[s + 1]:
            paid = terminal_rewards[s] if terminal_rewards.size > 0 else 0.0
            if paid != paid or (rewards.size > 0 and least != least):
                return np.nan, np.nan
            # A comparison with no number is false, so that the first one is taken.
            least, largest = (least if least < paid else paid), (largest if largest > paid else paid)
    return least, largest


@loop
def mark_boundary(
    bits: npt.NDArray[np.uint8], first: int, boundary: npt.NDArray[np.bool_],
    halo: Int64s, coupled: Int64s, ends: Int64s, known: npt.NDArray[np.bool_],
) -> tuple[int, int]:  # fmt: skip
    """Enter the boundary of a partition and its halo into the marks of all states.

    Parameters
    ----------
    bits : a bit a state: set where `boundary` of a known partition is, and in the halos of known partitions.
    first : the partition's first state.
    known : bool [P], partitions whose boundary was entered before.

    Returns
    -------
    A state that is read without being in its partition's boundary and which partition's that is (-1: this one's), or
    (-1, -1).
    """
    for i in range(boundary.size):
        state = first + i
        bit = np.uint8(1 << (state & 7))
        if boundary[i]:
            bits[state >> 3] |= bit
        elif bits[state >> 3] & bit:
            return state, -1
    for k in range(coupled.size):
        q = coupled[k]
        for i in range(ends[k, 0], ends[k, 1]):
            state = halo[i]
            bit = np.uint8(1 << (state & 7))
            if not known[q]:
                bits[state >> 3] |= bit
            elif not bits[state >> 3] & bit:
                return state, q
    return -1, -1
