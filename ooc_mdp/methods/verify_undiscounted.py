"""`verify` for undiscounted totals: an inductive check of a result's lower and upper values, by the table alone.

Nothing of the solve is trusted, neither its end components nor its charges: `docs/undiscounted.md` shows that what is
looked at here, state by state, implies L <= V_pi <= V* <= U, and that V* is finite.
"""

from __future__ import annotations

import numpy as np

from ooc_mdp.errors import StoreError
from ooc_mdp.events import Watcher
from ooc_mdp.mdp import FloatArray
from ooc_mdp.methods.end_components import original_numbers
from ooc_mdp.methods.inductive import Inductive, inductive
from ooc_mdp.methods.results import Result
from ooc_mdp.methods.streaming import Neighbours, Streamed
from ooc_mdp.table_source import TableSource

__all__ = ["check_result"]

_DEPTH = 2
"""Partitions that are read at a time; the cache has room for as many, the one that is checked, and no more."""


def check_result(
    store: TableSource, result: Result, values: FloatArray, lower: FloatArray, upper: FloatArray,
    policy: np.ndarray[tuple[int], np.dtype[np.int32]], watch: Watcher | None,
) -> tuple[Inductive, float, int, int]:  # fmt: skip
    """Check what a result claims; arrays are in store order, values and bounds those of the maximisation.

    Returns
    -------
    what was found, the error that it proves (infinite where it does not hold), a state at fault or else where the
    error is largest (source numbering), bytes read

    Raises
    ------
    StoreError : a chunk is damaged, or a bound is not finite.
    """
    if not (np.isfinite(lower).all() and np.isfinite(upper).all()):
        raise StoreError(f"{result.path} has a bound that is not finite: it is damaged; solve again")
    sign = 1.0 if store.sense == "max" else -1.0
    largest = int(store.partition_bytes.max())
    done = 0

    def tick() -> None:
        nonlocal done
        done += 1
        if watch is not None:
            watch("verify", done, None if done > store.n_partitions else store.n_partitions)

    with Streamed(store, (_DEPTH + 1) * largest, _DEPTH, tick) as tables:
        found = inductive(tables, Neighbours(store.coupling), np.stack([lower, upper], axis=1), values, policy, sign)
        n_bytes = tables.cache.statistics.bytes_read
    apart = np.maximum(upper - values, values - lower)
    where = int(np.argmax(apart)) if found.holds else found.at_fault
    error = float(np.nextafter(apart[where], np.inf)) if found.holds else float("inf")
    return found, error, int(original_numbers(store, np.array([where]))[0]), n_bytes
