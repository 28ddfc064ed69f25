"""Where a solve stands, in one line: for a terminal of any width, and as key=value for a log.

remaining time    the bound in force falls exponentially: seconds = log(bound / target) / rate of its logarithm,
                  over the last third of the solve, where both halves of it fall at about the same rate
"""

from __future__ import annotations

import math
from collections import deque

from ooc_mdp.events import SolveProgress
from ooc_mdp.options import format_bytes

__all__ = ["Remaining", "bound_in_force", "clock", "fitted", "log_line", "status_line"]

_LEAST_SECONDS, _LEAST_SAMPLES = 5.0, 12
"""Of a solve, before which no remaining time is credible."""
_STEADY = 2.0
"""By how much the rates of two halves may differ."""
_SAMPLES = 4096


def bound_in_force(p: SolveProgress) -> float:
    """The bound that must come down to the target."""
    return p.residual_bound if p.stopping_rule == "residual" else p.error_bound


class Remaining:
    """Estimates how long a solve goes on, from its reports."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque(maxlen=_SAMPLES)
        """Seconds, and the logarithm of the bound in force."""

    def add(self, p: SolveProgress) -> None:
        """Take a report; one of an earlier time begins another solve."""
        if self._seen and p.seconds < self._seen[-1][0]:
            self._seen.clear()
        bound = bound_in_force(p)
        if 0 < bound < math.inf:
            self._seen.append((p.seconds, math.log(bound)))

    def seconds(self, target: float | None) -> float | None:
        """Until the bound meets the target; None while no estimate is credible."""
        if target is None or target <= 0 or len(self._seen) < _LEAST_SAMPLES:
            return None
        begin, now = self._seen[0][0], self._seen[-1][0]
        if now - begin < _LEAST_SECONDS:
            return None
        last = [seen for seen in self._seen if seen[0] >= now - (now - begin) / 3]
        middle = len(last) // 2
        if middle < 2:
            return None
        rates = [_rate(last[: middle + 1]), _rate(last[middle:])]
        slow, fast = min(rates), max(rates)
        if slow <= 0 or fast > _STEADY * slow:
            return None
        return max(self._seen[-1][1] - math.log(target), 0.0) / _rate(last)


def _rate(seen: list[tuple[float, float]]) -> float:
    """By how much the logarithm falls in a second, from the first to the last."""
    return (seen[0][1] - seen[-1][1]) / max(seen[-1][0] - seen[0][0], 1e-9)


def clock(seconds: float) -> str:
    """Seconds as 0:01:42."""
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def status_line(p: SolveProgress, rate: float, remaining: float | None) -> list[str]:
    """Parts of the line of a terminal, the most important first.

    Parameters
    ----------
    rate : bytes read in a second.
    remaining : seconds until the target is met; None where that is not known.
    """
    target = "" if p.target is None else f" (target {p.target:.1e})"
    if p.stages is not None:
        first = f"{p.stages[0]} of {p.stages[1]} stages done"
    elif p.stopping_rule == "residual":
        first = f"residual ≤ {p.residual_bound:.2e}{target}"
    else:
        first = f"error ≤ {p.error_bound:.2e}{target}" if math.isfinite(p.error_bound) else "no error is proved yet"
    return [
        first,
        *([] if remaining is None else [f"{clock(remaining)} left"]),
        f"{p.dirty} of {p.partitions} partitions dirty",
        f"{p.loads / max(p.partitions, 1):.2f} loads per partition",
        f"hit rate {p.hit_rate:.1%}",
        f"{format_bytes(int(rate))}/s",
        *([] if p.stages is not None or p.stopping_rule == "residual" else [f"residual ≤ {p.residual_bound:.1e}"]),
    ]


def fitted(parts: list[str], width: int) -> str:
    """As many parts as the width has room for, in their order; the first is cut where it alone is too long."""
    line = parts[0][: max(width, 0)]
    for part in parts[1:]:
        if len(line) + 2 + len(part) > width:
            break
        line = f"{line}, {part}"
    return line


def log_line(p: SolveProgress, rate: float, remaining: float | None) -> str:
    """The same as key=value for a log."""
    words = {
        "t": f"{p.seconds:.0f}",
        "error": f"{p.error_bound:.2e}",
        "residual": f"{p.residual_bound:.2e}",
        "target": None if p.target is None else f"{p.target:.1e}",
        "stages": None if p.stages is None else f"{p.stages[0]}/{p.stages[1]}",
        "dirty": f"{p.dirty}/{p.partitions}",
        "loads": f"{p.loads}",
        "hit": f"{p.hit_rate:.3f}",
        "read": format_bytes(p.bytes_read).replace(" ", ""),
        "rate": format_bytes(int(rate)).replace(" ", "") + "/s",
        "left": None if remaining is None else f"{remaining:.0f}",
    }
    return " ".join(f"{name}={word}" for name, word in words.items() if word is not None)
