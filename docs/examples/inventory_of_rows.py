"""Orders of a perishable product, made by `ooc_mdp.from_rows`: the inventory problem of De Moor et al.

    python inventory_of_rows.py 4 inventory.store        # 11^5 states; prints processor times

The stock has ages 1 to m, each 0 to 10 items; an order of 0 to 10 items arrives after two days. Demand is met from the
oldest items. A day costs 3 for each item ordered, 5 for each that is short, 7 for each that perishes and 1 for each
that is held. States are the digits (in transit, youngest, ..., oldest) to the base 11.
Source: De Moor, Gijsbrechts and Boute, *Reward shaping to improve the performance of deep reinforcement learning in
perishable inventory management*, EJOR 301 (2022), with demand of mean 4 and coefficient of variation 0.5.
"""

from __future__ import annotations

import math
import sys
import time

import numpy as np
import numpy.typing as npt

import ooc_mdp

BASE = 11
IntArray = npt.NDArray[np.int64]


def demand_chances(largest: int) -> npt.NDArray[np.float64]:
    """P(d) = F(d + 1/2) - F(d - 1/2) of the gamma distribution of shape 4 and rate 1; the tail joins the largest."""
    bounds = np.arange(largest) + 0.5
    distribution = 1 - np.exp(-bounds) * sum(bounds**k / math.factorial(k) for k in range(4))
    return np.diff(np.concatenate([[0.0], distribution, [1.0]]))


class Inventory:
    """The rows of the problem with m ages."""

    def __init__(self, ages: int, largest_demand: int = 100) -> None:
        self.ages, self.n_states = ages, BASE ** (ages + 1)
        self.chances = demand_chances(largest_demand)

    def rows(self, states: IntArray) -> tuple[IntArray, npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Successors, probabilities and rewards in arrays (states, orders, demands)."""
        transit, *stock = (states[:, None, None] // BASE**i % BASE for i in range(self.ages, -1, -1))
        order, short = np.arange(BASE)[:, None], np.arange(self.chances.size)
        left = []
        for items in reversed(stock):  # the oldest first
            used = np.minimum(short, items)
            short = short - used
            left.insert(0, items - used)
        wasted = left.pop()
        successors = order
        for items in (transit, *left):
            successors = successors * BASE + items
        return successors, self.chances, -(3.0 * order + 5 * short + 7 * wasted + sum(left))


def main(ages: str, path: str) -> None:
    """Write the store, and compare its processor time with that of the function alone."""
    problem = Inventory(int(ages))
    pieces = np.array_split(np.arange(problem.n_states), max(1, problem.n_states // 64))
    problem.rows(pieces[0])
    began = time.process_time()
    for piece in pieces:
        problem.rows(piece)
    alone = time.process_time() - began
    began = time.process_time()
    store = ooc_mdp.from_rows(problem.n_states, problem.rows, path=path, note=print)
    total = time.process_time() - began
    print(store)
    print(
        f"processor time: {alone:.1f} s for the function alone, {total:.1f} s for the store, {total / alone:.1f} times"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
