"""Values that come from outside a device, and go there, between two batches of the tiled engine's sweeps.

Lists of states lie in page-locked memory of the host, where kernels read them: 16 bytes a state over the link for each
message, and no work of the host for each state. What is taken is compared with what was there on the device, tile by
tile for tiles that read it (`accumulated`), and list by list for the bounds of partitions.
"""

from __future__ import annotations

import itertools
import queue
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.cuda.device import Argument, Device, Kernel, Mark, Stream
from ooc_mdp.backends.cuda.driver import address_of
from ooc_mdp.backends.cuda.group import DeviceGroup
from ooc_mdp.backends.cuda.layout import numbers_of_encoded
from ooc_mdp.backends.cuda.tiles.division import Division
from ooc_mdp.backends.cuda.tiles.memory import TileMemory
from ooc_mdp.backends.state_lists import ListChanges, StateLists
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.state_order import GridOrder

__all__ = ["EXCHANGE_KERNELS", "PIECES_BYTES", "TileExchange"]

EXCHANGE_KERNELS = (
    "read_values",
    "gather_values",
    "take_values",
    "raise_accumulated",
    "values_at_points",
    "policy_at_points",
)
_PIECE = 4 << 20
_PIECES = 16
"""Bytes of a piece of the values on its way to the host, and how many are on their way."""
PIECES_BYTES = _PIECES * _PIECE
"""Page-locked bytes of these pieces."""
_STATES_A_BLOCK = 2048


@dataclass(frozen=True, slots=True)
class _Pinned:
    """Lists where kernels can read them."""

    partitions: npt.NDArray[np.uint32]
    ptr: IntArray
    states: IntArray
    which: npt.NDArray[np.uint32]
    """Those that a kernel is about."""
    starts: IntArray
    """Where the values of each of these begin."""
    values: FloatArray

    @classmethod
    def of(cls, lists: StateLists, device: Device) -> _Pinned:
        k, n = lists.partitions.size, lists.states.size
        types = (("u4", k), ("i8", k + 1), ("i8", n), ("u4", k), ("i8", k + 1), ("f8", n))
        own = cls(*(device.pinned(np.dtype(t).itemsize * size).view(t) for t, size in types))
        own.partitions[:], own.ptr[:], own.states[:] = lists.partitions, lists.ptr, lists.states
        return own

    def choose(self, which: IntArray) -> tuple[int, int]:
        """Have kernels work on some of the lists; the values in all of these, and most in one."""
        sizes = self.ptr[which + 1] - self.ptr[which]
        self.which[: which.size] = which
        self.starts[0] = 0
        np.cumsum(sizes, out=self.starts[1 : which.size + 1])
        return int(self.starts[which.size]), int(sizes.max(initial=0))


