"""Simple kernels: one thread to a state."""
