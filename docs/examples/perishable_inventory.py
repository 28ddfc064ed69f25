"""Two perishable products, of which the first can stand in for the second: the best long-run profit per day, as arrays.

    state   stock of A by age (new, old), stock of B by age (new, old), each 0 .. 10: 14,641 states
    action  how many of A and of B to order, each 0 .. 10: 121 actions; they arrive next morning

Demands are Poisson with mean 5. The oldest units are issued first, and what is old and not sold by the evening is
discarded. A customer who finds no B takes A instead with probability 1/2, if one is left. A unit sold earns 1, a unit
ordered costs 1/2. Unmet demand is lost. The state space repeats under every order, so the chain has one recurrent
class, and the average profit is the same from any stock.

Source: E. M. T. Hendrix, K. G. J. Pauls-Worm, M. V. de Jong, On order policies for a perishable product system with
substitution, 2019; J. Farrington et al., Annals of Operations Research, 2025, doi 10.1007/s10479-025-06551-6.

    python docs/examples/perishable_inventory.py           # 64 million transitions: some minutes, and 3 GiB of RAM
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix
from scipy.stats import binom, poisson

import ooc_mdp

LARGEST_DEMAND = 60
"""Beyond which a Poisson demand of mean 5 has a probability below 1e-42."""


def issued(largest: int, mean: float = 5.0, substitution: float = 0.5) -> np.ndarray:
    """float64 [sa, sb, ia, ib]: probability that so many units are sold of stocks sa and sb."""
    stock = 2 * largest + 1
    demand = poisson.pmf(np.arange(LARGEST_DEMAND + 1), mean)
    at_least = poisson.sf(np.arange(stock) - 1, mean)
    # wanted[sb, z]: B sells out, and z customers want A, those included who wanted B
    wanted = np.zeros((stock, 2 * LARGEST_DEMAND + 1))
    for sb in range(stock):
        for missing in range(LARGEST_DEMAND - sb + 1):
            for switched in range(missing + 1):
                share = demand[sb + missing] * binom.pmf(switched, missing, substitution)
                wanted[sb, switched : switched + LARGEST_DEMAND + 1] += share * demand
    found = np.zeros((stock, stock, stock, stock))
    for sa in range(stock):
        for sb in range(stock):
            found[sa, sb, :sa, :sb] = np.outer(demand[:sa], demand[:sb])
            found[sa, sb, sa, :sb] = at_least[sa] * demand[:sb]
            found[sa, sb, :sa, sb] = wanted[sb, :sa]
            found[sa, sb, sa, sb] = wanted[sb, sa:].sum()
    return found


def arrays(largest: int = 10) -> tuple[csr_matrix, np.ndarray, np.ndarray, np.ndarray]:
    """P (pairs, states), R (pairs,), and state and action of each pair; stocks and orders are 0 .. `largest`."""
    side = largest + 1
    sales = issued(largest)
    orders = np.array([(a, b) for a in range(side) for b in range(side)])
    shift = orders[:, 0] * side**3 + orders[:, 1] * side
    lengths, columns, weights, rewards = [], [], [], []
    for state in np.ndindex(side, side, side, side):
        new_a, old_a, new_b, old_b = state
        sold = sales[new_a + old_a, new_b + old_b, : new_a + old_a + 1, : new_b + old_b + 1]
        left = np.zeros((new_a + 1, new_b + 1))
        left_a = new_a - np.maximum(np.arange(new_a + old_a + 1) - old_a, 0)
        left_b = new_b - np.maximum(np.arange(new_b + old_b + 1) - old_b, 0)
        np.add.at(left, (left_a[:, None], left_b[None, :]), sold)
        stock = np.arange(new_a + 1)[:, None] * side**2 + np.arange(new_b + 1)[None, :]
        columns.append((shift[:, None] + stock.ravel()[None, :]).ravel().astype(np.int32))
        weights.append(np.tile(left.ravel() / left.sum(), len(orders)))
        lengths.append(np.full(len(orders), left.size))
        earned = (np.arange(sold.shape[0])[:, None] + np.arange(sold.shape[1])[None, :]) * sold
        rewards.append(earned.sum() - 0.5 * orders.sum(axis=1))
    starts = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
    n = side**4
    pairs = csr_matrix((np.concatenate(weights), np.concatenate(columns), starts), shape=(n * len(orders), n))
    states, actions = np.divmod(np.arange(n * len(orders)), len(orders))
    return pairs, np.concatenate(rewards), states, actions


if __name__ == "__main__":
    P, R, states, actions = arrays()
    store = ooc_mdp.from_arrays(P, R, s_indices=states, a_indices=actions)
    solution = ooc_mdp.solve(store, ooc_mdp.AverageReward(), epsilon=5e-7, cache="20%")
    print(f"profit per day: between {solution.certificate.lower!r} and {solution.certificate.upper!r}")
    print("order with empty shelves:", divmod(int(solution.actions[0]), 11))
    print(
        f"{solution.statistics.loads_per_partition:.1f} loads per partition, {solution.statistics.solve_seconds:.1f} s"
    )
