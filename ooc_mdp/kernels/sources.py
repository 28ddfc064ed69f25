"""The CUDA sources of this folder, which are compiled together."""

from __future__ import annotations

from importlib import resources

__all__ = ["TILES", "read_sources"]

TILES = (
    "tiles.cuh",
    "tile_memory.cuh",
    "tile_rows.cuh",
    "tile_sweeps.cu",
    "tile_settling.cu",
    "tile_exchange.cu",
    "tile_slots.cu",
)
"""Kernels of the tiled engine, each file after those that it needs."""


def read_sources(*files: str) -> str:
    """Their text, one after the other."""
    folder = resources.files("ooc_mdp.kernels")
    return "\n".join(folder.joinpath(file).read_text() for file in files)
