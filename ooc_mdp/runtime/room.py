"""What a machine has free for work that is planned: RAM, and disk where its output is to be written."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from ooc_mdp.runtime.memory import available_bytes
from ooc_mdp.sizes import format_seconds

__all__ = ["Room"]

_LONG_SECONDS = 3600.0
_LARGE_SHARE = 0.8
"""Of the free disk."""


@dataclass(frozen=True, slots=True)
class Room:
    """Free bytes of disk and memory; None where the system does not report them."""

    disk: int | None
    memory: int | None

    @classmethod
    def at(cls, output: Path) -> Room:
        """Measure the file system of an output's place, and the memory of this machine."""
        place = output.absolute()
        while not place.exists() and place != place.parent:
            place = place.parent
        try:
            disk = shutil.disk_usage(place).free
        except OSError:
            return cls(None, available_bytes())
        return cls(disk, available_bytes())

    def reasons_to_confirm(self, seconds: float, disk: int) -> list[str]:
        """Why work of so many seconds and bytes of disk must be confirmed before it begins; none if it is small."""
        reasons = []
        if seconds > _LONG_SECONDS:
            reasons.append(f"takes about {format_seconds(seconds)}")
        if self.disk is not None and disk > _LARGE_SHARE * self.disk:
            reasons.append(f"fills {disk / max(self.disk, 1):.0%} of the free disk")
        return reasons
