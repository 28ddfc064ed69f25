"""CUDA backends."""
