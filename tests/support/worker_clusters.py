"""Clusters of threads in this process, which start at once and let a test put faults between the workers.

The fixtures that hold them, and stores that no test changes, are in conftest.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster
from small_mdps import rows_of

import ooc_mdp
from ooc_mdp.distributed import worker
from ooc_mdp.reference import policy_iteration
from ooc_mdp.store import Store

PATIENCE = 300.0
"""Which no worker that answers exceeds, however slow the machine; tests that are to exceed it move a clock instead."""


class Later:
    """In place of a module's `time`: while something holds, each reading is 1,000 s after the one before."""

    def __init__(self, holds: Callable[[], bool] = lambda: True) -> None:
        self._holds, self._later = holds, 0.0

    def monotonic(self) -> float:
        if self._holds():
            self._later += 1000.0
        return time.monotonic() + self._later


class Clusters:
    """Clients of clusters of threads in this process, by their number of workers."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack, self._clients = stack, dict[int, Client]()

    def __getitem__(self, workers: int) -> Client:
        if workers not in self._clients:
            cluster = self._stack.enter_context(
                LocalCluster(
                    n_workers=workers,
                    threads_per_worker=1,
                    processes=False,
                    dashboard_address=":0",
                    memory_limit=None,
                )
            )
            self._clients[workers] = self._stack.enter_context(Client(cluster, set_as_default=False))
        return self._clients[workers]


def no_end_before(enough: Callable[[], bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """No worker becomes passive before something holds, or it is paused."""
    wait = worker.NetworkPeers.wait_until_dirty

    def waiting(self: worker.NetworkPeers) -> None:
        while not (enough() or self._paused):
            self.exchange()
            time.sleep(0.001)
        wait(self)

    monkeypatch.setattr(worker.NetworkPeers, "wait_until_dirty", waiting)


def solve(store: Store, discount: float, client: Client, **options: Any) -> ooc_mdp.Solution:
    usual = {"device": "cpu", "cache": "60%", "time_limit": 600.0, "worker_timeout": PATIENCE, "placement": "blocks"}
    return ooc_mdp.solve(store, discount, workers=client, **usual | options)


def check(
    store: Store,
    discount: float,
    solution: ooc_mdp.Solution,
    size: float = 1.0,
    earlier: ooc_mdp.SolveStatistics | None = None,
) -> None:
    """The certified error holds against an independent solver; all was counted that was done."""
    best = policy_iteration(rows_of(store), discount, store.sense).values
    assert solution.outcome.proved
    assert solution.error_bound <= solution.certificate.target
    assert float(np.abs(solution.values - best).max()) <= solution.error_bound + 1e-11 * size
    check_counts(store, solution, earlier)


def check_counts(store: Store, solution: ooc_mdp.Solution, earlier: ooc_mdp.SolveStatistics | None = None) -> None:
    """Counters agree with each other, and count on from those of an earlier run."""
    s, before = solution.statistics, earlier or ooc_mdp.SolveStatistics()
    assert s.hits + s.misses == s.accesses
    assert s.cache_peak_bytes <= s.cache_bytes
    assert sum(w.loads for w in s.workers) == s.loads - before.loads
    assert sum(w.backups for w in s.workers) == s.backups - before.backups
    assert sum(w.bytes_read for w in s.workers) == s.bytes_read - before.bytes_read
    assert sum(w.partitions for w in s.workers) == store.n_partitions
    assert all(0.0 <= w.hit_rate <= 1.0 for w in s.workers)


def placed(text: str) -> dict[str, Any]:
    """Options of a placement as a result names it: "random", or "random, rebalanced"."""
    placement, _, rebalanced = text.partition(", ")
    return {"placement": placement, "rebalance": bool(rebalanced)}
