"""The measurements: each function gives one part of the figures as plain values.

An iteration is a sweep of all states. Of the sequential version and of the one that sends state after state, one run is
timed at several numbers of iterations; the dense kernel makes a visit for each. On the CPU a kernel's schedule runs in
NumPy, whose seconds say nothing and are not kept.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import measuring
import numpy as np
from models import DISCOUNT, DenseModel, random_parameters
from resident import Effort, default_run, on_device, visit
from sequential import Sequential
from state_by_state import StateByState

import ooc_mdp
from ooc_mdp.backends.cuda.simple.literature.catalogue import DENSE
from ooc_mdp.errors import OocMdpError
from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.options import Stopping

__all__ = ["default", "measure", "several"]

_UNTESTED = replace(DENSE, exact=True, stopping=Stopping("states", 1_000_000))
"""Iterations alone: no test of convergence, no measurement of residuals after them."""
_MAX_SCHEDULED = 1 << 22
"""Numbers of a table beyond which the schedule in NumPy takes too long."""
_SHORT = 1.0
"""Seconds of all runs together, up to which another is made."""
_BEFOREHAND = 2.0
"""Seconds of a solve that is not counted."""
_DEFAULT_LIMIT = 8.0
"""Seconds of a solve by the default kernel, of which there are at least two."""
RESIDUAL = 1e-4
"""To which several workers solve."""


class Solver(Protocol):
    """A version of the algorithm that is not ooc-mdp's."""

    what: str

    def start(self) -> None: ...
    def step(self) -> None: ...
    def values(self) -> FloatArray: ...
    def close(self) -> None: ...


def number_of(device: str) -> int:
    """Of a CUDA device."""
    return int(device.partition(":")[2] or 0)


def measure(model: DenseModel, iterations: Sequence[int], effort: Effort) -> dict[str, Any]:
    """Figures 2 to 5 for one size: each version, and by how much their values differ in the end."""
    makers: list[Callable[[], Solver]] = [lambda: Sequential(model)]
    if effort.device != "cpu":
        makers.append(lambda: StateByState(model, number_of(effort.device)))
    runs, values = [], {}
    for make in makers:
        run, found = _timed(make, iterations, effort)
        runs.append(run)
        if found is not None:
            values[run["what"]] = found
    if effort.device != "cpu" or model.transitions.size <= _MAX_SCHEDULED:
        run, values["dense"] = _dense(model, iterations, effort)
        runs.append(run)
    case = model.describe() | {"iterations": list(iterations), "runs": runs}
    reference = next(iter(values.values()), None)
    if reference is None:
        return case
    differences = {what: float(np.abs(found - reference).max()) for what, found in values.items()}
    return case | {"largest_difference": differences, "residual": model.residual(reference)}


def _timed(
    make: Callable[[], Solver], iterations: Sequence[int], effort: Effort
) -> tuple[dict[str, Any], FloatArray | None]:
    """Seconds of so many iterations; and the values after the last, unless the time limit came first."""
    solver, passes = make(), []
    while not passes or (len(passes) < effort.repeat and sum(found[-1] for found in passes) < _SHORT):
        solver.start()
        passes.append(_seconds_after(solver.step, iterations[-1], effort.limit))
    done = min(map(len, passes))
    reached = [n for n in iterations if n <= done]
    run = {
        "what": solver.what,
        "outcome": "done" if done == iterations[-1] else "time_limit",
        "done": done,
        "seconds_an_iteration": min(found[-1] / len(found) for found in passes),
        "iterations": reached,
        "seconds": [measuring.spread([found[n - 1] for found in passes]) for n in reached],
    }
    values = solver.values().copy() if done == iterations[-1] else None
    if isinstance(solver, StateByState):
        run["copies_an_iteration"] = min(_seconds_after(solver.send_all, 2, effort.limit)) if done > 1 else None
    solver.close()
    return run, values


def _seconds_after(step: Callable[[], None], most: int, limit: float) -> list[float]:
    """Since the beginning, after each step; none begins once the limit is over."""
    began, found = time.perf_counter(), []
    while len(found) < most and (not found or found[-1] <= limit):
        step()
        found.append(time.perf_counter() - began)
    return found


