import numpy as np
from mdptoolbox.mdp import PolicyIteration

model = np.load("arrays.npz")
solver = PolicyIteration(model["P"], model["R"], 0.95)
solver.run()
answer = solver.V
