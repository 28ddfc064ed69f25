"""Total rewards and reachability: solves at discount 1."""
