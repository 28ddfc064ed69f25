"""Subscriptions: the states of other workers' partitions that a worker reads, their received values, its subscribers.

A worker reads the halos of its partitions: for each partition q of another worker one list of states, the union over
its own partitions. Its value vector holds the values last received (its *view* of q), so that a new message shows by
how much they rose and fell, which the bounds of its partitions take into account. States whose values were never
received are unknown, and no partition that reads them may be swept. `SendQueue` has one message in flight to each peer.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from ooc_mdp.backends.state_lists import ListChanges, StateLists
from ooc_mdp.distributed.messages import StateList, Subscribe, Update
from ooc_mdp.model.mdp import FloatArray, IntArray

__all__ = ["AppliedUpdate", "Send", "SendQueue", "Subscribers", "Subscriptions", "Vector", "split_halo"]


def split_halo(halo: IntArray, partition_ptr: IntArray) -> dict[int, IntArray]:
    """Return the states of a sorted halo by the partition that owns them."""
    if not halo.size:
        return {}
    of = np.searchsorted(partition_ptr, halo, side="right") - 1
    first = np.flatnonzero(np.diff(of, prepend=-1))
    return dict(zip(of[first].tolist(), np.split(halo, first[1:]), strict=True))


@dataclass(slots=True)
class ReceivedList:
    """The view of one partition: the states of it that are read, and which of their values are known."""

    states: IntArray
    known: bool
    """Whether the vector holds known values for all of them, at which bounds hold."""
    older: IntArray
    """int64; positions in the list that were known before it was last extended (all, where `known`)."""
    serial: int
    generation: int = -1


@dataclass(frozen=True, slots=True)
class AppliedUpdate:
    """How a message changed the views of k partitions."""

    partitions: IntArray
    """int64 [k]."""
    changes: ListChanges
    """Of values that were known before."""
    complete: list[int]
    """Partitions of which all values are known now, and were not before."""


class Vector(Protocol):
    """The value vector of a worker's solver."""

    def read(self, states: IntArray) -> FloatArray:
        """Return the values of states."""
        ...

    def write_lists(self, lists: StateLists, which: IntArray, values: FloatArray) -> ListChanges:
        """Write new values of some of the lists, and return how they differ."""
        ...


