"""The partitions of one solver of several: whose values they read, who reads theirs, and what is known of them.

    assignment ─▶ ours from now on ─▶ *joining*: the values that they read are asked of whoever owns those
                                   ─▶ owned: swept, with bounds about the values that the solver sees
                  others' now      ─▶ given up; what ours read of them is asked of the next owner

Knows no method and waits for nothing; what is sent, and when, is `outbox.py`'s.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ooc_mdp.distributed.messages import (
    Assignment,
    MigrateRequest,
    Subscribe,
    Update,
    ValueRange,
    Values,
    contiguous_runs,
)
from ooc_mdp.distributed.subscriptions import Send, SendQueue, Subscribers, Subscriptions, split_halo
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.solver.state import SolveState

__all__ = ["AssignmentPlan", "Shard", "plan_assignment"]

_HALO_THREADS = 4


@dataclass(frozen=True, slots=True)
class AssignmentPlan:
    """What a new assignment changes for one worker."""

    gained: IntArray
    """int64, ascending; partitions that it owns from now on."""
    lost: IntArray
    """int64, ascending; partitions that it owns no longer."""
    reassigned: IntArray
    """int64, ascending; partitions of others that have a new owner, or a new generation."""
    peers_added: frozenset[int]
    """Other workers that take part from now on."""
    peers_removed: frozenset[int]
    """Other workers that take part no longer."""
    owners: int
    """Workers that own partitions; at least 1."""


def plan_assignment(before: Assignment, new: Assignment, me: int) -> AssignmentPlan:
    """What changes for worker `me` between two assignments; reads and changes no state.

    Parameters
    ----------
    before : the assignment that is applied; epoch -1 and no owners before the first.
    """
    mine, mine_before = new.owner == me, before.owner == me
    changed = (before.owner != new.owner) | (before.generation != new.generation)
    return AssignmentPlan(
        gained=np.flatnonzero(mine & ~mine_before),
        lost=np.flatnonzero(~mine & mine_before),
        reassigned=np.flatnonzero(~mine & changed),
        peers_added=frozenset(new.addresses.keys() - before.addresses.keys() - {me}),
        peers_removed=frozenset(before.addresses.keys() - new.addresses.keys()),
        owners=max(np.unique(new.owner[new.owner >= 0]).size, 1),
    )


class Shard:
    """Of one solver; its thread owns it.

    Parameters
    ----------
    number : of the solver.
    owned : bool [P]; partitions that the solver may sweep, those of the run.
    wake : has the solver look again once something that was sent has arrived.
    """

    def __init__(
        self,
        number: int,
        run: SolveState,
        owned: npt.NDArray[np.bool_],
        send: Send,
        wake: Callable[[], None],
    ) -> None:
        self._me, self._state, self._values, self._owned = number, run, run.backend, owned
        self.outbox = SendQueue(send, wake)
        n = run.table.n_partitions
        self.assignment = Assignment(-1, np.full(n, -1, np.int32), np.full(n, -1, np.int32), {})
        """The last; before it, nobody owns anything."""
        self._interests, self._readers = Subscriptions(run.backend, number), Subscribers()
        self.pending: dict[int, set[int]] = {}
        """Partitions that are ours but not swept yet: whose values they await."""
        self._restored: dict[int, FloatArray] = {}
        """Bounds that they will have then, where these are known."""
        self.leave = False
        """The method must begin anew: a partition is no longer ours, or all are."""
        self.gone: set[int] = set()
        """Solvers that took part once."""
        self.solvers = 1
        """That have partitions."""
        self.moved = np.zeros(n, np.bool_)
        """bool [P]; whether boundary values have changed since they were last passed on."""
        self._rises: FloatArray | None = None
        """float64 [P]; by how much others' values have risen since this was last asked."""

    def mine(self) -> npt.NDArray[np.bool_]:
        """bool [P]: partitions that are this solver's, those that it may not sweep yet among them."""
        mine: npt.NDArray[np.bool_] = self.assignment.owner == self._me
        return mine

    def quiet(self) -> bool:
        """Nothing is awaited, and all that was sent has arrived."""
        return not self.pending and self.outbox.quiet()

    def apply_assignment(self, new: Assignment) -> None:
        """Own what the assignment gives to this worker, and subscribe to the states that it reads.

        The order matters: values of lost partitions are kept for the partitions that read them before snapshots replace
        values; what was received of gained partitions takes precedence over their snapshots, and is removed then.
        """
        run, was_alone, plan = self._state, self._state.alone, plan_assignment(self.assignment, new, self._me)
        self.assignment, self.solvers = new, plan.owners
        self._update_peers(plan, new)
        if plan.lost.size:
            self._drop(plan.lost)
        if new.initial_values is not None:
            self._load_snapshot(new.initial_values)
        self._unsubscribe(plan.gained.tolist())
        self._resubscribe(plan, known=new.initial_start)
        self._activate_gained(plan.gained, initial_start=new.initial_start)
        self._republish(plan)
        self.leave |= run.alone and not was_alone  # now everything can be worked on together
        run.see_range(slice(None), run.smallest, run.largest)

    def _update_peers(self, plan: AssignmentPlan, new: Assignment) -> None:
        for peer in plan.peers_removed:
            self.outbox.remove_peer(peer)
            self._readers.forget_reader(peer)
            self.gone.add(peer)
        for peer in plan.peers_added:
            self.outbox.add_peer(peer, new.addresses[peer])

    def _unsubscribe(self, gained: list[int]) -> None:
        """Read gained partitions as this worker's own."""
        for p in gained:
            self._interests.drop(p)
        for p, awaited in self.pending.items():
            self.pending[p] = awaited.difference(gained)

    def _resubscribe(self, plan: AssignmentPlan, known: bool) -> None:
        """Request the values that gained partitions read, and those of partitions that have a new owner."""
        requested = self._subscribe_halo(plan.gained, known)
        requested |= set(plan.reassigned.tolist()).intersection(self._interests)
        for q in requested:
            # A partition that is being migrated has no owner; an assignment follows.
            self.outbox.request(int(self.assignment.owner[q]), q)

    def _activate_gained(self, gained: IntArray, initial_start: bool) -> None:
        """Sweep partitions of whose surroundings all is known; the others are pending."""
        unknown, coupling = self._interests.unknown(), self._state.table.coupling
        for p in gained.tolist():
            reads = coupling.partitions[coupling.ptr[p] : coupling.ptr[p + 1]]
            awaited = unknown.intersection(reads.tolist())
            if awaited:
                self.pending[p] = awaited
        ready = np.array([p for p in gained.tolist() if p not in self.pending], np.int64)
        if initial_start:
            self._owned[ready] = True  # their bounds hold as the run started with them
        elif ready.size:
            self._activate(ready)
        for p in [p for p, awaited in self.pending.items() if not awaited]:
            del self.pending[p]
            self._activate(np.array([p]))

    def _republish(self, plan: AssignmentPlan) -> None:
        """Send values to subscribers that knew of the assignment before this worker did, or that it did not know."""
        mine, gained = self.mine(), set(plan.gained.tolist())
        for p, readers in self._readers.items():
            for reader in readers:
                if mine[p] and (reader in plan.peers_added or p in gained):
                    self.outbox.mark_changed(reader, p)

    def release(self, command: MigrateRequest) -> Values:
        """The least urgent dirty partitions, those first that would have to be loaded."""
        run = self._state
        dirty = run.target.dirty()
        candidates = np.flatnonzero(dirty if command.cached else dirty & ~run.cache.present)
        candidates = np.setdiff1d(candidates, np.array(run.stager.in_flight(), np.int64))
        rank = run.priority.rank(run.target.bounds())[candidates]
        order = np.lexsort((rank, run.cache.present[candidates]))
        chosen = np.sort(candidates[order[: command.most]])
        given = self.snapshot(chosen, bounds=False)
        if chosen.size:
            owner = self.assignment.owner.copy()
            owner[chosen] = -1
            a = self.assignment
            self.assignment = Assignment(a.epoch, owner, a.generation, a.addresses)
            self._drop(chosen)
        return given

    def hear(self, update: Update) -> None:
        """Values of others' partitions; bounds and priorities of ours follow."""
        heard = self._interests.hear(update)
        if heard is None:
            return
        new = heard.changes
        differs = (new.up > 0) | (new.down > 0)
        if differs.any():
            changed, rise = heard.partitions[differs], new.up[differs]
            self._state.apply_remote(changed, rise, new.down[differs], new.highest[differs])
            if self._rises is None:
                self._rises = np.zeros(self.moved.size)
            self._rises[changed] += rise
        for q in heard.complete:
            self._on_complete(q)

    def take_rises(self) -> FloatArray | None:
        """float64 [P]; by how much others' values have risen since this was last asked; None: none changed."""
        rises, self._rises = self._rises, None
        return rises

    def add_subscriber(self, message: Subscribe) -> None:
        """Register another worker that reads states of this shard, and queue their present values for it."""
        for wanted in message.wanted:
            self._readers.add(message.sender, wanted)
            self.outbox.mark_changed(message.sender, wanted.partition)

    def see(self, span: ValueRange) -> None:
        """The others' values, by which a relative target goes."""
        run, others = self._state, ~self.mine()
        run.value_size = max(run.value_size, span.size)
        run.see_range(others, span.smallest, span.largest)

    def snapshot(self, partitions: IntArray, bounds: bool) -> Values:
        """What is known of partitions of ours; bounds, which are infinite of those that await values, with counts."""
        run = self._state
        ptr = run.table.partition_ptr
        states = int(np.diff(ptr)[partitions].sum())
        values, policy = np.empty(states), np.empty(states, np.int32)
        for piece, here in contiguous_runs(partitions, ptr):
            self._values.copy(piece.start, values[here], policy[here])
        known = np.stack(list(run.bounds.arrays().values()))[:, partitions]
        known[:, ~self._owned[partitions]] = np.inf  # they await values
        if not bounds:
            return Values(partitions, values, policy, run.visited[partitions])
        return Values(partitions, values, policy, run.visited[partitions], known, run.history.counts())

    def publish_changes(self) -> None:
        """Tell readers what moved, each as soon as it has taken in what it was told before."""
        for p in np.flatnonzero(self.moved).tolist():
            for reader in self._readers.of(p):
                self.outbox.mark_changed(reader, p)
        self.moved[:] = False
        self.outbox.post(self._question, self._update)

    def _subscribe_halo(self, partitions: IntArray, known: bool) -> set[int]:
        """Note which states of others the partitions read; the others' partitions of which more is read now."""
        run, mine = self._state, self.mine()
        wanted: dict[int, list[IntArray]] = {}
        if mine.all():  # nobody else has anything to tell, and halos may be long
            return self._interests.read(wanted, known)

        def halo_of(p: int) -> IntArray:
            halo: IntArray = run.table.read_field("halo", p)[0].astype(np.int64, copy=False)
            return halo

        with ThreadPoolExecutor(min(_HALO_THREADS, os.cpu_count() or 1)) as threads:
            for halo in threads.map(halo_of, partitions.tolist()):
                for q, states in split_halo(halo, run.table.partition_ptr).items():
                    if not mine[q]:
                        wanted.setdefault(q, []).append(states)
        return self._interests.read(wanted, known)

    def _load_snapshot(self, initial_values: Values) -> None:
        """Take last known values of partitions; where an owner has told us newer ones, those stay."""
        run = self._state
        ptr = run.table.partition_ptr
        sizes = np.diff(ptr)[initial_values.partitions]
        ends = np.cumsum(sizes)
        for i, p in enumerate(initial_values.partitions.tolist()):
            piece = slice(int(ends[i] - sizes[i]), int(ends[i]))
            states = np.arange(ptr[p], ptr[p + 1])
            values = initial_values.values[piece].copy()
            told = self._interests.told(p)
            if told is not None:
                values[told[0] - ptr[p]] = told[1]
            self._values.write(states, values, np.array([p]), np.array([0, states.size]))
            run.visited[p] = initial_values.visited[i]
            # Nobody has chosen actions where no solver has been yet, whatever a backend keeps in their place.
            self._values.write_policy(
                p, initial_values.policy[piece] if run.visited[p] else np.full(states.size, -1, np.int32)
            )
            run.smallest[p], run.largest[p] = values.min(), values.max()
            if initial_values.bounds is not None and told is None:
                self._restored[p] = initial_values.bounds[:, i]

    def _drop(self, partitions: IntArray) -> None:
        """Partitions are others' now; what ours read of them is asked of their next owner.

        A method that works on everything together, or on rows that are no longer ours to evaluate, begins anew.
        """
        self.leave |= self._state.alone or self._state.plan.options.way == "policy-iteration"
        self._owned[partitions] = False
        for p in partitions.tolist():
            self.pending.pop(p, None)
            self._restored.pop(p, None)
            self._readers.forget_partition(p)
            self.outbox.discard(p)
        dependents = [q for p in partitions.tolist() for q in self._state.bounds.dependents(p).tolist()]
        ours = np.unique(np.array([q for q in dependents if self.mine()[q]], np.int64))
        self._subscribe_halo(ours, known=True)

    def _on_complete(self, q: int) -> None:
        """All that is read of q is known: who has awaited nothing else can begin."""
        for p in list(self.pending):
            awaited = self.pending[p]
            awaited.discard(q)
            if not awaited:
                del self.pending[p]
                self._activate(np.array([p]))

    def _activate(self, partitions: IntArray) -> None:
        """Partitions whose values and surroundings are known become ours to sweep."""
        bounds = np.full((4, partitions.size), np.inf)
        for i, p in enumerate(partitions.tolist()):
            restored = self._restored.pop(p, None)
            if restored is not None:
                bounds[:, i] = restored
        self._state.bounds.settle(partitions, bounds)
        self._owned[partitions] = True

    def _question(self, owner: int, number: int, partitions: Collection[int]) -> Subscribe | None:
        """Of those of the partitions that are still the owner's; who has the others has been asked already."""
        still = [q for q in partitions if self.assignment.owner[q] == owner]
        return Subscribe(self._me, number, self._interests.ask(still)) if still else None

    def _update(self, reader: int, number: int, partitions: Collection[int]) -> Update | None:
        """What the reader reads of these, as it is now; None where it reads nothing of them any more."""
        mine = self.mine()
        told = np.array([p for p in sorted(partitions) if mine[p] and reader in self._readers.of(p)], np.int64)
        if not told.size:
            return None
        lists, which = self._readers.lists_of(reader, told.tolist())
        return Update(
            self._me,
            number,
            told,
            np.array([self._readers.of(p)[reader].serial for p in told.tolist()]),
            self.assignment.generation[told].astype(np.int64),
            np.concatenate([[0], np.cumsum(np.diff(lists.ptr)[which])]),
            self._values.gather(lists, which),
        )
