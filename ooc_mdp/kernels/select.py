"""Choose a backend by the word for --device."""

from __future__ import annotations

import re

from ooc_mdp.errors import OptionsError
from ooc_mdp.kernels.base import Backend
from ooc_mdp.options import SweepOrder

__all__ = ["select_backend"]


def select_backend(device: str, sweep_order: SweepOrder = "alternating") -> Backend:
    """The backend for "cpu", "cuda:N" or "auto"; a CUDA device sweeps all states at once, in no order.

    Raises
    ------
    OptionsError : no such word, or no such device.
    MissingExtraError : CuPy is not installed and a CUDA device was asked for by name.
    """
    from ooc_mdp.kernels.cpu import CpuBackend

    if device == "cpu":
        return CpuBackend(sweep_order)
    match = re.fullmatch(r"cuda(?::(\d+))?", device)
    if match is None and device != "auto":
        raise OptionsError(f"unknown device {device!r}; there are cpu, cuda:0 (or another number), and auto")
    from ooc_mdp.kernels.cuda import CudaBackend, device_count

    if match is not None:
        return CudaBackend(int(match[1] or 0))
    return CudaBackend(0) if device_count() > 0 else CpuBackend(sweep_order)
