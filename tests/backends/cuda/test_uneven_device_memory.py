"""A device's memory plan is a promise for uneven partitions, too: what is allocated against what was planned."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tiled_engine import MakeDevice
from uneven_models import UNEVEN, write_uneven

import ooc_mdp
from ooc_mdp.backends.cuda.device import CudaDevice
from ooc_mdp.backends.cuda.tiles.backend import TiledBackend
from ooc_mdp.errors import MemoryBudgetError
from ooc_mdp.options import RunOptions, SolveOptions
from ooc_mdp.solver import local as solver
from ooc_mdp.store import Store

SLACK = 20 << 20


class Counted:
    """A device that counts the bytes that are allocated on it, and those that its driver no longer has."""

    def __init__(self, device: Any) -> None:
        self._device, self._sizes = device, dict[int, int]()
        self._free = device.memory_free()
        self.peak = self.driver_peak = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def allocate(self, nbytes: int) -> int:
        at: int = self._device.allocate(nbytes)
        self._sizes[at] = nbytes
        self.peak = max(self.peak, sum(self._sizes.values()))
        self.driver_peak = max(self.driver_peak, self._free - self._device.memory_free())
        return at

    def free(self, at: int) -> None:
        self._device.free(at)
        del self._sizes[at]

    def free_all(self) -> None:
        self._device.free_all()
        self._sizes.clear()


def uneven_store(shape: str, folder: Path, scale: int) -> Store:
    write_uneven(shape, folder / "m.npz", scale)
    return ooc_mdp.convert(folder / "m.npz", folder / "s", partition_size=max((64 << 10) // scale, 1 << 10), threads=1)


@pytest.mark.parametrize("shape", UNEVEN)
def test_a_device_allocates_what_was_planned_for_uneven_partitions(
    shape: str, tmp_path: Path, device: MakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Counted(device())
    on_gpu = isinstance(counted._device, CudaDevice)
    alone = "PYTEST_XDIST_WORKER" not in os.environ  # other processes take memory of the device, too
    store = uneven_store(shape, tmp_path, 1 if on_gpu else 400)
    monkeypatch.setattr(solver, "select_backend", lambda *_, **__: TiledBackend(counted))
    with pytest.raises(MemoryBudgetError, match=r"raise --device-memory to at least \d+") as refused:
        solver.solve(store, SolveOptions(0.5, device="cuda:0", residual=0.5, device_memory=1), RunOptions())
    assert counted.peak == 0
    least = int(str(refused.value).split("to at least ")[1].split(",")[0])
    for budget in (least + least // 2, 4 * least):
        options = SolveOptions(0.5, device="cuda:0", residual=0.5, method="p-eva", device_memory=budget)
        solution = solver.solve(store, options, RunOptions(time_limit=5.0 if on_gpu else None))
        planned = sum((solution.memory_plan or {})["device"].values())
        assert counted.peak <= planned <= budget
        if on_gpu and alone:
            assert counted.driver_peak <= 1.05 * planned + SLACK