class TileExchange:
    """The exchange of one model's values.

    Parameters
    ----------
    streams : of the sweeps, one on each device of the group. The first device reads and writes all values.
    kernels : `EXCHANGE_KERNELS` and `end_batch` of each device.
    tiles : of the model.
    division : says where values and policy of a state are.
    """

    def __init__(
        self,
        group: DeviceGroup,
        streams: Sequence[Stream],
        kernels: Sequence[Mapping[str, Kernel]],
        memory: TileMemory,
        tiles: int,
        division: Division,
    ) -> None:
        self._group, self._streams, self._memory = group, streams, memory
        self._kernels_of, self._kernels, self._stream = kernels, kernels[0], streams[0]
        self._engine, self._at = memory.members[0].engine, memory.members[0].at
        self._tiles, self._division = tiles, division
        self._lists: weakref.WeakKeyDictionary[StateLists, _Pinned] = weakref.WeakKeyDictionary()
        self._pieces: list[npt.NDArray[np.uint8]] = []

    def read(self, states: IntArray) -> FloatArray:
        """Values of states, half a million at a time."""
        found = np.empty(states.size)
        numbers, values = self._pages()[0].view(np.int64), self._pages()[1].view(np.float64)
        for start in range(0, states.size, numbers.size):
            count = min(numbers.size, states.size - start)
            numbers[:count] = states[start : start + count]
            arguments = (self._engine, _address(numbers), _address(values), np.uint32(count))
            self._kernels["read_values"](self._stream, -(-count // 256), 256, arguments)
            self._stream.wait()
            found[start : start + count] = values[:count]
        return found

    def gather(self, lists: StateLists, which: IntArray) -> FloatArray:
        """Values of some of the lists, one after the other."""
        own = self._pinned(lists)
        count, longest = own.choose(which)
        if count:
            self._launch("gather_values", own, which.size, longest, ())
            self._stream.wait()
        return own.values[:count].copy()

    def write_lists(self, lists: StateLists, which: IntArray, values: FloatArray) -> ListChanges:
        """New values of some of the lists."""
        own, k = self._pinned(lists), which.size
        count, longest = own.choose(which)
        found = np.zeros((k, 3), np.uint64)
        if count:
            own.values[:count] = values
            self._stream.clear(self._at["work_list"], 4 * self._tiles)
            self._stream.clear(self._at["report"], found.nbytes)
            self._launch("take_values", own, k, longest, (np.uint64(self._at["report"]),))
            arguments = (self._engine, _address(own.partitions), _address(own.which))
            self._kernels["raise_accumulated"](self._stream, k, 256, arguments)
            self._stream.download(found, self._at["report"])
            self._group.meet(self._streams)
            for kernel_of, stream, member in zip(self._kernels_of, self._streams, self._memory.members, strict=True):
                kernel_of["end_batch"](stream, 1, 1, (member.engine, np.int32(1)))
            for stream in self._streams:
                stream.wait()
        up, down, highest = numbers_of_encoded(found).T
        return ListChanges(np.maximum(up, 0.0), np.maximum(down, 0.0), highest)

    def _launch(self, kernel: str, own: _Pinned, k: int, longest: int, more: tuple[np.uint64, ...]) -> None:
        parts = -(-longest // _STATES_A_BLOCK)
        where: list[npt.NDArray[Any]] = [own.partitions, own.ptr, own.states, own.which, own.starts, own.values]
        addresses = [np.uint64(address_of(array)) for array in where]
        arguments: list[Argument] = [self._engine, *addresses, np.uint32(parts), *more]
        self._kernels[kernel](self._stream, k * parts, 256, arguments)

    def _pinned(self, lists: StateLists) -> _Pinned:
        own = self._lists.get(lists)
        if own is None:
            own = self._lists[lists] = _Pinned.of(lists, self._group.devices[0])
        return own

    def copy(self, name: str, first: int, host: npt.NDArray[Any]) -> None:
        """Bring values or policy of successive states, from the first on, in store order."""
        source, held = self._memory.at[name], self._held(name)

        def launch(numbers: npt.NDArray[Any], start: int) -> Sequence[Mark]:
            begin = first + start
            for stored, at, count in self._division.pieces(begin, begin + numbers.size):
                self._download(numbers[stored - begin :][:count], source + at * held.itemsize)
            return [stream.mark() for stream in self._streams]

        self._in_pieces(host, held, launch)

    def copy_points(self, name: str, order: GridOrder, host: npt.NDArray[Any]) -> None:
        """Bring values or policy of all states in the C order of the grid; kernels reorder them.

        Reordering on the host means writing short rows of blocks, which took twice as long.
        """
        grid, members = _numbers_of(order), zip(self._memory.members, self._kernels_of, self._streams, strict=True)
        turns = itertools.cycle(list(members))
        for member, stream in zip(self._memory.members, self._streams, strict=True):
            stream.upload(member.at["grid"], grid)

        def launch(numbers: npt.NDArray[Any], start: int) -> Sequence[Mark]:
            member, kernels, stream = next(turns)
            arguments = (member.engine, np.int64(start), _address(numbers), np.uint32(numbers.size))
            kernels[f"{name}_at_points"](stream, -(-numbers.size // 256), 256, arguments)
            return [stream.mark()]

        self._in_pieces(host, self._held(name), launch)

    def _held(self, name: str) -> np.dtype[Any]:
        """Type of values or policy on devices."""
        return self._memory.choice if name == "policy" else np.dtype(np.float64)

    def _in_pieces(
        self,
        host: npt.NDArray[Any],
        held: np.dtype[Any],
        launch: Callable[[npt.NDArray[Any], int], Sequence[Mark]],
    ) -> None:
        """Fill an array through page-locked pieces, several of which are on their way at a time.

        Parameters
        ----------
        held : type of the array's elements on the devices.
        launch : has devices fill a piece, given its place in the array, and tells when that is done.
        """
        size = _PIECE // held.itemsize
        for stream in self._streams:  # what was launched may still change them
            stream.wait()
        idle: queue.SimpleQueue[npt.NDArray[np.uint8]] = queue.SimpleQueue()
        for page in self._pages():
            idle.put(page)

        def place(page: npt.NDArray[np.uint8], start: int, arrived: Sequence[Mark]) -> None:
            try:
                for mark in arrived:
                    mark.wait()
                piece = host[start : start + size]
                piece[:] = page.view(held)[: piece.size]
            finally:
                idle.put(page)

        with ThreadPoolExecutor(_PIECES) as pool:
            placed = []
            for start in range(0, host.size, size):
                page = idle.get()
                marks = launch(page.view(held)[: min(size, host.size - start)], start)
                placed.append(pool.submit(place, page, start, marks))
            for done in placed:
                done.result()

    def _download(self, part: npt.NDArray[Any], source: int) -> None:
        for piece in self._group.pieces(source, part.nbytes):
            begin = (piece.at - source) // part.itemsize
            self._streams[piece.member].download(part[begin : begin + piece.nbytes // part.itemsize], piece.at)

    def _pages(self) -> list[npt.NDArray[np.uint8]]:
        """Page-locked pieces, made when they are first asked for."""
        if not self._pieces:
            self._pieces = [self._group.devices[0].pinned(_PIECE) for _ in range(_PIECES)]
        return self._pieces


def _address(array: npt.NDArray[Any]) -> np.uint64:
    return np.uint64(address_of(array))


def _numbers_of(order: GridOrder) -> IntArray:
    """int64; the grid as kernels read it: axes, and of each, the last first, its points, its blocks, and its edges."""
    axes = [(n, edges.size - 1, *edges) for n, edges in zip(order.shape, order.edges, strict=True)]
    return np.array([len(axes), *(number for axis in axes[::-1] for number in axis)], np.int64)
