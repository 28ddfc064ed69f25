"""The rows of a policy on the CPU: copied from tables as partitions are improved, and swept without the tables.

    V(s) <- r(s) + g sum_k p_k V(succ_k),      r, p and succ of the policy's action in s, succ a state of the model

Partitions whose inputs have not changed are left out of a round, as the coupling matrix tells. Where sweeps shrink the
residuals slowly (a discount near 1, a chain that mixes slowly), the rest of the way is a Krylov solver's: BiCGSTAB (van
der Vorst 1992) on (1 - g P) d = r + g P V - V, by SciPy, with the products of this module, and where that takes long,
with solves along the flow of the policy (`ooc_mdp.backends.cpu.krylov`). No bound rests on how values came about:
residuals are measured at the values that result, over all rows.

A state's row of K successors lies at ptr[p] + i K of the flat arrays, p its partition, i its place in it, K the
partition's longest row; shorter rows are filled up with probability 0. Beside a row lie its signed reward, its discount
where there are durations, and Q2: what the best other action was worth when the partition was last improved.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import carray, njit  # type: ignore[attr-defined]

from ooc_mdp.backends.base import Evaluation, ModelConstants
from ooc_mdp.backends.cpu.addresses import pointer
from ooc_mdp.backends.cpu.krylov import MOST_STATES, STATE_BYTES, FlowSolver
from ooc_mdp.backends.cpu.table import MOST_UNROLLED, row_arrays
from ooc_mdp.errors import MemoryBudgetError
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.partition import Coupling
from ooc_mdp.options import format_bytes

__all__ = ["PolicyRows", "improve_rows"]

_ONE = np.uint64(1)
_STRETCH = 8
"""Sweeps of all partitions, or as many backups of some, before residuals are measured."""
_SLOW = 0.2
"""Share of the residual that such sweeps may leave, above which a Krylov solver goes on."""
_ITERATIONS = 200
"""Most iterations of a Krylov solver, two products each, between two measurements."""
_PLAIN_ITERATIONS = 30
"""Those after which it goes on along the flow of the policy, each of whose solves takes one core as long as three
products take two."""
_KRYLOV_VECTORS = 11
"""That SciPy's solver holds, right side and solution among them."""
_GAIN = 0.001
"""A Krylov solver's aim, as a share of the residual that it is given, where the limit is further away."""


