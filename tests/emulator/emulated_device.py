"""Devices of engines (`ooc_mdp.backends.cuda.device`) on the emulator of CUDA.

One device does its work at once. Devices of a group do it when somebody waits for it, in an order that is drawn among
those that their streams allow (:mod:`emulated_order`), so that work which should have waited for other work is found.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from emulated_cuda import Module, compile_kernels
from emulated_order import Order, Work

__all__ = ["PAGE", "EmulatedDevice", "emulated_group"]

PAGE = 256
"""Bytes of a page of memory that is spread over a group: small, so that small vectors have some on every device."""
_POISON = 0xA5


class _Mark:
    def __init__(self, order: Order | None, work: frozenset[Work]) -> None:
        self._order, self._work = order, work

    def done(self) -> bool:
        return self._order is None or self._order.is_done(self._work)

    def wait(self) -> None:
        if self._order is not None:
            self._order.finish(self._work)


class _Stream:
    def __init__(self, device: EmulatedDevice) -> None:
        self.device = device
        self.last: frozenset[Work] = frozenset()
        """What its next work waits for."""

    def add(self, action: Callable[[], None]) -> None:
        """Work of this stream."""
        if self.device.order is None:
            action()
        else:
            self.last = self.device.order.add(action, self.last)

    def upload(self, to: int, data: npt.NDArray[Any]) -> None:
        def copy() -> None:
            self.device.memory(to, data.nbytes)[:] = data.reshape(-1).view(np.uint8)

        self.add(copy)

    def download(self, data: npt.NDArray[Any], source: int) -> None:
        def copy() -> None:
            data.reshape(-1).view(np.uint8)[:] = self.device.memory(source, data.nbytes)

        self.add(copy)

    def copy(self, to: int, source: int, nbytes: int) -> None:
        def copy() -> None:
            self.device.memory(to, nbytes)[:] = self.device.memory(source, nbytes)

        self.add(copy)

    def clear(self, at: int, nbytes: int) -> None:
        def clear() -> None:
            self.device.memory(at, nbytes)[:] = 0

        self.add(clear)

    def mark(self) -> _Mark:
        return _Mark(self.device.order, self.last)

    def follow(self) -> None:
        pass

    def wait_for(self, other: _Stream) -> None:
        self.last |= other.last

    def wait(self) -> None:
        if self.device.order is not None:
            self.device.order.finish(self.last)


class _Kernel:
    def __init__(self, device: EmulatedDevice, module: Module, name: str) -> None:
        self._device = device
        self._module = module
        self._name = name

    def __call__(self, stream: _Stream, grid: int, block: int, args: Sequence[np.generic], shared: int = 0) -> None:
        if self._device.order is None:
            self._module.launch(self._name, grid, block, list(args), shared=shared)
            return
        assert stream.device is self._device, f"{self._name} of {self._device.name} on a stream of {stream.device.name}"
        values = [np.array(arg) if isinstance(arg, np.ndarray) else arg for arg in args]  # as they are at the launch
        stream.add(functools.partial(self._module.launch, self._name, grid, block, values, shared=shared))

    def blocks_at_once(self, block: int, shared: int) -> int:
        return 3

    def prefer_shared_memory(self) -> None:
        pass


class EmulatedDevice:
    """Host memory that is checked as a device's would be: every copy lies within one allocation.

    Parameters
    ----------
    memory : bytes that it has.
    number : of the device.
    order : of the group's work; None where work is done at once.
    """

    multiprocessors = 1
    staging_shared = 228 << 10

    def __init__(self, memory: int = 1 << 30, number: int = 0, order: Order | None = None) -> None:
        self.name = f"emulated:{number}"
        self.order = order
        self.linked = True
        """Whether other devices reach it."""
        self._size = memory
        self._blocks: dict[int, npt.NDArray[np.uint8]] = {}
        self._pages: dict[int, int] = {}
        """Bytes of its memory in ranges of a group, by address."""
        self._shared: _SharedPages | None = None

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
        if self._shared is not None:
            return self._shared.memory(at, nbytes)
        raise AssertionError(f"{nbytes} bytes at {at:#x} are not allocated")

    def holds(self, at: int) -> bool:
        """Whether an address is in its own memory, which those that reach it may use."""
        return any(start <= at < start + block.size for start, block in self._blocks.items())

    def pinned(self, nbytes: int) -> npt.NDArray[np.uint8]:
        return np.full(nbytes, _POISON, np.uint8)

    def memory_free(self) -> int:
        return self._size - sum(block.size for block in self._blocks.values()) - sum(self._pages.values())

    def stream(self, urgent: bool = False) -> _Stream:
        return _Stream(self)

    def compile(
        self, source: str, defines: Mapping[str, str | int], names: Sequence[str], *, fused: bool = True
    ) -> dict[str, _Kernel]:
        module = compile_kernels(source, names, defines)
        return {name: _Kernel(self, module, name) for name in names}

    def graph(self, stream: _Stream, launches: Callable[[], None]) -> Callable[[], None]:
        return launches if self.order is None else self.order.record(stream, launches)

    def reaches(self, other: EmulatedDevice) -> bool:
        return other.linked

    def shared_pages(self, devices: Sequence[EmulatedDevice]) -> _SharedPages:
        return _SharedPages(devices)

    def place(self, at: int, nbytes: int) -> None:
        """Part of its memory is at an address of a group's range."""
        if nbytes > self.memory_free():
            raise MemoryError(f"{nbytes} bytes")
        self._pages[at] = nbytes

    def remove(self, at: int, nbytes: int) -> None:
        """It has that part back."""
        assert self._pages.pop(at) == nbytes

    def share(self, pages: _SharedPages) -> None:
        """It reaches memory of a group's ranges."""
        self._shared = pages

    def free(self, at: int) -> None:
        assert self.order is None or self.order.is_idle(), "work is under way, which may use what is freed"
        del self._blocks[at]

    def free_all(self) -> None:
        self._blocks = {}


