"""Memory as arithmetic: every buffer of a solve by name, before it is allocated.

Whoever adds a buffer to the solver adds it here; a test holds the measured peak against the total.
"""

from __future__ import annotations

from dataclasses import dataclass

from ooc_mdp.options import format_bytes

__all__ = ["MemoryPlan"]


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What a solve will hold at most."""

    host: dict[str, int]
    """Bytes in RAM by name."""
    device: dict[str, int]
    """Bytes on the accelerator by name; empty on the CPU."""

    @property
    def device_bytes(self) -> int:
        """Sum on the accelerator."""
        return sum(self.device.values())

    def describe(self) -> str:
        """One line for each memory."""
        lines = []
        for place, items in (("RAM", self.host), ("device", self.device)):
            if items:
                parts = " + ".join(f"{name} {format_bytes(size)}" for name, size in items.items())
                lines.append(f"memory plan, {place}: {parts} = {format_bytes(sum(items.values()))}")
        return "\n".join(lines)
