"""Solve the same tables by other solvers, with everything in memory, and by ooc-mdp from disk, to the same error.

Every solve has its own process and time limit. Each peer's own tolerance is searched for: it starts where the peer's
stopping rule promises the target and is made smaller, or larger, until the error that is measured in its values meets
the target (`cpu_tables.measure`, the same bound for all). Peers that stop on the span of the last change leave a
constant open; the best constant is granted to all of them, ooc-mdp too, without counting time for it.

Peers are looked for in the interpreters that `--peers-python` names, the first that can import a package; those that no
interpreter has are listed as missing. The scripts in `peers/` need nothing of ooc-mdp.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import measuring

from ooc_mdp.options import format_bytes

_HERE = Path(__file__).resolve().parent
_PACKAGES = {
    "quantecon": "quantecon",
    "storm": "stormpy",
    "mdpsolver": "mdpsolver",
    "petsc": "petsc4py",
    "pymdptoolbox": "mdptoolbox",
    "mdpax": "mdpax",
    "scipy": "scipy",
    "numba": "numba",
}
"""Adapter and the module that it imports."""
NOT_INCLUDED = (
    "seconds: starting Python, importing, reading the table, building the peer's own model (build_seconds), compiling "
    "(a tiny solve, or one iteration, comes first in the same process), measuring the values",
    "seconds of ooc-mdp: opening the store and writing the result; loading and decoding of partitions is included",
    "solves that were only made to find a peer's tolerance",
)


@dataclass(frozen=True)
class Target:
    """What a solve has to reach."""

    kind: str
    """ "epsilon" (error proved by the residuals) or "residual" (largest plain residual)."""
    size: float

    def reached(self, measured: dict[str, float]) -> float:
        """What counts against the size."""
        shifted = measured["shifted_error_bound"]
        # With the best constant no plain residual is above the bound either: |Q - V| = |N| (1 - g rho).
        return shifted if self.kind == "epsilon" else min(measured["residual"], shifted)


@dataclass(frozen=True)
class Contender:
    """A solver and how it is used."""

    peer: str
    """Adapter in peers/, or "ooc-mdp"."""
    method: str
    """As the adapter knows it; of ooc-mdp: method and cache, "vi 25%"."""
    factor: float = 1.0
    """First tolerance over the target's size times (1 - discount for a plain change)."""
    plain: bool = False
    """Whether the tolerance is compared with a plain change of values, not with a bound on the error."""
    only_probe: bool = False
    """Whether only ten iterations are made, because all would take many minutes."""


@dataclass(frozen=True)
class Case:
    """A table, a discount, what is to be reached, and who tries."""

    problem: str
    parameters: dict[str, Any]
    discount: float
    targets: tuple[Target, ...]
    contenders: tuple[Contender, ...]
    toy: dict[str, Any] = field(default_factory=dict)
    """Parameters of a tiny table of the same kind."""
    sweeps_as: tuple[str, float] | None = None
    """A case whose sweeps of value iteration, times the number, are about those of this one: values flow one state a
    sweep, so that a grid that is finer by a factor needs that many times more."""


