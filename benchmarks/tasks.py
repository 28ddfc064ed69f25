"""What benchmarks do in a fresh process: `python tasks.py '{"task": "solve", ...}'` prints one JSON object.

Each task is a function of this file; its parameters are the rest of the object.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import ooc_mdp

TINY = "5"
"""Points along each axis of the problem that is solved first."""


def generate(
    problem: str, parameters: dict[str, Any], store: str, partitions: int | None, warm_up: str | None = None
) -> dict[str, Any]:
    """Build a store, and a tiny one for `solve` to begin with; the sizes of the store."""
    if warm_up is not None:
        ooc_mdp.generate("GW-8x4", warm_up, partitions=4)
    built = ooc_mdp.generate(problem, store, parameters, partitions=partitions)
    return {
        "states": built.n_states,
        "transitions": built.n_transitions,
        "partitions": built.n_partitions,
        "dtype": built.facts.dtypes["probabilities"].name,
        "decoded_bytes": int(built.facts.partition_bytes.sum()),
        "largest_partition_bytes": int(built.facts.partition_bytes.max()),
        "stored_bytes": int(built.chunk_bytes.sum()),
    }


def solve(warm_up: str, store: str, options: dict[str, Any]) -> dict[str, Any]:
    """Solve a tiny store first, so that kernels are compiled and loaded; then the store that is measured."""
    ooc_mdp.solve(warm_up, discount=0.9, cache="100%", device=options["device"])
    return ooc_mdp.solve(store, **options).summary()


def make_table(
    problem: str, parameters: dict[str, Any], store: str, options: dict[str, Any], warm_up: str, device: str
) -> dict[str, Any]:
    """Build the store of a problem, and a tiny one for `solve_table`; the store's sizes and the seconds."""
    ooc_mdp.generate(problem, warm_up, parameters | {"grid": TINY}, device=device, **options | {"partitions": 4})
    began = time.monotonic()
    built = ooc_mdp.generate(problem, store, parameters, device=device, **options)
    return {
        "generation_seconds": time.monotonic() - began,
        "states": built.n_states,
        "transitions": built.n_transitions,
        "partitions": built.n_partitions,
        "dtype": built.facts.dtypes["probabilities"].name,
        "decoded_bytes": int(built.facts.partition_bytes.sum()),
        "stored_bytes": int(built.chunk_bytes.sum()),
    }


def solve_table(
    problem: str,
    parameters: dict[str, Any],
    store: str | None,
    made: dict[str, Any],
    warm_up: str,
    asked: dict[str, Any],
) -> dict[str, Any]:
    """Solve a problem from its store, or recomputed where there is none; a tiny one first, from the same source."""
    device = asked["device"]

    def table(path: str | None, grid: dict[str, Any], options: dict[str, Any]) -> Any:
        if path is not None:
            return path
        return ooc_mdp.open_problem(problem, parameters | grid, device=device, **options)

    tiny = table(None if store is None else warm_up, {"grid": TINY}, made | {"partitions": 4})
    ooc_mdp.solve(tiny, discount=0.9, cache="100%", device=device)
    source = table(store, {}, made)
    preparing = 0.0 if store is not None else source.first_pass_seconds
    return ooc_mdp.solve(source, **asked).summary() | {"first_pass_seconds": preparing}


def verify(store: str, results: list[str]) -> dict[str, Any]:
    """What a pass over the table finds for each result."""
    return {result: ooc_mdp.verify(store, result).summary() for result in results}


def device_name(device: str) -> dict[str, Any]:
    """The accelerator in words."""
    import cupy

    number = int(device.partition(":")[2] or 0)
    return {"device": cupy.cuda.runtime.getDeviceProperties(number)["name"].decode()}


if __name__ == "__main__":
    said = json.loads(sys.argv[1])
    task = {f.__name__: f for f in (generate, solve, make_table, solve_table, verify, device_name)}[said.pop("task")]
    print(json.dumps(task(**said)))
