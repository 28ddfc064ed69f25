"""The measurements: each function gives one part of the figures as plain values.

An iteration is a sweep of all states. Of the sequential version and of the one that sends state after state, one run is
timed at several numbers of iterations, as of algorithm 3 on several; the dense kernel makes a visit for each, and a
group a recorded graph. On the CPU a kernel's schedule runs in NumPy, whose seconds say nothing and are not kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import measuring
import numpy as np
from algorithm_3 import Algorithm3
from dense_group import DenseGroup
from models import DISCOUNT, DenseModel
from resident import Effort, default_run, on_device, visit
from sequential import Sequential
from state_by_state import StateByState
from tables import name_of

import ooc_mdp.backends.cuda.device as cuda
from ooc_mdp.backends.cuda.device import CudaDevice
from ooc_mdp.backends.cuda.group import DeviceGroup
from ooc_mdp.backends.cuda.simple.literature.catalogue import DENSE
from ooc_mdp.errors import OocMdpError
from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.options import Stopping

__all__ = ["default", "link_bandwidth", "measure", "measure_groups"]

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
    """Figures 2 to 5 for one size: each version of one device, and by how much their values differ in the end."""
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


def measure_groups(
    model: DenseModel, iterations: Sequence[int], counts: Sequence[int], effort: Effort
) -> dict[str, Any]:
    """Both versions for several GPUs for one size, on the first so many of them; and how far their values are off."""
    case = model.describe() | {"iterations": list(iterations), "runs": []}
    reference, differences = model.values_after(iterations[-1]), {}
    for count in counts:
        for measured in (_algorithm_3, _dense_group):
            run, found = measured(model, iterations, count, effort)
            case["runs"].append(run | {"devices": count})
            if found is not None:
                differences[name_of(case["runs"][-1])] = float(np.abs(found - reference).max())
    return case | {"largest_difference": differences}


def _devices(count: int) -> list[CudaDevice]:
    return [cuda.CudaDevice(number) for number in range(count)]


def _algorithm_3(
    model: DenseModel, iterations: Sequence[int], count: int, effort: Effort
) -> tuple[dict[str, Any], FloatArray | None]:
    """Tables are brought to the devices before, which is timed apart."""
    load = 0.0

    def loaded() -> Algorithm3:
        nonlocal load
        solver = Algorithm3(model, _devices(count))
        load = _seconds_of(solver.load)
        solver.start()
        solver.step()  # the first launches load code
        return solver

    run, values = _timed(loaded, iterations, effort)
    return run | {"load_seconds": load}, values


def _dense_group(
    model: DenseModel, iterations: Sequence[int], count: int, effort: Effort
) -> tuple[dict[str, Any], FloatArray]:
    """Likewise; so many passes are recorded, and made once, before they are timed."""
    solver = DenseGroup(model, _devices(count))
    load, seconds = _seconds_of(solver.load), []
    for n in iterations:
        passes, found = solver.record(n), []
        for _ in range(effort.repeat + 1):
            solver.start()
            found.append(_seconds_of(lambda passes=passes: solver.run(passes)))
        seconds.append(measuring.spread(found[1:]))
    values = solver.values(iterations[-1])
    solver.close()
    run = {"what": solver.what, "outcome": "done", "done": iterations[-1], "iterations": list(iterations)}
    timed = {"seconds": seconds, "seconds_an_iteration": seconds[-1]["median"] / iterations[-1], "load_seconds": load}
    return run | timed, values


def link_bandwidth(size: int) -> float:
    """Bytes per second of a copy of so many bytes, a power of two, from the first device to the second."""
    group = DeviceGroup(_devices(2))
    size = max(size, group.page)
    streams, at = group.streams(), group.allocate_spread([size, size])

    def copy() -> None:
        group.copy(streams, at + size, at, size)
        streams[1].wait()

    copy()
    seconds = min(_seconds_of(copy) for _ in range(5))
    group.free_all()
    return size / seconds


def _seconds_of(what: Callable[[], None]) -> float:
    began = time.perf_counter()
    what()
    return time.perf_counter() - began
