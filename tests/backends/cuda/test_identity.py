"""Identifiers of devices: by number, and the same in every process of a host."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from typing import Any

import pytest

from ooc_mdp.backends.cuda import identity
from ooc_mdp.backends.cuda.identity import device_uuids


class Library:
    """A driver that knows two devices."""

    def cuDeviceGetUuid_v2(self, uuid: Any, number: int) -> int:
        ctypes.memmove(uuid, bytes([number, 0, *range(14)]), 16)
        return 0 if number < 2 else 101

    def cuGetErrorString(self, status: int, text: Any) -> None:
        text._obj.value = b"invalid device ordinal"


def test_each_device_has_the_identifier_that_the_driver_gives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "cuda_library", Library)
    monkeypatch.setattr(identity, "device_count", lambda: 2)
    rest = bytes(range(14)).hex()
    assert device_uuids() == (f"0000{rest}", f"0100{rest}")
    monkeypatch.setattr(identity, "device_count", lambda: 3)
    with pytest.raises(RuntimeError, match="cuDeviceGetUuid_v2 failed: invalid device ordinal"):
        device_uuids()


@pytest.mark.gpu
def test_a_process_that_numbers_devices_otherwise_gives_them_the_same_identifiers() -> None:
    here = device_uuids()
    assert len(set(here)) == len(here) > 0
    visible = ",".join(map(str, reversed(range(len(here)))))
    source = "from ooc_mdp.backends.cuda.identity import device_uuids; print(*device_uuids())"
    there = subprocess.run(
        [sys.executable, "-c", source],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": visible},
        capture_output=True,
        text=True,
        check=True,
    )
    assert tuple(reversed(there.stdout.split())) == here
