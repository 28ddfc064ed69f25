"""What every adapter shares: the table as arrays, the run of one peer in its own process, and what it says of it.

    V(s) = max_a { r(s,a) + discount * sum_s' w(s'|s,a) V(s') }

An adapter is a script that gives `run` a function `prepare(model, asked)`, which builds the peer's own model and gives
a function that solves it. Needs NumPy and the peer, nothing of ooc-mdp: peers have environments of their own.

Discounts differ by pair in a semi-Markov table. It is folded into one discount, the largest: rows are then scaled by
their own discount over it, and sum to less than 1. Peers that insist on probabilities get one more state, last and
absorbing, without reward, which takes what is missing; the values of the other states are the same.
"""

from __future__ import annotations

import importlib.metadata
import json
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Asked", "Model", "Solved", "load", "run", "with_absorbing_state"]

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Model:
    """Rows of n states, every state with A actions: m = n A rows, in the order of states."""

    n_states: int
    actions: int
    """A."""
    discount: float
    """One for all rows."""
    rewards: FloatArray
    """[m]; to be maximised."""
    row_ptr: npt.NDArray[np.int64]
    """[m+1]; row j has transitions row_ptr[j]:row_ptr[j+1]."""
    successors: npt.NDArray[np.int32]
    """[nnz], ascending inside a row."""
    weights: FloatArray
    """[nnz]; they add up to 1 in each row, or to less where several discounts were folded into one."""
    stochastic: bool
    """Whether every row adds up to 1."""

    @property
    def largest_row(self) -> int:
        """Most successors of a row."""
        return int(np.diff(self.row_ptr).max())

    def dense_rows(self) -> tuple[npt.NDArray[np.int32], FloatArray]:
        """Successors and weights [n, A, K] with K the longest row's; weight 0 where a row is shorter."""
        shape = (self.n_states, self.actions, self.largest_row)
        lengths = np.diff(self.row_ptr)
        if (lengths == shape[2]).all():
            return self.successors.reshape(shape), self.weights.reshape(shape)
        taken = np.arange(shape[2]) < lengths[:, None]
        successors, weights = np.zeros(taken.shape, np.int32), np.zeros(taken.shape)
        successors[taken], weights[taken] = self.successors, self.weights
        return successors.reshape(shape), weights.reshape(shape)


@dataclass(frozen=True)
class Asked:
    """How the peer shall solve."""

    method: str
    """One that the adapter knows."""
    tolerance: float
    """The peer's own, whatever it means there."""
    max_iterations: int
    """Iterations after which the peer stops, where it can."""
    threads: int


@dataclass(frozen=True)
class Solved:
    """What the peer found."""

    values: FloatArray
    """[n] or more: later ones belong to an absorbing state."""
    iterations: int | None
    """As the peer counts them; None if it does not say."""


def load(folder: Path) -> Model:
    """The model that a folder holds: `model.json` and one .npy file an array, discounts of its rows among them."""
    facts = json.loads((folder / "model.json").read_text())
    arrays = {name: np.load(folder / f"{name}.npy") for name in ("rewards", "row_ptr", "successors", "weights")}
    model = Model(facts["n_states"], facts["actions"], facts["discount"], stochastic=True, **arrays)
    discounts = folder / "discounts.npy"
    if not discounts.exists():
        return model
    by_row = np.load(discounts)
    largest = float(by_row.max())
    arrays["weights"] *= np.repeat(by_row / largest, np.diff(model.row_ptr))
    return replace(model, discount=largest, stochastic=False)


def with_absorbing_state(model: Model) -> Model:
    """The same model with rows that add up to 1, the rest going to a last state that keeps it; as it is if they do."""
    if model.stochastic:
        return model
    k, last = model.largest_row, model.n_states
    n_rows = last * model.actions
    if not (np.diff(model.row_ptr) == k).all():
        raise ValueError("rows of different lengths with discounts of their own are not among the benchmarks")
    successors = np.full((n_rows + model.actions, k + 1), last, np.int32)
    weights = np.zeros((n_rows + model.actions, k + 1))
    successors[:n_rows, :k] = model.successors.reshape(n_rows, k)
    weights[:n_rows, :k] = model.weights.reshape(n_rows, k)
    successors[n_rows:, :k] = np.arange(k)  # distinct, ascending and of weight 0
    weights[:, k] = np.maximum(1.0 - weights[:, :k].sum(axis=1), 0.0)  # rounding may leave less than nothing
    return Model(
        n_states=last + 1,
        actions=model.actions,
        discount=model.discount,
        rewards=np.append(model.rewards, np.zeros(model.actions)),
        row_ptr=np.arange(0, weights.size + 1, k + 1),
        successors=successors.reshape(-1),
        weights=weights.reshape(-1),
        stochastic=True,
    )


def run(package: str | None, prepare: Callable[[Model, Asked], Callable[[], Solved]]) -> None:
    """Solve what the command line's JSON object asks for, keep the values, and print the figures as JSON."""
    said = json.loads(sys.argv[1])
    model = load(Path(said["model"]))
    asked = Asked(said["method"], said["tolerance"], said["max_iterations"], said["threads"])
    began = time.perf_counter()
    solve = prepare(model, asked)
    built = time.perf_counter()
    before = _cpu_seconds()
    started = time.perf_counter()
    solved = solve()
    seconds = time.perf_counter() - started
    cpu_seconds = _cpu_seconds() - before
    np.save(said["values"], np.asarray(solved.values, np.float64)[: model.n_states])
    figures: dict[str, Any] = {
        "package": None if package is None else f"{package} {importlib.metadata.version(package)}",
        "build_seconds": built - began,
        "solve_seconds": seconds,
        "solve_cpu_seconds": cpu_seconds,
        "iterations": solved.iterations,
    }
    print("\n" + json.dumps(figures))


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
