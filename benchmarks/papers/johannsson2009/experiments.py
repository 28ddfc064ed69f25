"""The measurements: each function gives one part of the figures as plain values.

A solve that its time limit stopped keeps the outcome "time_limit" and is no result; what was not begun is "not run".
On the CPU a kernel's schedule runs in NumPy: it makes the kernel's passes, whose number is measured, and its seconds
say nothing, so they are not kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import measuring
import numpy as np
from resident import InMemory
from sequential import Sequential
from worlds import Rows, World

import ooc_mdp
from ooc_mdp.backends.base import Backend, Loops, Resident, SweepLimits
from ooc_mdp.backends.cuda.simple.literature.catalogue import SIMPLE_KERNELS
from ooc_mdp.backends.layout import Needs
from ooc_mdp.backends.select import select_backend
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.reference import schedules

__all__ = [
    "DISCOUNT",
    "KERNELS",
    "THETA",
    "Effort",
    "default_run",
    "kernel_run",
    "large",
    "locality",
    "own_test",
    "priority_settings",
    "sequential_run",
    "world_runs",
]  # fmt: skip

DISCOUNT, THETA = 0.9, 1e-4
"""The thesis's gamma and convergence threshold (section 6.1)."""
KERNELS = ("plain", "bdi", "bdi-buffered", "bdi-priority", "rdi", "rdi-actions")
_BACKUPS = {kernel.word: kernel.backups for kernel in SIMPLE_KERNELS}
_SCHEDULES = {kernel.word: kernel.schedule for kernel in SIMPLE_KERNELS}
_TIMED_PASSES = 64


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured."""

    device: str
    repeat: int
    """Runs of each kind; the best and the worst are left out of the mean, as in the thesis."""
    limit: float
    """Seconds a solve."""
    schedule_side: int
    """Largest world whose schedules run on the CPU."""

    @property
    def timed(self) -> bool:
        """Whether seconds of kernels mean something."""
        return self.device != "cpu"

    def seconds(self, first: float, again: Callable[[], float]) -> dict[str, Any]:
        """The first run and as many more as are asked for: three, then none if all together take the time limit."""
        runs = [first]
        while len(runs) < self.repeat and (len(runs) < 3 or sum(runs) < self.limit / 4):
            runs.append(again())
        kept = sorted(runs)[1:-1] if len(runs) > 2 else runs
        return {"mean": sum(kept) / len(kept), **measuring.spread(runs)}


def sequential_run(rows: Rows, effort: Effort) -> dict[str, Any]:
    """The thesis's baseline on one core."""
    tables = Sequential.of(rows)
    solved = tables.solve(effort.limit)
    found = {"what": "sequential", "outcome": solved.outcome, "sweeps": solved.sweeps}
    found["residual"] = rows.residual(solved.values.astype(np.float64))
    if solved.outcome == "residual_reached":
        found["seconds"] = effort.seconds(solved.seconds, lambda: tables.solve(effort.limit).seconds)
        found["sweep_seconds"] = found["seconds"]["mean"] / solved.sweeps
    return found


def kernel_runs(words: Iterable[str], table: InMemory, effort: Effort) -> list[dict[str, Any]]:
    """Several kernels; a schedule that several of them have is run once."""
    runs: dict[str, dict[str, Any]] = {}
    for word in words:
        equal = [run for other, run in runs.items() if _SCHEDULES[other] is _SCHEDULES[word]]
        runs[word] = equal[0] | {"what": word} if equal and not effort.timed else kernel_run(word, table, effort)
    return list(runs.values())


