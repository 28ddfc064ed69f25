"""`solve_distributed`: a solve over the workers of a Dask cluster, from the options to the result on disk."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from distributed import Client

from ooc_mdp.distributed.cluster import (
    DeviceAssignment,
    WorkerInfo,
    check_staging_directory,
    connect,
    local_cluster,
    prepare_workers,
    use_devices,
)
from ooc_mdp.distributed.coordinator import Coordinator, Division
from ooc_mdp.distributed.endpoint import install_plugin
from ooc_mdp.distributed.membership import Member, Membership, WorkersLostError
from ooc_mdp.distributed.placement import Placement, SingleOwner, parse_placement, partition_graph
from ooc_mdp.distributed.snapshots import StartingPoint, ValueSnapshot
from ooc_mdp.distributed.termination import SolveClock
from ooc_mdp.distributed.transport import DaskTransport
from ooc_mdp.distributed.worker import StoreLocation, WorkerOptions
from ooc_mdp.errors import ClusterError, OptionsError
from ooc_mdp.events import SolveWatcher
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.solution import Outcome, Solution, WorkerStatistics
from ooc_mdp.model.table_source import TableSource
from ooc_mdp.options import ClusterOptions, MethodName, RunOptions, SolveOptions
from ooc_mdp.runtime.memory_plan import MemoryPlan
from ooc_mdp.runtime.signals import signals
from ooc_mdp.solver.certificate import FinalState, conclude, method_name
from ooc_mdp.solver.history import HistoryRecorder
from ooc_mdp.solver.output import Output, open_output
from ooc_mdp.solver.session import Session
from ooc_mdp.solver.state import OPTIONAL_ARRAYS
from ooc_mdp.store import Store
from ooc_mdp.store.checkpoint import checkpoint_path
from ooc_mdp.store.output_lock import refuse_busy
from ooc_mdp.store.transaction import check_not_inside_store

__all__ = ["check_options", "solve_distributed", "solve_on_cluster"]


def solve_on_cluster(
    table: TableSource,
    options: SolveOptions,
    run: RunOptions,
    *,
    asked: ClusterOptions,
    client: Client | None = None,
    watch: SolveWatcher | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> Solution:
    """:func:`solve_distributed` on the client's cluster, the scheduler's, or one of this machine, as asked."""
    parse_placement(asked.placement)
    if asked.stage is not None:
        _check_stageable(table, asked.stage)
    if run.output is not None:
        refuse_busy(run.output)  # before workers are started
    with ExitStack() as stack:
        if client is not None:
            if client.asynchronous:
                raise OptionsError("the solve waits for its end: give a client that is not asynchronous")
            if client.status not in ("running", "connecting"):
                raise ClusterError(f"the client is {client.status}; give one that is connected to its scheduler")
        elif asked.scheduler is not None:
            client = stack.enter_context(connect(asked.scheduler))
        else:
            workers = asked.workers or 1
            client = stack.enter_context(local_cluster(workers, use_devices(options.device, workers)))
        return solve_distributed(table, options, run, client=client, asked=asked, watch=watch, note=note)


def solve_distributed(
    table: TableSource,
    options: SolveOptions,
    run: RunOptions | None = None,
    *,
    client: Client,
    asked: ClusterOptions | None = None,
    watch: SolveWatcher | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> Solution:
    """Solve the MDP of a table on the workers of a cluster, to the same proved error as on one machine.

    Parameters
    ----------
    table : open source of tables; workers open the same path, or recompute the same problem.
    options : as for :func:`ooc_mdp.solver.local.solve`; cache and device memory are those of each worker.
    run, watch, note : as for one machine.
    client : of the cluster; workers that come later take part from then on.
    asked : placement of partitions and what counts as a lost worker.

    Raises
    ------
    OptionsError, StoreError, MemoryBudgetError : as on one machine, wherever they occur.
    BusyError : before any work, where another process writes the output or reads what is there.
    ClusterError : workers are missing or do not fit together.
    """
    run = run or RunOptions()
    check_options(options, run)
    facts = ModelFacts.of(table, options.discount)
    with open_output(table, options.discount, run, note) as output:
        finished = output.finished(options)
        if finished is not None:
            return finished
        return _solve(table, facts, options, client, asked or ClusterOptions(), run, output, watch, note)


def _solve(
    store: TableSource,
    facts: ModelFacts,
    options: SolveOptions,
    client: Client,
    asked: ClusterOptions,
    run: RunOptions,
    output: Output,
    watch: SolveWatcher | None,
    note: Callable[[str], None],
) -> Solution:
    """:func:`solve_distributed` with the output checked and locked."""
    beginning = _beginning(store, output)
    placement, alone = _placement(facts, asked, note)
    hosts = prepare_workers(client)
    install_plugin(client)
    devices = DeviceAssignment(options.device, hosts)
    on_cpu = all(devices.of(host) == "cpu" for host in hosts)
    options = replace(options, method=_way(facts, options, 1 if alone else len(hosts), on_cpu))
    prepare = _solvers(store, options, hosts, devices, asked, alone)
    stage = None
    if asked.stage is not None:
        check_staging_directory(client, hosts, str(asked.stage))
        stage = str(asked.stage / store.fingerprint)
    link = DaskTransport(client, uuid.uuid4().hex[:12], prepare, devices.release, stage)
    solvers = Membership(link, {k: Member(host.address) for k, host in enumerate(hosts)}, asked.worker_timeout, note)
    sizes = partition_graph(store)
    owner = placement.place(sizes, np.array([m.share for m in solvers.of.values()]))
    division = Division(owner, sizes, moves=asked.rebalance, distribute=not alone)
    placed = placement.name + (", rebalanced" if asked.rebalance else "")
    with signals() as interrupted:
        link.start(hosts, owner, note)
        clock = SolveClock(beginning.seconds)
        session = Session(output, run, watch=watch, note=note, interrupted=interrupted, clock=clock)
        coordinator = Coordinator(store, options, solvers, division, beginning, clock, session)
        outcome = _lead(client, coordinator, output, note)

        def solution() -> Solution:
            end = _end_of(coordinator, options, solvers, link, placed, outcome)
            return conclude(store, options, outcome, end)

        return output.finish(store, outcome, coordinator.snapshot, solution)


def _lead(client: Client, coordinator: Coordinator, output: Output, note: Callable[[str], None]) -> Outcome:
    """Have the coordinator lead the solvers to the end, whatever it is."""
    try:
        with output.saved_on_damage(coordinator.snapshot):
            outcome: Outcome = client.sync(coordinator.run)
    except WorkersLostError as error:
        note(str(error))
        outcome = Outcome.LOST
    coordinator.history.row(coordinator.row())
    return outcome


def check_options(options: SolveOptions, run: RunOptions) -> None:
    """Refuse what several workers do not do.

    Raises
    ------
    OptionsError : discount 1, exact priorities or a trace is asked for.
    """
    if run.trace is not None:
        raise OptionsError(
            "a trace is of one process: leave out --trace, or --workers and --scheduler (in Python client, workers and "
            "scheduler)"
        )
    if options.discount == 1:
        raise OptionsError("discount 1 is solved on one machine only; leave --workers and --scheduler out")
    if options.exact_priorities:
        raise OptionsError("exact priorities recompute those of all dependents, on one machine only")


def _check_stageable(table: TableSource, stage: Path) -> None:
    """Refuse to stage what is not read from disk, and to stage inside a store."""
    if not isinstance(table, Store):
        raise OptionsError(
            f"the partitions of {table.name} are computed, not read from disk: there is nothing to stage; leave out "
            f"--stage (in Python stage)"
        )
    check_not_inside_store(stage / table.fingerprint)


def _beginning(store: TableSource, output: Output) -> StartingPoint:
    """What a run that was stopped knew, with its history; nothing where it left no checkpoint."""
    history = HistoryRecorder(np.zeros(store.n_partitions, np.int64))
    nothing = ValueSnapshot.first(store.n_states, store.n_partitions)
    saved = output.checkpoint(nothing.arrays(store.partition_ptr), OPTIONAL_ARRAYS, table=store)
    if saved is None or output.path is None:
        return StartingPoint(nothing, history)
    history.restore(saved.arrays, checkpoint_path(output.path))
    return StartingPoint(ValueSnapshot.from_arrays(saved.arrays), history, saved.statistics)


def _placement(model: ModelFacts, asked: ClusterOptions, note: Callable[[str], None]) -> tuple[Placement, bool]:
    """How partitions are placed, and whether one worker has all of them until it is lost."""
    everywhere = model.densely_coupled
    placement = parse_placement(asked.placement, everywhere)
    alone = isinstance(placement, SingleOwner) and not asked.rebalance
    if everywhere:
        note(
            "partitions read most of the others: what one worker does to such a table at once, several do step by "
            "step, and slower; "
            + (
                "one has all partitions, the others stand by"
                if alone
                else "--placement single leaves it to one of them"
            )
        )
    return placement, alone


def _way(model: ModelFacts, options: SolveOptions, workers: int, on_cpu: bool) -> MethodName:
    """The method, chosen where it is left open, for so many workers that share the partitions.

    Policy iteration saves loads; where the caches of all workers hold the table, it only evaluates anew with each
    message (a double pendulum of 64^4 states on four GPUs: p-eva 1.7 s, policy iteration not done in 15 s). Where
    partitions read most of the others, one worker does as one process would.
    """
    if options.way != "auto":
        return options.way
    if model.densely_coupled:
        rows = workers == 1 and not on_cpu and options.device_memory is None
        return "policy-iteration" if rows else "p-eva"
    whole, largest = model.table_bytes, model.largest_table_bytes
    fits = options.device_memory is None and workers * options.cache_size.resolve(whole, largest) >= whole
    return "policy-iteration" if model.strongly_coupled and not fits else "p-eva"


def _solvers(
    store: TableSource,
    options: SolveOptions,
    hosts: list[WorkerInfo],
    devices: DeviceAssignment,
    asked: ClusterOptions,
    alone: bool,
) -> Callable[[int, WorkerInfo], WorkerOptions]:
    """What the solver of a number is asked, on a worker."""
    source = StoreLocation(str(store.path.resolve()), store.fingerprint) if isinstance(store, Store) else store
    machines = [host.name for host in hosts]

    def prepare(number: int, host: WorkerInfo) -> WorkerOptions:
        sharing = 1 if alone else max(1, machines.count(host.name))
        threads = asked.threads or max(1, host.cores // sharing)
        own = replace(options, device=devices.of(host))
        return WorkerOptions(number, source, own, threads, lease=4 * asked.worker_timeout)

    return prepare


def _figures(solvers: Membership, owner: npt.NDArray[np.int32], link: DaskTransport) -> list[WorkerStatistics]:
    """What each worker did."""
    figures = []
    for k, member in solvers.of.items():
        status = member.status
        figures.append(
            WorkerStatistics(
                worker=k,
                host=link.hosts[k].name,
                device=link.devices[k],
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
    return figures


def _end_of(
    coordinator: Coordinator,
    options: SolveOptions,
    solvers: Membership,
    link: DaskTransport,
    placed: str,
    outcome: Outcome,
) -> FinalState:
    """What the coordinator knows when the solve is over, and what each worker did."""
    known = coordinator.known
    workers = _figures(solvers, coordinator.ownership.owner, link)
    plans = [] if outcome is Outcome.LOST else link.finish(solvers.alive())
    if known.bounds is None:
        coordinator.bounds.invalidate()
    statistics = coordinator.statistics()
    statistics.workers = workers
    return FinalState(
        method=f"{method_name(options)}, {len(workers)} workers, {placed}",
        device=" + ".join(sorted({w.device for w in workers})),
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
