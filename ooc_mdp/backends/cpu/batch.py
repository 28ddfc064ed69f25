"""Partitions that several threads sweep in a batch: what they share, and what is noted of each.

Members are partitions of one specialisation, for which the loops are compiled. Any thread sweeps any of them
(`ooc_mdp.backends.cpu.rounds.next_member`), so that none waits while there is something to do, whatever partitions cost
and whatever else the cores are busy with.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.base import Resident, SweepLimits
from ooc_mdp.backends.cpu.table import Specialisation
from ooc_mdp.backends.cpu.views import Model
from ooc_mdp.model.mdp import FloatArray, IntArray

__all__ = [
    "EXTRAPOLATED",
    "FALL",
    "FIRST_CHANGE",
    "FULL",
    "MAX_DIFFERING",
    "POLICY",
    "RISE",
    "VALUE",
    "Findings",
    "Group",
    "Members",
    "Progress",
    "Rounds",
    "Shared",
    "by_specialisation",
    "group_of",
    "groups_of",
    "members_of",
]

MAX_DIFFERING = 0.05
"""Share of a partition's states whose action may change in a full sweep before policy sweeps follow."""
FULL, POLICY, RISE, FALL, VALUE, EXTRAPOLATED, FIRST_CHANGE = range(7)
"""Columns of `Progress.swept`: full and policy sweeps; largest rise, fall and changed value of the boundary;
extrapolations; largest change of the first round."""


class Members(NamedTuple):
    """Partitions of one specialisation, for the loops that Python calls, and what was measured of each."""

    tables: IntArray
    """int64 [G, 27]; see `ooc_mdp.backends.cpu.table`."""
    places: IntArray
    """int64 [G]; where each one's part of the workspace begins (`ooc_mdp.backends.cpu.views`)."""
    row_sums: FloatArray
    """float64 [G]; the largest row sum of each."""
    next: IntArray
    """int64 [1]; the member that is measured next."""
    measured: FloatArray
    """float64 [G, 8]; normalised rise and fall, plain rise and fall, largest and smallest value, largest max_a Q_a of
    states whose residual is significant, states whose action changed."""


class Progress(NamedTuple):
    """What rounds of sweeps note of each member."""

    claims: IntArray
    """int64 [2, G]; whether a thread holds the member, and the number of rounds in which it was claimed."""
    squares: FloatArray
    """float64 [G]; squared norm of the last changes, 0 before two sweeps can be compared."""
    limits: FloatArray
    """float64 [G]; a change that small ends a partition's sweeps."""
    goals: FloatArray
    """float64 [G]; the change at which a member is quiescent in this visit,"""
    quiescent: npt.NDArray[np.bool_]
    """bool [G]; and whether it is."""
    swept: FloatArray
    """float64 [G, 7]; columns are `FULL` to `FIRST_CHANGE`."""
    last_full: FloatArray
    """float64 [G, 2]; largest rise and fall in the last sweep, infinite where that was none or not a full one,"""
    inflow: FloatArray
    """float64 [G, 2]; and of a halo value gathered since, or more."""


class Findings(NamedTuple):
    """What visits have found of each partition."""

    unstable: npt.NDArray[np.bool_]
    """bool [P]; whether its policy is not yet stable, and found by full sweeps: it changed in many states when it was
    last looked at."""
    failures: npt.NDArray[np.int8]
    """int8 [P]; failure count of the back-off: two for each visit of policy sweeps that raised residuals, less one for
    each that did not."""
    backoff: npt.NDArray[np.int32]
    """int32 [P]; visits of full sweeps alone until the back-off ends."""
    suited: npt.NDArray[np.bool_]
    """bool [P]; whether sweeps in topological order are, or may be, the right ones."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What all threads work on."""

    model: Model
    row_sums: FloatArray
    """float64 [P]; the largest of each partition."""
    values: FloatArray
    policy: npt.NDArray[np.int32]
    workspace: FloatArray
    starts: Sequence[IntArray]
    """int64 for each thread; scratch for the runs of a traversal."""


@dataclass(frozen=True, slots=True)
class Group:
    """Residents of one specialisation in a batch that are swept in one way."""

    spec: Specialisation
    residents: list[Resident]
    order: list[int]
    """Their places among all residents of the visit."""
    index: IntArray
    """int64 [G]; numbers of the partitions."""
    members: Members
    progress: Progress
    end: int
    """Where their part of the workspace ends."""


class Rounds(Protocol):
    """Rounds of sweeps over some members, for any number of threads."""

    @property
    def group(self) -> Group:
        """Whom they are for."""
        ...

    def sweep(self, thread: int) -> None:
        """Sweep, until nothing is left that no other thread is at."""
        ...


def by_specialisation(residents: Sequence[Resident], places: Iterable[int]) -> dict[Specialisation, list[int]]:
    """Those places among the residents, by the specialisation of the resident."""
    groups: dict[Specialisation, list[int]] = {}
    for i in places:
        groups.setdefault(residents[i].arrays[0].spec, []).append(i)
    return groups


def groups_of(
    residents: Sequence[Resident], limits: SweepLimits, packed: set[int], shared: Shared
) -> list[tuple[Group, bool]]:
    """Residents in groups of one specialisation that are swept in one way, and whether that is in topological order.

    Parameters
    ----------
    packed : numbers of the partitions that are swept so, since they have room for packed rows.
    """
    groups: list[tuple[Group, bool]] = []
    changes, begin = limits.changes(len(residents)), 0
    ways: tuple[list[int], list[int]] = ([], [])
    for i, resident in enumerate(residents):
        ways[resident.index in packed].append(i)
    for topological in (True, False):
        for spec, order in by_specialisation(residents, ways[topological]).items():
            group = group_of(spec, [residents[i] for i in order], order, changes[order], begin, shared)
            begin = group.end
            groups.append((group, topological))
    return groups


def group_of(
    spec: Specialisation, residents: list[Resident], order: list[int], limits: FloatArray, begin: int, shared: Shared
) -> Group:
    """Residents whose part of the workspace begins there."""
    count, members = len(residents), members_of(residents, shared.row_sums)
    n, halo, global_successors, index = members.tables[:, [1, 2, 12, 24]].T
    sizes = (3 - global_successors) * n + halo
    ends = begin + np.cumsum(sizes)
    members.places[:] = ends - sizes
    progress = Progress(
        claims=np.zeros((2, count), np.int64),
        squares=np.zeros(count),
        limits=limits,
        goals=limits.copy(),
        quiescent=np.zeros(count, np.bool_),
        swept=np.zeros((count, 7)),
        last_full=np.full((count, 2), np.inf),
        inflow=np.zeros((count, 2)),
    )
    return Group(spec, residents, order, index, members, progress, int(ends[-1]))


def members_of(residents: Sequence[Resident], row_sums: FloatArray) -> Members:
    """Members that have not been measured, all at the beginning of the workspace.

    Parameters
    ----------
    row_sums : float64 [P]; those of all partitions.
    """
    tables, count = np.array([r.arrays[0].row for r in residents]), len(residents)
    places, claimed = np.zeros(count, np.int64), np.zeros(1, np.int64)
    return Members(tables, places, row_sums[tables[:, 24]], claimed, np.empty((count, 8)))
