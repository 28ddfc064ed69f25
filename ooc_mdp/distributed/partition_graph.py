"""The graph of a store's partitions that placement rules divide: coupling, weights, and centres on the grid.

Distances in it are lengths of paths: a hop between coupled partitions takes 1 to 2, less the more probability mass they
exchange.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.partition import Coupling
from ooc_mdp.model.state_order import GridOrder
from ooc_mdp.model.table import Table

if TYPE_CHECKING:
    from scipy.sparse import csr_array

__all__ = [
    "PartitionGraph",
    "affinity",
    "comparable",
    "cut_fraction",
    "partition_graph",
    "path_lengths",
    "rows_of",
    "shortest_paths",
]

_TIE = 0.01
"""Relative to a hop: differences of lengths below which chance decides."""


@dataclass(frozen=True, slots=True, eq=False)
class PartitionGraph:
    """Coupling, weights and grid of P partitions."""

    coupling: Coupling
    """Probability mass from one partition into another."""
    weight: FloatArray
    """float64 [P], positive: work of each partition, in bytes of its table."""
    centre: FloatArray | None = None
    """float64 [P, d]; centre of each partition, from 0 to 1 along each axis of the grid; None without a grid."""
    periodic: tuple[bool, ...] = ()
    """Whether each axis of the grid is periodic."""

    def __post_init__(self) -> None:
        n = self.coupling.ptr.size - 1
        if self.weight.shape != (n,) or not (np.isfinite(self.weight) & (self.weight > 0)).all():
            raise ValueError(f"weights of shape {self.weight.shape} for {n} partitions; give a positive one for each")
        if self.centre is not None and self.centre.shape != (n, len(self.periodic)):
            raise ValueError(f"centres of shape {self.centre.shape} for {n} partitions in {len(self.periodic)} axes")


def partition_graph(table: Table) -> PartitionGraph:
    """Return the partition graph of a source; reads no table."""
    order = table.facts.attributes["state_order"]
    # A partition without rows has states, and so a positive weight.
    weight = np.maximum(table.facts.partition_bytes.astype(np.float64), 1.0)
    if order["kind"] != "grid":
        return PartitionGraph(table.facts.coupling, weight)
    centre = GridOrder.from_order(order, table.facts.partition_ptr).block_centres()
    axes = (table.facts.attributes.get("geometry") or {}).get("axes") or []
    known = len(axes) == centre.shape[1]
    periodic = tuple(known and bool(axes[i].get("periodic")) for i in range(centre.shape[1]))
    return PartitionGraph(table.facts.coupling, weight, centre, periodic)


def cut_fraction(facts: PartitionGraph, owner: IntArray) -> float:
    """Return the fraction of the mass between partitions that connects different workers; 0 without mass.

    Parameters
    ----------
    owner : int64 [P]
    """
    source, mass, other = rows_of(facts.coupling), facts.coupling.mass, facts.coupling.partitions
    between = float(mass[source != other].sum())
    return float(mass[owner[source] != owner[other]].sum()) / between if between else 0.0


def rows_of(coupling: Coupling) -> IntArray:
    """Return int64 [entries]: the row of each entry."""
    return np.repeat(np.arange(coupling.ptr.size - 1), np.diff(coupling.ptr))


def affinity(coupling: Coupling) -> csr_array:
    """Return float64 [P, P], sparse: mass between two partitions in both directions; no diagonal, no zeros."""
    from scipy.sparse import csr_array

    n = coupling.ptr.size - 1
    source = rows_of(coupling)
    apart = (source != coupling.partitions) & (coupling.mass > 0)
    one = csr_array((coupling.mass[apart], (source[apart], coupling.partitions[apart])), shape=(n, n))
    return csr_array(one + one.T)


def path_lengths(affinity: csr_array) -> csr_array:
    """Return lengths of hops, 1 (strong) to 2 (weak): paths with fewer hops are shorter, then those with more mass."""
    from scipy.sparse import csr_array

    return csr_array((1 + 1 / (1 + affinity.data), affinity.indices, affinity.indptr), shape=affinity.shape)


def shortest_paths(graph: csr_array, sources: IntArray) -> FloatArray:
    """Return float64 [nodes]: the shortest path from any of the sources, infinite where there is none."""
    from scipy.sparse.csgraph import dijkstra

    return np.asarray(dijkstra(graph, indices=sources, min_only=True))


def comparable(lengths: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Make infinite lengths finite and longer than all others, and let chance decide between nearly equal ones."""
    found = np.isfinite(lengths)
    longest = lengths.max(where=found, initial=0.0)
    return np.asarray(np.where(found, lengths, 2 * longest + 2) + _TIE * rng.random(lengths.shape))
