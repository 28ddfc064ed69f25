"""Who owns which partitions, in epochs: as they are given out, given on when an owner is lost, and moved to the idle.

    epoch 1     all partitions, to the solvers that begin
    epoch e+1   those of a lost solver, or those that one gave up; a newcomer, which owns nothing yet

An assignment tells everybody the owners of all partitions, and new owners the last values that are known. A partition
that changes hands begins a *generation*: what the former owner reported of it is ignored.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.distributed.membership import Member, Membership, WorkersLostError
from ooc_mdp.distributed.messages import Assignment, MigrateRequest, Values
from ooc_mdp.distributed.placement import PartitionGraph, reassign
from ooc_mdp.distributed.snapshots import SnapshotTaker
from ooc_mdp.model.mdp import IntArray

__all__ = ["Ownership"]

_GIVING = 4
"""Times the worker timeout: for which a solver is waited for that is to give up partitions."""
_MOVE_SECONDS = 0.05
"""Between two moves of partitions to idle solvers."""
_MIN_LEFT = 4
"""Dirty partitions out of the cache that a solver must have before others take some."""


class Ownership:
    """Of the partitions of one solve.

    Parameters
    ----------
    copies : what is known of the values of all partitions.
    owner : int [P]; which solver begins with which partition.
    partition_ptr : int [P + 1].
    from_start : whether the copies hold nothing yet that solvers do not know by themselves.
    spreads : whether partitions are divided among all solvers; else one has all of them, and another if it is lost.
    """

    def __init__(
        self,
        solvers: Membership,
        facts: PartitionGraph,
        copies: SnapshotTaker,
        owner: npt.NDArray[np.integer[Any]],
        partition_ptr: IntArray,
        *,
        initial_start: bool,
        distribute: bool,
    ) -> None:
        self._solvers, self._facts, self._copies, self._partition_ptr = solvers, facts, copies, partition_ptr
        self._from_start, self.distribute = initial_start, distribute
        self.owner = owner.astype(np.int32)
        self.epoch = 0
        self.generation = np.zeros(owner.size, np.int32)
        """int [P]; the epoch in which the partition came to its owner."""
        self._moved = time.monotonic()

    async def begin(self) -> None:
        """Give out the partitions."""
        everything = np.arange(self.owner.size)
        await self._assign({} if self._from_start else self._known_of(everything, self._solvers.alive(), True))

    async def replace_lost(self) -> None:
        """Give the partitions of solvers that were just lost to the others.

        Raises
        ------
        SolversLostError : there are none.
        """
        alive = self._solvers.alive()
        if not alive:
            raise WorkersLostError("all workers are lost")
        unowned = np.flatnonzero(~np.isin(self.owner, alive))
        if unowned.size and self.epoch > 0:
            await self._reassign(unowned, sorted(set(self.owner[unowned].tolist())), alive)

    async def admit(self, number: int, member: Member) -> None:
        """A solver takes part from now on; it owns nothing yet."""
        self._solvers.add(number, member)
        await self._assign({})

    async def move_if_due(self, now: float) -> None:
        """Let a solver that has nothing to do take dirty partitions of the one that has most."""
        if now - self._moved < _MOVE_SECONDS:
            return
        self._moved = time.monotonic()
        stand = {k: self._solvers.of[k].status for k in self._solvers.alive()}
        idle = [k for k, status in stand.items() if status.passive and not status.dirty]
        busy = [k for k, status in stand.items() if status.absent_dirty >= _MIN_LEFT]
        if not idle or not busy:
            return
        most = max(busy, key=lambda k: stand[k].absent_dirty)
        count = stand[most].absent_dirty // (len(idle) + 1)
        await self._migrate(most, max(count, 1), idle)

    async def share(self) -> None:
        """Have solvers that own nothing get dirty partitions that are in no cache, or where none are, some that are."""
        if not self.distribute:
            return
        alive = self._solvers.alive()
        due = max(self.owner.size // max(len(alive), 1), 1)
        for poor in alive:
            for cached in (False, True):
                if (self.owner == poor).any():
                    break
                for k in alive:
                    member, spare = self._solvers.of[k], int((self.owner == k).sum()) - due
                    dirty = member.status.dirty if cached else member.status.absent_dirty
                    if spare > 0 and dirty and member.alive and self._solvers.of[poor].alive:
                        await self._migrate(k, spare, [poor], cached)

    def unknown(self) -> npt.NDArray[np.bool_]:
        """bool [P]: partitions that nobody alive owns, or whose owner has not acknowledged them yet."""
        epochs = {k: m.status.epoch for k, m in self._solvers.of.items() if m.alive}
        told = np.array([epochs.get(k, -1) for k in self.owner.tolist()])
        unknown: npt.NDArray[np.bool_] = told < np.maximum(self.generation, 1)
        return unknown

    async def _assign(self, initial_values: dict[int, Values | None]) -> None:
        """Tell everybody who owns what, and new owners the last known values; in the order of the epochs."""
        self.epoch += 1
        addresses = {k: m.address for k, m in self._solvers.of.items() if m.alive}
        await self._solvers.each(
            lambda k: Assignment(
                self.epoch,
                self.owner.copy(),
                self.generation.copy(),
                addresses,
                initial_values.get(k),
                initial_start=self._from_start and self.epoch == 1,
            )
        )

    async def _reassign(self, partitions: npt.NDArray[np.int64], lost: list[int], to: list[int]) -> None:
        """Divide partitions, all those of the lost, among others."""
        if not self.distribute:
            to = [max(to, key=lambda k: self._solvers.of[k].share)]
        shares = np.array([self._solvers.of[k].share for k in to])
        owner = reassign(self._facts, self.owner.astype(np.int64), np.array(lost), np.array(to), shares)
        self.owner[partitions] = owner[partitions]
        self.generation[partitions] = self.epoch + 1
        await self._assign(self._known_of(partitions, to, False))

    def _known_of(
        self, partitions: npt.NDArray[np.int64], owners: list[int], with_bounds: bool
    ) -> dict[int, Values | None]:
        """The message to each new owner of partitions."""
        known, of = self._copies.known, self.owner[partitions]
        return {k: known.of(partitions[of == k], self._partition_ptr, with_bounds) for k in owners}

    async def _migrate(self, giver: int, most: int, to: list[int], cached: bool = False) -> None:
        """Have a solver give up dirty partitions for others."""
        seconds = _GIVING * self._solvers.worker_timeout
        given = await self._solvers.command(giver, MigrateRequest(most, cached), self._copies.keep, seconds)
        if given is None:
            # It may have given up some, and forgotten who reads them: it gets them back, and is asked for all anew.
            self.generation[self.owner == giver] = self.epoch + 1
            await self._assign({})
            return
        if not given.partitions.size:
            return
        self.owner[given.partitions] = -1
        await self._reassign(given.partitions, [-1], to)
