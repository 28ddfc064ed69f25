"""Models that stay in memory from the first sweep to the last, as papers have them, and what a kernel takes there.

    problem ─▶ InMemory (tables in RAM) ─▶ backend.admit ─▶ visits from values of 0, timed ─▶ passes, residual

A visit ends when its last pass changed no value by more than a threshold. Values are gathered before it and scattered
after it, once each, which is timed too; nothing is loaded or compiled while the clock runs. Where the changes of a pass
bound no residual, the backend measures it after the visit: that is timed apart and subtracted. The clock is looked at
between two visits, whose passes are limited; one that took longer than the limit is recorded as no result.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import measuring
import numpy as np

import ooc_mdp
from ooc_mdp.backends.base import Backend, Loops, Resident, SweepLimits
from ooc_mdp.backends.cuda.simple.literature.catalogue import SimpleKernel
from ooc_mdp.backends.layout import Needs
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.partition import PartitionTable
from ooc_mdp.model.table import Loader, Table

__all__ = [
    "Effort",
    "InMemory",
    "default_run",
    "device_facts",
    "fill_in",
    "kernel_run",
    "markdown",
    "seconds_of_a_launch",
]


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured."""

    device: str
    repeat: int
    """Runs of each kind."""
    limit: float
    """Seconds a run; one that takes longer is no result."""

    def again(self, runs: Sequence[float]) -> bool:
        """Whether another run of the same kind is worth its time: not once all together took a quarter of the limit."""
        return len(runs) < self.repeat and sum(runs) < self.limit / 4


class InMemory(Table):
    """A table all of whose partitions are in RAM.

    Parameters
    ----------
    tables : of the source's partitions; read from it by default.
    attributes : in place of the source's.
    """

    def __init__(self, source: Table, tables: list[PartitionTable] | None = None, **attributes: int) -> None:
        self._source = source
        self.tables = [source.read(p)[0] for p in range(source.n_partitions)] if tables is None else tables
        self.facts = replace(
            source.facts,
            attributes={**source.facts.attributes, **attributes},
            partition_bytes=np.array([table.nbytes for table in self.tables]),
            stored_fields=(),
            frame_buffer_bytes=0,
        )

    @classmethod
    def of(cls, problem: str, parameters: dict[str, Any], whole: bool) -> InMemory:
        """A generated problem, in one partition or in as many as it has by default."""
        return cls(ooc_mdp.open_problem(problem, parameters, device="cpu", **({"partitions": 1} if whole else {})))

    def read(self, p: int) -> tuple[PartitionTable, int]:
        """Partition p's table."""
        return self.tables[p], 0

    def loader(self, device: str) -> Loader:
        """How a backend gets at it."""
        return Loader(self.read, 0)

    def original_states(self, p: int) -> IntArray:
        """As the source has them."""
        return self._source.original_states(p)

    def to_source(self, values: np.ndarray) -> np.ndarray:
        """In the order of the source's states."""
        return self._source.to_source(values)


@contextmanager
def on_device(
    table: InMemory, discount: float, kernel: SimpleKernel, device: str
) -> Iterator[tuple[Backend, Resident]]:
    """A backend that runs a kernel, with the only partition of a table."""
    facts, backend = ModelFacts.of(table.facts, discount), _backend(kernel, device)
    backend.load_code(facts, Loops.SINGLE)
    backend.start(facts, backend.layout(facts, Needs()), None, None)
    try:
        yield backend, backend.admit(backend.prepare(table.tables[0]))
    finally:
        backend.close()


def _backend(kernel: SimpleKernel, device: str) -> Backend:
    """Kernels need not be in the catalogue here: their launches may be other ones."""
    if device == "cpu":
        from ooc_mdp.backends.cpu.scheduled import ScheduledBackend

        return ScheduledBackend(kernel)
    from ooc_mdp.backends.cuda.device import CudaDevice
    from ooc_mdp.backends.cuda.simple.backend import SimpleBackend

    return SimpleBackend(CudaDevice(int(device.partition(":")[2] or 0)), kernel)


def visit(backend: Backend, resident: Resident, change: float, most: int) -> tuple[int, float, bool]:
    """From values of 0: passes, seconds, and whether the changes came down to what was asked."""
    backend.write(*_all_zero(resident.n_states))
    began = time.perf_counter()
    report = backend.sweep([resident], SweepLimits(change, most)).report()
    seconds = time.perf_counter() - began
    if report.last_change is None:
        began = time.perf_counter()
        backend.measure(resident, 0.0)
        seconds = max(seconds - (time.perf_counter() - began), 0.0)
    passes = int(report.sweeps[0])
    return passes, seconds, passes < most


