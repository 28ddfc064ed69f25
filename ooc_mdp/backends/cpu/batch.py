"""Partitions that several threads sweep together: what they share, and what comes of it.

Members are partitions of one kind, for which the loops are compiled. Any thread sweeps any of them
(`ooc_mdp.backends.cpu.loops.next_at_work`), so that none waits while there is something to do, whatever partitions cost
and whatever else the cores are busy with.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.base import Resident, SweepLimits, VisitReport
from ooc_mdp.backends.cpu.loops import evaluate
from ooc_mdp.backends.cpu.sweep_order import Walk
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import FloatArray, IntArray

__all__ = [
    "MOST_DIFFERING",
    "STRAY_SHARE",
    "Members",
    "Rounds",
    "RoundsInOrder",
    "Swept",
    "Together",
    "by_kind",
    "members_of",
    "tables_of",
]

MOST_DIFFERING = 0.05
"""Share of a partition's states whose action may change in a full sweep before policy sweeps follow."""
_ROUNDS = 4
"""Rounds of a partition in a visit before its residuals are measured and its policy improved."""
_SWEEPS = 4
"""Policy sweeps of a partition in a round: they find its rows in the processor's cache."""
_DROP = 0.1
"""A visit leaves a partition once its changes have fallen to this share: its neighbours' changes come first."""
STRAY_SHARE = 0.5
"""Most of the present change that extrapolation may leave, in the Euclidean norm."""


@dataclass(frozen=True, slots=True)
class Swept:
    """What came of sweeps of k partitions, in their order."""

    n_states: IntArray
    """int64 [k]"""
    swept: FloatArray
    """float64 [k, 7]; see `ooc_mdp.backends.cpu.loops.evaluate`."""
    measured: FloatArray
    """float64 [k, 8]; see `ooc_mdp.backends.cpu.loops.measure`."""


@dataclass(frozen=True, slots=True)
class Together:
    """Sweeps of several threads that have begun."""

    futures: Sequence[Future[None]]
    conclude: Callable[[], Swept]
    """What came of them, once all threads are done; asked once."""

    def done(self) -> bool:
        """Whether all threads are."""
        return all(f.done() for f in self.futures)

    def report(self) -> VisitReport:
        """What they did; residuals were measured last, at the values of all."""
        found = self._found()
        sweeps = (found.swept[:, 0] + found.swept[:, 1]).astype(np.int64)
        return VisitReport(
            sweeps=sweeps,
            backups=sweeps * found.n_states,
            boundary_rise=found.swept[:, 2],
            boundary_fall=found.swept[:, 3],
            boundary_value=found.swept[:, 4],
            largest_value=found.measured[:, 4],
            smallest_value=found.measured[:, 5],
            residuals=np.ascontiguousarray(found.measured[:, :4].T),
            joint=True,
        )

    def _found(self) -> Swept:
        wait(self.futures)
        failed = [error for error in (f.exception() for f in self.futures) if error is not None]
        if failed:
            raise next((e for e in failed if not isinstance(e, threading.BrokenBarrierError)), failed[0])
        return self.conclude()


@dataclass(slots=True)
class Members:
    """Residents of one kind, and what the loops note of each; names as in `ooc_mdp.backends.cpu.loops.evaluate`."""

    kind: tuple[int, int]
    residents: list[Resident]
    order: list[int]
    """Their places among all residents of the visit."""
    limits: FloatArray
    """float64 [G]; a change that small ends a partition's sweeps."""
    begin: int
    """Where their part of the workspace begins."""
    end: int = field(init=False)
    """Where it ends."""
    index: IntArray = field(init=False)
    """int64 [G]; numbers of the partitions."""
    table: IntArray = field(init=False)
    places: IntArray = field(init=False)
    turns: IntArray = field(init=False)
    progress: FloatArray = field(init=False)
    swept: FloatArray = field(init=False)
    measured: FloatArray = field(init=False)
    turn: IntArray = field(init=False)

    def __post_init__(self) -> None:
        count = len(self.residents)
        self.index = np.array([r.index for r in self.residents])
        self.table = tables_of(self.residents)
        n, halo, whole = self.table[:, 1], self.table[:, 2], self.table[:, 12] != 0
        ends = self.begin + np.cumsum(np.where(whole, 2 * n, 3 * n + halo))
        self.places = np.concatenate([[self.begin], ends[:-1]])
        self.end = int(ends[-1])
        self.turns, self.turn = np.zeros((2, count), np.int64), np.zeros(1, np.int64)
        self.progress = np.zeros((4, count))
        self.progress[1] = self.limits
        self.swept, self.measured = np.zeros((count, 7)), np.empty((count, 8))

    @property
    def types(self) -> Any:
        """Empty arrays of the types that the loops are compiled for."""
        return self.residents[0].arrays[0].types


