"""Placement: which worker owns which partition, from the partitions' coupling, weights and grid.

blocks        contiguous regions: few messages, but changes of values pass through one worker after the other
random        all workers take part at once, and nearly all coupled partitions have different owners
attractors:n  between the two: n random points per worker; a partition belongs to the owner of the nearest
voronoi:n     the same without balancing: the workers' weights are left to chance
metis         a cut of the coupling graph with little probability mass across
single        one worker owns all partitions, the others stand by for its loss

Wingate (2004, section 6.2) has all but the last two; unlike there, weights are proportional to the workers' shares,
except for voronoi, which reproduces the thesis. A placement is pure: it reads no table and contacts no worker.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np

from ooc_mdp.distributed.balance import assign_nearest, bisect, fill_empty, rebalance
from ooc_mdp.errors import OptionsError
from ooc_mdp.io.conversion import metis
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.partition import Coupling
from ooc_mdp.model.state_order import GridOrder
from ooc_mdp.model.table_source import TableSource

if TYPE_CHECKING:
    from scipy.sparse import csr_array

__all__ = [
    "Attractors",
    "Blocks",
    "Metis",
    "PartitionGraph",
    "Placement",
    "Random",
    "SingleOwner",
    "cut_fraction",
    "parse_placement",
    "partition_graph",
    "reassign",
]

_ATTRACTORS = 30
"""Attractors per worker; more did not change the times in Wingate's figure 12.7."""
_TIE = 0.01
"""Relative to a hop: differences of distances below which chance decides."""
_STEPS = 1000
"""Integer steps of METIS in an average weight or mass."""
_METIS_TOLERANCE = 0.03
"""Relative deviation of a worker's weight that is accepted of METIS's own cut."""


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


def partition_graph(store: TableSource) -> PartitionGraph:
    """Return the partition graph of a source; reads no table."""
    order = store.attributes["state_order"]
    # A partition without rows has states, and so a positive weight.
    weight = np.maximum(store.partition_bytes.astype(np.float64), 1.0)
    if order["kind"] != "grid":
        return PartitionGraph(store.coupling, weight)
    centre = GridOrder.from_order(order).block_centres()
    axes = (store.attributes.get("geometry") or {}).get("axes") or []
    known = len(axes) == centre.shape[1]
    periodic = tuple(known and bool(axes[i].get("periodic")) for i in range(centre.shape[1]))
    return PartitionGraph(store.coupling, weight, centre, periodic)


class Placement(Protocol):
    """A placement rule. To add one, define these two members and name it in `parse_placement`.

    Each worker receives a partition where there are enough; where there are fewer partitions than workers, those with
    the largest shares receive one each. The result depends on the arguments only.
    """

    @property
    def name(self) -> str:
        """The word that `parse_placement` reads."""
        ...

    def place(self, facts: PartitionGraph, shares: FloatArray) -> IntArray:
        """Return int64 [P]: the owner of each partition, 0 .. W-1.

        Parameters
        ----------
        shares : float64 [W], positive; relative weights that the workers are to have.
        """
        ...


@dataclass(frozen=True, slots=True)
class Blocks:
    """Contiguous regions: boxes of the grid, or runs of partitions in the store's order where it has none."""

    name: ClassVar[str] = "blocks"

    def place(self, facts: PartitionGraph, shares: FloatArray) -> IntArray:
        """Place by recursive bisection across the axis where the cut crosses least mass."""
        workers, target = _targets(facts, shares)
        if facts.centre is None:
            return workers[bisect(np.arange(facts.weight.size)[:, None], facts.weight, target)]
        places = np.stack([np.unique(along, return_inverse=True)[1] for along in facts.centre.T], axis=1)
        source, coupling = _rows_of(facts.coupling), facts.coupling
        side = np.zeros(facts.weight.size, np.int8)

        def cut_cost(here: IntArray, there: IntArray) -> float:
            side[:] = 0
            side[here], side[there] = 1, -1
            return float(coupling.mass[side[source] * side[coupling.partitions] < 0].sum())

        return workers[bisect(places, facts.weight, target, cut_cost)]


@dataclass(frozen=True, slots=True)
class SingleOwner:
    """All partitions to the worker with the largest share, which can then sweep and shift all values together."""

    name: ClassVar[str] = "single"

    def place(self, facts: PartitionGraph, shares: FloatArray) -> IntArray:
        """Place all partitions on the first worker with the largest share."""
        workers, _ = _targets(facts, shares)
        return np.full(facts.weight.size, workers[np.argmax(shares[workers])], np.int64)


