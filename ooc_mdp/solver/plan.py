"""What a solve will take, before it begins: constants of the model, code loaded, every large buffer in bytes.

Arithmetic only, apart from loading code so that it is counted; nothing large is allocated here.
"""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.base import (
    Backend,
    CompilesLoops,
    KeepsPolicyRows,
    ModelConstants,
    SweepsAside,
    SweepsAtOnce,
    TableFacts,
)
from ooc_mdp.errors import MemoryBudgetError, OptionsError
from ooc_mdp.model.contraction import Contraction
from ooc_mdp.model.mdp import FloatArray, discounts
from ooc_mdp.model.numbering import GridNumbering
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
from ooc_mdp.store import Store

__all__ = [
    "LARGEST_VALUE",
    "aside_bytes",
    "at_once_bytes",
    "begins_with_rows",
    "cache_budget",
    "check_size",
    "contraction_of",
    "least_weights_of",
    "may_keep_rows",
    "model_of",
    "partitions_read",
    "plan_memory",
    "reads_everywhere",
    "staging_depth",
    "strongly_coupled",
    "warm_up",
    "writing_bytes",
]

LARGEST_VALUE = 1e150
"""Of values, whose squares are added up."""
_MOST_STAGED = 12
_MOST_OF_THE_TABLE = 1 / 2
"""Share of the table's bytes that a policy's rows may take beside it."""
_MANY_READ = 12.0
"""Partitions that one reads on average from which on policy iteration is quicker than p-eva: gridworlds and the car
read 4 to 8, double pendulums in four axes 16 and more."""
_WARM_STATES = 256
_WARM_SUCCESSORS = 64
_ROWS = "rows of the policy"
_STAGING = {"store": "staging", "recomputed": "recomputing"}
"""What the plan calls the memory of tables on their way, by the kind of source."""
_WRITE_BUFFERS = 32 << 20
"""Bytes at most for pieces of the values on their way into a checkpoint (NumPy: 16 MiB) or a result (chunks of 8)."""


def model_of(store: TableSource, options: SolveOptions) -> ModelConstants:
    """What a backend must know of the model before it starts."""
    return ModelConstants(
        n_states=store.n_states,
        largest_partition=int(np.diff(store.partition_ptr).max()),
        largest_halo=int(store.partition_halo.max()),
        discount=options.discount,
        sign=1.0 if store.sense == "max" else -1.0,
        row_sums=contraction_of(store, options).row_sum,
        block_shapes=_block_shapes(store),
        partition_ptr=store.partition_ptr,
        table=_facts_of(store),
        longest_row=int(store.max_successors.max(initial=0)),
        row_widths=store.max_successors,
    )


def check_size(store: TableSource, options: SolveOptions) -> None:
    """Refuse rewards that may add up to values whose squares float64 does not hold.

    Raises
    ------
    OptionsError : they may.
    """
    largest = float(np.abs(store.reward_range).max(initial=0.0))
    steps = 1.0 if options.discount == 1 else float(contraction_of(store, options).inverse.max())
    if not largest * steps <= LARGEST_VALUE:
        raise OptionsError(
            f"{store.name}: rewards up to {largest:.3g} add up to {largest * steps:.3g} at this discount, and numbers "
            f"above {LARGEST_VALUE:.0e} are too large for float64 once they are squared; give rewards in a larger "
            f"unit (divide all of them by one number), and multiply the values by it"
        )


def _facts_of(store: TableSource) -> TableFacts:
    """Shapes and types of the tables."""
    return TableFacts(
        actions=int(store.attributes["actions_per_state"]),
        width=int(store.attributes["successors_per_action"]),
        exact_weights=store.exact_weights,
        real=store.fields["probabilities"].dtype,
        successor=store.fields["successors"].dtype,
        durations=store.duration_dtype,
        largest_bytes=int(store.partition_bytes.max()),
        frames=(store.stored_fields, store.frame_buffer_bytes) if isinstance(store, Store) else None,
    )


def _block_shapes(store: TableSource) -> npt.NDArray[np.int32] | None:
    order = store.attributes["state_order"]
    return GridNumbering.from_order(order).block_shapes() if order["kind"] == "grid" else None


def contraction_of(store: TableSource, options: SolveOptions) -> Contraction:
    """Discounts and row sums of the partitions, from the source's small arrays."""
    low, high = store.row_sum_range.T
    alike = int(store.attributes["actions_per_state"]) > 0 and "durations" not in store.fields
    return Contraction.of(options.discount, store.duration_range[:, 0], high, store.max_successors, low, alike)


def least_weights_of(store: TableSource, options: SolveOptions) -> FloatArray:
    """float64 [P]: at most the row sum times the discount of every row of each partition, rounded down."""
    weights = discounts(options.discount, store.duration_range[:, 1]) * store.row_sum_range[:, 0]
    return np.asarray(weights * (1 - (store.max_successors + 4) * 2.0**-52))


