"""What the paper says in numbers: T. Inamoto, Y. Higami, S. Kobayashi, on the time of convergence tests (in Japanese).

Its figures 1 and 2 give no numbers; section 6.3 has ratios, means over all block sizes.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["BLOCKS", "CLAIMS", "STATES", "TECHNIQUES", "Claim"]

BLOCKS = (4, 16, 32, 64, 256, 512)
"""Threads of a block: section 6.3 lists 16 to 512, and speaks of 4 as well."""
TECHNIQUES = {1: "states, every sweep", 2: "states, at intervals", 3: "blocks, every sweep", 4: "blocks, at intervals"}
"""Table 1: what is copied to the host, and when."""
STATES = {"animat": "about 1 million", "mountain-car": "about 24 million"}


class Claim(NamedTuple):
    """One ratio of seconds, the mean over block sizes."""

    problem: str
    above: int
    """Technique whose seconds are divided by those of `below`."""
    below: int
    percent: float | None
    """None: not given."""


CLAIMS = (
    Claim("mountain-car", 3, 1, 2.907),
    Claim("mountain-car", 4, 2, 28.55),
    Claim("animat", 3, 1, 83.08),
    Claim("animat", 4, 2, None),
)
