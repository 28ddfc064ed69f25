"""Made-up results: no solve, every figure chosen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from solve_histories import history_of

from ooc_mdp.model.solution import Certificate, Outcome, Solution
from ooc_mdp.model.state_order import GridOrder
from ooc_mdp.model.statistics import SolveStatistics
from ooc_mdp.store.result import Result

__all__ = ["made_result"]


def made_result(shape: tuple[int, ...], blocks: int = 2, **changes: Any) -> Result:
    """A result on a grid whose axes are cut into so many blocks; changes are of its solution."""
    n = int(np.prod(shape))
    edges = [[*range(0, k, max(1, k // blocks)), k] for k in shape]
    order = GridOrder(shape, edges)
    partitions = order.partition_ptr.size - 1
    axes = [{"name": f"axis{i}", "low": -1.0, "high": 1.0, "unit": "m"} for i in range(len(shape))]
    given: dict[str, Any] = {
        "outcome": Outcome.PROVED,
        "method": "p-eva",
        "device": "cpu",
        "criterion": {"criterion": "discounted", "discount": 0.9},
        "certificate": Certificate(1e-3, -1e-3, 1e-3, 1e-4, 1e-12, 2e-3, "epsilon", 2e-3, "bounds"),
        "statistics": SolveStatistics(n_states=n, n_partitions=partitions, table_bytes=1000, cache_bytes=220, loads=7),
        "values": np.arange(n, dtype=np.float64) ** 1.5,
        "policy": (np.arange(n) % 5).astype(np.int32),
        "memory_plan": {"host": {"cache": 1 << 20, "values": 1 << 10}, "device": {}},
        "history": history_of(9, partitions),
    }
    return Result(
        Path("made-up.result"),
        {"fingerprint": "0" * 64, "sense": "max", "criterion": "discounted", "discount": 0.9},
        Solution(**(given | changes)),
        {"source": "made-up"},
        geometry={"shape": list(shape), "axes": axes},
        partitions=order.state_order(),
    )
