"""Average reward: the largest long-run mean of the rewards per step."""
