"""Mailboxes: the messages of a worker, and when it is passive."""

from __future__ import annotations

import asyncio
import threading

import pytest
from solver_network import an_update

from ooc_mdp.distributed.mailbox import Mailbox, Request
from ooc_mdp.distributed.messages import (
    Command,
    Start,
    Status,
    Subscribe,
    Update,
)


def a_message(number: int = 1) -> Update:
    return an_update({}, number=number)


def test_a_mailbox_gives_what_came_in_order_and_counts_it():
    async def check() -> None:
        mailbox = Mailbox(asyncio.get_running_loop())
        messages = [a_message(), Request(Command(1, Start())), Subscribe(1, 2, [])]
        for message in messages:
            mailbox.put(message)
        assert mailbox.status().activity == 3
        assert mailbox.take() == messages
        assert mailbox.take() == []

    asyncio.run(check())


def test_a_solver_is_passive_only_while_it_rests_with_nothing_under_way_and_nothing_unread():
    async def check() -> None:
        mailbox = Mailbox(asyncio.get_running_loop())
        mailbox.wait(lambda: False, 0.0)
        assert not mailbox.status().passive
        mailbox.put(a_message())
        mailbox.wait(lambda: True, 10.0)  # returns at once
        assert not mailbox.status().passive
        mailbox.take()
        mailbox.wait(lambda: True, 0.0)
        before = mailbox.status()
        assert before.passive
        mailbox.publish(Status(dirty=3))
        assert mailbox.status().passive
        assert mailbox.status().dirty == 3
        mailbox.put(a_message())
        after = mailbox.status()
        assert (after.passive, after.activity) == (False, before.activity + 1)
        mailbox.publish(Status())
        mailbox.take()
        mailbox.publish(Status())
        assert not mailbox.status().passive  # not before it has waited again

    asyncio.run(check())


@pytest.mark.parametrize("event", ["put", "wake", "evict"])
def test_whatever_happens_wakes_a_resting_solver(event):
    async def check() -> None:
        mailbox = Mailbox(asyncio.get_running_loop())
        waiting = threading.Thread(target=mailbox.wait, args=(lambda: True, 600.0))
        waiting.start()
        while not mailbox.status().passive:
            await asyncio.sleep(0.001)
        {"put": lambda: mailbox.put(a_message()), "wake": mailbox.wake, "evict": mailbox.evict}[event]()
        await asyncio.to_thread(waiting.join, 300.0)
        assert not waiting.is_alive()

    asyncio.run(check())


def test_a_question_for_the_status_is_answered_when_it_changes_or_time_is_up():
    async def check() -> None:
        mailbox = Mailbox(asyncio.get_running_loop())
        now = await mailbox.wait_for_change(-1, 60.0)
        assert now.version == 0
        assert (await mailbox.wait_for_change(0, 0.01)).version == 0
        asked = asyncio.ensure_future(mailbox.wait_for_change(0, 600.0))
        await asyncio.sleep(0)
        await asyncio.to_thread(mailbox.publish, Status(outcome="precision_limit"), True)
        assert (await asyncio.wait_for(asked, 300.0)).outcome == "precision_limit"

    asyncio.run(check())


def test_the_steps_of_a_start_are_published_immediately_and_kept():
    async def check() -> None:
        mailbox = Mailbox(asyncio.get_running_loop())
        version = -1
        for step in ("started", "compiling", "ready"):
            version = (await mailbox.wait_for_change(-1, 60.0)).version
            asked = asyncio.ensure_future(mailbox.wait_for_change(version, 600.0))
            await asyncio.to_thread(mailbox.mark, step)
            assert (await asyncio.wait_for(asked, 300.0)).version > version
        mailbox.publish(Status())
        status = mailbox.status()
        assert status.started
        assert status.compiling
        assert status.ready

    asyncio.run(check())


@pytest.mark.parametrize("waiting", [False, True])
def test_a_solver_that_works_for_long_is_stalled_and_one_that_waits_is_not(waiting: bool):
    async def check() -> None:
        mailbox = Mailbox(asyncio.get_running_loop())
        assert mailbox.status().stalled_seconds == 0.0
        mailbox.mark("started")
        mailbox.take()
        thread = threading.Thread(target=mailbox.wait, args=(lambda: True, 600.0))
        if waiting:
            thread.start()
            while not mailbox.status().passive:
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.1)
        assert (mailbox.status().stalled_seconds == 0.0) == waiting
        mailbox.evict()
        if waiting:
            await asyncio.to_thread(thread.join, 300.0)

    asyncio.run(check())
