"""The CPU backend: Gauss-Seidel sweeps in Numba, over a local copy of own and halo values.

    V(s) <- max_a { sign r(s,a) + g(s,a) sum_k p_k V(succ_k) },   own states in place, halo fixed during a visit

A visit gathers own and halo values into one contiguous vector, so that a transition costs one narrow index, one
probability and one value from a vector that fits the processor's cache; it sweeps in alternating directions and
writes own values back. Kernels release the interpreter lock, so partitions are decoded on other threads meanwhile.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from ooc_mdp.bounds import Measured
from ooc_mdp.kernels.base import ModelConstants, Resident, SweepLimits, VisitReport
from ooc_mdp.mdp import FloatArray
from ooc_mdp.partition import PartitionTable

__all__ = ["CpuBackend"]


@njit(nogil=True, cache=True, inline="always")
def _rows_of(s, actions, action_ptr):
    """First and last row of state s, from the pointer or from the uniform number of actions."""
    if actions > 0:
        return s * actions, (s + 1) * actions
    return np.int64(action_ptr[s]), np.int64(action_ptr[s + 1])


@njit(nogil=True, cache=True, inline="always")
def _q(j, local, width, successor_ptr, successors, probabilities, rewards, discounts, discount, sign):
    """Q of row j; successors in stored order, so that every backend rounds alike."""
    if width > 0:
        lo, hi = j * width, (j + 1) * width
    else:
        lo, hi = np.int64(successor_ptr[j]), np.int64(successor_ptr[j + 1])
    total = 0.0
    for k in range(lo, hi):
        total += np.float64(probabilities[k]) * local[successors[k]]
    g = discounts[j] if discounts.size else discount
    return sign * np.float64(rewards[j]) + g * total


@njit(nogil=True, cache=True)
def _gather(values, first, n, halo, local):
    local[:n] = values[first : first + n]
    for i in range(halo.size):
        local[n + i] = values[halo[i]]


@njit(nogil=True, cache=True)
def _visit(
    values, policy, local, first, n, actions, width, action_ptr, successor_ptr, successors, probabilities,
    rewards, discounts, terminal, halo, boundary, discount, sign, change_limit, most_sweeps,
):  # fmt: skip
    _gather(values, first, n, halo, local)
    sweeps = 0
    up = 0.0
    down = 0.0
    while sweeps < most_sweeps:
        up = 0.0
        down = 0.0
        for i in range(n):
            s = i if sweeps % 2 == 0 else n - 1 - i
            row, end = _rows_of(s, actions, action_ptr)
            if row == end:
                best = sign * terminal[s] if terminal.size else 0.0
                choice = -1
            else:
                best = -np.inf
                choice = 0
                for j in range(row, end):
                    q = _q(
                        j,
                        local,
                        width,
                        successor_ptr,
                        successors,
                        probabilities,
                        rewards,
                        discounts,
                        discount,
                        sign,
                    )
                    if q > best:
                        best = q
                        choice = j - row
            change = best - local[s]
            if change > up:
                up = change
            elif -change > down:
                down = -change
            local[s] = best
            policy[first + s] = choice
        sweeps += 1
        if up <= change_limit and down <= change_limit:
            break
    boundary_up = 0.0
    boundary_down = 0.0
    boundary_value = -np.inf
    largest = -np.inf
    smallest = np.inf
    for s in range(n):
        new = local[s]
        if boundary[s]:
            change = new - values[first + s]
            if change != 0.0 and new > boundary_value:
                boundary_value = new
            if change > boundary_up:
                boundary_up = change
            elif -change > boundary_down:
                boundary_down = -change
        largest = max(largest, new)
        smallest = min(smallest, new)
        values[first + s] = new
    return sweeps, up, down, boundary_up, boundary_down, boundary_value, largest, smallest


@njit(nogil=True, cache=True)
def _measure(
    values, policy, local, first, n, actions, width, action_ptr, successor_ptr, successors, probabilities, rewards,
    discounts, terminal, halo, discount, sign, row_sum, significant,
):  # fmt: skip
    _gather(values, first, n, halo, local)
    rise = 0.0
    fall = 0.0
    plain_rise = 0.0
    plain_fall = 0.0
    largest = -np.inf
    for s in range(n):
        row, end = _rows_of(s, actions, action_ptr)
        kept = 0.0
        if row == end:
            best = sign * terminal[s] if terminal.size else 0.0
            residual = best - local[s]
            normalised = residual
            kept = residual
            kept_normalised = residual
        else:
            best = -np.inf
            greedy = row
            normalised = -np.inf
            chosen = row + np.int64(policy[first + s])
            kept_normalised = 0.0
            for j in range(row, end):
                q = _q(j, local, width, successor_ptr, successors, probabilities, rewards, discounts, discount, sign)
                g = discounts[j] if discounts.size else discount
                scaled = (q - local[s]) / (1.0 - g * row_sum)
                if q > best:
                    best = q
                    greedy = j
                normalised = max(normalised, scaled)
                if j == chosen or (chosen < row and greedy == j):
                    kept = q - local[s]
                    kept_normalised = scaled
            if chosen < row:
                policy[first + s] = greedy - row
            residual = best - local[s]
        rise = max(rise, normalised)
        fall = max(fall, -kept_normalised)
        plain_rise = max(plain_rise, residual)
        plain_fall = max(plain_fall, -kept)
        if abs(residual) > significant:
            largest = max(largest, best)
    return rise, fall, plain_rise, plain_fall, largest


class CpuBackend:
    """One worker's Gauss-Seidel sweeps; not for use from several threads at once."""

    name = "cpu"

    def plan(self, model: ModelConstants) -> dict[str, int]:
        """The local vector of a visit; values and policy are the caller's arrays."""
        return {"local values": 8 * (model.largest_partition + model.largest_halo)}

    def start(self, model: ModelConstants, values: FloatArray, policy: npt.NDArray[np.int32]) -> None:
        """Work in the caller's arrays."""
        self._model = model
        self._values = values
        self._policy = policy
        self._local = np.empty(model.largest_partition + model.largest_halo)

    def admit(self, table: PartitionTable) -> Resident:
        """Keep the decoded arrays; durations become discounts in place of themselves."""
        discounts = np.power(self._model.discount, table.durations)
        arrays: tuple[Any, ...] = (
            table.first_state,
            table.n_states,
            table.actions_per_state,
            table.successors_per_action,
            table.action_ptr,
            table.successor_ptr,
            table.successors,
            table.probabilities,
            table.rewards,
            discounts,
            table.terminal_rewards,
            table.halo,
        )
        return Resident(table.index, table.n_states, bool(discounts.size), (*arrays, table.boundary))

    def release(self, resident: Resident) -> None:
        """Nothing to do: the arrays go with their last reference."""

    def visit(self, resident: Resident, limits: SweepLimits) -> VisitReport:
        """Gauss-Seidel sweeps in alternating directions."""
        out = _visit(
            self._values,
            self._policy,
            self._local,
            *resident.arrays,
            self._model.discount,
            self._model.sign,
            limits.change,
            limits.most,
        )
        return VisitReport(int(out[0]), *(float(x) for x in out[1:]))

    def measure(self, resident: Resident, significant: float) -> tuple[Measured, float]:
        """One pass that updates no value."""
        rise, fall, plain_rise, plain_fall, largest = _measure(
            self._values,
            self._policy,
            self._local,
            *resident.arrays[:-1],
            self._model.discount,
            self._model.sign,
            float(self._model.row_sums[resident.index]),
            significant,
        )
        return Measured(rise, fall, plain_rise, plain_fall), largest

    def values(self) -> FloatArray:
        """The caller's own array."""
        return self._values

    def policy(self) -> npt.NDArray[np.int32]:
        """The caller's own array."""
        return self._policy

    def close(self) -> None:
        """Nothing to free."""
