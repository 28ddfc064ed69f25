"""The CUDA sources of this folder and those below it."""

from __future__ import annotations

from importlib import resources

__all__ = ["SIMPLE", "TILES", "read_sources"]

TILES = (
    "numbers.cuh",
    "tiles/tiles.cuh",
    "tiles/memory.cuh",
    "tiles/rows.cuh",
    "tiles/sweeps.cu",
    "tiles/windows.cu",
    "tiles/exchange.cu",
    "tiles/slots.cu",
)
"""Kernels of the tiled engine, each file after those that it needs."""
SIMPLE = ("numbers.cuh", "simple/table.cuh", "simple/local.cu", "simple/measure.cu")
"""What a simple kernel's own file follows: one partition's table, its local values, and measurements."""


def read_sources(*files: str) -> str:
    """Their text, one after the other; `files` are paths below this folder."""
    folder = resources.files("ooc_mdp.backends.cuda")
    return "\n".join(folder.joinpath(file).read_text() for file in files)
