"""What the thesis says in numbers: tables 6.1 and 6.2 and the text of chapters 6 and 7. Its figures are curves."""

from __future__ import annotations

__all__ = ["CARD_BYTES", "MEANS", "MEANS_ABOVE_TWO_MILLION", "SPEED_UPS", "SWEEP_TIME_GROWTH"]

SPEED_UPS: dict[str, dict[str, tuple[float, float]]] = {
    "GW-64x64x1": {"bdi": (4.7, 9.0), "rdi": (0.8, 1.3)},
    "GW-64x64x2": {"bdi": (5.0, 10.4), "rdi": (1.2, 2.0)},
    "GW-64x64x4": {"bdi": (5.0, 11.5), "rdi": (1.8, 2.8)},
    "GW-256x256x1": {"bdi": (12.7, 17.0), "rdi": (4.5, 5.2)},
    "GW-256x256x2": {"bdi": (14.2, 28.1), "rdi": (6.6, 8.3)},
    "GW-512x512x1": {"bdi": (14.3, 18.6), "rdi": (5.7, 6.1)},
    "GW-256x256x4": {"bdi": (10.8, 31.6), "rdi": (7.8, 10.8)},
    "GW-512x512x2": {"bdi": (13.3, 28.8), "rdi": (7.5, 8.9)},
    "GW-1024x1024x1": {"bdi": (13.9, 18.3), "rdi": (6.0, 6.2)},
    "GW-512x512x4": {"bdi": (17.5, 50.5), "rdi": (13.4, 17.9)},
    "GW-1024x1024x2": {"bdi": (10.0, 29.2), "rdi": (8.0, 9.3)},
    "GW-1024x1024x4": {"bdi": (18.4, 51.8), "rdi": (14.5, 19.1)},
}
"""Table 6.2, in its order: speed-up over the sequential baseline to convergence, and of a sweep."""
MEANS = {"bdi": (11.7, 25.5), "rdi": (6.5, 8.2)}
"""Sections 6.2 and 6.4, over all twelve."""
MEANS_ABOVE_TWO_MILLION = {"bdi": 14.6, "rdi": 9.9}
"""Section 6.5: to convergence, of worlds with a computational cost above 2 million."""
SWEEP_TIME_GROWTH = {"sequential": 868, "bdi": 268, "rdi": 125}
"""Section 6.2: time of a sweep of the most costly world over that of the least."""
CARD_BYTES = 768 << 20
"""Section 6.1: memory of the thesis's GeForce 8800 GTX."""
