"""The rows of a policy on the CPU: copied from tables as partitions are improved, and swept without the tables.

    V(s) <- r(s) + g sum_k p_k V(succ_k),      r, p and succ of the policy's action in s, succ a state of the model

Partitions whose inputs have not changed are left out of a round, as the coupling matrix tells. What an evaluation makes
of sweeps, products and measurements is in `ooc_mdp.backends.cpu.evaluation`.

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

from ooc_mdp.backends.cpu.addresses import pointer
from ooc_mdp.backends.cpu.evaluation import CpuEvaluation
from ooc_mdp.backends.cpu.flow_solver import STATE_BYTES, FlowSolver
from ooc_mdp.backends.cpu.krylov import VECTORS, Bicgstab
from ooc_mdp.backends.cpu.policy_loops import measure_rows, product_rows, sweep_rows
from ooc_mdp.backends.cpu.table import MOST_UNROLLED, row_arrays
from ooc_mdp.errors import MemoryBudgetError
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.partition import Coupling
from ooc_mdp.options import format_bytes

__all__ = ["PolicyRows", "improve_rows"]

_ONE = np.uint64(1)


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
        model: ModelFacts,
        coupling: Coupling,
        threads: int,
        run: Callable[[Callable[[int], None]], None],
        mapped: bool = False,
    ) -> None:
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
        self.pending = np.zeros(partitions)
        """float64 [P]; bound on what a sweep would change, as far as it is known."""
        self._dependents = _dependents(coupling)
        self.stiff = False
        """Whether a Krylov solver has once not got there without solves along the flow."""
        self.before = np.empty(n)
        """float64 [n]; for an evaluation: values as they were."""
        self.written = 0
        """How often values have been written from outside."""
        self._uniform = int(self._widths.max(initial=0)) if np.ptp(self._widths) == 0 else 0
        bounds = np.searchsorted(self._ptr, self._ptr[-1] * np.arange(threads + 1) // threads)
        bounds[-1] = partitions
        self._shares = [(int(a), int(b)) for a, b in pairwise(bounds)]

    @staticmethod
    def nbytes(model: ModelFacts, mapped: bool = False) -> int:
        """Bytes of RAM that rows, Q2 and an evaluation take."""
        rows = sum(dtype.itemsize * count for dtype, count in _types(model).values())
        return (0 if mapped else rows) + (8 * (1 + VECTORS) + STATE_BYTES) * model.n_states

    def places(self, partitions: IntArray) -> IntArray:
        """int64 [G, 2]: where partitions' rows begin, and their lengths."""
        return np.stack([self._ptr[partitions], self._widths[partitions]], axis=1)

    def improved(self, partitions: IntArray, residuals: FloatArray) -> None:
        """Rows of partitions are new; their policy's largest residuals."""
        self.kept[partitions] = True
        self.pending[partitions] = residuals

    def states(self) -> int:
        """How many have rows."""
        return int(np.diff(self._first)[self.kept].sum())

    def evaluation(self, values: FloatArray, policy: npt.NDArray[np.int32], limit: float, most: int) -> CpuEvaluation:
        """See `ooc_mdp.backends.base.KeepsPolicyRows`."""
        return CpuEvaluation(self, values, policy, limit, most)

    def call_loops(self, values: FloatArray, policy: npt.NDArray[np.int32]) -> None:
        """Call every loop; all partitions are kept. Values are no use afterwards."""
        evaluation = self.evaluation(values, policy, -1.0, 1)
        while not evaluation.advance(np.inf):
            pass
        evaluation.report()
        values[:] = 1.0 + np.arange(values.size)  # a solver that has nothing to do would call nothing
        for inverse in (None, self.flow_solver()):
            self.solver(values, inverse).iterate()

    def solver(self, values: FloatArray, inverse: FlowSolver | None) -> Bicgstab:
        """Solves (1 - g P) z = r + g P V - V for what is missing of these values."""
        missing = self._product(values, np.empty(values.size), True)
        solve = None if inverse is None else inverse.solve
        return Bicgstab(partial(self._product, residual=False), missing, solve, self._threads, self._run)

    def flow_solver(self) -> FlowSolver:
        """Solves along the flow of the policy as it is."""
        return FlowSolver(
            self._first, self._ptr, self._widths, self.kept, self.successors, self.probabilities, self.discounts,
            self._model.discount,
        )  # fmt: skip

    def sweep(self, values: FloatArray, limit: float, back: bool) -> int:
        """Sweep partitions that may change by more than `limit`, as far as is known; the number of backups."""
        active = self.kept & (self.pending > limit)
        if not active.any():
            return 0
        made = np.zeros(self._threads, np.int64)
        self._run(partial(self._sweep_share, values, active, back, made))
        return int(made.sum())

    def _sweep_share(
        self, values: FloatArray, active: npt.NDArray[np.bool_], back: bool, backups: IntArray, thread: int
    ) -> None:
        ptr, dependents, mass = self._dependents
        unrolled = (0,) * self._uniform if self._uniform <= MOST_UNROLLED else ()
        backups[thread] = sweep_rows(
            unrolled, *self._shares[thread], self._first, self._ptr, self._widths, self.successors, self.probabilities,
            self.rewards, self.discounts, self._model.discount, values, active, back, ptr, dependents, mass,
            self.pending,
        )  # fmt: skip

    def measure(self, values: FloatArray, before: FloatArray, policy: npt.NDArray[np.int32]) -> FloatArray:
        """float64 [9, P]: signed changes since values were `before`, the policy's residuals, others, range."""
        out = np.zeros((self._first.size - 1, 9))
        unrolled = (0,) * self._uniform if self._uniform <= MOST_UNROLLED else ()

        def share(t: int) -> None:
            measure_rows(
                unrolled, *self._shares[t], self._first, self._ptr, self._widths, self.successors, self.probabilities,
                self.rewards, self.discounts, self._model.discount, values, before, self.others, self.kept,
                policy, self._model.row_sums, out,
            )  # fmt: skip

        self._run(share)
        return np.ascontiguousarray(out.T)

    def _product(self, x: FloatArray, out: FloatArray, residual: bool) -> FloatArray:
        """(1 - g P) x, or r - (1 - g P) x; x itself, or 0, where there are no rows."""
        unrolled = (0,) * self._uniform if self._uniform <= MOST_UNROLLED else ()

        def share(t: int) -> None:
            product_rows(
                unrolled, *self._shares[t], self._first, self._ptr, self._widths, self.successors, self.probabilities,
                self.rewards, self.discounts, self._model.discount, self.kept, x, residual, out,
            )  # fmt: skip

        self._run(share)
        return out


def _types(model: ModelFacts) -> dict[str, tuple[np.dtype[Any], int]]:
    """Types and lengths of the rows' arrays, the widest numbers first."""
    n = model.n_states
    entries = int((np.diff(model.partition_ptr) * model.row_widths).sum())
    float64 = np.dtype(np.float64)
    return {
        "rewards": (float64, n),
        "others": (float64, n),
        "discounts": (float64, n if model.duration_dtype is not None else 0),
        "probabilities": (model.probability_dtype, entries),
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
