"""Kernels that sweep, by the word for --kernel: the tiled engine, and the simple kernels of the catalogue.

To add a simple kernel, see `ooc_mdp.backends.cuda.simple.literature.catalogue`: its word is here then. To add an
engine of another kind, write the kernels and a backend that launches them (`ooc_mdp.backends.base.Backend` says what it
owes, above all which bounds its reports must prove), and enter it in :data:`DEVICE_KERNELS`. Options, command line and
tests take the words from there. Nothing of CUDA is imported before a backend is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from ooc_mdp.backends.cuda.simple.literature.catalogue import SIMPLE_KERNELS, SimpleKernel
from ooc_mdp.errors import OptionsError
from ooc_mdp.options import Stopping
from ooc_mdp.quoting import quote

if TYPE_CHECKING:
    from ooc_mdp.backends.base import Backend

__all__ = ["DEVICE_KERNELS", "DeviceKernels", "device_kernels"]


@dataclass(frozen=True, slots=True)
class DeviceKernels:
    """One way to sweep."""

    summary: str
    """What it does, in a few words, for help and documentation."""
    paper: str
    """Where it is described."""
    assumptions: str
    """Which stores it takes."""
    advice: str
    """When to take it, in one line."""
    backend: Callable[[int], Backend]
    """Makes the backend of a CUDA device by its number; MissingExtraError without CuPy, OptionsError without the
    device."""
    on_cpu: Callable[[], Backend] | None = None
    """Makes the backend that computes the same on the CPU; None where there is none."""
    on_group: Callable[[Sequence[int]], Backend] | None = None
    """Makes the backend of several CUDA devices by their numbers; None where there is none. Raises as `backend` does,
    and OptionsError where the devices do not reach each other's memory."""


def _tiles(device: int) -> Backend:
    from ooc_mdp.backends.cuda.device import CudaDevice
    from ooc_mdp.backends.cuda.tiles.backend import TiledBackend

    return TiledBackend(CudaDevice(device))


def _tiles_on_group(devices: Sequence[int]) -> Backend:
    from ooc_mdp.backends.cuda.device import CudaDevice
    from ooc_mdp.backends.cuda.tiles.backend import TiledBackend

    first, *others = (CudaDevice(number) for number in devices)
    return TiledBackend(first, others=others)


def _simple(kernel: SimpleKernel, device: int) -> Backend:
    from ooc_mdp.backends.cuda.device import CudaDevice
    from ooc_mdp.backends.cuda.simple.backend import SimpleBackend

    return SimpleBackend(CudaDevice(device), kernel)


def _schedule(kernel: SimpleKernel) -> Backend:
    from ooc_mdp.backends.cpu.scheduled import ScheduledBackend

    return ScheduledBackend(kernel)


def _entry(kernel: SimpleKernel) -> DeviceKernels:
    about = kernel.summary, kernel.paper, kernel.assumptions, kernel.advice
    return DeviceKernels(*about, partial(_simple, kernel), partial(_schedule, kernel))


DEVICE_KERNELS: Mapping[str, DeviceKernels] = MappingProxyType(
    {
        "tiles": DeviceKernels(
            summary="tiles of all resident partitions in one launch, while their inputs change",
            paper="Wingate 2004, 8.5, with tiles for states",
            assumptions="any store",
            advice="The default on a CUDA device, and the only one with policy iteration.",
            backend=_tiles,
            on_group=_tiles_on_group,
        )
    }
    | {kernel.word: _entry(kernel) for kernel in SIMPLE_KERNELS}
)
"""Words for --kernel; the first is the default."""


def device_kernels(word: str, stopping: Stopping | None = None) -> DeviceKernels:
    """The entry of a word, with a test of convergence if one is given.

    Raises
    ------
    OptionsError : there is no such word, or a test is given and the kernel is not a simple one.
    """
    if word not in DEVICE_KERNELS:
        raise OptionsError(f"unknown kernel {quote(word)}; there are {', '.join(DEVICE_KERNELS)}")
    if stopping is None:
        return DEVICE_KERNELS[word]
    simple = {kernel.word: kernel for kernel in SIMPLE_KERNELS}
    if word not in simple:
        raise OptionsError(f"--stopping {stopping} is a test of simple kernels ({', '.join(simple)}); {word} is none")
    return _entry(replace(simple[word], stopping=stopping))
