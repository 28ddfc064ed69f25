"""One solver of several: it owns partitions, works on the best of them on its own, and exchanges boundary values.

    own thread     method (p-eva, vi, policy iteration) ─ between accesses: take in ─▶ bounds; pass on ◀─ what moved
    event loop     Mailbox ◀─ others' updates, commands       peers ◀─ one message at a time to each, the newest values

Values that a solver reads and another owns are as it was last told. Its bounds R[p] are about those: told of others, it
raises them by what these mean (`Run.heard`), as it does after visits of its own. So at any time R[p] bounds the
residual of p at the values that its solver sees, and once nothing is on its way all see the same (docs/distributed.md
has the argument). What it sends, and when, is `outbox.py`'s.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ooc_mdp.distributed.exchange import Interests, Readers, split_halo
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
    Subscribe,
    Update,
    Values,
    pieces_of,
)
from ooc_mdp.distributed.outbox import Outbox, Send
from ooc_mdp.errors import OptionsError, StoreError
from ooc_mdp.kernels.base import ExchangesValues, SlotsTooSmall
from ooc_mdp.kernels.compiling import told_of_compiling
from ooc_mdp.kernels.select import select_backend
from ooc_mdp.mdp import FloatArray, IntArray
from ooc_mdp.memory import give_memory_back
from ooc_mdp.memory_plan import MemoryPlan
from ooc_mdp.methods.p_eva import p_eva
from ooc_mdp.methods.pauses import StoppedEarly
from ooc_mdp.methods.plan import model_of, plan_memory, warm_up
from ooc_mdp.methods.policy_iteration import policy_iteration
from ooc_mdp.methods.run import Run
from ooc_mdp.methods.start import lay_out_again, start_run
from ooc_mdp.methods.value_iteration import value_iteration
from ooc_mdp.options import SolveOptions
from ooc_mdp.stager import short_turns
from ooc_mdp.store import open_store
from ooc_mdp.table_source import TableSource

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
        self._outbox = Outbox(send, mailbox.wake)
        self._values = backend
        self._owned = owned
        self._me = asked.number
        n = run.store.n_partitions
        self._assignment = Assignment(-1, np.full(n, -1, np.int32), np.full(n, -1, np.int32), {})
        self._interests, self._readers = Interests(backend, asked.number), Readers()
        self._joining: dict[int, set[int]] = {}
        """Partitions that are ours but not swept yet: whose values they await."""
        self._restored: dict[int, FloatArray] = {}
        """Bounds that they will have then, where these are known."""
        self._halted = True
        self._outcome: str | None = None
        self._leave = False
        """The method must begin anew: a partition is no longer ours, or all are."""
        self._gone: set[int] = set()
        """Solvers that took part once."""
        self._newest: dict[int, int] = {}
        """Number of the last message of each other solver."""
        self._obeyed = 0
        """Number of the last command."""
        self._idle = 0.0
        self._published = 0.0
        run.visited[:] = False

    # ------------------------------------------------------------------------------------------------ the loop

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
            self._pass_on()
            self._leave = False
            if not self._halted:
                return
            self._wait()

    def exchange(self) -> None:
        """Between two accesses of the method."""
        self._take_in()
        self._pass_on()
        if self._halted or self._leave:
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
        pause = self._outbox.pause(began)
        timeout = self._asked.lease / 2 if pause is None else max(pause, 0.01)
        self._mailbox.rest(self._nothing_under_way, timeout)
        self._idle += time.monotonic() - began

    def _nothing_under_way(self) -> bool:
        return not self._joining and self._outbox.quiet()

    def _publish(self, now: float) -> None:
        run = self._run
        self._published = now
        run.collect()
        mine = self._mine()
        dirty = run.target.dirty()
        levels, plain = run.bounds.normalised()[self._owned], run.bounds.plain()[self._owned]
        joining = bool(self._joining) or self._assignment.epoch < 0
        unknown = np.inf if joining else 0.0
        self._mailbox.publish(
            Status(
                halted=self._halted,
                epoch=self._assignment.epoch,
                joining=joining,
                dirty=int(dirty.sum()) + len(self._joining),
                absent_dirty=int((dirty & ~run.cache.present).sum()),
                error_bound=float(levels.max(initial=unknown)) + run.bounds.rounding(run.value_size),
                residual_bound=float(plain.max(initial=unknown)),
                smallest=float(run.smallest[mine].min(initial=np.inf)),
                largest=float(run.largest[mine].max(initial=-np.inf)),
                size=run.value_size,
                outcome=self._outcome,
                statistics=run.statistics,
                idle_seconds=self._idle,
                messages=self._outbox.sent,
                bytes_sent=self._outbox.bytes_sent,
            ),
            urgent=self._outcome is not None,
        )

    def _mine(self) -> npt.NDArray[np.bool_]:
        """bool [P]: partitions that are this solver's, those that it may not sweep yet among them."""
        mine: npt.NDArray[np.bool_] = self._assignment.owner == self._me
        return mine

    # ------------------------------------------------------------------------------------------------ taking in

    def _take_in(self) -> None:
        if self._mailbox.expelled:
            raise _Ended("the others have gone on without it")
        if self._mailbox.abandoned(self._asked.lease):
            raise _Ended("the coordinator has not been heard of")
        for message in self._mailbox.take():
            if isinstance(message, Request):
                self._obey(message)
            elif message.sender not in self._gone and message.number > self._newest.get(message.sender, 0):
                self._newest[message.sender] = message.number
                if isinstance(message, Update):
                    self._hear(message)
                else:
                    self._note_reader(message)

    def _obey(self, request: Request) -> None:
        command = request.command
        answer: object = None
        if request.number <= self._obeyed:  # it comes late, or again
            request.answer.set_result(None)
            return
        self._obeyed = request.number
        try:
            if isinstance(command, Assignment):
                self._assign(command)
            elif isinstance(command, Span):
                self._see(command)
            elif isinstance(command, Go):
                self._halted = False
            elif isinstance(command, Halt):
                self._halted = True
            elif isinstance(command, Release):
                answer = self._release(command)
            elif isinstance(command, Report):
                answer = self._values_of(np.flatnonzero(self._mine()), bounds=True)
            elif isinstance(command, End):
                request.answer.set_result(None)
                raise _Ended("done")
        except _Ended:
            raise
        except BaseException as error:
            request.answer.set_exception(error)
            raise
        request.answer.set_result(answer)

    def _hear(self, update: Update) -> None:
        """Values of others' partitions; bounds and priorities of ours follow."""
        heard = self._interests.hear(update)
        if heard is None:
            return
        new = heard.changes
        differs = (new.up > 0) | (new.down > 0)
        if differs.any():
            self._run.heard(heard.partitions[differs], new.up[differs], new.down[differs], new.highest[differs])
        for q in heard.complete:
            self._learnt(q)

    def _learnt(self, q: int) -> None:
        """All that is read of q is known: who has awaited nothing else can begin."""
        for p in list(self._joining):
            awaited = self._joining[p]
            awaited.discard(q)
            if not awaited:
                del self._joining[p]
                self._join(np.array([p]))

    def _join(self, partitions: IntArray) -> None:
        """Partitions whose values and surroundings are known become ours to sweep."""
        bounds = np.full((4, partitions.size), np.inf)
        for i, p in enumerate(partitions.tolist()):
            restored = self._restored.pop(p, None)
            if restored is not None:
                bounds[:, i] = restored
        self._run.bounds.replaced_many(partitions, bounds)
        self._owned[partitions] = True

    def _note_reader(self, message: Subscribe) -> None:
        for wanted in message.wanted:
            self._readers.add(message.sender, wanted)
            self._outbox.tell(message.sender, wanted.partition)

    def _see(self, span: Span) -> None:
        """The others' values, by which a relative target goes."""
        run, others = self._run, ~self._mine()
        run.smallest[others], run.largest[others] = span.smallest, span.largest
        run.value_size = max(run.value_size, span.size)
        run.refresh_target()

    # ------------------------------------------------------------------------------------------------ who owns what

    def _assign(self, new: Assignment) -> None:
        """Take over what is ours from now on, and ask its surroundings of whoever owns them."""
        run, before, was_alone = self._run, self._assignment, self._run.alone
        self._assignment = new
        run.sharers = max(np.unique(new.owner[new.owner >= 0]).size, 1)
        mine = new.owner == self._me
        taken = np.flatnonzero(mine & (before.owner != self._me))
        lost = np.flatnonzero(~mine & (before.owner == self._me))
        for reader in before.addresses.keys() - new.addresses.keys():
            self._outbox.forget(reader)
            self._readers.forget_reader(reader)
            self._gone.add(reader)
        fresh = {number for number in new.addresses if number != self._me and number not in self._outbox}
        for number in fresh:
            self._outbox.meet(number, new.addresses[number])
        if lost.size:
            self._give_up(lost)
        if new.adopted is not None:
            self._adopt(new.adopted)
        for p in taken.tolist():
            self._interests.drop(p)
        for p, awaited in self._joining.items():
            self._joining[p] = awaited - set(taken.tolist())
        asked = self._read_surroundings(taken, known=new.from_start)
        elsewhere = np.flatnonzero(~mine & ((before.owner != new.owner) | (before.generation != new.generation)))
        asked |= set(elsewhere.tolist()).intersection(self._interests)
        for q in asked:
            self._outbox.ask(int(new.owner[q]), q)  # one on its way to its next owner has none; an assignment follows
        unknown = self._interests.unknown()
        coupling = run.store.coupling
        for p in taken.tolist():
            reads = coupling.partitions[coupling.ptr[p] : coupling.ptr[p + 1]]
            awaited = unknown.intersection(reads.tolist())
            if awaited:
                self._joining[p] = awaited
        ready = np.array([p for p in taken.tolist() if p not in self._joining], np.int64)
        if new.from_start:
            self._owned[ready] = True  # their bounds hold as the run began with them
        elif ready.size:
            self._join(ready)
        for p in [p for p, awaited in self._joining.items() if not awaited]:
            del self._joining[p]
            self._join(np.array([p]))
        for p, readers in self._readers.items():  # some asked before they or we knew of the assignment
            for reader in readers:
                if mine[p] and (reader in fresh or p in taken):
                    self._outbox.tell(reader, p)
        self._leave |= run.alone and not was_alone  # now everything can be worked on together
        self._outcome = None
        run.refresh_target()

    def _read_surroundings(self, partitions: IntArray, known: bool) -> set[int]:
        """Note which states of others the partitions read; the others' partitions of which more is read now."""
        run, mine = self._run, self._mine()
        wanted: dict[int, list[IntArray]] = {}
        if mine.all():  # nobody else has anything to tell, and halos may be long
            return self._interests.read(wanted, known)

        def halo_of(p: int) -> IntArray:
            halo: IntArray = run.store.read_field("halo", p)[0].astype(np.int64, copy=False)
            return halo

        with ThreadPoolExecutor(min(_HALO_THREADS, os.cpu_count() or 1)) as threads:
            for halo in threads.map(halo_of, partitions.tolist()):
                for q, states in split_halo(halo, run.store.partition_ptr).items():
                    if not mine[q]:
                        wanted.setdefault(q, []).append(states)
        return self._interests.read(wanted, known)

    def _adopt(self, adopted: Values) -> None:
        """Take last known values of partitions; where an owner has told us newer ones, those stay."""
        run = self._run
        ptr = run.store.partition_ptr
        sizes = np.diff(ptr)[adopted.partitions]
        ends = np.cumsum(sizes)
        for i, p in enumerate(adopted.partitions.tolist()):
            piece = slice(int(ends[i] - sizes[i]), int(ends[i]))
            states = np.arange(ptr[p], ptr[p + 1])
            values = adopted.values[piece].copy()
            told = self._interests.told(p)
            if told is not None:
                values[told[0] - ptr[p]] = told[1]
            self._values.write(states, values, np.array([p]), np.array([0, states.size]))
            run.visited[p] = adopted.visited[i]
            # Nobody has chosen actions where no solver has been yet, whatever a backend keeps in their place.
            self._values.write_policy(
                p, adopted.policy[piece] if run.visited[p] else np.full(states.size, -1, np.int32)
            )
            run.smallest[p], run.largest[p] = values.min(), values.max()
            if adopted.bounds is not None and told is None:
                self._restored[p] = adopted.bounds[:, i]

    def _give_up(self, partitions: IntArray) -> None:
        """Partitions are others' now; what ours read of them is asked of their next owner.

        A method that works on everything together, or on rows that are no longer ours to evaluate, begins anew.
        """
        self._leave |= self._run.alone or self._run.options.way == "policy-iteration"
        self._owned[partitions] = False
        for p in partitions.tolist():
            self._joining.pop(p, None)
            self._restored.pop(p, None)
            self._readers.forget_partition(p)
            self._outbox.tell_nobody(p)
        dependents = [q for p in partitions.tolist() for q in self._run.bounds.dependents(p).tolist()]
        ours = np.unique(np.array([q for q in dependents if self._mine()[q]], np.int64))
        self._read_surroundings(ours, known=True)

    def _release(self, command: Release) -> Values:
        """The least urgent dirty partitions, those first that would have to be loaded."""
        run = self._run
        dirty = run.target.dirty()
        candidates = np.flatnonzero(dirty if command.cached else dirty & ~run.cache.present)
        candidates = np.setdiff1d(candidates, np.array(run.stager.under_way(), np.int64))
        rank = run.priority.rank(run.target.levels())[candidates]
        order = np.lexsort((rank, run.cache.present[candidates]))
        chosen = np.sort(candidates[order[: command.most]])
        given = self._values_of(chosen, bounds=False)
        if chosen.size:
            owner = self._assignment.owner.copy()
            owner[chosen] = -1
            a = self._assignment
            self._assignment = Assignment(a.epoch, owner, a.generation, a.addresses)
            self._give_up(chosen)
        return given

    def _values_of(self, partitions: IntArray, bounds: bool) -> Values:
        run = self._run
        ptr = run.store.partition_ptr
        states = int(np.diff(ptr)[partitions].sum())
        values, policy = np.empty(states), np.empty(states, np.int32)
        for piece, here in pieces_of(partitions, ptr):
            self._values.copy(piece.start, values[here], policy[here])
        known = np.stack(list(run.bounds.arrays().values()))[:, partitions]
        known[:, ~self._owned[partitions]] = np.inf  # they await values
        return Values(partitions, values, policy, run.visited[partitions], known if bounds else None)

    # ------------------------------------------------------------------------------------------------ passing on

    def _pass_on(self) -> None:
        """Tell readers what moved, each as soon as it has taken in what it was told before."""
        run = self._run
        for p in np.flatnonzero(run.moved).tolist():
            for reader in self._readers.of(p):
                self._outbox.tell(reader, p)
        run.moved[:] = False
        self._outbox.post(self._question, self._update)

    def _question(self, owner: int, number: int, partitions: Collection[int]) -> Subscribe | None:
        """Of those of the partitions that are still the owner's; who has the others has been asked already."""
        still = [q for q in partitions if self._assignment.owner[q] == owner]
        return Subscribe(self._me, number, self._interests.ask(still)) if still else None

    def _update(self, reader: int, number: int, partitions: Collection[int]) -> Update | None:
        """What the reader reads of these, as it is now; None where it reads nothing of them any more."""
        mine = self._mine()
        told = np.array([p for p in sorted(partitions) if mine[p] and reader in self._readers.of(p)], np.int64)
        if not told.size:
            return None
        lists, which = self._readers.lists_of(reader, told.tolist())
        return Update(
            self._me,
            number,
            told,
            np.array([self._readers.of(p)[reader].serial for p in told.tolist()]),
            self._assignment.generation[told].astype(np.int64),
            np.concatenate([[0], np.cumsum(np.diff(lists.ptr)[which])]),
            self._values.gather(lists, which),
        )
