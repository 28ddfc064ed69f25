"""What to bring in next: residual bounds, the target, priorities, the partition cache and its stager."""
