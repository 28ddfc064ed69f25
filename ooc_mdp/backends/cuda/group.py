"""The devices of one process that share a solve: memory spread over them, and launches that keep them in step.

    spread   one range of addresses   | pages of device 0 | pages of device 1 | ...   all devices read and write it
    each     a replica on every device
    graph    device 0   a ──┬─▶ c ──┬─▶   one recorded graph over all devices, with edges between them where
             device 1   b ──┴─▶ d ──┴─▶   launches meet

With one device memory is plain and a graph is the device's own: no pages, no events. Nothing here knows states,
partitions or tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from ooc_mdp.backends.cuda.device import Device, SharedPages, Stream
from ooc_mdp.backends.cuda.layout import aligned
from ooc_mdp.errors import OptionsError

__all__ = ["DeviceGroup", "Meet", "Piece", "parts_of"]

Meet = Callable[[], None]
"""From here on the launches of each device wait for those of all devices before."""


class Piece(NamedTuple):
    """A part of spread memory that lies on one device."""

    member: int
    """Of the group: the device's place in it."""
    at: int
    nbytes: int


def parts_of(ends: Sequence[int], page: int) -> list[int]:
    """Bytes of each part, in whole pages, of memory of which parts should end at some bytes.

    Parameters
    ----------
    ends : of each part, in ascending order; the last is the whole size. One part has that size, whatever a page.
    """
    if len(ends) == 1:
        return [ends[0]]
    whole = -(-ends[-1] // page) * page
    cuts = [0, *(min((end + page // 2) // page * page, whole) for end in ends[:-1]), whole]
    return [end - begin for begin, end in pairwise(cuts)]


class DeviceGroup:
    """Devices whose kernels read and write each other's memory.

    Parameters
    ----------
    devices : one or more, all different.

    Raises
    ------
    OptionsError : a device does not reach another.
    """

    def __init__(self, devices: Sequence[Device]) -> None:
        self.devices = tuple(devices)
        self.name = ", ".join(device.name for device in self.devices)
        self._pages: SharedPages | None = None
        if len(self.devices) > 1:
            self._connect()
            self._pages = self.devices[0].shared_pages(self.devices)
        self.page = 1 if self._pages is None else self._pages.page
        """Bytes of whose multiples the devices' parts of spread memory consist."""
        self._spread: dict[int, tuple[int, list[Piece]]] = {}
        """Of each range that is reserved: its bytes, and the pieces with memory."""

    def _connect(self) -> None:
        for device in self.devices:
            for other in self.devices:
                if other is not device and not device.reaches(other):
                    raise OptionsError(
                        f"{device.name} cannot read the memory of {other.name}, so they cannot share a solve; "
                        f"use one of them, or for each a Dask worker with CUDA_VISIBLE_DEVICES of its own (--scheduler)"
                    )

    def __len__(self) -> int:
        return len(self.devices)

    # ---------------------------------------------------------------------------------------------------- memory

    def parts_of(self, ends: Sequence[int]) -> list[int]:
        """Bytes on each device, in whole pages, of memory of which each device's part should end at some byte."""
        return parts_of(ends, self.page)

    def allocate_spread(self, parts: Sequence[int]) -> int:
        """Address of new memory that begins with the first device's part and ends with the last one's.

        Parameters
        ----------
        parts : bytes on each device, in whole pages; see :meth:`parts_of`.

        Raises
        ------
        MemoryError : a device has not so much memory; nothing stays allocated.
        """
        if len(parts) != len(self) or any(part % self.page for part in parts):
            raise ValueError(f"{list(parts)} are not {len(self)} parts of whole pages of {self.page} bytes")
        if self._pages is None:
            return self.devices[0].allocate(parts[0])
        whole = max(sum(parts), self.page)
        at = self._pages.reserve(whole)
        pieces: list[Piece] = []
        self._spread[at] = whole, pieces
        try:
            place = at
            for member, part in enumerate(parts):
                if part:
                    self._place(Piece(member, place, part))
                    pieces.append(Piece(member, place, part))
                place += part
            if pieces:
                self._pages.open(at, whole)
        except BaseException:
            self.free(at)
            raise
        return at

    def allocate_arrays(self, ends: Mapping[str, Sequence[int]]) -> dict[str, int]:
        """Addresses of new spread memory for arrays; on one device they lie in one allocation.

        Parameters
        ----------
        ends : bytes at which each device's part of an array should end, by the array's name; see `parts_of`.

        Raises
        ------
        MemoryError : a device has not so much memory; nothing stays allocated.
        """
        at: dict[str, int] = {}
        if self._pages is None:
            base = self.allocate_spread([sum(aligned(size) for (size,) in ends.values())])
            for name, (size,) in ends.items():
                at[name] = base
                base += aligned(size)
            return at
        try:
            for name, cuts in ends.items():
                at[name] = self.allocate_spread(self.parts_of(cuts))
        except BaseException:
            self.free_arrays(at)
            raise
        return at

    def free_arrays(self, at: Mapping[str, int]) -> None:
        """Free what `allocate_arrays` gave."""
        for address in at.values() if self._pages is not None else list(at.values())[:1]:
            self.free(address)

    def _place(self, piece: Piece) -> None:
        assert self._pages is not None
        try:
            self._pages.place(piece.at, piece.nbytes, piece.member)
        except MemoryError as error:
            device = self.devices[piece.member]
            raise MemoryError(
                f"{device.name} has {device.memory_free()} bytes free, {piece.nbytes} are needed there"
            ) from error

    def allocate_each(self, nbytes: int) -> tuple[int, ...]:
        """Addresses of new memory of one size, on each device. Raises MemoryError; nothing stays allocated then."""
        replicas: list[int] = []
        try:
            for device in self.devices:
                replicas.append(device.allocate(nbytes))
        except BaseException:
            self.free_each(replicas)
            raise
        return tuple(replicas)

    def free(self, at: int) -> None:
        """Free spread memory; nothing that uses it may be under way."""
        if self._pages is None:
            self.devices[0].free(at)
            return
        whole, pieces = self._spread.pop(at)
        for piece in pieces:
            self._pages.remove(piece.at, piece.nbytes)
        self._pages.release(at, whole)

    def free_each(self, replicas: Sequence[int]) -> None:
        """Free what `allocate_each` gave."""
        for device, at in zip(self.devices, replicas, strict=False):
            device.free(at)

    def free_all(self) -> None:
        """Free what is allocated on each device, for which a driver waits for its work, and then what is spread."""
        for device in self.devices:
            device.free_all()
        for at in list(self._spread):
            self.free(at)

    def memory_free(self) -> tuple[int, ...]:
        """Bytes that could be allocated on each device."""
        return tuple(device.memory_free() for device in self.devices)

    def pieces(self, at: int, nbytes: int) -> list[Piece]:
        """The parts of some bytes that lie on one device each, in ascending order.

        A copy, or a fill, of spread memory is one for each piece, so that it is one between two devices.
        """
        if self._pages is None:
            return [Piece(0, at, nbytes)]
        end = at + nbytes
        for start, (whole, pieces) in self._spread.items():
            if start <= at and end <= start + whole:
                cut = [(p.member, max(at, p.at), min(end, p.at + p.nbytes)) for p in pieces]
                return [Piece(member, begin, stop - begin) for member, begin, stop in cut if begin < stop]
        raise ValueError(f"{nbytes} bytes at {at:#x} are no spread memory")

    def copy(self, streams: Sequence[Stream], to: int, source: int, nbytes: int) -> None:
        """Copy spread memory to spread memory, each piece on the stream of the device that it goes to."""
        for goal in self.pieces(to, nbytes):
            for piece in self.pieces(source + goal.at - to, goal.nbytes):
                streams[goal.member].copy(to + piece.at - source, piece.at, piece.nbytes)

    def clear(self, streams: Sequence[Stream], at: int, nbytes: int) -> None:
        """Fill spread memory with zero bytes, each piece on the stream of its device."""
        for piece in self.pieces(at, nbytes):
            streams[piece.member].clear(piece.at, piece.nbytes)

    # --------------------------------------------------------------------------------------------------- launches

    def streams(self, urgent: bool = False) -> tuple[Stream, ...]:
        """A new stream on each device."""
        return tuple(device.stream(urgent) for device in self.devices)

    @staticmethod
    def meet(streams: Sequence[Stream]) -> None:
        """What comes next on each stream waits for everything so far on all of them."""
        first, *others = streams
        for stream in others:
            first.wait_for(stream)
        for stream in others:
            stream.wait_for(first)

    def graph(self, streams: Sequence[Stream], launches: Callable[[Meet], None]) -> Callable[[], None]:
        """Record launches on a stream of each device, to be repeated at the cost of one.

        Parameters
        ----------
        launches : called once, with what makes devices meet. At the beginning and at the end of each repetition all
            streams meet by themselves.
        """
        first, *others = streams

        def record() -> None:
            for stream in others:
                stream.wait_for(first)
            launches(lambda: self.meet(streams))
            for stream in others:
                first.wait_for(stream)

        repeat = self.devices[0].graph(first, record)

        def run() -> None:
            for stream in others:
                first.wait_for(stream)
            repeat()
            for stream in others:
                stream.wait_for(first)

        return run
