"""What the paper says in numbers, and the sizes that are measured: Y. Luo, P. Koettering, *Solving Large MDPs with
Value-Iteration on Multi-GPU Systems*. Its figures have no numbers in the text, and the text names few of their sizes.
"""

from __future__ import annotations

__all__ = ["ARRAY_BYTES", "CASES", "FIGURE_5", "LARGEST", "MAX_ITERATIONS", "SPEED_UPS", "TOY_CASES", "WIDE"]

ARRAY_BYTES, MAX_ITERATIONS = 1.07e9, 100
"""Where speed-ups "stabilized" (section 6): bytes of an array, iterations."""
SPEED_UPS = {"state by state": 2.5, "algorithm 3": 110.0}
"""Over the CPU, there: of the single-GPU version, and of the version for several GPUs on two of them."""
FIGURE_5 = {"actions": 128, "states": 64, "iterations": 40}
"""Up to where the single-GPU version "should be used" (section 6)."""

_FEW, _ONE, _MANY = (1, 5, 10, 20, 40), (20,), (10, 20, 40, 60, 80, 100)
WIDE, LARGEST = (512, 128), (1024, 128)
"""States and actions of figure 2, and of the largest table: 2**27 numbers, 1.07e9 bytes."""
CASES = {
    (64, 16): _FEW,
    (64, 128): _FEW,
    (128, 128): _ONE,
    (256, 128): _ONE,
    (512, 16): _ONE,
    (512, 64): _ONE,
    WIDE: _MANY,
    (512, 256): _ONE,
    (512, 512): _ONE,
    LARGEST: (20, 100),
}
"""States and actions: the numbers of iterations that are timed. Ours, since the paper's are in its figures only."""
TOY_CASES = {(6, 4): (1, 2), (12, 2): (2,), (12, 6): (1, 2, 4), (20, 6): (2, 4)}
