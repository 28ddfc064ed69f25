"""The measurements: each function gives one part of a problem's figures as plain values.

On the CPU a kernel's schedule runs in NumPy: it makes the kernel's passes, whose number is measured; its seconds say
nothing and are not kept, and block sizes mean nothing there either.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from resident import Effort, InMemory, default_run, kernel_run

from ooc_mdp.backends.cuda.simple.literature.catalogue import PLAIN, Launch, SimpleKernel
from ooc_mdp.options import Stopping
from ooc_mdp.scheduling.sweep_bound import sweep_bound

__all__ = ["DISCOUNT", "EPSILON", "THRESHOLD", "World"]

DISCOUNT = 0.9
"""Johannsson's, whose parameters the paper takes for the animat; it names no discount of its own."""
THRESHOLD = 1e-4
"""Largest change at which a run ends, R(epsilon) of equation 15; Johannsson's again."""
EPSILON = 2 * DISCOUNT * THRESHOLD / (1 - DISCOUNT)
"""The error that follows, equation 15."""


class World:
    """One of the paper's problems, in one partition."""

    def __init__(self, name: str, parameters: dict[str, Any], interval: int, effort: Effort) -> None:
        self.name, self.interval, self.effort = name, interval, effort
        self._problem = {"animat": "animat", "mountain-car": "integer-mountain-car"}[name]
        self._parameters = parameters
        self.table = InMemory.of(self._problem, parameters, whole=True)
        self.bound = sweep_bound(DISCOUNT, EPSILON, float(np.abs(self.table.facts.reward_range).max()))

    def describe(self) -> dict[str, Any]:
        """For the figures."""
        table = self.table.tables[0]
        facts = {"states": table.n_states, "transitions": int(table.successors.size), "table_bytes": table.nbytes}
        largest = float(np.abs(self.table.facts.reward_range).max())
        return {"parameters": self._parameters, **facts, "largest_cost": largest, "sweep_bound": self.bound}

    def run(self, technique: int, block: int | None) -> dict[str, Any]:
        """Figures 1 and 2: one technique with blocks of so many threads; None: the kernel's own."""
        every = 1 if technique in (1, 3) else self.interval
        test = Stopping("states" if technique in (1, 2) else "blocks", every)
        return {"technique": technique, "block": block} | self._run(replace(in_blocks(block), stopping=test))

    def device_test(self) -> dict[str, Any]:
        """Without a test on the host: the device finds the largest change after 8 passes, then 16, then each 32."""
        return self._run(PLAIN)

    def _run(self, kernel: SimpleKernel) -> dict[str, Any]:
        # No change is above the threshold after sweep I + 1; a look comes within an interval of it, at most 32.
        most = self.bound + 2 + max(self.interval, 32)
        found, _ = kernel_run(self.table, DISCOUNT, kernel, self.effort, THRESHOLD, most)
        if self.effort.device == "cpu":
            del found["seconds"]
        return found

    def default(self) -> dict[str, Any]:
        """The default kernel to the residual that the test of convergence leaves at most."""
        table = InMemory.of(self._problem, self._parameters, whole=False)
        return default_run(table, DISCOUNT, DISCOUNT * THRESHOLD, self.effort)


def in_blocks(block: int | None) -> SimpleKernel:
    """A thread a state, in blocks of so many threads."""
    return PLAIN if block is None else replace(PLAIN, launches=(Launch("sweep", "states", block, block),))
