"""Quintanilla and Kolisetti's gridworlds, the QK worlds, of any size.

    r(s,a) = R(s),   paid in s

Cells and moves are those of `ooc_mdp.problems.gridworlds.cells`: a move out of the grid stays, outcomes that end in the
same cell are one successor. Which cells pay is found by hashing, never listed.

Source
------
A. Quintanilla, A. Kolisetti, *Parallelizing Markov Decision Process Problems*, sections 2, 3.4 and 4;
discount 0.8. Actions 0, 1, 2, 3 are up, left, right, down (up and down by the sample in section 2, the
other two unsaid); 0.8 as wanted, 0.1 to each side. R(s) is -0.003, or +10 or -10 with a chance of 5% each.
Their 119,992 transitions of 100 x 100 cells are what merging gives: 12 a cell, less 2 in each corner.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numba
import numpy as np

from ooc_mdp.model.mdp import FloatArray, IntArray, Rows
from ooc_mdp.problems.counter_random import draw, stream_key, unit
from ooc_mdp.problems.gridworlds.cells import PLACE, cell_axes, check_grid, four_action_ptr, moves
from ooc_mdp.problems.parameters import check_states
from ooc_mdp.problems.problem import LabelFunction, RowBounds

__all__ = ["QuintanillaOptions", "QuintanillaWorld"]

# Row a: outcome directions of action a, as `CLOCKWISE_OF_ACTION` numbers them.
_QUINTANILLA_DIRECTIONS = (np.array([[0], [3], [1], [2]]) + np.array([0, 3, 1])) % 4
_QUINTANILLA_PROBABILITIES = np.array([0.8, 0.1, 0.1])


@dataclass(frozen=True, slots=True)
class QuintanillaOptions:
    """A world of Quintanilla and Kolisetti; theirs are 100, 200, 500 and 750 cells square."""

    height: int = 100
    """Rows of cells."""
    width: int = 100
    """Columns of cells."""
    scramble: float = 0.0
    """Share of successors replaced by random states, 0 .. 0.5."""
    seed: int = 0
    """Chooses the cells that pay +10 and -10, and the replaced successors."""

    def __post_init__(self) -> None:
        check_grid("quintanilla", self.height, self.width, self.scramble, self.seed)


class QuintanillaWorld:
    """Quintanilla and Kolisetti's world as a :class:`~ooc_mdp.problems.problem.Problem`."""

    sense = "max"
    dyadic_probabilities = False
    default_dtype: Literal["float32", "float64"] = "float64"

    def __init__(self, options: QuintanillaOptions) -> None:
        self.name = "quintanilla"
        self.options = options
        self.n_states = options.height * options.width
        self.shape: tuple[int, ...] | None = (options.height, options.width)

    @property
    def row_bounds(self) -> RowBounds:
        """4 actions a state; outcomes that lead to one cell are one transition."""
        return RowBounds(4, 3, True)

    def rows(self, states: IntArray) -> Rows:
        """Rows of `states` (int64 [n]): 4 a state, each of at most 3 transitions."""
        o = self.options
        states = check_states(states, self.n_states, self.name)
        pointers, successors, masses = moves(
            states,
            o.height,
            o.width,
            _QUINTANILLA_DIRECTIONS,
            _QUINTANILLA_PROBABILITIES,
            o.scramble,
            np.uint64(o.seed),
        )
        rewards = np.repeat(_scattered_rewards(states, np.uint64(o.seed)), 4)
        return Rows(four_action_ptr(states.size), pointers, successors, masses, rewards)

    def cell_rewards(self, states: IntArray) -> FloatArray:
        """float64 [n]: R(s) of each of `states` (int64 [n])."""
        return _scattered_rewards(check_states(states, self.n_states, self.name), np.uint64(self.options.seed))

    @property
    def labels(self) -> dict[str, LabelFunction]:
        """`goal`: the cells that pay."""
        return {"goal": lambda states: self.cell_rewards(states) > 0}

    def parameters(self) -> dict[str, int | float | str | bool]:
        """Every option."""
        return asdict(self.options)

    def geometry(self) -> dict[str, Any]:
        """Rows and columns of cells."""
        return cell_axes(self.options.height, self.options.width)


@numba.njit(cache=True, nogil=True)
def _scattered_rewards(states, seed):  # type: ignore[no-untyped-def]
    rewards = np.empty(states.size, np.float64)
    for i in range(states.size):
        chance = unit(draw(stream_key(seed, PLACE), np.uint64(states[i]), np.uint64(0)))
        rewards[i] = 10.0 if chance < 0.05 else (-10.0 if chance < 0.10 else -0.003)
    return rewards
