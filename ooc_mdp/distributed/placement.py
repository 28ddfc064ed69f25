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
from typing import ClassVar, Protocol

import numpy as np

from ooc_mdp.distributed.balance import assign_nearest, bisect, fill_empty, rebalance
from ooc_mdp.distributed.partition_graph import (
    PartitionGraph,
    affinity,
    comparable,
    path_lengths,
    rows_of,
    shortest_paths,
)
from ooc_mdp.errors import OptionsError
from ooc_mdp.model import metis
from ooc_mdp.model.mdp import FloatArray, IntArray

__all__ = [
    "PLACEMENTS",
    "Attractors",
    "Blocks",
    "Metis",
    "Placement",
    "Random",
    "SingleOwner",
    "parse_placement",
    "targets",
]

_ATTRACTORS = 30
"""Attractors per worker; more did not change the times in Wingate's figure 12.7."""
_STEPS = 1000
"""Integer steps of METIS in an average weight or mass."""
_METIS_TOLERANCE = 0.03
"""Relative deviation of a worker's weight that is accepted of METIS's own cut."""


class Placement(Protocol):
    """A placement rule. To add one, define these two members and name an instance in `_RULES`.

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
        workers, target = targets(facts, shares)
        if facts.centre is None:
            return workers[bisect(np.arange(facts.weight.size)[:, None], facts.weight, target)]
        places = np.stack([np.unique(along, return_inverse=True)[1] for along in facts.centre.T], axis=1)
        source, coupling = rows_of(facts.coupling), facts.coupling
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
        workers, _ = targets(facts, shares)
        return np.full(facts.weight.size, workers[np.argmax(shares[workers])], np.int64)


@dataclass(frozen=True, slots=True)
class Random:
    """Partitions in random order, divided among the workers."""

    seed: int = 0
    name: ClassVar[str] = "random"

    def place(self, facts: PartitionGraph, shares: FloatArray) -> IntArray:
        """Place at random; weights are within about one partition's weight of the shares."""
        workers, target = targets(facts, shares)
        order = np.random.default_rng(self.seed).permutation(facts.weight.size)  # each partition's place in the order
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
        workers, target = targets(facts, shares)
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
        graph = path_lengths(affinity(facts.coupling))
        return comparable(np.stack([shortest_paths(graph, own) for own in chosen], axis=1), rng)


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
        workers, target = targets(facts, shares)
        graph = affinity(facts.coupling)
        mass, weight = _as_integers(graph.data), _as_integers(facts.weight)
        # METIS refuses parts smaller than a partition; `fill_empty` corrects those.
        asked = np.maximum(target, facts.weight.mean())
        part = metis.partition_graph(graph.indptr, graph.indices, workers.size, weight, mass, asked)
        # METIS misses the weights where partitions are few; partitions whose move cuts least mass are moved.
        held = np.stack([graph @ (part == worker).astype(np.float64) for worker in range(workers.size)], axis=1)
        allowed = np.maximum(_METIS_TOLERANCE * target, facts.weight.mean() / 2)
        part = rebalance(part, -held, facts.weight, target, allowed)
        return workers[fill_empty(part, facts.weight, target)]


_RULES: tuple[Placement, ...] = (Blocks(), Random(), Metis(), SingleOwner())
PLACEMENTS = (*(rule.name for rule in _RULES), "attractors[:N]", "voronoi:N", "auto")
"""What `parse_placement` reads; N attractors per worker."""


def parse_placement(text: str, dense: bool = False) -> Placement:
    """Return the placement of a word: a rule's name, attractors:N, voronoi:N or auto.

    Parameters
    ----------
    dense : whether partitions read most of the others: auto is single there, and blocks elsewhere.

    Raises
    ------
    OptionsError : it names none.
    """
    plain: dict[str, Placement] = {rule.name: rule for rule in _RULES}
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
        raise OptionsError(f'placement "{text}": give one of {", ".join(PLACEMENTS)}')
    return Attractors(int(counted[2]), balanced=counted[1] == "attractors")


def targets(facts: PartitionGraph, shares: FloatArray) -> tuple[IntArray, FloatArray]:
    """Return the workers that receive partitions, in order, and the weight that each is to have.

    Raises
    ------
    ValueError : a share is not positive.
    """
    if shares.ndim != 1 or not shares.size or not (np.isfinite(shares) & (shares > 0)).all():
        raise ValueError(f"shares {shares.tolist()}; give a positive number for each worker")
    workers = np.sort(np.argsort(-shares, kind="stable")[: facts.weight.size])
    return workers, shares[workers] / shares[workers].sum() * facts.weight.sum()


def _as_integers(weights: FloatArray) -> IntArray:
    """Return weights as integers, in steps that are small against their mean."""
    return np.rint(weights * (_STEPS / weights.mean())).astype(np.int64) if weights.size else weights.astype(np.int64)
