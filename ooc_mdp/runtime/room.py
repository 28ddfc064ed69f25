"""What a machine has free for work that is planned: RAM, and disk where its output is to be written."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from ooc_mdp.runtime.memory import available_bytes

__all__ = ["Room"]


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
