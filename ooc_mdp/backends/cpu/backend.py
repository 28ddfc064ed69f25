"""The CPU backend: partitions swept on all cores, over local copies of own and halo values, in Numba.

One partition after the other (`sweep`) gets Gauss-Seidel sweeps, in the order that `backends.cpu.sweep_order` gives.
A batch (`relax`) is shared by the threads (`backends.cpu.visits`): rounds of policy sweeps, and then
a measurement of their residuals at the values of all of them. Loops are in `ooc_mdp.backends.cpu.loops`; they release
the interpreter lock, so partitions are decoded meanwhile.
``docs/theory/cpu-sweeps.md`` describes it; the figures are in ``benchmarks/notes/2026-11-cpu-engine.md``.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.base import (
    Backups,
    Features,
    FinishedVisit,
    Improvement,
    Loops,
    PolicyEvaluation,
    Resident,
    SweepLimits,
    VisitReport,
)
from ooc_mdp.backends.cpu.batch import Findings, Members, Shared, by_specialisation, members_of
from ooc_mdp.backends.cpu.discounts import discounts_in_place
from ooc_mdp.backends.cpu.distributions import share_distributions
from ooc_mdp.backends.cpu.evaluation import CpuEvaluation
from ooc_mdp.backends.cpu.host_values import HostValues
from ooc_mdp.backends.cpu.loops import Limits, MeasureOptions, exact_sweeps, measure
from ooc_mdp.backends.cpu.passes import Passes, pass_over, pass_report
from ooc_mdp.backends.cpu.policy_loops import back_up_tables, improve_rows
from ooc_mdp.backends.cpu.policy_rows import PolicyRows
from ooc_mdp.backends.cpu.sweep_order import SweepOrders, axes_of, choose_traversal
from ooc_mdp.backends.cpu.table import (
    MAX_GATHERED,
    Specialisation,
    SweptTable,
    freed_halo_bytes,
    in_one_piece,
    swept_table,
)
from ooc_mdp.backends.cpu.table import load_code as load_table_code
from ooc_mdp.backends.cpu.team import Team
from ooc_mdp.backends.cpu.topological_rounds import PackedBuffers
from ooc_mdp.backends.cpu.views import Model, Scratch
from ooc_mdp.backends.cpu.visits import Batch, BatchVisit
from ooc_mdp.backends.cpu.warm_up import small_models
from ooc_mdp.backends.exact_sweeps import sweep_each
from ooc_mdp.backends.layout import ROWS, TRIANGLE, Layout, Needs, cache_of_size
from ooc_mdp.errors import MemoryBudgetError, OptionsError
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.partition import Coupling, PartitionTable
from ooc_mdp.model.table import Loader
from ooc_mdp.options import NO_DEVICE_MEMORY, SweepOrder, format_bytes
from ooc_mdp.runtime import quotas
from ooc_mdp.runtime.arena import SYSTEM_MEMORY, Arena, TableMemory
from ooc_mdp.runtime.memory import available_bytes

__all__ = ["CpuBackend"]

_MAX_BATCH = 64
"""Partitions of a batch, where they read few outside states; elsewhere as many as there is room for."""
_MAX_FRACTION_OF_FREE = 0.75
"""Share of the free RAM that a policy's rows may take."""
_UNEVEN = 4
"""Largest table over the mean one, above which small tables are kept where large ones are: evicted large ones leave
room that nothing else could use."""
_SMALL_TABLE = 256 << 10
"""Bytes of a table that is copied there."""
_WORKSPACE = 16 << 20
"""Bytes that the values of the partitions of a batch may take, unless those of one per thread take more."""
_WORKSPACE_OF_ALL = 64 << 20
"""The same where partitions read most of the model: all of them should be in one batch."""


def _gathers(facts: ModelFacts) -> bool:
    """Whether partitions are swept over own and halo values, all of them as far as one can tell beforehand."""
    wide = facts.successor_dtype == np.uint32
    return not wide or facts.largest_halo <= MAX_GATHERED * facts.largest_partition


def _values_of_one(facts: ModelFacts) -> int:
    """Float64 numbers that the sweeps of a partition need beside the table."""
    halo = facts.largest_halo if _gathers(facts) else MAX_GATHERED * facts.largest_partition
    return 3 * facts.largest_partition + halo