def warm_up(store: TableSource, options: SolveOptions, backend: Backend, model: ModelConstants, writes: bool) -> None:
    """Load code now, so that the plan counts it: compiled kernels take some 60 MB, Zarr's writer some 10.

    Kernels are called on a small table with the store's types and shapes, those of policy iteration only where a solve
    is likely to begin with it. A CUDA backend loads its own at the start.
    """
    if writes:
        import zarr.codecs  # noqa: F401
    if not isinstance(backend, CompilesLoops):
        return
    dtype = {name: field.dtype for name, field in store.fields.items()}
    actions, successors = (int(store.attributes[n]) for n in ("actions_per_state", "successors_per_action"))
    n = min(model.largest_partition, _WARM_STATES)
    m, k = n * (actions or 1), successors or min(int(store.max_successors.max()), _WARM_SUCCESSORS)
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
        largest_partition=n,
        largest_halo=0,
        row_sums=np.ones(1),
        block_shapes=shape,
        partition_ptr=np.array([0, n]),
        longest_row=k,
        row_widths=np.array([k]),
    )
    backend.start(small, None, None)
    resident = backend.admit(backend.prepare(table))
    backend.call_loops(resident, may_keep_rows(store, options))
    backend.release(resident)


def may_keep_rows(store: TableSource, options: SolveOptions) -> bool:
    """Whether a solve is likely to begin with policy iteration."""
    return options.way == "policy-iteration" or (options.way == "auto" and strongly_coupled(store))


def cache_budget(store: TableSource, options: SolveOptions, backend: Backend, model: ModelConstants) -> int:
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


def _place(store: TableSource, backend: Backend, model: ModelConstants) -> tuple[int | None, int]:
    """Bytes of a slot, if the backend's cache has slots, and what the largest partition takes of the cache."""
    slot = backend.slot_bytes(model) if isinstance(backend, HasSlots) else None
    return slot, int(store.partition_bytes.max()) if slot is None else slot


def _on_device_beside_the_cache(store: TableSource, backend: Backend, model: ModelConstants) -> dict[str, int]:
    taken = {"values": 8 * store.n_states, "policy": 4 * store.n_states} | backend.plan(model)
    loader = store.loader(backend.name)
    if loader.on_device:
        taken[_STAGING[store.kind]] = staging_depth(backend) * (int(store.partition_bytes.max()) + loader.scratch_bytes)
    return taken


def _rows_on_device(backend: Backend, model: ModelConstants, room: int | None) -> tuple[dict[str, int], dict[str, int]]:
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
    store: TableSource, options: SolveOptions, backend: Backend, model: ModelConstants, writes: bool
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


def at_once_bytes(
    store: TableSource, options: SolveOptions, backend: Backend, model: ModelConstants, cache: int
) -> int:
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


def reads_everywhere(store: TableSource) -> bool:
    """Whether partitions read more from outside than they own, and from most of the others: no place matters more."""
    halo = int(store.partition_halo.sum())
    return halo > store.n_states and 2 * store.coupling.mass.size > store.n_partitions**2


def aside_bytes(store: TableSource, options: SolveOptions, backend: Backend, model: ModelConstants, cache: int) -> int:
    """What passes that change no value until they are done take beside the cache; 0: none are made.

    They are made by vi, one sweep a visit, and by p-eva where the cache has no room for all partitions, which read
    each other everywhere, so that passes are the best that it can do.
    """
    by_passes = options.way == "vi" and options.sweeps == 1
    instead = options.way == "p-eva" and not options.exact_priorities and cache < int(store.partition_bytes.sum())
    if not (by_passes or instead) or not (isinstance(backend, SweepsAside) and reads_everywhere(store)):
        return 0
    return backend.aside_bytes(model)


def partitions_read(store: TableSource) -> float:
    """How many others a partition reads on average."""
    return float(store.coupling.mass.size - store.n_partitions) / store.n_partitions


def strongly_coupled(store: TableSource) -> bool:
    """Whether partitions read so many others, or so much of the model, that visits by priority do not pay."""
    return reads_everywhere(store) or partitions_read(store) >= _MANY_READ


def begins_with_rows(
    store: TableSource, options: SolveOptions, backend: Backend, model: ModelConstants, cache: int
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
    if options.way != "auto" or not strongly_coupled(store):
        return False
    if options.device_memory is not None and isinstance(backend, PlacesRows):
        beside = sum(_on_device_beside_the_cache(store, backend, model).values())
        least = beside + backend.least_rows_bytes(model) + _place(store, backend, model)[1]
        return least <= options.device_memory
    return not (reads_everywhere(store) and at_once_bytes(store, options, backend, model, cache) > 0)


def staging_depth(backend: Backend) -> int:
    """Partitions that are read at a time: half the cores, or all of them where sweeps need none."""
    cores = os.cpu_count() or 2
    return min(_MOST_STAGED, cores if backend.loads_beside else max(2, cores // 2))