class _SharedPages:
    """A group's ranges of addresses; one array each, of which every device has parts."""

    page = PAGE

    def __init__(self, devices: Sequence[EmulatedDevice]) -> None:
        self._devices = devices
        self._ranges: dict[int, npt.NDArray[np.uint8]] = {}
        self._placed: dict[int, dict[int, tuple[int, EmulatedDevice]]] = {}
        self._open: set[int] = set()
        for device in devices:
            device.share(self)

    def reserve(self, nbytes: int) -> int:
        block = np.full(nbytes + PAGE, _POISON, np.uint8)
        at = -(-block.ctypes.data // PAGE) * PAGE
        skip = at - block.ctypes.data
        self._ranges[at], self._placed[at] = block[skip : skip + nbytes], {}
        return at

    def place(self, at: int, nbytes: int, member: int) -> None:
        assert at % PAGE == nbytes % PAGE == 0 < nbytes
        start = self._range_of(at, nbytes)
        self._devices[member].place(at, nbytes)
        self._placed[start][at] = nbytes, self._devices[member]

    def open(self, at: int, nbytes: int) -> None:
        start = self._range_of(at, nbytes)
        assert sum(size for size, _ in self._placed[start].values()) == nbytes, "all of it has memory"
        self._open.add(start)

    def remove(self, at: int, nbytes: int) -> None:
        size, device = self._placed[self._range_of(at, nbytes)].pop(at)
        assert size == nbytes, "a piece is removed as it was placed"
        assert device.order is None or device.order.is_idle(), "work is under way, which may use what is freed"
        device.remove(at, nbytes)

    def release(self, at: int, nbytes: int) -> None:
        assert not self._placed.pop(at), "addresses are given back after their memory"
        assert self._ranges.pop(at).size == nbytes
        self._open.discard(at)

    def memory(self, at: int, nbytes: int) -> npt.NDArray[np.uint8]:
        """The bytes from an address on; fails where they are no part of one device's memory."""
        for device in self._devices:
            if device.holds(at):
                return device.memory(at, nbytes)
        start = self._range_of(at, nbytes)
        assert start in self._open, "no device has access"
        pieces = self._placed[start].items()
        assert any(place <= at and at + nbytes <= place + size for place, (size, _) in pieces), "a copy for each piece"
        return self._ranges[start][at - start : at - start + nbytes]

    def _range_of(self, at: int, nbytes: int) -> int:
        for start, block in self._ranges.items():
            if start <= at and at + nbytes <= start + block.size:
                return start
        raise AssertionError(f"{nbytes} bytes at {at:#x} are not allocated")


def emulated_group(count: int, seed: int = 0, memory: int = 1 << 26) -> tuple[EmulatedDevice, ...]:
    """Devices of a group, whose work is done in an order that depends on a seed."""
    order = Order(seed)
    return tuple(EmulatedDevice(memory, number, order) for number in range(count))
