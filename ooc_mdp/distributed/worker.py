"""One solver of several: it owns partitions, works on the best of them on its own, and exchanges boundary values.

    own thread     method (p-eva, vi, policy iteration) ─ between accesses: take in ─▶ bounds; pass on ◀─ what moved
    event loop     Mailbox ◀─ others' updates, commands       peers ◀─ one message at a time to each, the newest values

Values that a solver reads and another owns are those of the last update received. Its bounds R[p] refer to these
values; when an update arrives, the bounds are raised by its effect (`SolveState.apply_remote`), as after visits of
its own. So at any time R[p] bounds the residual of p at the values that its solver sees, and once no update is in
flight all solvers see the same values (docs/theory/several-solvers.md has the argument). This module is the loop;
`shard.py` holds what the solver owns, reads and sends.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

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
from ooc_mdp.model.table_source import TableSource
from ooc_mdp.options import SolveOptions
from ooc_mdp.runtime.memory import return_freed_memory
from ooc_mdp.runtime.memory_plan import MemoryPlan
from ooc_mdp.scheduling.stager import short_switch_interval
from ooc_mdp.solver.driver import Steps, drive
from ooc_mdp.solver.local import METHODS
from ooc_mdp.solver.peers import Signal
from ooc_mdp.solver.plan import load_code, plan_solve
from ooc_mdp.solver.session import Clock
from ooc_mdp.solver.start import start
from ooc_mdp.solver.state import SolveState
from ooc_mdp.store import Store, open_store

__all__ = ["StoreLocation", "WorkerOptions", "run_worker"]

_REPORT_SECONDS = 0.1
"""Between two statuses of a solver that is at work."""
_HALO_THREADS = 4


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """A store that every machine opens for itself."""

    path: str
    """The same on all of them."""
    fingerprint: str

    def open(self) -> Store:
        """Open it here; raises StoreError where this machine has none there, or another."""
        here = socket.gethostname()
        try:
            store = open_store(self.path)
        except StoreError as error:
            raise StoreError(f"on {here}: {error}; every worker needs the store, under the same path") from error
        if store.fingerprint != self.fingerprint:
            raise StoreError(
                f"on {here} {self.path} is another table than where the solve began (their fingerprints differ); "
                f"have all machines see the same store"
            )
        return store


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """What one solver is asked."""

    number: int
    source: TableSource | StoreLocation
    options: SolveOptions
    """With a method of its own, no "auto"."""
    threads: int | None = None
    """That sweep on the CPU; None for all cores."""
    lease: float = 60.0
    """Seconds without a word from the coordinator after which the solver gives up."""


class _Ended(Exception):
    """The coordinator says that it is over, or nobody needs this solver any longer."""


def run_worker(
    asked: WorkerOptions,
    mailbox: Mailbox,
    send: Send,
    announce: Callable[[MemoryPlan], None] = lambda _: None,
    staging: NodeStaging | None = None,
) -> str:
    """Solve the partitions that assignments give to this solver, until the coordinator ends it; on its own thread.

    Parameters
    ----------
    announce : receives the memory plan.
    staging : where copies of the store's partitions lie on this node.

    Returns
    -------
    Why it ended, in a few words.

    Raises
    ------
    OptionsError, StoreError, MemoryBudgetError : as for a solve on one machine.
    """
    mailbox.begin()
    source = asked.source.open() if isinstance(asked.source, StoreLocation) else asked.source
    counts = StagingCounts()
    if staging is not None and isinstance(source, Store):
        source, counts = staging.over(source), staging.counts
    options = asked.options
    with ExitStack() as stack:
        stack.enter_context(source.hold())
        backend = select_backend(options.device, options.sweep_order, options.kernel, asked.threads, options.stopping)
        stack.callback(backend.close)
        model = ModelFacts.of(source, options.discount)
        return_freed_memory()
        peers = NetworkPeers(asked, mailbox, np.zeros(source.n_partitions, np.bool_), counts)
        with note_compiling(lambda _: mailbox.compiles()):
            load_code(backend, model, options, writes=False)
            plan = plan_solve(source, options, backend, model, writes=False)
            announce(plan.memory)
            state = start(source, plan, backend, stack, peers)
        mailbox.ready()
        peers.meet(state, send)
        with short_switch_interval(backend.features.overlaps_loads):
            return peers.work(state)


class NetworkPeers:
    """The other solvers, over the network; the solver's own thread owns it.

    Parameters
    ----------
    owned : bool [P]; partitions that this solver may sweep.
    staging : counts of what is staged and loaded, to be published.
    """

    def __init__(
        self, asked: WorkerOptions, mailbox: Mailbox, owned: npt.NDArray[np.bool_], staging: StagingCounts
    ) -> None:
        self._asked, self._mailbox, self._staging = asked, mailbox, staging
        self.owned = owned
        self._halted = self._restart = True
        """Whether the coordinator wants no sweeps; whether the method begins anew before the next one."""
        self._outcome: str | None = None
        """Why it stopped by itself; it goes on with the next assignment, whether or not anybody has seen it."""
        self._newest: dict[int, int] = {}
        """Number of the last message of each other solver."""
        self._obeyed = 0
        """Number of the last command."""
        self._idle = 0.0
        self._published = 0.0
        self._clock = Clock()

    def meet(self, state: SolveState, send: Send) -> None:
        """Take part with this state."""
        self._state = state
        self._shard = Shard(self._asked.number, state, self.owned, send, self._mailbox.wake)
        state.visited[:] = False
        state.history.interval = np.inf  # the coordinator records rows
        state.seconds = self._clock.seconds

    @property
    def count(self) -> int:
        """Of the last assignment."""
        return self._shard.solvers

    def boundary_changed(self, partitions: IntArray) -> None:
        """Whoever reads them is sent their newest values before the next step."""
        self._shard.moved[partitions] = True

    def take_rises(self) -> FloatArray | None:
        """Since this was last asked."""
        return self._shard.take_rises()

    def work(self, state: SolveState) -> str:
        """Take part until the end; why it ended."""
        choice = state.plan.choice

        def method(s: SolveState) -> Steps:
            return METHODS[choice.first if s.alone else choice.shared](s)

        try:
            while True:
                self._outcome = drive(state, method, self).word
                self._restart = True
        except _Ended as end:
            return str(end)

    def before_step(self, state: SolveState) -> Signal:
        """Exchange; wait while halted, and while nothing of ours is dirty: only the coordinator ends a solve."""
        while True:
            self.exchange()
            if not self._halted and self._outcome is None:
                if self._restart or self._shard.leave:
                    self._restart = self._shard.leave = False
                    return Signal.RESTART
                if not state.target.reached():
                    return Signal.GO
                self.rest()
            else:
                self._wait()

    def rest(self) -> None:
        """Nothing of ours is dirty: wait until something has arrived."""
        self._wait()

    def after_step(self, state: SolveState) -> Outcome | None:
        """Where float64 can do no more."""
        return Outcome.PRECISION if state.target.below_rounding else None

    def exchange(self) -> None:
        """Apply what has arrived, send what has changed, and publish how things stand where that is due."""
        self.process_messages()
        self._shard.publish_changes()
        now = time.monotonic()
        if now - self._published >= _REPORT_SECONDS:
            self._publish(now)

    def _wait(self) -> None:
        self._publish(time.monotonic())
        began = time.monotonic()
        pause = self._shard.outbox.pause(began)
        timeout = self._asked.lease / 2 if pause is None else max(pause, 0.01)
        self._mailbox.rest(self._shard.quiet, timeout)
        self._idle += time.monotonic() - began

    def _publish(self, now: float) -> None:
        run = self._state
        self._published = now
        statistics = run.statistics()
        mine = self._shard.mine()
        dirty = run.target.dirty()
        levels, plain = run.bounds.normalised()[self.owned], run.bounds.plain()[self.owned]
        pending = bool(self._shard.pending) or self._shard.assignment.epoch < 0
        unknown = np.inf if pending else 0.0
        self._mailbox.publish(
            Status(
                halted=self._halted,
                epoch=self._shard.assignment.epoch,
                pending=pending,
                dirty=int(dirty.sum()) + len(self._shard.pending),
                absent_dirty=int((dirty & ~run.cache.present).sum()),
                resident=int(np.count_nonzero(run.cache.present)),
                error_bound=float(levels.max(initial=unknown)) + run.bounds.rounding(run.value_size),
                residual_bound=float(plain.max(initial=unknown)),
                smallest=float(run.smallest[mine].min(initial=np.inf)),
                largest=float(run.largest[mine].max(initial=-np.inf)),
                size=run.value_size,
                outcome=self._outcome,
                statistics=statistics,
                idle_seconds=self._idle,
                messages=self._shard.outbox.sent,
                bytes_sent=self._shard.outbox.bytes_sent,
                staging=self._staging,
            ),
            urgent=self._outcome is not None,
        )

    def process_messages(self) -> None:
        if self._mailbox.evicted:
            raise _Ended("the others have gone on without it")
        if self._mailbox.lease_expired(self._asked.lease):
            raise _Ended("the coordinator has not been heard of")
        for message in self._mailbox.take():
            if isinstance(message, Request):
                self._execute(message)
            elif message.sender not in self._shard.gone and message.number > self._newest.get(message.sender, 0):
                self._newest[message.sender] = message.number
                if isinstance(message, Update):
                    self._shard.hear(message)
                else:
                    self._shard.add_subscriber(message)

    def _execute(self, request: Request) -> None:
        command = request.command
        answer: object = None
        if request.number <= self._obeyed:  # it comes late, or again
            request.answer.set_result(None)
            return
        self._obeyed = request.number
        try:
            if isinstance(command, Assignment):
                self._shard.apply_assignment(command)
                self._outcome = None
            elif isinstance(command, ValueRange):
                self._shard.see(command)
            elif isinstance(command, Start):
                self._halted = False
                self._clock.restart(command.seconds)
            elif isinstance(command, Pause):
                self._halted = self._restart = True
            elif isinstance(command, MigrateRequest):
                answer = self._shard.release(command)
            elif isinstance(command, SnapshotRequest):
                answer = self._shard.snapshot(np.flatnonzero(self._shard.mine()), bounds=True)
            elif isinstance(command, Stop):
                request.answer.set_result(None)
                raise _Ended("done")
        except _Ended:
            raise
        except BaseException as error:
            request.answer.set_exception(error)
            raise
        request.answer.set_result(answer)
