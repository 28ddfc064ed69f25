"""What `cpu_peers.py` does in processes of its own: tables as plain arrays, errors of values, and ooc-mdp's own solves.

A peer's values are measured in one pass over the arrays, with the bound of `ooc_mdp.scheduling.residual_bounds`: the
largest |N(s)|, N(s) = max_a (Q_a(s) - V(s)) / (1 - g(s,a) rho), rounding included. A constant c added to all values
moves every N by
-c, so that half of the difference of the largest and least N is what is left with the best constant.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import ooc_mdp
from ooc_mdp.model.contraction import Contraction
from ooc_mdp.model.mdp import FloatArray, IntArray, discounts
from ooc_mdp.scheduling.residual_bounds import ResidualBounds

_PIECE = 100_000
"""States at a time."""


def generate(problem: str, parameters: dict[str, Any], store: str, warm_up: str) -> dict[str, Any]:
    """Build the store of a problem, and a small one of the same kind; sizes of the store."""
    # Large enough that successors have the type that they have in the table itself: kernels are compiled by type.
    large = parameters.get("states", 0) > 1000
    small = {
        "random": {"states": 70_000} if large else {},
        "gridworld": {"height": 48, "width": 48},
        "mountain-car": {"grid": "48,48"},
    }[problem]
    ooc_mdp.generate(problem, warm_up, parameters | small, partitions=4, device="cpu")
    began = time.monotonic()
    built = ooc_mdp.generate(problem, store, parameters, device="cpu")
    return {
        "generation_seconds": time.monotonic() - began,
        "states": built.n_states,
        "transitions": built.n_transitions,
        "partitions": built.n_partitions,
        "decoded_bytes": int(built.facts.partition_bytes.sum()),
        "stored_bytes": int(built.chunk_bytes.sum()),
    }


def export(store: str, folder: str, discount: float) -> dict[str, Any]:
    """The store's table as arrays in the source's order of states, as `peers/table.py` reads them."""
    table = ooc_mdp.open_store(store)
    actions, n = int(table.facts.attributes["actions_per_state"]), table.n_states
    if table.sense != "max" or not actions:
        raise ValueError("peers take a maximisation in which every state has as many actions")
    original = np.concatenate([table.original_states(p) for p in range(table.n_partitions)])
    lengths, rewards = np.empty((n, actions), np.int64), np.empty((n, actions))
    durations: FloatArray | None = None
    for p in range(table.n_partitions):
        part, _ = table.read(p)
        own = original[part.first_state : part.first_state + part.n_states]
        pointer = part.successor_ptr.astype(np.int64)
        lengths[own] = np.diff(pointer).reshape(-1, actions) if pointer.size else part.successors_per_action
        rewards[own] = part.rewards.reshape(-1, actions)
        if part.durations.size:
            durations = np.empty((n, actions)) if durations is None else durations
            durations[own] = part.durations.reshape(-1, actions)
    row_ptr = np.concatenate([[0], np.cumsum(lengths.reshape(-1))])
    successors, weights = np.empty(row_ptr[-1], np.int32), np.empty(row_ptr[-1])
    for p in range(table.n_partitions):
        part, _ = table.read(p)
        own = original[part.first_state : part.first_state + part.n_states]
        rows = (own[:, None] * actions + np.arange(actions)).reshape(-1)
        counts = row_ptr[rows + 1] - row_ptr[rows]
        to = np.concatenate([own, original[part.halo]])[part.successors]
        row = np.repeat(np.arange(rows.size), counts)
        ascending = np.lexsort((to, row))
        at = np.repeat(row_ptr[rows] - (np.cumsum(counts) - counts), counts) + np.arange(to.size)
        successors[at], weights[at] = to[ascending], part.probabilities[ascending]
    arrays: dict[str, Any] = {
        "rewards": rewards.reshape(-1),
        "row_ptr": row_ptr,
        "successors": successors,
        "weights": weights,
    }
    if durations is not None:
        arrays |= {"durations": durations.reshape(-1), "discounts": discounts(discount, durations.reshape(-1))}
    Path(folder).mkdir()
    for name, array in arrays.items():
        np.save(Path(folder, f"{name}.npy"), array)
    facts = {
        "n_states": n,
        "actions": actions,
        "discount": discount,
        "largest_discount": float(arrays["discounts"].max()) if durations is not None else discount,
    }
    Path(folder, "model.json").write_text(json.dumps(facts))
    return facts


def measure(folder: str, values: str) -> dict[str, float]:
    """What values leave: the largest plain residual, and bounds on the error as they are and with the best constant."""
    facts = json.loads(Path(folder, "model.json").read_text())
    n, actions, gamma = facts["n_states"], facts["actions"], facts["discount"]
    rewards, row_ptr, successors, weights = (
        np.load(Path(folder, f"{name}.npy"), mmap_mode="r")
        for name in ("rewards", "row_ptr", "successors", "weights")
    )  # fmt: skip
    by_row = Path(folder, "discounts.npy")
    g = np.load(by_row, mmap_mode="r") if by_row.exists() else np.broadcast_to(np.float64(gamma), (n * actions,))
    v: FloatArray = np.load(values)
    if v.shape != (n,) or not np.isfinite(v).all():
        raise ValueError(f"{v.shape} values for {n} states, or some that are not finite")
    sums = (np.add.reduceat(w, p[:-1] - p[0])[d > 0] for w, p, d in _rows(weights, row_ptr, g, actions))
    longest = max(float(each.max(initial=0.0)) for each in sums)
    shortest = np.load(Path(folder, "durations.npy"), mmap_mode="r").min() if by_row.exists() else 1.0
    k = np.array([int(np.diff(row_ptr).max())])
    one = Contraction.of(gamma, np.array([shortest]), np.array([longest]), k)
    residual, least, most = 0.0, np.inf, -np.inf
    for first in range(0, n, _PIECE):
        rows = slice(first * actions, min(first + _PIECE, n) * actions)
        own = v[first : first + _PIECE]
        pointer = row_ptr[rows.start : rows.stop + 1]
        at = slice(int(pointer[0]), int(pointer[-1]))
        expected = np.add.reduceat(weights[at] * v[successors[at]], pointer[:-1] - pointer[0])
        better = (rewards[rows] + g[rows] * expected).reshape(-1, actions) - own[:, None]
        normalised = better / (1.0 - (g[rows] * one.row_sum[0]).reshape(-1, actions))
        residual = max(residual, float(np.abs(better.max(axis=1)).max()))
        best = normalised.max(axis=1)  # of one policy's actions, so that the least of them is a bound from below
        least, most = min(least, float(best.min())), max(most, float(best.max()))
    reward_range = np.array([[rewards.min(), rewards.max()]])
    rounding = ResidualBounds.rounding_of(one, reward_range, k, float(np.abs(v).max()))
    return {
        "residual": residual,
        "error_bound": max(most, -least) + rounding,
        "shifted_error_bound": (most - least) / 2 + rounding,
    }


def _rows(weights: Any, row_ptr: IntArray, g: FloatArray, actions: int) -> Any:
    for first in range(0, g.size, _PIECE * actions):
        pointer = row_ptr[first : first + _PIECE * actions + 1]
        yield weights[int(pointer[0]) : int(pointer[-1])], pointer, g[first : first + _PIECE * actions]


def solve(store: str, warm_up: str, options: dict[str, Any], result: str, values: str) -> dict[str, Any]:
    """Solve a small store first, so that kernels are compiled and loaded; then the store that is measured."""
    ooc_mdp.solve(warm_up, **options | {"cache": "100%"})
    before = _cpu_seconds()
    summary = ooc_mdp.solve(store, output=result, checkpoint_interval=1e9, **options).summary()
    cpu_seconds = _cpu_seconds() - before
    np.save(values, ooc_mdp.open_result(result).solution.values)
    return {
        "package": f"ooc-mdp {ooc_mdp.__version__}",
        "build_seconds": 0.0,
        "solve_seconds": summary["solve_seconds"],
        "solve_cpu_seconds": cpu_seconds,
        "iterations": None,
        "outcome": summary["outcome"],
        "claimed_error_bound": summary["error_bound"],
        "backups_per_state": summary["backups"] / summary["n_states"],
        "loads_per_partition": summary["loads_per_partition"],
        "cache_bytes": summary["cache_bytes"],
    }


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    said = json.loads(sys.argv[1])
    task = {f.__name__: f for f in (generate, export, measure, solve)}[said.pop("task")]
    print(json.dumps(task(**said)))
