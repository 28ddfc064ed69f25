"""What a solver of several does with what comes, in whatever order it comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from solver_network import an_update

from ooc_mdp.distributed import worker as solver_module
from ooc_mdp.distributed.mailbox import Mailbox, Request
from ooc_mdp.distributed.messages import (
    Command,
    Pause,
    Start,
    Subscribe,
)


def bare_solver(mailbox: Mailbox, receive: Callable[[Any], None] = lambda _: None, **facts: Any) -> Any:
    """A solver without a run, for what it does before it needs one."""
    solver = solver_module.NetworkPeers.__new__(solver_module.NetworkPeers)
    asked = SimpleNamespace(lease=60.0)
    shard = SimpleNamespace(
        removed_peers=set(),
        restart_method=False,
        publish_changes=lambda: None,
        apply_update=receive,
        add_subscriber=receive,
    )
    known = {
        "_mailbox": mailbox,
        "_last_command": 0,
        "_paused": False,
        "_restart": False,
        "_last_messages": {},
        "_asked": asked,
        "_shard": shard,
    }
    for name, value in (known | facts).items():
        setattr(solver, name, value)
    return solver


def test_a_command_that_comes_late_or_again_is_not_obeyed():
    async def check() -> None:
        mailbox = Mailbox(asyncio.get_running_loop())
        requests = [Request(Command(2, Pause())), Request(Command(1, Start())), Request(Command(2, Start()))]
        for request in requests:
            mailbox.put(request)
        solver = bare_solver(mailbox)
        solver.process_messages()
        assert solver._paused
        assert all(request.answer.result(0) is None for request in requests)

    asyncio.run(check())


def test_a_solver_goes_on_where_nobody_waits_for_its_answer_any_more():
    async def check() -> None:
        mailbox = Mailbox(asyncio.get_running_loop())
        request = Request(Command(1, Pause()))
        mailbox.put(request)
        waiting = asyncio.ensure_future(asyncio.wrap_future(request.answer))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.sleep(0)
        solver = bare_solver(mailbox)
        solver.process_messages()
        assert solver._paused

    asyncio.run(check())


def test_a_solver_that_is_never_at_rest_ends_too_once_its_coordinator_is_silent_for_longer_than_the_lease():
    async def check() -> None:
        mailbox = Mailbox(asyncio.get_running_loop())
        solver = bare_solver(mailbox, _published=np.inf)
        solver.exchange()
        mailbox.last_contact -= 61.0
        solver.exchange()  # it may have been stopped, and has yet to read what came meanwhile
        mailbox.last_contact += 61.0
        solver.exchange()
        mailbox.last_contact -= 61.0
        solver.exchange()
        assert mailbox._expired_since is not None
        mailbox._expired_since -= 16.0
        with pytest.raises(solver_module._SolveEnded, match="coordinator has sent no request"):
            solver.exchange()

    asyncio.run(check())


def test_values_that_come_after_newer_ones_of_the_same_sender_are_not_taken():
    async def check() -> None:
        mailbox = Mailbox(asyncio.get_running_loop())
        last_contact = []
        solver = bare_solver(mailbox, last_contact.append)
        first, second, third = an_update({}, 1, 1), an_update({}, 1, 2), Subscribe(1, 3, [])
        of_another, of_one_lost = an_update({}, 2, 1), an_update({}, 3, 9)
        solver._shard.removed_peers.add(3)
        for message in (second, first, second, of_another, third, of_one_lost):
            mailbox.put(message)
        solver.process_messages()
        assert last_contact == [second, of_another, third]

    asyncio.run(check())