class Subscriptions:
    """The states of other workers' partitions that a worker reads.

    Parameters
    ----------
    vector : holds the values of the views; nothing else writes these.
    reader : number of the worker.
    """

    def __init__(self, vector: Vector, reader: int = 0) -> None:
        self._vector = vector
        self._views: dict[int, ReceivedList] = {}
        self._lists: StateLists | None = None
        self._index: dict[int, int] = {}
        """Position of each view in the lists."""
        self._serial = reader << 32
        """Of the newest list. No two lists have the same number, whatever their worker and partition, since a worker
        that has come back receives messages that were meant for the solver that it had before."""

    def __iter__(self) -> Iterator[int]:
        return iter(self._views)

    def extend(self, wanted: dict[int, list[IntArray]], known: bool) -> set[int]:
        """Add states of some partitions to the lists.

        Parameters
        ----------
        wanted : lists of states by partition; they may overlap each other and the present lists.
        known : whether the vector already has the owners' values.

        Returns
        -------
        The partitions whose lists have become longer.
        """
        grown = set()
        for q, pieces in wanted.items():
            old = self._views.get(q)
            states = np.unique(np.concatenate([*pieces, *([] if old is None else [old.states])]))
            if old is not None and states.size == old.states.size:
                continue
            grown.add(q)
            if old is None:
                older = np.arange(states.size) if known else np.empty(0, np.int64)
                self._views[q] = ReceivedList(states, known, older, self._next_serial())
            else:
                before = old.states if old.known else old.states[old.older]
                keeps = np.arange(states.size) if old.known and known else np.searchsorted(states, before)
                self._views[q] = ReceivedList(states, old.known and known, keeps, self._next_serial(), old.generation)
        self._lists = None
        return grown

    def request(self, partitions: Iterable[int]) -> list[StateList]:
        """Return the lists of partitions under new serial numbers, so that answers to earlier requests are ignored."""
        asked = []
        for q in partitions:
            view = self._views[q]
            view.serial = self._next_serial()
            asked.append(StateList(q, view.serial, view.states))
        return asked

    def _next_serial(self) -> int:
        self._serial += 1
        return self._serial

    def unknown(self) -> set[int]:
        """Return the partitions of which some values are unknown."""
        return {q for q, view in self._views.items() if not view.known}

    def remove(self, partition: int) -> None:
        """Remove the list of a partition, which the worker owns now or no longer reads."""
        if self._views.pop(partition, None) is not None:
            self._lists = None

    def received_values(self, partition: int) -> tuple[IntArray, FloatArray] | None:
        """Return the states of a partition with known values, and these values; None where there are none."""
        view = self._views.get(partition)
        if view is None or not (view.known or view.older.size):
            return None
        states = view.states if view.known else view.states[view.older]
        return states, self._vector.read(states)

    def apply(self, update: Update) -> AppliedUpdate | None:
        """Write the values of a message to the vector; None where all are of earlier lists or owners."""
        accepted: dict[int, slice] = {}
        facts = update.partitions, update.serials, update.generations, update.ptr[:-1], update.ptr[1:]
        for q, serial, generation, start, stop in np.stack(facts, axis=1).tolist():
            view = self._views.get(q)
            if view is not None and serial == view.serial and generation >= view.generation:
                view.generation = generation
                accepted[q] = slice(start, stop)
        if not accepted:
            return None
        partitions = list(accepted)
        values = update.values
        if len(accepted) < update.partitions.size:
            values = np.concatenate([values[piece] for piece in accepted.values()])
        unknown = {i: self._views[q] for i, q in enumerate(partitions) if not self._views[q].known}
        before = {i: self._vector.read(view.states[view.older]) for i, view in unknown.items()}
        lists = self._all_lists()
        changes = self._vector.write_lists(lists, np.array([self._index[q] for q in partitions]), values)
        for i, view in unknown.items():  # a change of unknown values has no meaning
            after = update.values[accepted[partitions[i]]][view.older]
            changes.replace(i, before[i], after)
            view.known = True
        return AppliedUpdate(np.array(partitions), changes, [partitions[i] for i in unknown])

    def _all_lists(self) -> StateLists:
        if self._lists is None:
            self._lists = StateLists.of({q: view.states for q, view in self._views.items()})
            self._index = {q: i for i, q in enumerate(self._views)}
        return self._lists


class Subscribers:
    """Which workers read which states of a worker's partitions."""

    def __init__(self) -> None:
        self._wanted: dict[int, dict[int, StateList]] = {}
        self._lists: dict[int, tuple[StateLists, dict[int, int]]] = {}
        """All that each subscriber reads, and the position of each partition in it."""

    def add(self, reader: int, wanted: StateList) -> None:
        """Register a subscriber's newest list for a partition."""
        self._wanted.setdefault(wanted.partition, {})[reader] = wanted
        self._lists.pop(reader, None)

    def lists_for(self, partition: int) -> dict[int, StateList]:
        """Return the lists for a partition, by subscriber."""
        return self._wanted.get(partition, {})

    def items(self) -> Iterator[tuple[int, Iterable[int]]]:
        """Iterate over partitions with their subscribers."""
        return ((p, lists.keys()) for p, lists in self._wanted.items())

    def state_lists(self, reader: int, partitions: Iterable[int]) -> tuple[StateLists, IntArray]:
        """Return all that a subscriber reads, and which of these lists belong to the given partitions."""
        if reader not in self._lists:
            found = {p: lists[reader].states for p, lists in self._wanted.items() if reader in lists}
            self._lists[reader] = StateLists.of(found), {p: i for i, p in enumerate(found)}
        lists, index = self._lists[reader]
        return lists, np.array([index[p] for p in partitions])

    def remove_partition(self, partition: int) -> None:
        """Remove the lists for a partition that another worker owns now."""
        for reader in self._wanted.pop(partition, {}):
            self._lists.pop(reader, None)

    def remove_subscriber(self, reader: int) -> None:
        """Remove the lists of a worker that no longer takes part."""
        for lists in self._wanted.values():
            lists.pop(reader, None)
        self._lists.pop(reader, None)


