"""Two versions of this program in turns on the CPU: processor seconds of whole solves to a proved error.

    git worktree add ../before COMMIT
    python cpu_versions.py --before ../before --cases gridworld-25,random-100 --pairs 5

Seconds are those of all threads of a process around `ooc_mdp.solve`, system time included: loads and the result are
in them. Each version runs in a process of its own, which stays, compiles beforehand on a small table of the same
kind and solves every case once before its solves count; the version that goes first changes from pair to pair. Each
version writes and reads its own stores. Ratios are of the version here to the one before, pair by pair.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[2]
NOT_INCLUDED = (
    "generating and opening stores, compiling and loading loops, a first solve of each case",
    "files are in the page cache",
)


@dataclass(frozen=True, slots=True)
class Table:
    """What a problem is, and a small one of the same kind."""

    problem: str
    parameters: dict[str, Any]
    small: dict[str, Any]
    partition_grid: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """A solve."""

    table: Table
    request: dict[str, Any]
    """Arguments of `solve`."""

    def of(self, **parameters: Any) -> Case:
        """The same solve of a table with other parameters."""
        return replace(self, table=replace(self.table, parameters=self.table.parameters | parameters))


_GRIDWORLD = Table(
    "gridworld",
    {"height": 1000, "width": 1000, "successors": 4, "seed": 1},
    {"height": 48, "width": 48, "successors": 4, "seed": 1},
)
# As many states at least as make successors of the same type.
_RANDOM = Table(
    "random",
    {"states": 500_000, "actions": 8, "successors": 5, "seed": 1},
    {"states": 70_000, "actions": 8, "successors": 5, "seed": 1},
)
_PENDULUM = Table("double-pendulum", {"grid": "20,20,20,20"}, {"grid": "8,8,8,8"})
_CAR = Table("mountain-car", {"grid": "1000,1000"}, {"grid": "48,48"})
_BALANCE = Table("single-pendulum", {"grid": "500"}, {"grid": "48"}, (16, 16))


def proved(discount: float, epsilon: float, cache: str) -> dict[str, Any]:
    """Arguments of a solve to a proved error."""
    return {"discount": discount, "epsilon": epsilon, "cache": cache}


CASES = {
    "gridworld-25": Case(_GRIDWORLD, proved(0.95, 1e-4, "25%")),
    "gridworld-100": Case(_GRIDWORLD, proved(0.95, 1e-4, "100%")),
    "random-25": Case(_RANDOM, proved(0.95, 1e-4, "25%")),
    "random-100": Case(_RANDOM, proved(0.95, 1e-4, "100%")),
    "pendulum-25": Case(_PENDULUM, proved(0.9, 1e-4, "25%")),
    "car-25": Case(_CAR, proved(0.9, 1e-3, "25%")),
    "car-100": Case(_CAR, proved(0.9, 1e-3, "100%")),
    "balance-22": Case(_BALANCE, {"discount": 0.9, "residual": 1e-4, "cache": "22%"}),
    "balance-22-proved": Case(_BALANCE, proved(0.9, 1e-3, "22%") | {"method": "p-eva"}),
}
LARGE_CASES = {
    "gridworld-large-25": CASES["gridworld-25"].of(height=2500, width=2500),
    "random-large-25": CASES["random-25"].of(states=2_000_000),
    "car-large-25": CASES["car-25"].of(grid="3000,3000"),
}
"""Solves of half a minute, in which what is done between visits weighs little."""


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    import measuring

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, help="repository of the version to compare with")
    parser.add_argument("--cases", default=",".join(CASES), help="of " + ", ".join(CASES | LARGE_CASES))
    parser.add_argument("--pairs", type=int, default=5, help="solves of each case by each version")
    parser.add_argument("--tables", type=Path, help="keep tables here, and take those that are there")
    parser.add_argument("--toy", action="store_true", help="tiny tables, to see that everything works")
    measuring.add_common_options(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    sys.path.insert(0, str(HERE / "benchmarks"))
    import measuring

    options = parse(arguments)
    facts: dict[str, Any] = {"machine": measuring.machine(options.machine_shared), "versions": measuring.versions()}
    with tempfile.TemporaryDirectory(prefix="ooc-mdp-benchmark-") as name:
        folder = options.tables or Path(name)
        folder.mkdir(exist_ok=True)
        roots = {"before": options.before.resolve(), "after": HERE}
        figures: dict[str, Any] = {"cases": {}}
        versions = {name: Version(root, folder / name) for name, root in roots.items()}
        for case in options.cases.split(","):
            figures["cases"][case] = compare(case, versions, options.pairs, options.toy)
        for version in versions.values():
            version.close()
    options.before = options.tables = None  # figures name no place
    measuring.write_figures("cpu_versions", options, figures, facts, NOT_INCLUDED)


class Version:
    """The process of one version."""

    def __init__(self, root: Path, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        places = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, str(Path(__file__).resolve()), "--serve", str(root)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, text=True, env=os.environ | {"PYTHONPATH": places}
        )

    def table(self, table: Table, parameters: dict[str, Any]) -> dict[str, Any]:
        """The store of a table, written unless it is there, and its sizes."""
        name = "-".join([table.problem, *(f"{key}{value}" for key, value in parameters.items())])
        whole = parameters is table.parameters
        cut = {"partition_grid": table.partition_grid} if whole else {"partitions": 4}
        return self._ask(problem=table.problem, parameters=parameters, store=str(self._folder / name), cut=cut)

    def solve(self, store: str, request: dict[str, Any]) -> dict[str, Any]:
        """What a solve took and came to."""
        return self._ask(store=store, solve=request)

    def _ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a version ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def compare(name: str, versions: dict[str, Version], pairs: int, toy: bool) -> dict[str, Any]:
    """Pairs of solves of one case, and their ratios."""
    case = (CASES | LARGE_CASES)[name]
    parameters = case.table.small if toy else case.table.parameters
    tables = {version: asked.table(case.table, parameters) for version, asked in versions.items()}
    found: dict[str, list[dict[str, Any]]] = {version: [] for version in versions}
    for version in versions.values():
        small = version.table(case.table, case.table.small)
        version.solve(small["store"], case.request | {"cache": "100%"})
    for n in range(pairs + 1):
        for version in list(versions) if n % 2 else reversed(list(versions)):
            solve = versions[version].solve(tables[version]["store"], case.request)
            if n:
                found[version].append(solve)
    ratios = [a["cpu_seconds"] / b["cpu_seconds"] for b, a in zip(found["before"], found["after"], strict=True)]
    ratio = {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}
    medians = {version: medians_of(solves) for version, solves in found.items()}
    print(name, {k: round(v, 3) for k, v in ratio.items()}, json.dumps(medians), flush=True)
    table = {"problem": case.table.problem, "parameters": parameters, **tables["after"]["sizes"]}
    return {"table": table, **case.request, "ratio": ratio, "medians": medians, "solves": found}


def medians_of(solves: list[dict[str, Any]]) -> dict[str, float]:
    """The median of each number of the solves."""
    numbers = [k for k, v in solves[0].items() if isinstance(v, float)]
    return {k: round(statistics.median(solve[k] for solve in solves), 6) for k in numbers}


def serve(root: str) -> None:
    """Answer requests on stdin with the package of one version."""
    sys.path.insert(0, root)
    out, sys.stdout = sys.stdout, sys.stderr
    import resource

    import ooc_mdp

    assert ooc_mdp.__file__.startswith(root), ooc_mdp.__file__
    for line in sys.stdin:
        request = json.loads(line)
        store = Path(request["store"])
        if "problem" in request:
            if not store.exists():
                ooc_mdp.generate(request["problem"], store, request["parameters"], device="cpu", **request["cut"])
            answer: dict[str, Any] = {"store": str(store), "sizes": sizes_of(ooc_mdp.open_store(store))}
        else:
            before, began, used = time.process_time(), time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
            solution = ooc_mdp.solve(ooc_mdp.open_store(store), device="cpu", **request["solve"])
            seconds, cpu = time.monotonic() - began, time.process_time() - before
            now, summary = resource.getrusage(resource.RUSAGE_SELF), solution.summary()
            answer = {
                "cpu_seconds": cpu,
                "system_seconds": now.ru_stime - used.ru_stime,
                "wall_seconds": seconds,
                "page_faults": float(now.ru_minflt - used.ru_minflt),
                "process_peak_bytes": 1024.0 * now.ru_maxrss,
                "outcome": summary["outcome"],
                "error_bound": summary["error_bound"],
                "backups_per_state": summary["backups"] / summary["n_states"],
                "loads_per_partition": summary["loads_per_partition"],
            }
        print(json.dumps(answer), file=out, flush=True)


def sizes_of(store: Any) -> dict[str, int]:
    """What a store holds, under the names that any version gives it."""
    facts = getattr(store, "facts", store)
    return {
        "states": store.n_states,
        "transitions": int(facts.partition_transitions.sum()),
        "partitions": store.n_partitions,
        "decoded_bytes": int(facts.partition_bytes.sum()),
    }


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2])
    else:
        main()
