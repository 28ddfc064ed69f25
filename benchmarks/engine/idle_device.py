"""A device that does nothing at no cost, so that what is left of a load or a batch is the host's own work.

Copies to the host give zeros, but for the reports of a batch, which say what a benchmark wants to have happened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["IdleDevice"]

_REPORT = 10
"""Numbers that a device reports of a partition (struct of tiles/tiles.cuh)."""

Bytes = npt.NDArray[np.uint8]


class _Stream:
    def __init__(self, report: Callable[[npt.NDArray[np.float64]], None]) -> None:
        self._report = report

    def upload(self, to: int, data: npt.NDArray[Any]) -> None:
        pass

    def download(self, data: npt.NDArray[Any], source: int) -> None:
        if data.dtype == np.float64 and data.shape[1:] == (_REPORT,):
            self._report(data)
        else:
            data[...] = 0

    def copy(self, to: int, source: int, nbytes: int) -> None:
        pass

    def clear(self, at: int, nbytes: int) -> None:
        pass

    def mark(self) -> Callable[[], bool]:
        return lambda: True

    def follow(self) -> None:
        pass

    def wait(self) -> None:
        pass


class _Kernel:
    def __call__(self, stream: _Stream, grid: int, block: int, args: Sequence[Any], shared: int = 0) -> None:
        pass

    def blocks_at_once(self, block: int, shared: int) -> int:
        return 264

    def prefer_shared_memory(self) -> None:
        pass


class IdleDevice:
    """`ooc_mdp.backends.cuda.device.Device`; addresses are numbers that nobody follows.

    Parameters
    ----------
    report : fills float64 [k, 10], what the batch's kernels report of k partitions.
    """

    name = "idle:0"
    multiprocessors = 132
    staging_shared = 0

    def __init__(self, report: Callable[[npt.NDArray[np.float64]], None]) -> None:
        self._report = report
        self._next = 1 << 20

    def allocate(self, nbytes: int) -> int:
        """An address that nothing else has."""
        at, self._next = self._next, self._next + -(-nbytes // 256) * 256
        return at

    def pinned(self, nbytes: int) -> Bytes:
        """Host memory like any other."""
        return np.zeros(nbytes, np.uint8)

    def memory_free(self) -> int:
        """Enough."""
        return 1 << 40

    def stream(self, urgent: bool = False) -> _Stream:
        """Does nothing."""
        return _Stream(self._report)

    def compile(self, source: str, defines: Mapping[str, str | int], names: Sequence[str]) -> dict[str, _Kernel]:
        """Kernels that do nothing."""
        return {name: _Kernel() for name in names}

    def graph(self, stream: _Stream, launches: Callable[[], None]) -> Callable[[], None]:
        """Nothing is recorded."""
        return lambda: None

    def free(self, at: int) -> None:
        """Nothing to free."""

    def free_all(self) -> None:
        """Nothing to free."""
