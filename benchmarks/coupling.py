"""Compare the methods where partitions depend strongly on each other, and where they do not.

Counted, of solves to the same target from a cache of the same share: loads per partition, backups per state,
evaluations of the policy, what the rows of the policy take; and the seconds. A solve that did not get there within the
time limit is shown with what it had cost and proved by then.

Beside them, on a smaller random MDP, the sweeps after which the rules of the literature would stop synchronous value
iteration, and this project's bounds:

    plain    max |d| < epsilon (1 - g) / (2 g)        d = V_{n+1} - V_n; Puterman 1994, section 6.3
    span     max d - min d < epsilon (1 - g) / g      section 6.6.3: the policy loses less than epsilon
    values   g max |d| / (1 - g) <= epsilon           the error of V_{n+1}, from its changes (theory/error-bounds)
    shifted  g (max d - min d) / (2 (1 - g)) <= epsilon         the same once all values have been shifted by one number
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import measuring
import numpy as np
import numpy.typing as npt
from numba import njit

import ooc_mdp
from ooc_mdp.options import format_bytes

FloatArray = npt.NDArray[np.float64]

METHODS: dict[str, dict[str, Any]] = {
    "vi": {"method": "vi"},
    "vi 16": {"method": "vi", "sweeps_per_visit": 16},
    "p-eva": {"method": "p-eva"},
    "policy-iteration": {"method": "policy-iteration"},
    "auto": {"method": "auto"},
}


@dataclass(frozen=True)
class Case:
    """A problem, how it is cut, and its discount."""

    problem: str
    parameters: dict[str, Any]
    toy: dict[str, Any]
    """Parameters of a tiny one of the same kind."""
    warm_up: dict[str, Any]
    """Parameters of a small one with successors of the same type: kernels are compiled by type."""
    cut: dict[str, Any]
    """Blocks along each axis, or partitions."""
    discount: float


_RANDOM = {"states": 500_000, "actions": 8, "successors": 5, "seed": 1}
_TOY_RANDOM, _SMALL_RANDOM = {"states": 400}, {"states": 70_000}
_TOY_GRID, _TOY_ROAD = {"grid": "6"}, {"grid": "30,30"}
_PIECES = {"partitions": 64}
_CAR, _CUT_BALANCE, _BALANCE = {"partition_grid": [30, 30]}, {"partition_grid": [16, 16]}, {"partition_grid": [17, 17]}
CASES = {
    "pendulum-16": Case("double-pendulum", {"grid": "16"}, _TOY_GRID, _TOY_GRID, {"partition_grid": [4, 4, 4, 4]}, 0.9),
    "pendulum-30": Case("double-pendulum", {"grid": "30"}, _TOY_GRID, _TOY_GRID, {"partition_grid": [5, 5, 5, 5]}, 0.9),
    "random-0.99": Case("random", _RANDOM, _TOY_RANDOM, _SMALL_RANDOM, _PIECES, 0.99),
    "random-0.999": Case("random", _RANDOM, _TOY_RANDOM, _SMALL_RANDOM, _PIECES, 0.999),
    "car": Case("mountain-car", {"grid": "300", "time_unit": 0.05}, _TOY_ROAD, _TOY_ROAD, _CAR, 0.9),
    "car-1": Case("mountain-car", {"grid": "300", "time_unit": 1}, _TOY_ROAD, _TOY_ROAD, _CAR, 0.9),
    "balance-500": Case("single-pendulum", {"grid": "500"}, _TOY_ROAD, _TOY_ROAD, _CUT_BALANCE, 0.9),
    "balance-500-17": Case("single-pendulum", {"grid": "500"}, _TOY_ROAD, _TOY_ROAD, _BALANCE, 0.9),
    "balance-1000": Case("single-pendulum", {"grid": "1000"}, _TOY_ROAD, _TOY_ROAD, _CUT_BALANCE, 0.9),
    "balance-1000-17": Case("single-pendulum", {"grid": "1000"}, _TOY_ROAD, _TOY_ROAD, _BALANCE, 0.9),
}
_FEW_BLOCKS, _FEW_PIECES = 2, {"partitions": 8}

KEPT = (
    "outcome", "method", "error_bound", "residual_bound", "policy_loss_bound", "loads", "loads_per_partition",
    "backups", "policy_evaluations", "partitions_unread", "cache_bytes", "bytes_read",
)  # fmt: skip
NOT_INCLUDED = (
    "generating the store and compiling kernels: a small solve of the same problem by the same method comes first",
    "writing a result: none is asked for",
    "the spread: one solve each. P-eva and auto read ahead on threads, so that their counts differ a little from run "
    "to run",
    "disk: the store has just been written, so its files are in the page cache",
)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES), help="of " + ", ".join(CASES) + '; "" for none')
    parser.add_argument("--methods", default=",".join(METHODS), help="of " + ", ".join(METHODS))
    parser.add_argument("--cache", default="22%", help="of the table, or a size")
    parser.add_argument("--residual", type=float, default=1e-4, help="plain residual of the one target")
    parser.add_argument("--epsilon", type=float, default=1e-3, help="error to prove, the other target")
    parser.add_argument("--time-limit", type=float, default=40.0, help="seconds a solve")
    parser.add_argument("--device", default="cpu", help="cpu or cuda:0")
    parser.add_argument(
        "--stopping-states", type=int, default=50_000, help="of the random MDP of stopping rules; 0: none"
    )
    parser.add_argument("--stopping-discounts", default="0.99,0.999", help="separated by commas")
    parser.add_argument("--toy", action="store_true", help="tiny tables, to see that everything works")
    parser.add_argument(
        "--update", action="store_true", help="replace the solves that the output has, and keep its others"
    )
    parser.add_argument("--document", type=Path, help="print kept figures as the tables of the documentation, and end")
    measuring.add_common_options(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    if options.document is not None:
        document(json.loads(options.document.read_text()))
        return
    facts = {"machine": measuring.machine(options.machine_shared), "versions": measuring.versions()}
    figures: dict[str, Any] = {"tables": [], "stopping": []}
    if options.update:
        kept = json.loads(options.output.read_text())
        figures = {key: kept[key] for key in figures}
    with tempfile.TemporaryDirectory(prefix="ooc-mdp-benchmark-") as folder:
        for name in filter(None, options.cases.split(",")):
            found = compare(Path(folder), name, options, facts["versions"]["commit"])
            figures["tables"] = merged(figures["tables"], found)
            # Kept at once: a later case may take long.
            measuring.write_figures("coupling", options, figures, facts, NOT_INCLUDED)
        if options.stopping_states:
            store = ooc_mdp.generate(
                "random",
                Path(folder) / "stopping",
                _RANDOM | {"states": 400 if options.toy else options.stopping_states},
                **(_FEW_PIECES if options.toy else _PIECES),
            )
            discounts = [float(discount) for discount in options.stopping_discounts.split(",")]
            figures["stopping"] = [stopping(store, discount, options) for discount in discounts]
            show_stopping(figures["stopping"])
            measuring.write_figures("coupling", options, figures, facts, NOT_INCLUDED)


def merged(kept: list[dict[str, Any]], found: dict[str, Any]) -> list[dict[str, Any]]:
    """Tables with one that was measured: its solves take the place of those of the same method and target."""

    def which(solve: dict[str, Any]) -> tuple[int, int]:
        return "epsilon" in solve["target"], list(METHODS).index(solve["asked"])

    before = [t for t in kept if t["case"] == found["case"]]
    solves = {which(s): s for t in (*before, found) for s in t["solves"]}
    found = found | {"solves": [solves[key] for key in sorted(solves)]}
    tables = {t["case"]: t for t in (*kept, found)}
    return [tables[name] for name in CASES if name in tables]


def compare(folder: Path, name: str, options: argparse.Namespace, commit: str) -> dict[str, Any]:
    """All methods on one table, to both targets."""
    case = CASES[name]
    table = name.partition("-0.")[0]
    store = made(folder / table, case, case.toy if options.toy else {}, options.toy, options.device)
    small = made(folder / f"{table}-small", case, case.toy if options.toy else case.warm_up, True, options.device)
    facts = {
        "case": name,
        "problem": case.problem,
        "parameters": case.parameters | (case.toy if options.toy else {}),
        "discount": case.discount,
        "states": store.n_states,
        "partitions": store.n_partitions,
        "decoded_bytes": int(store.facts.partition_bytes.sum()),
        "partitions_read_by_each": store.facts.coupling.partitions.size / store.n_partitions - 1,
    }
    solves = []
    for target, size in (("residual", options.residual), ("epsilon", options.epsilon)):
        for method in options.methods.split(","):
            solves.append(measure(store, small, case.discount, {target: size}, method, options, folder / "trace.csv"))
            solves[-1] |= {"time_limit": options.time_limit, "commit": commit}
            print(f"{name}: {solves[-1]}", file=sys.stderr, flush=True)
    show(facts, solves, options)
    return facts | {"solves": solves}


def made(path: Path, case: Case, parameters: dict[str, Any], few: bool, device: str) -> ooc_mdp.Store:
    """The store of a case, with some parameters replaced and in few partitions if asked, unless it is there."""
    if path.exists():
        return ooc_mdp.open_store(path)
    cut = case.cut
    if few:
        cut = {"partition_grid": [_FEW_BLOCKS] * len(cut["partition_grid"])} if "partition_grid" in cut else _FEW_PIECES
    rows = device if device == "cpu" else "auto"  # a GPU computes rows of control problems only
    return ooc_mdp.generate(case.problem, path, case.parameters | parameters, device=rows, **cut)


def measure(
    store: ooc_mdp.Store,
    small: ooc_mdp.Store,
    discount: float,
    target: dict[str, float],
    method: str,
    options: argparse.Namespace,
    trace: Path,
) -> dict[str, Any]:
    """The figures of one solve, after a small one that loads its code."""
    asked = {"discount": discount, "cache": options.cache, "device": options.device, **METHODS[method]}
    ooc_mdp.solve(small, **asked, residual=1.0, time_limit=options.time_limit)
    trace.unlink(missing_ok=True)
    began, used = time.perf_counter(), time.process_time()
    solution = ooc_mdp.solve(store, **asked, **target, time_limit=options.time_limit, trace=trace)
    seconds, used = time.perf_counter() - began, time.process_time() - used
    if solution.outcome is ooc_mdp.Outcome.INTERRUPTED:
        raise SystemExit(solution.outcome.message.partition(";")[0])
    summary = solution.summary()
    remarks = [
        line.partition(": ")[2].strip() for line in trace.read_text().splitlines() if line.startswith("# remark")
    ]
    trace.unlink()
    rows = sum(plan.get("rows of the policy", 0) for plan in solution.memory_plan.values())
    return {
        "asked": method,
        "target": target,
        **{key: summary[key] for key in KEPT},
        "backups_per_state": summary["backups"] / store.n_states,
        "seconds": seconds,
        "processor_seconds": used,
        "rows_bytes": rows,
        "remarks": remarks,
    }


def reached(solve: dict[str, Any]) -> bool:
    return solve["outcome"] in ("proved", "residual_reached")


def ratio_of_auto(solves: Sequence[dict[str, Any]], key: str) -> float | None:
    """What auto took over the least that one of the others took; None where either is missing."""
    others = [s[key] for s in solves if reached(s) and s["asked"] != "auto"]
    own = [s[key] for s in solves if reached(s) and s["asked"] == "auto"]
    return own[0] / min(others) if own and others and min(others) > 0 else None


def show(table: dict[str, Any], solves: list[dict[str, Any]], options: argparse.Namespace) -> None:
    print(
        f"\n{table['case']}: {table['states']} states in {table['partitions']} partitions, each of which reads "
        f"{table['partitions_read_by_each']:.1f} others, {format_bytes(table['decoded_bytes'])}; discount "
        f"{table['discount']}, cache {options.cache}"
    )
    for kind, size in (("residual", options.residual), ("epsilon", options.epsilon)):
        rows = []
        chosen = [s for s in solves if kind in s["target"]]
        for s in chosen:
            rows.append(
                (
                    s["asked"] if s["asked"] != "auto" else f"auto ({s['method']})",
                    f"{s['loads_per_partition']:.2f}",
                    f"{s['backups_per_state']:.0f}",
                    str(s["policy_evaluations"]),
                    f"{s['seconds']:.1f}",
                    f"{s['processor_seconds']:.1f}",
                    *(f"{s[k]:.1e}" if s[k] is not None else "-" for k in ("residual_bound", "error_bound")),
                    format_bytes(s["rows_bytes"]) if s["rows_bytes"] else "-",
                    s["outcome"],
                )
            )
        measuring.print_table(
            (f"{kind} {size:g}", "loads per partition", "backups per state", "policy_evaluations", "s", "CPU s",
             "residual", "error", "rows", "outcome"),
            rows,
        )  # fmt: skip
        ratios = [(key, ratio_of_auto(chosen, key)) for key in ("loads_per_partition", "backups_per_state")]
        said = [f"{key.replace('_per_', ' a ')} {ratio:.2f}" for key, ratio in ratios if ratio is not None]
        if said:
            print(f"auto over the best of the others that got there: {', '.join(said)}")
        for remark in (r for s in chosen for r in s["remarks"]):
            print(f"  {remark}")


def stopping(store: ooc_mdp.Store, discount: float, options: argparse.Namespace) -> dict[str, Any]:
    """Sweeps after which each rule ends synchronous value iteration from 0, and what was then left; and our solves."""
    asked = {"discount": discount, "device": options.device, "time_limit": 10 * options.time_limit}
    exact = ooc_mdp.solve(store, **asked, epsilon=options.epsilon / 1000, cache="100%", method="policy-iteration")
    if not exact.outcome.proved:
        raise SystemExit(f"the values to compare with were not found: {exact.outcome.message}")
    original = np.concatenate([store.original_states(p) for p in range(store.n_partitions)])
    sweeps = value_iteration(*arrays_of(store), discount, options.epsilon, exact.values[original])
    solves = []
    for method in ("vi", "policy-iteration"):
        solution = ooc_mdp.solve(store, **asked, epsilon=options.epsilon, cache="100%", **METHODS[method])
        backups = solution.statistics.backups / store.n_states
        error = float(np.abs(solution.values - exact.values).max())
        solves.append(
            {"method": method, "outcome": solution.outcome.value, "backups_per_state": backups}
            | {"error_bound": solution.error_bound, "error": error}
        )
    return {
        "states": store.n_states,
        "discount": discount,
        "epsilon": options.epsilon,
        "reference_error_bound": exact.error_bound,
        "rules": sweeps,
        "solves": solves,
    }


def arrays_of(store: ooc_mdp.Store) -> tuple[FloatArray, npt.NDArray[np.int64], FloatArray]:
    """Rewards [n, A], successors [n, A, K] and probabilities [n, A, K] of a table whose rows are all alike."""
    shape = tuple(int(store.facts.attributes[k]) for k in ("actions_per_state", "successors_per_action"))
    parts = [store.read(p)[0] for p in range(store.n_partitions)]
    return (
        np.concatenate([part.rewards.reshape(-1, shape[0]) for part in parts]).astype(np.float64),
        np.concatenate(
            [
                np.concatenate([part.first_state + np.arange(part.n_states), part.halo])[part.successors].reshape(
                    -1, *shape
                )
                for part in parts
            ]
        ),
        np.concatenate([part.probabilities.reshape(-1, *shape) for part in parts]).astype(np.float64),
    )


def value_iteration(
    rewards: FloatArray,
    successors: npt.NDArray[np.int64],
    probabilities: FloatArray,
    discount: float,
    epsilon: float,
    optimum: FloatArray,
) -> list[dict[str, Any]]:
    """When each rule stops; errors of the values there, and with the constant that is best for them."""
    slack = epsilon * (1 - discount) / discount
    values, found = np.zeros(rewards.shape[0]), np.empty(rewards.shape[0])
    rules: dict[str, dict[str, Any]] = {}
    for sweeps in count(1):
        least, most = _sweep(rewards, successors, probabilities, discount, values, found)
        values, found = found, values
        change, span = max(-least, most), most - least
        for rule, stops in (
            ("span", span < slack),
            ("shifted", span / 2 <= slack),
            ("values", change <= slack),
            ("plain", change < slack / 2),
        ):
            if stops and rule not in rules:
                off = values - optimum
                left = {"error": float(np.abs(off).max()), "error_with_best_constant": float(np.ptp(off)) / 2}
                rules[rule] = {"rule": rule, "sweeps": sweeps, **left}
        if len(rules) == 4:
            break
    return list(rules.values())


@njit(cache=True)
def _sweep(rewards, successors, probabilities, discount, values, found):  # type: ignore[no-untyped-def]
    """A synchronous sweep; the least and the largest change."""
    least, most = np.inf, -np.inf
    for s in range(rewards.shape[0]):
        best = -np.inf
        for a in range(rewards.shape[1]):
            total = 0.0
            for k in range(successors.shape[2]):
                total += probabilities[s, a, k] * values[successors[s, a, k]]
            best = max(best, rewards[s, a] + discount * total)
        found[s] = best
        least, most = min(least, best - values[s]), max(most, best - values[s])
    return least, most


def show_stopping(found: Sequence[dict[str, Any]]) -> None:
    for each in found:
        print(
            f"\nrandom MDP of {each['states']} states, discount {each['discount']}, epsilon {each['epsilon']:g}: "
            f"sweeps of value iteration until a rule stops it"
        )
        rows = [
            (r["rule"], str(r["sweeps"]), f"{r['error']:.1e}", f"{r['error_with_best_constant']:.1e}", "-")
            for r in each["rules"]
        ] + [
            (f"ooc-mdp {s['method']} ({s['outcome']})", f"{s['backups_per_state']:.0f}", f"{s['error']:.1e}", "-",
             f"{s['error_bound']:.1e}")
            for s in each["solves"]
        ]  # fmt: skip
        measuring.print_table(("", "backups per state", "error", "with the best constant", "proved"), rows)


def document(figures: dict[str, Any]) -> None:
    """Print the tables that benchmarks/notes/2026-11-policy-iteration.md shows."""
    for kind in ("residual", "epsilon"):
        methods = list(dict.fromkeys(s["asked"] for s in figures["tables"][0]["solves"]))
        print(f"| {kind} {figures['settings'][kind]:g} | {' | '.join(methods)} | auto over the best |")
        print(f"|---{'|---' * len(methods)}|---|")
        for table in figures["tables"]:
            chosen = {s["asked"]: s for s in table["solves"] if kind in s["target"]}
            ratio = ratio_of_auto(list(chosen.values()), "loads_per_partition")
            cells = " | ".join(_cell(chosen[m]) for m in methods)
            print(f"| {table['case']} | {cells} | {'-' if ratio is None else f'{ratio:.2f}'} |")
        print()
    if figures["stopping"]:
        print("| discount | rule | sweeps | error | with the best constant | proved |\n|---|---|---|---|---|---|")
    for each in figures["stopping"]:
        for r in each["rules"]:
            left = f"{r['error']:.1e} | {r['error_with_best_constant']:.1e}"
            print(f"| {each['discount']} | {r['rule']} | {r['sweeps']} | {left} | |")
        for s in each["solves"]:
            said = f"{s['backups_per_state']:.0f} | {s['error']:.1e} | | {s['error_bound']:.1e}"
            print(f"| {each['discount']} | `--method {s['method']}` | {said} |")


def _cell(solve: dict[str, Any]) -> str:
    counts = f"{solve['loads_per_partition']:.2f}, {solve['backups_per_state']:,.0f}, {solve['processor_seconds']:.1f}"
    return f"**{counts}**" if reached(solve) else f"more than {counts}"


if __name__ == "__main__":
    main()
