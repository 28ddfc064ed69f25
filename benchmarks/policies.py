"""Solve control problems on grids of several sizes and count how many starts their policies bring to the goal.

Each case is PROBLEM:GRID or PROBLEM:GRID:NAME=VALUE,...; its table is generated, solved to a plain residual, and the
continuous dynamics are run from random starts and from rest, under each kind of policy. A start succeeds where the
process ends with a reward, or where the goal is held throughout the last five units of time.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import measuring

import ooc_mdp
from ooc_mdp.errors import OptionsError
from ooc_mdp.problems.control import DiscretisedProblem
from ooc_mdp.problems.registry import make_problem
from ooc_mdp.simulation import Controller, SimulationOptions, random_starts, simulate

CASES = (
    "mountain-car:100", "mountain-car:400", "single-pendulum:400", "single-pendulum:400:hold=0", "double-pendulum:16",
    "double-pendulum:20", "double-pendulum:24", "double-pendulum:30", "double-pendulum:40",
)  # fmt: skip
KEPT = (
    "outcome",
    "method",
    "device",
    "error_bound",
    "residual_bound",
    "table_bytes",
    "loads",
    "backups",
    "solve_seconds",
)
RUN_KEPT = (
    "start",
    "start_value",
    "above_value_threshold",
    "outcome",
    "success",
    "reached",
    "held_since",
    "discounted_return",
)
NOT_INCLUDED = (
    "whether the optimal policy reaches the goal from a start: some cars are too fast to be stopped, whatever one does",
    "disturbances, delays and errors of the model: the policy is run on the dynamics that it was made for",
    "the spread over seeds: one set of starts",
    "time: single runs; the seconds of simulation include compiling the dynamics",
)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=";".join(CASES), help="separated by semicolons")
    parser.add_argument("--policies", default="lookahead,vote,nearest", help="kinds of policy, separated by commas")
    parser.add_argument("--discount", type=float, default=0.9)
    parser.add_argument("--residual", type=float, default=1e-5, help="plain Bellman residual at which a solve stops")
    parser.add_argument("--starts", type=int, default=20, help="random starts, beside the one at rest")
    parser.add_argument("--seed", type=int, default=1, help="of the starts")
    parser.add_argument("--seconds", type=float, default=30.0, help="length of a run")
    parser.add_argument("--depth", type=int, default=SimulationOptions().plan_depth, help="controls in turn of a plan")
    parser.add_argument("--cache", default="100%", help="of the table")
    parser.add_argument("--method", default="p-eva")
    parser.add_argument("--sweeps", type=int, default=1, help="sweeps of a visit by vi")
    parser.add_argument("--partitions", type=int, help="of each table; 256 or so by default")
    parser.add_argument("--device", default="cpu", help="cpu or cuda:0")
    parser.add_argument("--time-limit", type=float, help="seconds a solve")
    measuring.add_common_options(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    facts = {"machine": measuring.machine(options.machine_shared), "versions": measuring.versions()}
    cases = [measure(text, options) for text in options.cases.split(";")]
    show(cases, options)
    measuring.write_figures("policies", options, {"cases": cases}, facts, NOT_INCLUDED)


def measure(text: str, options: argparse.Namespace) -> dict[str, Any]:
    """Solve one case and run its policies."""
    name, grid, said = (*text.split(":"), "")[:3]
    parameters = {"grid": grid, **dict(pair.split("=", 1) for pair in said.split(",") if pair)}
    problem = make_problem(name, parameters)
    if not isinstance(problem, DiscretisedProblem):
        raise OptionsError(f"{name} is no control problem")
    with tempfile.TemporaryDirectory(prefix="ooc-mdp-benchmark-") as folder:
        store = ooc_mdp.generate(
            name, Path(folder) / "store", parameters, dtype="float32", partitions=options.partitions
        )
        solution = ooc_mdp.solve(
            store,
            discount=options.discount,
            residual=options.residual,
            method=options.method,
            sweeps_per_visit=options.sweeps,
            cache=options.cache,
            device=options.device,
            time_limit=options.time_limit,
        )
    summary = solution.summary()
    if solution.outcome is ooc_mdp.Outcome.INTERRUPTED:
        raise SystemExit(solution.outcome.message.partition(";")[0])
    print(f"{text}: {summary['outcome']} in {summary['solve_seconds']:.0f} s", file=sys.stderr, flush=True)
    starts = random_starts(problem.problem, options.starts, options.seed)
    rest = [] if problem.problem.initial_state is None else [problem.problem.initial_state]
    runs = []
    for kind in options.policies.split(","):
        began = time.monotonic()
        how = SimulationOptions(
            duration=options.seconds,
            controller=Controller(kind),
            plan_depth=options.depth,
            continue_after_end=problem.problem.terminal_reward
            is not None,  # an end that pays is a goal, which can be held
        )
        simulated = simulate(
            problem, solution.values, solution.policy, options.discount, [*rest, *starts], how
        ).summary()
        from_rest, random = simulated["runs"][: len(rest)], simulated["runs"][len(rest) :]
        promising = [run for run in random if run["above_value_threshold"]]
        runs.append(
            {
                "policy": kind,
                "seconds": time.monotonic() - began,
                "starts": len(random),
                "successes": sum(run["success"] for run in random),
                "promising_starts": len(promising),
                "promising_successes": sum(run["success"] for run in promising),
                "reached": sum(run["reached"] is not None for run in random),
                "rest_succeeds": all(run["success"] for run in from_rest) if rest else None,
                "mean_share_of_last_at_goal": _mean([run["goal_fraction_last"] or 0.0 for run in random]),
                "mean_earned": _mean([run["discounted_return"] for run in random]),
                "mean_value": _mean([run["start_value"] for run in random]),
                "runs": [{key: run[key] for key in RUN_KEPT} for run in simulated["runs"]],
            }
        )
    return {
        "case": text,
        "problem": name,
        "parameters": problem.parameters(),
        "states": problem.n_states,
        "solve": {key: summary[key] for key in KEPT},
        "policies": runs,
    }


def _mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers)


def show(cases: list[dict[str, Any]], options: argparse.Namespace) -> None:
    rows = []
    for case in cases:
        for run in case["policies"]:
            rows.append(
                (
                    case["case"],
                    run["policy"],
                    f"{case['states']:,}",
                    f"{run['successes']}/{run['starts']}",
                    f"{run['promising_successes']}/{run['promising_starts']}",
                    f"{run['reached']}/{run['starts']}",
                    {None: "", True: "yes", False: "no"}[run["rest_succeeds"]],
                    f"{run['mean_share_of_last_at_goal']:.0%}",
                    f"{run['mean_earned']:.3f}",
                    f"{run['mean_value']:.3f}",
                )
            )
    print(f"\n{options.starts} random starts, {options.seconds:g} units of time, discount {options.discount}")
    measuring.print_table(
        ("case", "policy", "states", "success", "promising", "reached", "rest", "last 5 at goal", "earned", "value"),
        rows,
    )


if __name__ == "__main__":
    main()
