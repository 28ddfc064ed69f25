"""A solve on the workers of a Dask cluster, from the options to the result on disk."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from distributed import Client

from ooc_mdp.backends.device_kernels import device_kernels
from ooc_mdp.backends.select import cuda_numbers
from ooc_mdp.distributed.cluster import (
    WorkerInfo,
    check_staging_directory,
    client_of,
    prepare_workers,
    worker_device,
)
from ooc_mdp.distributed.coordinator import Coordinator, Division
from ooc_mdp.distributed.endpoint import install_plugin
from ooc_mdp.distributed.membership import Member, Membership, WorkersLostError
from ooc_mdp.distributed.partition_graph import partition_graph
from ooc_mdp.distributed.placement import Placement, SingleOwner, parse_placement
from ooc_mdp.distributed.snapshots import StartingPoint, ValueSnapshot
from ooc_mdp.distributed.termination import SolveClock
from ooc_mdp.distributed.transport import DaskTransport
from ooc_mdp.distributed.worker import StoreLocation, WorkerOptions
from ooc_mdp.errors import OptionsError
from ooc_mdp.events import SolveWatcher
from ooc_mdp.model.criterion import Discounted, option_of
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.method_record import MethodRecord, Phase, method_name
from ooc_mdp.model.solution import Outcome, Solution
from ooc_mdp.model.statistics import SolveStatistics, WorkerStatistics
from ooc_mdp.model.table import Table
from ooc_mdp.options import ClusterOptions, MethodName, RunOptions, SolveOptions
from ooc_mdp.runtime.memory_plan import MemoryPlan
from ooc_mdp.solver.certificate import FinalState, conclude
from ooc_mdp.solver.history import HistoryRecorder
from ooc_mdp.solver.local import LocalEngine
from ooc_mdp.solver.output import Output, Snapshot
from ooc_mdp.solver.plan import choose_shared_method
from ooc_mdp.solver.refinement import Refined, refine
from ooc_mdp.solver.run import Job, run_solve
from ooc_mdp.solver.session import Session
from ooc_mdp.solver.state import OPTIONAL_ARRAYS
from ooc_mdp.solver.verify import from_original
from ooc_mdp.store.checkpoint import checkpoint_path
from ooc_mdp.store.reader import Store
from ooc_mdp.store.reward_store import RewardStore
from ooc_mdp.store.transaction import check_not_inside_store

__all__ = ["ClusterEngine", "ClusterSolve", "check_options", "solve_distributed"]


def solve_distributed(
    table: Table,
    options: SolveOptions,
    run: RunOptions | None = None,
    *,
    asked: ClusterOptions | None = None,
    watch: SolveWatcher | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> Solution:
    """Solve the MDP of a table on the workers of a cluster: :func:`ooc_mdp.solver.run.run_solve`.

    Parameters
    ----------
    table : an open table; workers open the same path, or recompute the same problem.
    options : as in one process; cache and device memory are those of each worker.
    asked : workers, placement, rebalancing, timeout and staging; workers that join later take part from then on.

    Raises
    ------
    ClusterError : there are no workers, or their versions differ.
    """
    return run_solve(table, options, run, ClusterEngine(asked or ClusterOptions()), watch=watch, note=note)


@dataclass(frozen=True, slots=True)
class ClusterEngine:
    """Discounted solves on the workers of a Dask cluster, to the same proved error as in one process."""

    asked: ClusterOptions

    def check(self, options: SolveOptions, run: RunOptions) -> None:
        """Refuse what several workers do not support."""
        check_options(options, run)
        parse_placement(self.asked.placement)

    def default_target(self, table: Table, solution: Solution) -> float:
        """As in one process."""
        return LocalEngine().default_target(table, solution)

    def begin(self, job: Job) -> ClusterSolve:
        """Connect to the workers, place the partitions, and continue from what is there."""
        store, asked, options = job.table, self.asked, job.options
        if asked.stage is not None:
            _check_stageable(store, asked.stage)
        client = job.stack.enter_context(client_of(asked.workers or 1, options.device))
        facts = ModelFacts.of(store.facts, options.discount)
        start = _starting_point(store, job.output, facts.sign)
        placement, single = _placement(facts, asked, job.note)
        hosts = prepare_workers(client)
        install_plugin(client)
        options = replace(options, device=worker_device(options.device, hosts))
        chosen = choose_shared_method(facts, options, 1 if single else len(hosts))
        start = replace(start, method=_record(options, chosen, start))
        options = replace(options, method=chosen)
        prepare = _worker_options(store, options, hosts, asked, single)
        stage = None
        if asked.stage is not None:
            check_staging_directory(client, hosts, str(asked.stage))
            stage = str(asked.stage / store.fingerprint)
        transport = DaskTransport(client, uuid.uuid4().hex[:12], prepare, stage)
        members = Membership(
            transport, {k: Member(host.address) for k, host in enumerate(hosts)}, asked.worker_timeout, job.note
        )
        sizes = partition_graph(store)
        owner = placement.place(sizes, np.array([m.weight for m in members.by_number.values()]))
        division = Division(owner, sizes, rebalance=asked.rebalance, distribute=not single)
        placed = placement.name + (", rebalanced" if asked.rebalance else "")
        interrupted = job.await_signals()
        transport.start(hosts, owner, job.note)
        clock = SolveClock(start.seconds)
        session = job.session(interrupted, clock)
        coordinator = Coordinator(store, options, members, division, start, clock, session)
        return ClusterSolve(store, options, client, coordinator, members, transport, placed, session)


@dataclass(slots=True)
class ClusterSolve:
    """A solve on workers that has begun."""

    table: Table
    options: SolveOptions
    client: Client
    coordinator: Coordinator
    members: Membership
    transport: DaskTransport
    placed: str
    """How partitions were placed, for the name of the method."""
    session: Session
    refined: Refined | None = None

    def run(self) -> Outcome:
        """Run the coordinator; refine the values where the workers have come down to float64's precision."""
        coordinator, session = self.coordinator, self.session
        try:
            outcome: Outcome = self.client.sync(coordinator.run)
        except WorkersLostError as error:
            session.note(str(error))
            outcome = Outcome.WORKERS_LOST
        coordinator.history.row(coordinator.row())
        if outcome is Outcome.PRECISION_LIMIT and coordinator.known.valid.all():
            self.refined = refine(self.table, self.options, coordinator.known.values, session, session.note)
        return outcome if self.refined is None else self.refined.outcome

    def snapshot(self) -> Snapshot | None:
        """The last snapshot of all workers; None where there is none."""
        return self.coordinator.snapshot()

    def conclude(self, outcome: Outcome) -> Solution:
        """Certificate, values and policy, with the statistics of each worker."""
        coordinator, options = self.coordinator, self.options
        end = _final_state(coordinator, options, self.members, self.transport, self.placed, outcome)
        if self.refined is not None:
            self.refined.count(end.statistics)
        return conclude(self.table, options, outcome, replace(end, refined=self.refined))


