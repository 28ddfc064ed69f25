"""Solving on several workers, one a device: who owns which partition, what they tell each other, and how a run ends."""
