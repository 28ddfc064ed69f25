"""What the thesis says of the two extremes (figure 5.2) and of hybrid priorities (figure 5.6, sections 5.3 and 11.1).

Its figure 5.6 is a drawing: clusters of highly interdependent states, weakly connected to each other. `Clusters` makes
such a model; how the states of a cluster are connected is ours.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import measuring
import numpy as np
from domains import CAR, DOUBLE, SINGLE, Case, InMemory
from experiments import cache_curves, compare_methods, finished, measure_variants, show_progress

import ooc_mdp

__all__ = ["Clusters", "clusters", "extremes", "hybrid", "show_clusters", "show_extremes", "show_hybrid"]

RANKED = ("H1, voting", "H2, voting", "hybrid, voting")
CUTS = {"P-EVA, one partition": ("H2",), "P-EVA/1": ("H1", "H2", "hybrid"), "P-EVA/400": ("H1", "H2", "hybrid")}
"""The thesis's words for the number of states a partition, and the priorities; none of them votes."""


@dataclass(frozen=True, slots=True)
class Clusters:
    """Figure 5.6: a chain of clusters, each of as many states; the last state of a cluster leads to the one before it.

    A state has two actions. Each leads to three random states of its cluster, or stays with the probability that is
    left, 0.1. From the last state of a cluster the first action leads to the first state of the cluster before it,
    with probability 0.5. State 0 ends the process with reward 1, the only one.
    """

    count: int
    """Of the clusters."""
    states: int
    """Of each cluster."""
    discount: float = 0.99
    """At 0.9 values would fall below the target after a few clusters."""
    seed: int = 1

    @property
    def size(self) -> int:
        """States of the model."""
        return self.count * self.states

    def write(self, file: Path) -> None:
        """As arrays in CSR form."""
        rng = np.random.default_rng(self.seed)
        width, n = 4, self.size
        where, weights = np.zeros((n, 2, width), np.int64), np.zeros((n, 2, width))
        for s in range(1, n):
            first = s - s % self.states
            for action in range(2):
                others = np.setdiff1d(np.arange(first, first + self.states), [s])
                where[s, action] = s, *rng.choice(others, width - 1, replace=False)
                weights[s, action] = 0.1, *(0.9 * rng.dirichlet(np.ones(width - 1)))
            if s >= self.states and s == first + self.states - 1:
                where[s, 0, 1] = first - self.states
                weights[s, 0] = 0.1, 0.5, 0.2, 0.2
        where[0], weights[0] = np.arange(width), 1 / width
        durations = np.ones((n, 2))
        durations[0] = 1e6  # beyond any discount, with as many bytes as other rows, so that partitions are clusters
        np.savez(
            file,
            state_ptr=np.arange(0, 2 * n + 1, 2),
            indptr=np.arange(0, 2 * width * n + 1, width),
            indices=where.ravel(),
            data=weights.ravel(),
            r_s=np.eye(1, n)[0],
            durations=durations.ravel(),
        )

    def in_memory(self, folder: Path, partitions: int) -> InMemory:
        """The table in partitions of consecutive states, as many in each; its store has to stay while it is used."""
        self.write(folder / "clusters.npz")
        store = ooc_mdp.convert(
            folder / "clusters.npz", folder / f"{self.size}-{partitions}", partitioner="ranges", partitions=partitions
        )
        if np.ptp(np.diff(store.facts.partition_ptr)):
            raise SystemExit(f"{partitions} partitions of {self.size} states are not all of one size")
        return InMemory(store)


