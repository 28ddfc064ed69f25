"""Algorithm 2 of the paper: T(s,:,:) and R(s,:,:) go to the device for every state in every iteration.

    host: T, R of all states ── copy of state s ─▶ device: T(s,:,:), R(s,:,:) ─ two launches ─▶ V'(s)

It fits no kernel's contract, since those sweep partitions that are on the device, and stands here alone. The host's
memory is pageable, as in C; the host waits after each of both launches, as the paper's does. The device's memory is
allocated once; the paper does so for every state.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from models import DISCOUNT, DenseModel

from ooc_mdp.backends.cuda.device import CudaDevice
from ooc_mdp.model.mdp import FloatArray

__all__ = ["StateByState"]

_THREADS = 256


class StateByState:
    """Iterations from values of 0."""

    what = "state by state"

    def __init__(self, model: DenseModel, device: int) -> None:
        self._model, self._device = model, CudaDevice(device)
        source = Path(__file__).with_name("tree_reductions.cu").read_text()
        kernels = self._device.compile(source, {}, ("reduce_block", "reduce_states"), fused=False)
        self._reduce_block, self._reduce_states = kernels["reduce_block"], kernels["reduce_states"]
        self._stream = self._device.stream()
        n, table = model.states, model.transitions[0].nbytes
        self._blocks = -(-model.actions // _THREADS)
        self._second = 1 << (self._blocks - 1).bit_length()
        sizes = table, table, 8 * self._blocks, 8 * n, 8 * n
        addresses = [np.uint64(self._device.allocate(size)) for size in sizes]
        self._transitions, self._rewards, self._maxima, self._values, self._after = addresses
        self.start()

    def start(self) -> None:
        """Values of 0."""
        self._stream.clear(int(self._values), 8 * self._model.states)
        self._stream.wait()

    def step(self) -> None:
        """One iteration."""
        sizes = np.int64(self._model.states), np.int64(self._model.actions), np.float64(DISCOUNT)
        arguments = (self._transitions, self._rewards, self._values, self._maxima, *sizes)
        for s in range(self._model.states):
            self._send(s)
            self._reduce_block(self._stream, self._blocks, _THREADS, arguments, 8 * _THREADS)
            self._stream.wait()
            value = self._after + np.uint64(8 * s)
            second = self._maxima, value, np.int64(self._blocks)
            self._reduce_states(self._stream, 1, self._second, second, 8 * self._second)
            self._stream.wait()
        self._values, self._after = self._after, self._values

    def send_all(self) -> None:
        """The copies of one iteration and nothing else."""
        for s in range(self._model.states):
            self._send(s)
            self._stream.wait()

    def _send(self, s: int) -> None:
        self._stream.upload(int(self._transitions), self._model.transitions[s])
        self._stream.upload(int(self._rewards), self._model.rewards[s])

    def values(self) -> FloatArray:
        """float64 [states]."""
        found = np.empty(self._model.states)
        self._stream.download(found, int(self._values))
        self._stream.wait()
        return found

    def close(self) -> None:
        """Free everything."""
        self._device.free_all()
