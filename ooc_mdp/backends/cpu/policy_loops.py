"""Compiled loops over the rows of a policy, laid out as `backends.cpu.policy_rows` says: sweeps, products, residuals.

`unrolled` is a tuple of as many numbers as every row has successors, which compiles a loop for that many, or empty.
"""

from __future__ import annotations

import numpy as np
from numba import njit

__all__ = ["measure_rows", "product_rows", "sweep_rows"]


@njit(inline="always")
def _backup(unrolled, width, at, successors, probabilities, values):
    """sum_k p_k V(succ_k) of the row at `at`."""
    total = 0.0
    for k in range(len(unrolled) if len(unrolled) > 0 else width):
        total += np.float64(probabilities[at + np.uint64(k)]) * values[successors[at + np.uint64(k)]]
    return total


@njit(nogil=True, cache=True)
def sweep_rows(
    unrolled, begin, end, first, ptr, widths, successors, probabilities, rewards, discounts, discount, values, active,
    back, dependents_ptr, dependents, mass, pending,
):  # fmt: skip
    """A sweep of the active ones of partitions begin .. end-1, in place; the number of backups.

    Parameters
    ----------
    back : whether partitions and states go from the last to the first.
    dependents_ptr, dependents, mass : the coupling matrix by columns.
    pending : float64 [P]; what is known to have flowed in. Other threads may add to it at the same time, and what is
        lost by that is found by the measurement.
    """
    backups = 0
    for step in range(end - begin):
        p = end - 1 - step if back else begin + step
        if not active[p]:
            continue
        n, width = first[p + 1] - first[p], widths[p]
        pending[p] = 0.0
        change = 0.0
        for i in range(n):
            at = n - 1 - i if back else i
            state = np.uint64(first[p] + at)
            total = _backup(unrolled, width, np.uint64(ptr[p] + at * width), successors, probabilities, values)
            value = rewards[state] + (discounts[state] if discounts.size > 0 else discount) * total
            change = max(change, abs(value - values[state]))
            values[state] = value
        backups += n
        for e in range(dependents_ptr[p], dependents_ptr[p + 1]):
            pending[dependents[e]] += mass[e] * change
    return backups


@njit(nogil=True, cache=True)
def measure_rows(
    unrolled, begin, end, first, ptr, widths, successors, probabilities, rewards, discounts, discount, values, before,
    others, kept, policy, row_sums, out,
):  # fmt: skip
    """Partitions begin .. end-1 at the present values, float64 [P, 9]: as in `Evaluation`, in the order of its fields.

    Partitions without rows are left out.
    """
    for p in range(begin, end):
        if not kept[p]:
            continue
        width = widths[p]
        row_sum = row_sums[p]
        scale = 1.0 / (1.0 - discount * row_sum)
        up = down = rise = fall = plain_rise = plain_fall = other = largest = -np.inf
        smallest = np.inf
        for i in range(first[p + 1] - first[p]):
            state = np.uint64(first[p] + i)
            total = _backup(unrolled, width, np.uint64(ptr[p] + i * width), successors, probabilities, values)
            here = values[state]
            if discounts.size > 0:
                residual = rewards[state] + discounts[state] * total - here
                normalised = residual / (1.0 - discounts[state] * row_sum)
            else:
                residual = rewards[state] + discount * total - here
                normalised = residual * scale if policy[state] >= 0 else residual  # without action it is the error
            up = max(up, here - before[state])
            down = max(down, before[state] - here)
            rise = max(rise, normalised)
            fall = max(fall, -normalised)
            plain_rise = max(plain_rise, residual)
            plain_fall = max(plain_fall, -residual)
            other = max(other, others[state] - here)
            largest = max(largest, here)
            smallest = min(smallest, here)
        out[p, 0], out[p, 1], out[p, 2], out[p, 3], out[p, 4] = up, down, rise, fall, plain_rise
        out[p, 5], out[p, 6], out[p, 7], out[p, 8] = plain_fall, other, largest, smallest


@njit(nogil=True, cache=True)
def product_rows(
    unrolled, begin, end, first, ptr, widths, successors, probabilities, rewards, discounts, discount, kept, x,
    residual, out,
):  # fmt: skip
    """(1 - g P) x over partitions begin .. end-1, or r minus that."""
    for p in range(begin, end):
        width = widths[p]
        for i in range(first[p + 1] - first[p]):
            state = np.uint64(first[p] + i)
            if not kept[p]:
                out[state] = 0.0 if residual else x[state]
                continue
            total = _backup(unrolled, width, np.uint64(ptr[p] + i * width), successors, probabilities, x)
            product = x[state] - (discounts[state] if discounts.size > 0 else discount) * total
            out[state] = rewards[state] - product if residual else product