_EPSILON = Target("epsilon", 1e-4)
_GRID = (
    Contender("ooc-mdp", "p-eva 25%"),
    Contender("quantecon", "mpi:10", 2.0),
    Contender("quantecon", "vi", 2.0),
    Contender("storm", "vi"),
    Contender("pymdptoolbox", "vi"),
    Contender("mdpsolver", "mpi:10"),
    Contender("petsc", "ipi:gmres", plain=True),
    Contender("mdpax", "vi"),
    Contender("numba", "vi", plain=True),
    Contender("scipy", "vi", plain=True),
)
_RANDOM = (
    Contender("ooc-mdp", "p-eva 100%"),
    Contender("ooc-mdp", "p-eva 25%"),
    Contender("ooc-mdp", "auto 25%"),
    Contender("ooc-mdp", "vi 100%"),
    Contender("quantecon", "mpi:5", 8.0),
    Contender("quantecon", "mpi:10", 4.0),
    Contender("storm", "vi"),
    Contender("pymdptoolbox", "vi", 3.5),
    Contender("mdpsolver", "vi", 3.5),
    Contender("petsc", "ipi:gmres", plain=True),
    Contender("mdpax", "vi:span", 3.5),
    Contender("numba", "vi:span", 2.0, plain=True),
    Contender("scipy", "vi:span", 2.0, plain=True),
)
_NEAR_ONE = (
    Contender("ooc-mdp", "auto 100%"),
    Contender("ooc-mdp", "policy-iteration 100%"),
    Contender("ooc-mdp", "vi 100%"),
    Contender("ooc-mdp", "auto 25%"),
    Contender("quantecon", "mpi:5", 8.0),
    Contender("quantecon", "mpi:10", 4.0),
    Contender("quantecon", "mpi:20", 4.0),
    Contender("mdpsolver", "mpi:10", 3.5),
    Contender("mdpsolver", "mpi:100", 3.5),
    Contender("mdpsolver", "vi", 3.5),
    Contender("petsc", "ipi:gmres", plain=True),
    Contender("petsc", "ipi:bcgs", plain=True),
    Contender("petsc", "ipi:gmres:0.1", plain=True),
    Contender("storm", "vi"),
    Contender("pymdptoolbox", "vi", 3.5),
    Contender("mdpax", "vi:span", 3.5),
    Contender("numba", "vi:span", 2.0, plain=True),
    Contender("scipy", "vi:span", 2.0, plain=True),
)
_CAR = (
    Contender("ooc-mdp", "p-eva 25%"),
    Contender("quantecon", "mpi:10", 2.0),
    Contender("quantecon", "mpi:20", 2.0),
    Contender("storm", "vi"),
    Contender("pymdptoolbox", "vi"),
    Contender("mdpsolver", "mpi:10"),
    Contender("petsc", "ipi:gmres", plain=True),
    Contender("mdpax", "vi"),
    Contender("numba", "vi", plain=True),
    Contender("scipy", "vi", plain=True),
)
_LARGE_CAR = (
    Contender("ooc-mdp", "p-eva 25%"),
    Contender("quantecon", "mpi:20", 2.0),
    Contender("storm", "vi"),
    Contender("pymdptoolbox", "vi", only_probe=True),
    Contender("mdpax", "vi", only_probe=True),
    Contender("numba", "vi", plain=True, only_probe=True),
    Contender("scipy", "vi", plain=True, only_probe=True),
)
_CAR_TARGETS = (Target("epsilon", 1e-3), Target("residual", 1e-4))
_SIZES = {"states": 500_000, "actions": 8, "successors": 5, "seed": 1}
_TINY = {"states": 300}
CASES = {
    "gridworld": Case(
        "gridworld",
        {"height": 1000, "width": 1000, "successors": 4, "seed": 1},
        0.95,
        (_EPSILON,),
        _GRID,
        {"height": 24, "width": 24},
    ),
    "random-0.95": Case("random", _SIZES, 0.95, (_EPSILON,), _RANDOM, _TINY),
    "random-0.99": Case("random", _SIZES, 0.99, (_EPSILON,), _RANDOM, _TINY),
    "random-0.999": Case("random", _SIZES, 0.999, (Target("epsilon", 1e-3),), _NEAR_ONE, _TINY),
    "mountain-car-500": Case("mountain-car", {"grid": "500,500"}, 0.9, _CAR_TARGETS, _CAR, {"grid": "24,24"}),
    "mountain-car": Case(
        "mountain-car",
        {"grid": "2000,2000"},
        0.9,
        _CAR_TARGETS,
        _LARGE_CAR,
        {"grid": "24,24"},
        ("mountain-car-500", 4.0),
    ),
}


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES), help="of " + ", ".join(CASES))
    parser.add_argument("--peers-python", default=sys.executable, help="interpreters that have peers, by commas")
    parser.add_argument("--only", help="contenders whose name has one of these in it, by commas: quantecon,ooc-mdp")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="that peers may use")
    parser.add_argument("--time-limit", type=float, default=300.0, help="seconds a process may take, building included")
    parser.add_argument("--tries", type=int, default=3, help="solves to find a peer's tolerance")
    parser.add_argument("--repeat", type=int, default=2, help="solves at that tolerance, all contenders in turns")
    parser.add_argument("--toy", action="store_true", help="tiny tables, to see that everything works")
    parser.add_argument("--tables", type=Path, help="keep tables here, and take those that are there")
    measuring.add_common_options(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    facts: dict[str, Any] = {"machine": measuring.machine(options.machine_shared), "versions": measuring.versions()}
    pythons = interpreters(options.peers_python.split(","))
    missing = sorted(set(_PACKAGES) - set(pythons))
    print(f"missing peers: {', '.join(missing) or 'none'}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="ooc-mdp-benchmark-") as name:
        folder = options.tables or Path(name)
        folder.mkdir(exist_ok=True)
        compared: list[dict[str, Any]] = []
        for case in options.cases.split(","):
            for target in CASES[case].targets:
                compared.append(case_figures(folder, Path(name), options, pythons, case, target))
                extrapolate(compared)
                show(case, target, compared[-1]["solvers"])
                write(options, {"missing_peers": missing, "cases": compared}, facts)


def write(options: argparse.Namespace, figures: dict[str, Any], facts: dict[str, Any]) -> None:
    """Keep the figures of the cases so far: a later one may take long. Where things lie is not among them."""
    said = argparse.Namespace(**{k: v for k, v in vars(options).items() if k not in ("peers_python", "tables")})
    measuring.write_figures("cpu_peers", said, figures, facts, NOT_INCLUDED)


def interpreters(candidates: Sequence[str]) -> dict[str, str]:
    """The first interpreter that can import each peer's module, of those that one can."""
    asked = (
        "import importlib.util, json, sys; "
        "print(json.dumps([n for n in sys.argv[1:] if importlib.util.find_spec(n) is not None]))"
    )
    found: dict[str, str] = {}
    for python in candidates:
        said = subprocess.run([python, "-c", asked, *_PACKAGES.values()], check=True, stdout=subprocess.PIPE).stdout
        has = json.loads(said)
        found = {peer: python for peer, module in _PACKAGES.items() if module in has} | found
    return found


def task(name: str, limit: float | None = None, **parameters: Any) -> tuple[dict[str, Any] | None, measuring.Finished]:
    """Run a function of `cpu_tables.py`; None if it was ended at the limit."""
    command = [sys.executable, str(_HERE / "cpu_tables.py"), json.dumps({"task": name, **parameters})]
    finished = measuring.run(command, limit=limit)
    return (None if finished.killed else json.loads(finished.output)), finished


def case_figures(
    folder: Path, scratch: Path, options: argparse.Namespace, pythons: dict[str, str], name: str, target: Target
) -> dict[str, Any]:
    """Figures of all contenders on one table to one target."""
    case = CASES[name]
    table = made_table(folder, name.partition("-0.")[0], case, options.toy)
    arrays = folder / f"{table.pop('name')}-{case.discount}"
    if not arrays.exists():
        task("export", store=table["store"], folder=str(arrays), discount=case.discount)
    largest = float(json.loads((arrays / "model.json").read_text())["largest_discount"])
    runs = Runs(case, target, options, arrays, Path(table["store"]), Path(table["warm_up"]), scratch, largest, pythons)
    chosen = options.only.split(",") if options.only else [""]
    contenders = [
        c
        for c in case.contenders
        if (c.peer == "ooc-mdp" or c.peer in pythons) and any(part in f"{c.peer} {c.method}" for part in chosen)
    ]
    found = {c: runs.search(c) for c in contenders}
    for _ in range(options.repeat - 1):
        for contender, solves in found.items():
            if solves[-1]["outcome"] == "reached":
                solves.append(runs.solve(contender, solves[-1]["tolerance"]))
    solvers = [summary(c, solves) for c, solves in found.items()]
    sizes = {k: v for k, v in table.items() if k not in ("store", "warm_up")}
    return {
        "case": name,
        "table": {"problem": case.problem, "parameters": case.parameters | (case.toy if options.toy else {}), **sizes},
        "discount": case.discount,
        "largest_discount": largest,
        "target": {target.kind: target.size},
        "solvers": solvers,
    }


def made_table(folder: Path, name: str, case: Case, toy: bool) -> dict[str, Any]:
    """The store of a case, generated unless it is there, and its sizes."""
    name += "-toy" if toy else ""
    store, warm_up, sizes = folder / name, folder / f"{name}-warm-up", folder / f"{name}.json"
    if not sizes.exists():
        parameters = case.parameters | (case.toy if toy else {})
        made, _ = task("generate", problem=case.problem, parameters=parameters, store=str(store), warm_up=str(warm_up))
        sizes.write_text(json.dumps(made))
    return {"name": name, "store": str(store), "warm_up": str(warm_up), **json.loads(sizes.read_text())}


@dataclass(frozen=True)
class Runs:
    """Solves of one table to one target."""

    case: Case
    target: Target
    options: argparse.Namespace
    arrays: Path
    store: Path
    warm_up: Path
    scratch: Path
    largest_discount: float
    pythons: dict[str, str]

    def search(self, contender: Contender) -> list[dict[str, Any]]:
        """The last solve of a search for the tolerance; the fastest of those that reached the target, if one did."""
        if contender.peer == "ooc-mdp":
            return [self.solve(contender, self.target.size)]
        tolerance = self.first_tolerance(contender)
        if contender.only_probe and not self.options.toy:
            return [{"outcome": "not tried", "probe": self.probe(contender, tolerance)}]
        tried: list[dict[str, Any]] = []
        for _ in range(self.options.tries):
            tried.append(self.solve(contender, tolerance))
            last = tried[-1]
            if last["outcome"] in ("time limit", "failed"):
                break
            # Smaller where the target was missed; larger where far more was done than was asked for, but not again
            # where that has been tried.
            over = self.target.reached(last["measured"]) / self.target.size
            if 0.3 < over <= 1 or (over <= 1 and len(tried) > 1):
                break
            tolerance *= max(min(0.8 / max(over, 1e-6), 100.0), 1e-3)
        reached = [solve for solve in tried if solve["outcome"] == "reached"]
        if reached:
            return [min(reached, key=lambda s: float(s["solve_cpu_seconds"]))]
        if tried[-1]["outcome"] == "time limit":
            tried[-1]["probe"] = self.probe(contender, tolerance)
        return [tried[-1]]

    def first_tolerance(self, contender: Contender) -> float:
        """What the peer's stopping rule promises to be enough."""
        g = self.largest_discount
        size = self.target.size
        if self.target.kind == "residual":
            return contender.factor * (size if contender.plain else size * g / (1 - g))
        return contender.factor * (size * (1 - g) / g if contender.plain else size)

    def probe(self, contender: Contender, tolerance: float) -> dict[str, Any] | None:
        """Ten iterations of a peer that could not finish, for seconds an iteration; None if they do not end either."""
        if not contender.method.startswith("vi") or contender.peer == "mdpsolver":
            return None
        found = self.solve(contender, tolerance, max_iterations=10)
        return found if "measured" in found else None

    def solve(self, contender: Contender, tolerance: float, max_iterations: int = 1_000_000) -> dict[str, Any]:
        """One solve in a process of its own, and what its values leave."""
        values = self.scratch / "values.npy"
        if contender.peer == "ooc-mdp":
            method, cache = contender.method.split()
            asked = {"discount": self.case.discount, "method": method, "cache": cache, "device": "cpu"}
            asked |= {self.target.kind: self.target.size}
            said, finished = task(
                "solve",
                limit=self.options.time_limit,
                store=str(self.store),
                warm_up=str(self.warm_up),
                options=asked | {"overwrite": True},
                result=str(self.scratch / "result"),
                values=str(values),
            )
        else:
            said, finished = self._peer(contender, tolerance, max_iterations, values)
        figures: dict[str, Any] = {"tolerance": tolerance, "peak_rss_bytes": finished.peak_bytes}
        if said is None:
            print(
                f"{contender.peer} {contender.method}: ended after {finished.seconds:.0f} s",
                file=sys.stderr,
                flush=True,
            )
            return figures | {"outcome": "time limit", "limit_seconds": finished.seconds}
        if said.get("outcome") == "failed":
            print(f"{contender.peer} {contender.method}: {said}", file=sys.stderr, flush=True)
            return figures | said
        measured, _ = task("measure", folder=str(self.arrays), values=str(values))
        assert measured is not None
        reached = self.target.reached(measured) <= self.target.size
        figures |= said | {"measured": measured, "outcome": "reached" if reached else "missed"}
        print(f"{contender.peer} {contender.method}: {figures}", file=sys.stderr, flush=True)
        return figures

    def _peer(
        self, contender: Contender, tolerance: float, max_iterations: int, values: Path
    ) -> tuple[dict[str, Any] | None, measuring.Finished]:
        asked = {
            "model": str(self.arrays),
            "method": contender.method,
            "tolerance": tolerance,
            "max_iterations": max_iterations,
            "threads": self.options.threads,
            "values": str(values),
        }
        script = str(_HERE / "peers" / f"{contender.peer}_peer.py")
        command = [self.pythons[contender.peer], script, json.dumps(asked)]
        finished = measuring.run(command, accepted=range(-64, 256), limit=self.options.time_limit)
        if finished.killed:
            return None, finished
        if finished.status:
            reason = (finished.messages.splitlines() or [""])[-1]
            return {"outcome": "failed", "status": finished.status, "reason": reason}, finished
        return json.loads(finished.output.splitlines()[-1]), finished


def summary(contender: Contender, solves: list[dict[str, Any]]) -> dict[str, Any]:
    """The solve with the median time, and the spread."""
    named = {"solver": contender.peer, "method": contender.method}
    done = [s for s in solves if s["outcome"] == "reached"]
    if not done:
        return named | solves[-1]
    seconds = measuring.spread([s["solve_seconds"] for s in done])
    shown = next(s for s in done if s["solve_seconds"] == seconds["median"])
    spreads = {k: measuring.spread([s[k] for s in done]) for k in ("solve_seconds", "solve_cpu_seconds")}
    return named | shown | {"spread": spreads}


def extrapolate(compared: list[dict[str, Any]]) -> None:
    """Say how long value iteration would have taken where it did not finish, from the sweeps that a floor needed."""
    needed = sweeps_of(compared[-1])
    as_in = CASES[compared[-1]["case"]].sweeps_as
    if needed is None and as_in is not None:
        found = [sweeps_of(c) for c in compared if c["case"] == as_in[0] and c["target"] == compared[-1]["target"]]
        needed = found[0] * as_in[1] if found and found[0] is not None else None
    for solver in compared[-1]["solvers"]:
        probe = solver.get("probe")
        if needed and probe and probe["iterations"]:
            a_sweep = {k: probe[f"solve_{k}"] / probe["iterations"] for k in ("seconds", "cpu_seconds")}
            solver["extrapolated"] = {k: seconds * needed for k, seconds in a_sweep.items()} | {"sweeps": needed}


def sweeps_of(compared: dict[str, Any]) -> float | None:
    """Sweeps of value iteration that reached the target, by a floor."""
    for solver in compared["solvers"]:
        if solver["solver"] in ("numba", "scipy") and solver["outcome"] == "reached":
            return float(solver["iterations"])
    return None


def show(name: str, target: Target, solvers: list[dict[str, Any]]) -> None:
    print(f"\n{name}, {target.kind} {target.size:g}")
    headers = (
        "solver",
        "solved",
        "CPU s",
        "build",
        "iterations",
        "tolerance",
        "residual",
        "error",
        "shifted",
        "peak RSS",
    )
    rows = []
    for s in sorted(solvers, key=lambda s: s.get("solve_cpu_seconds", float("inf"))):
        measured = s.get("measured", {})
        rows.append(
            (
                f"{s['solver']} {s['method']}",
                f"{s['solve_seconds']:.2f}" if s["outcome"] == "reached" else s["outcome"],
                f"{s['solve_cpu_seconds']:.2f}"
                if "solve_cpu_seconds" in s
                else f"~{s['extrapolated']['cpu_seconds']:.0f}"
                if "extrapolated" in s
                else "-",
                f"{s['build_seconds']:.1f}" if "build_seconds" in s else "-",
                str(s.get("iterations") or "-"),
                f"{s['tolerance']:.1e}" if "tolerance" in s else "-",
                *(
                    f"{measured[k]:.1e}" if measured else "-"
                    for k in ("residual", "error_bound", "shifted_error_bound")
                ),
                format_bytes((s if "peak_rss_bytes" in s else s["probe"])["peak_rss_bytes"]),
            )
        )
    measuring.print_table(headers, rows)


if __name__ == "__main__":
    main()
