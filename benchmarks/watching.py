"""What whoever watches a long benchmark is told, on stderr: a line now, or where a solve stands every ten seconds."""

from __future__ import annotations

import sys
import time

from ooc_mdp.events import SolveProgress
from ooc_mdp.options import format_bytes

__all__ = ["ProgressLine", "say"]

_SECONDS = 10.0


def say(text: str) -> None:
    """A line for whoever watches."""
    print(text, file=sys.stderr, flush=True)


class ProgressLine:
    """A solve's watcher: says where it stands, every ten seconds."""

    def __init__(self) -> None:
        self._said = time.monotonic()

    def __call__(self, at: SolveProgress) -> None:
        """Print the line if it is time."""
        now = time.monotonic()
        if now - self._said >= _SECONDS:
            self._said = now
            say(
                f"{at.seconds:6.1f} s  error {at.error_bound:.3g}, residual {at.residual_bound:.3g}, {at.dirty} of "
                f"{at.partitions} dirty, {at.loads / at.partitions:.2f} loads a partition, "
                f"{format_bytes(at.bytes_read)} read"
            )
