"""Made-up histories of solves, each array different."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from ooc_mdp.model.solution import SolveHistory


def history_of(rows: int, partitions: int) -> SolveHistory:
    along = {"loads", "visits", "sweeps", "first_visit", "last_visit"}
    floats = {"seconds", "error_bound", "residual_bound", "first_visit", "last_visit"}
    arrays: dict[str, Any] = {}
    for i, field in enumerate(fields(SolveHistory)):
        n = partitions if field.name in along else rows
        arrays[field.name] = (np.arange(n) + i).astype(float if field.name in floats else np.int64)
    if rows:
        arrays["error_bound"][0] = np.inf
    arrays["first_visit"][0] = np.nan
    return SolveHistory(**arrays)