@dataclass(frozen=True, slots=True)
class Random:
    """Partitions in random order, divided among the workers."""

    seed: int = 0
    name: ClassVar[str] = "random"

    def place(self, facts: PartitionGraph, shares: FloatArray) -> IntArray:
        """Place at random; weights are within about one partition's weight of the shares."""
        workers, target = _targets(facts, shares)
        order = np.random.default_rng(self.seed).permutation(facts.weight.size)
        return workers[bisect(order[:, None], facts.weight, target)]


@dataclass(frozen=True, slots=True)
class Attractors:
    """Each partition to the owner of the nearest of random attractors (Wingate 2004, section 6.2).

    Distances are those of the grid in units of its axes' lengths; without a grid, lengths of paths in the coupling
    graph between partitions, which are the attractors.
    """

    per_worker: int = _ATTRACTORS
    """Attractors per worker, at least 1: few make large regions, many approach a random placement."""
    seed: int = 0
    balanced: bool = True
    """Whether regions are balanced to the workers' shares; if not, as in the thesis, the nearest attractor alone
    decides, and weights are as chance has it: with one attractor each, the heaviest of 8 workers had 1.7 to 2.1 times
    the mean on grids of 10,000 to 105,000 partitions in two and four axes."""

    def __post_init__(self) -> None:
        if self.per_worker < 1:
            raise OptionsError(f"placement {self.name}: give at least 1 attractor per worker")

    @property
    def name(self) -> str:
        """The word with the number of attractors."""
        return f"{'attractors' if self.balanced else 'voronoi'}:{self.per_worker}"

    def place(self, facts: PartitionGraph, shares: FloatArray) -> IntArray:
        """Place by a Voronoi tessellation; the cells of a worker grow or shrink together until it has its share."""
        workers, target = _targets(facts, shares)
        rng = np.random.default_rng(self.seed)
        distances = self._through_graph if facts.centre is None else self._across_grid
        cost = distances(facts, target.size, rng)
        owner = assign_nearest(cost, facts.weight, target) if self.balanced else cost.argmin(axis=1)
        return workers[fill_empty(owner, facts.weight, target)]

    def _across_grid(self, facts: PartitionGraph, workers: int, rng: np.random.Generator) -> FloatArray:
        """Return float64 [P, W]: the squared distance to each worker's nearest attractor."""
        from scipy.spatial import KDTree

        axes = len(facts.periodic)
        cost = np.empty((facts.weight.size, workers))
        for worker in range(workers):
            tree = KDTree(rng.random((self.per_worker, axes)), boxsize=np.array(facts.periodic, np.float64))
            cost[:, worker] = tree.query(facts.centre)[0] ** 2
        return cost

    def _through_graph(self, facts: PartitionGraph, workers: int, rng: np.random.Generator) -> FloatArray:
        """Return float64 [P, W]: the length of the shortest path to each worker's nearest attractor."""
        n = facts.weight.size
        if workers * self.per_worker <= n:
            chosen = rng.permutation(n)[: workers * self.per_worker].reshape(workers, -1)
        else:
            chosen = np.stack([rng.permutation(n)[: self.per_worker] for _ in range(workers)])
        graph = _path_lengths(_affinity(facts.coupling))
        return _connected(np.stack([_shortest_paths(graph, own) for own in chosen], axis=1)) + _TIE * rng.random(
            (n, workers)
        )


@dataclass(frozen=True, slots=True)
class Metis:
    """A cut of the coupling graph with little mass between workers."""

    name: ClassVar[str] = "metis"

    def place(self, facts: PartitionGraph, shares: FloatArray) -> IntArray:
        """Place by METIS, and move a few partitions where it misses the shares.

        Raises
        ------
        MissingExtraError : pymetis is not installed.
        """
        metis.require_metis("The placement metis")
        workers, target = _targets(facts, shares)
        graph = _affinity(facts.coupling)
        mass, weight = _as_integers(graph.data), _as_integers(facts.weight)
        # METIS refuses parts smaller than a partition; `fill_empty` corrects those.
        asked = np.maximum(target, facts.weight.mean())
        part = metis.partition_graph(graph.indptr, graph.indices, workers.size, weight, mass, asked)
        # METIS misses the weights where partitions are few; partitions whose move cuts least mass are moved.
        held = np.stack([graph @ (part == worker).astype(np.float64) for worker in range(workers.size)], axis=1)
        allowed = np.maximum(_METIS_TOLERANCE * target, facts.weight.mean() / 2)
        part = rebalance(part, -held, facts.weight, target, allowed)
        return workers[fill_empty(part, facts.weight, target)]


