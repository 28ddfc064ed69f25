"""Solves that were recorded, for plans of others: `benchmarks/plan.py --record`.

Of the method auto with its default target, on the CPU, of stores of 100 partitions: a mountain car, a double pendulum,
a gridworld, a random MDP, and a model of rooms converted from PRISM's format, each in two sizes.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["RECORDED", "Recorded"]


class Recorded(NamedTuple):
    """What one solve took."""

    kind: str
    n_states: int
    reads: float
    """Share of the other partitions that a partition reads on average."""
    cache: float
    """Share of the table that the cache holds."""
    discount: float
    passes: float
    """Loads over the number of partitions."""
    backups: float
    """Of each state, on average."""


RECORDED = (
    Recorded("car", 160000, 0.04, 0.1, 0.9, 3.67, 33.8),
    Recorded("car", 160000, 0.04, 0.1, 0.95, 3.48, 36.6),
    Recorded("car", 160000, 0.04, 0.1, 0.99, 5.64, 149.8),
    Recorded("car", 160000, 0.04, 0.22, 0.9, 2.62, 42.3),
    Recorded("car", 160000, 0.04, 0.22, 0.95, 3.03, 48.4),
    Recorded("car", 160000, 0.04, 0.22, 0.99, 4.44, 164.0),
    Recorded("car", 160000, 0.04, 0.5, 0.9, 1.77, 53.2),
    Recorded("car", 160000, 0.04, 0.5, 0.95, 1.66, 62.7),
    Recorded("car", 160000, 0.04, 0.5, 0.99, 2.70, 319.7),
    Recorded("car", 160000, 0.04, 1.0, 0.9, 0.98, 59.6),
    Recorded("car", 160000, 0.04, 1.0, 0.95, 0.98, 56.4),
    Recorded("car", 160000, 0.04, 1.0, 0.99, 0.99, 475.1),
    Recorded("car", 4000000, 0.04, 0.1, 0.9, 3.49, 50.4),
    Recorded("car", 4000000, 0.04, 0.1, 0.95, 2.06, 63.7),
    Recorded("car", 4000000, 0.04, 0.1, 0.99, 3.48, 223.6),
    Recorded("car", 4000000, 0.04, 0.22, 0.9, 1.70, 60.6),
    Recorded("car", 4000000, 0.04, 0.22, 0.95, 2.11, 103.5),
    Recorded("car", 4000000, 0.04, 0.22, 0.99, 4.06, 302.9),
    Recorded("car", 4000000, 0.04, 0.5, 0.9, 2.08, 114.8),
    Recorded("car", 4000000, 0.04, 0.5, 0.95, 1.22, 212.7),
    Recorded("car", 4000000, 0.04, 0.5, 0.99, 2.04, 783.3),
    Recorded("car", 4000000, 0.04, 1.0, 0.9, 0.95, 229.3),
    Recorded("car", 4000000, 0.04, 1.0, 0.95, 0.96, 385.3),
    Recorded("car", 4000000, 0.04, 1.0, 0.99, 0.97, 702.9),
    Recorded("pendulum", 65536, 0.21, 0.1, 0.9, 7.59, 352.2),
    Recorded("pendulum", 65536, 0.21, 0.1, 0.95, 7.79, 435.2),
    Recorded("pendulum", 65536, 0.21, 0.1, 0.99, 7.83, 495.1),
    Recorded("pendulum", 65536, 0.21, 0.22, 0.9, 6.16, 364.0),
    Recorded("pendulum", 65536, 0.21, 0.22, 0.95, 6.50, 383.6),
    Recorded("pendulum", 65536, 0.21, 0.22, 0.99, 6.74, 481.1),
    Recorded("pendulum", 65536, 0.21, 0.5, 0.9, 4.12, 325.4),
    Recorded("pendulum", 65536, 0.21, 0.5, 0.95, 4.45, 405.3),
    Recorded("pendulum", 65536, 0.21, 0.5, 0.99, 4.48, 461.8),
    Recorded("pendulum", 65536, 0.21, 1.0, 0.9, 1.00, 313.7),
    Recorded("pendulum", 65536, 0.21, 1.0, 0.95, 1.00, 385.6),
    Recorded("pendulum", 65536, 0.21, 1.0, 0.99, 1.00, 486.1),
    Recorded("pendulum", 331776, 0.21, 0.1, 0.9, 9.28, 540.3),
    Recorded("pendulum", 331776, 0.21, 0.1, 0.95, 9.11, 589.4),
    Recorded("pendulum", 331776, 0.21, 0.1, 0.99, 9.21, 747.2),
    Recorded("pendulum", 331776, 0.21, 0.22, 0.9, 7.96, 492.9),
    Recorded("pendulum", 331776, 0.21, 0.22, 0.95, 7.69, 546.7),
    Recorded("pendulum", 331776, 0.21, 0.22, 0.99, 8.35, 718.6),
    Recorded("pendulum", 331776, 0.21, 0.5, 0.9, 5.54, 512.7),
    Recorded("pendulum", 331776, 0.21, 0.5, 0.95, 5.26, 546.8),
    Recorded("pendulum", 331776, 0.21, 0.5, 0.99, 5.56, 701.0),
    Recorded("pendulum", 331776, 0.21, 1.0, 0.9, 1.00, 504.0),
    Recorded("pendulum", 331776, 0.21, 1.0, 0.95, 1.00, 556.0),
    Recorded("pendulum", 331776, 0.21, 1.0, 0.99, 1.00, 687.8),
    Recorded("random", 40000, 1.00, 0.1, 0.9, 5.24, 94.8),
    Recorded("random", 40000, 1.00, 0.1, 0.95, 5.91, 136.2),
    Recorded("random", 40000, 1.00, 0.1, 0.99, 5.58, 161.5),
    Recorded("random", 40000, 1.00, 0.22, 0.9, 5.14, 97.2),
    Recorded("random", 40000, 1.00, 0.22, 0.95, 5.32, 130.6),
    Recorded("random", 40000, 1.00, 0.22, 0.99, 4.98, 171.9),
    Recorded("random", 40000, 1.00, 0.5, 0.9, 3.39, 92.5),
    Recorded("random", 40000, 1.00, 0.5, 0.95, 3.84, 122.3),
    Recorded("random", 40000, 1.00, 0.5, 0.99, 3.59, 169.2),
    Recorded("random", 40000, 1.00, 1.0, 0.9, 1.00, 18.0),
    Recorded("random", 40000, 1.00, 1.0, 0.95, 1.00, 20.0),
    Recorded("random", 40000, 1.00, 1.0, 0.99, 1.00, 24.0),
    Recorded("random", 400000, 1.00, 0.1, 0.9, 6.63, 101.8),
    Recorded("random", 400000, 1.00, 0.1, 0.95, 7.31, 149.4),
    Recorded("random", 400000, 1.00, 0.1, 0.99, 7.85, 198.5),
    Recorded("random", 400000, 1.00, 0.22, 0.9, 5.67, 101.5),
    Recorded("random", 400000, 1.00, 0.22, 0.95, 6.87, 145.7),
    Recorded("random", 400000, 1.00, 0.22, 0.99, 5.68, 172.6),
    Recorded("random", 400000, 1.00, 0.5, 0.9, 4.10, 110.2),
    Recorded("random", 400000, 1.00, 0.5, 0.95, 4.39, 136.2),
    Recorded("random", 400000, 1.00, 0.5, 0.99, 4.05, 169.7),
    Recorded("random", 400000, 1.00, 1.0, 0.9, 1.00, 18.0),
    Recorded("random", 400000, 1.00, 1.0, 0.95, 1.00, 21.0),
    Recorded("random", 400000, 1.00, 1.0, 0.99, 1.00, 25.0),
    Recorded("gridworld", 90000, 0.04, 0.1, 0.9, 2.37, 83.8),
    Recorded("gridworld", 90000, 0.04, 0.1, 0.95, 2.77, 134.0),
    Recorded("gridworld", 90000, 0.04, 0.1, 0.99, 3.89, 346.8),
    Recorded("gridworld", 90000, 0.04, 0.22, 0.9, 1.56, 76.3),
    Recorded("gridworld", 90000, 0.04, 0.22, 0.95, 1.38, 106.7),
    Recorded("gridworld", 90000, 0.04, 0.22, 0.99, 2.19, 307.1),
    Recorded("gridworld", 90000, 0.04, 0.5, 0.9, 1.38, 65.0),
    Recorded("gridworld", 90000, 0.04, 0.5, 0.95, 1.21, 90.7),
    Recorded("gridworld", 90000, 0.04, 0.5, 0.99, 1.63, 303.3),
    Recorded("gridworld", 90000, 0.04, 1.0, 0.9, 1.00, 39.3),
    Recorded("gridworld", 90000, 0.04, 1.0, 0.95, 1.00, 65.8),
    Recorded("gridworld", 90000, 0.04, 1.0, 0.99, 1.00, 249.5),
    Recorded("gridworld", 2250000, 0.04, 0.1, 0.9, 2.06, 193.7),
    Recorded("gridworld", 2250000, 0.04, 0.1, 0.95, 2.24, 326.3),
    Recorded("gridworld", 2250000, 0.04, 0.1, 0.99, 3.05, 1169.0),
    Recorded("gridworld", 2250000, 0.04, 0.22, 0.9, 1.24, 155.0),
    Recorded("gridworld", 2250000, 0.04, 0.22, 0.95, 1.28, 242.2),
    Recorded("gridworld", 2250000, 0.04, 0.22, 0.99, 1.79, 1023.2),
    Recorded("gridworld", 2250000, 0.04, 0.5, 0.9, 1.11, 109.2),
    Recorded("gridworld", 2250000, 0.04, 0.5, 0.95, 1.24, 182.3),
    Recorded("gridworld", 2250000, 0.04, 0.5, 0.99, 1.50, 841.0),
    Recorded("gridworld", 2250000, 0.04, 1.0, 0.9, 1.00, 85.9),
    Recorded("gridworld", 2250000, 0.04, 1.0, 0.95, 1.00, 164.9),
    Recorded("gridworld", 2250000, 0.04, 1.0, 0.99, 1.00, 825.0),
    Recorded("converted", 22500, 0.02, 0.1, 0.9, 3.67, 326.9),
    Recorded("converted", 22500, 0.02, 0.1, 0.95, 3.93, 557.8),
    Recorded("converted", 22500, 0.02, 0.1, 0.99, 6.65, 1941.7),
    Recorded("converted", 22500, 0.02, 0.22, 0.9, 2.19, 352.5),
    Recorded("converted", 22500, 0.02, 0.22, 0.95, 2.45, 719.0),
    Recorded("converted", 22500, 0.02, 0.22, 0.99, 4.23, 1790.9),
    Recorded("converted", 22500, 0.02, 0.5, 0.9, 1.53, 173.2),
    Recorded("converted", 22500, 0.02, 0.5, 0.95, 1.87, 561.5),
    Recorded("converted", 22500, 0.02, 0.5, 0.99, 3.27, 1265.4),
    Recorded("converted", 22500, 0.02, 1.0, 0.9, 1.00, 111.2),
    Recorded("converted", 22500, 0.02, 1.0, 0.95, 1.00, 266.4),
    Recorded("converted", 22500, 0.02, 1.0, 0.99, 1.00, 799.8),
    Recorded("converted", 360000, 0.02, 0.1, 0.9, 2.33, 95.9),
    Recorded("converted", 360000, 0.02, 0.1, 0.95, 2.86, 164.3),
    Recorded("converted", 360000, 0.02, 0.1, 0.99, 3.04, 294.8),
    Recorded("converted", 360000, 0.02, 0.22, 0.9, 1.35, 74.7),
    Recorded("converted", 360000, 0.02, 0.22, 0.95, 2.00, 150.7),
    Recorded("converted", 360000, 0.02, 0.22, 0.99, 2.26, 293.4),
    Recorded("converted", 360000, 0.02, 0.5, 0.9, 1.16, 69.0),
    Recorded("converted", 360000, 0.02, 0.5, 0.95, 1.42, 100.4),
    Recorded("converted", 360000, 0.02, 0.5, 0.99, 1.73, 273.4),
    Recorded("converted", 360000, 0.02, 1.0, 0.9, 1.00, 49.6),
    Recorded("converted", 360000, 0.02, 1.0, 0.95, 1.00, 72.3),
    Recorded("converted", 360000, 0.02, 1.0, 0.99, 1.00, 216.0),
)
