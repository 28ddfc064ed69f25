"""The device of engines (`ooc_mdp.backends.cuda.device`) on the emulator of CUDA; work is done at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from emulated_cuda import Module, compile_kernels

__all__ = ["EmulatedDevice"]

_POISON = 0xA5


class _Stream:
    def __init__(self, device: EmulatedDevice) -> None:
        self._device = device

    def upload(self, to: int, data: npt.NDArray[Any]) -> None:
        self._device.memory(to, data.nbytes)[:] = data.reshape(-1).view(np.uint8)

    def download(self, data: npt.NDArray[Any], source: int) -> None:
        data.reshape(-1).view(np.uint8)[:] = self._device.memory(source, data.nbytes)

    def copy(self, to: int, source: int, nbytes: int) -> None:
        self._device.memory(to, nbytes)[:] = self._device.memory(source, nbytes)

    def clear(self, at: int, nbytes: int) -> None:
        self._device.memory(at, nbytes)[:] = 0

    def mark(self) -> Callable[[], bool]:
        return lambda: True

    def follow(self) -> None:
        pass

    def wait(self) -> None:
        pass


class _Kernel:
    def __init__(self, module: Module, name: str) -> None:
        self._module = module
        self._name = name

    def __call__(self, stream: _Stream, grid: int, block: int, args: Sequence[np.generic], shared: int = 0) -> None:
        self._module.launch(self._name, grid, block, list(args), shared=shared)

    def blocks_at_once(self, block: int, shared: int) -> int:
        return 3

    def prefer_shared_memory(self) -> None:
        pass


class EmulatedDevice:
    """Host memory that is checked as a device's would be: every copy lies within one allocation.

    Parameters
    ----------
    memory : bytes that it has.
    """

    name = "emulated:0"
    multiprocessors = 1
    staging_shared = 228 << 10

    def __init__(self, memory: int = 1 << 30) -> None:
        self._size = memory
        self._blocks: dict[int, npt.NDArray[np.uint8]] = {}

    def allocate(self, nbytes: int) -> int:
        if nbytes > self.memory_free():
            raise MemoryError(f"{nbytes} bytes")
        block = np.full(nbytes + 256, _POISON, np.uint8)
        at = -(-block.ctypes.data // 256) * 256
        skip = at - block.ctypes.data
        self._blocks[at] = block[skip : skip + nbytes]
        return at

    def memory(self, at: int, nbytes: int) -> npt.NDArray[np.uint8]:
        """The bytes from an address on; fails where they are no part of one allocation."""
        for start, block in self._blocks.items():
            if start <= at and at + nbytes <= start + block.size:
                return block[at - start : at - start + nbytes]
        raise AssertionError(f"{nbytes} bytes at {at:#x} are not allocated")

    def pinned(self, nbytes: int) -> npt.NDArray[np.uint8]:
        return np.full(nbytes, _POISON, np.uint8)

    def memory_free(self) -> int:
        return self._size - sum(block.size for block in self._blocks.values())

    def stream(self, urgent: bool = False) -> _Stream:
        return _Stream(self)

    def compile(
        self, source: str, defines: Mapping[str, str | int], names: Sequence[str], *, fused: bool = True
    ) -> dict[str, _Kernel]:
        module = compile_kernels(source, names, defines)
        return {name: _Kernel(module, name) for name in names}

    def graph(self, stream: _Stream, launches: Callable[[], None]) -> Callable[[], None]:
        return launches

    def free(self, at: int) -> None:
        del self._blocks[at]

    def free_all(self) -> None:
        self._blocks = {}
