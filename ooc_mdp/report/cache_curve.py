"""Cache curves: from one sequence of accesses, the hits of every cache size.

Partitions count one unit each. A policy that always keeps what a fixed order of preference ranks higher makes the
contents of a cache of c partitions part of those of c + 1 (Mattson, Gecsei, Slutz and Traiger 1970), so each access
has one distance d: it is a hit in caches of d partitions and more. Least recently used, lowest priority first and
Belady's optimum (1966: evict what is needed again last) are all such policies.

    hits[c] = number of accesses whose distance is at most c;     loads[c] = accesses - hits[c]

FIFO and CLOCK (Corbato 1968) are not: a larger cache may hit less. They are simulated for each size.

Pure functions over arrays: no file, no solve.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.report.cache_trace import AccessTrace
from ooc_mdp.runtime.compiled import loop

__all__ = [
    "POLICIES",
    "SCOPES",
    "CacheCurve",
    "Policy",
    "Scope",
    "belady_distances",
    "cache_curve",
    "lru_distances",
    "priority_distances",
    "queue_hits",
    "repeats",
]

Policy = Literal["belady", "lru", "fifo", "clock", "priority"]
"""Which partition is evicted: the one needed again last, the least recently used, the one loaded first, the first in
the order of loading that was not used since the hand of the clock passed it, the one of lowest priority."""

Scope = Literal["all", "frontier"]
"""Which accesses count: auxiliary ones too, or those only for which a partition was swept."""

POLICIES: tuple[Policy, ...] = get_args(Policy)
SCOPES: tuple[Scope, ...] = get_args(Scope)


@dataclass(frozen=True, slots=True, eq=False)
class CacheCurve:
    """What caches of 0 to P partitions would have made of one sequence of accesses."""

    policy: Policy
    scope: Scope
    n_partitions: int
    """P."""
    n_accesses: int
    hits: IntArray
    """int64 [P+1]; hits of a cache of c partitions; hits[0] = 0. What is loaded for the first time is no hit."""

    @property
    def loads(self) -> IntArray:
        """int64 [P+1]; accesses that are no hits."""
        return self.n_accesses - self.hits

    @property
    def hit_rate(self) -> FloatArray:
        """float64 [P+1]; hits as a share of hits and misses (Wingate 2004, section 9.5)."""
        return self.hits / max(self.n_accesses, 1)

    @property
    def loads_per_partition(self) -> FloatArray:
        """float64 [P+1]; loads divided by P, the "recomputes per partition" of Wingate (2004, section 9.5)."""
        return self.loads / self.n_partitions

    @property
    def knee(self) -> int | None:
        """Partitions at the knee, the point of diminishing returns; None where there is no size at which a cache pays.

        Wingate (2004, section 10.3) has it where one unit of capacity wins one unit of hit rate, capacity as a share
        of P. Differences of a counted curve jump about 1, so this is the size of largest hit rate - c / P, the
        smallest of equals: to add to it wins less than a unit a unit on the way to every larger size, to take from it
        loses more on the way to every smaller one. Where the curve is concave both definitions agree.
        """
        # In integers, so that equals are equal.
        gain = self.hits * self.n_partitions - np.arange(self.n_partitions + 1) * self.n_accesses
        best = int(gain.argmax())
        return best if gain[best] > 0 else None


def cache_curve(trace: AccessTrace, policy: Policy, scope: Scope = "all", *, raw: bool = False) -> CacheCurve:
    """The curve of one trace over every cache size.

    Parameters
    ----------
    scope : "frontier" leaves auxiliary accesses out; the priorities that they recorded are still taken note of.
    raw : count each access of the trace; else a run of frontier accesses to one partition, with nothing between them,
        counts once, as the one visit that it is. Loads are the same either way, hit rates are not.
    """
    counted = np.full(trace.partition.shape, True) if scope == "all" else ~trace.auxiliary
    if not raw:
        counted &= ~repeats(trace.partition, trace.auxiliary)
    if policy in ("fifo", "clock"):
        accesses = trace.partition[counted]
        hits = queue_hits(accesses, trace.n_partitions, second_chance=policy == "clock")
        return CacheCurve(policy, scope, trace.n_partitions, accesses.size, hits)
    if policy == "priority":
        distances = priority_distances(trace.partition, counted, trace.priority, trace.n_partitions)
    else:
        find = lru_distances if policy == "lru" else belady_distances
        distances = find(trace.partition[counted], trace.n_partitions)
    ever = distances[distances > 0]
    hits = np.cumsum(np.bincount(ever, minlength=trace.n_partitions + 1))
    return CacheCurve(policy, scope, trace.n_partitions, distances.size, hits.astype(np.int64))


def repeats(partitions: IntArray, auxiliary: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """bool [n]: frontier accesses right after a frontier access to the same partition, with nothing between them."""
    again = np.zeros(partitions.shape, np.bool_)
    again[1:] = (partitions[1:] == partitions[:-1]) & ~auxiliary[1:] & ~auxiliary[:-1]
    return again


def lru_distances(partitions: IntArray, n_partitions: int) -> IntArray:
    """Stack distances under LRU: the number of different partitions since the last access to the same, itself included.

    O(n log n), with a Fenwick tree over the times of each partition's last access (Bennett and Kruskal 1975).

    Parameters
    ----------
    partitions : int64 [n]; 0 .. n_partitions - 1.

    Returns
    -------
    int64 [n] : 1 .. n_partitions; 0 for a first access, which is a hit nowhere.
    """
    return _lru_distances(partitions, n_partitions)


def belady_distances(partitions: IntArray, n_partitions: int) -> IntArray:
    """Stack distances under Belady's optimum; as :func:`priority_distances` in time and result.

    Parameters
    ----------
    partitions : int64 [n]; 0 .. n_partitions - 1.
    """
    n = partitions.size
    order = np.argsort(partitions, kind="stable")
    again = partitions[order[1:]] == partitions[order[:-1]]
    sooner = np.full(n, -np.inf)  # what is never needed again goes first
    sooner[order[:-1][again]] = -order[1:][again].astype(np.float64)
    return _ranked_distances(partitions, np.ones(n, np.bool_), sooner, n_partitions)


def priority_distances(
    partitions: IntArray, counted: npt.NDArray[np.bool_], priority: FloatArray, n_partitions: int
) -> IntArray:
    """Stack distances where the partition of lowest priority goes, the least recently used of equals.

    Time is O(n) times the mean distance, at most O(n P): each access moves what lies above it in the stack.

    Parameters
    ----------
    partitions : int64 [n]; 0 .. n_partitions - 1.
    counted : bool [n]; accesses. The others only record a priority.
    priority : float64 [n]; of partitions[i] from i on, until it is recorded again.

    Returns
    -------
    int64 [counted accesses] : 1 .. n_partitions; 0 for a first access.
    """
    return _ranked_distances(partitions, counted, priority, n_partitions)


def queue_hits(partitions: IntArray, n_partitions: int, *, second_chance: bool) -> IntArray:
    """Hits of caches whose slots are replaced in turn, by size: FIFO, or CLOCK with a second chance.

    Time is O(n P). CLOCK marks a slot at each use, its first one included; the hand passes over marked slots once,
    clears their marks, and replaces the first that has none.

    Parameters
    ----------
    partitions : int64 [n]; 0 .. n_partitions - 1.

    Returns
    -------
    int64 [n_partitions + 1] : hits of a cache of c partitions; 0 for none.
    """
    return _queue_hits(partitions, n_partitions, second_chance)


@loop
def _queue_hits(partitions: IntArray, n_partitions: int, second_chance: bool) -> IntArray:
    hits = np.zeros(n_partitions + 1, np.int64)
    slot_of = np.empty(n_partitions, np.int64)
    for size in range(1, n_partitions + 1):
        slot_of[:] = -1
        held = np.full(size, -1, np.int64)
        marked = np.zeros(size, np.bool_)
        hand = 0
        for p in partitions:
            slot = slot_of[p]
            if slot >= 0:
                hits[size] += 1
                marked[slot] = second_chance
                continue
            while marked[hand]:
                marked[hand] = False
                hand = hand + 1 if hand + 1 < size else 0
            if held[hand] >= 0:
                slot_of[held[hand]] = -1
            held[hand] = p
            slot_of[p] = hand
            marked[hand] = second_chance
            hand = hand + 1 if hand + 1 < size else 0
    return hits


@loop
def _lru_distances(partitions: IntArray, n_partitions: int) -> IntArray:
    n = partitions.size
    tree = np.zeros(n + 1, np.int64)  # marks the time of the last access to each partition seen
    last = np.full(n_partitions, -1, np.int64)
    distances = np.zeros(n, np.int64)
    seen = 0
    for i in range(n):
        p = partitions[i]
        before = last[p]
        if before >= 0:
            # Partitions whose last access is later than `before`, and p itself.
            k = before + 1
            earlier = 0
            while k > 0:
                earlier += tree[k]
                k -= k & -k
            distances[i] = seen - earlier + 1
            k = before + 1
            while k <= n:
                tree[k] -= 1
                k += k & -k
        else:
            seen += 1
        k = i + 1
        while k <= n:
            tree[k] += 1
            k += k & -k
        last[p] = i
    return distances


@loop
def _ranked_distances(
    partitions: IntArray, counted: npt.NDArray[np.bool_], priority: FloatArray, n_partitions: int
) -> IntArray:
    """Mattson's stack: the cache of c partitions holds the topmost c.

    The accessed partition x comes to the top; what it displaces, y, goes down to where x was. At each place on the
    way the higher of y and what lies there stays, the lower goes on: it is what the cache of that size evicts.
    """
    rank = np.full(n_partitions, -np.inf)
    used = np.zeros(n_partitions, np.int64)  # time of the last counted access, to tell equals apart
    stack = np.empty(n_partitions, np.int64)
    depth = 0
    distances = np.zeros(np.count_nonzero(counted), np.int64)
    j = 0
    for i in range(partitions.size):
        x = partitions[i]
        if counted[i]:
            y = x
            place = 0
            while place < depth:
                here = stack[place]
                if here == x:
                    distances[j] = place + 1
                    break
                if place == 0 or rank[here] < rank[y] or (rank[here] == rank[y] and used[here] < used[y]):
                    stack[place] = y
                    y = here
                place += 1
            stack[place] = y
            depth = max(depth, place + 1)
            used[x] = i + 1
            j += 1
        rank[x] = priority[i]
    return distances
