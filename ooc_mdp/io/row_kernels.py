"""Compiled loops over the rows of an MDP: find the first error, and bring rows into canonical form.

The rules are stated in `checked_rows.py`. All kernels release the GIL and take contiguous, writeable arrays of int64
and float64, so that each of them is compiled once.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.runtime.compiled import loop

__all__ = [
    "DURATION",
    "EMPTY_ROW",
    "EXPECTED_REWARD",
    "NO_ERROR",
    "ORDER",
    "PROBABILITY",
    "REWARD",
    "ROW_REWARD",
    "SUCCESSOR",
    "SUM",
    "RowArrays",
    "RowRules",
    "canonicalise",
    "scan_rows",
    "sort_row",
]

NO_ERROR, EMPTY_ROW, ROW_REWARD, SUCCESSOR, PROBABILITY, REWARD, DURATION, SUM, EXPECTED_REWARD, ORDER = range(10)
"""What :func:`scan_rows` finds."""

_SHORT_ROW = 32
"""Longest row that is sorted by insertion."""


class RowArrays(NamedTuple):
    """The rows, as kernels take them; empty arrays stand for None."""

    successor_ptr: IntArray
    successors: IntArray
    probabilities: FloatArray
    row_rewards: FloatArray
    transition_rewards: FloatArray
    durations: FloatArray


class RowRules(NamedTuple):
    """Where the rules for a reader's rows and for rows in canonical form differ."""

    n_states: int
    """Number of states of the model, -1 if unknown."""
    tolerance: float
    """By how much a row's sum may differ from 1, and a probability exceed 1."""
    normalize: bool
    """Whether any positive sum is accepted."""
    canonical: bool
    """Whether successors must increase strictly inside a row, and durations may be infinite."""


@loop
def scan_rows(rows, rules, sums, rewards):  # type: ignore[no-untyped-def]
    """Check all rows in order; fill sums of probabilities and expected rewards [m], or neither if both are empty.

    Returns (error, row, k, total, needs_canonical_form, where): the first error or NO_ERROR, its row, transition and
    the row's sum; whether any row needs sorting, merging or dropping; the position of the largest successor (-1 if
    none). One loop without calls: to pass arrays to another kernel for each row would cost more than the row.
    """
    successor_ptr, successors, probabilities, row_rewards, transition_rewards, durations = rows
    n_states, tolerance, normalize, canonical = rules
    needs_canonical_form = False
    largest = -1
    where = -1
    for row in range(successor_ptr.size - 1):
        first = successor_ptr[row]
        last = successor_ptr[row + 1]
        if row_rewards.size > 0 and not math.isfinite(row_rewards[row]):
            return ROW_REWARD, row, first, 0.0, needs_canonical_form, where
        if durations.size > 0 and not (durations[row] > 0.0 and (canonical or durations[row] < math.inf)):
            return DURATION, row, first, 0.0, needs_canonical_form, where
        if first >= last:
            return EMPTY_ROW, row, first, 0.0, needs_canonical_form, where
        total = 0.0
        lost = 0.0
        expected = 0.0
        previous = -1
        for k in range(first, last):
            successor = successors[k]
            p = probabilities[k]
            if successor < 0 or (n_states >= 0 and successor >= n_states):
                return SUCCESSOR, row, k, 0.0, needs_canonical_form, where
            if not (0.0 <= p <= 1.0 + tolerance):
                return PROBABILITY, row, k, 0.0, needs_canonical_form, where
            if successor > largest:
                largest = successor
                where = k
            if successor <= previous:
                needs_canonical_form = True
                if canonical:
                    return ORDER, row, k, 0.0, needs_canonical_form, where
            previous = successor
            if p == 0.0:
                needs_canonical_form = True
            elif transition_rewards.size > 0:
                if not math.isfinite(transition_rewards[k]):
                    return REWARD, row, k, 0.0, needs_canonical_form, where
                expected += p * transition_rewards[k]
            # Knuth's exact sum of two: the lost low bits are kept apart, so that long rows of small terms add up.
            grown = total + p
            added = grown - total
            lost += (total - (grown - added)) + (p - added)
            total = grown
        total += lost
        if abs(total - 1.0) > tolerance and not (normalize and total > 0.0):
            return SUM, row, first, total, needs_canonical_form, where
        if normalize:
            expected /= total
        if row_rewards.size > 0:
            expected += row_rewards[row]
        if not math.isfinite(expected):
            return EXPECTED_REWARD, row, first, total, needs_canonical_form, where
        if sums.size > 0:
            sums[row] = total
            rewards[row] = expected
    return NO_ERROR, -1, -1, 1.0, needs_canonical_form, where


@loop
def sort_row(successors, probabilities, begin, end, decreasing):  # type: ignore[no-untyped-def]
    """Sort begin..end by successor and add up duplicates, in the order in which they came; returns the new end.

    decreasing: whether the successors strictly decrease.
    """
    if decreasing:
        for i in range((end - begin) // 2):
            k = end - 1 - i
            successors[begin + i], successors[k] = successors[k], successors[begin + i]
            probabilities[begin + i], probabilities[k] = probabilities[k], probabilities[begin + i]
        return end
    if end - begin <= _SHORT_ROW:
        for i in range(begin + 1, end):
            successor = successors[i]
            p = probabilities[i]
            j = i
            while j > begin and successors[j - 1] > successor:
                successors[j] = successors[j - 1]
                probabilities[j] = probabilities[j - 1]
                j -= 1
            successors[j] = successor
            probabilities[j] = p
    else:
        order = np.argsort(successors[begin:end], kind="mergesort")
        successors[begin:end] = successors[begin:end][order]
        probabilities[begin:end] = probabilities[begin:end][order]
    kept = begin
    for i in range(begin + 1, end):
        if successors[i] == successors[kept]:
            probabilities[kept] += probabilities[i]
        else:
            kept += 1
            successors[kept] = successors[i]
            probabilities[kept] = probabilities[i]
    return kept + 1


@loop
def canonicalise(successor_ptr, successors, probabilities):  # type: ignore[no-untyped-def]
    """Sort successors, add up duplicates and drop zeros; returns (successor_ptr, successors, probabilities)."""
    n_rows = successor_ptr.size - 1
    out_ptr = np.zeros(n_rows + 1, np.int64)
    out_successors = np.empty(successors.size, np.int64)
    out_probabilities = np.empty(successors.size, np.float64)
    end = 0
    for row in range(n_rows):
        begin = end
        increasing = True
        decreasing = True
        for k in range(successor_ptr[row], successor_ptr[row + 1]):
            if probabilities[k] == 0.0:
                continue
            if end > begin:
                if successors[k] == out_successors[end - 1]:
                    out_probabilities[end - 1] += probabilities[k]
                    continue
                if successors[k] < out_successors[end - 1]:
                    increasing = False
                else:
                    decreasing = False
            out_successors[end] = successors[k]
            out_probabilities[end] = probabilities[k]
            end += 1
        if not increasing:
            end = sort_row(out_successors, out_probabilities, begin, end, decreasing)
        out_ptr[row + 1] = end
    return out_ptr, out_successors[:end].copy(), out_probabilities[:end].copy()