class Rounds(Protocol):
    """Rounds of sweeps over some members, for any number of threads."""

    @property
    def members(self) -> Members:
        """Whom they are for."""
        ...

    def prepare(self) -> None:
        """What has to be done before the first sweep; each thread does some of it."""
        ...

    def sweep(self, thread: int) -> None:
        """Sweep, until nothing is left that no other thread is at; every thread has prepared."""
        ...

    def conclude(self) -> None:
        """Keep what later visits should know; all threads have swept."""
        ...


class RoundsInOrder:
    """Rounds in the order that a partition's votes give (`ooc_mdp.backends.cpu.loops.evaluate`).

    Parameters
    ----------
    walk : the order of a resident's next sweeps; any thread.
    alternate : every second full sweep goes the other way.
    moving : bool [P]; whether a partition's policy is still to be found by full sweeps; updated.
    resting : bool [G]; members that get full sweeps alone.
    starts : int64 for each thread; scratch.
    """

    def __init__(
        self,
        members: Members,
        walk: Callable[[Resident], Walk],
        alternate: bool,
        moving: npt.NDArray[np.bool_],
        resting: npt.NDArray[np.bool_],
        values: FloatArray,
        policy: npt.NDArray[np.int32],
        workspace: FloatArray,
        starts: Sequence[IntArray],
        model: ModelFacts,
    ) -> None:
        self.members = members
        self._walk = walk
        self._alternate = alternate
        self._all_moving, self._moving = moving, moving[members.index]
        self._most_differing = np.where(resting, -1.0, MOST_DIFFERING)
        self._values, self._policy, self._workspace, self._starts = values, policy, workspace, starts
        self._model = model
        axes = 1 if model.block_shapes is None else max(1, model.block_shapes.shape[1])
        self._walks = np.ones((len(members.residents), 2, axes), np.int64)
        self._next = itertools.count()

    def prepare(self) -> None:
        """Have members vote, where they are due."""
        residents = self.members.residents
        while (m := next(self._next)) < len(residents):
            extents, strides = self._walk(residents[m])
            self._walks[m, 0, -extents.size :], self._walks[m, 1, -extents.size :] = extents, strides

    def sweep(self, thread: int) -> None:
        """The compiled loop."""
        m = self.members
        evaluate(
            (0,) * m.kind[0],
            (0,) * m.kind[1],
            self._values,
            self._policy,
            m.table,
            self._walks,
            self._alternate,
            self._moving,
            self._workspace,
            m.places,
            m.turns,
            m.progress,
            self._starts[thread],
            *m.types,
            self._model.discount,
            self._model.sign,
            _ROUNDS,
            _SWEEPS,
            self._most_differing,
            _DROP,
            STRAY_SHARE,
            m.swept,
        )

    def conclude(self) -> None:
        """Whose policy still moves."""
        self._all_moving[self.members.index] = self._moving


def by_kind(residents: Sequence[Resident]) -> dict[tuple[int, int], dict[int, Resident]]:
    """Residents of each kind, by their place among all."""
    kinds: dict[tuple[int, int], dict[int, Resident]] = {}
    for i, resident in enumerate(residents):
        kinds.setdefault(resident.arrays[0].kind, {})[i] = resident
    return kinds


def members_of(
    residents: Sequence[Resident], limits: SweepLimits, along_flow: Callable[[Resident], bool]
) -> list[tuple[Members, bool]]:
    """Residents in groups of one kind that are swept in one way, and whether that is along the flow."""
    groups: list[tuple[Members, bool]] = []
    changes, begin = limits.changes(len(residents)), 0
    for kind, found in by_kind(residents).items():
        answers = {i: along_flow(resident) for i, resident in found.items()}
        for answer in (True, False):
            order = [i for i, given in answers.items() if given == answer]
            if order:
                allowed = changes[order]
                members = Members(kind, [residents[i] for i in order], order, allowed, begin)
                begin = members.end
                groups.append((members, answer))
    return groups


def tables_of(residents: Sequence[Resident]) -> IntArray:
    """int64 [G, 15]; see `ooc_mdp.backends.cpu.table`."""
    return np.stack([r.arrays[0].row for r in residents])
