"""Models in Storm's explicit format, as texts."""

from __future__ import annotations

__all__ = ["TWO_REWARD_MODELS"]

TWO_REWARD_MODELS = """@type: MDP
@parameters

@reward_models
steps toll
@nr_states
2
@model
state 0 [1, 0]
\taction 0 [0, 3]
\t\t1 : 1
\taction 1 [0, 1]
\t\t0 : 1
state 1 [1, 0]
\taction 0
\t\t0 : 1
"""
"""Two states, with rewards for steps and for tolls: staying in state 0 costs a toll of 1, going to state 1 one of 3."""
