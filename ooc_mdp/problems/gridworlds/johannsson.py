"""Jóhannsson's gridworlds, the GW domains, of any size.

States are the cells of a height x width grid in row-major order; an action moves to a neighbour, and a move
out of the grid stays. The action decides the direction of outcome i, which has probability p_i:

    r(s,a) = sum_i p_i R(s'_i),   paid on arrival

Outcomes that end in the same cell are one successor, so rows are shorter along the border. Cells with
rewards are found by hashing, never listed. This module solves nothing and has no discount.

Source
------
Á. Þ. Jóhannsson, *GPU-Based Markov Decision Process Solver*, M.Sc. thesis, Reykjavík University, 2009,
sections 6.1 and 6.3, table 6.1, appendix A; solved there with a discount of 0.9. Where the text leaves room
we read:

- Actions 0, 1, 2, 3 are up, right, down, left; moves off the grid stay (listing A.1, states 0 and 4095).
- One outcome: 1. Two: 0.9 in the action's direction, 0.1 clockwise of it. Four: 0.7 in the action's
  direction, 0.1 in each other. The text gives the probabilities and a wet floor as the model, but not where
  the unlikely outcomes lead; the four neighbours are the only four successors that are all one move away.
- The reward states, as many as table 6.1 says, are at random distinct places; each has a real reward,
  uniform in [2, 20). The reward belongs to the transition (section 2.1, listings 5.4, A.1, A.2) and is paid
  whenever the reward state is the successor, a move that stays there included. Reward states have four
  actions like all others and none is terminal (table 6.1's computational cost is states x 4 x successors).
- Sizes that table 6.1 does not have get one reward state in 1,024, its density at 1024 x 1024.
- Section 6.3 makes a share of the successors random states: here each outcome is replaced with that chance
  by a state drawn uniformly.
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
    arrival_rewards,
    cell_axes,
    cell_rewards,
    check_grid,
    four_action_ptr,
    moves,
)
from ooc_mdp.problems.parameters import DISPLAY_DEFAULT, check_states, in_range
from ooc_mdp.problems.problem import LabelFunction, RowBounds

__all__ = ["Gridworld", "GridworldOptions", "reward_states"]

_OUTCOMES = {1: (1.0,), 2: (0.9, 0.1), 4: (0.7, 0.1, 0.1, 0.1)}
_TABLE_6_1 = {(64, 64): 5, (256, 256): 65, (512, 512): 260, (1024, 1024): 1024}

_LOWEST_REWARD, _HIGHEST_REWARD = 2.0, 20.0


@dataclass(frozen=True, slots=True)
class GridworldOptions:
    """Jóhannsson's domain of one size and kind of dynamics."""

    height: int = 64
    """Rows of cells."""
    width: int = 64
    """Columns of cells."""
    successors: int = 4
    """Outcomes of an action: 1, 2 or 4."""
    reward_states: int = field(default=0, metadata={DISPLAY_DEFAULT: "(by the size)"})
    """Exact number of reward states; 0 takes table 6.1's, or one in 1,024 for a size that is not there."""
    scramble: float = 0.0
    """Share of successors replaced by random states, 0 .. 0.5 (section 6.3)."""
    seed: int = 0
    """Chooses reward states, rewards and replaced successors."""

    def __post_init__(self) -> None:
        check_grid("gridworld", self.height, self.width, self.scramble, self.seed)
        in_range("gridworld", "reward_states", self.reward_states, 0, self.height * self.width)
        if self.successors not in _OUTCOMES:
            raise OptionsError(f"problem 'gridworld': successors = {self.successors}; it can be 1, 2 or 4")


class Gridworld:
    """Jóhannsson's domain as a :class:`~ooc_mdp.problems.problem.Problem`."""

    sense = "max"
    dyadic_probabilities = False
    default_dtype: Literal["float32", "float64"] = "float64"

    def __init__(self, options: GridworldOptions) -> None:
        if options.reward_states == 0:
            options = replace(options, reward_states=reward_states(options.height, options.width))
        self.name = "gridworld"
        self.options = options
        self.n_states = options.height * options.width
        self.shape: tuple[int, ...] | None = (options.height, options.width)

    @property
    def row_bounds(self) -> RowBounds:
        """4 actions a state; outcomes that lead to one cell are one transition."""
        return RowBounds(4, self.options.successors, True, self.options.successors == 1)

    def rows(self, states: IntArray) -> Rows:
        """Rows of `states` (int64 [n]): 4 a state, each of at most `successors` transitions."""
        o = self.options
        directions = np.ascontiguousarray(CLOCKWISE_OF_ACTION[:, : o.successors])
        probabilities = np.array(_OUTCOMES[o.successors])
        states = check_states(states, self.n_states, self.name)
        pointers, successors, masses = moves(
            states, o.height, o.width, directions, probabilities, o.scramble, np.uint64(o.seed)
        )
        rewards = arrival_rewards(
            pointers,
            successors,
            masses,
            self.n_states,
            bits_below(self.n_states),
            o.reward_states,
            _LOWEST_REWARD,
            _HIGHEST_REWARD,
            np.uint64(o.seed),
        )
        return Rows(four_action_ptr(states.size), pointers, successors, masses, rewards)

    def cell_rewards(self, states: IntArray) -> FloatArray:
        """float64 [n]: what arriving in each of `states` (int64 [n]) pays, 0 outside the reward states."""
        cells = check_states(states, self.n_states, self.name)
        bits, seed = bits_below(self.n_states), np.uint64(self.options.seed)
        return cell_rewards(
            cells, self.n_states, bits, self.options.reward_states, _LOWEST_REWARD, _HIGHEST_REWARD, seed
        )

    @property
    def labels(self) -> dict[str, LabelFunction]:
        """`goal`: the cells that pay."""
        return {"goal": lambda states: self.cell_rewards(states) > 0}

    def parameters(self) -> dict[str, int | float | str | bool]:
        """Every option, the number of reward states resolved."""
        return asdict(self.options)

    def geometry(self) -> dict[str, Any]:
        """Rows and columns of cells."""
        return cell_axes(self.options.height, self.options.width)


def reward_states(height: int, width: int) -> int:
    """Number of reward states of a GW domain: table 6.1's, else one in 1,024, at least one."""
    return _TABLE_6_1.get((height, width), max(1, round(height * width / 1024)))
