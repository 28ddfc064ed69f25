"""Visits of several partitions by several threads: rounds of sweeps, a measurement, and how each is swept next.

Full sweeps alone (value iteration) converge from any values in any order; policy sweeps of partitions at different
times need not (Williams and Baird 1993), let alone extrapolation. So after a visit that left larger residuals than it
found, policy sweeps back off: visits of full sweeps follow, ever more of them each time, until others succeed.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

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
    Group,
    Rounds,
    Shared,
)
from ooc_mdp.backends.cpu.loops import MeasureOptions, measure
from ooc_mdp.backends.cpu.rounds import boundaries
from ooc_mdp.backends.cpu.topological_rounds import PackedBuffers

__all__ = ["BatchVisit", "judge"]

_MAX_FAILURES = 16


class BatchVisit:
    """Sweeps of partitions that have begun; residuals are measured last, at the values of all of them.

    Parameters
    ----------
    rounds : of all partitions, in groups.
    pool, threads : so many of its threads sweep.
    findings, buffers : what is known of each partition, and of its packed rows; updated.
    """

    def __init__(
        self,
        rounds: Sequence[Rounds],
        shared: Shared,
        pool: ThreadPoolExecutor,
        threads: int,
        findings: Findings,
        buffers: PackedBuffers,
    ) -> None:
        self._rounds, self._shared, self._findings, self._buffers = rounds, shared, findings, buffers
        self._barrier = threading.Barrier(threads)
        self._futures = [pool.submit(self._sweep, t) for t in range(threads)]

    def _sweep(self, thread: int) -> None:
        """One thread's part; all wait for each other between its steps."""
        try:
            for r in self._rounds:
                r.prepare()
            self._barrier.wait()
            for r in self._rounds:
                r.sweep(thread)
            self._barrier.wait()
        except BaseException:
            self._barrier.abort()
            raise
        shared, how = self._shared, MeasureOptions(True, 0.0)
        for r in self._rounds:
            measure(r.group.spec, shared.model, shared.values, shared.policy, r.group.members, how, shared.workspace)

    def done(self) -> bool:
        """Whether all threads are."""
        return all(f.done() for f in self._futures)

    def report(self) -> VisitReport:
        """What they did; asked once."""
        failure: BaseException | None = None
        for future in self._futures:
            error = future.exception()
            if error is not None and (failure is None or isinstance(failure, threading.BrokenBarrierError)):
                failure = error
        if failure is not None:
            raise failure
        count = sum(len(r.group.order) for r in self._rounds)
        n_states, swept, measured = np.empty(count, np.int64), np.empty((count, 7)), np.empty((count, 8))
        shared = self._shared
        for r in self._rounds:
            group, m = r.group, r.group.members
            boundaries(group.spec, shared.values, shared.policy, m, shared.workspace, group.progress.swept)
            r.conclude()
            judge(group, self._findings, self._buffers)
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


def judge(group: Group, findings: Findings, buffers: PackedBuffers) -> None:
    """Decide how partitions that have been swept and measured are swept next."""
    p, tables, measured, swept = group.index, group.members.tables, group.members.measured, group.progress.swept
    topological = buffers.suited[p] & (len(group.spec.width) > 0) & (tables[:, 12] == 0)
    most = np.where(topological, buffers.max_differing, MAX_DIFFERING)
    backoff, failures = findings.backoff[p], findings.failures[p].astype(np.int32)
    judged = (backoff == 0) & (swept[:, POLICY] > 0)
    worse = judged & (np.maximum(measured[:, 2], measured[:, 3]) > 2.0 * swept[:, FIRST_CHANGE])
    failures = np.where(worse, np.minimum(failures + 2, _MAX_FAILURES), np.maximum(failures - judged, 0))
    findings.unstable[p] |= worse | (measured[:, 7] > most * tables[:, 1])
    findings.backoff[p] = np.where(worse, 1 << failures >> 2, np.maximum(backoff - 1, 0))
    findings.failures[p] = failures
