"""What colours and contours stand for: the range of values that is shown, steps of contours, words of actions.

    shown range     least and largest value, but for values far below all others (far above, of costs): those below
                    q1 - 1.5 (q3 - q1), the lower whisker of a box plot, are cut and counted
    contours        at least twice the error bound apart, so that the exact values on neighbouring ones differ

NumPy only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import OptionsError
from ooc_mdp.model.grid_points import control_values
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.store.result import Result

__all__ = ["ActionWord", "ValueRange", "action_words", "contour_levels", "shown_actions", "value_range"]

_WHISKER = 1.5
_NARROW = 0.5
"""Values are cut only where the others span less than this share of the whole range."""
_LINES = 8
"""Contours, about."""


@dataclass(frozen=True, slots=True)
class ValueRange:
    """The values that colours tell apart."""

    low: float
    high: float
    below: float
    """Share of the finite values below `low`."""
    above: float

    @property
    def extend(self) -> str:
        """On which sides colours go on, as matplotlib's colour bars call it."""
        return {(False, False): "neither", (True, False): "min", (False, True): "max", (True, True): "both"}[
            self.below > 0, self.above > 0
        ]

    @property
    def words(self) -> str:
        """What is cut; empty where nothing is."""
        parts = [(self.below, "below"), (self.above, "above")]
        return ", ".join(f"{_percent(share)} {side}" for share, side in parts if share > 0)


def _percent(share: float) -> str:
    return f"{100 * share:.2g}%" if share >= 1e-4 else "< 0.01%"


def value_range(values: FloatArray, sense: str, limits: tuple[float, float] | None = None) -> ValueRange:
    """The range that colours show.

    Parameters
    ----------
    values : all that are drawn, in any order.
    sense : "max" or "min"; bad values are low ones or high ones.
    limits : what the user wants instead; (-inf, inf) for all values.

    Raises
    ------
    OptionsError : the limits are in the wrong order or not numbers.
    """
    finite = values[np.isfinite(values)]
    if finite.size == 0:
        return ValueRange(0.0, 1.0, 0.0, 0.0)
    least, largest = float(finite.min()), float(finite.max())
    low, high = least, largest
    if limits is not None:
        low, high = limits
        if not low < high:
            raise OptionsError(f"the limits of the colours are {low:g} and {high:g}; give the lower one first")
        low, high = max(low, least) if math.isinf(low) else low, min(high, largest) if math.isinf(high) else high
    elif sense == "min":
        high = -_whisker(-finite)
    else:
        low = _whisker(finite)
    if not low < high:  # all values are equal, or one limit is beyond them
        low, high = min(low, high) - 0.5 * _unit(low), max(low, high) + 0.5 * _unit(high)
    return ValueRange(low, high, float(np.mean(finite < low)), float(np.mean(finite > high)))


def _unit(x: float) -> float:
    return abs(x) or 1.0


def _whisker(values: FloatArray) -> float:
    """The least value, or the lower whisker where values below it take most of the range."""
    least, largest = float(values.min()), float(values.max())
    first, third = np.quantile(values, [0.25, 0.75])
    kept = values[values >= first - _WHISKER * (third - first)]
    whisker = float(kept.min())
    return whisker if third > first and largest - whisker < _NARROW * (largest - least) else least


def contour_levels(shown: ValueRange, error_bound: float) -> FloatArray:
    """float64 [k], ascending; none where the range is not twice the error bound."""
    span = shown.high - shown.low
    least = max(span / _LINES, 2.0 * error_bound)
    if not math.isfinite(least) or least <= 0.0 or least > span:
        return np.empty(0)
    power = 10.0 ** math.floor(math.log10(least))
    step = next(m * power for m in (1, 2, 5, 10, 20) if m * power >= least * (1 - 1e-12))
    return np.asarray(np.arange(math.ceil(shown.low / step), math.floor(shown.high / step) + 1) * step)


@dataclass(frozen=True, slots=True)
class ActionWord:
    """One action of the policy, as a legend calls it."""

    action: int
    words: str
    share: float
    """Of the states."""


def shown_actions(result: Result) -> npt.NDArray[np.integer]:
    """[n_states]; the source's numbers of the policy's actions, -1 where a state has none."""
    return result.solution.actions


def action_words(result: Result) -> list[ActionWord]:
    """The actions that the policy takes, in their order, by their control values where they have some."""
    shown = shown_actions(result)
    actions, counts = _counted(shown)
    controls = control_values(result.geometry, result.policy, result.solution.source_actions)
    found = []
    for a, n in zip(actions.tolist(), counts.tolist(), strict=True):
        if a < 0:
            words = "no action"
        elif controls is None:
            words = f"action {a}"
        else:
            words = _control(controls[a])
        found.append(ActionWord(a, words, n / shown.size))
    return found


def _counted(shown: npt.NDArray[np.integer]) -> tuple[IntArray, IntArray]:
    """The different numbers from -1 on, ascending, and how often each occurs."""
    if int(shown.max(initial=-1)) >= shown.size:
        actions, counts = np.unique(shown, return_counts=True)
        return actions.astype(np.int64), counts
    counts = np.bincount(shown + 1)
    actions = np.flatnonzero(counts)
    return actions - 1, counts[actions]


def _control(values: FloatArray) -> str:
    numbers = [f"{u:g}" for u in values.tolist()]
    return f"control {numbers[0]}" if len(numbers) == 1 else f"control ({', '.join(numbers)})"
