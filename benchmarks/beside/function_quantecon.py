import numpy as np
from quantecon.markov import DiscreteDP
from scipy import sparse

capacity, chances = 100_000, np.array([0.1, 0.2, 0.3, 0.4])
stock, order = (each.ravel() for each in np.meshgrid(np.arange(capacity + 1), np.arange(5), indexing="ij"))
supply = np.minimum(stock + order, capacity)
sold = np.minimum(supply[:, None], np.arange(4))
pairs = np.repeat(np.arange(stock.size), 4)
entries = (np.tile(chances, stock.size), (pairs, (supply[:, None] - sold).ravel()))
Q = sparse.csr_matrix(entries, shape=(stock.size, capacity + 1))
R = (3.0 * sold - order[:, None] - 0.01 * supply[:, None]) @ chances
answer = DiscreteDP(R, Q, 0.9, stock, order).solve(method="policy_iteration").v
