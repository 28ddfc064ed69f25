"""Which CUDA devices a process sees, so that processes of a host find that they see the same one.

Numbers of devices depend on CUDA_VISIBLE_DEVICES; the driver's unique identifiers do not, and differ between the parts
of a divided device (MIG), which have one address on the bus. CuPy has no call for them.
"""

from __future__ import annotations

import ctypes

from ooc_mdp.backends.cuda.device import device_count
from ooc_mdp.backends.cuda.driver import cuda_library, error_of

__all__ = ["device_uuids"]


def device_uuids() -> tuple[str, ...]:
    """Return the identifier of each device that CuPy can use, by number; none without CuPy or driver."""
    return tuple(_uuid(number) for number in range(device_count()))


def _uuid(number: int) -> str:
    uuid, library = (ctypes.c_ubyte * 16)(), cuda_library()
    status = library.cuDeviceGetUuid_v2(uuid, number)
    if status:
        raise RuntimeError(error_of(library, "cuDeviceGetUuid_v2", status))
    return bytes(uuid).hex()
