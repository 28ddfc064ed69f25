"""Controls over time for a plot: lines where they are held, bands where they switch faster than a plot can show.

___      ____            a line where a control is held for a while
   |____|    ▒▒▒▒▒▒      a band from the least to the largest value where it chatters, and its mean
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ooc_mdp.model.mdp import FloatArray

__all__ = ["ControlLines", "control_lines"]

_WINDOWS = 150
"""Parts of the plotted time in which switches are counted."""
_REACH = 2
"""Parts on either side of one that are counted with it."""
_CHATTER = 3
"""Switches in so many parts from which on they are a band: three in 5 parts, a thirtieth of the plot."""


@dataclass(frozen=True, slots=True, eq=False)
class ControlLines:
    """One component of the control of one run."""

    held: FloatArray
    """float64 [m]; at the times of the samples, NaN inside bands."""
    middles: FloatArray
    """float64 [k]; of the parts of the time."""
    low: FloatArray
    """float64 [k]; least value around each part, NaN outside bands."""
    high: FloatArray
    mean: FloatArray


def control_lines(times: FloatArray, values: FloatArray, duration: float) -> ControlLines:
    """Lines and bands of a control.

    Parameters
    ----------
    times : float64 [m], ascending, in equal steps.
    values : float64 [m]; held from each time on.
    duration : of the time that the whole plot shows.
    """
    width = max(duration, 1e-300) / _WINDOWS
    part = np.minimum((times / width).astype(np.int64), _WINDOWS - 1)
    switches = np.bincount(part[1:][np.diff(values) != 0], minlength=_WINDOWS)
    around = np.convolve(switches, np.ones(2 * _REACH + 1, np.int64), "same")
    chatters = (around >= _CHATTER) & (np.arange(_WINDOWS) <= part[-1])
    low, high, mean = (np.full(_WINDOWS, np.nan) for _ in range(3))
    for k in np.flatnonzero(chatters).tolist():
        near = values[np.searchsorted(part, k - _REACH) : np.searchsorted(part, k + _REACH, "right")]
        low[k], high[k], mean[k] = near.min(), near.max(), near.mean()
    held = np.where(chatters[part], np.nan, values)
    middles = np.asarray((np.arange(_WINDOWS) + 0.5) * width, np.float64)
    return ControlLines(held, middles, low, high, mean)
