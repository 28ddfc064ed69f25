"""Random MDPs without structure: S states, A actions, K distinct successors a row, anywhere.

    r(s,a) ~ U[low, high),     p(s'|s,a) = k_s' / 2**50 with integers k_s' >= 1 that add up to 2**50

Probabilities being multiples of 2**-50, every order of adding a row gives exactly 1. Successors are the
images of 0 .. K-1 under a bijection of the states that belongs to (s,a): distinct without rejection. There
is no locality: the hard case for partitioned solving, as every partition soon depends on every other.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

import numba
import numpy as np

from ooc_mdp.errors import OptionsError
from ooc_mdp.model.mdp import IntArray, Rows
from ooc_mdp.problems.counter_random import bits_below, draw, permuted, stream_key, unit
from ooc_mdp.problems.parameters import check_states, in_range
from ooc_mdp.problems.problem import RowBounds

__all__ = ["RandomMdp", "RandomMdpOptions"]

_REWARD, _WEIGHT, _TARGET = (np.uint64(stream) for stream in range(3))
_QUANTA = 2.0**50
_MAX_SUCCESSORS = 2**20
"""So that a row's roundings (at most one quantum each) stay far below its largest probability."""


@dataclass(frozen=True, slots=True)
class RandomMdpOptions:
    """Sizes and seed of a random MDP."""

    states: int = 10_000
    """S, 1 .. 2**40."""
    actions: int = 4
    """A of every state."""
    successors: int = 4
    """K of every (state, action), at most S."""
    reward_low: float = 0.0
    """Smallest reward."""
    reward_high: float = 1.0
    """Upper limit of the rewards, not reached unless equal to the smallest."""
    seed: int = 0
    """Chooses everything."""

    def __post_init__(self) -> None:
        in_range("random", "states", self.states, 1, 2**40)
        in_range("random", "actions", self.actions, 1, 2**16)
        in_range("random", "successors", self.successors, 1, min(self.states, _MAX_SUCCESSORS))
        in_range("random", "seed", self.seed, 0, 2**63 - 1)
        if self.reward_low > self.reward_high:
            raise OptionsError(
                f"problem 'random': reward_low = {self.reward_low} is above reward_high = {self.reward_high}"
            )


class RandomMdp:
    """A random MDP as a :class:`~ooc_mdp.problems.problem.Problem`."""

    sense = "max"
    dyadic_probabilities = False
    default_dtype: Literal["float32", "float64"] = "float64"

    def __init__(self, options: RandomMdpOptions) -> None:
        self.name = "random"
        self.options = options
        self.n_states = options.states
        self.shape: tuple[int, ...] | None = None

    @property
    def row_bounds(self) -> RowBounds:
        """A actions a state, K transitions each."""
        return RowBounds(self.options.actions, self.options.successors, True, True)

    def rows(self, states: IntArray) -> Rows:
        """Rows of `states` (int64 [n]): A a state, K transitions each."""
        o = self.options
        states = check_states(states, self.n_states, self.name)
        successors, probabilities, rewards = _rows(
            states, o.states, bits_below(o.states), o.actions, o.successors, np.uint64(o.seed)
        )
        n_rows = states.size * o.actions
        return Rows(
            action_ptr=np.arange(0, n_rows + 1, o.actions, dtype=np.int64),
            successor_ptr=np.arange(0, n_rows * o.successors + 1, o.successors, dtype=np.int64),
            successors=successors,
            probabilities=probabilities,
            rewards=o.reward_low + (o.reward_high - o.reward_low) * rewards,
        )

    def parameters(self) -> dict[str, int | float | str | bool]:
        """Every option."""
        return asdict(self.options)

    def geometry(self) -> None:
        """States are no grid."""


@numba.njit(cache=True, nogil=True)
def _rows(states, n_states, bits, actions, k, seed):  # type: ignore[no-untyped-def]
    """Successors int64 [n A K], probabilities float64 [n A K], rewards float64 [n A] in [0, 1)."""
    successors = np.empty(states.size * actions * k, np.int64)
    probabilities = np.empty(successors.size, np.float64)
    rewards = np.empty(states.size * actions, np.float64)
    reward_key, weight_key = stream_key(seed, _REWARD), stream_key(seed, _WEIGHT)
    target_key = stream_key(seed, _TARGET)
    for i in range(states.size):
        s = np.uint64(states[i])
        for a in range(actions):
            action = np.uint64(a)
            j = i * actions + a
            rewards[j] = unit(draw(reward_key, s, action))
            key = draw(target_key, s, action)
            row = successors[j * k : (j + 1) * k]
            for x in range(k):
                row[x] = np.int64(permuted(np.uint64(x), np.uint64(n_states), np.uint64(bits), key))
            _sort(row)
            _fill_probabilities(probabilities[j * k : (j + 1) * k], draw(weight_key, s, action))
    return successors, probabilities, rewards


@numba.njit(cache=True, nogil=True)
def _sort(row):  # type: ignore[no-untyped-def]
    """Ascending, in place; by insertion where the row is short."""
    if row.size > 32:
        row.sort()
        return
    for x in range(1, row.size):
        value = row[x]
        at = x
        while at > 0 and row[at - 1] > value:
            row[at] = row[at - 1]
            at -= 1
        row[at] = value


@numba.njit(cache=True, nogil=True)
def _fill_probabilities(row, key):  # type: ignore[no-untyped-def]
    """Uniform weights over their sum, as multiples of 2**-50; the largest takes up what rounding left."""
    total = 0.0
    for x in range(row.size):
        row[x] = 1.0 - unit(draw(key, np.uint64(x), np.uint64(0)))
        total += row[x]
    left = _QUANTA
    largest = 0
    for x in range(row.size):
        row[x] = max(1.0, np.floor(row[x] / total * _QUANTA))
        left -= row[x]
        if row[x] > row[largest]:
            largest = x
    row[largest] += left
    for x in range(row.size):
        row[x] /= _QUANTA
