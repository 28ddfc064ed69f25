"""Partition a weighted graph into parts with little weight across, by METIS; the only module that imports pymetis.

The nodes are states, to be divided into partitions, or partitions, to be divided among workers. The graph is held in
memory.
"""

from __future__ import annotations

import numpy as np

from ooc_mdp.errors import MissingExtraError
from ooc_mdp.model.mdp import FloatArray, IntArray

__all__ = ["partition_graph", "require_metis"]

_LARGEST_SUM = 1 << 30
"""Largest sum of weights: some builds of METIS have 32-bit integers."""


def require_metis(purpose: str) -> None:
    """Raise the error that names the extra if pymetis is not installed.

    Parameters
    ----------
    purpose : what needs it, as the subject of the message.

    Raises
    ------
    MissingExtraError : pymetis is not installed.
    """
    try:
        import pymetis  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("pymetis", "metis", purpose) from error


def partition_graph(
    ptr: IntArray,
    neighbours: IntArray,
    parts: int,
    node_weights: IntArray,
    edge_weights: IntArray | None = None,
    shares: FloatArray | None = None,
) -> IntArray:
    """Return the part of each node, 0 .. parts-1: parts of about equal weight, little weight of edges between them.

    METIS is heuristic: weights may differ by a few per cent, and some parts may be empty where nodes are few. The same
    graph gives the same result. Call :func:`require_metis` first.

    Parameters
    ----------
    ptr, neighbours : int64 [n+1], [edges]; the graph as CSR, each edge in both directions, no loops.
    parts : at least 1.
    node_weights : int64 [n], not negative.
    edge_weights : int64 [edges], not negative, the same in both directions; None where all weigh the same.
    shares : float64 [parts], positive; relative weights of the parts, equal if None.
    """
    import pymetis

    n = ptr.size - 1
    if parts == 1 or n == 0:
        return np.zeros(n, np.int64)
    _, part = pymetis.part_graph(
        parts,
        pymetis.CSRAdjacency(ptr.astype(np.int64), neighbours.astype(np.int64)),
        vweights=_in_range(node_weights),
        eweights=None if edge_weights is None else _in_range(edge_weights),
        tpwgts=None if shares is None else (shares / shares.sum()).tolist(),
    )
    return np.asarray(part, np.int64)


def _in_range(weights: IntArray) -> IntArray:
    """Positive weights in the same proportions, small enough to be summed."""
    return np.maximum(weights // max(int(weights.sum()) // _LARGEST_SUM, 1), 1).astype(np.int64)
