"""What the coordinator claims, whom it takes for lost, and what it waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from small_mdps import Case, make_store
from solver_network import an_update, first_values
from store_models import random_model

from ooc_mdp.distributed import endpoint
from ooc_mdp.distributed.coordinator import Coordinator, Division
from ooc_mdp.distributed.membership import Member, Membership
from ooc_mdp.distributed.messages import (
    MIN_BANDWIDTH,
    Accepted,
    Assignment,
    Status,
    Values,
    WorkerRequest,
)
from ooc_mdp.distributed.partition_graph import partition_graph
from ooc_mdp.distributed.snapshots import StartingPoint, ValueSnapshot
from ooc_mdp.model.statistics import SolveStatistics
from ooc_mdp.options import SolveOptions
from ooc_mdp.solver.history import HistoryRecorder


@pytest.fixture
def two_workers(tmp_path: Path) -> Coordinator:
    """A coordinator of two workers that own two partitions each and have applied the first assignment."""
    store = make_store(Case(random_model(2, 12), partitions=4), tmp_path / "s")
    figures = {"error_bound": 0.5, "residual_bound": 0.1, "dirty": 1, "epoch": 1, "pending": False}
    members = {k: Member(str(k), status=Status(**figures)) for k in (0, 1)}
    coordinator = Coordinator(
        store,
        SolveOptions(0.9, device="cpu"),
        Membership(SimpleNamespace(), members, 1.0),
        Division(np.array([0, 0, 1, 1]), partition_graph(store)),
        StartingPoint(first_values(store), HistoryRecorder(np.zeros(4, np.int64))),
    )
    coordinator.ownership.epoch = 1
    return coordinator


def test_progress_is_the_largest_bound_of_those_that_own_partitions(two_workers: Coordinator):
    two_workers._members.by_number[1].status.error_bound = 0.7
    now = two_workers.progress()
    assert (now.error_bound, now.residual_bound, now.dirty) == (0.7, 0.1, 2)
    two_workers._members.by_number[2] = Member("2", status=Status(epoch=1))  # a late joiner, which owns nothing yet
    assert two_workers.progress().error_bound == 0.7


@pytest.mark.parametrize(
    ("what", "dirty"),
    [("lost", 3), ("migrated", 3), ("not acknowledged", 3), ("pending", 3), ("before the start", 4)],
)
def test_no_bound_is_claimed_while_nobody_answers_for_a_partition(two_workers: Coordinator, what: str, dirty: int):
    solvers = two_workers._members.by_number
    if what == "lost":
        solvers[1].alive = False
    elif what == "migrated":
        two_workers.ownership.owner[2] = -1
    elif what == "not acknowledged":
        two_workers.ownership.owner[1], two_workers.ownership.generation[1] = 1, 2
    elif what == "pending":
        solvers[1].status.pending, solvers[1].status.dirty = True, 2
    else:
        for member in solvers.values():
            member.status = Status()
    now = two_workers.progress()
    assert (now.error_bound, now.residual_bound, now.dirty) == (np.inf, np.inf, dirty)


def test_the_loss_of_a_worker_that_owns_nothing_is_announced_too(
    two_workers: Coordinator, monkeypatch: pytest.MonkeyPatch
):
    """The others would send their values to it for ever, and none of them would be passive."""
    members, sent = two_workers._members, list[Assignment]()

    async def send_each(command: Callable[[int], Assignment]) -> None:
        sent.append(command(0))

    monkeypatch.setattr(members, "send_each", send_each)
    members.by_number[2] = Member("2")
    asyncio.run(two_workers.ownership.begin())
    members.by_number[2].alive = False
    for _ in range(2):
        asyncio.run(two_workers.ownership.replace_lost())
    assert [sorted(assignment.addresses) for assignment in sent] == [[0, 1, 2], [0, 1]]
    assert [assignment.owner.tolist() for assignment in sent] == [[0, 0, 1, 1]] * 2


@pytest.mark.parametrize("compiling", [False, True])
def test_a_solver_that_compiles_for_long_is_not_taken_for_one_that_hangs(
    two_workers: Coordinator, monkeypatch: pytest.MonkeyPatch, compiling: bool
):
    lost: list[int] = []
    monkeypatch.setattr(two_workers._members, "mark_lost", lambda number, why: lost.append(number))
    first, second = (member.status for member in two_workers._members.by_number.values())
    first.started = first.ready = second.started = True
    second.stalled_seconds, second.compiling = 1e4, compiling
    for now in (100.0, 200.0):
        monkeypatch.setattr("ooc_mdp.distributed.stragglers.time", SimpleNamespace(monotonic=lambda t=now: t))
        two_workers._stragglers.drop_hung()
    assert lost == ([] if compiling else [1])


def test_what_solvers_have_read_counts_as_read_whatever_was_copied(two_workers: Coordinator):
    for member, never in zip(two_workers._members.by_number.values(), (2, 3), strict=True):
        member.status.statistics = SolveStatistics(n_partitions=4, partitions_unread=never)
    assert two_workers.statistics().partitions_unread == 1
    two_workers.known.visited[:] = True
    assert two_workers.statistics().partitions_unread == 0


@pytest.mark.parametrize(("failures", "lost"), [(1, False), (2, True)])
def test_a_coordinator_that_stood_still_asks_once_more_before_a_solver_is_lost(failures: int, lost: bool):
    async def check() -> None:
        left, settled = failures, asyncio.Event()

        async def request(number: int, what: WorkerRequest, timeout: float) -> Any:
            nonlocal left
            await asyncio.sleep(0.001)
            if not left:
                settled.set()
                return Status()
            left -= 1
            if left == failures - 1:
                members.by_number[0].answered -= 60.0
            raise TimeoutError

        async def no(_: int) -> bool:
            return False

        async def release(_: int) -> None:
            settled.set()

        link: Any = SimpleNamespace(request=request, lost=no, release=release)
        members = Membership(link, {0: Member("a")}, 1.0)
        members.follow_all()
        await asyncio.wait_for(settled.wait(), 300.0)
        await members.close()
        assert members.alive() == ([] if lost else [0])

    asyncio.run(check())


def test_what_is_large_is_waited_for_longer(monkeypatch: pytest.MonkeyPatch):
    """It would be sent again and again, and never arrive."""
    values = Values(np.arange(1), np.zeros(10**6), np.zeros(10**6, np.int32), np.zeros(1, np.bool_))
    none = np.zeros(1, np.int32)
    monkeypatch.setattr(endpoint, "_SEND_SECONDS", 0.1)
    waited: list[float] = []

    async def request(number: int, what: WorkerRequest, timeout: float) -> Accepted:
        waited.append(timeout)
        return Accepted()

    async def answer(**_: Any) -> Accepted:
        return Accepted()

    async def no(_: int) -> bool:
        return False

    async def wait_for(asked: Any, timeout: float) -> Any:
        waited.append(timeout)
        return await asked

    async def check() -> None:
        members = Membership(SimpleNamespace(request=request, lost=no), {0: Member("a")}, 0.1)  # type: ignore[arg-type]
        await members.send(0, Assignment(1, none, none, {}, values))
        worker: Any = SimpleNamespace(rpc=lambda _: SimpleNamespace(ooc_mdp=answer))
        monkeypatch.setattr(endpoint, "asyncio", SimpleNamespace(wait_for=wait_for))
        for update in (an_update({0: (1, 1, np.zeros(10**6))}), an_update({})):
            assert await endpoint._deliver(worker, "run", "a", update)

    asyncio.run(check())
    assert len(waited) == 3
    assert min(waited[:2]) >= 0.1 + 8e6 / MIN_BANDWIDTH
    assert waited[2] < 0.2


def test_what_counts_as_visited_has_a_policy_where_newer_copies_come_meanwhile():
    known = ValueSnapshot(np.zeros(4), np.zeros(4, np.int32), np.zeros(2, np.bool_), np.ones(2, np.bool_))
    newer = Values(np.arange(2), np.ones(4), np.full(4, 7, np.int32), np.ones(2, np.bool_))

    class Late(np.ndarray[Any, np.dtype[np.int32]]):
        """A policy beside which newer copies come as soon as it has been read."""

        def __getitem__(self, which: Any) -> Any:
            found = super().__getitem__(which).copy()
            known.policy = np.asarray(self)
            known.update(newer, np.array([0, 2, 4]))
            return found

    known.policy = known.policy.view(Late)
    given = known.extract(np.arange(2), np.array([0, 2, 4]), with_bounds=False)
    assert given is not None
    assert not given.visited.any()
    assert given.policy.tolist() == [0, 0, 0, 0]
