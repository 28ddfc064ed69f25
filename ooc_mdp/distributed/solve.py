"""`solve_distributed`: a solve over the workers of a Dask cluster, from the options to the result on disk."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from distributed import Client

from ooc_mdp.distributed.clock import Clock
from ooc_mdp.distributed.cluster import (
    DaskLink,
    Devices,
    Host,
    connect,
    local_cluster,
    make_ready,
    use_devices,
)
from ooc_mdp.distributed.coordinator import Coordinator
from ooc_mdp.distributed.known import Known
from ooc_mdp.distributed.members import Member, Members, SolversLostError
from ooc_mdp.distributed.placement import Alone, Placement, facts_of, parse_placement
from ooc_mdp.distributed.solver import SolverOptions, StoreAt
from ooc_mdp.errors import ClusterError, OptionsError
from ooc_mdp.events import SolveWatcher
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.solution import Outcome, Solution, SolveStatistics, WorkerStatistics
from ooc_mdp.model.table_source import TableSource
from ooc_mdp.options import DEFAULT_PLACEMENT, ClusterOptions, SolveOptions
from ooc_mdp.runtime.memory_plan import MemoryPlan
from ooc_mdp.runtime.signals import signals
from ooc_mdp.solver.certificate import conclude, method_name, turn_signs
from ooc_mdp.solver.history import HistoryRecorder
from ooc_mdp.solver.resume import finished_before
from ooc_mdp.store import Store
from ooc_mdp.store.checkpoint import (
    check_arrays,
    checkpoint_on_damage,
    checkpoint_path,
    load_checkpoint,
    remove_checkpoint,
    save_checkpoint,
    saved_unless_written,
)
from ooc_mdp.store.output_lock import locked_output, refuse_busy
from ooc_mdp.store.result import check_output, write_result

__all__ = ["solve_distributed", "solve_on_cluster"]


def solve_on_cluster(
    store: TableSource, options: SolveOptions, asked: ClusterOptions, client: Client | None = None, **how: Any
) -> Solution:
    """:func:`solve_distributed` on the client's cluster, the scheduler's, or one of this machine, as asked."""
    parse_placement(asked.first_placement)
    if how.get("output") is not None:
        refuse_busy(how["output"])  # before workers are started
    if client is not None:
        if client.asynchronous:
            raise OptionsError("the solve waits for its end: give a client that is not asynchronous")
        if client.status not in ("running", "connecting"):
            raise ClusterError(f"the client is {client.status}; give one that is connected to its scheduler")
        return solve_distributed(store, options, client, asked, **how)
    if asked.scheduler is not None:
        with connect(asked.scheduler) as there:
            return solve_distributed(store, options, there, asked, **how)
    with local_cluster(asked.workers or 1, use_devices(options.device, asked.workers or 1)) as here:
        return solve_distributed(store, options, here, asked, **how)


def solve_distributed(
    store: TableSource,
    options: SolveOptions,
    client: Client,
    asked: ClusterOptions | None = None,
    *,
    output: Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    watch: SolveWatcher | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> Solution:
    """Solve the MDP of a store on the workers of a cluster, to the same proved error as on one machine.

    Parameters
    ----------
    store : open source of tables; workers open the same path, or recompute the same problem.
    options : as for :func:`ooc_mdp.solver.local.solve`; cache and device memory are those of each worker.
    client : of the cluster; workers that come later take part from then on.
    asked : placement of partitions and what counts as a lost worker.
    output, resume, overwrite, watch, note : as for one machine.

    Raises
    ------
    OptionsError, StoreError, MemoryBudgetError : as on one machine, wherever they occur.
    BusyError : before any work, where another process writes the output or reads what is there.
    ClusterError : workers are missing or do not fit together.
    """
    asked = asked or ClusterOptions()
    _check(options)
    model = ModelFacts.of(store, options.discount)
    with store.hold(), locked_output(output, partial(check_output, replace=resume or overwrite)):
        return _solve(
            store,
            model,
            options,
            client,
            asked,
            output=output,
            resume=resume,
            overwrite=overwrite,
            watch=watch,
            note=note,
        )


def _solve(
    store: TableSource,
    model: ModelFacts,
    options: SolveOptions,
    client: Client,
    asked: ClusterOptions,
    *,
    output: Path | None,
    resume: bool,
    overwrite: bool,
    watch: SolveWatcher | None,
    note: Callable[[str], None],
) -> Solution:
    """:func:`solve_distributed` with the output checked and locked."""
    identity = {"fingerprint": store.fingerprint, "sense": store.sense, "discount": options.discount}
    history = HistoryRecorder(np.zeros(store.n_partitions, np.int64))
    left = _left_by_earlier_run(store, checkpoint_path(output), identity, history, note) if resume and output else None
    if resume and output is not None and left is None:
        finished = finished_before(output, identity, options, note)
        if finished is not None:
            return finished
    known, earlier = left or (_first_values(store), SolveStatistics())
    placement, alone = _placement(model, asked, note)
    hosts = make_ready(client)
    devices = Devices(options.device, hosts)
    on_cpu = all(devices.of(host) == "cpu" for host in hosts)
    options = replace(options, method=_way(model, options, 1 if alone else len(hosts), on_cpu))
    prepare = _solvers(store, options, hosts, devices, asked, alone)
    link = DaskLink(client, uuid.uuid4().hex[:12], prepare, devices.give_back)
    solvers = Members(link, {k: Member(host.address) for k, host in enumerate(hosts)}, asked.patience, note)
    facts = facts_of(store)
    owner = placement.place(facts, np.array([m.share for m in solvers.of.values()]))
    save = None if output is None else partial(_save, checkpoint_path(output), identity, store, history)
    with ExitStack() as stack:
        interrupted = stack.enter_context(signals())
        link.start(hosts)
        coordinator = Coordinator(
            store,
            options,
            solvers,
            owner,
            facts,
            known,
            from_start=left is None,
            copy_interval=options.checkpoint_interval,
            save=save,
            clock=Clock(options.time_limit, interrupted, earlier.seconds),
            watch=watch,
            note=note,
            moves=asked.moves,
            spreads=not alone,
            history=history,
            earlier=earlier,
        )

        def last_save() -> Callable[[], None] | None:
            """What writes the last copies of the values as a checkpoint; None where there are none, or no output."""
            if save is None or not known.copied.any():
                return None
            return partial(save, known, coordinator.statistics())

        try:
            with checkpoint_on_damage(last_save):
                outcome = client.sync(coordinator.lead)
        except SolversLostError as error:
            note(str(error))
            outcome = Outcome.LOST
        history.row(coordinator.row())
        keep = last_save()
        if keep is not None and not outcome.proved:
            keep()
        workers = _figures(solvers, coordinator.ownership.owner, link)
        plans = [] if outcome is Outcome.LOST else link.finish(solvers.alive())
        placed = placement.name if asked.placement == DEFAULT_PLACEMENT else asked.placement
        solution = _solution(store, options, coordinator, outcome, workers, plans, placed)
        if output is not None and outcome.proved:
            keep = None if save is None else partial(save, known, solution.statistics)
            with saved_unless_written(keep, lambda: turn_signs(known.values) if store.sense == "min" else None):
                write_result(output, store, solution, identity, replace=resume or overwrite)
            remove_checkpoint(checkpoint_path(output))
    return solution


def _check(options: SolveOptions) -> None:
    if options.discount == 1:
        raise OptionsError("discount 1 is solved on one machine only; leave --workers and --scheduler out")
    if options.exact_priorities:
        raise OptionsError("exact priorities recompute those of all dependents, on one machine only")


def _left_by_earlier_run(
    store: TableSource,
    checkpoint: Path,
    identity: dict[str, Any],
    history: HistoryRecorder,
    note: Callable[[str], None],
) -> tuple[Known, SolveStatistics] | None:
    """What a run that was stopped knew, and its counters; None where it left no checkpoint. Its history goes on."""
    saved = load_checkpoint(checkpoint, identity)
    if saved is None:
        return None
    arrays, statistics = saved
    check_arrays(checkpoint, arrays, _state(store, _first_values(store)), optional=frozenset({"inflow"}))
    note(f"going on from the checkpoint {checkpoint}, after {statistics.seconds:.1f} s of work")
    history.restore(arrays, checkpoint)
    return _known_from(arrays), statistics


def _placement(model: ModelFacts, asked: ClusterOptions, note: Callable[[str], None]) -> tuple[Placement, bool]:
    """How partitions are placed, and whether one worker has all of them until it is lost."""
    everywhere = model.densely_coupled
    placement = parse_placement(asked.first_placement, everywhere)
    alone = isinstance(placement, Alone) and not asked.moves
    if everywhere:
        note(
            "partitions read most of the others: what one worker does to such a table at once, several do step by "
            "step, and slower; "
            + ("one has all partitions, the others stand by" if alone else "--placement alone leaves it to one of them")
        )
    return placement, alone


def _way(
    model: ModelFacts, options: SolveOptions, workers: int, on_cpu: bool
) -> Literal["p-eva", "vi", "policy-iteration"]:
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


def _first_values(store: TableSource) -> Known:
    n, p = store.n_states, store.n_partitions
    # Nobody touches these pages before something is copied there; a policy that nobody has chosen is not looked at.
    return Known(np.zeros(n), np.zeros(n, np.int32), np.zeros(p, np.bool_), np.zeros(p, np.bool_))


def _state(store: TableSource, known: Known) -> dict[str, np.ndarray[Any, Any]]:
    """What a checkpoint holds; bounds are infinite where values are of different times."""
    p = known.visited.size
    bounds = np.full((4, p), np.inf) if known.bounds is None else known.bounds
    names = ("rise", "fall", "plain_rise", "plain_fall")
    policy = known.policy
    if not known.visited.all():
        policy = np.where(np.repeat(known.visited, np.diff(store.partition_ptr)), policy, np.int32(-1))
    return {
        "values": known.values,
        "policy": policy,
        "visited": known.visited,
        "value_size": np.array(known.value_size),
        **dict(zip(names, bounds, strict=True)),
    }


def _save(
    checkpoint: Path,
    identity: dict[str, Any],
    store: TableSource,
    history: HistoryRecorder,
    known: Known,
    statistics: SolveStatistics,
) -> None:
    save_checkpoint(checkpoint, identity, {**_state(store, known), **history.arrays()}, statistics)


def _known_from(arrays: dict[str, np.ndarray[Any, Any]]) -> Known:
    visited = arrays["visited"]
    bounds = np.stack([arrays[name] for name in ("rise", "fall", "plain_rise", "plain_fall")])
    return Known(
        arrays["values"],
        arrays["policy"],
        visited,
        np.ones(visited.size, np.bool_),
        bounds,
        float(arrays["value_size"]),
    )


def _solvers(
    store: TableSource,
    options: SolveOptions,
    hosts: list[Host],
    devices: Devices,
    asked: ClusterOptions,
    alone: bool,
) -> Callable[[int, Host], SolverOptions]:
    """What the solver of a number is asked, on a worker."""
    source = StoreAt(str(store.path.resolve()), store.fingerprint) if isinstance(store, Store) else store
    machines = [host.name for host in hosts]

    def prepare(number: int, host: Host) -> SolverOptions:
        sharing = 1 if alone else max(1, machines.count(host.name))
        threads = asked.threads or max(1, host.cores // sharing)
        own = replace(options, device=devices.of(host), time_limit=None)
        return SolverOptions(number, source, own, threads, lease=4 * asked.patience)

    return prepare


def _figures(solvers: Members, owner: npt.NDArray[np.int32], link: DaskLink) -> list[WorkerStatistics]:
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
            )
        )
    return figures


def _solution(
    store: TableSource,
    options: SolveOptions,
    coordinator: Coordinator,
    outcome: Outcome,
    workers: list[WorkerStatistics],
    plans: list[MemoryPlan],
    placed: str,
) -> Solution:
    """What the coordinator knows; its values are the solution's from now on."""
    known = coordinator.known
    if known.bounds is None:
        coordinator.bounds.invalidate()
    statistics = coordinator.statistics()
    statistics.workers = workers
    largest = max(plans, key=lambda plan: sum(plan.host.values()), default=MemoryPlan({}, {}))
    return conclude(
        store,
        options,
        outcome,
        method=f"{method_name(options)}, {len(workers)} workers, {placed}",
        device=" + ".join(sorted({w.device for w in workers})),
        bounds=coordinator.bounds,
        target=coordinator.target,
        value_size=known.value_size,
        values=known.values,
        policy=known.policy,
        visited=known.visited,
        statistics=statistics,
        plan=largest,
        history=coordinator.history,
        resident=coordinator.resident(),
    )
