"""Memory as arithmetic: every buffer of a solve by name, before it is allocated.

Whoever adds a buffer to the solver adds it here; a test holds the measured peak against the total.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ooc_mdp.errors import MemoryBudgetError
from ooc_mdp.options import format_bytes
from ooc_mdp.runtime.memory import available_bytes

__all__ = ["PROCESS", "SMALLER", "SMALLER_PARTITIONS", "MemoryPlan"]

PROCESS = "process"
"""What a plan calls the RAM that the process has when it is made: code, and what has been read."""


SMALLER = "make the store again with smaller partitions (--partition-size, in Python partition_size)"
"""What to do where a partition is too large, whatever made the store."""
SMALLER_PARTITIONS = f"{SMALLER}, or use a machine with more memory: a state's rows stay in one partition"
"""What to do where one partition, with what is computed of it, is more than the RAM that there is."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What a solve, or another pass over a table, will hold at most."""

    host: dict[str, int]
    """Bytes in RAM by name."""
    device: dict[str, int]
    """Bytes on the accelerator by name; empty on the CPU."""
    later: Mapping[str, int] = field(default_factory=dict)
    """Bytes in RAM beside these by name, of work that a solve comes to in some cases only, one after the other."""

    @property
    def device_bytes(self) -> int:
        """Sum on the accelerator."""
        return sum(self.device.values())

    @property
    def new_bytes(self) -> int:
        """Sum in RAM of what the process does not have yet."""
        return sum(size for name, size in self.host.items() if name != PROCESS)

    def check_available(self, what: str, remedy: str) -> None:
        """Compare the plan with the RAM that the system has left.

        Parameters
        ----------
        what : the work, for the message.
        remedy : what the user can change, with the size that fits.

        Raises
        ------
        MemoryBudgetError : the plan is larger.
        """
        available = available_bytes()
        if available is not None and self.new_bytes > available:
            parts = " + ".join(f"{name} {format_bytes(size)}" for name, size in self.host.items() if name != PROCESS)
            raise MemoryBudgetError(
                f"{what} needs {format_bytes(self.new_bytes)} of RAM beside the process ({parts}), and "
                f"{format_bytes(available)} are available; {remedy}"
            )

    def describe(self) -> str:
        """One line for each memory."""
        lines = []
        for place, items in (("RAM", self.host), ("device", self.device)):
            if items:
                parts = " + ".join(f"{name} {format_bytes(size)}" for name, size in items.items())
                lines.append(f"memory plan, {place}: {parts} = {format_bytes(sum(items.values()))}")
        if self.later:
            parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in self.later.items())
            lines.append(f"beside the memory plan, if the solve comes to it: {parts}")
        return "\n".join(lines)
