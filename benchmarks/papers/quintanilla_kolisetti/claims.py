"""What the paper says in numbers: A. Quintanilla, A. Kolisetti, *Parallelizing Markov Decision Process Problems*."""

from __future__ import annotations

__all__ = [
    "AVERAGE_SHARES",
    "CONFIGURATIONS",
    "ERRORS",
    "SEQUENTIAL",
    "SIDES",
    "SINGLE_STEPS",
    "SUMMATION",
    "TRANSITIONS",
    "UPDATE",
]

SIDES = {"Sample1": 100, "Sample2": 200, "Sample3": 500, "Sample4": 750}
"""Cells along each axis (section 3.1)."""
TRANSITIONS = {"Sample1": 119_992, "Sample2": 479_992, "Sample3": 2_999_992, "Sample4": 6_749_992}

SINGLE_STEPS = (1024, 1024)
"""Blocks and threads of tables 1 and 2 (section 3)."""
SUMMATION = {"Sample1": (0.289, 1.715), "Sample2": (1.135, 2.518), "Sample3": (7.194, 8.613)}
"""Table 1: milliseconds of one action utility summation, sequential and parallel; it leaves Sample4 out."""
UPDATE = {"Sample1": (0.146, 1.276), "Sample2": (0.635, 1.352), "Sample3": (3.507, 1.836), "Sample4": (8.017, 2.613)}
"""Table 2: milliseconds of one utility update."""

SEQUENTIAL = {"Sample1": 21.233, "Sample2": 91.229, "Sample3": 567.043, "Sample4": 1286.318}
"""Tables 3 to 7: milliseconds of the whole algorithm, the same in all of them."""
_SAMPLES = tuple(SIDES)
CONFIGURATIONS = {
    (8, 256): dict(zip(_SAMPLES, (18.598, 87.756, 395.315, 869.587), strict=True)),
    (5, 384): dict(zip(_SAMPLES, (16.821, 77.041, 415.221, 923.771), strict=True)),
    (4, 512): dict(zip(_SAMPLES, (16.462, 74.002, 389.442, 854.401), strict=True)),
    (2, 768): dict(zip(_SAMPLES, (20.177, 73.573, 431.438, 852.203), strict=True)),
    (2, 1024): dict(zip(_SAMPLES, (16.521, 92.353, 383.84, 845.905), strict=True)),
}
"""Tables 3 to 7: blocks and threads of a block, and milliseconds of the parallel algorithm."""
ERRORS = {"Sample1": 0.0, "Sample2": 0.0, "Sample3": 1.6e-5, "Sample4": 1.2e-5}
"""Percent, the same in all tables."""
AVERAGE_SHARES = {"Sample1": 83.437, "Sample2": 88.771, "Sample3": 71.079, "Sample4": 67.571}
"""Percent of the sequential time, over all configurations (section 5)."""
