"""The CPU backend: partitions swept on all cores, over local copies of own and halo values, in Numba.

One partition alone (`visit`) gets Gauss-Seidel sweeps, in the order that `ooc_mdp.kernels.sweep_order` gives.
Several at the same time (`visit_together`) are divided among the threads: each makes rounds of policy sweeps over its
share, all wait for each other, and each measures the residuals of its share at the values of all of them. The loops
are in `ooc_mdp.kernels.cpu_sweeps`; they release the interpreter lock, so partitions are decoded meanwhile.
``docs/cpu-engine.md`` has the figures and what did not help.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ooc_mdp.arena import Arena
from ooc_mdp.bounds import Measured
from ooc_mdp.errors import MemoryBudgetError
from ooc_mdp.kernels.base import Evaluation, Improvement, ModelConstants, Resident, SweepLimits, VisitReport
from ooc_mdp.kernels.cpu_at_once import GreedyRows
from ooc_mdp.kernels.cpu_flow_rounds import FlowRounds
from ooc_mdp.kernels.cpu_policy import PolicyRows, improve_rows
from ooc_mdp.kernels.cpu_sweeps import evaluate, measure, visit
from ooc_mdp.kernels.cpu_tables import MOST_GATHERED, SweptTable, describe, swept_table
from ooc_mdp.kernels.state_lists import ListsByCopies
from ooc_mdp.kernels.sweep_order import SweepOrders, Walk, walk
from ooc_mdp.mdp import FloatArray, IntArray
from ooc_mdp.mdp import discounts as discounts_of
from ooc_mdp.memory import available_bytes
from ooc_mdp.options import SweepOrder, format_bytes
from ooc_mdp.partition import Coupling, PartitionTable
from ooc_mdp.table_source import TableSource

__all__ = ["CpuBackend"]

_ROUNDS = 4
"""Rounds over the partitions of a visit before their residuals are measured and their policies improved."""
_SWEEPS = 4
"""Policy sweeps of a partition in a round: they find its rows in the processor's cache."""
_MOST_DIFFERING = 0.05
"""Share of a partition's states whose action may change in a full sweep before policy sweeps follow."""
_DROP = 0.1
"""A visit leaves a partition once its changes have fallen to this share: its neighbours' changes come first."""
_STRAY_SHARE = 0.5
"""Most of the present change that extrapolation may leave, in the Euclidean norm."""
_MOST_TOGETHER = 64
"""Partitions in a visit, where they read few outside states; others go on together, as many as there is room for."""
_MOST_DOUBTS = 16
_MOST_OF_WHAT_IS_FREE = 0.75
"""Share of the free RAM that a policy's rows may take."""
_WORKSPACE = 16 << 20
"""Bytes that the values of partitions which are swept together may take, unless those of one a thread take more."""
_WORKSPACE_OF_ALL = 64 << 20
"""The same where partitions read most of the model: all of them should be swept together."""

_NOWHERE = np.empty(0)


@dataclass(frozen=True, slots=True)
class _Together:
    """Partitions that are being swept by several threads."""

    shares: list[list[int]]
    """Which of the residents each thread has."""
    futures: list[Future[list[VisitReport]]]

    def done(self) -> bool:
        """Whether all threads are."""
        return all(f.done() for f in self.futures)

    def reports(self) -> list[VisitReport]:
        """In the order of the residents."""
        wait(self.futures)
        failed = [error for error in (f.exception() for f in self.futures) if error is not None]
        if failed:
            raise next((e for e in failed if not isinstance(e, threading.BrokenBarrierError)), failed[0])
        found: dict[int, VisitReport] = {}
        for share, future in zip(self.shares, self.futures, strict=True):
            found.update(zip(share, future.result(), strict=True))
        return [found[i] for i in range(len(found))]


def _gathers(model: ModelConstants) -> bool:
    """Whether partitions are swept over own and halo values, all of them as far as one can tell beforehand."""
    wide = model.table is not None and model.table.successor == np.uint32
    return not wide or model.largest_halo <= MOST_GATHERED * model.largest_partition


