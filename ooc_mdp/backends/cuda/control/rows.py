"""Rows of discretised control problems computed by a CUDA device: CuPy compiles and launches ``control/rows.cu``.

The kernel is compiled once for each problem and device; grids and parameters are its arguments. Rows stay on the
device (:meth:`ControlRows.rows_on_device`, :meth:`ControlRows.fill`) or come back as the host's :class:`Rows`, in
pieces of bounded size. They equal those of :class:`DiscretisedProblem` but for the last bits of sin, exp and the like.
"""

from __future__ import annotations

import threading
from functools import cache, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.cuda.device import cupy_for
from ooc_mdp.backends.cuda.layout import c_type
from ooc_mdp.backends.cuda.sources import read_sources
from ooc_mdp.errors import MemoryBudgetError, OptionsError
from ooc_mdp.model.mdp import IntArray, Rows
from ooc_mdp.options import format_bytes
from ooc_mdp.problems.control.cuda.source import problem_source, setup
from ooc_mdp.problems.control.discretisation import DiscretisedProblem
from ooc_mdp.problems.parameters import check_states

__all__ = ["ControlRows", "DeviceProblem", "kernel_source"]

_THREADS = 128
"""A block: the kernels of large problems take more than 128 registers a thread."""
_PIECE = 64 << 20
"""Bytes of rows on the device at a time where they are copied back."""
_SUCCESSOR_TYPES = ("i8", "u4")
_PLACE = "\n@problem@\n"


def kernel_source(discretised: DiscretisedProblem) -> str:
    """``control/rows.cu`` with the problem in it; raises OptionsError where a function cannot be translated."""
    template = read_sources("control/rows.cu")
    return template.replace(_PLACE, f"\n{_source(discretised.problem)}\n")


_source = lru_cache(maxsize=32)(problem_source)
_compiling = threading.Lock()


@cache
def _kernels(device: int, source: str) -> dict[str, Any]:
    """The kernel by the type of successors."""
    import cupy

    names = {index: f"control_rows<{c_type(np.dtype(index))}>" for index in _SUCCESSOR_TYPES}
    with cupy.cuda.Device(device):
        module = cupy.RawModule(
            code=source, options=("--std=c++17", "--fmad=false"), name_expressions=list(names.values())
        )
        return {index: module.get_function(name) for index, name in names.items()}


class ControlRows:
    """Rows from one CUDA device.

    Raises
    ------
    MissingExtraError : CuPy is not installed.
    OptionsError : there is no such device.
    """

    def __init__(self, device: int) -> None:
        self._cupy = cupy_for(device)
        self._number = device
        self.device = self._cupy.cuda.Device(device)
        self.name = f"cuda:{device}"

    def fill(
        self,
        discretised: DiscretisedProblem,
        states: Any,
        successors: Any,
        probabilities: Any,
        rewards: Any,
        durations: Any,
    ) -> None:
        """Compute rows into arrays of the device, on its current stream.

        Parameters
        ----------
        states : int64 [n], on the device.
        successors : int64 or uint32 [n A (d + 1)]; A actions and d + 1 successors a row, states in the order given.
        probabilities : float64 [n A (d + 1)].
        rewards, durations : float64 [n A]; a duration of infinity ends the process.

        Raises
        ------
        OptionsError : one of the problem's functions cannot be translated.
        """
        kernel = self._kernel(discretised)[successors.dtype.str[1:]]
        n = states.size
        if n:
            with self.device:
                kernel(
                    (-(-n * discretised.n_actions // _THREADS),),
                    (_THREADS,),
                    (states, np.int64(n), setup(discretised), successors, probabilities, rewards, durations),
                )

    def rows_on_device(
        self, discretised: DiscretisedProblem, states: Any, successor_type: npt.DTypeLike = np.int64
    ) -> tuple[Any, Any, Any, Any]:
        """Successors, probabilities, rewards and durations of `states`, as CuPy arrays shaped as for :meth:`fill`.

        Parameters
        ----------
        states : int64 [n], NumPy or CuPy; NumPy's are checked.
        successor_type : int64, or uint32 where there are at most 2**32 states.

        Raises
        ------
        MemoryBudgetError : the device has no room.
        OptionsError : states that are not there, or a function that cannot be translated.
        """
        cupy = self._cupy
        index = np.dtype(successor_type)
        if index.str[1:] not in _SUCCESSOR_TYPES or (index.itemsize == 4 and discretised.n_states > 2**32):
            raise OptionsError(f"successors of {discretised.n_states} states cannot be {index}; take int64")
        if isinstance(states, np.ndarray):
            states = check_states(states, discretised.n_states, discretised.name)
        rows = states.size * discretised.n_actions
        width = len(discretised.points) + 1
        with self.device:
            try:
                on_device = cupy.asarray(states)
                made = (
                    cupy.empty(rows * width, index),
                    cupy.empty(rows * width),
                    cupy.empty(rows),
                    cupy.empty(rows),
                )
            except cupy.cuda.memory.OutOfMemoryError as error:
                needed = rows * (width * (index.itemsize + 8) + 16)
                raise MemoryBudgetError(
                    f"{self.name} has no {format_bytes(needed)} for the rows of {states.size} states; "
                    f"ask for fewer at a time, or compute them with --device cpu"
                ) from error
        self.fill(discretised, on_device, *made)
        return made

    def rows(self, discretised: DiscretisedProblem, states: IntArray) -> Rows:
        """The host's rows of `states` (int64 [n], any order), computed on the device; safe to call from any thread."""
        states = check_states(states, discretised.n_states, discretised.name)
        n, a, k = states.size, discretised.n_actions, len(discretised.points) + 1
        arrays = (np.empty(n * a * k, np.int64), np.empty(n * a * k), np.empty(n * a), np.empty(n * a))
        piece = max(_PIECE // (a * (16 * k + 16)), 1)
        for first in range(0, n, piece):
            part = states[first : first + piece]
            computed = self.rows_on_device(discretised, part)
            with self.device:
                for host, device in zip(arrays, computed, strict=True):
                    each = host.size // n
                    device.get(out=host[first * each : (first + part.size) * each])
        discretised.check_rows(states, *arrays[1:])
        return Rows(
            np.arange(n + 1, dtype=np.int64) * a,
            np.arange(n * a + 1, dtype=np.int64) * k,
            *arrays[:3],
            durations=arrays[3],
        )

    def close(self) -> None:
        """Give what the rows took back to the device."""
        with self.device:
            self._cupy.get_default_memory_pool().free_all_blocks()

    def _kernel(self, discretised: DiscretisedProblem) -> dict[str, Any]:
        with _compiling:
            return _kernels(self._number, kernel_source(discretised))


class DeviceProblem(DiscretisedProblem):
    """A discretised problem whose rows a device computes."""

    def __init__(self, discretised: DiscretisedProblem, source: ControlRows) -> None:
        super().__init__(discretised.problem, discretised.options)
        self.file, self.source = discretised.file, source

    def rows(self, states: IntArray) -> Rows:
        """Rows of the given states (int64 [n], any order)."""
        return self.source.rows(self, states)
