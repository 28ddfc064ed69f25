"""Kernels of the literature: one CUDA file each, and the catalogue that declares them."""
