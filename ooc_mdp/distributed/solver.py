"""One solver of several: it owns partitions, works on the best of them on its own, and exchanges boundary values.

    own thread     method (p-eva, vi, policy iteration) ─ between accesses: take in ─▶ bounds; pass on ◀─ what moved
    event loop     Mailbox ◀─ others' updates, commands       peers ◀─ one message at a time to each, the newest values

Values that a solver reads and another owns are as it was last told. Its bounds R[p] are about those: told of others, it
raises them by what these mean (`Run.heard`), as it does after visits of its own. So at any time R[p] bounds the
residual of p at the values that its solver sees, and once nothing is on its way all see the same (docs/distributed.md
has the argument). Here is the loop; what the solver owns, reads and tells is `share.py`'s.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.base import ExchangesValues, SlotsTooSmall
from ooc_mdp.backends.compiling import told_of_compiling
from ooc_mdp.backends.select import select_backend
from ooc_mdp.distributed.mailbox import Mailbox, Request
from ooc_mdp.distributed.messages import (
    Assignment,
    End,
    Go,
    Halt,
    Release,
    Report,
    Span,
    Status,
    Update,
)
from ooc_mdp.distributed.outbox import Send
from ooc_mdp.distributed.share import Share
from ooc_mdp.errors import OptionsError, StoreError
from ooc_mdp.model.table_source import TableSource
from ooc_mdp.options import SolveOptions
from ooc_mdp.runtime.memory import give_memory_back
from ooc_mdp.runtime.memory_plan import MemoryPlan
from ooc_mdp.scheduling.stager import short_turns
from ooc_mdp.solver.methods.p_eva import p_eva
from ooc_mdp.solver.methods.policy_iteration import policy_iteration
from ooc_mdp.solver.methods.value_iteration import value_iteration
from ooc_mdp.solver.plan import model_of, plan_memory, warm_up
from ooc_mdp.solver.run import Run
from ooc_mdp.solver.session import StoppedEarly
from ooc_mdp.solver.start import lay_out_again, start_run
from ooc_mdp.store import open_store

__all__ = ["SolverOptions", "StoreAt", "solve_share"]

_METHODS: dict[str, Callable[[Run], None]] = {
    "p-eva": p_eva,
    "vi": value_iteration,
    "policy-iteration": policy_iteration,
}
_REPORT_SECONDS = 0.1
"""Between two statuses of a solver that is at work."""
_HALO_THREADS = 4


@dataclass(frozen=True, slots=True)
class StoreAt:
    """A store that every machine opens for itself."""

    path: str
    """The same on all of them."""
    fingerprint: str

    def open(self) -> TableSource:
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
class SolverOptions:
    """What one solver is asked."""

    number: int
    source: TableSource | StoreAt
    options: SolveOptions
    """With a method of its own, no "auto"."""
    threads: int | None = None
    """That sweep on the CPU; None for all cores."""
    lease: float = 60.0
    """Seconds without a word from the coordinator after which the solver gives up."""


class _Ended(Exception):
    """The coordinator says that it is over, or nobody needs this solver any longer."""


class _Halted(Exception):
    """Leave the method; go on exchanging."""


def solve_share(
    asked: SolverOptions, mailbox: Mailbox, send: Send, announce: Callable[[MemoryPlan], None] = lambda _: None
) -> str:
    """Solve the partitions that assignments give to this solver, until the coordinator ends it; on its own thread.

    Returns
    -------
    Why it ended, in a few words.

    Raises
    ------
    OptionsError, StoreError, MemoryBudgetError : as for a solve on one machine.
    """
    mailbox.begin()
    source = asked.source.open() if isinstance(asked.source, StoreAt) else asked.source
    options = asked.options
    with ExitStack() as stack:
        stack.enter_context(source.hold())
        backend = select_backend(options.device, options.sweep_order, options.kernel, asked.threads)
        stack.callback(backend.close)
        if not isinstance(backend, ExchangesValues):
            raise OptionsError(
                f"--kernel {options.kernel} solves on one device only; leave --kernel out to solve on several"
            )
        model = model_of(source, options)
        give_memory_back()
        owned = np.zeros(source.n_partitions, np.bool_)
        with told_of_compiling(lambda _: mailbox.compiles()):
            warm_up(source, options, backend, model, writes=False)
            announce(plan_memory(source, options, backend, model, writes=False))
            run = start_run(source, options, backend, model, stack, owned)
        mailbox.ready()
        solver = _Solver(asked, mailbox, send, run, backend, owned)
        run.exchange, run.rest = solver.exchange, solver.rest
        with short_turns(backend.loads_beside):
            return solver.work()


class _Solver:
    """The state of a share of a solve; one thread owns it."""

    def __init__(
        self,
        asked: SolverOptions,
        mailbox: Mailbox,
        send: Send,
        run: Run,
        backend: ExchangesValues,
        owned: npt.NDArray[np.bool_],
    ) -> None:
        self._asked, self._mailbox, self._run = asked, mailbox, run
        self._owned = owned
        self._share = Share(asked.number, run, backend, owned, send, mailbox.wake)
        self._halted = True
        self._outcome: str | None = None
        self._newest: dict[int, int] = {}
        """Number of the last message of each other solver."""
        self._obeyed = 0
        """Number of the last command."""
        self._idle = 0.0
        self._published = 0.0
        run.visited[:] = False
        run.history.interval = np.inf  # the coordinator records rows

    def work(self) -> str:
        """Take part until the end."""
        method = _METHODS[self._run.options.way]
        try:
            while True:
                try:
                    self._pause()
                    method(self._run)
                except _Halted:
                    continue
                except StoppedEarly as stop:
                    self._outcome, self._halted = stop.outcome.word, True
                except SlotsTooSmall:
                    lay_out_again(self._run)
        except _Ended as end:
            return str(end)

    def _pause(self) -> None:
        """While halted: exchange, and wait."""
        while True:
            self._take_in()
            self._share.pass_on()
            self._share.leave = False
            if not self._halted:
                return
            self._wait()

    def exchange(self) -> None:
        """Between two accesses of the method."""
        self._take_in()
        self._share.pass_on()
        if self._halted or self._share.leave:
            raise _Halted
        now = time.monotonic()
        if now - self._published >= _REPORT_SECONDS:
            self._publish(now)

    def rest(self) -> bool:
        """Nothing of ours is dirty: wait until something is (False). Never True: only the coordinator ends a solve."""
        while True:
            self.exchange()
            if not self._run.target.reached():
                return False
            self._wait()

    def _wait(self) -> None:
        self._publish(time.monotonic())
        began = time.monotonic()
        pause = self._share.outbox.pause(began)
        timeout = self._asked.lease / 2 if pause is None else max(pause, 0.01)
        self._mailbox.rest(self._share.quiet, timeout)
        self._idle += time.monotonic() - began

    def _publish(self, now: float) -> None:
        run = self._run
        self._published = now
        run.collect()
        mine = self._share.mine()
        dirty = run.target.dirty()
        levels, plain = run.bounds.normalised()[self._owned], run.bounds.plain()[self._owned]
        joining = bool(self._share.joining) or self._share.assignment.epoch < 0
        unknown = np.inf if joining else 0.0
        self._mailbox.publish(
            Status(
                halted=self._halted,
                epoch=self._share.assignment.epoch,
                joining=joining,
                dirty=int(dirty.sum()) + len(self._share.joining),
                absent_dirty=int((dirty & ~run.cache.present).sum()),
                resident=int(np.count_nonzero(run.cache.present)),
                error_bound=float(levels.max(initial=unknown)) + run.bounds.rounding(run.value_size),
                residual_bound=float(plain.max(initial=unknown)),
                smallest=float(run.smallest[mine].min(initial=np.inf)),
                largest=float(run.largest[mine].max(initial=-np.inf)),
                size=run.value_size,
                outcome=self._outcome,
                statistics=run.statistics,
                idle_seconds=self._idle,
                messages=self._share.outbox.sent,
                bytes_sent=self._share.outbox.bytes_sent,
            ),
            urgent=self._outcome is not None,
        )

    def _take_in(self) -> None:
        if self._mailbox.expelled:
            raise _Ended("the others have gone on without it")
        if self._mailbox.abandoned(self._asked.lease):
            raise _Ended("the coordinator has not been heard of")
        for message in self._mailbox.take():
            if isinstance(message, Request):
                self._obey(message)
            elif message.sender not in self._share.gone and message.number > self._newest.get(message.sender, 0):
                self._newest[message.sender] = message.number
                if isinstance(message, Update):
                    self._share.hear(message)
                else:
                    self._share.note_reader(message)

    def _obey(self, request: Request) -> None:
        command = request.command
        answer: object = None
        if request.number <= self._obeyed:  # it comes late, or again
            request.answer.set_result(None)
            return
        self._obeyed = request.number
        try:
            if isinstance(command, Assignment):
                self._share.take_over(command)
                self._outcome = None
            elif isinstance(command, Span):
                self._share.see(command)
            elif isinstance(command, Go):
                self._halted = False
                self._run.pauses.begin(command.seconds)
            elif isinstance(command, Halt):
                self._halted = True
            elif isinstance(command, Release):
                answer = self._share.release(command)
            elif isinstance(command, Report):
                answer = self._share.values_of(np.flatnonzero(self._share.mine()), bounds=True)
            elif isinstance(command, End):
                request.answer.set_result(None)
                raise _Ended("done")
        except _Ended:
            raise
        except BaseException as error:
            request.answer.set_exception(error)
            raise
        request.answer.set_result(answer)