class PolicyRows:
    """Rows of all partitions, and evaluations on them.

    Parameters
    ----------
    model : sizes, discount and row sums.
    coupling : which partitions read which.
    threads : that sweep at the same time.
    run : calls a function with each thread's number, on all of them, and waits.
    mapped : whether rows lie in a file that is mapped into memory and goes with them, since RAM has no room for them.

    Raises
    ------
    MemoryBudgetError : there is no room for that file.
    """

    def __init__(
        self,
        model: ModelConstants,
        coupling: Coupling,
        threads: int,
        run: Callable[[Callable[[int], None]], None],
        mapped: bool = False,
    ) -> None:
        assert model.partition_ptr is not None  # a solve has partitions,
        assert model.row_widths is not None  # which say how long their rows are
        n, partitions = model.n_states, model.row_sums.size
        self._model, self._threads, self._run = model, threads, run
        self._first = model.partition_ptr
        self._widths = model.row_widths
        self._ptr = np.concatenate([[0], np.cumsum(np.diff(self._first) * self._widths)])
        types = _types(model)
        sizes = {name: dtype.itemsize * count for name, (dtype, count) in types.items()}
        room = _mapped_file(sum(sizes.values())) if mapped else None
        arrays, at = {}, 0
        for name, (dtype, count) in types.items():
            if room is not None and count > 0:
                arrays[name] = np.frombuffer(room, dtype, count, at)
            else:
                arrays[name] = np.empty(count, dtype)
            at += sizes[name]
        self.successors, self.probabilities = arrays["successors"], arrays["probabilities"]
        self.rewards, self.discounts, self.others = arrays["rewards"], arrays["discounts"], arrays["others"]
        self.kept = np.zeros(partitions, np.bool_)
        """bool [P]; whether a partition has rows."""
        self._before = np.empty(n)
        self._pending = np.zeros(partitions)
        """float64 [P]; bound on what a sweep would change, as far as it is known."""
        self._dependents = _dependents(coupling)
        self._stiff = False
        """Whether a Krylov solver has once not got there without solves along the flow."""
        self._uniform = int(self._widths.max(initial=0)) if np.ptp(self._widths) == 0 else 0
        bounds = np.searchsorted(self._ptr, self._ptr[-1] * np.arange(threads + 1) // threads)
        bounds[-1] = partitions
        self._shares = [(int(a), int(b)) for a, b in pairwise(bounds)]

    @staticmethod
    def nbytes(model: ModelConstants, mapped: bool = False) -> int:
        """Bytes of RAM that rows, Q2 and an evaluation take."""
        rows = sum(dtype.itemsize * count for dtype, count in _types(model).values())
        return (0 if mapped else rows) + (8 * (1 + _KRYLOV_VECTORS) + STATE_BYTES) * model.n_states

    def places(self, partitions: IntArray) -> IntArray:
        """int64 [G, 2]: where partitions' rows begin, and their lengths."""
        return np.stack([self._ptr[partitions], self._widths[partitions]], axis=1)

    def improved(self, partitions: IntArray, residuals: FloatArray) -> None:
        """Rows of partitions are new; their policy's largest residuals."""
        self.kept[partitions] = True
        self._pending[partitions] = residuals

    def evaluate(self, values: FloatArray, policy: npt.NDArray[np.int32], limit: float, most: int) -> Evaluation:
        """See `ooc_mdp.backends.base.KeepsPolicyRows`."""
        self._before[:] = values
        states = int(np.diff(self._first)[self.kept].sum())
        backups, residual = 0, float(self._pending[self.kept].max(initial=0.0))
        while True:
            if residual > limit:
                backups += self._sweeps(values, limit, min(_STRETCH, most) * states)
            measured = self._measure(values, policy)
            before, residual = residual, float(np.maximum(measured[4], measured[5])[self.kept].max(initial=0.0))
            self._pending[:] = np.where(self.kept, np.maximum(measured[4], measured[5]), 0.0)
            if not residual > limit or backups >= most * states:
                break
            if residual > _SLOW * before:
                backups += states * self._krylov(values, limit / residual, most - backups // states)
        return Evaluation(backups, measured[0], measured[1], measured[2:6], measured[6], measured[7], measured[8])

    def call_loops(self, values: FloatArray, policy: npt.NDArray[np.int32]) -> None:
        """Call every loop, and load what solvers need; all partitions are kept. Values are no use afterwards."""
        import scipy.sparse.linalg  # noqa: F401

        self.evaluate(values, policy, -1.0, 1)
        self._flow_solver().solve(self._product(values, np.empty(values.size), True))

    def _flow_solver(self) -> FlowSolver:
        return FlowSolver(
            self._first, self._ptr, self._widths, self.kept, self.successors, self.probabilities, self.discounts,
            self._model.discount,
        )  # fmt: skip

    def _sweeps(self, values: FloatArray, limit: float, most: int) -> int:
        """Rounds of sweeps of what has something to do, until nothing has or so many backups are made; how many."""
        made = np.zeros(self._threads, np.int64)
        backups, around = 0, 0
        while backups < most:
            active = self.kept & (self._pending > limit)
            if not active.any():
                break
            self._run(partial(self._sweep_share, values, active, around % 2 == 1, made))
            backups += int(made.sum())
            around += 1
        return backups

    def _sweep_share(
        self, values: FloatArray, active: npt.NDArray[np.bool_], back: bool, backups: IntArray, thread: int
    ) -> None:
        ptr, dependents, mass = self._dependents
        unrolled = (0,) * self._uniform if self._uniform <= MOST_UNROLLED else ()
        backups[thread] = _sweep_partitions(
            unrolled, *self._shares[thread], self._first, self._ptr, self._widths, self.successors, self.probabilities,
            self.rewards, self.discounts, self._model.discount, values, active, back, ptr, dependents, mass,
            self._pending,
        )  # fmt: skip

    def _measure(self, values: FloatArray, policy: npt.NDArray[np.int32]) -> FloatArray:
        """float64 [9, P]: signed changes, the policy's residuals, others, range."""
        out = np.zeros((self._first.size - 1, 9))
        unrolled = (0,) * self._uniform if self._uniform <= MOST_UNROLLED else ()

        def share(t: int) -> None:
            _measure_rows(
                unrolled, *self._shares[t], self._first, self._ptr, self._widths, self.successors, self.probabilities,
                self.rewards, self.discounts, self._model.discount, values, self._before, self.others, self.kept,
                policy, self._model.row_sums, out,
            )  # fmt: skip

        self._run(share)
        return np.ascontiguousarray(out.T)

    def _krylov(self, values: FloatArray, aim: float, most: int) -> int:
        """Solve for what is missing, to that share of it; how many products with the matrix that took."""
        from scipy.sparse.linalg import LinearOperator, bicgstab

        n = values.size
        products = 2

        def product(x: FloatArray) -> FloatArray:
            nonlocal products
            products += 1
            return self._product(x, np.empty(n), False)

        right = self._product(values, np.empty(n), True)

        def along_flow(x: FloatArray) -> FloatArray:
            nonlocal products
            products += 1
            return solver.solve(x)

        def use(found: FloatArray) -> None:
            left = right - self._product(found, np.empty(n), False)
            if np.isfinite(found).all() and np.abs(left).max() < np.abs(right).max():
                np.add(values, found, out=values)
                right[:] = left

        operator = LinearOperator((n, n), matvec=product, dtype=np.float64)
        most_iterations = max(1, min(_ITERATIONS, most // 2))
        share = max(aim / 2, _GAIN)
        with np.errstate(all="ignore"):  # a breakdown is found out by what is left
            goal = share * float(np.linalg.norm(right))
            if not self._stiff:
                first = min(most_iterations, _PLAIN_ITERATIONS)
                found, missed = bicgstab(operator, right, rtol=share, maxiter=first)
                use(found)
                most_iterations -= first
                self._stiff = bool(missed) and first == _PLAIN_ITERATIONS and n < MOST_STATES
            if self._stiff and most_iterations > 0:
                solver = self._flow_solver()
                inverse = LinearOperator((n, n), matvec=along_flow, dtype=np.float64)
                use(bicgstab(operator, right, rtol=0.0, atol=goal, maxiter=most_iterations, M=inverse)[0])
        return products

    def _product(self, x: FloatArray, out: FloatArray, residual: bool) -> FloatArray:
        """(1 - g P) x, or r - (1 - g P) x; x itself, or 0, where there are no rows."""
        unrolled = (0,) * self._uniform if self._uniform <= MOST_UNROLLED else ()

        def share(t: int) -> None:
            _product_rows(
                unrolled, *self._shares[t], self._first, self._ptr, self._widths, self.successors, self.probabilities,
                self.rewards, self.discounts, self._model.discount, self.kept, x, residual, out,
            )  # fmt: skip

        self._run(share)
        return out


def _types(model: ModelConstants) -> dict[str, tuple[np.dtype[Any], int]]:
    """Types and lengths of the rows' arrays, the widest numbers first."""
    assert model.partition_ptr is not None  # a solve has partitions,
    assert model.row_widths is not None  # which say how long their rows are,
    assert model.table is not None  # and a table
    n = model.n_states
    entries = int((np.diff(model.partition_ptr) * model.row_widths).sum())
    float64 = np.dtype(np.float64)
    return {
        "rewards": (float64, n),
        "others": (float64, n),
        "discounts": (float64, n if model.table.durations is not None else 0),
        "probabilities": (model.table.real, entries),
        "successors": (np.dtype(np.uint32 if n <= 1 << 32 else np.int64), entries),
    }


def _mapped_file(nbytes: int) -> mmap.mmap:
    """Bytes of a temporary file that has no name, all of them there already: what is mapped must not run out later."""
    try:
        with tempfile.TemporaryFile() as file:
            os.posix_fallocate(file.fileno(), 0, max(nbytes, 1))
            return mmap.mmap(file.fileno(), max(nbytes, 1))
    except OSError as error:
        raise MemoryBudgetError(
            f"a policy's rows take {format_bytes(nbytes)}, for which neither RAM nor {tempfile.gettempdir()} has room "
            f"({error.strerror}); point TMPDIR at a larger disk, or use --method p-eva"
        ) from error


def _dependents(coupling: Coupling) -> tuple[IntArray, IntArray, FloatArray]:
    """The coupling matrix by columns, its diagonal among them: who reads a partition, and how much of it."""
    rows = np.repeat(np.arange(coupling.ptr.size - 1), np.diff(coupling.ptr))
    order = np.argsort(coupling.partitions, kind="stable")
    ptr = np.searchsorted(coupling.partitions[order], np.arange(coupling.ptr.size))
    return ptr, rows[order], coupling.mass[order]


@njit(nogil=True, cache=True)
def improve_rows(
    actions, width, values, policy, table, workspace, successor_type, probability_type, reward_type, discount, sign,
    row_sums, margin, places, kept, successors, probabilities, rewards, discounts, others, out,
):  # fmt: skip
    """Make policies greedy at the present values, copy their rows, and keep Q2; the rest is as in `measure`.

    Parameters
    ----------
    margin : by how much more than the state's own action another must be worth.
    places : int64 [G, 2]; where rows of members go, and their lengths.
    kept : bool [G]; whether rows of members are there already, so that only those of other actions need be copied.
    successors, probabilities, rewards, discounts, others : of the whole model.
    out : float64 [G, 5]; normalised rise and fall, plain rise and fall, states whose action changed.
    """
    for m in range(table.shape[0]):
        first, n, h, whole = table[m, 0], table[m, 1], table[m, 2], table[m, 12] != 0
        n_actions = len(actions) if len(actions) > 0 else table[m, 13]
        n_width = len(width) if len(width) > 0 else table[m, 14]
        place, length = places[m, 0], places[m, 1]
        halo = carray(pointer(table[m, 10]), (h,), np.int64)
        if whole:
            base, local = np.uint64(first), values
        else:
            base, local = np.uint64(0), workspace[: n + h]
            local[:n] = values[first : first + n]
            for i in range(h):
                local[n + i] = values[np.uint64(halo[i])]
        action_ptr, successor_ptr, t_successors, t_probabilities, t_rewards, t_discounts, terminal = row_arrays(
            table[m], successor_type, probability_type, reward_type
        )
        row_sum = row_sums[m]
        rise = -np.inf
        fall = -np.inf
        plain_rise = -np.inf
        plain_fall = -np.inf
        differing = 0
        for i in range(n):
            s = np.uint64(i)
            here = local[base + s]
            if n_actions > 0:
                row, end = s * np.uint64(n_actions), (s + _ONE) * np.uint64(n_actions)
            else:
                row, end = np.uint64(action_ptr[s]), np.uint64(action_ptr[s + _ONE])
            known = policy[first + i]
            choice = -1
            other = -np.inf
            if row == end:
                reward = sign * terminal[s] if terminal.size > 0 else 0.0
                best = reward
                normalised = kept_normalised = kept_residual = best - here
            else:
                best = -np.inf
                second = -np.inf
                own = -np.inf
                greedy = 0
                normalised = -np.inf
                hi = row * np.uint64(n_width) if n_width > 0 else np.uint64(successor_ptr[row])
                for a in range(len(actions) if len(actions) > 0 else np.int64(end - row)):
                    j = row + np.uint64(a)
                    lo = hi
                    hi = lo + np.uint64(n_width) if n_width > 0 else np.uint64(successor_ptr[j + _ONE])
                    total = 0.0
                    for k in range(len(width) if len(width) > 0 else np.int64(hi - lo)):
                        transition = lo + np.uint64(k)
                        total += np.float64(t_probabilities[transition]) * local[t_successors[transition]]
                    g = t_discounts[j] if t_discounts.size > 0 else discount
                    q = sign * np.float64(t_rewards[j]) + g * total
                    normalised = max(normalised, (q - here) / (1.0 - g * row_sum))
                    own = q if a == known else own
                    if q > best:
                        second = best
                        best = q
                        greedy = a
                    elif q > second:
                        second = q
                stays = known >= 0 and best - own <= margin
                choice = known if stays else greedy
                other = second if choice == greedy else best
                value = own if stays else best
                j = row + np.uint64(choice)
                g = t_discounts[j] if t_discounts.size > 0 else discount
                kept_residual = value - here
                kept_normalised = kept_residual / (1.0 - g * row_sum)
                reward = sign * np.float64(t_rewards[j])
            others[first + i] = other
            if choice != known or not kept[m]:
                differing += choice != known
                policy[first + i] = choice
                rewards[first + i] = reward
                at = np.uint64(place + i * length)
                count = np.int64(0)
                if choice >= 0:
                    j = row + np.uint64(choice)
                    lo = j * np.uint64(n_width) if n_width > 0 else np.uint64(successor_ptr[j])
                    count = n_width if n_width > 0 else np.int64(np.uint64(successor_ptr[j + _ONE]) - lo)
                    for k in range(count):
                        to = np.int64(t_successors[lo + np.uint64(k)])
                        to = to if whole else (first + to if to < n else halo[to - n])
                        successors[at + np.uint64(k)] = to
                        probabilities[at + np.uint64(k)] = t_probabilities[lo + np.uint64(k)]
                    if discounts.size > 0:
                        discounts[first + i] = t_discounts[j]
                elif discounts.size > 0:
                    discounts[first + i] = 0.0
                for k in range(count, length):
                    successors[at + np.uint64(k)] = first + i
                    probabilities[at + np.uint64(k)] = 0.0
            rise = max(rise, normalised)
            fall = max(fall, -kept_normalised)
            plain_rise = max(plain_rise, best - here)
            plain_fall = max(plain_fall, -kept_residual)
        out[m, 0], out[m, 1], out[m, 2], out[m, 3], out[m, 4] = rise, fall, plain_rise, plain_fall, differing


@njit(inline="always")
def _backup(unrolled, width, at, successors, probabilities, values):
    """sum_k p_k V(succ_k) of the row at `at`."""
    total = 0.0
    for k in range(len(unrolled) if len(unrolled) > 0 else width):
        total += np.float64(probabilities[at + np.uint64(k)]) * values[successors[at + np.uint64(k)]]
    return total


@njit(nogil=True, cache=True)
def _sweep_partitions(
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
def _measure_rows(
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
def _product_rows(
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
