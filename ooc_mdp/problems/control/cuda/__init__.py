"""Translation of a problem's Python functions to CUDA C++."""
