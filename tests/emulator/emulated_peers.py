"""A group of emulated devices of the tiled engine that see each other's stores late, and load early.

Each device has a view of the values, and of the `accumulated` of every other device, where its kernels write. What it
stores for others waits (``emulated_peers.hpp``) until it arrives in the midst of one of their kernels, in any order
that is allowed, or at the latest when they meet. A load may give what was there before an arrival that its thread has
not acquired. Between two batches all views are what the spread memory is.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from emulated_cuda import compile_kernels
from emulated_device import EmulatedDevice, _Kernel
from emulated_order import Order

from ooc_mdp.backends.cuda.tiles.backend import TiledBackend

__all__ = ["REACH", "LateGroup"]

_ROUNDS = ("select_tiles", "sweep_tiles", "select_windows", "solve_windows", "report_partitions", "end_batch")
"""Kernels of a batch, whose second argument is the round, or the number of rounds."""
REACH = np.dtype([("begin", "u8"), ("there", "u8"), ("bytes", "u8"), ("device", "u8"), ("eager", "u8")])
"""struct Reach of emulated_peers.hpp."""
_MOST_AT_ONCE = (0, 1, 3, 10, 1000)
"""Arrivals where threads meet, at most: drawn for each launch, as the next two are."""
_SELDOM = (0, 1, 4, 16)
"""Meetings of threads from one with arrivals to the next, about; 0 for none."""


class LateGroup:
    """Devices of one group, and what each sees.

    Parameters
    ----------
    count : of devices.
    seed : of the order of their work and of arrivals.
    rewrite : changes a kernel's source, for tests of what these tests find.
    """

    def __init__(self, count: int, seed: int, rewrite: Mapping[str, str] | None = None) -> None:
        self.random = random.Random(seed)
        self.rewrite = dict(rewrite or {})
        self._order = Order(seed)
        self.devices = [_LateDevice(self, number, self._order) for number in range(count)]
        self._views: list[npt.NDArray[np.float64]] = []
        self._mail: list[list[npt.NDArray[np.float64]]] = []
        self._reaches: list[npt.NDArray[Any]] = []
        self._finished = set(range(count))
        self.late = 0
        """Most stores that had not arrived when a kernel ended."""

    def draw_anew(self, seed: int) -> None:
        """Orders from here on are those of a seed."""
        self.random.seed(seed)
        self._order.draw_anew(seed)

    def open(self, backend: TiledBackend) -> None:
        """Make views of a backend that has started on these devices; of its reaches the second half are of sums."""
        memory, count = backend._memory, len(self.devices)
        division, model = backend._division, backend._facts
        n, tiles = model.n_states, backend._tiling.total
        address = memory.at["values"]
        self._spread = np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_double)), (n,))
        ends = np.cumsum(division.shares(np.diff(model.partition_ptr)))
        self._own = [slice(int(begin), int(end)) for begin, end in zip([0, *ends[:-1]], ends, strict=True)]
        self._views = [np.zeros(n) for _ in range(count)]
        self._mail = [[np.zeros(tiles) for _ in range(count)] for _ in range(count)]
        replicas = [member.at["accumulated"] for member in memory.members]
        self._reaches = []
        for d, view in enumerate(self._views):
            own, others = self._own[d], [other for other in range(count) if other != d]
            begin, nbytes = view.ctypes.data + 8 * own.start, 8 * (own.stop - own.start)
            values = [(begin, self._views[o].ctypes.data + 8 * own.start, nbytes, o, 0) for o in others]
            sums = [(self._mail[d][o].ctypes.data, replicas[o], 8 * tiles, o, 0) for o in others]
            self._reaches.append(np.array(values + sums, REACH))

    def run(self, module: Any, number: int, name: str, grid: int, block: int, args: Sequence[Any], shared: int) -> None:
        """A kernel of a device, at its views."""
        engine = np.array(args[0])
        engine["values"] = self._views[number].ctypes.data
        for other in range(len(self.devices)):
            if other != number:
                engine["replicas"][other] = self._mail[number][other].ctypes.data
        in_batch = name in _ROUNDS
        if not in_batch or len(self._finished) == len(self.devices):
            for view in self._views:
                view[:] = self._spread
        if in_batch:
            self._finished.discard(number)
        library, reaches = module._library, self._reaches[number]
        reaches["eager"][reaches.size // 2 :] = self.random.getrandbits(1)
        library.emulated_device_ends.restype = ctypes.c_ulonglong
        library.emulated_device_begins(
            ctypes.c_void_p(reaches.ctypes.data),
            *(ctypes.c_ulonglong(x) for x in (reaches.size, number, int(args[1]) if in_batch else 1 << 62)),
            ctypes.c_ulonglong(self.random.getrandbits(63)),
            ctypes.c_uint(self.random.choice(_MOST_AT_ONCE)),
            ctypes.c_uint(self.random.choice(_SELDOM)),
        )
        try:
            module.launch(name, grid, block, [engine, *args[1:]], shared=shared, seed=self.random.getrandbits(40) + 1)
        finally:
            all_that_is_late = ctypes.c_ulonglong(0 if in_batch else 1 << 63)
            self.late = max(self.late, library.emulated_device_ends(all_that_is_late))
        if not in_batch:
            self._spread[:] = self._views[number]
        elif name == "end_batch":
            self._spread[self._own[number]] = self._views[number][self._own[number]]
            self._finished.add(number)


class _LateModule:
    """Kernels of a device of the group."""

    def __init__(self, group: LateGroup, number: int, module: Any) -> None:
        self._group, self._number, self._module = group, number, module

    def launch(self, name: str, grid: int, block: int, args: Sequence[Any], shared: int = 0) -> None:
        has_engine = bool(args) and isinstance(args[0], np.ndarray) and "replicas" in (args[0].dtype.names or ())
        if has_engine and self._group._views:
            self._group.run(self._module, self._number, name, grid, block, args, shared)
        else:
            self._module.launch(name, grid, block, args, shared=shared)


class _LateDevice(EmulatedDevice):
    def __init__(self, group: LateGroup, number: int, order: Order) -> None:
        super().__init__(1 << 26, number, order)
        self._group, self._number = group, number

    def compile(
        self, source: str, defines: Mapping[str, str | int], names: Sequence[str], *, fused: bool = True
    ) -> dict[str, Any]:
        for old, new in self._group.rewrite.items():
            source = source.replace(old, new)
        module = compile_kernels(source, names, defines)
        return {name: _Kernel(self, _LateModule(self._group, self._number, module), name) for name in names}
