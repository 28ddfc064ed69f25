"""Agents that move on a grid of cells: four directions, outcomes that deviate, cells that pay on arrival.

States are the cells of a height x width grid in row-major order; a move leads to a neighbour, and one out of the
grid stays. Which cells pay, and how much, is a hash of seed and cell. The gridworlds of several authors are made
of this; each author has a module.

    directions   0 up   1 right   2 down   3 left        +1 turns clockwise
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from ooc_mdp.model.mdp import IntArray
from ooc_mdp.problems.counter_random import draw, permuted, stream_key, unit
from ooc_mdp.problems.parameters import in_range

__all__ = [
    "CLOCKWISE_OF_ACTION",
    "LARGEST_SEED",
    "LARGEST_SIDE",
    "PLACE",
    "arrival_rewards",
    "cell_axes",
    "cell_rewards",
    "check_grid",
    "four_action_ptr",
    "moves",
]

CLOCKWISE_OF_ACTION = (np.arange(4).reshape(4, 1) + np.arange(4)) % 4
"""int64 [4, 4]; row a: the wanted direction of action a, then those clockwise of it."""

PLACE, _AMOUNT, _SCRAMBLE, _TARGET = (np.uint64(stream) for stream in range(4))
"""Streams of randomness: which cells pay, what they pay, which outcomes are replaced, by which cell."""
LARGEST_SIDE = 2**29
"""Keeps cells x actions x outcomes inside int64."""
LARGEST_SEED = 2**63 - 1


def cell_axes(height: int, width: int) -> dict[str, Any]:
    """Axes of the cells for a store's attributes."""
    sides = {"row": height, "column": width}
    return {
        "axes": [
            {"name": name, "low": 0.0, "high": side - 1.0, "periodic": False, "unit": "cells"}
            for name, side in sides.items()
        ]
    }


def four_action_ptr(n: int) -> IntArray:
    """int64 [n+1]: the action_ptr of n states with four actions."""
    return np.arange(0, 4 * n + 1, 4, dtype=np.int64)


@numba.njit(cache=True, nogil=True)
def moves(states, height, width, directions, probabilities, scramble, seed):  # type: ignore[no-untyped-def]
    """CSR rows (successor_ptr, successors, probabilities) of 4 actions a state.

    directions int64 [4, K] and probabilities float64 [K] give the outcomes of each action; outcomes that
    end in the same cell are added in that order, so a row is the same wherever it is computed.
    """
    outcomes = probabilities.size
    most = 4 * states.size * outcomes
    pointers = np.empty(4 * states.size + 1, np.int64)
    successors = np.empty(most, np.int64)
    masses = np.empty(most, np.float64)
    neighbour = np.empty(4, np.int64)
    cells = np.uint64(height * width)
    change_key, target_key = stream_key(seed, _SCRAMBLE), stream_key(seed, _TARGET)
    filled = 0
    pointers[0] = 0
    for i in range(states.size):
        s = states[i]
        row, column = divmod(s, width)
        neighbour[0] = s - width if row > 0 else s
        neighbour[1] = s + 1 if column < width - 1 else s
        neighbour[2] = s + width if row < height - 1 else s
        neighbour[3] = s - 1 if column > 0 else s
        for a in range(4):
            start = filled
            for k in range(outcomes):
                t = neighbour[directions[a, k]]
                if scramble > 0.0:
                    outcome = np.uint64(4 * a + k)
                    if unit(draw(change_key, np.uint64(s), outcome)) < scramble:
                        t = np.int64(draw(target_key, np.uint64(s), outcome) % cells)
                at = filled
                while at > start and successors[at - 1] > t:
                    at -= 1
                if at > start and successors[at - 1] == t:
                    masses[at - 1] += probabilities[k]
                    continue
                for j in range(filled, at, -1):
                    successors[j] = successors[j - 1]
                    masses[j] = masses[j - 1]
                successors[at] = t
                masses[at] = probabilities[k]
                filled += 1
            pointers[4 * i + a + 1] = filled
    return pointers, successors[:filled], masses[:filled]


@numba.njit(cache=True, nogil=True, forceinline=True)
def _cell_reward(cell, cells, bits, n_rewarded, low, high, seed):  # type: ignore[no-untyped-def]
    """R(cell): the cells whose image under a keyed bijection of all cells is below n_rewarded pay."""
    rank = permuted(np.uint64(cell), np.uint64(cells), np.uint64(bits), stream_key(seed, PLACE))
    if rank >= np.uint64(n_rewarded):
        return 0.0
    return low + (high - low) * unit(draw(stream_key(seed, _AMOUNT), np.uint64(cell), np.uint64(0)))


@numba.njit(cache=True, nogil=True)
def cell_rewards(states, cells, bits, n_rewarded, low, high, seed):  # type: ignore[no-untyped-def]
    """float64 [n]: what arriving in each of `states` pays: uniform in [low, high) in n_rewarded cells, else 0."""
    rewards = np.empty(states.size, np.float64)
    for i in range(states.size):
        rewards[i] = _cell_reward(states[i], cells, bits, n_rewarded, low, high, seed)
    return rewards


@numba.njit(cache=True, nogil=True)
def arrival_rewards(  # type: ignore[no-untyped-def]
    pointers, successors, masses, cells, bits, n_rewarded, low, high, seed
):
    """float64 [m]: the expected reward of each row, paid by the cells that it leads to."""
    rewards = np.empty(pointers.size - 1, np.float64)
    for j in range(rewards.size):
        expected = 0.0
        for k in range(pointers[j], pointers[j + 1]):
            expected += masses[k] * _cell_reward(successors[k], cells, bits, n_rewarded, low, high, seed)
        rewards[j] = expected
    return rewards


def check_grid(problem: str, height: int, width: int, scramble: float, seed: int) -> None:
    """Refuse sides, shares and seeds out of range."""
    in_range(problem, "height", height, 1, LARGEST_SIDE)
    in_range(problem, "width", width, 1, LARGEST_SIDE)
    in_range(problem, "scramble", scramble, 0.0, 0.5)
    in_range(problem, "seed", seed, 0, LARGEST_SEED)
