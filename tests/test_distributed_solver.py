"""What a solver of several does with what comes, in whatever order it comes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from solver_network import HostVector, an_update

from ooc_mdp.distributed import solver as solver_module
from ooc_mdp.distributed.exchange import Interests, Readers
from ooc_mdp.distributed.mailbox import Mailbox, Request
from ooc_mdp.distributed.messages import (
    Assignment,
    Command,
    Go,
    Halt,
    Subscribe,
)
from ooc_mdp.distributed.outbox import Outbox


def bare_solver(mailbox: Mailbox, **facts: Any) -> Any:
    """A solver without a run, for what it does before it needs one."""
    solver = solver_module._Solver.__new__(solver_module._Solver)
    asked = SimpleNamespace(lease=60.0)
    known = {"_mailbox": mailbox, "_obeyed": 0, "_halted": False, "_gone": set(), "_newest": {}, "_asked": asked}
    for name, value in (known | facts).items():
        setattr(solver, name, value)
    return solver


def test_a_command_that_comes_late_or_again_is_not_obeyed():
    async def check() -> None:
        mailbox = Mailbox(asyncio.get_running_loop())
        requests = [Request(Command(2, Halt())), Request(Command(1, Go())), Request(Command(2, Go()))]
        for request in requests:
            mailbox.put(request)
        solver = bare_solver(mailbox)
        solver._take_in()
        assert solver._halted
        assert all(request.answer.result(0) is None for request in requests)

    asyncio.run(check())


def test_a_solver_goes_on_where_nobody_waits_for_its_answer_any_more():
    async def check() -> None:
        mailbox = Mailbox(asyncio.get_running_loop())
        request = Request(Command(1, Halt()))
        mailbox.put(request)
        waiting = asyncio.ensure_future(asyncio.wrap_future(request.answer))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.sleep(0)
        solver = bare_solver(mailbox)
        solver._take_in()
        assert solver._halted

    asyncio.run(check())


def test_a_solver_that_is_never_at_rest_ends_too_once_its_coordinator_is_silent_for_longer_than_the_lease():
    async def check() -> None:
        mailbox = Mailbox(asyncio.get_running_loop())
        solver = bare_solver(mailbox, _pass_on=lambda: None, _leave=False, _published=np.inf)
        solver.exchange()
        mailbox.heard -= 61.0
        solver.exchange()  # it may have been stopped, and has yet to read what came meanwhile
        mailbox.heard += 61.0
        solver.exchange()
        mailbox.heard -= 61.0
        solver.exchange()
        assert mailbox._unheard is not None
        mailbox._unheard -= 16.0
        with pytest.raises(solver_module._Ended, match="coordinator has not been heard of"):
            solver.exchange()

    asyncio.run(check())


def test_values_that_come_after_newer_ones_of_the_same_sender_are_not_taken():
    async def check() -> None:
        mailbox = Mailbox(asyncio.get_running_loop())
        heard = []
        solver = bare_solver(mailbox, _hear=heard.append, _note_reader=heard.append)
        first, second, third = an_update({}, 1, 1), an_update({}, 1, 2), Subscribe(1, 3, [])
        of_another, of_one_lost = an_update({}, 2, 1), an_update({}, 3, 9)
        solver._gone.add(3)
        for message in (second, first, second, of_another, third, of_one_lost):
            mailbox.put(message)
        solver._take_in()
        assert heard == [second, of_another, third]

    asyncio.run(check())


def test_only_the_present_owner_of_a_partition_is_asked_for_it():
    async def check() -> None:
        posted = []
        outbox = Outbox(lambda address, message, delivered: posted.append((address, message)), lambda: None)
        interests = Interests(HostVector(6))
        interests.read({q: [np.array([q])] for q in (4, 5)}, True)
        owner = np.array([0, 0, 0, 0, 2, 1, 0])
        solver = bare_solver(
            Mailbox(asyncio.get_running_loop()),
            _me=0,
            _run=SimpleNamespace(moved=np.zeros(owner.size, np.bool_)),
            _readers=Readers(),
            _outbox=outbox,
            _interests=interests,
            _assignment=Assignment(3, owner, np.zeros_like(owner), {}),
        )
        # 4 was 1's until now, and has been asked of 2 since; 6 has become this solver's own.
        for k in (1, 2):
            outbox.meet(k, str(k))
        for k, p in ((1, 4), (1, 5), (1, 6), (2, 4)):
            outbox.ask(k, p)
        solver._pass_on()
        asked = [(address, [w.partition for w in message.wanted], message.number) for address, message in posted]
        assert asked == [("1", [5], 1), ("2", [4], 2)]
        assert outbox.pause(0.0) is None

    asyncio.run(check())
