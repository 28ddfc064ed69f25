"""What a solver sends the others: one message at a time to each, of what is so when it is sent."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import pytest
from solver_network import an_update

from ooc_mdp.distributed import subscriptions as outbox_module
from ooc_mdp.distributed.messages import StateList, Subscribe, Update
from ooc_mdp.distributed.subscriptions import SendQueue


class Sent:
    """An queue whose messages to solver 1, and callbacks of whether they have arrived, are kept."""

    def __init__(self) -> None:
        self.messages: list[Subscribe | Update] = []
        self.arrive: list[Callable[[bool], None]] = []
        self.wakes = 0
        self.queue = SendQueue(self._send, self._wake)
        self.queue.add_peer(1, "one")
        self.absent: set[int] = set()
        """Partitions of which there is nothing to say by now."""

    def _wake(self) -> None:
        self.wakes += 1

    def _send(self, address: str, message: Subscribe | Update, delivered: Callable[[bool], None]) -> None:
        assert address == "one"
        self.messages.append(message)
        self.arrive.append(delivered)

    def _question(self, solver: int, number: int, partitions: Collection[int]) -> Subscribe | None:
        wanted = [StateList(p, 1, np.array([p])) for p in partitions if p not in self.absent]
        return Subscribe(0, number, wanted) if wanted else None

    def _update(self, solver: int, number: int, partitions: Collection[int]) -> Update | None:
        of = {p: (1, 1, np.ones(1)) for p in sorted(partitions) if p not in self.absent}
        return an_update(of, 0, number) if of else None

    def post(self) -> list[Any]:
        """What is sent now: the kind of the message, its number and its partitions."""
        before = len(self.messages)
        self.queue.flush(self._question, self._update)
        return [(type(m).__name__, m.number, partitions_of(m)) for m in self.messages[before:]]


def partitions_of(message: Subscribe | Update) -> list[int]:
    if isinstance(message, Subscribe):
        return [wanted.partition for wanted in message.wanted]
    return message.partitions.tolist()


def test_a_message_waits_until_the_one_before_has_arrived_and_says_all_that_moved_meanwhile():
    it = Sent()
    it.queue.mark_changed(1, 3)
    assert it.post() == [("Update", 1, [3])]
    for p in (5, 4, 5):
        it.queue.mark_changed(1, p)
        assert it.post() == []
    assert not it.queue.is_drained()
    it.arrive[0](True)
    assert it.wakes == 1
    assert it.post() == [("Update", 2, [4, 5])]
    it.arrive[1](True)
    assert it.post() == []
    assert it.queue.is_drained()
    assert (it.queue.sent, it.queue.bytes_sent) == (2, sum(m.nbytes for m in it.messages))


def test_questions_go_before_what_moved_and_in_the_order_in_which_they_came():
    it = Sent()
    it.queue.mark_changed(1, 3)
    for p in (9, 7, 8):
        it.queue.request(1, p)
    assert it.post() == [("Subscribe", 1, [9, 7, 8])]
    it.arrive[0](True)
    assert it.post() == [("Update", 2, [3])]


@pytest.mark.parametrize("ask", [False, True])
def test_what_did_not_arrive_is_sent_again_after_a_pause_with_what_came_since(
    ask: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_module, "_RETRY_SECONDS", 1000.0)
    it = Sent()
    note = it.queue.request if ask else it.queue.mark_changed
    note(1, 3)
    ((kind, _, _),) = it.post()
    note(1, 4)
    it.arrive[0](False)
    assert it.post() == []
    pause = it.queue.next_send_in(0.0)
    assert pause is not None
    assert pause > 1000.0
    monkeypatch.setattr(outbox_module.time, "monotonic", lambda: pause)
    ((again, number, partitions),) = it.post()
    assert (again, number, sorted(partitions)) == (kind, 2, [3, 4])


def test_what_is_nobodys_to_ask_or_tell_any_more_is_left_out():
    it = Sent()
    for p in (3, 4):
        it.queue.mark_changed(1, p)
    it.queue.discard(3)
    it.queue.request(1, 7)
    it.absent = {7}
    assert it.post() == [("Update", 1, [4])]
    it.queue.remove_peer(1)
    it.queue.mark_changed(1, 5)
    it.queue.request(1, 8)
    it.arrive[0](False)
    assert it.post() == []
    assert it.queue.is_drained()
    assert it.queue.next_send_in(0.0) is None
