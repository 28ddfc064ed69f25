import numpy as np
from quantecon.markov import DiscreteDP

model = np.load("arrays.npz")
answer = DiscreteDP(model["R"], model["P"].transpose(1, 0, 2), 0.95).solve(method="policy_iteration").v