def kernel_run(word: str, table: InMemory, effort: Effort, backend: Backend | None = None) -> dict[str, Any]:
    """One kernel on a resident table: passes until no state's residual is above the threshold."""
    if not effort.timed and table.n_states > effort.schedule_side**2:
        return {"what": word, "outcome": "not run"}
    backend = backend or select_backend(effort.device, kernel=word)
    facts = ModelFacts.of(table.facts, DISCOUNT)
    backend.load_code(facts, Loops.SINGLE)
    layout = backend.layout(facts, Needs())
    backend.start(facts, layout, None, None)
    resident = backend.admit(backend.prepare(table.read(0)[0]))

    def solve() -> tuple[str, int, float]:
        backend.write(np.arange(facts.n_states), np.zeros(facts.n_states), np.zeros(1, np.int64), facts.partition_ptr)
        return _solve(backend, resident, effort.limit)

    if effort.timed:
        backend.sweep([resident], SweepLimits(-1.0, 2)).report()  # the first launches load code
    outcome, passes, first = solve()
    found = {"what": word, "outcome": outcome, "passes": passes, "sweeps": passes * _BACKUPS[word]}
    found["residual"] = float(backend.measure(resident, 0.0)[0][2:].max())
    found["device_bytes"] = sum(layout.device.values())
    if effort.timed and outcome == "residual_reached":
        found["seconds"] = effort.seconds(first, lambda: solve()[2])
        found["sweep_seconds"] = min(_seconds_of_a_pass(backend, resident) for _ in range(3)) / _BACKUPS[word]
    backend.close()
    return found


def _solve(backend: Backend, resident: Resident, limit: float) -> tuple[str, int, float]:
    """Outcome, passes and seconds, with a look at the residual after every pass, as the thesis looks at its changes."""
    began, passes = time.perf_counter(), 0
    while True:
        report = backend.sweep([resident], SweepLimits(-1.0, 1)).report()
        passes += 1
        left = report.residuals[2:] if report.last_change is None else report.last_change  # type: ignore[index]
        seconds = time.perf_counter() - began
        if left.max() <= THETA:
            return "residual_reached", passes, seconds
        if seconds > limit:
            return "time_limit", passes, seconds


def _seconds_of_a_pass(backend: Backend, resident: Resident) -> float:
    """Of passes launched one after the other, with few looks in between."""
    began = time.perf_counter()
    backend.sweep([resident], SweepLimits(-1.0, _TIMED_PASSES)).report()
    return (time.perf_counter() - began) / _TIMED_PASSES


def default_run(world: World, device: str, effort: Effort) -> dict[str, Any]:
    """What `ooc-mdp solve` does by itself, to the same residual: `tiles` on a GPU, the CPU's engine without one."""
    return {"name": world.name} | _default(world.partitioned(), device, effort)


def _default(table: InMemory, device: str, effort: Effort, **how: Any) -> dict[str, Any]:
    def solve() -> ooc_mdp.Solution:
        asked = {"cache": "100%", **how}
        return ooc_mdp.solve(table, DISCOUNT, residual=THETA, device=device, time_limit=effort.limit, **asked)

    solution = solve()  # loads the code
    if solution.outcome.value == "residual_reached":
        solution = solve()
    s, word = solution.statistics, how.get("kernel", "tiles") if device != "cpu" else "CPU engine"
    found = {
        "what": word,
        "outcome": solution.outcome.value,
        "method": solution.method,
        "sweeps": s.backups / s.n_states,
    }
    found |= {"residual": solution.certificate.residual_bound, "loads_per_partition": s.loads_per_partition}
    found |= {"partitions": s.n_partitions, "table_bytes": s.table_bytes}
    if device != "cpu":
        found["device_bytes"] = sum(solution.memory_plan["device"].values())
    if solution.outcome.value == "residual_reached":
        found["seconds"] = effort.seconds(s.solve_seconds, lambda: solve().statistics.solve_seconds)
    return found


def world_runs(world: World, effort: Effort) -> dict[str, Any]:
    """Tables 6.1 and 6.2 and figures 6.1 to 6.5 and 6.7: one world, everything that solves it."""
    rows = Rows.of(world)
    return world.describe() | {"runs": [sequential_run(rows, effort), *kernel_runs(KERNELS, rows.in_tiles(), effort)]}


