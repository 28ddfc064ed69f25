"""What a solve will take, before it begins: code loaded, every large buffer in bytes.

Arithmetic only, apart from loading code so that it is counted; nothing large is allocated here.
"""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np

from ooc_mdp.backends.base import Backend, CompilesLoops, KeepsPolicyRows, SweepsAside, SweepsAtOnce
from ooc_mdp.errors import MemoryBudgetError, OptionsError
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.partition import PartitionTable
from ooc_mdp.model.table_source import TableSource
from ooc_mdp.options import NO_DEVICE_MEMORY, SolveOptions, format_bytes
from ooc_mdp.runtime.memory import resident_bytes
from ooc_mdp.runtime.memory_plan import MemoryPlan
from ooc_mdp.solver.device_budget import (
    HasSlots,
    LocksHostMemory,
    PlacesRows,
    ReportsFreeMemory,
    cache_left,
    refuse_what_is_not_free,
)
from ooc_mdp.solver.history import history_bytes

__all__ = [
    "aside_bytes",
    "at_once_bytes",
    "begins_with_rows",
    "cache_budget",
    "may_keep_rows",
    "plan_memory",
    "staging_depth",
    "warm_up",
    "writing_bytes",
]

_MOST_STAGED = 12
_MOST_OF_THE_TABLE = 1 / 2
"""Share of the table's bytes that a policy's rows may take beside it."""
_WARM_STATES = 256
_WARM_SUCCESSORS = 64
_ROWS = "rows of the policy"
_STAGING = {"store": "staging", "recomputed": "recomputing"}
"""What the plan calls the memory of tables on their way, by the kind of source."""
_WRITE_BUFFERS = 32 << 20
"""Bytes at most for pieces of the values on their way into a checkpoint (NumPy: 16 MiB) or a result (chunks of 8)."""


def warm_up(store: TableSource, options: SolveOptions, backend: Backend, model: ModelFacts, writes: bool) -> None:
    """Load code now, so that the plan counts it: compiled kernels take some 60 MB, Zarr's writer some 10.

    Kernels are called on a small table with the store's types and shapes, those of policy iteration only where a solve
    is likely to begin with it. A CUDA backend loads its own at the start.
    """
    if writes:
        import zarr.codecs  # noqa: F401
    if not isinstance(backend, CompilesLoops):
        return
    dtype = {name: field.dtype for name, field in store.fields.items()}
    actions, successors = model.actions_per_state, model.successors_per_action
    n = min(model.largest_partition, _WARM_STATES)
    m, k = n * (actions or 1), successors or min(model.longest_row, _WARM_SUCCESSORS)
    table = PartitionTable(
        index=0,
        first_state=0,
        n_states=n,
        actions_per_state=actions,
        successors_per_action=successors,
        action_ptr=np.arange(0 if actions else n + 1, dtype=np.uint32),
        successor_ptr=k * np.arange(0 if successors else m + 1, dtype=np.uint32),
        successors=np.zeros(m * k, dtype["successors"]),
        probabilities=np.full(m * k, 1 / (k or 1), dtype["probabilities"]),
        rewards=np.zeros(m, dtype["rewards"]),
        durations=np.ones(m if "durations" in dtype else 0),
        terminal_rewards=np.zeros(n if "terminal_rewards" in dtype else 0),
        initial_values=np.zeros(n if "initial_values" in dtype else 0),
        halo=np.empty(0, np.int64),
        boundary=np.zeros(n, np.bool_),
    )
    shape = None if model.block_shapes is None else np.ones((1, model.block_shapes.shape[1]), np.int32)
    if shape is not None:
        shape[0, -1] = n
    small = replace(
        model,
        n_states=n,
        largest_halo=0,
        contraction=replace(model.contraction, row_sum=np.ones(1)),
        block_shapes=shape,
        partition_ptr=np.array([0, n]),
        row_widths=np.array([k]),
    )
    backend.start(small, None, None)
    resident = backend.admit(backend.prepare(table))
    backend.call_loops(resident, may_keep_rows(model, options))
    backend.release(resident)


def may_keep_rows(model: ModelFacts, options: SolveOptions) -> bool:
    """Whether a solve is likely to begin with policy iteration."""
    return options.way == "policy-iteration" or (options.way == "auto" and model.strongly_coupled)


