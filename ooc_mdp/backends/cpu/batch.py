"""Partitions that several threads sweep in a batch: what they share, and what is noted of each.

Members are partitions of one specialisation, for which the loops are compiled. Any thread sweeps any of them
(`ooc_mdp.backends.cpu.rounds.next_member`), so that none waits while there is something to do, whatever partitions cost
and whatever else the cores are busy with.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.base import Resident
from ooc_mdp.backends.cpu.calls import Call
from ooc_mdp.backends.cpu.table import Specialisation, open_table
from ooc_mdp.backends.cpu.views import Model
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.runtime.compiled import short_loop

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
    "Shared",
    "by_specialisation",
    "members_of",
    "new_members",
    "take_places",
]

MAX_DIFFERING = 0.05
"""Share of a partition's states whose action may change in a full sweep before policy sweeps follow."""
FULL, POLICY, RISE, FALL, VALUE, EXTRAPOLATED, FIRST_CHANGE = range(7)
"""Columns of `Progress.swept`: full and policy sweeps; largest rise, fall and changed value of the boundary;
extrapolations; largest change of the first round."""


class Members(NamedTuple):
    """Partitions of one specialisation, for the loops that Python calls, and what was measured of each."""

    tables: IntArray
    """int64 [M, 27]; see `ooc_mdp.backends.cpu.table`."""
    places: IntArray
    """int64 [M]; where each one's part of the workspace begins (`ooc_mdp.backends.cpu.views`)."""
    row_sums: FloatArray
    """float64 [M]; the largest row sum of each."""
    next: IntArray
    """int64 [1]; the member that is measured next."""
    measured: FloatArray
    """float64 [M, 8]; normalised rise and fall, plain rise and fall, largest and smallest value, largest max_a Q_a of
    states whose residual is significant, states whose action changed."""


class Progress(NamedTuple):
    """What rounds of sweeps note of each member."""

    claims: IntArray
    """int64 [2, M]; whether a thread holds the member, and the number of rounds in which it was claimed."""
    squares: FloatArray
    """float64 [M]; squared norm of the last changes, 0 before two sweeps can be compared."""
    limits: FloatArray
    """float64 [M]; a change that small ends a partition's sweeps."""
    goals: FloatArray
    """float64 [M]; the change at which a member is quiescent in this visit,"""
    quiescent: npt.NDArray[np.bool_]
    """bool [M]; and whether it is."""
    swept: FloatArray
    """float64 [M, 7]; columns are `FULL` to `FIRST_CHANGE`."""
    last_full: FloatArray
    """float64 [M, 2]; largest rise and fall in the last sweep, infinite where that was none or not a full one,"""
    inflow: FloatArray
    """float64 [M, 2]; and of a halo value gathered since, or more."""
    unmeasured: FloatArray
    """float64 [1]; as of `ooc_mdp.backends.base.SweepLimits`."""
    rounds: IntArray
    """int64 [1]; most rounds of the visit, except for those in topological order,"""
    drop: FloatArray
    """float64 [1]; and the share of a member's first changes at which these rounds leave it."""


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
    starts: IntArray
    """int64 [T, n]; for each thread, room for the runs of a traversal."""


class Group(NamedTuple):
    """Members of one specialisation that are swept in one way: consecutive ones of a batch."""

    section: IntArray
    """int64 [3]; the first of them, the one after the last, and how many have been taken to be measured."""
    sweeps: Call
    """A thread that makes it sweeps until nothing is left that no other thread is at."""
    settlement: Call
    """Likewise, until all are measured."""


def by_specialisation(
    residents: Sequence[Resident], places: Iterable[int]
) -> Iterable[tuple[Specialisation, list[int]]]:
    """Those places among the residents, by the specialisation of the resident."""
    groups: dict[int, tuple[Specialisation, list[int]]] = {}
    for i in places:
        spec = residents[i].arrays[0].spec
        groups.setdefault(id(spec), (spec, []))[1].append(i)
    return groups.values()


def new_members(count: int) -> tuple[Members, Progress]:
    """Places for so many members; what is there is written by `take_places`."""
    members = Members(
        tables=np.zeros((count, 27), np.int64),
        places=np.zeros(count, np.int64),
        row_sums=np.zeros(count),
        next=np.zeros(1, np.int64),
        measured=np.zeros((count, 8)),
    )
    progress = Progress(
        claims=np.zeros((2, count), np.int64),
        squares=np.zeros(count),
        limits=np.zeros(count),
        goals=np.zeros(count),
        quiescent=np.zeros(count, np.bool_),
        swept=np.zeros((count, 7)),
        last_full=np.zeros((count, 2)),
        inflow=np.zeros((count, 2)),
        unmeasured=np.zeros(1),
        rounds=np.zeros(1, np.int64),
        drop=np.zeros(1),
    )
    return members, progress


@short_loop
def take_places(count, row_sums, members, progress):
    """Begin a visit of the first so many members, whose tables and limits are there; workspaces follow each other."""
    place = 0
    for m in range(count):
        table = open_table(members.tables[m])
        members.places[m] = place
        place += (2 if table.global_successors else 3) * table.n + table.halo.size
        members.row_sums[m] = row_sums[table.partition]
        progress.claims[0, m] = progress.claims[1, m] = 0
        progress.squares[m] = 0.0
        progress.goals[m] = progress.limits[m]
        progress.quiescent[m] = False
        progress.swept[m] = 0.0
        progress.last_full[m] = np.inf
        progress.inflow[m] = 0.0


def members_of(residents: Sequence[Resident], row_sums: FloatArray) -> Members:
    """Members that have not been measured, all at the beginning of the workspace.

    Parameters
    ----------
    row_sums : float64 [P]; those of all partitions.
    """
    tables, count = np.array([r.arrays[0].row for r in residents]), len(residents)
    places, claimed = np.zeros(count, np.int64), np.zeros(1, np.int64)
    return Members(tables, places, row_sums[tables[:, 24]], claimed, np.empty((count, 8)))
