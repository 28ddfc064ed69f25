"""The plugin that answers requests to a worker: whose mailbox is open, and how values reach the coordinator."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import numpy as np

from ooc_mdp.distributed.endpoint import SolverPlugin, unwrapped
from ooc_mdp.distributed.mailbox import Request
from ooc_mdp.distributed.messages import Command, CommandRequest, NoSuchRun, SnapshotRequest, StatusRequest, Values


def plugin_with_a_mailbox(number: int) -> SolverPlugin:
    plugin = SolverPlugin()
    plugin.setup(SimpleNamespace(handlers={}, metrics={}))  # type: ignore[arg-type]
    plugin.open("run", number)
    return plugin


def test_a_command_is_answered_with_the_values_that_the_solver_gives() -> None:
    values = Values(np.arange(1), np.arange(200_000.0), np.zeros(200_000, np.int32), np.ones(1, np.bool_))

    async def ask() -> object:
        plugin = plugin_with_a_mailbox(3)
        mailbox = plugin.mailbox("run")
        assert mailbox is not None
        asked = asyncio.ensure_future(plugin.handle("run", CommandRequest(Command(1, SnapshotRequest()))))
        await asyncio.sleep(0)
        (request,) = mailbox.take()
        assert isinstance(request, Request)
        request.answer.set_result(values)
        return unwrapped(await asked)

    assert asyncio.run(ask()) is values


def test_a_solver_that_has_ended_closes_its_own_mailbox_and_no_later_solvers() -> None:
    async def close() -> None:
        plugin = plugin_with_a_mailbox(3)
        mailbox = plugin.mailbox("run")
        plugin.close("run", 2)
        assert plugin.mailbox("run") is mailbox
        plugin.close("run", 3)
        assert plugin.mailbox("run") is None
        assert isinstance(unwrapped(await plugin.handle("run", StatusRequest())), NoSuchRun)

    asyncio.run(close())
