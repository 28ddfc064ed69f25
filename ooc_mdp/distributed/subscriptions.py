"""Which states of others' partitions a solver reads, what it knows of them, and who reads its own.

A solver reads the halos of its partitions: for each partition q of another, one list of states, the union over its own
partitions. Its value vector has them as it was last told (its *view* of q), so that a new message says by how much they
rose and fell, which is what the bounds of its partitions take in. What was never told it is not known, and no
partition of its own may be swept that reads it.
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
    """The states of a sorted halo by the partition that owns them."""
    if not halo.size:
        return {}
    of = np.searchsorted(partition_ptr, halo, side="right") - 1
    first = np.flatnonzero(np.diff(of, prepend=-1))
    return dict(zip(of[first].tolist(), np.split(halo, first[1:]), strict=True))


@dataclass(slots=True)
class ReceivedList:
    """A list of states of one partition, and what is known of their values."""

    states: IntArray
    known: bool
    """Whether the vector's values are what bounds were taken at, all of them."""
    older: IntArray
    """int64; places in the list that were known before the list was last extended (all, where `known`)."""
    serial: int
    generation: int = -1


@dataclass(frozen=True, slots=True)
class AppliedUpdate:
    """What a message changed of the views of k partitions."""

    partitions: IntArray
    """int64 [k]."""
    changes: ListChanges
    """Of known values."""
    complete: list[int]
    """Partitions of which something was not known before, and all is now."""


class Vector(Protocol):
    """A solver's value vector."""

    def read(self, states: IntArray) -> FloatArray:
        """Values of states."""
        ...

    def take(self, lists: StateLists, which: IntArray, values: FloatArray) -> ListChanges:
        """New values of some of the lists, and how they differ."""
        ...


class Subscriptions:
    """What a solver reads of others' partitions.

    Parameters
    ----------
    vector : has the values of views at any time: nobody else writes them.
    reader : the solver's number.
    """

    def __init__(self, vector: Vector, reader: int = 0) -> None:
        self._vector = vector
        self._views: dict[int, ReceivedList] = {}
        self._lists: StateLists | None = None
        self._index: dict[int, int] = {}
        """Where each view is among the lists."""
        self._serial = reader << 32
        """Of the newest list; no two lists have the same, whatever partition they are of and whoever reads them: a
        worker that has come back gets what was meant for the solver that it had before."""

    def __iter__(self) -> Iterator[int]:
        return iter(self._views)

    def read(self, wanted: dict[int, list[IntArray]], known: bool) -> set[int]:
        """Read more states of some partitions.

        Parameters
        ----------
        wanted : lists of states by partition; may overlap each other and what is read already.
        known : whether the vector's values are the owners' too.

        Returns
        -------
        The partitions whose lists are longer now.
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

    def ask(self, partitions: Iterable[int]) -> list[StateList]:
        """Lists for the owners of the partitions, under new serials: answers to earlier ones no longer count."""
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
        """Partitions of whose states some are not known."""
        return {q for q, view in self._views.items() if not view.known}

    def drop(self, partition: int) -> None:
        """The partition is the solver's own now, or none of its partitions reads it."""
        if self._views.pop(partition, None) is not None:
            self._lists = None

    def told(self, partition: int) -> tuple[IntArray, FloatArray] | None:
        """States of a partition whose values are known, and these; None where there are none."""
        view = self._views.get(partition)
        if view is None or not (view.known or view.older.size):
            return None
        states = view.states if view.known else view.states[view.older]
        return states, self._vector.read(states)

    def hear(self, update: Update) -> AppliedUpdate | None:
        """Put values into the vector, apart from those of earlier lists or owners; None if there are no others."""
        heard: dict[int, slice] = {}
        facts = update.partitions, update.serials, update.generations, update.ptr[:-1], update.ptr[1:]
        for q, serial, generation, start, stop in np.stack(facts, axis=1).tolist():
            view = self._views.get(q)
            if view is not None and serial == view.serial and generation >= view.generation:
                view.generation = generation
                heard[q] = slice(start, stop)
        if not heard:
            return None
        partitions = list(heard)
        values = update.values
        if len(heard) < update.partitions.size:
            values = np.concatenate([values[piece] for piece in heard.values()])
        fresh = {i: self._views[q] for i, q in enumerate(partitions) if not self._views[q].known}
        before = {i: self._vector.read(view.states[view.older]) for i, view in fresh.items()}
        lists = self._all_lists()
        changes = self._vector.take(lists, np.array([self._index[q] for q in partitions]), values)
        for i, view in fresh.items():  # what becomes of values that were not known means nothing
            after = update.values[heard[partitions[i]]][view.older]
            changes.replace(i, before[i], after)
            view.known = True
        return AppliedUpdate(np.array(partitions), changes, [partitions[i] for i in fresh])

    def _all_lists(self) -> StateLists:
        if self._lists is None:
            self._lists = StateLists.of({q: view.states for q, view in self._views.items()})
            self._index = {q: i for i, q in enumerate(self._views)}
        return self._lists


