"""What benchmarks do in a fresh process: `python tasks.py '{"task": "solve", ...}'` prints one JSON object.

Each task is a function of this file; its parameters are the rest of the object.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import ooc_mdp


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
        "dtype": built.probability_dtype.name,
        "decoded_bytes": int(built.partition_bytes.sum()),
        "largest_partition_bytes": int(built.partition_bytes.max()),
        "stored_bytes": int(built.chunk_bytes.sum()),
    }


def solve(warm_up: str, store: str, options: dict[str, Any]) -> dict[str, Any]:
    """Solve a tiny store first, so that kernels are compiled and loaded; then the store that is measured."""
    ooc_mdp.solve(warm_up, discount=0.9, cache="100%", device=options["device"])
    return ooc_mdp.solve(store, **options).summary()


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
    task = {f.__name__: f for f in (generate, solve, verify, device_name)}[said.pop("task")]
    print(json.dumps(task(**said)))
