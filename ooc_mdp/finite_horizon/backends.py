"""What takes a partition a stage further: the host's cores, or a CUDA device.

The values of two stages lie on the host, and on a device once more. Nothing here knows a schedule.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.base import Resident
from ooc_mdp.backends.cpu.rows import table_rows
from ooc_mdp.backends.layout import cache_of_size
from ooc_mdp.backends.select import cuda_numbers
from ooc_mdp.errors import OptionsError
from ooc_mdp.finite_horizon.kernels import advance
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.partition import PartitionTable
from ooc_mdp.model.table import Table
from ooc_mdp.options import NO_DEVICE_MEMORY, SolveOptions
from ooc_mdp.runtime import quotas

if TYPE_CHECKING:
    from ooc_mdp.finite_horizon.device import DeviceStages

__all__ = ["HostStages", "StageBackend", "check_durations", "stage_backend"]

_SLICE = 4096
"""Fewest states of a thread."""


class StageBackend(Protocol):
    """What the solve asks of whatever computes."""

    name: str

    def load_code(self, table: Table) -> None:
        """Compile what is called later, so that a plan counts it."""
        ...

    def plan(self, table: Table, options: SolveOptions, staged: int) -> tuple[int, dict[str, int], dict[str, int]]:
        """Bytes of the cache, and of the buffers by name, in RAM and on the device.

        Parameters
        ----------
        staged : partitions that are read at a time.

        Raises
        ------
        OptionsError : a device's budget is given, and there is no device.
        MemoryBudgetError : the cache cannot hold the largest partition, or the device is too small.
        """
        ...

    def start(self, table: Table, options: SolveOptions, values: FloatArray) -> None:
        """Allocate; `values` are float64 [2, n], of the two stages, in the order of partitions."""
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

    def advance(
        self, resident: Resident, values: FloatArray, following: int, policy: npt.NDArray[np.int32]
    ) -> FloatArray:
        """Compute a stage of a partition from `values[following]`, the stage after it, into the other one.

        Parameters
        ----------
        values : float64 [2, n], those of `start`.
        policy : int32 [n_p]; gets the actions.

        Returns
        -------
        the partition's part of `values`
        """
        ...

    def boundary(self, resident: Resident) -> npt.NDArray[np.bool_]:
        """bool [n_p]: which of a partition's states others read."""
        ...

    def put(self, values: FloatArray, which: int, states: IntArray, new: FloatArray) -> None:
        """Take other values of some states (int64 [k], float64 [k]) into `values[which]`."""
        ...

    def close(self) -> None:
        """Free everything."""
        ...


def stage_backend(device: str) -> StageBackend:
    """The one for "cpu", "cuda:N", "cuda" (the first device) or "auto".

    Raises
    ------
    OptionsError : several devices are named, or there is no such device.
    """
    numbers = cuda_numbers(device)
    if not numbers:
        return HostStages()
    if len(numbers) > 1:
        raise OptionsError(f"--horizon is solved on one device; give --device cuda:{numbers[0]}")
    from ooc_mdp.backends.cuda.device import CudaDevice
    from ooc_mdp.finite_horizon.device import DeviceStages

    found: DeviceStages = DeviceStages(CudaDevice(numbers[0]))
    return found


def check_durations(table: Table, part: PartitionTable | None = None) -> None:
    """Refuse durations, but for infinite ones: a row that ends the process.

    Parameters
    ----------
    part : a partition that was read; None to look at what is known before.

    Raises
    ------
    OptionsError : stages are of one length, and rows are not.
    """
    if "durations" not in table.facts.dtypes:
        return
    if part is None:
        found = table.facts.duration_range
        wrong = found[np.isfinite(found) & (found != 1)]
    else:
        taken: Any = part.durations  # on the device, where rows were computed there
        taken = taken.get() if hasattr(taken, "get") else taken
        wrong = taken[np.isfinite(taken) & (taken != 1)]
    if wrong.size:
        raise OptionsError(
            f"{table.name} has rows of duration {wrong.flat[0]:g}, and stages are all of one length: the best plan "
            f"for a number of stages is not defined; solve with --discount, where durations count, or make a table "
            f"whose rows all take one step"
        )


class HostStages:
    """The host's cores: states of a partition in slices, each on a thread."""

    name = "cpu"

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads or quotas.cores()
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="stages")

    def load_code(self, table: Table) -> None:
        """Call the loop on no states of the smallest partition."""
        table.load_code()
        rows = table_rows(table.read(int(table.facts.partition_bytes.argmin()))[0])
        none = np.zeros(0)
        advance(rows, 0, 0, none, none, np.zeros(0, np.int32), 1.0, 1.0)

    def plan(self, table: Table, options: SolveOptions, staged: int) -> tuple[int, dict[str, int], dict[str, int]]:
        """The cache and local values; tables lie in the cache as they are read."""
        if options.device_memory is not None:
            raise OptionsError(NO_DEVICE_MEMORY)
        facts = table.facts
        cache = cache_of_size(facts.partition_bytes, options.cache_size)
        most = int(np.diff(facts.partition_ptr).max()) + int(facts.partition_halo.max())
        return cache, {"cache": min(cache, int(facts.partition_bytes.sum())), "local values": 8 * most}, {}

    def start(self, table: Table, options: SolveOptions, values: FloatArray) -> None:
        """Note what the loop needs."""
        self._table, self._read = table, table.loader("cpu").read
        self._discount, self._sign = options.discount, 1.0 if table.sense == "max" else -1.0

    def fetch(self, p: int) -> tuple[Resident, int]:
        """A handle on the arrays of partition p's table."""
        part, n_bytes = self._read(p)
        check_durations(self._table, part)
        return Resident(part.index, part.n_states, bool(part.durations.size), [table_rows(part)]), n_bytes

    def admit(self, prepared: Resident) -> Resident:
        """Nothing is left to do."""
        return prepared

    def release(self, resident: Resident) -> None:
        """Nothing to do: the arrays go with their last reference."""

    def advance(
        self, resident: Resident, values: FloatArray, following: int, policy: npt.NDArray[np.int32]
    ) -> FloatArray:
        """In slices of the states."""
        rows, n = resident.arrays[0], resident.n_states
        own = slice(rows.first, rows.first + n)
        local = np.concatenate([values[following, own], values[following, rows.halo]])
        after = values[1 - following, own]
        parts = max(1, min(self._threads, n // _SLICE))
        cuts = [i * n // parts for i in range(parts + 1)]

        def work(i: int) -> None:
            advance(rows, cuts[i], cuts[i + 1], local, after, policy, self._discount, self._sign)

        _on_threads(self._pool, work, parts)
        return after

    def boundary(self, resident: Resident) -> npt.NDArray[np.bool_]:
        """As the table has it."""
        found: npt.NDArray[np.bool_] = resident.arrays[0].boundary
        return found

    def put(self, values: FloatArray, which: int, states: IntArray, new: FloatArray) -> None:
        """They are nowhere else."""
        values[which, states] = new

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()


def _on_threads(pool: ThreadPoolExecutor, work: Callable[[int], None], parts: int) -> None:
    if parts == 1:
        work(0)
        return
    for _ in pool.map(work, range(parts)):
        pass