def parse_placement(text: str, dense: bool = False) -> Placement:
    """Return the placement of a word: a rule's name, attractors:N, voronoi:N or auto.

    Parameters
    ----------
    dense : whether partitions read most of the others: auto is single there, and blocks elsewhere.

    Raises
    ------
    OptionsError : it names none.
    """
    plain: dict[str, Placement] = {p.name: p for p in (Blocks(), Random(), Metis(), SingleOwner())}
    plain |= {"attractors": Attractors(), "auto": plain["single" if dense else "blocks"]}
    if text in plain:
        return plain[text]
    if text == "alone":
        raise OptionsError('placement "alone" is now called "single"')
    if text == "dynamic" or text.startswith("dynamic:"):
        first = text.removeprefix("dynamic").removeprefix(":") or "blocks"
        raise OptionsError(f'placement "{text}" is now placement "{first}" with --rebalance (in Python rebalance=True)')
    counted = re.fullmatch(r"(attractors|voronoi):(\d{1,9})", text, re.ASCII)
    if counted is None:
        raise OptionsError(f'placement "{text}": give one of {", ".join(plain)}, attractors:N or voronoi:N')
    return Attractors(int(counted[2]), balanced=counted[1] == "attractors")


def cut_fraction(facts: PartitionGraph, owner: IntArray) -> float:
    """Return the fraction of the mass between partitions that connects different workers; 0 without mass.

    Parameters
    ----------
    owner : int64 [P]
    """
    source, mass, other = _rows_of(facts.coupling), facts.coupling.mass, facts.coupling.partitions
    between = float(mass[source != other].sum())
    return float(mass[owner[source] != owner[other]].sum()) / between if between else 0.0


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
    mass = _affinity(facts.coupling)
    source, target = place[np.repeat(np.arange(owner.size), np.diff(mass.indptr))], place[mass.indices]
    # Without edges into workers, no path leads through one.
    kept = (source >= 0) & (target >= 0) & (target < orphans.size)
    nodes = orphans.size + workers.size
    graph = _path_lengths(csr_array((mass.data[kept], (source[kept], target[kept])), shape=(nodes, nodes)))
    lengths = np.stack([_shortest_paths(graph, np.array([orphans.size + i])) for i in range(workers.size)], axis=1)
    rng = np.random.default_rng(0)
    return _connected(lengths[: orphans.size]) + _TIE * rng.random((orphans.size, workers.size))


def _fill_up(owned: FloatArray, shares: FloatArray, more: float) -> FloatArray:
    """Divide `more` so that all who receive something end at the same level, and no one else is below it."""
    order = np.argsort(owned / shares, kind="stable")
    levels = (more + np.cumsum(owned[order])) / np.cumsum(shares[order])
    return np.asarray(np.maximum(levels.min() * shares - owned, 0.0))


def _targets(facts: PartitionGraph, shares: FloatArray) -> tuple[IntArray, FloatArray]:
    """Return the workers that receive partitions, and their target weights."""
    if shares.ndim != 1 or not shares.size or not (np.isfinite(shares) & (shares > 0)).all():
        raise ValueError(f"shares {shares.tolist()}; give a positive number for each worker")
    workers = np.sort(np.argsort(-shares, kind="stable")[: facts.weight.size])
    return workers, shares[workers] / shares[workers].sum() * facts.weight.sum()


def _rows_of(coupling: Coupling) -> IntArray:
    """Return int64 [entries]: the row of each entry."""
    return np.repeat(np.arange(coupling.ptr.size - 1), np.diff(coupling.ptr))


def _affinity(coupling: Coupling) -> csr_array:
    """Return float64 [P, P], sparse: mass between two partitions in both directions; no diagonal, no zeros."""
    from scipy.sparse import csr_array

    n = coupling.ptr.size - 1
    source = _rows_of(coupling)
    apart = (source != coupling.partitions) & (coupling.mass > 0)
    one = csr_array((coupling.mass[apart], (source[apart], coupling.partitions[apart])), shape=(n, n))
    return csr_array(one + one.T)


def _as_integers(weights: FloatArray) -> IntArray:
    """Return weights as integers, in steps that are small against their mean."""
    return np.rint(weights * (_STEPS / weights.mean())).astype(np.int64) if weights.size else weights.astype(np.int64)


def _path_lengths(affinity: csr_array) -> csr_array:
    """Return lengths of hops, 1 (strong) to 2 (weak): paths with fewer hops are shorter, then those with more mass."""
    from scipy.sparse import csr_array

    return csr_array((1 + 1 / (1 + affinity.data), affinity.indices, affinity.indptr), shape=affinity.shape)


def _shortest_paths(graph: csr_array, sources: IntArray) -> FloatArray:
    """Return float64 [nodes]: the shortest path from any of the sources, infinite where there is none."""
    from scipy.sparse.csgraph import dijkstra

    return np.asarray(dijkstra(graph, indices=sources, min_only=True))


def _connected(lengths: FloatArray) -> FloatArray:
    """Replace infinite lengths by one that is longer than all others."""
    found = np.isfinite(lengths)
    longest = lengths.max(where=found, initial=0.0)
    return np.asarray(np.where(found, lengths, 2 * longest + 2))