def _maps_rows(facts: ModelFacts, free: int | None) -> bool:
    """Whether a policy's rows lie in a file, since they would take most of the RAM that is free."""
    return free is not None and PolicyRows.nbytes(facts) > _MAX_FRACTION_OF_FREE * free


class CpuBackend(HostValues):
    """Sweeps on the host's cores; one caller at a time.

    Parameters
    ----------
    sweep_order : in which order a sweep backs up the states of a partition.
    threads : that sweep at the same time; None for the number of cores.
    """

    name = "cpu"
    features = Features(overlaps_loads=False)

    def __init__(self, sweep_order: SweepOrder = "alternating", threads: int | None = None) -> None:
        self._sweep_order: SweepOrder = sweep_order
        self._threads = threads or quotas.cores()
        self._team = Team(self._threads)
        self._last_visit: Callable[[], BatchVisit | None] = lambda: None
        """Of several partitions, while somebody has it; its work ends before that of another begins."""

    @property
    def synchronous(self) -> CpuBackend:
        """Itself."""
        return self

    @property
    def policy_rows(self) -> CpuBackend:
        """Itself."""
        return self

    def free_bytes(self) -> int | None:
        """Of RAM."""
        return available_bytes()

    def layout(self, facts: ModelFacts, needs: Needs) -> Layout:
        """The cache, what sweeps need beside tables, and what votes leave; values are the caller's arrays."""
        if needs.device_memory is not None:
            raise OptionsError(NO_DEVICE_MEMORY)
        cache, members = cache_of_size(facts.partition_bytes, needs.cache), self._members(facts)
        entries = facts.partition_bytes - freed_halo_bytes(facts)
        resident, one = min(cache, int(entries.sum())), _values_of_one(facts)
        votes = SweepOrders.nbytes(self._sweep_order, facts.n_partitions, facts.block_shapes)
        packed = PackedBuffers.nbytes(facts, self._threads, members, resident) if _gathers(facts) else 0
        kept = 6 + 16 * axes_of(facts.block_shapes)
        numbers = (1 + self._threads) * int(facts.partition_rows.max())  # of distributions, while they are looked for
        of_batches = 8 * self._threads * (-(-members // self._threads) - 1) * one
        host = {
            "cache": resident,
            "sweep workspace": 8 * self._threads * (one + facts.largest_partition)
            + kept * facts.n_partitions
            + numbers,
        }
        host |= {"sweep orders": votes} if votes else {}
        host |= Passes.nbytes(facts) if needs.synchronous else {}
        if not needs.policy_rows:
            host["sweep workspace"] += of_batches
            host |= {"policy rows": packed} if packed else {}
            return Layout(cache, entries, members, host, {})
        mapped, later = _maps_rows(facts, needs.free), {"sweeps where policy iteration stalls": of_batches + packed}
        host[ROWS] = PolicyRows.nbytes(facts, mapped)
        if facts.densely_coupled:  # evaluations mix within a few sweeps, and seldom come to triangular solves
            later[TRIANGLE] = PolicyRows.triangle_bytes(facts, mapped)
            host[ROWS] -= later[TRIANGLE]
        return Layout(cache, entries, members, host, {}, needs.free, later=later)

    def enlarged(self, layout: Layout) -> Layout:
        """There are no slots."""
        return layout

    def _members(self, facts: ModelFacts) -> int:
        """Partitions of a batch at most."""
        gathers = _gathers(facts)
        fit = (_WORKSPACE if gathers else _WORKSPACE_OF_ALL) // (8 * _values_of_one(facts))
        most = _MAX_BATCH if gathers else fit
        return max(self._threads, min(most, fit, facts.row_sums.size))

    def start(
        self,
        facts: ModelFacts,
        layout: Layout,
        values: FloatArray | None,
        policy: npt.NDArray[np.int32] | None,
        loader: Loader | None = None,
    ) -> None:
        """Work in the caller's arrays."""
        self._facts, self._layout = facts, layout
        self._values = np.zeros(facts.n_states) if values is None else values
        self._policy = np.full(facts.n_states, -1, np.int32) if policy is None else policy
        self._orders = SweepOrders(self._sweep_order, np.diff(facts.partition_ptr), facts.block_shapes)
        self._unstable = np.ones(facts.row_sums.size, np.bool_)
        self._failures = np.zeros(facts.row_sums.size, np.int8)
        self._backoff = np.zeros(facts.row_sums.size, np.int32)
        """The arrays of `Findings`."""
        self._batch: Batch | None = None
        """Of visits of several partitions, while values are in the same array."""
        self._passes: Passes | None = None
        self._memory: TableMemory = SYSTEM_MEMORY
        """Where tables are read into."""
        self._small_tables: Arena | None = None
        """Where tables that are small beside others are kept."""
        self._rows: PolicyRows | None = None
        """The policy's rows, while it is evaluated on them."""
        members = -(-layout.batch_size // self._threads)
        packed, resident = (layout.batch_size, layout.host["cache"]) if _gathers(facts) else (0, 0)
        self._packed_buffers = PackedBuffers(facts, self._threads, packed, resident, self._sweep_order != "forward")
        self._workspace = np.empty(self._threads * members * _values_of_one(facts))
        """What threads share in a visit of several partitions; otherwise each has a part of it."""
        self._workspaces = np.split(self._workspace, self._threads)
        self._starts = np.empty((self._threads, facts.largest_partition), np.int64)

        self._loop_model = Model(float(facts.discount), float(facts.sign))
        self._read = None if loader is None else self._reader(loader)
        self._owns_tables = loader is not None and loader.read_into is not None
        """Whether arrays of tables that are read are in this backend's memory, so that it may change them."""

    def _findings(self) -> Findings:
        """What visits have found of each partition."""
        return Findings(self._unstable, self._failures, self._backoff, self._packed_buffers.suited)

    def _shared(self) -> Shared:
        """What threads work on; `commit` exchanges values."""
        arrays = self._values, self._policy, self._workspace, self._starts
        return Shared(self._loop_model, self._facts.row_sums, *arrays)

    def _reader(self, loader: Loader) -> Callable[[int], tuple[PartitionTable, int]]:
        """Reads partitions into memory for the cache, made here, where the loader can; else as it gives them."""
        read_into, sizes = loader.read_into, self._layout.entries
        if read_into is None:
            return loader.read
        room = int(min(self._layout.cache_bytes, int(sizes.max()) * sizes.size) * (1 + loader.padding))
        try:
            arena = Arena(room)
        except OSError as error:  # limits of the process, or a system that promises no more than it has
            message = f"the system does not give {format_bytes(room)} for the cache ({error.strerror}); lower --cache"
            raise MemoryBudgetError(message) from error
        if self._layout.largest_entry > _UNEVEN * float(sizes.mean()):
            self._small_tables = arena
        self._memory, frees_halo = arena, freed_halo_bytes(self._facts) > 0
        return lambda p: read_into(p, arena, SYSTEM_MEMORY if frees_halo[p] else arena)

    def fetch(self, p: int) -> tuple[Resident, int]:
        """Read partition p into memory of the cache."""
        assert self._read is not None  # a loader was given to `start`
        table, n_bytes = self._read(p)
        return self._resident(table, self._owns_tables), n_bytes

    def prepare(self, table: PartitionTable) -> Resident:
        """Keep the decoded arrays, and discounts beside them."""
        return self._resident(table, False)

    def _resident(self, table: PartitionTable, owned: bool) -> Resident:
        """A table as sweeps read it, with discounts for durations: in their place, where the table is owned."""
        swept, global_successors = swept_table(table)
        discounts = discounts_in_place(self._facts.discount, swept.durations if owned else swept.durations.copy())
        swept = replace(swept, durations=discounts)
        swept, distributions = share_distributions(swept, self._memory)
        if self._small_tables is not None and swept.nbytes <= _SMALL_TABLE:
            swept, discounts = in_one_piece(swept, discounts, self._small_tables)
        arrays = SweptTable(swept, discounts, global_successors, distributions)
        return Resident(table.index, table.n_states, bool(discounts.size), [arrays])

    def admit(self, prepared: Resident) -> Resident:
        """Nothing is left to do."""
        return prepared

    def release(self, resident: Resident) -> None:
        """Nothing to do: the arrays go with their last reference."""

    def load_code(self, facts: ModelFacts, loops: Loops) -> None:
        """One call on each kind of partition."""
        load_table_code()
        packs = PackedBuffers.nbytes(facts, 1, 1, 0) > 0
        for small, table in small_models(facts):
            with closing(CpuBackend(self._sweep_order, self._threads)) as other:
                other._load_loops(small, table, packs, loops)

    def _load_loops(self, small: ModelFacts, table: PartitionTable, packs: bool, loops: Loops) -> None:
        """Call loops on a small model of one partition; batches in topological order first, if that may suit."""
        self.start(small, self.layout(small, Needs()), None, None)
        self._team.load_code()
        resident, once = self.prepare(table), SweepLimits(0.0, 1)
        for suited in (True, False) if packs else (False,):
            self._packed_buffers.suited &= suited
            if Loops.BATCHES in loops:
                self.relax([resident], once).report()
        if Loops.SINGLE in loops:
            self.sweep([resident], once)
        if Loops.MEASURE in loops:
            self.measure(resident, 0.0)
        if Loops.PASSES in loops:
            self.sweep_synchronously([resident])
        if Loops.POLICY_ROWS in loops:
            self.open_rows(Coupling(np.array([0, 1]), np.zeros(1, np.int64), np.ones(1)))
            assert self._rows is not None  # they are open
            self.back_up([resident])
            self.improve([resident], 0.0)
            self._rows.load_code(self._values, self._policy)

    def sweep(self, residents: Sequence[Resident], limits: SweepLimits) -> FinishedVisit:
        """Gauss-Seidel sweeps of one partition after the other."""
        return sweep_each(residents, limits, self._sweep_one, lambda resident: self.measure(resident, 0.0)[0])

    def _sweep_one(self, resident: Resident, change: float, most: int) -> tuple[float, ...]:
        self._end_passes()
        arrays: SweptTable = resident.arrays[0]
        shared = self._shared()
        return exact_sweeps(
            arrays.spec,
            shared.model,
            shared.values,
            shared.policy,
            arrays.row,
            self._traversal(resident),
            Limits(float(change), int(most), self._orders.alternate),
            Scratch(self._workspaces[0], shared.starts[0]),
        )

    def relax(self, residents: Sequence[Resident], limits: SweepLimits) -> BatchVisit:
        """Rounds of sweeps over all of them on all threads, then a measurement at the values that result."""
        self._end_passes()
        if (before := self._last_visit()) is not None:
            before.complete()
        self._team.finish()
        packed = {p for p in self._packed_buffers.assign(residents) if not self._backoff[p]}
        batch = self._batch_of(len(residents))
        groups, places = batch.take_places(residents, packed, limits)
        visit = BatchVisit(batch, residents, groups, places, self._team, min(self._threads, len(residents)))
        self._last_visit = weakref.ref(visit)
        return visit

    def _batch_of(self, count: int) -> Batch:
        """Places for at least so many members."""
        if self._batch is None or self._batch.size < count:
            size = max(count, self._layout.batch_size)
            self._batch = Batch(size, self._shared(), self._findings(), self._orders, self._packed_buffers)
        return self._batch

    def _traversal(self, resident: Resident) -> IntArray:
        """int64 [2, d]: the order of a single visit's sweeps, which begins."""
        p, arrays = resident.index, resident.arrays[0]
        traversal: IntArray = self._orders.traversals[p]
        if self._orders.begin_visits(np.array([p]))[0]:
            spec = arrays.spec._replace(actions=(), width=())
            choose_traversal(
                spec, arrays.row, self._orders.shapes[p], self._policy, self._loop_model.discount, traversal
            )
        return traversal

    def measure(self, resident: Resident, significant: float, thread: int = 0) -> tuple[FloatArray, float]:
        """One pass that updates no value; several threads, each with a number of its own, may measure at a time."""
        m = members_of([resident], self._facts.row_sums)
        arrays = self._values, self._policy, m, MeasureOptions(False, float(significant)), self._workspaces[thread]
        measure(resident.arrays[0].spec, self._loop_model, *arrays)
        return m.measured[0, :4], float(m.measured[0, 6])

    def _on_shares(
        self, residents: Sequence[Resident], work: Callable[[Specialisation, Members, FloatArray], None]
    ) -> FloatArray:
        """float64 [k, 8]: what all threads measure of the residents, each of its share, one specialisation at a time.

        Parameters
        ----------
        work : given a specialisation, members and a workspace.
        """
        measured = np.empty((len(residents), 8))

        def share(thread: int) -> None:
            for spec, places in by_specialisation(residents, range(thread, len(residents), self._threads)):
                members = members_of([residents[i] for i in places], self._facts.row_sums)
                work(spec, members, self._workspaces[thread])
                measured[places] = members.measured

        self._team.share(share)
        return measured

    def sweep_synchronously(self, residents: Sequence[Resident]) -> VisitReport:
        """A measurement that keeps its backups."""
        if self._passes is None:
            self._passes = Passes(self._facts)
        kept, arrays = self._passes.kept(self._values), (self._values, self._policy)

        def sweep(spec: Specialisation, members: Members, workspace: FloatArray) -> None:
            pass_over(spec, self._loop_model, *arrays, members, kept, workspace)

        measured = self._on_shares(residents, sweep)
        self._passes.passed(np.array([r.index for r in residents]), measured)
        return pass_report(residents, measured)

    def commit(self) -> tuple[FloatArray, FloatArray]:
        """Exchange the vectors."""
        starts = self._facts.partition_ptr
        assert self._passes is not None  # every partition has been swept
        self._values, self._batch = self._passes.commit(self._values), None
        return np.maximum.reduceat(self._values, starts[:-1]), np.minimum.reduceat(self._values, starts[:-1])

    def _end_passes(self) -> None:
        """Values or policy change otherwise than by a pass or a shift."""
        if self._passes is not None:
            self._passes.forget()

    def rows_bytes(self, facts: ModelFacts) -> int:
        """In RAM, or in a file where they would take most of what is free."""
        return PolicyRows.nbytes(facts, _maps_rows(facts, self.free_bytes()))

    def open_rows(self, coupling: Coupling) -> None:
        """Allocate them where the layout has planned, or else as :meth:`rows_bytes` finds that they fit."""
        room = self._layout.rows_room
        mapped = _maps_rows(self._facts, self.free_bytes() if room is None else room)
        self._rows = PolicyRows(self._facts, coupling, self._threads, self._team.share, mapped)

    def close_rows(self) -> None:
        """Let them go."""
        self._rows = None

    def back_up(self, residents: Sequence[Resident]) -> Backups:
        """On all threads, each with its share of the partitions."""
        self._end_passes()
        rows, arrays = self._rows, (self._values, self._policy)
        assert rows is not None  # the caller has opened them

        def back_up(spec: Specialisation, members: Members, workspace: FloatArray) -> None:
            back_up_tables(spec, self._loop_model, *arrays, members, rows.before, workspace)

        rise, fall, largest, smallest = self._on_shares(residents, back_up).T[:4]
        rows.take_backups([r.index for r in residents], self._values, np.maximum(rise, fall))
        return Backups(rise, fall, largest, smallest)

    def improve(self, residents: Sequence[Resident], margin: float) -> Improvement:
        """On all threads, each with its share of the partitions."""
        self._end_passes()
        rows, arrays = self._rows, (self._values, self._policy)
        assert rows is not None  # the caller has opened them
        row_spec = rows.spec._replace(width=())  # one loop writes rows of any width

        def improve(spec: Specialisation, members: Members, workspace: FloatArray) -> None:
            improve_rows(spec, self._loop_model, *arrays, members, row_spec, rows.numbers, margin, workspace)

        measured = self._on_shares(residents, improve)
        rows.take_rows([r.index for r in residents], np.maximum(measured[:, 2], measured[:, 3]))
        return Improvement(np.ascontiguousarray(measured[:, :4].T), measured[:, 7].astype(np.int64))

    def evaluation(self, limit: float, most: int) -> PolicyEvaluation:
        """On all threads."""
        self._end_passes()
        assert self._rows is not None  # the caller has opened them
        return CpuEvaluation(self._rows, self._values, self._policy, limit, most)

    def shift(self, by: float) -> None:
        """In the caller's array."""
        self._values += by
        if self._passes is not None:
            self._passes.shifted(by)

    def write(self, states: IntArray, values: FloatArray, partitions: IntArray, ptr: IntArray) -> None:
        """Into the caller's array; what was measured on a policy's rows holds no longer."""
        super().write(states, values, partitions, ptr)
        self._end_passes()
        if self._rows is not None:
            self._rows.written += 1

    def write_policy(self, partition: int, policy: npt.NDArray[np.int32]) -> None:
        """Into the caller's array."""
        super().write_policy(partition, policy)
        self._end_passes()

    def close(self) -> None:
        """End the threads."""
        self._team.close()
