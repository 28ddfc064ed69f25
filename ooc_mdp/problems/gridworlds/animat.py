"""The animat problem: an agent on a plane of cells eats as much of the food placed in it at random as it can.

    wanted = 1 - deviation,     each other direction deviation / 3,     r(s,a) = sum_s' p(s'|s,a) R(s')

with R(s') the value of the food in cell s', 0 without any; or, with `costs`, minimised C(s') = C_max - R(s'). Moves
and placing are those of :mod:`ooc_mdp.problems.gridworlds.cells`; discount and accuracy belong to the solve.

Source: T. Inamoto, Y. Higami, S. Kobayashi, on the time taken by convergence tests of infinite-stage dynamic
programming on GPUs (in Japanese), section 6.1 and equations 7 and 13-17.

The paper says:

- The state is the agent's cell and nothing else, so food cannot be used up; how the plane's two axes are numbered
  does not matter.
- The plane is 1,024 cells square, about a million states; food lies at random places; how many, of what value, and
  how likely a move goes another way than wanted are parameters, with the values of Á. Þ. Jóhannsson, *GPU-Based
  Markov Decision Process Solver*, Reykjavík University, 2009.
- The aim is the most food. The equations minimise costs 0 <= C(s') <= C_max that are incurred on arrival.

We read:

- Jóhannsson's 1024 x 1024 domains have 1,024 reward states, of 2 to 20, which are the defaults here. He has three
  kinds of dynamics and the paper does not say which; only two of them deviate, with chances 0.1 and 0.3. We take
  the larger, evenly over the three other directions (the paper speaks of a table of transition probabilities). Then
  the rows are those of `GW-1024x4` up to rounding. Actions 0, 1, 2, 3 are up, right, down, left, and a move off the
  plane stays and eats again where there is food.
- Maximising is the default. `costs` gives the equations' form with C_max the largest value of food: as the cost of
  every path shifts alike, J*(s) = C_max / (1 - discount) - V*(s) and the optimal policies are the same.
- Equation 17 with C_max in place of the largest reward bounds the sweeps of either form: it uses nothing but
  |J_1 - J_0| <= C_max. It counts as k = 0 the first sweep, so the test (15) surely holds after I + 1 sweeps.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np

from ooc_mdp.errors import OptionsError
from ooc_mdp.model.mdp import FloatArray, IntArray, Rows
from ooc_mdp.problems.counter_random import bits_below
from ooc_mdp.problems.gridworlds.cells import (
    CLOCKWISE_OF_ACTION,
    LARGEST_SEED,
    LARGEST_SIDE,
    arrival_rewards,
    cell_axes,
    cell_rewards,
    four_action_ptr,
    moves,
)
from ooc_mdp.problems.gridworlds.johannsson import reward_states
from ooc_mdp.problems.parameters import DISPLAY_DEFAULT, check_states, in_range
from ooc_mdp.problems.problem import RowBounds

__all__ = ["Animat", "AnimatOptions"]

_LARGEST_VALUE = 1e12


@dataclass(frozen=True, slots=True)
class AnimatOptions:
    """Plane, food and agent."""

    height: int = 1024
    """Rows of cells."""
    width: int = 1024
    """Columns of cells."""
    food: int = field(default=0, metadata={DISPLAY_DEFAULT: "(by the size)"})
    """Exact number of cells with food; 0 takes Jóhannsson's number of reward states for the size."""
    food_low: float = 2.0
    """Smallest value of food."""
    food_high: float = 20.0
    """Upper limit of the values, not reached unless equal to the smallest; C_max of `costs`."""
    deviation: float = 0.3
    """Chance that the agent goes another way than it wants to, 0 .. 1."""
    costs: bool = False
    """Minimise C(s') = food_high - R(s') instead of maximising R(s')."""
    seed: int = 0
    """Chooses where food lies and its values."""

    def __post_init__(self) -> None:
        in_range("animat", "height", self.height, 1, LARGEST_SIDE)
        in_range("animat", "width", self.width, 1, LARGEST_SIDE)
        in_range("animat", "food", self.food, 0, self.height * self.width)
        in_range("animat", "food_low", self.food_low, 0.0, _LARGEST_VALUE)
        in_range("animat", "food_high", self.food_high, 0.0, _LARGEST_VALUE)
        in_range("animat", "deviation", self.deviation, 0.0, 1.0)
        in_range("animat", "seed", self.seed, 0, LARGEST_SEED)
        if self.food_low > self.food_high:
            raise OptionsError(
                f"problem 'animat': food_low = {self.food_low} is above food_high = {self.food_high};"
                " give both, the smaller one as food_low"
            )


class Animat:
    """The animat problem as a :class:`~ooc_mdp.problems.problem.Problem`."""

    default_dtype: Literal["float32", "float64"] = "float64"

    def __init__(self, options: AnimatOptions) -> None:
        if options.food == 0:
            options = replace(options, food=reward_states(options.height, options.width))
        self.name = "animat"
        self.options = options
        self.sense = "min" if options.costs else "max"
        self.n_states = options.height * options.width
        self.shape: tuple[int, ...] | None = (options.height, options.width)
        outcomes = np.array([1.0 - options.deviation] + 3 * [options.deviation / 3])
        self._directions = np.ascontiguousarray(CLOCKWISE_OF_ACTION[:, outcomes > 0])
        self._probabilities = outcomes[outcomes > 0]
        self.dyadic_probabilities = bool((np.rint(outcomes * 2.0**24) == outcomes * 2.0**24).all())

    @property
    def row_bounds(self) -> RowBounds:
        """4 actions a state; outcomes that lead to one cell are one transition."""
        return RowBounds(4, self._probabilities.size, True, self._probabilities.size == 1)

    def rows(self, states: IntArray) -> Rows:
        """Rows of `states` (int64 [n]): 4 a state, each of at most 4 transitions."""
        o = self.options
        states = check_states(states, self.n_states, self.name)
        pointers, successors, masses = moves(
            states, o.height, o.width, self._directions, self._probabilities, 0.0, np.uint64(o.seed)
        )
        eaten = arrival_rewards(
            pointers,
            successors,
            masses,
            self.n_states,
            bits_below(self.n_states),
            o.food,
            o.food_low,
            o.food_high,
            np.uint64(o.seed),
        )
        # Probabilities may add up to a rounding above 1, and costs are never negative.
        rewards = np.maximum(o.food_high - eaten, 0.0) if o.costs else eaten
        return Rows(four_action_ptr(states.size), pointers, successors, masses, rewards)

    def food_values(self, states: IntArray) -> FloatArray:
        """float64 [n]: R(s), the value of the food in each of `states` (int64 [n]), 0 without any."""
        o = self.options
        cells = check_states(states, self.n_states, self.name)
        bits = bits_below(self.n_states)
        return cell_rewards(cells, self.n_states, bits, o.food, o.food_low, o.food_high, np.uint64(o.seed))

    def parameters(self) -> dict[str, int | float | str | bool]:
        """Every option, the number of cells with food resolved."""
        return asdict(self.options)

    def geometry(self) -> dict[str, Any]:
        """Rows and columns of cells."""
        return cell_axes(self.options.height, self.options.width)