def _dense(model: DenseModel, iterations: Sequence[int], effort: Effort) -> tuple[dict[str, Any], FloatArray]:
    """The kernel `dense` with the model in one partition; bringing the table there is timed apart."""
    with on_device(model.table, DISCOUNT, _UNTESTED, effort.device) as (backend, resident):
        # The first pass expands the dense table.
        first, again = (visit(backend, resident, -1.0, 1)[1] for _ in range(2))
        backend.release(resident)
        began = time.perf_counter()
        resident = backend.admit(backend.prepare(model.table.tables[0]))
        load = time.perf_counter() - began
        seconds = []
        for n in iterations:
            repeats = effort.repeat if effort.device != "cpu" else 1
            seconds.append(measuring.spread([visit(backend, resident, -1.0, n)[1] for _ in range(repeats)]))
        values = backend.values()
    run: dict[str, Any] = {"what": "dense", "outcome": "done", "done": iterations[-1], "iterations": list(iterations)}
    if effort.device != "cpu":
        run |= {"seconds": seconds, "seconds_an_iteration": seconds[-1]["median"] / iterations[-1]}
        run |= {"load_seconds": load, "expand_seconds": max(first - again, 0.0)}
    return run, values


def default(model: DenseModel, residual: float, effort: Effort) -> dict[str, Any]:
    """The default kernel on the same model, to the residual that the iterations left; or why it cannot."""
    try:
        return default_run(model.table, DISCOUNT, residual, replace(effort, limit=min(effort.limit, _DEFAULT_LIMIT)))
    except OocMdpError as error:
        return {"what": "CPU engine" if effort.device == "cpu" else "tiles", "outcome": f"refused: {error}"}


def several(states: int, actions: int, workers: Sequence[int], toy: bool, effort: Effort) -> Iterator[dict[str, Any]]:
    """`--kernel dense` on stores of as many partitions as there are workers, each with a device of its own.

    The first solve has no workers. Each pass is followed by a measurement of the residual, and in the distributed
    solves by an exchange of all values.
    """
    asked: dict[str, Any] = {"discount": DISCOUNT, "residual": RESIDUAL, "kernel": DENSE.word, "method": "vi"}
    asked |= {"cache": "100%", "time_limit": effort.limit}
    with tempfile.TemporaryDirectory(prefix="ooc-mdp-benchmark-") as folder:
        for count in (0, *workers):
            parameters = random_parameters(states, actions)
            store = ooc_mdp.generate("random", Path(folder, str(count)), parameters, partitions=max(count, 1))
            with _cluster(count, toy, effort.device, Path(folder)) as client:
                if client is None:
                    where: dict[str, Any] = {"device": effort.device}
                else:
                    where = {"device": "cpu" if effort.device == "cpu" else "cuda", "workers": client}
                ooc_mdp.solve(store, **asked | {"time_limit": _BEFOREHAND}, **where)  # loads the code
                solution = ooc_mdp.solve(store, **asked, **where)
            statistics = solution.statistics
            seconds = {} if effort.device == "cpu" else {"seconds": statistics.solve_seconds}
            yield seconds | {
                "states": states,
                "actions": actions,
                "workers": count,
                "partitions": store.n_partitions,
                "outcome": solution.outcome.value,
                "passes": statistics.backups / statistics.n_states,
                "residual": solution.certificate.residual_bound,
            }


@contextmanager
def _cluster(workers: int, toy: bool, device: str, folder: Path) -> Iterator[Any]:
    """A client of workers of this machine, threads of this process at toy size; None for no workers."""
    if not workers:
        yield None
        return
    import dask
    from distributed import Client

    from ooc_mdp.distributed.cluster import local_cluster

    if toy:
        with (
            dask.config.set({"temporary-directory": str(folder)}),
            Client(processes=False, n_workers=workers, threads_per_worker=1, dashboard_address=":0") as client,
        ):
            yield client
    else:
        with local_cluster(workers) as client:
            yield client
