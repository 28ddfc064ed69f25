"""What a result of a finite horizon has of each stage.

    stage_policy    uint8 or int32 [T, grid]    the state's own action index; without an action 255, or -1
    stage_value     float64 [K, grid]           values of the stages that are kept
    kept_stage      int64 [K]                   which these are, ascending
    final_value     float64 [grid]              where final values were given
    stage_error     float64 [T+1]               no value of the stage is further from the exact one

Arrays of stages are read when they are asked for, stage by stage.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import StoreError
from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.model.stages import StageResults
from ooc_mdp.store.result_grid import ResultGrid
from ooc_mdp.store.sealed_file import SealError
from ooc_mdp.store.sealed_group import SealedGroup, SealedGroupWriter
from ooc_mdp.store.stage_file import NO_ACTION

__all__ = ["STAGE_ARRAYS", "STAGE_LISTS", "read_stages", "write_stages"]

STAGE_ARRAYS = frozenset({"stage_policy", "stage_value", "final_value"})
STAGE_LISTS = frozenset({"stage_error", "kept_stage"})
_TYPES = {"stage_policy": ("uint8", "int32"), "stage_value": ("float64",), "final_value": ("float64",)}


def write_stages(group: SealedGroupWriter, stages: StageResults, grid: ResultGrid) -> None:
    """Write all stages, one after the other."""
    n = math.prod(grid.shape)
    dtype = stages.policy_dtype

    def policy(stage: int) -> npt.NDArray[Any]:
        chosen = stages.policy(stage)
        return chosen if dtype == np.int32 else np.where(chosen < 0, NO_ACTION, chosen).astype(np.uint8)

    shape, dimensions = (stages.count, *grid.shape), ("stage", *grid.dimensions)
    group.write_runs("stage_policy", dtype, _runs(policy, n), shape, dimensions)
    if stages.kept:
        kept = (len(stages.kept), *grid.shape), ("kept_stage", *grid.dimensions)
        values = _runs(lambda k: stages.values(stages.kept[k]), n)
        group.write_runs("stage_value", np.dtype(np.float64), values, *kept)
    if stages.read_final is not None:
        group.write("final_value", stages.read_final(), grid.shape, grid.dimensions)
    text = {"units": "", "long_name": "stages whose values are kept"}
    group.write_small("kept_stage", np.array(stages.kept, np.int64), ("kept_stage",), text)
    text = {"units": "", "long_name": "proved bound on the error of the values of each stage"}
    group.write_small("stage_error", stages.errors, ("stage_and_end",), text)


def _runs(read: Callable[[int], npt.NDArray[Any]], n: int) -> Callable[[int, int], npt.NDArray[Any]]:
    """The elements from one to another of arrays of n that lie one after the other; the last one read is kept."""
    last: tuple[int, npt.NDArray[Any]] = (-1, np.empty(0))

    def run(start: int, stop: int) -> npt.NDArray[Any]:
        nonlocal last
        parts = []
        for stage in range(start // n, -(-stop // n)):
            if last[0] != stage:
                last = stage, read(stage)
            parts.append(last[1][max(start - stage * n, 0) : stop - stage * n])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    return run


def read_stages(group: SealedGroup, grid: ResultGrid, where: object) -> StageResults | None:
    """The stages of a result; None where it has none.

    Raises
    ------
    SealError : the arrays do not belong together.
    """
    if "stage_policy" not in group.arrays:
        return None
    if not set(group.arrays) >= STAGE_LISTS:
        raise SealError(f"missing: {', '.join(sorted(STAGE_LISTS - set(group.arrays)))}")
    errors, kept = group.small["stage_error"], group.small["kept_stage"]
    count = errors.size - 1
    if errors.dtype != np.float64 or kept.dtype != np.int64 or not (errors >= 0).all():
        raise SealError("stage_error or kept_stage is of another type, or an error is below 0")
    if kept.size and not (kept[0] >= 0 and kept[-1] <= count and (np.diff(kept) > 0).all()):
        raise SealError(f"kept_stage does not name stages from 0 to {count} in ascending order")
    due = {"stage_policy": (count, *grid.shape)}
    due |= {"stage_value": (kept.size, *grid.shape)} if kept.size else {}
    due |= {"final_value": grid.shape} if "final_value" in group.arrays else {}
    if set(due) != STAGE_ARRAYS & set(group.arrays):
        raise SealError("stage_value is there without kept stages, or missing")
    for name, shape in due.items():
        array = group.arrays[name]
        if array.dtype.name not in _TYPES[name] or array.shape != shape or array.chunks is None:
            raise SealError(f"{name} is {array.dtype.name} {array.shape}, due is the shape {shape}")
    n = math.prod(grid.shape)

    def part(name: str, place: int) -> npt.NDArray[Any]:
        try:
            return group.read_run(name, place * n, (place + 1) * n)[0]
        except SealError as error:
            raise StoreError(f"the result {where} is damaged ({error}); solve again") from error

    def policy(stage: int) -> npt.NDArray[np.int32]:
        found = part("stage_policy", stage)
        chosen = found.astype(np.int32)
        if found.dtype == np.uint8:
            chosen[found == NO_ACTION] = -1
        return chosen

    def values(stage: int) -> FloatArray:
        return part("stage_value", int(np.searchsorted(kept, stage)))

    dtype = group.arrays["stage_policy"].dtype
    final = (lambda: part("final_value", 0)) if "final_value" in due else None
    return StageResults(count, errors, tuple(kept.tolist()), dtype, policy, values, final)
