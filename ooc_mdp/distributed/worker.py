"""The loop of one worker: it owns partitions, sweeps the best of them by itself, and exchanges boundary values.

    solver's thread  method (p-eva, vi, policy iteration) ─ between accesses: apply updates ─▶ bounds; publish changes
    event loop       Mailbox ◀─ updates, commands        peers ◀─ one message in flight to each, with newest values

Values of other workers' partitions are those of the last update received. The bounds R[p] refer to these values; an
update raises them by its effect (`SolveState.apply_remote`), like visits of the worker itself. So at any time R[p]
bounds the residual of p at the values that this worker sees, and once no update is in flight all workers see the same
values (docs/theory/several-solvers.md has the argument). `shard.py` holds what the worker owns, reads and sends.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.compiling import note_compiling
from ooc_mdp.backends.select import select_backend
from ooc_mdp.distributed.mailbox import Mailbox, Request
from ooc_mdp.distributed.messages import (
    Assignment,
    MigrateRequest,
    Pause,
    SnapshotRequest,
    StagingCounts,
    Start,
    Status,
    Stop,
    Update,
    ValueRange,
)
from ooc_mdp.distributed.shard import Shard
from ooc_mdp.distributed.staging import NodeStaging
from ooc_mdp.distributed.subscriptions import Send
from ooc_mdp.errors import StoreError
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.solution import Outcome
from ooc_mdp.model.table import Table
from ooc_mdp.options import SolveOptions
from ooc_mdp.runtime.memory import keep_freed_buffers
from ooc_mdp.runtime.memory_plan import MemoryPlan
from ooc_mdp.scheduling.stager import short_switch_interval
from ooc_mdp.solver.driver import Steps, drive
from ooc_mdp.solver.local import METHODS
from ooc_mdp.solver.peers import Signal
from ooc_mdp.solver.plan import load_code, plan_solve
from ooc_mdp.solver.session import Clock
from ooc_mdp.solver.start import start
from ooc_mdp.solver.state import SolveState
from ooc_mdp.store.reward_store import open_table

if TYPE_CHECKING:
    from ooc_mdp.store import Store

__all__ = ["StoreLocation", "WorkerOptions", "run_worker"]

_REPORT_SECONDS = 0.1
"""Between two statuses of a worker that sweeps."""


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """A store that every worker opens itself."""

    path: str
    """The same on all machines."""
    fingerprint: str

    def open(self) -> Table:
        """Open the store; raises StoreError where this machine has none at the path, or another one."""
        here = socket.gethostname()
        try:
            store = open_table(self.path)
        except StoreError as error:
            raise StoreError(f"on {here}: {error}; every worker needs the store, under the same path") from error
        if store.fingerprint != self.fingerprint:
            raise StoreError(
                f"on {here} {self.path} is another table than where the solve began (their fingerprints differ); "
                f"give all machines the same store"
            )
        return store

    def open_store(self) -> Store:
        """Open a store that is staged, which `ooc_mdp.distributed.solve` has found to have chunks of its own."""
        return cast("Store", self.open())


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """What one worker solves, and how."""

    number: int
    source: Table | StoreLocation
    options: SolveOptions
    """Their method is not "auto"."""
    threads: int | None = None
    """Threads that sweep on the CPU; None for all cores."""
    lease: float = 60.0
    """Seconds without a request from the coordinator after which the worker ends."""


class _SolveEnded(Exception):
    """The coordinator has stopped the solve, or the others continue without this worker."""


def run_worker(
    asked: WorkerOptions,
    mailbox: Mailbox,
    send: Send,
    on_plan: Callable[[MemoryPlan], None] = lambda _: None,
    staging: NodeStaging | None = None,
) -> str:
    """Solve the partitions that assignments give to this worker, until the coordinator stops it; on its own thread.

    Parameters
    ----------
    on_plan : receives the memory plan.
    staging : where copies of the store's partitions lie on this node.

    Returns
    -------
    The reason for its end, in a few words.

    Raises
    ------
    OptionsError, StoreError, MemoryBudgetError : as for a solve on one machine.
    """
    mailbox.mark("started")
    source, counts = asked.source, StagingCounts()
    if isinstance(source, StoreLocation):
        source = source.open() if staging is None else staging.over(source.open_store())
        counts = counts if staging is None else staging.counts
    options = asked.options
    with ExitStack() as stack:
        stack.enter_context(source.hold())
        backend = select_backend(options.device, options.sweep_order, options.kernel, asked.threads, options.stopping)
        stack.callback(backend.close)
        model = ModelFacts.of(source.facts, options.discount)
        keep_freed_buffers()
        peers = NetworkPeers(asked, mailbox, np.zeros(source.n_partitions, np.bool_), counts)
        with note_compiling(lambda _: mailbox.mark("compiling")):
            load_code(source, backend, model, options, writes=False)
            plan = plan_solve(source, options, backend, model, writes=False)
            on_plan(plan.memory)
            state = start(source, plan, backend, stack, peers)
        mailbox.mark("ready")
        peers.attach(state, send)
        with short_switch_interval(backend.features.overlaps_loads):
            return peers.work(state)


class NetworkPeers:
    """The other workers, over the network; used by the solver's thread.

    Parameters
    ----------
    owned : bool [P]; partitions that this worker may sweep.
    staging : counts of what is staged and loaded, to be published.
    """

    def __init__(
        self, asked: WorkerOptions, mailbox: Mailbox, owned: npt.NDArray[np.bool_], staging: StagingCounts
    ) -> None:
        self._asked, self._mailbox, self._staging = asked, mailbox, staging
        self.owned = owned
        self._paused = self._restart = True
        """Whether sweeps are paused; whether the method restarts before the next one."""
        self._outcome: str | None = None
        """Why the solver stopped by itself; it continues with the next assignment."""
        self._last_messages: dict[int, int] = {}
        """Number of the last message of each peer."""
        self._last_command = 0
        """Number of the last command that was executed."""
        self._idle = 0.0
        self._published = 0.0
        self._clock = Clock()

    def attach(self, state: SolveState, send: Send) -> None:
        """Attach the state of this worker's solve."""
        self._state = state
        self._shard = Shard(self._asked.number, state, self.owned, send, self._mailbox.wake)
        state.visited[:] = False
        state.history.interval = np.inf  # the coordinator records rows
        state.seconds = self._clock.seconds

    @property
    def count(self) -> int:
        """Workers that own partitions by the last assignment."""
        return self._shard.owners

    def boundary_changed(self, partitions: IntArray) -> None:
        """Mark partitions whose newest values are sent to their subscribers before the next step."""
        self._shard.changed[partitions] = True

    def take_rises(self) -> FloatArray | None:
        """Return how far received values have risen since the last call."""
        return self._shard.take_rises()

    def work(self, state: SolveState) -> str:
        """Run the solve to its end; return the reason for it."""
        choice = state.plan.choice

        def method(s: SolveState) -> Steps:
            return METHODS[choice.first if s.alone else choice.shared](s)

        try:
            while True:
                self._outcome = drive(state, method, self).value
                self._restart = True
        except _SolveEnded as end:
            return str(end)

    def before_step(self, state: SolveState) -> Signal:
        """Exchange messages; wait while paused or without a dirty partition: only the coordinator ends a solve."""
        state.finish()
        while True:
            self.exchange()
            if not self._paused and self._outcome is None:
                if self._restart or self._shard.restart_method:
                    self._restart = self._shard.restart_method = False
                    return Signal.RESTART
                if not state.target.reached():
                    return Signal.GO
                self.wait_until_dirty()
            else:
                self._wait()

    def wait_until_dirty(self) -> None:
        """Wait for a message while no own partition is dirty."""
        self._wait()

    def after_step(self, state: SolveState) -> Outcome | None:
        """Return None: only the coordinator knows of limits and signals."""
        return None

    def exchange(self) -> None:
        """Apply messages, send changes, and publish the status if it is due."""
        self.process_messages()
        self._shard.publish_changes()
        now = time.monotonic()
        if now - self._published >= _REPORT_SECONDS:
            self._publish(now)

    def _wait(self) -> None:
        self._publish(time.monotonic())
        began = time.monotonic()
        delay = self._shard.send_queue.next_send_in(began)
        timeout = self._asked.lease / 2 if delay is None else max(delay, 0.01)
        self._mailbox.wait(self._shard.is_quiescent, timeout)
        self._idle += time.monotonic() - began

    def _publish(self, now: float) -> None:
        run = self._state
        self._published = now
        statistics = run.statistics()
        owned = self._shard.owned_mask()
        dirty = run.target.dirty()
        levels, plain = run.bounds.normalised()[self.owned], run.bounds.plain()[self.owned]
        pending = bool(self._shard.pending) or self._shard.assignment.epoch < 0
        unknown = 0.0 if run.bounds.measured[self.owned].all() and not pending else np.inf
        self._mailbox.publish(
            Status(
                paused=self._paused,
                epoch=self._shard.assignment.epoch,
                pending=pending,
                dirty=int(dirty.sum()) + len(self._shard.pending),
                absent_dirty=int((dirty & ~run.cache.present).sum()),
                resident=int(np.count_nonzero(run.cache.present)),
                error_bound=float(levels.max(initial=unknown)) + run.bounds.rounding(run.value_size),
                residual_bound=float(plain.max(initial=unknown)),
                smallest=float(run.smallest[owned].min(initial=np.inf)),
                largest=float(run.largest[owned].max(initial=-np.inf)),
                size=run.value_size,
                outcome=self._outcome,
                statistics=statistics,
                idle_seconds=self._idle,
                messages=self._shard.send_queue.sent,
                bytes_sent=self._shard.send_queue.bytes_sent,
                staging=self._staging,
            ),
            urgent=self._outcome is not None,
        )

    def process_messages(self) -> None:
        """Apply the messages of peers, and execute commands of the coordinator."""
        if self._mailbox.evicted:
            raise _SolveEnded("the others continue without it")
        if self._mailbox.lease_expired(self._asked.lease):
            raise _SolveEnded("the coordinator has sent no request")
        for message in self._mailbox.take():
            if isinstance(message, Request):
                self._execute(message)
            elif message.sender not in self._shard.removed_peers and message.number > self._last_messages.get(
                message.sender, 0
            ):
                self._last_messages[message.sender] = message.number
                if isinstance(message, Update):
                    self._shard.apply_update(message)
                else:
                    self._shard.add_subscriber(message)

    def _execute(self, request: Request) -> None:
        command = request.command
        answer: object = None
        if request.number <= self._last_command:  # it arrives late, or again
            request.answer.set_result(None)
            return
        self._last_command = request.number
        try:
            if isinstance(command, Assignment):
                self._shard.apply_assignment(command)
                self._outcome = None
            elif isinstance(command, ValueRange):
                self._shard.set_value_range(command)
            elif isinstance(command, Start):
                self._paused = False
                self._clock.restart(command.seconds)
            elif isinstance(command, Pause):
                self._paused = self._restart = True
            elif isinstance(command, MigrateRequest):
                answer = self._shard.migrate(command)
            elif isinstance(command, SnapshotRequest):
                answer = self._shard.snapshot(np.flatnonzero(self._shard.owned_mask()), bounds=True)
            elif isinstance(command, Stop):
                request.answer.set_result(None)
                raise _SolveEnded("done")
        except _SolveEnded:
            raise
        except BaseException as error:
            request.answer.set_exception(error)
            raise
        request.answer.set_result(answer)