def extremes(toy: bool, repeat: int, limit: float) -> list[dict[str, Any]]:
    """Figure 5.2: one partition, one state a partition and 400 of them, on MCAR of several sizes."""
    found = []
    for points in (20,) if toy else (20, 40, 60, 80, 100):
        (normal,) = compare_methods([Case(CAR, points, 1)], ("VI",), repeat, limit)
        found.append(normal | {"cut": "VI"})
        for cut, variants in CUTS.items():
            blocks = {"P-EVA, one partition": 1, "P-EVA/1": points, "P-EVA/400": points // 20}[cut]
            (table,) = compare_methods([Case(CAR, points, blocks)], variants, repeat, limit)
            found.append(table | {"cut": cut})
    return found


def clusters(toy: bool, repeat: int, limit: float) -> list[dict[str, Any]]:
    """Figure 5.6: value iteration, one cluster a partition, and one state a partition."""
    found = []
    ranked = ("H1", "H2", "hybrid", "joint, forward")
    with tempfile.TemporaryDirectory(prefix="ooc-mdp-benchmark-") as folder:
        for model in (Clusters(4, 4),) if toy else (Clusters(8, 8), Clusters(16, 16)):
            for partitions, variants in ((1, ("VI",)), (model.count, ranked), (model.size, ranked)):
                table = model.in_memory(Path(folder), partitions)
                solves = []
                for variant in variants:
                    solved = measure_variants(table, variant, repeat, limit, model.discount)
                    show_progress(f"{model.count} clusters of {model.states} in {partitions}", solved, model.size)
                    solves.append(solved | {"backups_per_state": solved["backups"] / model.size})
                which = {"clusters": model.count, "states": model.size, "partitions": partitions}
                found.append(which | {"discount": model.discount, "seed": model.seed, "solves": solves})
    return found


def hybrid(toy: bool, repeat: int, limit: float, caches: Sequence[int]) -> dict[str, Any]:
    """The hybrid beside H1, H2 and ours: the tables of figures 12.1, 12.3 and 12.5 in RAM, those of 12.12 in caches."""
    cases = [Case(CAR, 40, 4), Case(DOUBLE, 6, 2)]
    stored = [Case(CAR, 60, 6)]
    if not toy:
        cases = [Case(CAR, 400, 20), Case(SINGLE, 400, 20), Case(DOUBLE, 12, 4)]
        stored = [Case(domain, 300, 30, unit) for domain in (CAR, SINGLE) for unit in (0.05, 1.0)]
    exact = compare_methods(cases, ("VI, voting", *RANKED, "joint"), repeat, limit)
    over_bounds = {name: f"{name}, bounds" for name in ("h1", "h2", "hybrid")}
    fixed = {name.removesuffix(", voting"): name for name in RANKED}
    curves = [cache_curves(case, caches, limit, fixed, {"joint": "joint", **over_bounds}) for case in stored]
    return {"tables": exact, "curves": curves}


def show_extremes(name: str, figure: dict[str, Any]) -> None:
    """Backups a state and processor seconds."""
    rows = []
    for table in figure["tables"]:
        for s in table["solves"]:
            cut = table["cut"] if table["cut"] == "VI" else f"{table['cut']}, {s['variant']}"
            rows.append((f"{table['states']}, {cut}", *_costs(s)))
    print(f"\nFigure {name}: MCAR")
    measuring.print_table(("states", "backups per state", "processor seconds"), rows)


def show_clusters(name: str, figure: dict[str, Any]) -> None:
    """The same of the chains of clusters."""
    rows = []
    for table in figure["tables"]:
        where = f"{table['clusters']} clusters, {table['states']} states in {table['partitions']}"
        rows += [(f"{where}, {s['variant']}", *_costs(s)) for s in table["solves"]]
    print(f"\nFigure {name}: clusters")
    measuring.print_table(("", "backups per state", "processor seconds"), rows)


def show_hybrid(name: str, figure: dict[str, Any]) -> None:
    """The same of the thesis's problems, and loads per partition."""
    rows = []
    for table in figure["tables"]:
        where = f"{table['label']} {table['states']} in {table['partitions']}"
        rows += [(f"{where}, {s['variant']}", *_costs(s)) for s in table["solves"]]
    print("\nHybrid: exact priorities, everything in RAM")
    measuring.print_table(("", "backups per state", "processor seconds"), rows)
    rows = []
    for table in figure["curves"]:
        where = f"{table['label']}, time unit {table['parameters']['time_unit']:g}"
        for percent in sorted({s["percent"] for s in table["joint"]}):
            at = table["percent"].index(percent)
            for method, solved in table["fixed"].items():
                loads = f"{solved['all']['loads_per_partition'][at]:.2f}" if finished(solved) else "not finished"
                rows.append((f"{where}, {percent}%, {method}, exact", loads))
        for method in ("joint", "h1", "h2", "hybrid"):
            for s in table[method]:
                loads = f"{s['loads_per_partition']:.2f}" if finished(s) else "not finished"
                rows.append((f"{where}, {s['percent']}%, {s['variant']}", loads))
    measuring.print_table(("cache", "loads per partition"), rows)


def _costs(solved: dict[str, Any]) -> tuple[str, str]:
    if not finished(solved):
        return "not finished", "not finished"
    return f"{solved['backups_per_state']:.1f}", f"{solved['cpu_seconds']['min']:.3f}"
