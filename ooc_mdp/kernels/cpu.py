"""The CPU backend: Gauss-Seidel sweeps in Numba, over a local copy of own and halo values.

    V(s) <- max_a { sign r(s,a) + g(s,a) sum_k p_k V(succ_k) },   own states in place, halo fixed during a visit

A visit gathers own and halo values into one contiguous vector, so that a transition costs one narrow index, one
probability and one value from a vector that fits the processor's cache; it sweeps in the order that
`ooc_mdp.kernels.sweep_order` gives and writes own values back. The kernels are written out in full: a call between
compiled functions counts references to every array, an atomic step each, which took nine tenths of the time (120
against 13 ns a backup of 4 actions and 4 successors). Indices are unsigned, which spares a test for negative ones.
Kernels release the interpreter lock, so partitions are decoded on other threads meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from ooc_mdp.bounds import Measured
from ooc_mdp.kernels.base import FinishedVisits, ModelConstants, Resident, SweepLimits, VisitReport
from ooc_mdp.kernels.sweep_order import SweepOrders
from ooc_mdp.mdp import FloatArray
from ooc_mdp.mdp import discounts as discounts_of
from ooc_mdp.options import SweepOrder
from ooc_mdp.partition import PartitionTable

__all__ = ["CpuBackend"]


_ONE = np.uint64(1)


@njit(nogil=True, cache=True)
def _gather(values, first, n, halo, local):
    local[:n] = values[first : first + n]
    for i in range(halo.size):
        local[n + i] = values[halo[i]]


def _visit_kernel(nested: bool) -> Any:
    """The kernel of a visit; one that need not jump between lines is compiled without them, and a tenth faster."""

    @njit(nogil=True, cache=True)
    def visit(
        values, policy, local, first, n, actions, width, action_ptr, successor_ptr, successors, probabilities,
        rewards, discounts, terminal, halo, boundary, extents, strides, alternate, discount, sign, change_limit,
        most_sweeps,
    ):  # fmt: skip
        _gather(values, first, n, halo, local)
        has_durations, has_terminal = discounts.size > 0, terminal.size > 0
        inner = extents.size - 1
        at = np.zeros(extents.size, np.int64)
        sweeps = 0
        up = 0.0
        down = 0.0
        while sweeps < most_sweeps:
            up = 0.0
            down = 0.0
            way = -1 if alternate and sweeps % 2 == 1 else 1
            step = way * strides[inner]
            backwards = step < 0
            line = 0
            if nested:
                for axis in range(strides.size):
                    if way * strides[axis] < 0:
                        line -= way * strides[axis] * (extents[axis] - 1)
            run = extents[inner] if nested else n
            for _ in range(n // run if nested else 1):
                for i in range(run):
                    if nested:
                        s = np.uint64(line + i * step)
                    else:
                        s = np.uint64(n - 1 - i if backwards else i)
                    if actions > 0:
                        row, end = s * np.uint64(actions), (s + _ONE) * np.uint64(actions)
                    else:
                        row, end = np.uint64(action_ptr[s]), np.uint64(action_ptr[s + _ONE])
                    choice = -1
                    if row == end:
                        best = sign * terminal[s] if has_terminal else 0.0
                    else:
                        best = -np.inf
                        hi = row * np.uint64(width) if width > 0 else np.uint64(successor_ptr[row])
                        for a in range(np.int64(end - row)):
                            j = row + np.uint64(a)
                            lo = hi
                            hi = lo + np.uint64(width) if width > 0 else np.uint64(successor_ptr[j + _ONE])
                            total = 0.0
                            for k in range(np.int64(hi - lo)):
                                transition = lo + np.uint64(k)
                                total += np.float64(probabilities[transition]) * local[successors[transition]]
                            g = discounts[j] if has_durations else discount
                            q = sign * np.float64(rewards[j]) + g * total
                            choice = a if q > best else choice
                            best = q if q > best else best
                    change = best - local[s]
                    up = max(up, change)
                    down = max(down, -change)
                    local[s] = best
                    policy[np.uint64(first) + s] = choice
                if nested:
                    for axis in range(inner - 1, -1, -1):
                        at[axis] += 1
                        line += way * strides[axis]
                        if at[axis] < extents[axis]:
                            break
                        line -= way * strides[axis] * extents[axis]
                        at[axis] = 0
            sweeps += 1
            if up <= change_limit and down <= change_limit:
                break
        boundary_up = 0.0
        boundary_down = 0.0
        boundary_value = -np.inf
        largest = -np.inf
        smallest = np.inf
        for own in range(n):
            new = local[own]
            if boundary[own]:
                change = new - values[first + own]
                if change != 0.0 and new > boundary_value:
                    boundary_value = new
                if change > boundary_up:
                    boundary_up = change
                elif -change > boundary_down:
                    boundary_down = -change
            largest = max(largest, new)
            smallest = min(smallest, new)
            values[first + own] = new
        return sweeps, up, down, boundary_up, boundary_down, boundary_value, largest, smallest

    return visit


_visit_line = _visit_kernel(nested=False)
_visit_nested = _visit_kernel(nested=True)


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
    has_durations, has_terminal = discounts.size > 0, terminal.size > 0
    for i in range(n):
        s = np.uint64(i)
        if actions > 0:
            row, end = s * np.uint64(actions), (s + _ONE) * np.uint64(actions)
        else:
            row, end = np.uint64(action_ptr[s]), np.uint64(action_ptr[s + _ONE])
        if row == end:
            best = sign * terminal[s] if has_terminal else 0.0
            residual = best - local[s]
            normalised = kept = kept_normalised = residual
        else:
            best = -np.inf
            normalised = -np.inf
            kept = kept_normalised = 0.0
            greedy = 0
            chosen = policy[np.uint64(first) + s]
            hi = row * np.uint64(width) if width > 0 else np.uint64(successor_ptr[row])
            for a in range(np.int64(end - row)):
                j = row + np.uint64(a)
                lo = hi
                hi = lo + np.uint64(width) if width > 0 else np.uint64(successor_ptr[j + _ONE])
                total = 0.0
                for k in range(np.int64(hi - lo)):
                    transition = lo + np.uint64(k)
                    total += np.float64(probabilities[transition]) * local[successors[transition]]
                g = discounts[j] if has_durations else discount
                q = sign * np.float64(rewards[j]) + g * total
                scaled = (q - local[s]) / (1.0 - g * row_sum)
                if q > best:
                    best = q
                    greedy = a
                normalised = max(normalised, scaled)
                if a == chosen or (chosen < 0 and greedy == a):
                    kept = q - local[s]
                    kept_normalised = scaled
            if chosen < 0:
                policy[np.uint64(first) + s] = greedy
            residual = best - local[s]
        rise = max(rise, normalised)
        fall = max(fall, -kept_normalised)
        plain_rise = max(plain_rise, residual)
        plain_fall = max(plain_fall, -kept)
        if abs(residual) > significant:
            largest = max(largest, best)
    return rise, fall, plain_rise, plain_fall, largest


class CpuBackend:
    """One worker's Gauss-Seidel sweeps; not for use from several threads at once.

    Parameters
    ----------
    sweep_order : in which order a sweep backs up the states of a partition.
    """

    name = "cpu"
    together = 1
    loads_beside = False

    def __init__(self, sweep_order: SweepOrder = "alternating") -> None:
        self._sweep_order: SweepOrder = sweep_order

    def plan(self, model: ModelConstants) -> dict[str, int]:
        """The local vector of a visit and what votes leave; values and policy are the caller's arrays."""
        votes = SweepOrders.nbytes(self._sweep_order, model.row_sums.size, model.block_shapes)
        planned = {"local values": 8 * (model.largest_partition + model.largest_halo)}
        return planned | ({"sweep orders": votes} if votes else {})

    def start(self, model: ModelConstants, values: FloatArray, policy: npt.NDArray[np.int32]) -> None:
        """Work in the caller's arrays."""
        self._model = model
        self._values = values
        self._policy = policy
        self._local = np.empty(model.largest_partition + model.largest_halo)
        self._orders = SweepOrders(self._sweep_order, model.row_sums.size, model.block_shapes)

    def open_cache(self, budget: int) -> None:
        """Partitions are allocated one by one."""

    def reader(self, source: Any) -> None:
        """Tables are taken as the source gives them."""

    def enlarge(self) -> None:
        """There are no slots."""

    def prepare(self, table: PartitionTable) -> Resident:
        """Keep the decoded arrays; durations become discounts in place of themselves."""
        discounts = discounts_of(self._model.discount, table.durations)
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

    def admit(self, prepared: Resident) -> Resident:
        """Nothing is left to do."""
        return prepared

    def release(self, resident: Resident) -> None:
        """Nothing to do: the arrays go with their last reference."""

    def visit(self, resident: Resident, limits: SweepLimits) -> VisitReport:
        """Gauss-Seidel sweeps."""
        table = resident.arrays
        voters = (*table[:8], table[9])  # all that votes need: no rewards
        extents, strides = self._orders.of(resident.index, self._policy, voters, self._model.discount)
        visit = _visit_nested if self._sweep_order == "voted" else _visit_line
        out = visit(
            self._values,
            self._policy,
            self._local,
            *table,
            extents,
            strides,
            self._orders.alternate,
            self._model.discount,
            self._model.sign,
            limits.change,
            limits.most,
        )
        return VisitReport(int(out[0]), *(float(x) for x in out[1:]))

    def visit_together(self, residents: Sequence[Resident], limits: Sequence[SweepLimits]) -> FinishedVisits:
        """One after the other."""
        return FinishedVisits([self.visit(r, limit) for r, limit in zip(residents, limits, strict=True)])

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
