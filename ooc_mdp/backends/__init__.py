"""Sweeps over partitions in memory, on CPUs and CUDA devices."""
