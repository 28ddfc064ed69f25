"""The solver's mathematics in NumPy, written to be read: what every kernel and every engine is compared with.

    equations   the Bellman equation of an MDP in memory, and its exact solution by policy iteration
    p_eva       serial out-of-core P-EVA over a table that is read one partition at a time; the first file to read
    schedules   one pass of each simple kernel over a partition

Neither knows a kernel, a device or a thread.
"""

from __future__ import annotations

from ooc_mdp.reference.equations import Evaluation, backup, policy_iteration, q_values

__all__ = ["Evaluation", "backup", "policy_iteration", "q_values"]
