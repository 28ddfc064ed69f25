"""Where a cluster's workers run: their machines, whether their versions are ours, and which device each has."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ooc_mdp.distributed.endpoint import describe
from ooc_mdp.errors import OptionsError

__all__ = ["PACKAGES", "Devices", "Host", "host_of", "use_devices"]

_EXACT = ("ooc-mdp", "distributed")
"""Packages of which all processes must have the same version."""
_MINOR = ("python", "numpy", "numba", "zarr", "numcodecs")
"""The same, apart from the last number of the version."""
PACKAGES = (*_EXACT, *_MINOR[1:])
"""Whose versions workers describe."""


@dataclass(frozen=True, slots=True)
class Host:
    """Where a worker runs."""

    address: str
    name: str
    """Of the machine."""
    cores: int
    devices: int
    """CUDA devices that it sees."""
    visible: str | None
    """CUDA_VISIBLE_DEVICES."""
    differs: list[str] = field(default_factory=list)
    """Versions that are not ours, in words."""


def host_of(address: str, facts: dict[str, Any]) -> Host:
    """The worker at an address, from what `describe` answered there."""
    ours, theirs = describe(PACKAGES)["versions"], facts["versions"]
    differs = [
        f"{address} has {package} {theirs[package]}, here is {version}"
        for package, version in ours.items()
        if not _alike(package, theirs[package], version)
    ]
    return Host(address, facts["host"], facts["cores"], facts["devices"], facts["visible"], differs)


def _alike(package: str, theirs: str, ours: str) -> bool:
    if package in _EXACT:
        return theirs == ours
    return theirs.split(".")[:2] == ours.split(".")[:2]


class Devices:
    """Which device each worker has: `device` says "cpu", "auto", or "cuda" for a GPU each.

    Workers of one machine that see the same GPUs take one each.

    Raises
    ------
    OptionsError : one GPU by its number is asked of several workers.
    """

    def __init__(self, device: str, hosts: list[Host]) -> None:
        if device.startswith("cuda:") and len(hosts) > 1:
            raise OptionsError(
                f"{device} is one device, and there are {len(hosts)} workers; give --device cuda, one each"
            )
        self._device = "cpu" if device == "auto" and not all(h.devices for h in hosts) else device
        self._taken: dict[str, tuple[Host, str]] = {}

    def of(self, host: Host) -> str:
        """The device of a worker, the same each time.

        Raises
        ------
        OptionsError : there are fewer GPUs than workers on its machine.
        """
        if self._device not in ("auto", "cuda"):
            return self._device
        if host.address not in self._taken:
            used = {d for h, d in self._taken.values() if (h.name, h.visible) == (host.name, host.visible)}
            free = [d for d in (f"cuda:{i}" for i in range(host.devices)) if d not in used]
            if not free:
                raise OptionsError(
                    f"machine {host.name} has more workers than the {host.devices} CUDA devices that they see; start "
                    f"one worker a device, or give --device cpu"
                )
            self._taken[host.address] = host, free[0]
        return self._taken[host.address][1]

    def give_back(self, host: Host) -> None:
        """The worker is lost."""
        self._taken.pop(host.address, None)


def use_devices(device: str, workers: int) -> int:
    """How many GPUs a cluster of this machine is to use, for the solve's `--device`; raises OptionsError."""
    if device == "cpu":
        return 0
    from ooc_mdp.backends.cuda.device import device_count

    devices = device_count()
    if device == "auto" and devices < workers:
        return 0
    return workers
