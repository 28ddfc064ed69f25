"""Visits of several partitions by several threads: rounds of sweeps, a measurement, and how each is swept next.

Full sweeps alone (value iteration) converge from any values in any order; policy sweeps of partitions at different
times need not (Williams and Baird 1993), let alone extrapolation. So after a visit that left larger residuals than it
found, policy sweeps back off: visits of full sweeps follow, ever more of them each time, until others succeed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np

from ooc_mdp.backends.base import Resident, SweepLimits, VisitReport
from ooc_mdp.backends.cpu.addresses import address_of
from ooc_mdp.backends.cpu.batch import (
    FALL,
    FIRST_CHANGE,
    FULL,
    MAX_DIFFERING,
    POLICY,
    RISE,
    VALUE,
    Findings,
    Group,
    Shared,
    new_members,
    take_places,
)
from ooc_mdp.backends.cpu.calls import call_of
from ooc_mdp.backends.cpu.claims import fetch_increment
from ooc_mdp.backends.cpu.loops import MeasureOptions, bound_states, boundary_changes, measure_states
from ooc_mdp.backends.cpu.rounds import depth_of_visit, rounds_in_order
from ooc_mdp.backends.cpu.sweep_order import SweepOrders
from ooc_mdp.backends.cpu.table import Specialisation, open_table
from ooc_mdp.backends.cpu.team import Team
from ooc_mdp.backends.cpu.topological_rounds import (
    MAX_DIFFERING_PACKED,
    MAX_FAILURES_PACKED,
    PackedBuffers,
    begin_packed,
    new_packed_progress,
    topological_rounds,
)
from ooc_mdp.backends.cpu.views import gather, gather_halo, view_of
from ooc_mdp.model.mdp import IntArray
from ooc_mdp.runtime.compiled import part

__all__ = ["Batch", "BatchVisit", "judge"]

_MAX_FAILURES = 16


class Batch:
    """Places for the members of a visit, and calls on each group of them, which serve many visits.

    Parameters
    ----------
    size : members at most.
    findings : what is known of each partition; updated.
    orders, buffers : of all partitions.
    """

    def __init__(
        self, size: int, shared: Shared, findings: Findings, orders: SweepOrders, buffers: PackedBuffers
    ) -> None:
        self.size, self._shared, self._findings = size, shared, findings
        self._orders, self._buffers = orders, buffers
        self.members, self.progress = new_members(size)
        self._packed, self._due = new_packed_progress(size), np.zeros(size, np.bool_)
        self._groups: dict[tuple[bool, int], Group] = {}

    def take_places(
        self, residents: Sequence[Resident], packed: set[int], limits: SweepLimits
    ) -> tuple[list[Group], IntArray]:
        """Let residents be the members, those of a group one after the other; the groups, and the place of each.

        Groups that are swept in topological order come first.

        Parameters
        ----------
        packed : numbers of the partitions that are swept in topological order, since they have room for packed rows.
        """
        first, count = dict[int, int](), len(residents)
        # How each is swept, and the first resident of the same specialisation, which numbers the groups.
        ways = [
            (resident.index not in packed, first.setdefault(id(resident.arrays[0].spec), i))
            for i, resident in enumerate(residents)
        ]
        groups, order = [], sorted(range(count), key=ways.__getitem__)
        np.concatenate([residents[i].arrays[0].row for i in order], out=self.members.tables[:count].reshape(-1))
        self.progress.limits[:count], self.progress.unmeasured[0] = limits.changes(count)[order], limits.unmeasured
        self.progress.rounds[0], self.progress.drop[0] = depth_of_visit(count)
        take_places(count, self._shared.row_sums, self.members, self.progress)
        begin = 0
        for (in_order, i), members in groupby(order, ways.__getitem__):
            group, end = self._group(in_order, residents[i].arrays[0].spec), begin + len(list(members))
            group.section[:] = begin, end, 0
            if in_order:
                self._due[begin:end] = self._orders.begin_visits(self.members.tables[begin:end, 24])
            else:
                begin_packed(group.section, self.members, self._packed, self._findings, self._buffers.addresses)
            groups.append(group)
            begin = end
        places = np.empty(count, np.int64)
        places[order] = np.arange(count)
        return groups, places

    def _group(self, in_order: bool, spec: Specialisation) -> Group:
        """The group of that specialisation and way of sweeping; its calls are made when it is first asked for."""
        way = in_order, id(spec)
        if way not in self._groups:
            section, shared = np.zeros(3, np.int64), self._shared
            members = self.members, self.progress, self._findings
            if in_order:
                sweeps = rounds_in_order(spec, section, shared, *members, self._orders, self._due)
            else:
                sweeps = topological_rounds(spec, section, shared, *members, self._packed, self._buffers)
            of_all = shared.model, shared.values, shared.policy, *members, shared.workspace
            self._groups[way] = Group(section, sweeps, call_of(settle, spec, section, *of_all))
        return self._groups[way]


class BatchVisit:
    """Sweeps of partitions that have begun; residuals are measured last, at the values of all of them.

    Parameters
    ----------
    batch : where the residents have taken places; it is another visit's once this one is complete.
    groups, places : as of `Batch.take_places`.
    team, threads : so many of its threads sweep; the caller's begins when it asks for the report.
    """

    def __init__(
        self,
        batch: Batch,
        residents: Sequence[Resident],
        groups: Sequence[Group],
        places: IntArray,
        team: Team,
        threads: int,
    ) -> None:
        self._batch, self._places, self._team = batch, places, team
        self._report: VisitReport | None = None
        calls = [g.sweeps for g in groups], [g.settlement for g in groups]
        self._begun = team.begin(*calls, threads, residents)

    def done(self) -> bool:
        """Whether the other threads are, so that little is left to do."""
        return self._team.others_done(self._begun)

    def complete(self) -> None:
        """Sweep and measure to the end, and note what was found, unless that is done."""
        if self._report is None:
            self._team.finish(self._begun)
            self._report = self._found()

    def report(self) -> VisitReport:
        """What was done."""
        self.complete()
        assert self._report is not None  # it is complete
        return self._report

    def _found(self) -> VisitReport:
        """What the places of the residents hold."""
        members, places = self._batch.members, self._places
        swept, measured = self._batch.progress.swept[places], members.measured[places]
        sweeps = (swept[:, FULL] + swept[:, POLICY]).astype(np.int64)
        return VisitReport(
            sweeps=sweeps,
            backups=sweeps * members.tables[places, 1],
            boundary_rise=swept[:, RISE],
            boundary_fall=swept[:, FALL],
            boundary_value=swept[:, VALUE],
            largest_value=measured[:, 4],
            smallest_value=measured[:, 5],
            residuals=np.ascontiguousarray(measured[:, :4].T),
            joint=True,
        )


@part
def settle(spec, section, model, values, policy, members, progress, findings, workspace, thread):
    """Find residuals of the members at the present values, and decide how they are swept next.

    Several threads may share a section of the members. Those whose last sweep was a full one, and changed a value by
    more than `unmeasured` times their limit, are not measured: residuals are bounded by what has changed since.
    """
    unmeasured = progress.unmeasured[0]
    while True:
        m = section[0] + fetch_increment(address_of(section) + 16)
        if m >= section[1]:
            break
        table, last = open_table(members.tables[m]), progress.last_full[m]
        view = view_of(table, members.places[m], workspace, values, policy)
        counts, measured = progress.swept[m], members.measured[m]
        local = not table.global_successors and table.discounts.address == 0
        if local and unmeasured * progress.limits[m] < max(last[0], last[1]) < np.inf:
            rise, fall = gather_halo(spec, table, view, values)
            up, down = max(last[0], rise + progress.inflow[m, 0]), max(last[1], fall + progress.inflow[m, 1])
            bound_states(spec, table, model, view, up, down, members.row_sums[m], measured)
        else:
            gather(spec, table, view, values)
            measure_states(spec, table, model, view, MeasureOptions(True, 0.0), members.row_sums[m], measured)
        counts[RISE], counts[FALL], counts[VALUE] = boundary_changes(spec, table, view)
        judge(table.partition, counts, measured, findings)
        in_order = len(spec.width) == 0 or table.global_successors or not findings.suited[table.partition]
        most = (MAX_DIFFERING if in_order else MAX_DIFFERING_PACKED) * table.n
        findings.unstable[table.partition] |= measured[7] > most


@part
def judge(p, swept, measured, findings):
    """Count a failure of partition p's policy sweeps where they left larger residuals than they found."""
    findings.suited[p] &= findings.failures[p] <= MAX_FAILURES_PACKED
    if findings.backoff[p] > 0:
        findings.backoff[p] -= 1
    elif swept[POLICY] > 0:
        if max(measured[2], measured[3]) > 2.0 * swept[FIRST_CHANGE]:
            findings.failures[p] = min(findings.failures[p] + 2, _MAX_FAILURES)
            findings.backoff[p] = 1 << findings.failures[p] >> 2
            findings.unstable[p] = True
        else:
            findings.failures[p] = max(findings.failures[p] - 1, 0)
