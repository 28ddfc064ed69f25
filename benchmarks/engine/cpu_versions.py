"""Two versions of this program in turns on the CPU: processor seconds of whole solves to a proved error.

    git worktree add ../before COMMIT
    python cpu_versions.py --before ../before --cases gridworld-25,random-100 --pairs 5

Seconds are those of all threads of a process around `ooc_mdp.solve`, system time included: loads and the result are
in them. Each version runs in a process of its own, which stays, compiles beforehand on a small table of the same
kind and solves every case once before its solves count; the version that goes first changes from pair to pair. Stores
are written once and read by both. Ratios are of the version here to the one before, pair by pair.
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
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Case:
    """A solve."""

    table: Table
    discount: float
    epsilon: float
    cache: str


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
CASES = {
    "gridworld-25": Case(_GRIDWORLD, 0.95, 1e-4, "25%"),
    "gridworld-100": Case(_GRIDWORLD, 0.95, 1e-4, "100%"),
    "random-25": Case(_RANDOM, 0.95, 1e-4, "25%"),
    "random-100": Case(_RANDOM, 0.95, 1e-4, "100%"),
    "pendulum-25": Case(_PENDULUM, 0.9, 1e-4, "25%"),
    "car-25": Case(_CAR, 0.9, 1e-3, "25%"),
}


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    import measuring

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, help="repository of the version to compare with")
    parser.add_argument("--cases", default=",".join(CASES), help="of " + ", ".join(CASES))
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
        versions = {name: Version(root) for name, root in roots.items()}
        for case in options.cases.split(","):
            figures["cases"][case] = compare(case, versions, make_tables(folder, case, options.toy), options.pairs)
        for version in versions.values():
            version.close()
    options.before = options.tables = None  # figures name no place
    measuring.write_figures("cpu_versions", options, figures, facts, NOT_INCLUDED)


def make_tables(folder: Path, case: str, toy: bool) -> dict[str, Any]:
    """Write the stores of a case where they are missing: what a version is asked to solve."""
    import ooc_mdp

    table, stores = CASES[case].table, {}
    for name, parameters in (("small", table.small), ("large", table.small if toy else table.parameters)):
        store = folder / f"{table.problem}-{name}-{'toy' if toy else 'whole'}"
        if not store.exists():
            partitions = 4 if parameters is table.small else None
            ooc_mdp.generate(table.problem, store, parameters, partitions=partitions, device="cpu")
        stores[name] = str(store)
    found = ooc_mdp.open_store(stores["large"])
    sizes = {
        "states": found.n_states,
        "transitions": int(found.facts.partition_transitions.sum()),
        "partitions": found.n_partitions,
        "decoded_bytes": int(found.facts.partition_bytes.sum()),
    }
    return {"stores": stores, "sizes": sizes, "parameters": table.small if toy else table.parameters}


class Version:
    """The process of one version."""

    def __init__(self, root: Path) -> None:
        places = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, str(Path(__file__).resolve()), "--serve", str(root)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, text=True, env=os.environ | {"PYTHONPATH": places}
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        """What a solve took and came to."""
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


def compare(name: str, versions: dict[str, Version], tables: dict[str, Any], pairs: int) -> dict[str, Any]:
    """Pairs of solves of one case, and their ratios."""
    case = CASES[name]
    wanted = {"discount": case.discount, "epsilon": case.epsilon, "cache": case.cache}
    found: dict[str, list[dict[str, Any]]] = {version: [] for version in versions}
    for version in versions.values():
        version.ask(store=tables["stores"]["small"], **wanted | {"cache": "100%"})
    for n in range(pairs + 1):
        for version in list(versions) if n % 2 else reversed(list(versions)):
            solve = versions[version].ask(store=tables["stores"]["large"], **wanted)
            if n:
                found[version].append(solve)
    ratios = [a["cpu_seconds"] / b["cpu_seconds"] for b, a in zip(found["before"], found["after"], strict=True)]
    ratio = {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}
    medians = {version: medians_of(solves) for version, solves in found.items()}
    print(name, {k: round(v, 3) for k, v in ratio.items()}, json.dumps(medians), flush=True)
    table = {"problem": case.table.problem, "parameters": tables["parameters"], **tables["sizes"]}
    return {"table": table, **wanted, "ratio": ratio, "medians": medians, "solves": found}


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
        store = ooc_mdp.open_store(request.pop("store"))
        before, began, used = time.process_time(), time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
        solution = ooc_mdp.solve(store, device="cpu", **request)
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


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2])
    else:
        main()