def check_options(options: SolveOptions, run: RunOptions) -> None:
    """Refuse options that several workers do not support, and words that no worker knows.

    Raises
    ------
    OptionsError : a criterion with a method of its own, exact priorities, a trace, or an unknown device or kernel.
    """
    cuda_numbers(options.device, visible=0)
    device_kernels(options.kernel, options.stopping)
    if run.trace is not None:
        raise OptionsError(
            "a trace is of one process: leave out --trace, or --workers and --scheduler (in Python trace, or workers)"
        )
    if options.question.own_method is not None:
        raise OptionsError(
            f"{option_of(options.question)} is solved on one machine only; leave --workers and --scheduler out"
        )
    if isinstance(options.question, Discounted) and (options.question.reward or options.question.sense):
        raise OptionsError(
            f"{option_of(options.question)}: several workers take the store's own rewards and sense; leave --workers "
            f"and --scheduler out, or make a store of these rewards and this sense (convert --reward-model, --sense)"
        )
    if options.exact_priorities:
        raise OptionsError("exact priorities recompute those of all dependents, on one machine only")


def _check_stageable(table: Table, stage: Path) -> None:
    """Refuse to stage what is not read from disk, and to stage inside a store."""
    if table.facts.kind == "store" and not table.facts.stored_fields:
        raise OptionsError(f"{table.name} has the transitions of another store, which is not staged; leave out --stage")
    if table.facts.kind != "store":
        raise OptionsError(
            f"the partitions of {table.name} are computed, not read from disk: there is nothing to stage; leave out "
            f"--stage (in Python stage)"
        )
    check_not_inside_store(stage / table.fingerprint)


