"""The shard of one worker: its partitions, the values that they read, their subscribers, and their restored bounds.

    assignment ─▶ gained ─▶ *pending*: the values that they read are requested from their owners
                         ─▶ owned: swept, with bounds at the values that this worker sees
                  lost   ─▶ dropped; what the worker's partitions read of them is requested from the next owner

Knows no method and waits for nothing; `subscriptions.py` decides when messages are sent.
"""

from __future__ import annotations

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
from ooc_mdp.runtime import quotas
from ooc_mdp.solver.state import SolveState

__all__ = ["AssignmentPlan", "Shard", "plan_assignment"]

_HALO_THREADS = 4


@dataclass(frozen=True, slots=True)
class AssignmentPlan:
    """What a new assignment changes for one worker."""

    gained: IntArray
    """int64, ascending; partitions that it owns from now on."""
    lost: IntArray
    """int64, ascending; partitions that it no longer owns."""
    reassigned: IntArray
    """int64, ascending; partitions of other workers with a new owner or a new generation."""
    peers_added: frozenset[int]
    """Other workers that take part from now on."""
    peers_removed: frozenset[int]
    """Other workers that no longer take part."""
    owners: int
    """Number of workers that own partitions; at least 1."""


def plan_assignment(before: Assignment, new: Assignment, me: int) -> AssignmentPlan:
    """Return what changes for worker `me` between two assignments; a pure function.

    Parameters
    ----------
    before : the present assignment; epoch -1 and no owners before the first.
    """
    owned, mine_before = new.owner == me, before.owner == me
    changed = (before.owner != new.owner) | (before.generation != new.generation)
    return AssignmentPlan(
        gained=np.flatnonzero(owned & ~mine_before),
        lost=np.flatnonzero(~owned & mine_before),
        reassigned=np.flatnonzero(~owned & changed),
        peers_added=frozenset(new.addresses.keys() - before.addresses.keys() - {me}),
        peers_removed=frozenset(before.addresses.keys() - new.addresses.keys()),
        owners=max(np.unique(new.owner[new.owner >= 0]).size, 1),
    )


