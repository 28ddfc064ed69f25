"""The owners of partitions, in epochs: the first assignment, reassignment after a loss, and migration to idle workers.

    epoch 1     all partitions, to the workers that begin
    epoch e+1   those of a lost worker, or those that one gave up; a late joiner, which owns nothing yet

An assignment sends the owners of all partitions to all workers, and to new owners the last known values. A partition
that changes its owner begins a *generation*: what the former owner sent of it is ignored.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.distributed.balance import assign_nearest
from ooc_mdp.distributed.membership import Member, Membership, WorkersLostError
from ooc_mdp.distributed.messages import Assignment, MigrateRequest, Values
from ooc_mdp.distributed.partition_graph import (
    PartitionGraph,
    affinity,
    comparable,
    path_lengths,
    shortest_paths,
)
from ooc_mdp.distributed.snapshots import SnapshotTaker
from ooc_mdp.model.mdp import FloatArray, IntArray

__all__ = ["Ownership", "reassign"]

_MIGRATION_FACTOR = 4
"""Times the worker timeout: how long a migration request may take."""
_MOVE_SECONDS = 0.05
"""Between two migrations to idle workers."""
_MIN_LEFT = 4
"""Dirty partitions outside the cache that a worker must have before idle ones take some."""


class Ownership:
    """Assigns the partitions of one solve to its workers.

    Parameters
    ----------
    snapshots : the last known values of all partitions.
    owner : int [P]; number of the worker that begins with each partition.
    partition_ptr : int [P + 1].
    initial_start : whether the workers know all initial values themselves.
    distribute : whether partitions are divided among all workers; otherwise one owns all, and another one after its
        loss.
    """

    def __init__(
        self,
        members: Membership,
        graph: PartitionGraph,
        snapshots: SnapshotTaker,
        owner: npt.NDArray[np.integer[Any]],
        partition_ptr: IntArray,
        *,
        initial_start: bool,
        distribute: bool,
    ) -> None:
        self._members, self._graph, self._snapshots, self._partition_ptr = members, graph, snapshots, partition_ptr
        self._initial_start, self.distribute = initial_start, distribute
        self.owner = owner.astype(np.int32)
        self.epoch = 0
        self.generation = np.zeros(owner.size, np.int32)
        """int [P]; the epoch in which the owner received the partition."""
        self._moved = time.monotonic()
        self._announced: set[int] = set()
        """Numbers of the workers that take part by the last assignment."""

    async def begin(self) -> None:
        """Send the first assignment."""
        everything = np.arange(self.owner.size)
        await self._assign({} if self._initial_start else self._initial_values(everything, self._members.alive(), True))

    async def replace_lost(self) -> None:
        """Assign the partitions of workers that were just lost to the others, which no longer send them values.

        Raises
        ------
        WorkersLostError : no worker is left.
        """
        alive = self._members.alive()
        if not alive:
            raise WorkersLostError("all workers are lost")
        unowned = np.flatnonzero(~np.isin(self.owner, alive))
        if unowned.size and self.epoch > 0:
            await self._reassign(unowned, sorted(set(self.owner[unowned].tolist())), alive)
        elif not self._announced.issubset(alive):  # what was lost owned nothing
            await self._assign({})

    async def admit(self, number: int, member: Member) -> None:
        """Add a worker, which owns nothing yet."""
        self._members.add(number, member)
        await self._assign({})

    async def rebalance_if_due(self, now: float) -> None:
        """Let idle workers take dirty partitions of the worker that has most outside its cache."""
        if now - self._moved < _MOVE_SECONDS:
            return
        self._moved = time.monotonic()
        statuses = {k: self._members.by_number[k].status for k in self._members.alive()}
        idle = [k for k, status in statuses.items() if status.passive and not status.dirty]
        busy = [k for k, status in statuses.items() if status.absent_dirty >= _MIN_LEFT]
        if not idle or not busy:
            return
        most = max(busy, key=lambda k: statuses[k].absent_dirty)
        count = statuses[most].absent_dirty // (len(idle) + 1)
        await self._migrate(most, max(count, 1), idle)

    async def fill_idle(self) -> None:
        """Migrate dirty partitions to workers that own nothing; those in a cache only where there are no others."""
        if not self.distribute:
            return
        alive = self._members.alive()
        due = max(self.owner.size // max(len(alive), 1), 1)
        for idle in alive:
            for cached in (False, True):
                if (self.owner == idle).any():
                    break
                for k in alive:
                    member, surplus = self._members.by_number[k], int((self.owner == k).sum()) - due
                    dirty = member.status.dirty if cached else member.status.absent_dirty
                    if surplus > 0 and dirty and member.alive and self._members.by_number[idle].alive:
                        await self._migrate(k, surplus, [idle], cached)

    def unacknowledged(self) -> npt.NDArray[np.bool_]:
        """bool [P]; partitions without a living owner, or whose owner has not acknowledged them yet."""
        epochs = {k: m.status.epoch for k, m in self._members.by_number.items() if m.alive}
        applied = np.array([epochs.get(k, -1) for k in self.owner.tolist()])
        unknown: npt.NDArray[np.bool_] = applied < np.maximum(self.generation, 1)
        return unknown

    async def _assign(self, initial_values: dict[int, Values | None]) -> None:
        """Send the owners to all workers, and the last known values to new owners; in the order of the epochs."""
        self.epoch += 1
        addresses = {k: m.address for k, m in self._members.by_number.items() if m.alive}
        self._announced = set(addresses)
        await self._members.send_each(
            lambda k: Assignment(
                self.epoch,
                self.owner.copy(),
                self.generation.copy(),
                addresses,
                initial_values.get(k),
                initial_start=self._initial_start and self.epoch == 1,
            )
        )

    async def _reassign(self, partitions: npt.NDArray[np.int64], lost: list[int], to: list[int]) -> None:
        """Divide partitions, all those of lost workers, among others."""
        if not self.distribute:
            to = [max(to, key=lambda k: self._members.by_number[k].weight)]
        shares = np.array([self._members.by_number[k].weight for k in to])
        owner = reassign(self._graph, self.owner.astype(np.int64), np.array(lost), np.array(to), shares)
        self.owner[partitions] = owner[partitions]
        self.generation[partitions] = self.epoch + 1
        await self._assign(self._initial_values(partitions, to, False))

    def _initial_values(
        self, partitions: npt.NDArray[np.int64], owners: list[int], with_bounds: bool
    ) -> dict[int, Values | None]:
        """Return for each new owner the last known values of its partitions."""
        known, of = self._snapshots.known, self.owner[partitions]
        return {k: known.extract(partitions[of == k], self._partition_ptr, with_bounds) for k in owners}

    async def _migrate(self, giver: int, most: int, to: list[int], cached: bool = False) -> None:
        """Request that a worker gives up dirty partitions, and assign them to others."""
        seconds = _MIGRATION_FACTOR * self._members.worker_timeout
        given = await self._members.request_values(giver, MigrateRequest(most, cached), self._snapshots.apply, seconds)
        if given is None:
            # It may have given up some, with their subscribers: it gets them again, and all subscriptions are renewed.
            self.generation[self.owner == giver] = self.epoch + 1
            await self._assign({})
            return
        if not given.partitions.size:
            return
        self.owner[given.partitions] = -1
        await self._reassign(given.partitions, [-1], to)


def reassign(
    facts: PartitionGraph, owner: IntArray, lost: IntArray, alive: IntArray, shares: FloatArray | None = None
) -> IntArray:
    """Return int64 [P]: the owners after lost workers' partitions were assigned to living ones; no other one moves.

    They fill up those that own least for their share, and go where they are nearest in the coupling graph.

    Parameters
    ----------
    owner : int64 [P]; owners until now, from 0 on, or -1 for none.
    lost : int64 [L]; workers, or -1 for partitions that have no owner.
    alive : int64 [A]; workers, none of them lost.
    shares : float64 [A], positive; relative weights that the living should own, equal ones if None.

    Raises
    ------
    ValueError : no worker is alive while a partition needs one, or a worker is lost and alive.
    """
    if (both := np.intersect1d(lost, alive)).size:
        raise ValueError(f"workers {both.tolist()} are both lost and alive")
    orphans = np.flatnonzero(np.isin(owner, lost))
    if not orphans.size:
        return owner.copy()
    if not alive.size:
        raise ValueError(f"no worker is left for {orphans.size} partitions")
    held = np.flatnonzero(np.isin(owner, alive))
    owned = np.bincount(owner[held], facts.weight[held], alive.max() + 1).astype(np.float64)[alive]
    weight = facts.weight[orphans]
    deficit = _fill_up(owned, np.ones(alive.size) if shares is None else shares, float(weight.sum()))
    workers, deficit = alive[deficit > 0], deficit[deficit > 0]
    to = owner.copy()
    to[orphans] = workers[assign_nearest(_distance_to_owners(facts, owner, orphans, workers), weight, deficit)]
    return to


def _distance_to_owners(facts: PartitionGraph, owner: IntArray, orphans: IntArray, workers: IntArray) -> FloatArray:
    """Return float64 [orphans, workers]: the shortest path, through orphans only, to a partition of each worker."""
    from scipy.sparse import csr_array

    # Nodes: the orphans, then one for all partitions of each worker.
    index = np.full(int(max(owner.max(), workers.max())) + 2, -1)  # the last for owner -1
    index[workers] = orphans.size + np.arange(workers.size)
    place = index[owner]
    place[orphans] = np.arange(orphans.size)
    mass = affinity(facts.coupling)
    source, target = place[np.repeat(np.arange(owner.size), np.diff(mass.indptr))], place[mass.indices]
    # Without edges into workers, no path leads through one.
    kept = (source >= 0) & (target >= 0) & (target < orphans.size)
    nodes = orphans.size + workers.size
    graph = path_lengths(csr_array((mass.data[kept], (source[kept], target[kept])), shape=(nodes, nodes)))
    lengths = np.stack([shortest_paths(graph, np.array([orphans.size + i])) for i in range(workers.size)], axis=1)
    rng = np.random.default_rng(0)
    return comparable(lengths[: orphans.size], rng)


def _fill_up(owned: FloatArray, shares: FloatArray, more: float) -> FloatArray:
    """Divide `more` so that all who receive something end at the same level, and no one else is below it."""
    order = np.argsort(owned / shares, kind="stable")
    levels = (more + np.cumsum(owned[order])) / np.cumsum(shares[order])
    return np.asarray(np.maximum(levels.min() * shares - owned, 0.0))