def cache_budget(store: TableSource, options: SolveOptions, backend: Backend, model: ModelFacts) -> int:
    """Bytes of the partition cache: as the options say, or what a device's budget leaves.

    Raises
    ------
    OptionsError : a device's budget is given, and the backend is the CPU.
    MemoryBudgetError : a device's budget leaves no room for a partition.
    """
    slot, place = _place(store, backend, model)
    if options.device_memory is None:
        whole = int(store.partition_bytes.sum()) if slot is None else slot * store.n_partitions
        return options.cache_size.resolve(whole, place)
    if backend.name == "cpu":
        raise OptionsError(NO_DEVICE_MEMORY)
    places = 0 if slot is None else store.n_partitions
    beside = _on_device_beside_the_cache(store, backend, model)
    if begins_with_rows(store, options, backend, model, 0):
        beside |= _rows_on_device(backend, model, (options.device_memory - sum(beside.values())) // 2)[0]
    return cache_left(options.device_memory, beside, place, places, backend.name)


def _place(store: TableSource, backend: Backend, model: ModelFacts) -> tuple[int | None, int]:
    """Bytes of a slot, if the backend's cache has slots, and what the largest partition takes of the cache."""
    slot = backend.slot_bytes(model) if isinstance(backend, HasSlots) else None
    return slot, int(store.partition_bytes.max()) if slot is None else slot


def _on_device_beside_the_cache(store: TableSource, backend: Backend, model: ModelFacts) -> dict[str, int]:
    taken = {"values": 8 * store.n_states, "policy": 4 * store.n_states} | backend.plan(model)
    loader = store.loader(backend.name)
    if loader.on_device:
        taken[_STAGING[store.kind]] = staging_depth(backend) * (int(store.partition_bytes.max()) + loader.scratch_bytes)
    return taken


def _rows_on_device(backend: Backend, model: ModelFacts, room: int | None) -> tuple[dict[str, int], dict[str, int]]:
    """What a policy's rows take on the device and in RAM, and have the backend place them so.

    Parameters
    ----------
    room : bytes of the device that they may take; None for all that is free.
    """
    if not isinstance(backend, PlacesRows):
        return {}, {}
    on_device, in_ram = backend.place_rows(model, room)
    return {_ROWS: on_device}, {_ROWS: in_ram} if in_ram else {}


def plan_memory(
    store: TableSource, options: SolveOptions, backend: Backend, model: ModelFacts, writes: bool
) -> MemoryPlan:
    """Every large buffer of the solve, in bytes; `writes` says whether checkpoints and a result are written.

    The process as it is now counts as "interpreter", so it should have loaded its code (:func:`warm_up`).

    Raises
    ------
    OptionsError, MemoryBudgetError : see :func:`cache_budget`; the cache cannot hold the largest partition, or the
        device has not so much memory free.
    """
    n = store.n_states
    table = int(store.partition_bytes.sum())
    largest = int(store.partition_bytes.max())
    slot, place = _place(store, backend, model)
    cache = cache_budget(store, options, backend, model)
    if place > cache:
        worst = int(store.partition_bytes.argmax())
        raise MemoryBudgetError(
            f"partition {worst} needs {format_bytes(place)}, the cache holds {format_bytes(cache)}; raise --cache to "
            f"at least {place}, or convert again with smaller partitions (--partition-size {max(1, cache // 2)})"
        )
    cache = min(cache, table if slot is None else slot * store.n_partitions)
    loader = store.loader(backend.name)
    depth = staging_depth(backend)
    host = {
        "interpreter": resident_bytes(),
        "values": 8 * n,
        "policy": 4 * n,
        "bounds and coupling": 208 * store.n_partitions + 80 * store.coupling.mass.size,
        "history": history_bytes(store.n_partitions),
        "result": 12 * n,
    }
    if not loader.on_device:
        host[_STAGING[store.kind]] = depth * (2 * largest + loader.scratch_bytes)  # decoded, and packed for the device
    if writes:
        host["writing"] = writing_bytes(store)
    if backend.name == "cpu":
        # On the CPU a table is decoded straight into the room that the cache has set aside for it.
        host["cache"] = cache
        host[_STAGING[store.kind]] = depth * loader.scratch_bytes
        at_once = at_once_bytes(store, options, backend, model, cache)
        rows = {_ROWS: at_once} if at_once else {}
        aside = aside_bytes(store, options, backend, model, cache)
        rows |= {"values aside": aside} if aside else {}
        if begins_with_rows(store, options, backend, model, cache):
            assert isinstance(backend, KeepsPolicyRows)  # the CPU does
            rows[_ROWS] = backend.rows_bytes(model)
        return MemoryPlan(host | backend.plan(model) | rows, {})
    if isinstance(backend, LocksHostMemory):
        host["page-locked"] = backend.page_locked_bytes(model)
    device = {"cache": cache} | _on_device_beside_the_cache(store, backend, model)
    free = backend.memory_free() if isinstance(backend, ReportsFreeMemory) else None
    if begins_with_rows(store, options, backend, model, cache):
        room = None if free is None else free - sum(device.values())
        if options.device_memory is not None:
            room = options.device_memory - sum(device.values())
        on_device, in_ram = _rows_on_device(backend, model, room)
        device, host = device | on_device, host | in_ram
    refuse_what_is_not_free(device, free, backend.name, options.device_memory, place)
    return MemoryPlan(host, device)


def writing_bytes(store: TableSource) -> int:
    """What writing a checkpoint or a result takes: buffers, and the source's numbers of the policy's actions."""
    actions = 8 * store.n_states if "action_labels" in store.fields else 0
    return min(16 * store.n_states, _WRITE_BUFFERS) + actions


def at_once_bytes(store: TableSource, options: SolveOptions, backend: Backend, model: ModelFacts, cache: int) -> int:
    """What sweeps of the whole model at once (`solver.methods.at_once`) take beside the cache; 0: they are not made.

    They need all partitions in the cache, and rows of the policy that are much smaller than the table, padded to the
    longest.
    """
    table = int(store.partition_bytes.sum())
    wanted = options.way in ("auto", "p-eva") and not options.exact_priorities
    if not (wanted and isinstance(backend, SweepsAtOnce)) or cache < table:
        return 0
    needed = backend.at_once_bytes(model)
    return needed if needed <= _MOST_OF_THE_TABLE * table else 0


def aside_bytes(store: TableSource, options: SolveOptions, backend: Backend, model: ModelFacts, cache: int) -> int:
    """What passes that change no value until they are done take beside the cache; 0: none are made.

    They are made by vi, one sweep a visit, and by p-eva where the cache has no room for all partitions, which read
    each other everywhere, so that passes are the best that it can do.
    """
    by_passes = options.way == "vi" and options.sweeps == 1
    instead = options.way == "p-eva" and not options.exact_priorities and cache < int(store.partition_bytes.sum())
    if not (by_passes or instead) or not (isinstance(backend, SweepsAside) and model.densely_coupled):
        return 0
    return backend.aside_bytes(model)


def begins_with_rows(
    store: TableSource, options: SolveOptions, backend: Backend, model: ModelFacts, cache: int
) -> bool:
    """Whether the solve begins with policy iteration: as asked, or, with auto, because partitions read many others.

    Where the cache holds everything and every partition reads every other, sweeps of the whole model are quicker. A
    device's budget must have room for what evaluations work in.
    """
    if options.way == "policy-iteration" and not isinstance(backend, KeepsPolicyRows):
        raise OptionsError(
            f"policy iteration needs kernels that keep a policy's rows, and --kernel {options.kernel} has none; leave "
            f"--kernel out, or take --method p-eva"
        )
    if options.way == "policy-iteration" or not isinstance(backend, KeepsPolicyRows):
        return options.way == "policy-iteration"
    if options.way != "auto" or not model.strongly_coupled:
        return False
    if options.device_memory is not None and isinstance(backend, PlacesRows):
        beside = sum(_on_device_beside_the_cache(store, backend, model).values())
        least = beside + backend.least_rows_bytes(model) + _place(store, backend, model)[1]
        return least <= options.device_memory
    return not (model.densely_coupled and at_once_bytes(store, options, backend, model, cache) > 0)


def staging_depth(backend: Backend) -> int:
    """Partitions that are read at a time: half the cores, or all of them where sweeps need none."""
    cores = os.cpu_count() or 2
    return min(_MOST_STAGED, cores if backend.loads_beside else max(2, cores // 2))
