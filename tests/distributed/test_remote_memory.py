"""Answers that are copied from the memory of the process that has them."""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ooc_mdp.distributed import endpoint, remote_memory
from ooc_mdp.distributed.endpoint import SolverPlugin, unwrapped
from ooc_mdp.distributed.mailbox import Request
from ooc_mdp.distributed.membership import Member, Membership
from ooc_mdp.distributed.messages import Command, CommandRequest, ReleaseRequest, SnapshotRequest, Values
from ooc_mdp.distributed.remote_memory import (
    ExposedArrays,
    ProcessId,
    RemoteAnswer,
    RemoteArray,
    attach,
    can_attach,
    read,
    this_process,
)

needs_linux = pytest.mark.skipif(this_process() is None, reason="no process can read another's memory here")

ANSWERING = """
import pickle, sys
import numpy as np
from ooc_mdp.distributed.remote_memory import ExposedArrays, this_process
from ooc_mdp.distributed.messages import Values
answer = Values(np.arange(2), np.arange(500_000.0), np.arange(500_000, dtype=np.int32), np.ones(2, np.bool_))
loan = ExposedArrays(answer)
sys.stdout.buffer.write(pickle.dumps((this_process(), loan.handle())))
sys.stdout.buffer.flush()
sys.stdin.read()
"""


@needs_linux
def test_arrays_of_another_process_are_read_where_they_are() -> None:
    command = [sys.executable, "-c", ANSWERING]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        there, remote = pickle.load(process.stdout)
        assert can_attach(there)
        assert there.process == process.pid
        answer = attach(remote)
        values, policy = np.empty(300_001), np.empty(2, np.int32)
        read(answer.values, slice(199_999, 500_000), values)
        read(answer.policy, slice(7, 9), policy)
        with pytest.raises(ValueError, match="2 elements of float64 do not fit 2 of int32"):
            read(answer.values, slice(0, 2), policy)
        process.stdin.close()
    assert len(remote.pickled) < 2_000
    assert answer.partitions.tolist() == [0, 1]
    assert answer.visited.tolist() == [True, True]
    assert values.tolist() == list(range(199_999, 500_000))
    assert policy.tolist() == [7, 8]
    with pytest.raises(OSError, match="cannot be read"):
        read(answer.values, slice(0, 1), np.empty(1))  # the process is gone


@needs_linux
def test_memory_that_is_not_there_is_an_error_and_no_crash() -> None:
    with pytest.raises(OSError, match=f"memory of process {os.getpid()} cannot be read"):
        read(RemoteArray(os.getpid(), 8, "<f8", 100), slice(0, 100), np.empty(100))


def test_only_large_arrays_are_lent() -> None:
    few = Values(np.arange(2), np.zeros(10), np.zeros(10, np.int32), np.ones(2, np.bool_))
    some = Values(np.arange(2), np.zeros(200_000), np.zeros(200_000, np.int32), np.ones(2, np.bool_))
    assert not ExposedArrays(few).worthwhile
    answer = attach(ExposedArrays(some).handle())
    assert isinstance(answer.values, RemoteArray)
    assert isinstance(answer.policy, np.ndarray)


def test_a_process_borrows_of_others_of_its_machine_only() -> None:
    assert not can_attach(None)
    assert not can_attach(this_process())
    assert not can_attach(ProcessId("another", 1))


@needs_linux
def test_a_loan_stays_until_that_one_is_given_back_or_its_solver_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy and what a solver gives up are read at the same time."""
    monkeypatch.setattr(endpoint, "_EXPOSED_SECONDS", 0.0)
    own = this_process()
    assert own is not None
    asker = ProcessId(own.machine, own.process + 1)
    answers = [
        Values(np.arange(1), np.full(200_000, float(k)), np.zeros(200_000, np.int32), np.ones(1)) for k in range(4)
    ]

    async def check() -> None:
        plugin = SolverPlugin()
        plugin.setup(SimpleNamespace(handlers={}, metrics={}))  # type: ignore[arg-type]
        plugin.open("run", 3)
        mailbox = plugin.mailbox("run")
        assert mailbox is not None

        async def remote(number: int) -> Any:
            asked = asyncio.ensure_future(
                plugin.handle("run", CommandRequest(Command(number, SnapshotRequest()), asker))
            )
            await asyncio.sleep(0)
            (request,) = mailbox.take()
            assert isinstance(request, Request)
            request.answer.set_result(answers[number])
            copy = np.empty(200_000)
            read(attach(unwrapped(await asked)).values, slice(0, 200_000), copy)
            return copy[0]

        async def give_back(number: int, whole: bool = False) -> Any:
            return unwrapped(await plugin.handle("run", ReleaseRequest(number, whole)))

        assert [await remote(number) for number in range(2)] == [0, 1]
        assert await give_back(0) is True
        assert await give_back(0) is None
        assert await give_back(1, whole=True) is answers[1]
        for number in (1, 2, 3):  # who does not give back is no longer reading
            await remote(number)
        assert [await give_back(number) for number in (1, 2)] == [None, True]
        plugin.close("run", 2)
        assert plugin.mailbox("run") is mailbox  # a later solver's
        plugin.close("run", 3)
        assert plugin.mailbox("run") is None
        for _ in range(1000):
            if plugin._exposed:
                await asyncio.sleep(0.01)
        assert not plugin._exposed

    asyncio.run(check())


@pytest.mark.parametrize("kept", [True, None])
def test_what_was_read_counts_only_if_the_loan_was_there_to_the_end(kept: bool | None) -> None:
    taken = []

    async def settle(copied: bool) -> Any:
        assert copied
        return kept

    async def request(*_: Any) -> RemoteAnswer:
        return RemoteAnswer(answer, settle)

    async def check() -> Any:
        members = Membership(SimpleNamespace(request=request), {0: Member("a")}, 1.0)  # type: ignore[arg-type]
        return await members.request_values(0, SnapshotRequest(), taken.append)

    answer = Values(np.arange(1), np.zeros(1), np.zeros(1, np.int32), np.ones(1, np.bool_))
    assert asyncio.run(check()) is (answer if kept else None)
    assert taken == [answer]


def test_where_the_system_cannot_read_memory_there_is_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_memory, "_read_memory", lambda: None)
    this_process.cache_clear()
    try:
        assert this_process() is None
    finally:
        this_process.cache_clear()


def test_where_it_may_not_be_read_an_answer_comes_over_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers read from memory make no difference to the result."""
    import ooc_mdp
    from ooc_mdp.distributed.cluster import local_cluster

    # Values of a little more than a MiB: smaller answers are sent.
    store = ooc_mdp.generate("mountain-car", tmp_path / "s", {"grid": "364,364"}, partition_grid=[4, 4])
    asked = {"discount": 0.5, "epsilon": 1e-3, "device": "cpu", "cache": "100%", "worker_timeout": 300.0}
    tried = []

    def refused(process: int, address: int, to: object) -> None:
        tried.append(address)
        raise PermissionError("not here")

    with local_cluster(1, 0) as client:
        remote = ooc_mdp.solve(store, workers=client, **asked)
        monkeypatch.setattr(remote_memory, "_read", refused)
        sent = ooc_mdp.solve(store, workers=client, **asked)
    assert bool(tried) == (this_process() is not None)
    assert np.abs(remote.values - sent.values).max() <= remote.error_bound + sent.error_bound
    assert (remote.policy >= -1).all()