def _starting_point(table: Table, output: Output, sign: float) -> StartingPoint:
    """Return the checkpoint of an earlier run with its history, or values: those of a result, or the initial ones."""
    history = HistoryRecorder(np.zeros(table.n_partitions, np.int64))
    nothing = ValueSnapshot.first(table.n_states, table.n_partitions)
    saved = output.checkpoint(lambda: nothing.arrays(table.facts.partition_ptr), OPTIONAL_ARRAYS, table=table)
    if saved is None or output.path is None:
        values = output.take_result_values()
        if values is None:
            return StartingPoint(nothing, history)
        known = ValueSnapshot.of_values(sign * from_original(table, values), table.n_partitions)
        return StartingPoint(known, history, SolveStatistics())
    history.restore(saved.arrays, checkpoint_path(output.path))
    return StartingPoint(ValueSnapshot.from_arrays(saved.arrays), history, saved.statistics, saved.method)


def _record(options: SolveOptions, chosen: MethodName, start: StartingPoint) -> MethodRecord:
    """Return what checkpoints record: the method that was asked for, and the chosen one after those of earlier runs."""
    phases, earlier = start.method.phases, start.earlier or SolveStatistics()
    if not phases or phases[-1].method != chosen:
        phases = (*phases, Phase(chosen, earlier.loads, earlier.backups))
    return MethodRecord.of(options, phases)


def _placement(facts: ModelFacts, asked: ClusterOptions, note: Callable[[str], None]) -> tuple[Placement, bool]:
    """Return the placement, and whether one worker owns all partitions until it is lost."""
    dense = facts.densely_coupled
    placement = parse_placement(asked.placement, dense)
    single = isinstance(placement, SingleOwner) and not asked.rebalance
    if dense:
        note(
            "partitions read most of the others: one worker sweeps such a table as a whole; several exchange values "
            "after each step, and are slower; "
            + ("one owns all, the others stand by" if single else "--placement single leaves the table to one of them")
        )
    return placement, single


def _worker_options(
    table: Table,
    options: SolveOptions,
    hosts: list[WorkerInfo],
    asked: ClusterOptions,
    single: bool,
) -> Callable[[int, WorkerInfo], WorkerOptions]:
    """Return a function that makes the options of a worker from its number."""
    source: Table | StoreLocation = table
    if isinstance(table, Store | RewardStore):
        source = StoreLocation(str(table.path.resolve()), table.fingerprint)
    machines = [host.name for host in hosts]

    def prepare(number: int, host: WorkerInfo) -> WorkerOptions:
        sharing = 1 if single else max(1, machines.count(host.name))
        threads = asked.threads or max(1, host.cores // sharing)
        return WorkerOptions(number, source, options, threads, lease=4 * asked.worker_timeout)

    return prepare


def _worker_statistics(
    members: Membership, owner: npt.NDArray[np.int32], transport: DaskTransport, device: str
) -> list[WorkerStatistics]:
    """Return the statistics of each worker, by its last status."""
    statistics = []
    for k, member in members.by_number.items():
        status = member.status
        statistics.append(
            WorkerStatistics(
                worker=k,
                host=transport.hosts[k].name,
                device=device,
                lost=not member.alive,
                partitions=int((owner == k).sum()),
                loads=status.statistics.loads,
                bytes_read=status.statistics.bytes_read,
                hit_rate=status.statistics.hit_rate,
                backups=status.statistics.backups,
                idle_seconds=status.idle_seconds,
                messages=status.messages,
                bytes_sent=status.bytes_sent,
                bytes_staged=status.staging.bytes_staged,
                bytes_read_staged=status.staging.bytes_read_staged,
                bytes_read_shared=status.staging.bytes_read_shared,
            )
        )
    return statistics


def _final_state(
    coordinator: Coordinator,
    options: SolveOptions,
    members: Membership,
    transport: DaskTransport,
    placed: str,
    outcome: Outcome,
) -> FinalState:
    """Return the final state of the solve, with the statistics of each worker."""
    known = coordinator.known
    workers = _worker_statistics(members, coordinator.ownership.owner, transport, options.device)
    plans = [] if outcome is Outcome.WORKERS_LOST else transport.join(members.alive())
    if known.bounds is None:
        coordinator.bounds.invalidate()
    statistics = coordinator.statistics()
    statistics.workers = workers
    return FinalState(
        method=f"{method_name(options)}, {len(workers)} workers, {placed}",
        device=options.device,
        plan=max(plans, key=lambda plan: sum(plan.host.values()), default=MemoryPlan({}, {})),
        bounds=coordinator.bounds,
        target=coordinator.target,
        value_size=known.value_size,
        values=known.values,
        policy=known.policy,
        visited=known.visited,
        statistics=statistics,
        history=coordinator.history,
        resident=coordinator.resident(),
    )