def _values_of_one(model: ModelConstants) -> int:
    """Float64 numbers that the sweeps of a partition need beside the table."""
    halo = model.largest_halo if _gathers(model) else MOST_GATHERED * model.largest_partition
    return 3 * model.largest_partition + halo


def _stacked(walks: Sequence[Walk]) -> IntArray:
    """int64 [G, 2, d]; extents and strides, with axes of one point put before those that are missing."""
    axes = max(extents.size for extents, _ in walks)
    stacked = np.ones((len(walks), 2, axes), np.int64)
    for rows, (extents, strides) in zip(stacked, walks, strict=True):
        rows[0, axes - extents.size :], rows[1, axes - extents.size :] = extents, strides
    return stacked


class CpuBackend(ListsByCopies):
    """Sweeps on the host's cores; one caller at a time.

    Parameters
    ----------
    sweep_order : in which order a sweep backs up the states of a partition.
    threads : that sweep at the same time; None for the number of cores.
    """

    name = "cpu"
    loads_beside = False

    def __init__(self, sweep_order: SweepOrder = "alternating", threads: int | None = None) -> None:
        self._sweep_order: SweepOrder = sweep_order
        self._threads = threads or os.cpu_count() or 1
        self._rows_mapped = False
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="sweeps")
        self.together = self._threads
        """Partitions that are best swept at the same time."""

    def plan(self, model: ModelConstants) -> dict[str, int]:
        """What sweeps need beside tables, and what votes leave; values and policy are the caller's arrays."""
        votes = SweepOrders.nbytes(self._sweep_order, model.row_sums.size, model.block_shapes)
        members = -(-self._members(model) // self._threads)
        numbers = self._threads * (members * _values_of_one(model) + model.largest_partition)
        planned = {"sweep values": 8 * numbers + 6 * model.row_sums.size}
        slabs = FlowRounds.nbytes(model, self._threads, self._members(model)) if _gathers(model) else 0
        return planned | {k: v for k, v in (("sweep orders", votes), ("policy rows", slabs)) if v}

    def _members(self, model: ModelConstants) -> int:
        """Partitions that are swept together at most."""
        gathers = _gathers(model)
        fit = (_WORKSPACE if gathers else _WORKSPACE_OF_ALL) // (8 * _values_of_one(model))
        most = _MOST_TOGETHER if gathers else fit
        return max(self._threads, min(most, fit, model.row_sums.size))

    def start(self, model: ModelConstants, values: FloatArray | None, policy: npt.NDArray[np.int32] | None) -> None:
        """Work in the caller's arrays."""
        self._model = model
        self._values = np.zeros(model.n_states) if values is None else values
        self._policy = np.full(model.n_states, -1, np.int32) if policy is None else policy
        self._orders = SweepOrders(self._sweep_order, model.row_sums.size, model.block_shapes)
        self._moving = np.ones(model.row_sums.size, np.bool_)
        """bool [P]; whether a partition's policy still changed in many states when it was last looked at."""
        self._doubts = np.zeros(model.row_sums.size, np.int8)
        """int8 [P]; by how much visits of policy sweeps made matters worse more often than not."""
        self._resting = np.zeros(model.row_sums.size, np.int32)
        """int32 [P]; visits left of full sweeps alone."""
        self._aside: FloatArray | None = None
        """float64 [n]; backups that no value has taken up yet."""
        self._rows: PolicyRows | None = None
        """The policy's rows, while it is evaluated on them."""
        self._greedy: GreedyRows | None = None
        """The policy's rows, once all partitions have been swept at once."""
        self.together = self._members(model)
        members = -(-self.together // self._threads)
        flows = self.together if _gathers(model) else 0
        self._flow = FlowRounds(model, self._threads, flows, self._sweep_order != "forward")
        self._workspaces = [np.empty(members * _values_of_one(model)) for _ in range(self._threads)]
        self._starts = [np.empty(model.largest_partition, np.int64) for _ in range(self._threads)]

    def open_cache(self, budget: int) -> None:
        """Make the memory that tables are decoded into."""
        assert self._model.table is not None
        room = min(budget, self._model.table.largest_bytes * self._model.row_sums.size)
        try:
            self._arena = Arena(room)
        except OSError as error:  # limits of the process, or a system that promises no more than it has
            message = f"the system does not give {format_bytes(room)} for the cache ({error.strerror}); lower --cache"
            raise MemoryBudgetError(message) from error

    def reader(self, source: TableSource) -> Callable[[int], tuple[PartitionTable, int]] | None:
        """Reads a store's tables into the cache's memory; others are taken as the source gives them."""
        arena, read_in = self._arena, source.loader("cpu").read_in
        return None if read_in is None else lambda p: read_in(p, arena)

    def enlarge(self) -> None:
        """There are no slots."""

    def prepare(self, table: PartitionTable) -> Resident:
        """Keep the decoded arrays; durations become discounts in place of themselves."""
        swept, whole = swept_table(table)
        discounts = discounts_of(self._model.discount, table.durations)
        row = describe(swept, discounts, whole)
        return Resident(table.index, table.n_states, bool(discounts.size), [SweptTable(swept, discounts, whole, row)])

    def admit(self, prepared: Resident) -> Resident:
        """Nothing is left to do."""
        return prepared

    def release(self, resident: Resident) -> None:
        """Nothing to do: the arrays go with their last reference."""

    def visit(self, resident: Resident, limits: SweepLimits) -> VisitReport:
        """Gauss-Seidel sweeps."""
        arrays: SweptTable = resident.arrays[0]
        extents, strides = self._walk(resident)
        actions, width = arrays.kind
        sweeps, *changes = visit(
            (0,) * actions,
            (0,) * width,
            self._values,
            self._policy,
            arrays.row,
            np.stack([extents, strides]),
            self._orders.alternate,
            limits.change,
            limits.most,
            self._workspaces[0],
            self._starts[0],
            *arrays.types,
            self._model.discount,
            self._model.sign,
        )
        return VisitReport(int(sweeps), *(float(x) for x in changes))

    def visit_together(self, residents: Sequence[Resident], limits: Sequence[SweepLimits]) -> _Together:
        """Rounds of sweeps over all of them on all threads, then a measurement at the values that result."""
        threads = min(self._threads, len(residents))
        self._flow.take(residents)
        barrier = threading.Barrier(threads)
        shares = [list(range(t, len(residents), threads)) for t in range(threads)]
        futures = [
            self._pool.submit(self._sweep_share, t, [residents[i] for i in share], [limits[i] for i in share], barrier)
            for t, share in enumerate(shares)
        ]
        return _Together(shares, futures)

    def at_once_bytes(self, model: ModelConstants) -> int:
        """The policy's rows, and a second value vector."""
        return GreedyRows.nbytes(model.n_states, model.longest_row)

    def visit_all(self, residents: Sequence[Resident], most: int, drop: float) -> _Together:
        """Sweeps on all threads, each of which waits for the others after every sweep."""
        if self._greedy is None:
            self._greedy = GreedyRows(self._model.n_states, self._model.longest_row)
        threads = min(self._threads, len(residents))
        barrier = threading.Barrier(threads)
        shares = [list(range(t, len(residents), threads)) for t in range(threads)]
        ranges = np.empty((2, threads, 2))
        futures = [
            self._pool.submit(
                self._sweep_share_at_once, t, [residents[i] for i in share], most, drop, barrier, ranges, self._greedy
            )
            for t, share in enumerate(shares)
        ]
        return _Together(shares, futures)

    def _sweep_share_at_once(
        self,
        thread: int,
        residents: list[Resident],
        most: int,
        drop: float,
        barrier: threading.Barrier,
        ranges: FloatArray,
        greedy: GreedyRows,
    ) -> list[VisitReport]:
        """One thread's partitions; `ranges` (float64 [2, threads, 2]) has every thread's least and largest change."""
        members = _by_kind(residents)
        model = self._model
        sweeps = 0
        try:
            if most > 0:
                for m in members.values():
                    tables = [r.arrays[0] for r in m.values()]
                    rows = np.stack([t.row for t in tables])
                    greedy.update(rows, tables[0].types, self._policy, model.discount, model.sign)
                barrier.wait()
                sweeps = greedy.sweep_share(thread, self._values, most, drop, barrier, ranges)
        except BaseException:
            barrier.abort()
            raise
        barrier.wait()
        measured = np.empty((len(residents), 8))
        for kind, m in members.items():
            measured[list(m)] = self._measure(thread, kind, list(m.values()), True, 0.0)
        return [_report(sweeps, (0.0, 0.0, -np.inf), m) for m in measured]

    def _sweep_share(
        self, thread: int, residents: list[Resident], limits: list[SweepLimits], barrier: threading.Barrier
    ) -> list[VisitReport]:
        """One thread's partitions: rounds over them, then, after those of all threads, their residuals."""
        kinds = _by_kind(residents)
        swept, measured = np.empty((len(residents), 7)), np.empty((len(residents), 8))
        try:
            for kind, members in kinds.items():
                swept[list(members)] = self._evaluate(
                    thread, kind, list(members.values()), [limits[i] for i in members]
                )
        except BaseException:
            barrier.abort()
            raise
        barrier.wait()
        for kind, members in kinds.items():
            measured[list(members)] = self._measure(thread, kind, list(members.values()), True, 0.0)
        for resident, s, m in zip(residents, swept, measured, strict=True):
            self._note(resident, s, m)
        return [_report(int(s[0] + s[1]), s[2:5], m) for s, m in zip(swept, measured, strict=True)]

    def _note(self, resident: Resident, swept: FloatArray, measured: FloatArray) -> None:
        """Decide how the partition is swept next.

        Full sweeps alone (value iteration) converge from any values in any order; policy sweeps of partitions at
        different times need not (Williams and Baird 1993), let alone extrapolation. So a visit that left larger
        residuals than it found is followed by visits of full sweeps, twice as many each time, until others succeed.
        """
        p = resident.index
        most = self._flow.most_differing if self._flow.suits(resident) else _MOST_DIFFERING
        self._moving[p] |= measured[7] > most * resident.n_states
        if self._resting[p] > 0:
            self._resting[p] -= 1
        elif swept[1] > 0:
            if max(measured[2], measured[3]) > 2.0 * swept[6]:
                doubts = min(int(self._doubts[p]) + 2, _MOST_DOUBTS)
                self._doubts[p], self._resting[p] = doubts, 1 << doubts >> 2
                self._moving[p] = True
            else:
                self._doubts[p] = max(int(self._doubts[p]) - 1, 0)

    def _evaluate(
        self, thread: int, kind: tuple[int, int], residents: list[Resident], limits: list[SweepLimits]
    ) -> FloatArray:
        """float64 [G, 7]: what rounds over partitions of one kind did; see `ooc_mdp.kernels.cpu_sweeps.evaluate`."""
        out = np.empty((len(residents), 7))
        flows = np.array([self._flow.ready(r) and not self._resting[r.index] for r in residents])
        for along, sweep in ((True, self._evaluate_along_flow), (False, self._evaluate_in_order)):
            members = np.flatnonzero(flows == along)
            if members.size:
                out[members] = sweep(
                    thread, kind, [residents[i] for i in members], np.array([limits[i].change for i in members])
                )
        return out

    def _evaluate_along_flow(
        self, thread: int, kind: tuple[int, int], residents: list[Resident], limits: FloatArray
    ) -> FloatArray:
        """:meth:`_evaluate` of those that `ooc_mdp.kernels.cpu_flow_rounds` is for."""
        index = [r.index for r in residents]
        moving = self._moving[index]
        out = self._flow.evaluate(
            thread,
            kind,
            residents,
            limits,
            moving,
            self._doubts[index],
            self._values,
            self._policy,
            self._workspaces[thread],
            self._model,
        )
        self._moving[index] = moving
        return out

    def _evaluate_in_order(
        self, thread: int, kind: tuple[int, int], residents: list[Resident], limits: FloatArray
    ) -> FloatArray:
        """:meth:`_evaluate` of all others."""
        out = np.empty((len(residents), 7))
        index = [r.index for r in residents]
        moving = self._moving[index]
        evaluate(
            (0,) * kind[0],
            (0,) * kind[1],
            self._values,
            self._policy,
            np.stack([r.arrays[0].row for r in residents]),
            _stacked([self._walk(r) for r in residents]),
            self._orders.alternate,
            limits,
            moving,
            self._workspaces[thread],
            self._starts[thread],
            *residents[0].arrays[0].types,
            self._model.discount,
            self._model.sign,
            _ROUNDS,
            _SWEEPS,
            np.where(self._resting[index] > 0, -1.0, _MOST_DIFFERING),
            _DROP,
            _STRAY_SHARE,
            out,
        )
        self._moving[index] = moving
        return out

    def _measure(
        self,
        thread: int,
        kind: tuple[int, int],
        residents: Sequence[Resident],
        improve: bool,
        significant: float,
        aside: FloatArray = _NOWHERE,
    ) -> FloatArray:
        """float64 [G, 8]; see `ooc_mdp.kernels.cpu_sweeps.measure`."""
        out = np.empty((len(residents), 8))
        measure(
            (0,) * kind[0],
            (0,) * kind[1],
            self._values,
            self._policy,
            np.stack([r.arrays[0].row for r in residents]),
            self._workspaces[thread],
            *residents[0].arrays[0].types,
            self._model.discount,
            self._model.sign,
            self._model.row_sums[[r.index for r in residents]],
            improve,
            significant,
            aside,
            out,
        )
        return out

    def _walk(self, resident: Resident) -> Walk:
        """The order of the next visit's sweeps; what reads most of the model has none that matters."""
        arrays: SweptTable = resident.arrays[0]
        if arrays.whole:
            return walk((resident.n_states,), 0)
        t = arrays.table
        voters = (
            t.first_state,
            t.n_states,
            t.actions_per_state,
            t.successors_per_action,
            t.action_ptr,
            t.successor_ptr,
            t.successors,
            t.probabilities,
            arrays.discounts,
        )
        return self._orders.of(resident.index, self._policy, voters, self._model.discount)

    def measure(self, resident: Resident, significant: float) -> tuple[Measured, float]:
        """One pass that updates no value."""
        (found,) = self._measure(0, resident.arrays[0].kind, [resident], False, significant).tolist()
        return Measured(*found[:4]), float(found[6])

    def aside_bytes(self, model: ModelConstants) -> int:
        """A second value vector."""
        return 8 * model.n_states

    def sweep_aside(self, resident: Resident) -> VisitReport:
        """A measurement that keeps its backups."""
        if self._aside is None:
            self._aside = np.empty_like(self._values)
        (found,) = self._measure(0, resident.arrays[0].kind, [resident], True, 0.0, self._aside)
        return _report(1, (0.0, 0.0, -np.inf), found)

    def take_aside(self) -> tuple[FloatArray, FloatArray]:
        """Exchange the vectors."""
        starts = self._model.partition_ptr
        assert self._aside is not None  # every partition has been swept aside
        assert starts is not None  # a solve has partitions
        self._values, self._aside = self._aside, self._values
        return np.maximum.reduceat(self._values, starts[:-1]), np.minimum.reduceat(self._values, starts[:-1])

    def rows_bytes(self, model: ModelConstants) -> int:
        """In RAM, or in a file where they would take most of what is free."""
        self._rows_mapped = PolicyRows.nbytes(model) > _MOST_OF_WHAT_IS_FREE * available_bytes()
        return PolicyRows.nbytes(model, self._rows_mapped)

    def open_rows(self, coupling: Coupling) -> None:
        """Allocate them, as :meth:`rows_bytes` saw fit."""
        self._rows = PolicyRows(self._model, coupling, self._threads, self._on_all_threads, self._rows_mapped)

    def close_rows(self) -> None:
        """Let them go."""
        self._rows = None

    def _on_all_threads(self, work: Callable[[int], None]) -> None:
        futures = [self._pool.submit(work, t) for t in range(1, self._threads)]
        try:
            work(0)
        finally:
            wait(futures)
        for future in futures:
            future.result()

    def improve(self, residents: Sequence[Resident], margin: float) -> Improvement:
        """On all threads, each with its share of the partitions."""
        out = np.empty((len(residents), 5))
        shares = [range(t, len(residents), self._threads) for t in range(self._threads)]
        self._on_all_threads(lambda t: self._improve_share(t, residents, shares[t], margin, out))
        assert self._rows is not None  # the caller has opened them
        self._rows.improved(np.array([r.index for r in residents]), np.maximum(out[:, 2], out[:, 3]))
        return Improvement(np.ascontiguousarray(out[:, :4].T), out[:, 4].astype(np.int64))

    def _improve_share(
        self, thread: int, residents: Sequence[Resident], share: Sequence[int], margin: float, out: FloatArray
    ) -> None:
        rows = self._rows
        assert rows is not None  # the caller has opened them
        for kind, members in _by_kind([residents[i] for i in share]).items():
            index = np.array([r.index for r in members.values()])
            tables = [r.arrays[0] for r in members.values()]
            found = np.empty((len(tables), 5))
            improve_rows(
                (0,) * kind[0],
                (0,) * kind[1],
                self._values,
                self._policy,
                np.stack([t.row for t in tables]),
                self._workspaces[thread],
                *tables[0].types,
                self._model.discount,
                self._model.sign,
                self._model.row_sums[index],
                margin,
                rows.places(index),
                rows.kept[index],
                rows.successors,
                rows.probabilities,
                rows.rewards,
                rows.discounts,
                rows.others,
                found,
            )
            out[[share[i] for i in members]] = found

    def evaluate(self, limit: float, most: int) -> Evaluation:
        """On all threads."""
        assert self._rows is not None  # the caller has opened them
        return self._rows.evaluate(self._values, self._policy, limit, most)

    def shift(self, by: float) -> None:
        """In the caller's array."""
        self._values += by

    def read(self, states: IntArray) -> FloatArray:
        """A copy."""
        return self._values[states]

    def write(self, states: IntArray, values: FloatArray, partitions: IntArray, ptr: IntArray) -> None:
        """Sweeps read values anew each time: nothing else is to be told."""
        self._values[states] = values

    def write_policy(self, partition: int, policy: npt.NDArray[np.int32]) -> None:
        """Into the caller's array."""
        ptr = self._model.partition_ptr
        assert ptr is not None
        self._policy[ptr[partition] : ptr[partition + 1]] = policy

    def copy(self, start: int, values: FloatArray, policy: npt.NDArray[np.int32]) -> None:
        """From the caller's arrays."""
        piece = slice(start, start + values.size)
        values[:], policy[:] = self._values[piece], self._policy[piece]

    def values(self) -> FloatArray:
        """The caller's own array."""
        return self._values

    def policy(self) -> npt.NDArray[np.int32]:
        """The caller's own array."""
        return self._policy

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()


def _by_kind(residents: Sequence[Resident]) -> dict[tuple[int, int], dict[int, Resident]]:
    """Residents of each kind, by their place among all."""
    kinds: dict[tuple[int, int], dict[int, Resident]] = {}
    for i, resident in enumerate(residents):
        kinds.setdefault(resident.arrays[0].kind, {})[i] = resident
    return kinds


def _report(sweeps: int, boundary: Sequence[float] | FloatArray, measured: FloatArray) -> VisitReport:
    """From what sweeps and a measurement gave: rise, fall and largest changed value of the boundary; float64 [8]."""
    rise, fall, plain_rise, plain_fall, largest, smallest = (float(x) for x in measured[:6])
    return VisitReport(
        sweeps=sweeps,
        up=max(plain_rise, 0.0),
        down=max(plain_fall, 0.0),
        boundary_up=float(boundary[0]),
        boundary_down=float(boundary[1]),
        boundary_value=float(boundary[2]),
        largest_value=largest,
        smallest_value=smallest,
        measured=Measured(rise, fall, plain_rise, plain_fall),
    )
