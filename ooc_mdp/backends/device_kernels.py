"""Sweep kernels that a CUDA device can use, by the word for --kernel.

To add some (a paper's BDI or RDI, say): write the kernels in a ``.cu`` file and a backend that launches them
(`ooc_mdp.backends.base.Backend` says what it owes, above all which bounds its reports must prove), define a function
here that makes it, and enter that in :data:`DEVICE_KERNELS`. Options, command line and benchmarks take the word from
there; the gpu tests of ``tests/test_device_kernels.py`` solve with every entry. Nothing of CUDA is imported before a
backend is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from ooc_mdp.errors import OptionsError

if TYPE_CHECKING:
    from ooc_mdp.backends.base import Backend

__all__ = ["DEVICE_KERNELS", "DeviceKernels", "device_kernels"]


@dataclass(frozen=True, slots=True)
class DeviceKernels:
    """One way to sweep on a CUDA device."""

    summary: str
    """What it does, in a few words, for help and documentation."""
    backend: Callable[[int], Backend]
    """Makes the backend of a device by its number; MissingExtraError without CuPy, OptionsError without the device."""


def _tiles(device: int) -> Backend:
    from ooc_mdp.backends.cuda.device import CudaDevice
    from ooc_mdp.backends.cuda.tiles.backend import TiledBackend

    return TiledBackend(CudaDevice(device))


def _plain(device: int) -> Backend:
    from ooc_mdp.backends.cuda.simple.backend import CudaBackend

    return CudaBackend(device)


DEVICE_KERNELS: Mapping[str, DeviceKernels] = MappingProxyType(
    {
        "tiles": DeviceKernels("tiles of all resident partitions in one launch, while their inputs change", _tiles),
        "plain": DeviceKernels("Jacobi sweeps of one partition at a time, a thread a state: the measure", _plain),
    }
)
"""Words for --kernel; the first is the default."""


def device_kernels(word: str) -> DeviceKernels:
    """The entry of a word; raises OptionsError where there is none."""
    try:
        return DEVICE_KERNELS[word]
    except KeyError:
        raise OptionsError(f"unknown kernel {word!r}; there are {', '.join(DEVICE_KERNELS)}") from None
