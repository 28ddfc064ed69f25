"""The kernel `dense` on a group of devices: rows of T are divided among them, and each has a replica of all values.

    device d    T of its states, a column for each state, its own first      values: own | those of the states after it,
                                                                                     up to the last and from state 0 on
    a pass      dense_states ─ send_values, from its replica to those of the others ─ meeting of all devices

It is the package's kernel (`ooc_mdp/backends/cuda/simple/literature/luo_dense.cu`), launched on a partition for each
device, whose halo is all other states. A pass reads one buffer of values and writes another, so that one meeting is
enough: what it sends is read in the next pass. All passes are one recorded graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from algorithm_3 import cuts_of
from models import DISCOUNT, DenseModel

from ooc_mdp.backends.cuda.device import Argument, Device, Kernel, Stream
from ooc_mdp.backends.cuda.group import DeviceGroup, Meet
from ooc_mdp.backends.cuda.simple.tables import TABLE
from ooc_mdp.backends.cuda.sources import SIMPLE, read_sources
from ooc_mdp.model.mdp import FloatArray

__all__ = ["DenseGroup"]

_THREADS, _TABLE_AT, _REWARDS = 256, 256, 4
"""Threads of a block; where T begins in the workspace, in bytes; which pointer of a table is that of its rewards."""


class _Part(NamedTuple):
    """What a device has of the model."""

    begin: int
    end: int
    stream: Stream
    kernels: dict[str, Kernel]
    transitions: FloatArray
    """[own states, actions, states], on the host."""
    workspace: int
    dense: tuple[Sequence[Argument], ...]
    """Arguments of dense_states, from the first buffer into the second, and back."""
    send: tuple[Sequence[Argument], ...]
    """Arguments of send_values for the second buffer, and for the first."""


class DenseGroup:
    """Passes from values of 0.

    Parameters
    ----------
    devices : of one group.
    """

    what = "dense"

    def __init__(self, model: DenseModel, devices: Sequence[Device]) -> None:
        self._model, self._group = model, DeviceGroup(devices)
        self._streams = self._group.streams()
        self._cuts = cuts_of(model.states, len(devices))
        self._values = [self._group.allocate_each(8 * model.states) for _ in range(2)]
        own = Path(__file__).with_name("send_values.cu").read_text()
        self._source = read_sources(*SIMPLE, "simple/literature/luo_dense.cu") + own
        self._parts = [self._part(d) for d, (begin, end) in enumerate(pairwise(self._cuts)) if begin < end]

    def _part(self, d: int) -> _Part:
        model, device, stream = self._model, self._group.devices[d], self._streams[d]
        begin, end = self._cuts[d : d + 2]
        states, halo = end - begin, model.states - (end - begin)
        transitions = np.roll(model.transitions[begin:end], -begin, axis=2) if begin else model.transitions[:end]
        rewards, policy = device.allocate(8 * states * model.actions), device.allocate(4 * model.states)
        change = device.allocate(8 * states)
        stream.upload(rewards, np.ascontiguousarray(model.rewards[begin:end, :, 0]))
        table = np.zeros(1, TABLE)
        table["pointers"][0, _REWARDS] = rewards
        table["first"], table["n"], table["h"] = begin, states, halo
        table["actions"], table["width"], table["discount"], table["sign"] = model.actions, model.states, DISCOUNT, 1.0
        descriptor, workspace = device.allocate(table.nbytes), device.allocate(_TABLE_AT + transitions.nbytes)
        stream.upload(descriptor, table.view(np.uint8))
        sent = []
        for buffer in self._values:
            others = [other for other in range(len(self._group)) if other != d]
            there = [buffer[o] + 8 * ((begin - self._cuts[o]) % model.states) for o in others]
            at = device.allocate(8 * max(len(there), 1))
            stream.upload(at, np.array(there, np.uint64))
            sent.append((np.uint64(buffer[d]), np.uint64(at), np.int64(states), np.int64(len(there))))
            stream.wait()
        first, second = (np.uint64(buffer[d]) for buffer in self._values)
        dense = [
            (np.uint64(descriptor), source, to, *map(np.uint64, (policy, change, workspace)))
            for source, to in ((first, second), (second, first))
        ]
        kernels = device.compile(
            self._source, {"INDEX": "unsigned", "REAL": "double"}, ("dense_states", "send_values"), fused=False
        )
        return _Part(begin, end, stream, kernels, transitions, workspace, tuple(dense), tuple(sent[::-1]))

    def load(self) -> None:
        """Copy the table, each device's rows to it."""
        for part in self._parts:
            part.stream.upload(part.workspace + _TABLE_AT, part.transitions)
        self._wait()

    def record(self, passes: int) -> Callable[[], None]:
        """So many passes, to be repeated at the cost of one launch."""

        def launches(meet: Meet) -> None:
            for number in range(passes):
                for part in self._parts:
                    states = part.end - part.begin
                    part.kernels["dense_states"](part.stream, states, _THREADS, part.dense[number % 2])
                    if len(self._group) > 1:
                        blocks = -(-states // _THREADS)
                        part.kernels["send_values"](part.stream, blocks, _THREADS, part.send[number % 2])
                meet()

        return self._group.graph(self._streams, launches)

    def run(self, passes: Callable[[], None]) -> None:
        """Do recorded passes, and wait for them."""
        passes()
        self._wait()

    def start(self) -> None:
        """Values of 0 in the buffer that the first pass reads."""
        for stream, at in zip(self._streams, self._values[0], strict=True):
            stream.clear(at, 8 * self._model.states)
        self._wait()

    def _wait(self) -> None:
        for stream in self._streams:
            stream.wait()

    def values(self, passes: int, device: int = 0) -> FloatArray:
        """A device's replica after so many passes, in the model's order; float64 [states]."""
        found = np.empty(self._model.states)
        self._streams[device].download(found, self._values[passes % 2][device])
        self._streams[device].wait()
        return np.roll(found, self._cuts[device])

    def close(self) -> None:
        """Free everything."""
        self._group.free_all()
