"""Loads and seconds of a finite horizon through caches of several sizes: skewed stages against one stage for each load.

The mountain car on integers, whose steps are of one length. Both ways in turns, in one process, after a short solve
that loads compiled code; the same bits come of both, which is compared.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import measuring
import numpy as np

import ooc_mdp
from ooc_mdp.finite_horizon import plan as planning
from ooc_mdp.finite_horizon.schedule import Schedule

NOT_INCLUDED = (
    "writing a result: there is no output, and policies stay in memory",
    "cold files: the store lies in the page cache, so that seconds are those of decoding and of sweeps",
)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=int, default=2100, help="steps of a unit of position and of velocity")
    parser.add_argument("--blocks", type=int, default=16, help="partitions along each axis")
    parser.add_argument("--stages", type=int, default=60)
    parser.add_argument("--caches", default="10%,22%,50%", help="shares of the table")
    parser.add_argument("--repeat", type=int, default=3)
    measuring.add_common_options(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    facts = {"machine": measuring.machine(options.machine_shared), "versions": measuring.versions()}
    with tempfile.TemporaryDirectory(prefix="ooc-mdp-benchmark-") as name:
        blocks = (options.blocks, options.blocks)
        store = ooc_mdp.generate(
            "integer-mountain-car", Path(name) / "s", {"scale": options.scale}, partition_grid=blocks
        )
        ooc_mdp.solve(store, ooc_mdp.FiniteHorizon(1), device="cpu")
        caches = [measure(store, cache, options) for cache in options.caches.split(",")]
    show(caches)
    figures = {"states": store.n_states, "partitions": store.n_partitions, "caches": caches}
    measuring.write_figures("stages", options, figures, facts, NOT_INCLUDED)


def measure(store: Any, cache: str, options: argparse.Namespace) -> dict[str, Any]:
    """Both ways through one cache, in turns."""
    usual: Callable[..., Schedule] = planning.plan_schedule
    ways: dict[str, list[ooc_mdp.Solution]] = {"skewed": [], "one": []}
    for _ in range(options.repeat):
        for way, solutions in ways.items():
            one = way == "one"
            planning.plan_schedule = (lambda *given: replace(usual(*given), stages=1)) if one else usual
            try:
                solution = ooc_mdp.solve(store, ooc_mdp.FiniteHorizon(options.stages), device="cpu", cache=cache)
            finally:
                planning.plan_schedule = usual
            solutions.append(solution)
    first, other = (ways[way][0] for way in ways)
    return {
        "cache": cache,
        "equal": bool(np.array_equal(first.values, other.values)),
        "error_bound": first.error_bound,
        **{way: figures_of(solutions, options.stages) for way, solutions in ways.items()},
    }


def figures_of(solutions: list[ooc_mdp.Solution], stages: int) -> dict[str, Any]:
    """Of the solves of one way."""
    statistics = [solution.statistics for solution in solutions]
    return {
        "loads_per_partition_and_stage": statistics[0].loads_per_partition / stages,
        "bytes_decoded": statistics[0].bytes_decoded,
        "median_seconds": float(np.median([each.solve_seconds for each in statistics])),
        "spread": measuring.spread([each.solve_seconds for each in statistics]),
    }


def show(caches: list[dict[str, Any]]) -> None:
    rows = [
        (
            each["cache"],
            *(f"{each[way]['loads_per_partition_and_stage']:.3f}" for way in ("one", "skewed")),
            *(f"{each[way]['median_seconds']:.1f}" for way in ("one", "skewed")),
        )
        for each in caches
    ]
    headers = ("cache", "loads per partition and stage: one", "skewed", "seconds: one", "skewed")
    measuring.print_table(headers, rows)


if __name__ == "__main__":
    main()
