import numpy as np

import ooc_mdp

model = np.load("arrays.npz")
answer = ooc_mdp.solve(model["P"], model["R"], discount=0.95, epsilon=1e-6).values