class Shard:
    """The partitions of one worker; used by its solver's thread.

    Parameters
    ----------
    number : of the worker.
    owned : bool [P]; partitions that the worker may sweep; updated here.
    wake : wakes the solver once a peer has received a message.
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
        self.send_queue = SendQueue(send, wake)
        n = run.table.n_partitions
        self.assignment = Assignment(-1, np.full(n, -1, np.int32), np.full(n, -1, np.int32), {})
        """The last one; at first one without owners."""
        self._subscriptions, self._subscribers = Subscriptions(run.backend, number), Subscribers()
        self.pending: dict[int, set[int]] = {}
        """Partitions that are owned but not swept yet, each with the partitions whose values it waits for."""
        self._restored: dict[int, FloatArray] = {}
        """Known bounds of pending partitions, in force once they are swept."""
        self.restart_method = False
        """Whether the method must restart: a partition was lost, or all are owned now."""
        self.removed_peers: set[int] = set()
        """Workers that no longer take part."""
        self.owners = 1
        """Number of workers that own partitions."""
        self.changed = np.zeros(n, np.bool_)
        """bool [P]; whether boundary values have changed since they were last queued."""
        self._rises: FloatArray | None = None
        """float64 [P]; by how much the values of other workers' partitions have risen since the last `take_rises`."""

    def owned_mask(self) -> npt.NDArray[np.bool_]:
        """Return bool [P]: the partitions of this worker, pending ones included."""
        owned: npt.NDArray[np.bool_] = self.assignment.owner == self._me
        return owned

    def is_quiescent(self) -> bool:
        """Return whether no partition is pending and all messages were received."""
        return not self.pending and self.send_queue.is_drained()

    def apply_assignment(self, new: Assignment) -> None:
        """Own what the assignment gives to this worker, and subscribe to the states that it reads.

        The order matters: values of lost partitions are kept for the partitions that read them before snapshots replace
        values; what was received of gained partitions takes precedence over their snapshots, and is removed then.
        """
        run, was_alone, plan = self._state, self._state.alone, plan_assignment(self.assignment, new, self._me)
        self.assignment, self.owners = new, plan.owners
        self._update_peers(plan, new)
        if plan.lost.size:
            self._drop(plan.lost)
        if new.initial_values is not None:
            self._load_snapshot(new.initial_values)
        self._unsubscribe(plan.gained.tolist())
        self._resubscribe(plan, known=new.initial_start)
        self._activate_gained(plan.gained, initial_start=new.initial_start)
        self._republish(plan)
        self.restart_method |= run.alone and not was_alone  # now all partitions can be swept together
        run.update_value_range(slice(None), run.smallest, run.largest)

    def _update_peers(self, plan: AssignmentPlan, new: Assignment) -> None:
        for peer in plan.peers_removed:
            self.send_queue.remove_peer(peer)
            self._subscribers.remove_subscriber(peer)
            self.removed_peers.add(peer)
        for peer in plan.peers_added:
            self.send_queue.add_peer(peer, new.addresses[peer])

    def _unsubscribe(self, gained: list[int]) -> None:
        """Remove subscriptions to gained partitions."""
        for p in gained:
            self._subscriptions.remove(p)
        for p, awaited in self.pending.items():
            self.pending[p] = awaited.difference(gained)

    def _resubscribe(self, plan: AssignmentPlan, known: bool) -> None:
        """Request the values that gained partitions read, and those of partitions with a new owner."""
        requested = self._subscribe_halo(plan.gained, known)
        requested |= set(plan.reassigned.tolist()).intersection(self._subscriptions)
        for q in requested:
            # A partition in migration has no owner; an assignment follows.
            self.send_queue.request(int(self.assignment.owner[q]), q)

    def _activate_gained(self, gained: IntArray, initial_start: bool) -> None:
        """Activate gained partitions all of whose halo values are known; the others are pending."""
        unknown, coupling = self._subscriptions.unknown(), self._state.table.facts.coupling
        for p in gained.tolist():
            reads = coupling.read_by(p)
            awaited = unknown.intersection(reads.tolist())
            if awaited:
                self.pending[p] = awaited
        ready = np.array([p for p in gained.tolist() if p not in self.pending], np.int64)
        if initial_start:
            self._owned[ready] = True  # the bounds of the start hold for them
        elif ready.size:
            self._activate(ready)
        for p in [p for p, awaited in self.pending.items() if not awaited]:
            del self.pending[p]
            self._activate(np.array([p]))

    def _republish(self, plan: AssignmentPlan) -> None:
        """Queue values for subscribers that applied the assignment before this worker, or that are new."""
        owned, gained = self.owned_mask(), set(plan.gained.tolist())
        for p, readers in self._subscribers.items():
            for reader in readers:
                if owned[p] and (reader in plan.peers_added or p in gained):
                    self.send_queue.mark_changed(reader, p)

    def migrate(self, command: MigrateRequest) -> Values:
        """Give up the least urgent dirty partitions, absent ones first; return their values."""
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

    def apply_update(self, update: Update) -> None:
        """Apply received values of other workers' partitions, and raise the bounds of the partitions that read them."""
        applied = self._subscriptions.apply(update)
        if applied is None:
            return
        new = applied.changes
        differs = (new.rise > 0) | (new.fall > 0)
        if differs.any():
            changed, rise = applied.partitions[differs], new.rise[differs]
            self._state.apply_remote(changed, rise, new.fall[differs], new.largest[differs])
            if self._rises is None:
                self._rises = np.zeros(self.changed.size)
            self._rises[changed] += rise
        for q in applied.complete:
            self._on_complete(q)

    def take_rises(self) -> FloatArray | None:
        """Return float64 [P]: by how much received values have risen since the last call; None: none changed."""
        rises, self._rises = self._rises, None
        return rises

    def add_subscriber(self, message: Subscribe) -> None:
        """Register a worker that reads states of this shard, and queue their present values for it."""
        for wanted in message.wanted:
            self._subscribers.add(message.sender, wanted)
            self.send_queue.mark_changed(message.sender, wanted.partition)

    def set_value_range(self, span: ValueRange) -> None:
        """Apply the range of the other workers' values, on which a relative target depends."""
        run, others = self._state, ~self.owned_mask()
        run.value_size = max(run.value_size, span.size)
        run.update_value_range(others, span.smallest, span.largest)

    def snapshot(self, partitions: IntArray, bounds: bool) -> Values:
        """Return the values of own partitions; with bounds, infinite where nothing was measured, also the counts."""
        run = self._state
        ptr = run.table.facts.partition_ptr
        states = int(np.diff(ptr)[partitions].sum())
        values, policy = np.empty(states), np.empty(states, np.int32)
        for piece, here in contiguous_runs(partitions, ptr):
            self._values.copy(piece.start, values[here], policy[here])
        known = np.stack(list(run.bounds.arrays().values()))[:, partitions]
        known[:, ~(self._owned & run.bounds.measured)[partitions]] = np.inf  # pending, or not loaded yet
        if not bounds:
            return Values(partitions, values, policy, run.visited[partitions])
        return Values(partitions, values, policy, run.visited[partitions], known, run.history.counts())

    def publish_changes(self) -> None:
        """Queue changed partitions for their subscribers, and send to those that have acknowledged the last message."""
        for p in np.flatnonzero(self.changed).tolist():
            for reader in self._subscribers.lists_for(p):
                self.send_queue.mark_changed(reader, p)
        self.changed[:] = False
        self.send_queue.flush(self._make_subscribe, self._make_update)

    def _subscribe_halo(self, partitions: IntArray, known: bool) -> set[int]:
        """Subscribe to the halo states of partitions; return the partitions whose lists have become longer."""
        run, owned = self._state, self.owned_mask()
        wanted: dict[int, list[IntArray]] = {}
        if owned.all():  # there is no other owner, and halos may be long
            return self._subscriptions.extend(wanted, known)

        def halo_of(p: int) -> IntArray:
            halo: IntArray = run.table.read_field("halo", p)[0].astype(np.int64, copy=False)
            return halo

        with ThreadPoolExecutor(min(_HALO_THREADS, quotas.cores())) as threads:
            for halo in threads.map(halo_of, partitions.tolist()):
                for q, states in split_halo(halo, run.table.facts.partition_ptr).items():
                    if not owned[q]:
                        wanted.setdefault(q, []).append(states)
        return self._subscriptions.extend(wanted, known)

    def _load_snapshot(self, initial_values: Values) -> None:
        """Write the last known values of partitions, except where newer ones were received from their owner."""
        run = self._state
        ptr = run.table.facts.partition_ptr
        sizes = np.diff(ptr)[initial_values.partitions]
        ends = np.cumsum(sizes)
        for i, p in enumerate(initial_values.partitions.tolist()):
            piece = slice(int(ends[i] - sizes[i]), int(ends[i]))
            states = np.arange(ptr[p], ptr[p + 1])
            values = initial_values.values[piece].copy()
            received = self._subscriptions.received_values(p)
            if received is not None:
                values[received[0] - ptr[p]] = received[1]
            self._values.write(states, values, np.array([p]), np.array([0, states.size]))
            run.visited[p] = initial_values.visited[i]
            # Partitions that were never visited have no policy, whatever the backend stores for them.
            self._values.write_policy(
                p, initial_values.policy[piece] if run.visited[p] else np.full(states.size, -1, np.int32)
            )
            run.smallest[p], run.largest[p] = values.min(), values.max()
            if initial_values.bounds is not None and received is None:
                self._restored[p] = initial_values.bounds[:, i]

    def _drop(self, partitions: IntArray) -> None:
        """Give up partitions, and subscribe to the states of them that the remaining ones read.

        A method that works on all partitions together, or evaluates a policy on rows of the lost ones, restarts.
        """
        self.restart_method |= self._state.alone or self._state.plan.options.effective_method == "policy-iteration"
        self._owned[partitions] = False
        for p in partitions.tolist():
            self.pending.pop(p, None)
            self._restored.pop(p, None)
            self._subscribers.remove_partition(p)
            self.send_queue.discard(p)
        dependents = [q for p in partitions.tolist() for q in self._state.bounds.dependents(p).tolist()]
        ours = np.unique(np.array([q for q in dependents if self.owned_mask()[q]], np.int64))
        self._subscribe_halo(ours, known=True)

    def _on_complete(self, q: int) -> None:
        """Activate pending partitions that waited only for the values of q."""
        for p in list(self.pending):
            awaited = self.pending[p]
            awaited.discard(q)
            if not awaited:
                del self.pending[p]
                self._activate(np.array([p]))

    def _activate(self, partitions: IntArray) -> None:
        """Allow sweeps of partitions whose values and halo values are known."""
        bounds = np.full((4, partitions.size), np.inf)
        for i, p in enumerate(partitions.tolist()):
            restored = self._restored.pop(p, None)
            if restored is not None:
                bounds[:, i] = restored
        self._state.bounds.expect(partitions, bounds)
        self._owned[partitions] = True

    def _make_subscribe(self, owner: int, number: int, partitions: Collection[int]) -> Subscribe | None:
        """Return the subscription to those of the partitions that the peer still owns; None where it owns none."""
        still = [q for q in partitions if self.assignment.owner[q] == owner]
        return Subscribe(self._me, number, self._subscriptions.request(still)) if still else None

    def _make_update(self, reader: int, number: int, partitions: Collection[int]) -> Update | None:
        """Return the present values that a subscriber reads of partitions; None where it reads none of them."""
        owned = self.owned_mask()
        sent = np.array(
            [p for p in sorted(partitions) if owned[p] and reader in self._subscribers.lists_for(p)], np.int64
        )
        if not sent.size:
            return None
        lists, which = self._subscribers.state_lists(reader, sent.tolist())
        return Update(
            self._me,
            number,
            sent,
            np.array([self._subscribers.lists_for(p)[reader].serial for p in sent.tolist()]),
            self.assignment.generation[sent].astype(np.int64),
            np.concatenate([[0], np.cumsum(np.diff(lists.ptr)[which])]),
            self._values.gather(lists, which),
        )