def locality(world: World, effort: Effort) -> dict[str, Any]:
    """Figure 6.6: sweeps where a share of the successors are random states."""
    rows = Rows.of(world)
    quick = replace(effort, repeat=1)
    runs = [sequential_run(rows, quick), *kernel_runs(("bdi", "rdi"), rows.in_tiles(), quick)]
    return world.describe() | {"runs": runs}


def large(world: World, effort: Effort, card_bytes: int) -> dict[str, Any]:
    """The world that the thesis's framework could not load: resident, and through a cache of 22% of its table.

    Parameters
    ----------
    card_bytes : memory of the thesis's card, within which the default kernel solves it too, where there is a GPU.
    """
    once, few = replace(effort, repeat=1), replace(effort, repeat=3)
    rows = Rows.of(world)
    found = world.describe() | {"thesis_bytes": world.states * 8 + world.cost * 16, "card_bytes": card_bytes}
    runs = [sequential_run(rows, replace(once, limit=3 * effort.limit))]
    table = rows.in_tiles()
    found["table_bytes"] = int(table.facts.partition_bytes.sum())
    runs += kernel_runs(KERNELS, table, few)
    del rows, table
    ways: list[tuple[str, dict[str, Any]]] = [("resident", {}), ("cache of 22%", {"cache": "22%"})]
    if effort.timed:
        ways.append(("memory of the thesis's card", {"cache": None, "device_memory": card_bytes}))
        out_of_core = {"cache": "22%", "kernel": "bdi"}
        ways.append(("vi, cache of 22%", out_of_core | {"method": "vi", "sweeps_per_visit": 4}))
        ways.append(("p-eva, cache of 22%", out_of_core | {"method": "p-eva"}))
    table = world.partitioned()
    for way, how in ways:
        run = _default(table, effort.device, once if "kernel" in how else few, **how)
        runs.append(run | {"what": f"{run['what']}, {way}"})
    return found | {"runs": runs}


def own_test(world: World) -> dict[str, Any]:
    """What the thesis's test of convergence lets pass: the change of a block's last iteration, algorithm 2."""
    table = Rows.of(world).in_tiles().read(0)[0]
    backup, values = schedules.LocalRows(table, DISCOUNT, 1.0).backup, np.zeros(table.n_states)
    by_change, by_residual, passes, found = 0, 0, 0, {"name": world.name}
    while not (by_change and by_residual):
        values, change = _SCHEDULES["bdi"](backup, table.n_states, values)
        passes += 1
        residual = _residual(backup, values)
        if not by_change and np.abs(change).max() <= THETA:
            by_change, found["residual_by_change"] = passes, residual
        if not by_residual and residual <= THETA:
            by_residual = passes
    return found | {"passes_by_change": by_change, "passes_by_residual": by_residual}


def _residual(backup: schedules.Backup, values: np.ndarray) -> float:
    return float(np.abs(backup(np.arange(values.size), values) - values).max())


def priority_settings(world: World, states: tuple[int, ...], constants: tuple[float, ...]) -> list[dict[str, Any]]:
    """bdi-priority with other numbers of states a thread and other U: backups of a state until the residual is met."""
    table = Rows.of(world).in_tiles().read(0)[0]
    backup, found = schedules.LocalRows(table, DISCOUNT, 1.0).backup, []
    for count in states:
        for constant in constants:
            how = {"block": 128, "states": count, "backups": 2, "update_constant": constant}
            schedule, values, passes = partial(schedules.bdi_priority, **how), np.zeros(table.n_states), 0
            while _residual(backup, values) > THETA:
                values, _ = schedule(backup, table.n_states, values)
                passes += 1
            found.append({"name": world.name, "states": count, "u": constant, "passes": passes, "sweeps": 2 * passes})
    return found
