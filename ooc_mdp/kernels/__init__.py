"""Sweep kernels: one protocol, a Numba backend for the CPU and a CuPy backend for CUDA devices."""
