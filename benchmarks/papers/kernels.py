"""Solve a problem of each work from a store, by the default kernel and by every simple one: what the choice rests on.

    python kernels.py --device cuda:0 --output FILE.json      everything
    python kernels.py --toy                                   small problems, in seconds
    python kernels.py --document FILE.json --into README.md   the table, put into its place there

Unlike the works' own measurements, a solve brings its table from files, by the default method, and proves its target;
with a cache of 22% it brings it again and again. The file is written anew after every problem.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import measuring
from paper_run import PaperRun, add_run_options, document
from resident import markdown

import ooc_mdp
from ooc_mdp.backends.device_kernels import DEVICE_KERNELS
from ooc_mdp.errors import OocMdpError
from ooc_mdp.store import Store

CACHES = ("100%", "22%")
RESIDUAL = 1e-4
NOT_INCLUDED = (
    "making and opening stores; importing, compiling and loading kernels: a solve that is not counted comes first",
    "the disk: the operating system's page cache holds the stores",
)


class Problem(NamedTuple):
    """As `ooc_mdp.generate` takes it."""

    work: str
    """Where it is from."""
    name: str
    parameters: dict[str, Any]
    cut: dict[str, Any]
    """Into partitions."""
    discount: float

    @property
    def title(self) -> str:
        """For the table."""
        sizes = ", ".join(f"{k} {v}" for k, v in self.parameters.items())
        return f"{self.name} ({sizes}; {self.work})"


PROBLEMS = (
    Problem("Wingate", "mountain-car", {"grid": "1000,1000"}, {"partitions": 100}, 0.9),
    Problem(
        "Johannsson", "gridworld", {"height": 1024, "width": 1024, "successors": 4}, {"partition_grid": [8, 8]}, 0.9
    ),
    Problem("Inamoto", "animat", {}, {"partitions": 64}, 0.9),
    Problem("Quintanilla", "quintanilla", {"height": 750, "width": 750}, {"partitions": 64}, 0.8),
    Problem("Luo", "random", {"states": 512, "actions": 64, "successors": 512}, {"partitions": 8}, 0.9),
)
TOY = (Problem("Wingate", "mountain-car", {"grid": "8,8"}, {"partitions": 4}, 0.5),)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", action="append", help="by its name; repeat for more, all by default")
    add_run_options(parser, repeat=2, limit=5.0, budget=300.0)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    if document(options, tables_of):
        return
    run = PaperRun("kernels", options, {"problems": []}, NOT_INCLUDED)
    for problem in TOY if options.toy else PROBLEMS:
        if problem.name not in (options.problem or [problem.name]) or not run.may_begin(problem.title):
            continue
        with tempfile.TemporaryDirectory(prefix="ooc-mdp-benchmark-") as folder:
            store = ooc_mdp.generate(problem.name, Path(folder, "store"), problem.parameters, **problem.cut)
            size = {
                "states": store.n_states,
                "partitions": store.n_partitions,
                "bytes": int(store.facts.partition_bytes.sum()),
            }
            solves = list(solves_of(store, problem.discount, options))
        run.figures["problems"].append({"problem": problem.title, **size, "solves": solves})
        run.keep(problem.title)
    run.finish(tables_of)


def solves_of(store: Store, discount: float, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One entry for each kernel and cache; none with less cache where all of the table took too long."""
    for kernel in DEVICE_KERNELS:
        how: dict[str, Any] = {"residual": RESIDUAL, "device": options.device, "kernel": kernel}
        measured: dict[str, Any] = {}
        for cache in CACHES:
            if measured.get("outcome") == "time_limit":
                continue
            try:
                if not measured:
                    ooc_mdp.solve(store, discount, cache=cache, time_limit=0.2, **how)
                measured = solve_again(store, discount, options, cache=cache, **how)
            except OocMdpError as error:
                measured = {"outcome": f"refused: {error}".replace(str(store.path), "the store")}
            yield {"kernel": kernel, "cache": cache, **measured}


def solve_again(store: Store, discount: float, options: argparse.Namespace, **how: Any) -> dict[str, Any]:
    """Figures of as many solves as the options ask for, fewer where they take long."""
    found: list[ooc_mdp.Solution] = []
    while len(found) < options.repeat and sum(s.statistics.solve_seconds for s in found) < options.time_limit:
        found.append(ooc_mdp.solve(store, discount, time_limit=options.time_limit, **how))
    last, statistics = found[-1], found[-1].statistics
    return {
        "outcome": last.outcome.value,
        "method": last.method,
        "seconds": measuring.spread([s.statistics.solve_seconds for s in found]),
        "loads_per_partition": statistics.misses / statistics.n_partitions,
        "backups_per_state": statistics.backups / statistics.n_states,
        "residual": last.certificate.residual_bound,
    }


def tables_of(figures: dict[str, Any]) -> dict[str, list[str]]:
    """Seconds, and loads per partition where the cache is smaller than the table."""
    rows = []
    for problem in figures["problems"]:
        for cache in CACHES:
            solves = {s["kernel"]: s for s in problem["solves"] if s["cache"] == cache}
            done = [s["seconds"]["median"] for s in solves.values() if s["outcome"] == "residual_reached"]
            cells = [cell(solves.get(kernel), min(done, default=0.0)) for kernel in DEVICE_KERNELS]
            rows.append([problem["problem"], cache, *cells])
    return {"kernels": markdown(["problem", "cache", *DEVICE_KERNELS], rows)}


def cell(solve: dict[str, Any] | None, best: float) -> str:
    """Seconds, the least in bold, and loads per partition."""
    if solve is None:
        return "-"
    if "seconds" not in solve:
        return "refused"
    if solve["outcome"] != "residual_reached":
        return f"not in {solve['seconds']['median']:.1f}"
    median = solve["seconds"]["median"]
    seconds = f"{median:.3f}" if median > best else f"**{median:.3f}**"
    return seconds if solve["cache"] == CACHES[0] else f"{seconds} ({solve['loads_per_partition']:.1f})"


if __name__ == "__main__":
    main()
