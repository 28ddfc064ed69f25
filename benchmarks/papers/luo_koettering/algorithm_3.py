"""Algorithm 3 of the paper, its version for several GPUs: tables in one range of addresses, a launch for each state.

    T, R              | states of device 0 | states of device 1 | ...   one range of addresses, read by all devices
    values, maxima    on the last device
    an iteration      a launch for each state, on its device ─ wait for all ─ one launch over all states ─ wait for all

The paper's range is managed memory, whose pages move to the device that reads them; here they are where they are read
from the beginning. All launches come from the host, as there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from models import DISCOUNT, DenseModel

from ooc_mdp.backends.cuda.device import Device
from ooc_mdp.backends.cuda.group import DeviceGroup
from ooc_mdp.model.mdp import FloatArray

__all__ = ["Algorithm3", "cuts_of"]

_THREADS = 256


def cuts_of(states: int, devices: int) -> list[int]:
    """The first state of each device, and the number of all states."""
    return [states * device // devices for device in range(devices + 1)]


class Algorithm3:
    """Iterations from values of 0.

    Parameters
    ----------
    devices : of one group.
    """

    what = "algorithm 3"

    def __init__(self, model: DenseModel, devices: Sequence[Device]) -> None:
        self._model, self._group = model, DeviceGroup(devices)
        self._streams = self._group.streams()
        source = Path(__file__).with_name("tree_reductions.cu").read_text()
        names = "reduce_block", "reduce_states"
        kernels = [device.compile(source, {}, names, fused=False) for device in devices]
        self._reduce_block = [kernel["reduce_block"] for kernel in kernels]
        self._reduce_states = kernels[-1]["reduce_states"]
        self._blocks = -(-model.actions // _THREADS)
        self._second = 1 << (self._blocks - 1).bit_length()
        self._cuts = cuts_of(model.states, len(devices))
        self._transitions, self._rewards = self._table(), self._table()
        self._values, self._maxima = (self._on_the_last(8 * model.states * count) for count in (1, self._blocks))
        sizes = np.int64(model.states), np.int64(model.actions), np.float64(DISCOUNT)
        self._of_states = [
            (np.uint64(transitions), np.uint64(rewards), np.uint64(self._values), np.uint64(maxima), *sizes)
            for transitions, rewards, maxima in zip(
                self._transitions,
                self._rewards,
                range(self._maxima, self._maxima + 8 * self._blocks * model.states, 8 * self._blocks),
                strict=True,
            )
        ]
        self._of_all = np.uint64(self._maxima), np.uint64(self._values), np.int64(self._blocks)

    def _whole_pages(self, nbytes: int) -> int:
        return -(-nbytes // self._group.page) * self._group.page

    def _table(self) -> list[int]:
        """Addresses of the states' parts of a table; each device's part of the range begins with its first state's."""
        each, states = self._model.transitions[0].nbytes, np.diff(self._cuts).tolist()
        parts = [self._whole_pages(each * count) for count in states]
        begin, found = self._group.allocate_spread(parts), []
        for part, count in zip(parts, states, strict=True):
            found += [begin + each * i for i in range(count)]
            begin += part
        return found

    def _on_the_last(self, nbytes: int) -> int:
        return self._group.allocate_spread([0] * (len(self._group) - 1) + [self._whole_pages(nbytes)])

    def load(self) -> None:
        """Copy both tables, each device's part to it."""
        for stream, begin, end in zip(self._streams, self._cuts, self._cuts[1:], strict=False):
            if begin < end:
                stream.upload(self._transitions[begin], self._model.transitions[begin:end])
                stream.upload(self._rewards[begin], self._model.rewards[begin:end])
        self._wait()

    def start(self) -> None:
        """Values of 0."""
        self._streams[-1].clear(self._values, 8 * self._model.states)
        self._wait()

    def step(self) -> None:
        """One iteration; devices take turns at the launches of their next states."""
        ranges = list(zip(self._cuts, self._cuts[1:], self._streams, self._reduce_block, strict=False))
        for k in range(max(end - begin for begin, end, _, _ in ranges)):
            for begin, end, stream, reduce_block in ranges:
                if begin + k < end:
                    reduce_block(stream, self._blocks, _THREADS, self._of_states[begin + k], 8 * _THREADS)
        self._wait()
        self._reduce_states(self._streams[-1], self._model.states, self._second, self._of_all, 8 * self._second)
        self._wait()

    def _wait(self) -> None:
        for stream in self._streams:
            stream.wait()

    def values(self) -> FloatArray:
        """float64 [states]."""
        found = np.empty(self._model.states)
        self._streams[-1].download(found, self._values)
        self._wait()
        return found

    def close(self) -> None:
        """Free everything."""
        self._group.free_all()
