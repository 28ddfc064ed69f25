import numpy as np

import ooc_mdp

capacity, chances = 100_000, np.array([0.1, 0.2, 0.3, 0.4])


def rows(states):
    stock, order, demand = states[:, None, None], np.arange(5)[:, None], np.arange(4)
    supply = np.minimum(stock + order, capacity)
    sold = np.minimum(supply, demand)
    return supply - sold, chances, 3.0 * sold - order - 0.01 * supply


answer = ooc_mdp.solve(ooc_mdp.from_rows(capacity + 1, rows), discount=0.9, epsilon=1e-6).values
