"""The measurements: each function gives one part of a world's figures as plain values.

On the CPU a kernel's schedule runs in NumPy: it makes the kernel's passes, whose number and values are measured; its
seconds say nothing and are not kept, and blocks and launches mean nothing there either.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import measuring
import numpy as np
from claims import CONFIGURATIONS
from resident import Effort, InMemory, default_run, kernel_run, seconds_of_a_launch
from sequential import Sequential

from ooc_mdp.backends.cuda.simple.literature.catalogue import (
    PLAIN,
    TRANSITION_ATOMICS,
    TRANSITION_SEGMENTS,
    SimpleKernel,
)
from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.options import Stopping

__all__ = ["DISCOUNT", "EPSILON", "LETTERS", "World"]

DISCOUNT, EPSILON = 0.8, 0.001
"""Section 3.4."""
_MOST = 1000
_EVERY_PASS = Stopping("blocks", 1)
_PIXELS = 150
LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz+-"
"""Levels of a heat map, the smallest value first."""


class World:
    """One of the paper's worlds: its table, and its values by the sequential algorithm once these are asked for.

    Parameters
    ----------
    single_steps : blocks and threads of tables 1 and 2.
    """

    def __init__(self, side: int, effort: Effort, single_steps: tuple[int, int]) -> None:
        self.side, self.effort = side, effort
        self._single_steps = single_steps
        self._parameters = {"height": side, "width": side}
        self.table = InMemory.of("quintanilla", self._parameters, whole=True)
        self._sequential = Sequential.of(self.table, DISCOUNT)
        self._values: FloatArray | None = None

    def describe(self) -> dict[str, Any]:
        """For the figures."""
        return {"side": self.side, "states": self.side**2, "transitions": int(self.table.tables[0].successors.size)}

    @property
    def values(self) -> FloatArray:
        """float64 [states], by the sequential algorithm."""
        if self._values is None:
            self._values = self._sequential.solve(EPSILON, np.inf)[3]
        return self._values

    def sequential(self) -> dict[str, Any]:
        """The baseline: the whole algorithm and its two steps, on one core."""
        runs, outcome, sweeps = [], "converged", 0
        self._sequential.steps(1)  # compiles
        while self.effort.again(runs):
            outcome, sweeps, seconds, self._values = self._sequential.solve(EPSILON, self.effort.limit)
            runs.append(seconds)
        seconds = {"seconds": measuring.spread(runs)} | self._sequential.steps(self.effort.repeat)
        return {"outcome": outcome, "sweeps": sweeps} | seconds

    def launches(self) -> dict[str, Any]:
        """Tables 1 and 2: seconds of each step alone."""
        if self.effort.device == "cpu":
            return {}
        atomics, segments = (
            in_blocks(kernel, self.table, *self._single_steps) for kernel in (TRANSITION_ATOMICS, TRANSITION_SEGMENTS)
        )
        steps = {
            "summation, atomics": replace(atomics, launches=atomics.launches[:-1]),
            "summation, segments": replace(segments, launches=segments.launches[:-1]),
            "update, atomics": replace(atomics, launches=atomics.launches[-1:]),
            "update, segments": replace(segments, launches=segments.launches[-1:]),
            "sweep, plain": PLAIN,
        }
        never = Stopping("states", 1_000_000)
        return {
            name: seconds_of_a_launch(self.table, DISCOUNT, replace(kernel, stopping=never), self.effort)
            for name, kernel in steps.items()
        }

    def runs(self) -> list[dict[str, Any]]:
        """Tables 3 to 7, and the same kernels with as many blocks as there is work for; plain beside them."""
        configurations: list[tuple[int, int] | None] = [None]
        if self.effort.device != "cpu":
            configurations += [*CONFIGURATIONS, self._single_steps]
        found = []
        for kernel in (TRANSITION_ATOMICS, TRANSITION_SEGMENTS):
            found += [self._run(kernel, configuration) for configuration in configurations]
        return [*found, self._run(PLAIN, None)]

    def _run(self, kernel: SimpleKernel, configuration: tuple[int, int] | None) -> dict[str, Any]:
        launched = kernel if configuration is None else in_blocks(kernel, self.table, *configuration)
        tested = replace(launched, stopping=_EVERY_PASS)
        run, values = kernel_run(self.table, DISCOUNT, tested, self.effort, EPSILON, _MOST)
        if self.effort.device == "cpu":
            del run["seconds"]
        error = 100 * float(np.abs(values - self.values).max() / np.abs(self.values).max())
        return {"kernel": kernel.word, "configuration": configuration, "error_percent": error} | run

    def default(self) -> dict[str, Any]:
        """The default kernel to the residual that the paper's test of convergence leaves at most."""
        table = InMemory.of("quintanilla", self._parameters, whole=False)
        return default_run(table, DISCOUNT, DISCOUNT * EPSILON, self.effort)

    def heat_map(self) -> dict[str, Any]:
        """Figures 1 to 4: at most 150 x 150 means of square blocks of cells, in 64 levels."""
        every = -(-self.side // _PIXELS)
        starts = np.arange(0, self.side, every)
        cells = np.add.reduceat(np.add.reduceat(self.values.reshape(self.side, self.side), starts, 0), starts, 1)
        sizes = np.diff(np.append(starts, self.side))
        means = cells / np.outer(sizes, sizes)
        low, high = float(means.min()), float(means.max())
        levels = np.rint((means - low) / (high - low or 1.0) * (len(LETTERS) - 1)).astype(int)
        rows = ["".join(LETTERS[level] for level in row) for row in levels]
        extremes = {"smallest_value": float(self.values.min()), "largest_value": float(self.values.max())}
        return {"cells_a_pixel": every, "low": low, "high": high, "rows": rows} | extremes


def in_blocks(kernel: SimpleKernel, table: InMemory, blocks: int, threads: int) -> SimpleKernel:
    """The kernel with so many blocks a launch at most, whose threads share its rows, transitions or states out."""
    rows = table.tables[0]
    counts = {"states": rows.n_states, "rows": rows.n_rows, "transitions": rows.successors.size}
    shared_out = [
        launch._replace(each=-(-counts[launch.over] // blocks), threads=threads) for launch in kernel.launches
    ]
    return replace(kernel, launches=tuple(shared_out))
