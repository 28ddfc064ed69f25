"""Halve the step of a control problem's grid again and again: how do the values at named states change?

Grids nest (a bounded axis has k cells and k + 1 points, a periodic one k points), so a named state is a point of each
and nothing is interpolated to read its value. Each table is generated and solved to a proved error that is small
beside the differences. Printed as the tables of
benchmarks/notes/2026-11-grid-convergence.md; `--table FILE.json` prints those of kept figures.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import measuring
import numpy as np

import ooc_mdp
from ooc_mdp.errors import OptionsError
from ooc_mdp.problems.control import DiscretisedProblem
from ooc_mdp.problems.registry import make_problem

KEPT = ("outcome", "method", "error_bound", "n_partitions", "loads_per_partition", "backups", "solve_seconds")
NOT_INCLUDED = (
    "the continuous problem's own values, which nobody knows: what is shown is that grids agree more and more",
    "states between grid points",
    "the worst state: next to a discontinuity differences do not shrink; those in italics show some",
    "time: single runs",
)


@dataclass(frozen=True)
class Case:
    """A problem, its coarsest grid and its named states."""

    problem: str
    cells: tuple[int, ...]
    """Cells along each axis of the coarsest grid."""
    halvings: int
    states: dict[str, tuple[int, ...]]
    """Name -> index on the coarsest grid."""
    parameters: dict[str, str] = field(default_factory=dict)
    others: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """States at which differences do not shrink; the documentation says why."""
    method: str = "p-eva"


# Positions -1 + 0.05 i, velocities -4 + 0.2 j.
_CAR = {
    "valley, at rest: (-0.5, 0)": (10, 20),
    "valley, forwards: (-0.5, 1)": (10, 25),
    "valley, backwards: (-0.5, -1)": (10, 15),
    "left slope: (-0.8, 0)": (4, 20),
    "left slope, forwards: (-0.8, 2)": (4, 30),
    "middle: (0, 0)": (20, 20),
    "middle, backwards: (0, -1)": (20, 15),
    "right slope: (0.5, 0)": (30, 20),
    "right slope, backwards: (0.5, -1)": (30, 15),
    "before the exit: (0.8, 0.2)": (36, 21),
}
_CAR_OTHERS = {"*too fast to stop: (0.7, 1.8)*": (34, 29)}
# Angles -pi + pi/20 i, speeds -10 + 0.5 j.
_BOTH = {
    "hanging, at rest": (0, 20),
    "hanging, 2 rad/s": (0, 24),
    "hanging, 8 rad/s": (0, 36),
    "hanging, 10 rad/s": (0, 40),
    "a quarter, at rest": (10, 20),
    "a quarter, falling, 3 rad/s": (10, 14),
    "an eighth, at rest": (15, 20),
    "upright, 3 rad/s": (20, 26),
}
_ENDING = _BOTH | {"an eighth, falling, 2 rad/s": (15, 16), "upright, 6 rad/s": (20, 32)}
_ENDING_OTHERS = {
    "*hanging, 3 rad/s*": (0, 26),
    "*hanging, 5 rad/s*": (0, 30),
    "*45 degrees from hanging, at rest*": (5, 20),
    "*an eighth, rising, 2 rad/s*": (15, 24),
}
_HOLDING = _BOTH | {"an eighth, rising, 2 rad/s": (15, 24), "upright, at rest": (20, 20)}
# Angles -pi + pi/4 i and j, speeds -10 + 2.5 k and -15 + 3.75 l.
_BOTH_DOUBLE = {
    "hanging, at rest": (0, 0, 4, 4),
    "hanging, first 5 rad/s": (0, 0, 6, 4),
    "hanging, second 7.5 rad/s": (0, 0, 4, 6),
    "hanging, opposed": (0, 0, 6, 2),
    "both a quarter, at rest": (2, 2, 4, 4),
    "first upright, second hanging": (4, 0, 4, 4),
    "both upright, second 3.75 rad/s": (4, 4, 4, 5),
}
_DOUBLE_ENDING = _BOTH_DOUBLE | {
    "first a quarter, second hanging": (2, 0, 4, 4),
    "first hanging, second a quarter": (0, 2, 4, 4),
    "both an eighth, at rest": (3, 3, 4, 4),
}
_DOUBLE_HOLDING = _BOTH_DOUBLE | {
    "first a quarter, second upright": (2, 4, 4, 4),
    "first hanging, second upright": (0, 4, 4, 4),
    "both upright, at rest": (4, 4, 4, 4),
}
CASES = {
    "mountain-car": Case("mountain-car", (40, 40), 6, _CAR, others=_CAR_OTHERS),
    "single-pendulum-0": Case("single-pendulum", (40, 40), 5, _ENDING, {"hold": "0"}, _ENDING_OTHERS),
    "single-pendulum-1": Case("single-pendulum", (40, 40), 4, _HOLDING, {"hold": "1"}),
    "double-pendulum-0": Case("double-pendulum", (8, 8, 8, 8), 2, _DOUBLE_ENDING, {"hold": "0"}, method="vi"),
    "double-pendulum-wide": Case(
        "double-pendulum", (8, 8, 8, 8), 2, _DOUBLE_HOLDING, {"hold": "1", "angle": "1.5", "speed": "6"}, method="vi"
    ),
    "double-pendulum-1": Case("double-pendulum", (8, 8, 8, 8), 2, _DOUBLE_HOLDING, {"hold": "1"}, method="vi"),
}


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES), help="separated by commas")
    parser.add_argument("--halvings", type=int, help="at most so many")
    parser.add_argument("--discount", type=float, default=0.9)
    parser.add_argument("--epsilon", type=float, default=1e-4, help="proved error of every value")
    parser.add_argument("--cache", default="100%", help="of the table")
    parser.add_argument("--device", default="cpu", help="cpu or cuda:0")
    parser.add_argument("--time-limit", type=float, help="seconds a solve")
    parser.add_argument("--table", type=Path, help="print the tables of a file of figures; solve nothing")
    measuring.add_common_options(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    if options.table is not None:
        print(markdown(json.loads(options.table.read_text())["cases"]))
        return
    facts = {"machine": measuring.machine(options.machine_shared), "versions": measuring.versions()}
    cases = [measure(CASES[name], options) for name in options.cases.split(",")]
    print(markdown(cases))
    measuring.write_figures("convergence", options, {"cases": cases}, facts, NOT_INCLUDED)


def measure(case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """Values of the named states on each grid of a case."""
    halvings = case.halvings if options.halvings is None else min(case.halvings, options.halvings)
    grids, columns = [], []
    for level in range(halvings + 1):
        solve, values = solved(case, 2**level, options)
        grids.append(solve)
        columns.append(values)
    places = case.states | case.others
    coordinates = make_case(case, 1).coordinates(_numbers(make_case(case, 1).points, list(places.values())))
    states = []
    for i, name in enumerate(places):
        values = [column[i] for column in columns]
        differences = [b - a for a, b in itertools.pairwise(values)]
        states.append(
            {
                "name": name,
                "state": coordinates[i].tolist(),
                "named": name in case.states,
                "values": values,
                "differences": differences,
                "shrinks": [abs(b) < abs(a) for a, b in itertools.pairwise(differences)],
            }
        )
    return {
        "problem": case.problem,
        "parameters": case.parameters,
        "grids": grids,
        "states": states,
        "all_shrink": all(all(state["shrinks"]) for state in states if state["named"]),
    }


def make_case(case: Case, finer: int) -> DiscretisedProblem:
    """The problem on its coarsest grid, the step divided by `finer`."""
    axes = make_problem(case.problem).problem.axes  # type: ignore[attr-defined]
    points = [n * finer + (not axis.periodic) for n, axis in zip(case.cells, axes, strict=True)]
    problem = make_problem(case.problem, {"grid": ",".join(map(str, points)), **case.parameters})
    if not isinstance(problem, DiscretisedProblem):
        raise OptionsError(f"{case.problem} is no control problem")
    return problem


def _numbers(points: tuple[int, ...], places: list[tuple[int, ...]], finer: int = 1) -> np.ndarray[Any, Any]:
    return np.ravel_multi_index(tuple(finer * np.array(places).T), points)


def solved(case: Case, finer: int, options: argparse.Namespace) -> tuple[dict[str, Any], list[float]]:
    """Generate and solve one grid: figures of the solve, values at the named states."""
    problem = make_case(case, finer)
    grid = ",".join(map(str, problem.points))
    with tempfile.TemporaryDirectory(prefix="ooc-mdp-benchmark-") as folder:
        store = ooc_mdp.generate(
            case.problem, Path(folder) / "store", {"grid": grid, **case.parameters}, partitions=100, device="cpu"
        )
        solution = ooc_mdp.solve(
            store,
            discount=options.discount,
            epsilon=options.epsilon,
            cache=options.cache,
            method=case.method,  # type: ignore[arg-type]
            device=options.device,
            time_limit=options.time_limit,
        )
    summary = solution.summary()
    print(
        f"{case.problem} {grid}: {summary['outcome']} in {summary['solve_seconds']:.0f} s", file=sys.stderr, flush=True
    )
    numbers = _numbers(problem.points, list((case.states | case.others).values()), finer)
    return (
        {"grid": list(problem.points), "states": problem.n_states, **{key: summary[key] for key in KEPT}},
        solution.values[numbers].tolist(),
    )


def markdown(cases: list[dict[str, Any]]) -> str:
    """The tables of the documentation: a column a grid, the change from the grid before in brackets."""
    lines = []
    for case in cases:
        said = "".join(f", {k}={v}" for k, v in case["parameters"].items())
        proved = max(grid["error_bound"] for grid in case["grids"])
        lines += [f"**{case['problem']}{said}** (every value proved to {proved:.0e})", ""]
        lines.append("| state | " + " | ".join("x".join(map(str, g["grid"])) for g in case["grids"]) + " | shrinks |")
        lines.append("|---" * (len(case["grids"]) + 2) + "|")
        for state in case["states"]:
            values = [f"{state['values'][0]:.4f}"]
            values += [f"{v:.4f} ({d:+.4f})" for v, d in zip(state["values"][1:], state["differences"], strict=True)]
            lines.append(f"| {state['name']} | " + " | ".join(values) + f" | {_verdict(state['shrinks'])} |")
        lines.append("")
    return "\n".join(lines).rstrip()


def _verdict(shrinks: list[bool]) -> str:
    if all(shrinks):
        return "always"
    last = len(shrinks) - 1 - shrinks[::-1].index(False)
    return f"from {last + 2}" if last + 1 < len(shrinks) else "no"


if __name__ == "__main__":
    main()