class Subscribers:
    """Who reads which states of a solver's partitions."""

    def __init__(self) -> None:
        self._wanted: dict[int, dict[int, StateList]] = {}
        self._lists: dict[int, tuple[StateLists, dict[int, int]]] = {}
        """Of each reader, all that it reads, and where each partition is in it."""

    def add(self, reader: int, wanted: StateList) -> None:
        """A reader's newest list for a partition."""
        self._wanted.setdefault(wanted.partition, {})[reader] = wanted
        self._lists.pop(reader, None)

    def of(self, partition: int) -> dict[int, StateList]:
        """Lists by reader."""
        return self._wanted.get(partition, {})

    def items(self) -> Iterator[tuple[int, Iterable[int]]]:
        """Partitions with their readers."""
        return ((p, lists.keys()) for p, lists in self._wanted.items())

    def lists_of(self, reader: int, partitions: Iterable[int]) -> tuple[StateLists, IntArray]:
        """All that a reader reads, and which of these lists are of the partitions, which it reads."""
        if reader not in self._lists:
            found = {p: lists[reader].states for p, lists in self._wanted.items() if reader in lists}
            self._lists[reader] = StateLists.of(found), {p: i for i, p in enumerate(found)}
        lists, index = self._lists[reader]
        return lists, np.array([index[p] for p in partitions])

    def forget_partition(self, partition: int) -> None:
        """It is another's now."""
        for reader in self._wanted.pop(partition, {}):
            self._lists.pop(reader, None)

    def forget_reader(self, reader: int) -> None:
        """Remove a peer that no longer takes part."""
        for lists in self._wanted.values():
            lists.pop(reader, None)
        self._lists.pop(reader, None)


_RETRY_SECONDS = 0.2
"""After a message that did not arrive, before the next to the same solver."""

Send = Callable[[str, "Subscribe | Update", Callable[[bool], None]], None]
"""Sends a message to the solver at an address, and calls back, from any thread, whether it has arrived."""


@dataclass(slots=True)
class _Peer:
    address: str
    moved: set[int] = field(default_factory=set)
    questions: dict[int, None] = field(default_factory=dict)
    """In order."""
    busy: bool = False
    """A message is on its way."""
    not_before: float = 0.0


class SendQueue:
    """One solver's messages to the others; one thread owns it.

    Parameters
    ----------
    send : sends one.
    wake : called, from any thread, when something may be sent again.
    """

    def __init__(self, send: Send, wake: Callable[[], None]) -> None:
        self._send, self._wake = send, wake
        self._peers: dict[int, _Peer] = {}
        self._delivered: deque[tuple[_Peer, Subscribe | Update, bool]] = deque()
        """What became of messages, as the event loop tells."""
        self.sent = 0
        self.bytes_sent = 0

    def __contains__(self, solver: int) -> bool:
        return solver in self._peers

    def add_peer(self, solver: int, address: str) -> None:
        """Another solver, which takes part from now on."""
        self._peers[solver] = _Peer(address)

    def remove_peer(self, solver: int) -> None:
        """Remove a peer that no longer takes part."""
        self._peers.pop(solver, None)

    def mark_changed(self, solver: int, partition: int) -> None:
        """Mark the changes of a partition for a subscriber; a peer that takes no part receives nothing."""
        if solver in self._peers:
            self._peers[solver].moved.add(partition)

    def discard(self, partition: int) -> None:
        """Send no more of a partition that now belongs to another worker."""
        for peer in self._peers.values():
            peer.moved.discard(partition)

    def request(self, solver: int, partition: int) -> None:
        """Ask a peer for a partition that this worker reads; a peer that takes no part is not asked."""
        if solver in self._peers:
            self._peers[solver].questions[partition] = None

    def quiet(self) -> bool:
        """Whether nothing is on its way, and nothing left to send."""
        return not any(peer.busy or peer.moved or peer.questions for peer in self._peers.values())

    def pause(self, now: float) -> float | None:
        """Seconds until something that waits may be sent, which may be past; None where nothing waits."""
        return min((p.not_before - now for p in self._peers.values() if p.moved or p.questions), default=None)

    def post(
        self,
        question: Callable[[int, int, Collection[int]], Subscribe | None],
        update: Callable[[int, int, Collection[int]], Update | None],
    ) -> None:
        """Send to each solver what waits for it, unless it has yet to take in what it was sent before.

        Parameters
        ----------
        question, update : make a message, from the solver that it is to, its number and the partitions that were
            noted; None where there is nothing to say by now.
        """
        now = time.monotonic()
        while self._delivered:
            self._note_delivery(*self._delivered.popleft(), now)
        for solver, peer in self._peers.items():
            if peer.busy or now < peer.not_before:
                continue
            message: Subscribe | Update | None = None
            if peer.questions:
                questions, peer.questions = peer.questions, {}
                message = question(solver, self.sent + 1, questions)
            if message is None and peer.moved:
                moved, peer.moved = peer.moved, set()
                message = update(solver, self.sent + 1, moved)
            if message is not None:
                self._post(peer, message)

    def _post(self, peer: _Peer, message: Subscribe | Update) -> None:
        peer.busy = True
        self.sent += 1
        self.bytes_sent += message.nbytes

        def delivered(well: bool) -> None:
            self._delivered.append((peer, message, well))
            self._wake()

        self._send(peer.address, message, delivered)

    def _note_delivery(self, peer: _Peer, message: Subscribe | Update, well: bool, now: float) -> None:
        peer.busy = False
        if well:
            return
        peer.not_before = now + _RETRY_SECONDS
        if isinstance(message, Subscribe):
            peer.questions |= {wanted.partition: None for wanted in message.wanted}
        else:
            peer.moved |= set(message.partitions.tolist())
