"""Compare certified solves of control problems with an independent solution in memory: is the difference in the bound?

Each case is PROBLEM:GRID or PROBLEM:GRID:NAME=VALUE,...; its table is generated as a store and solved out of core to a
proved error, and its optimum found by policy iteration with SciPy's linear solvers (independent.py). The largest
difference of two values must not be above the proved bound, but for the independent solution's own error.
"""

from __future__ import annotations

import argparse
import math
import resource
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import independent
import measuring
import numpy as np

import ooc_mdp
from ooc_mdp.errors import OptionsError
from ooc_mdp.problems.control import Discretised
from ooc_mdp.problems.registry import make_problem

CASES = (
    "mountain-car:100", "mountain-car:200", "mountain-car:400", "single-pendulum:100:hold=0",
    "single-pendulum:200:hold=0", "single-pendulum:400:hold=0", "single-pendulum:100:hold=1",
    "single-pendulum:200:hold=1", "single-pendulum:400:hold=1", "double-pendulum:10:hold=0",
    "double-pendulum:10:hold=1", "double-pendulum:16:hold=0", "double-pendulum:16:hold=1", "double-pendulum:20:hold=0",
    "double-pendulum:20:hold=1", "double-pendulum:24:hold=0", "double-pendulum:24:hold=1", "double-pendulum:30:hold=0",
    "double-pendulum:30:hold=1",
)  # fmt: skip
LARGEST_LU = 12_000
"""States beyond which the linear systems of more than two dimensions are solved iteratively: LU fills in too much."""
KEPT = (
    "outcome", "method", "error_bound", "residual_bound", "rounding_bound", "cache_bytes", "table_bytes",
    "n_partitions", "loads", "loads_per_partition", "backups", "seconds",
)  # fmt: skip
NOT_INCLUDED = (
    "errors of the rows: both solutions take the problem's own, which tests compare with a model and closed forms",
    "how far a table is from the continuous problem: docs/convergence.md",
    "time: single runs",
)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=";".join(CASES), help="separated by semicolons")
    parser.add_argument("--discount", type=float, default=0.9)
    parser.add_argument("--epsilon", type=float, default=1e-3, help="proved error of the solves")
    parser.add_argument("--cache", default="22%", help="of the table")
    parser.add_argument("--partitions", type=int, default=100, help="about; grids are cut into blocks")
    parser.add_argument("--method", choices=("vi", "p-eva"), help="of all; p-eva in two dimensions, else vi by default")
    parser.add_argument("--device", default="cpu", help="cpu or cuda:0")
    parser.add_argument("--time-limit", type=float, help="seconds a solve; the bound that it has then must hold too")
    measuring.add_common_options(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    facts = {"machine": measuring.machine(options.machine_shared), "versions": measuring.versions()}
    cases = [measure(text, options) for text in options.cases.split(";")]
    show(cases, options)
    measuring.write_figures("agreement", options, {"cases": cases}, facts, NOT_INCLUDED)
    if not all(case["within"] for case in cases):
        sys.exit("a difference is above its bound")


def measure(text: str, options: argparse.Namespace) -> dict[str, Any]:
    """Solve one case in both ways."""
    name, grid, said = (*text.split(":"), "")[:3]
    parameters = {"grid": grid, **dict(pair.split("=", 1) for pair in said.split(",") if pair)}
    problem = make_problem(name, parameters)
    if not isinstance(problem, Discretised):
        raise OptionsError(f"{name} is no control problem")
    plane = len(problem.points) <= 2
    with tempfile.TemporaryDirectory(prefix="ooc-mdp-benchmark-") as folder:
        store = ooc_mdp.generate(name, Path(folder) / "store", parameters, partitions=options.partitions, device="cpu")
        solution = ooc_mdp.solve(
            store,
            discount=options.discount,
            epsilon=options.epsilon,
            cache=options.cache,
            method=options.method or ("p-eva" if plane else "vi"),
            device=options.device,
            time_limit=options.time_limit,
        )
    summary = solution.summary()
    linear = "lu" if plane or problem.n_states <= LARGEST_LU else "bicgstab"
    found = independent.optimum(independent.model_of(problem, options.discount), linear)
    apart = np.abs(solution.values - found.values)
    bound = solution.error_bound
    case = {
        "case": text,
        "problem": name,
        "parameters": problem.parameters(),
        "states": problem.n_states,
        "value_range": [float(found.values.min()), float(found.values.max())],
        "solve": {key: summary[key] for key in KEPT},
        "independent": {
            "linear_solver": found.linear,
            "policies": found.policies,
            "error": found.error,
            "seconds": found.seconds,
            "peak_rss_bytes_so_far": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        },
        "largest_difference": float(apart.max()),
        "mean_difference": float(apart.mean()),
        "share_of_bound": float(apart.max()) / bound if bound > 0 else math.inf,
        "within": float(apart.max()) <= bound + found.error,
    }
    print(f"{text}: {case['largest_difference']:.2e} of {bound:.2e}", file=sys.stderr, flush=True)
    return case


def show(cases: list[dict[str, Any]], options: argparse.Namespace) -> None:
    print(f"discount {options.discount}, cache {options.cache}, proved error {options.epsilon}")
    headers = (
        "case", "states", "values", "method", "seconds", "loads/partition", "proved", "difference", "share",
        "independent", "its error", "seconds",
    )  # fmt: skip
    rows = [
        (
            case["case"],
            f"{case['states']:,}",
            "{:.2f} .. {:.2f}".format(*case["value_range"]),
            case["solve"]["method"],
            f"{case['solve']['seconds']:.1f}",
            f"{case['solve']['loads_per_partition']:.2f}",
            f"{case['solve']['error_bound'] or math.inf:.1e}",
            f"{case['largest_difference']:.1e}" + ("" if case["within"] else " ABOVE THE BOUND"),
            f"{case['share_of_bound']:.0%}",
            case["independent"]["linear_solver"],
            f"{case['independent']['error']:.0e}",
            f"{case['independent']['seconds']:.1f}",
        )
        for case in cases
    ]
    measuring.print_table(headers, rows)


if __name__ == "__main__":
    main()
