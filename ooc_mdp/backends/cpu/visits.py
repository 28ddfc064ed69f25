"""Visits of several partitions by several threads: rounds of sweeps, a measurement, and how each is swept next.

Full sweeps alone (value iteration) converge from any values in any order; policy sweeps of partitions at different
times need not (Williams and Baird 1993), let alone extrapolation. So after a visit that left larger residuals than it
found, policy sweeps back off: visits of full sweeps follow, ever more of them each time, until others succeed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ooc_mdp.backends.base import VisitReport
from ooc_mdp.backends.cpu.batch import (
    FALL,
    FIRST_CHANGE,
    FULL,
    MAX_DIFFERING,
    POLICY,
    RISE,
    VALUE,
    Findings,
    Rounds,
    Shared,
)
from ooc_mdp.backends.cpu.claims import fetch_increment
from ooc_mdp.backends.cpu.loops import MeasureOptions, bound_states, boundary_changes, measure_states
from ooc_mdp.backends.cpu.table import open_table
from ooc_mdp.backends.cpu.team import Team
from ooc_mdp.backends.cpu.topological_rounds import MAX_DIFFERING_PACKED, MAX_FAILURES_PACKED
from ooc_mdp.backends.cpu.views import gather, gather_halo, view_of
from ooc_mdp.runtime.compiled import loop, part

__all__ = ["BatchVisit", "judge"]

_MAX_FAILURES = 16


class BatchVisit:
    """Sweeps of partitions that have begun; residuals are measured last, at the values of all of them.

    Parameters
    ----------
    rounds : of all partitions, in groups.
    team, threads : so many of its threads sweep; the caller's begins when it asks for the report.
    findings : what is known of each partition; updated.
    unmeasured : as of `ooc_mdp.backends.base.SweepLimits`.
    """

    def __init__(
        self,
        rounds: Sequence[Rounds],
        shared: Shared,
        team: Team,
        threads: int,
        findings: Findings,
        unmeasured: float,
    ) -> None:
        self._rounds, self._shared, self._findings, self._unmeasured = rounds, shared, findings, unmeasured
        self._team, self._threads = team, threads
        self._complete = False
        team.begin(self._sweep, threads)

    def _sweep(self, thread: int) -> None:
        for r in self._rounds:
            r.sweep(thread)

    def _settle(self, thread: int) -> None:
        shared = self._shared
        for r in self._rounds:
            group, arrays = r.group, (shared.values, shared.policy, r.group.members, r.group.progress)
            settle(group.spec, shared.model, *arrays, self._findings, self._unmeasured, shared.workspace)

    def done(self) -> bool:
        """Whether the other threads are, so that little is left to do."""
        return self._team.others_done()

    def complete(self) -> None:
        """Sweep and measure to the end, unless that is done; nothing else may begin before."""
        if not self._complete:
            self._team.finish()
            self._team.share(self._settle, self._threads)
            self._complete = True

    def report(self) -> VisitReport:
        """What they did; asked once."""
        self.complete()
        count = sum(len(r.group.order) for r in self._rounds)
        n_states, swept, measured = np.empty(count, np.int64), np.empty((count, 7)), np.empty((count, 8))
        for r in self._rounds:
            group, m = r.group, r.group.members
            n_states[group.order], swept[group.order] = m.tables[:, 1], group.progress.swept
            measured[group.order] = m.measured
        sweeps = (swept[:, FULL] + swept[:, POLICY]).astype(np.int64)
        return VisitReport(
            sweeps=sweeps,
            backups=sweeps * n_states,
            boundary_rise=swept[:, RISE],
            boundary_fall=swept[:, FALL],
            boundary_value=swept[:, VALUE],
            largest_value=measured[:, 4],
            smallest_value=measured[:, 5],
            residuals=np.ascontiguousarray(measured[:, :4].T),
            joint=True,
        )


@loop
def settle(spec, model, values, policy, members, progress, findings, unmeasured, workspace):
    """Find residuals of the members at the present values, and decide how they are swept next.

    Several threads may share the members. Those whose last sweep was a full one, and changed a value by more than
    `unmeasured` times their limit, are not measured: residuals are bounded by what has changed since.
    """
    while True:
        m = int(fetch_increment(members.next.ctypes.data))
        if m >= members.tables.shape[0]:
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
