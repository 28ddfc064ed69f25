"""The mountain car on integers: position and velocity in steps of 1/Z, both exact, every move deterministic.

    v' = bound(v + 0.001 u - 0.0025 cos 3x),    x' = bound(x + v'),    state (H(Z v'), H(Z x')),    u = -1, 0, 1

with -1.2 <= x <= 0.5, -0.07 <= v <= 0.07 and H rounding to the nearest integer. A step costs 1; the least cost is the
shortest time to the right bound, whose states are terminal.

    state        0         1       ...   1.7 Z     1.7 Z + 1  ...
    velocity   -0.07     -0.07     ...   -0.07     -0.07 + 1/Z          outer axis
    position    -1.2   -1.2 + 1/Z  ...     0.5       -1.2                inner axis

Sources: S. P. Singh, R. S. Sutton, *Reinforcement learning with replacing eligibility traces*, Machine Learning 22,
1996 (dynamics and bounds; the velocity becomes 0 at the left bound, the right one ends the trial). T. Inamoto,
Y. Higami, S. Kobayashi, on the time taken by convergence tests of infinite-stage dynamic programming on GPUs (in
Japanese), section 6.1 and equation 18: both variables times Z = 10,000, about 24 million states, three decisions,
least time, and velocity as X1 with position as X2, since a step changes the position more often than the velocity
and neighbouring threads shall read neighbouring values.

We read:

- A step starts from the integers, is computed in real numbers, and both of its results are rounded once, at the
  end: x' is found with the v' that is not rounded yet. Halves round up.
- A bound is reached where the rounded position is on it. So the goal is also reached from within half a step of it.
- Equation 18 multiplies X1's offset by X2's largest less its smallest value, which is one position short of a
  bijection; here that factor is the number of positions, 1.7 Z + 1. That gives 1,401 x 17,001 states.
- The equations pay C(s') on arrival and would make the last step free; here each step costs 1, the last one too, so
  a state from which the goal is T steps away is worth (1 - discount**T) / (1 - discount).
- Decisions are numbered 0, 1, 2 for u = -1, 0, 1.

Worlds with Z below 500 are for tests only. There a step's thrust is less than half a step of velocity and rounding
takes it away: from rest at the bottom of the valley the goal cannot be reached at all (counted breadth first at 100,
200, 300 and 400; from every state of 500, 1,000 and 10,000 it can, in at most 112 steps).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numba
import numpy as np

from ooc_mdp.errors import OptionsError
from ooc_mdp.model.mdp import IntArray, Rows
from ooc_mdp.problems.parameters import check_states, in_range
from ooc_mdp.problems.problem import LabelFunction, RowBounds

__all__ = ["IntegerMountainCar", "IntegerMountainCarOptions"]

_SMALLEST_SCALE = 100
_LARGEST_SCALE = 10**9
"""Keeps the number of transitions inside int64 and every integer of a step exact in float64."""


@dataclass(frozen=True, slots=True)
class IntegerMountainCarOptions:
    """How fine the integers are."""

    scale: int = 10_000
    """Z: steps a unit of position and of velocity; a multiple of 100, so that the bounds are integers."""

    def __post_init__(self) -> None:
        in_range("integer-mountain-car", "scale", self.scale, _SMALLEST_SCALE, _LARGEST_SCALE)
        if self.scale % 100:
            raise OptionsError(
                f"problem 'integer-mountain-car': scale = {self.scale} is no multiple of 100, so the bounds -1.2, 0.5"
                f" and 0.07 would fall between integers; give {self.scale - self.scale % 100} or the like"
            )


class IntegerMountainCar:
    """The integer mountain car as a :class:`~ooc_mdp.problems.problem.Problem`."""

    sense = "min"
    dyadic_probabilities = True
    default_dtype: Literal["float32", "float64"] = "float32"

    def __init__(self, options: IntegerMountainCarOptions) -> None:
        self.name = "integer-mountain-car"
        self.options = options
        hundredths = options.scale // 100
        self._left, self._right, self._fastest = -120 * hundredths, 50 * hundredths, 7 * hundredths
        self._positions = self._right - self._left + 1
        velocities = 2 * self._fastest + 1
        self.n_states = velocities * self._positions
        self.shape: tuple[int, ...] | None = (velocities, self._positions)

    @property
    def row_bounds(self) -> RowBounds:
        """3 actions a state, none in a goal; one transition each."""
        return RowBounds(3, 1, uniform_successors=True)

    def rows(self, states: IntArray) -> Rows:
        """Rows of `states` (int64 [n]): 3 of one transition for each state that is no goal, none for a goal."""
        states = check_states(states, self.n_states, self.name)
        moving = states % self._positions != self._positions - 1
        action_ptr = np.zeros(states.size + 1, np.int64)
        np.cumsum(3 * moving, out=action_ptr[1:])
        successors = _successors(states, action_ptr, self.options.scale, self._left, self._right, self._fastest)
        n = successors.size
        return Rows(action_ptr, np.arange(n + 1, dtype=np.int64), successors, np.ones(n), np.ones(n))

    @property
    def labels(self) -> dict[str, LabelFunction]:
        """`goal`: the states at the right bound."""
        return {"goal": lambda states: states % self._positions == self._positions - 1}

    def parameters(self) -> dict[str, int | float | str | bool]:
        """Every option."""
        return asdict(self.options)

    def geometry(self) -> dict[str, Any]:
        """Velocity and position, in Singh and Sutton's units."""
        bounds = {"velocity": (-0.07, 0.07), "position": (-1.2, 0.5)}
        return {
            "axes": [
                {"name": name, "low": low, "high": high, "periodic": False, "unit": ""}
                for name, (low, high) in bounds.items()
            ]
        }


@numba.njit(cache=True, nogil=True)
def _successors(states, action_ptr, scale, left, right, fastest):  # type: ignore[no-untyped-def]
    """int64 [m]: the successor of each row; left, right, fastest are the bounds times the scale.

    All of it in steps of 1/scale, where the thrust scale / 1000 and the bounds are exact or rounded once: where a
    half comes up, as under the steepest gravity at x = 0, it does not depend on how a product was rounded.
    """
    successors = np.empty(action_ptr[-1], np.int64)
    positions = right - left + 1
    thrust, pull = scale / 1000.0, scale / 400.0
    for i in range(states.size):
        if action_ptr[i] == action_ptr[i + 1]:
            continue
        velocity, position = divmod(states[i], positions)
        v, x = velocity - fastest, position + left
        gravity = pull * np.cos(3.0 * x / scale)
        for a in range(3):
            faster = min(max(v + (a - 1) * thrust - gravity, -float(fastest)), float(fastest))
            reached = min(max(x + faster, float(left)), float(right))
            to_v, to_x = np.int64(np.floor(faster + 0.5)), np.int64(np.floor(reached + 0.5))
            if to_x == left:
                to_v = np.int64(0)
            successors[action_ptr[i] + a] = (to_v + fastest) * positions + to_x - left
    return successors
