"""What measures partitions, keeps the policy's rows and evaluates it: the host's cores, or a CUDA device.

h, the policy and max_a x_a lie with the backend. Nothing here knows which partitions are read, or what is concluded.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.base import Resident
from ooc_mdp.backends.select import cuda_numbers
from ooc_mdp.errors import OptionsError
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.table import Table
from ooc_mdp.options import SolveOptions

__all__ = ["FOUND", "GainBackend", "Marks", "Measured", "System", "gain_backend"]

FOUND = 6
"""Numbers that the improvement of a partition finds: at most min x of the policy, at least max_a x_a, at least max x of
the other actions, the largest rounding, states whose action changed, and 1 + a state without action (0: none)."""
Marks = npt.NDArray[np.uint8]
"""uint8 [n]; 1 for the states of a set."""


@dataclass(frozen=True, slots=True)
class Measured:
    """x of a policy at some values, and how these differ from those at the beginning of a trial."""

    low: FloatArray
    """float64 [P]; in each partition x is at least this, rounding included,"""
    high: FloatArray
    """and at most this."""
    rounding: float
    """The largest of an x."""
    least: FloatArray
    """float64 [P]; the least change of a value,"""
    largest: FloatArray
    """and the largest."""
    size: float
    """The largest |h|."""

    @property
    def spread(self) -> float:
        """Of x over all states."""
        return float(self.high.max() - self.low.min())

    @property
    def middle(self) -> float:
        """Of the least and the largest x."""
        return 0.5 * (float(self.high.max()) + float(self.low.min()))


@dataclass(frozen=True, slots=True)
class System:
    """What is solved of a policy, and how far."""

    centre: float
    """A number near the gain, which is taken off the rewards so that values are small."""
    goal: float
    """The largest residual that is good enough."""
    most: int
    """Iterations of the solver."""
    discount: float = 1.0
    """Below 1: h = r - centre + discount P h, which has one solution however many recurrent classes there are."""


class GainBackend(Protocol):
    """What the solve asks of whatever computes, always of the maximisation."""

    name: str
    iterations: int
    """Of the solver of an evaluation, at most."""
    staged: int
    """Partitions that are read at a time, as planned."""

    @property
    def rows_complete(self) -> bool:
        """Whether the rows of the policy are kept of every partition."""
        ...

    def load_code(self, table: Table) -> None:
        """Compile what is called later, so that a plan counts it."""
        ...

    def plan(self, table: Table, options: SolveOptions) -> tuple[int, dict[str, int], dict[str, int]]:
        """Bytes of the cache, and of the buffers by name, in RAM and on the device.

        Raises
        ------
        OptionsError : a device's budget is given, and there is no device.
        MemoryBudgetError : the cache cannot hold the largest partition, or the device is too small.
        """
        ...

    def start(self, table: Table, values: FloatArray) -> None:
        """Allocate what the plan names, and take over h (float64 [n], in the order of partitions); there is no policy.

        Raises
        ------
        MemoryBudgetError : the device has not so much memory.
        """
        ...

    def fetch(self, p: int) -> tuple[Any, int]:
        """Read and prepare partition p, on any thread; with the bytes read."""
        ...

    def admit(self, prepared: Any) -> Resident:
        """Take what was prepared."""
        ...

    def release(self, resident: Resident) -> None:
        """Free it."""
        ...

    def improve(self, resident: Resident, margin: float) -> None:
        """Begin to measure a partition over all actions, make its policy greedy and keep its rows; h stays.

        A state keeps its action unless another is better by more than `margin`; of others the lowest best is taken.
        """
        ...

    def found(self) -> tuple[IntArray, FloatArray]:
        """The partitions improved since the last call (int64 [k]), and what was found (float64 [k, FOUND]); waits."""
        ...

    def begin_trial(self) -> None:
        """Keep h as it is now."""
        ...

    def evaluate(self, system: System) -> Generator[None, None, int]:
        """Take as h values of the policy, by its rows, or leave it where they are none; pauses between iterations.

        Returns
        -------
        backups of a state
        """
        ...

    def measure(self) -> Measured:
        """Measure x of the policy, by its rows, at h, and what has changed since the trial began."""
        ...

    def withdraw(self) -> None:
        """Take h as it was when the trial began."""
        ...

    def take(self, values: FloatArray) -> None:
        """Take other values (float64 [n], in the order of partitions) as h; policy and rows stay."""
        ...

    def step(self, share: float, middle: float) -> tuple[FloatArray, FloatArray]:
        """Add share * (max_a x_a - middle) to h; the least and the largest change of each partition (float64 [P])."""
        ...

    def values(self) -> FloatArray:
        """float64 [n]; a copy of h."""
        ...

    def policy(self) -> npt.NDArray[np.int32]:
        """int32 [n]; a copy of the policy, -1 where there is none yet."""
        ...

    def advantage(self) -> FloatArray:
        """float64 [n]; a copy of max_a x_a where the last reading was of everything, at the present h."""
        ...

    def begin_pruning(self, closed: Marks, kept: Marks) -> None:
        """Take two sets of states, from which `prune` takes states away."""
        ...

    def prune(self, resident: Resident) -> int:
        """Take away from the first set a partition's states of which some row leaves it, and from the second those
        whose row of the policy leaves it; how many they were."""
        ...

    def pruned(self) -> tuple[Marks, Marks]:
        """What is left of the two sets."""
        ...

    def close(self) -> None:
        """Free everything."""
        ...


def gain_backend(device: str) -> GainBackend:
    """The one for "cpu", "cuda:N", "cuda" (the first device) or "auto".

    Raises
    ------
    OptionsError : several devices are named, or there is no such device.
    """
    numbers = cuda_numbers(device)
    if not numbers:
        from ooc_mdp.average.host import HostGains

        return HostGains()
    if len(numbers) > 1:
        raise OptionsError(f"--average is solved on one device; give --device cuda:{numbers[0]}")
    from ooc_mdp.average.device import DeviceGains
    from ooc_mdp.backends.cuda.device import CudaDevice

    return DeviceGains(CudaDevice(numbers[0]))