_RETRY_SECONDS = 0.2
"""After a message that did not arrive, until the next one to the same worker."""

Send = Callable[[str, "Subscribe | Update", Callable[[bool], None]], None]
"""Sends a message to the worker at an address, and calls back, from any thread, whether it was received."""


@dataclass(slots=True)
class _Peer:
    address: str
    changed: set[int] = field(default_factory=set)
    requests: dict[int, None] = field(default_factory=dict)
    """Partitions to request, in order."""
    busy: bool = False
    """Whether a message is in flight."""
    not_before: float = 0.0


class SendQueue:
    """A worker's messages to the others; used by one thread.

    Parameters
    ----------
    send : sends one message.
    wake : called, from any thread, when a peer can receive the next message.
    """

    def __init__(self, send: Send, wake: Callable[[], None]) -> None:
        self._send, self._wake = send, wake
        self._peers: dict[int, _Peer] = {}
        self._delivered: deque[tuple[_Peer, Subscribe | Update, bool]] = deque()
        """Messages whose delivery has succeeded or failed, as reported by the event loop."""
        self.sent = 0
        self.bytes_sent = 0

    def __contains__(self, solver: int) -> bool:
        return solver in self._peers

    def add_peer(self, solver: int, address: str) -> None:
        """Add a peer that takes part from now on."""
        self._peers[solver] = _Peer(address)

    def remove_peer(self, solver: int) -> None:
        """Remove a peer that no longer takes part."""
        self._peers.pop(solver, None)

    def mark_changed(self, solver: int, partition: int) -> None:
        """Mark the changes of a partition for a subscriber; a peer that takes no part receives nothing."""
        if solver in self._peers:
            self._peers[solver].changed.add(partition)

    def discard(self, partition: int) -> None:
        """Send no more of a partition that now belongs to another worker."""
        for peer in self._peers.values():
            peer.changed.discard(partition)

    def request(self, solver: int, partition: int) -> None:
        """Ask a peer for a partition that this worker reads; a peer that takes no part is not asked."""
        if solver in self._peers:
            self._peers[solver].requests[partition] = None

    def is_drained(self) -> bool:
        """Return whether no message is in flight and none waits."""
        return not any(peer.busy or peer.changed or peer.requests for peer in self._peers.values())

    def next_send_in(self, now: float) -> float | None:
        """Return the seconds until a waiting message may be sent, negative if it is late; None where none waits."""
        return min((p.not_before - now for p in self._peers.values() if p.changed or p.requests), default=None)

    def flush(
        self,
        make_request: Callable[[int, int, Collection[int]], Subscribe | None],
        make_update: Callable[[int, int, Collection[int]], Update | None],
    ) -> None:
        """Send the waiting changes and requests to each peer that has acknowledged the last message.

        Parameters
        ----------
        make_request, make_update : make a message from the number of the peer, the number of the message and the
            partitions; None where it would be empty by now.
        """
        now = time.monotonic()
        while self._delivered:
            self._note_delivery(*self._delivered.popleft(), now)
        for solver, peer in self._peers.items():
            if peer.busy or now < peer.not_before:
                continue
            message: Subscribe | Update | None = None
            if peer.requests:
                requests, peer.requests = peer.requests, {}
                message = make_request(solver, self.sent + 1, requests)
            if message is None and peer.changed:
                changed, peer.changed = peer.changed, set()
                message = make_update(solver, self.sent + 1, changed)
            if message is not None:
                self._send_message(peer, message)

    def _send_message(self, peer: _Peer, message: Subscribe | Update) -> None:
        peer.busy = True
        self.sent += 1
        self.bytes_sent += message.nbytes

        def delivered(received: bool) -> None:
            self._delivered.append((peer, message, received))
            self._wake()

        self._send(peer.address, message, delivered)

    def _note_delivery(self, peer: _Peer, message: Subscribe | Update, received: bool, now: float) -> None:
        peer.busy = False
        if received:
            return
        peer.not_before = now + _RETRY_SECONDS
        if isinstance(message, Subscribe):
            peer.requests |= {wanted.partition: None for wanted in message.wanted}
        else:
            peer.changed |= set(message.partitions.tolist())