@lru_cache(maxsize=1)
def _all_zero(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """What `Backend.write` takes for values of 0 in the only partition."""
    return np.arange(n), np.zeros(n), np.zeros(1, np.int64), np.array([0, n])


def kernel_run(
    table: InMemory, discount: float, kernel: SimpleKernel, effort: Effort, change: float, most: int
) -> tuple[dict[str, Any], FloatArray]:
    """Passes and seconds of visits until no value changes by more than `change`; and the values.

    `most` passes should be more than are needed, so that a visit that makes so many has failed.
    """
    with on_device(table, discount, kernel, effort.device) as (backend, resident):
        if effort.device != "cpu":
            visit(backend, resident, -1.0, 2)  # the first launches load code
        runs, passes, done = [], 0, True
        while done and effort.again(runs):
            passes, seconds, done = visit(backend, resident, change, most)
            runs.append(seconds)
        residual = float(backend.measure(resident, 0.0)[0][2:].max())
        values = backend.values()
    # A run that took longer than a run may is no result, though it came to an end.
    outcome = "sweep-limit" if not done else "time_limit" if max(runs) > effort.limit else "converged"
    found = {"outcome": outcome, "passes": passes, "residual": residual, "seconds": measuring.spread(runs)}
    return found, values


def seconds_of_a_launch(table: InMemory, discount: float, kernel: SimpleKernel, effort: Effort) -> dict[str, float]:
    """Of passes that follow each other without looks: long visits less short ones, over the passes between."""
    short, long = 8, 72
    with on_device(table, discount, kernel, effort.device) as (backend, resident):
        visit(backend, resident, -1.0, 2)
        found = []
        for _ in range(max(effort.repeat, 3)):
            times = [
                statistics.median(visit(backend, resident, -1.0, most)[1] for _ in range(3)) for most in (short, long)
            ]
            found.append((times[1] - times[0]) / (long - short))
    return measuring.spread(found)


def default_run(table: InMemory, discount: float, residual: float, effort: Effort) -> dict[str, Any]:
    """What `ooc-mdp solve` does by itself, to a plain residual; it brings the table from RAM to the device first."""

    def solve() -> ooc_mdp.Solution:
        how: dict[str, Any] = {"device": effort.device, "time_limit": effort.limit, "cache": "100%"}
        return ooc_mdp.solve(table, discount, residual=residual, **how)

    solve()  # loads the code
    solutions: list[ooc_mdp.Solution] = []
    while effort.again([s.statistics.solve_seconds for s in solutions]):
        solutions.append(solve())
    last = solutions[-1]
    return {
        "what": "CPU engine" if effort.device == "cpu" else "tiles",
        "outcome": last.outcome.value,
        "method": last.method,
        "partitions": last.statistics.n_partitions,
        "sweeps": last.statistics.backups / last.statistics.n_states,
        "residual": last.certificate.residual_bound,
        "seconds": measuring.spread([s.statistics.solve_seconds for s in solutions]),
    }


def device_facts(device: str) -> dict[str, Any]:
    """The accelerator in words; nothing for the CPU, or where CuPy is not there to ask."""
    try:
        import cupy
    except ImportError:
        return {}
    if device == "cpu":
        return {}
    found = cupy.cuda.runtime.getDeviceProperties(int(device.partition(":")[2] or 0))
    return {"device": found["name"].decode(), "device_memory_bytes": int(found["totalGlobalMem"])}


def markdown(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table, line by line."""
    return ["| " + " | ".join(line) + " |" for line in (headers, ["---"] * len(headers), *rows)]


def fill_in(text: str, tables: dict[str, list[str]]) -> str:
    """A text with each table between its marks; raises ValueError where it has no place for one."""
    for title, lines in tables.items():
        begin, end = f"<!-- {title} -->\n", "\n<!-- end -->"
        before, mark, rest = text.partition(begin)
        if not mark or end not in rest:
            raise ValueError(f"no place {begin.strip()} ... {end.strip()} for a table")
        text = before + mark + "\n".join(lines) + rest[rest.index(end) :]
    return text
