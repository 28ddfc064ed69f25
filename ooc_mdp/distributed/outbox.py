"""What a solver has to tell the others: a message at a time to each, which says what is so when it is sent.

    what moved, questions ─▶ a peer's notes ─▶ message ─▶ peer
                                  ▲               │
                                  └── not arrived ┘

A message waits until the one before it has arrived. What comes up meanwhile is only noted, by partition: the next one
has the values of its own moment, so that a slow peer is sent less often, and nothing piles up. Questions go first,
since somebody waits for the answers.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from ooc_mdp.distributed.messages import Subscribe, Update

__all__ = ["Outbox", "Send"]

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


class Outbox:
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

    def meet(self, solver: int, address: str) -> None:
        """Another solver, which takes part from now on."""
        self._peers[solver] = _Peer(address)

    def forget(self, solver: int) -> None:
        """It takes part no longer."""
        self._peers.pop(solver, None)

    def tell(self, solver: int, partition: int) -> None:
        """It reads what has moved in this partition of ours; one that takes no part is told nothing."""
        if solver in self._peers:
            self._peers[solver].moved.add(partition)

    def tell_nobody(self, partition: int) -> None:
        """It is no longer ours to tell of."""
        for peer in self._peers.values():
            peer.moved.discard(partition)

    def ask(self, solver: int, partition: int) -> None:
        """We read this partition of its; one that takes no part is asked nothing."""
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
