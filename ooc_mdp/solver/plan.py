"""What a solve will take, before it begins: code loaded, every large buffer in bytes.

Arithmetic only, apart from loading code so that it is counted; nothing large is allocated here.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from ooc_mdp.backends.base import Backend
from ooc_mdp.errors import MemoryBudgetError, OptionsError
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.table_source import TableSource
from ooc_mdp.options import NO_DEVICE_MEMORY, SolveOptions, format_bytes
from ooc_mdp.runtime.memory import resident_bytes
from ooc_mdp.runtime.memory_plan import MemoryPlan
from ooc_mdp.solver.device_budget import cache_left, refuse_what_is_not_free
from ooc_mdp.solver.history import history_bytes

__all__ = [
    "MethodChoice",
    "MethodName",
    "SolvePlan",
    "cache_budget",
    "choose_method",
    "load_code",
    "may_keep_rows",
    "plan_solve",
    "staging_depth",
    "writing_bytes",
]

_MOST_STAGED = 12
_ROWS = "rows of the policy"
_STAGING = {"store": "staging", "recomputed": "recomputing"}
"""What the plan calls the memory of tables on their way, by the kind of source."""
_WRITE_BUFFERS = 32 << 20
"""Bytes at most for pieces of the values on their way into a checkpoint (NumPy: 16 MiB) or a result (chunks of 8)."""


MethodName = Literal["p-eva", "p-eva on device", "exact p-eva", "vi", "synchronous vi", "policy-iteration"]


@dataclass(frozen=True, slots=True)
class MethodChoice:
    """Which method begins, and which may follow."""

    first: MethodName
    then: MethodName | None
    """Where the first costs more than this usually does."""
    shared: MethodName
    """While other solvers have partitions."""
    reason: str
    """For whoever looks on, and the trace."""


@dataclass(frozen=True, slots=True)
class SolvePlan:
    """What was decided before a solve begins."""

    options: SolveOptions
    facts: ModelFacts
    choice: MethodChoice
    cache_bytes: int
    """Budget of the partition cache."""
    memory: MemoryPlan

    @property
    def sweeps(self) -> int:
        """Most sweeps of a visit by value iteration."""
        return self.options.sweeps


def load_code(backend: Backend, model: ModelFacts, options: SolveOptions, writes: bool) -> None:
    """Load code now, so that the plan counts it: compiled loops take some 60 MB, Zarr's writer some 10.

    What policy iteration needs is loaded only where a solve is likely to begin with it.
    """
    if writes:
        import zarr.codecs  # noqa: F401
    backend.load_code(model, may_keep_rows(model, options))


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
    if choose_method(options, backend, model, store).first == "policy-iteration":
        beside |= _place_rows(backend, model, (options.device_memory - sum(beside.values())) // 2)[0]
    return cache_left(options.device_memory, beside, place, places, backend.name)


def _place(store: TableSource, backend: Backend, model: ModelFacts) -> tuple[int | None, int]:
    """Bytes of a slot, if the backend's cache has slots, and what the largest partition takes of the cache."""
    slot = backend.slot_bytes(model)
    return slot, int(store.partition_bytes.max()) if slot is None else slot


def _on_device_beside_the_cache(store: TableSource, backend: Backend, model: ModelFacts) -> dict[str, int]:
    taken = {"values": 8 * store.n_states, "policy": 4 * store.n_states} | backend.plan(model)
    loader = store.loader(backend.name)
    if loader.on_device:
        taken[_STAGING[store.kind]] = staging_depth(backend) * (int(store.partition_bytes.max()) + loader.scratch_bytes)
    return taken


def _place_rows(backend: Backend, model: ModelFacts, room: int | None) -> tuple[dict[str, int], dict[str, int]]:
    """What a policy's rows take on the device and in RAM, and have the backend place them so.

    Parameters
    ----------
    room : bytes of the device that they may take; None for all that is free.
    """
    assert backend.policy_rows is not None  # `choose_method` has looked
    on_device, in_ram = backend.policy_rows.place_rows(model, room)
    return {_ROWS: on_device}, {_ROWS: in_ram} if in_ram else {}


def plan_solve(
    store: TableSource, options: SolveOptions, backend: Backend, model: ModelFacts, writes: bool
) -> SolvePlan:
    """The method, and every large buffer of the solve in bytes; `writes`: checkpoints and a result are written.

    The process as it is now counts as "interpreter", so it should have loaded its code (:func:`load_code`).

    Raises
    ------
    OptionsError, MemoryBudgetError : see :func:`cache_budget`; the cache cannot hold the largest partition, or the
        device has not so much memory free.
    """
    slot, place = _place(store, backend, model)
    cache = cache_budget(store, options, backend, model)
    if place > cache:
        worst = int(store.partition_bytes.argmax())
        raise MemoryBudgetError(
            f"partition {worst} needs {format_bytes(place)}, the cache holds {format_bytes(cache)}; raise --cache to "
            f"at least {place}, or convert again with smaller partitions (--partition-size {max(1, cache // 2)})"
        )
    choice = choose_method(options, backend, model, store)
    used = min(cache, int(store.partition_bytes.sum()) if slot is None else slot * store.n_partitions)
    host = _host_buffers(store, backend, writes)
    if backend.name == "cpu":
        # On the CPU a table is decoded straight into the room that the cache has set aside for it.
        host["cache"] = used
        host |= backend.plan(model)
        if choice.first == "synchronous vi":
            host["values aside"] = 8 * store.n_states
        if choice.first == "policy-iteration":
            host |= _place_rows(backend, model, None)[1]
        return SolvePlan(options, model, choice, cache, MemoryPlan(host, {}))
    locked = backend.page_locked_bytes(model)
    host |= {"page-locked": locked} if locked else {}
    device = {"cache": used} | _on_device_beside_the_cache(store, backend, model)
    free = backend.free_bytes()
    if choice.first == "policy-iteration":
        room = None if free is None else free - sum(device.values())
        if options.device_memory is not None:
            room = options.device_memory - sum(device.values())
        on_device, in_ram = _place_rows(backend, model, room)
        device, host = device | on_device, host | in_ram
    refuse_what_is_not_free(device, free, backend.name, options.device_memory, place)
    return SolvePlan(options, model, choice, cache, MemoryPlan(host, device))


def _host_buffers(store: TableSource, backend: Backend, writes: bool) -> dict[str, int]:
    """Bytes in RAM that every solve of the table takes, by name."""
    n, loader, depth = store.n_states, store.loader(backend.name), staging_depth(backend)
    host = {
        "interpreter": resident_bytes(),
        "values": 8 * n,
        "policy": 4 * n,
        "bounds and coupling": 208 * store.n_partitions + 80 * store.coupling.mass.size,
        "history": history_bytes(store.n_partitions),
        "result": 12 * n,
    }
    if backend.name == "cpu":
        host[_STAGING[store.kind]] = depth * loader.scratch_bytes
    elif not loader.on_device:  # decoded, and packed for the device
        host[_STAGING[store.kind]] = depth * (2 * int(store.partition_bytes.max()) + loader.scratch_bytes)
    if writes:
        host["writing"] = writing_bytes(store)
    return host


def choose_method(options: SolveOptions, backend: Backend, model: ModelFacts, store: TableSource) -> MethodChoice:
    """The method for a table, by what is asked, how partitions depend on each other, and what the backend can do.

    =====================  ============================  ===============================  ============================
    asked                  everything reads everything   a partition reads 12 or more     else
    =====================  ============================  ===============================  ============================
    vi, one sweep a visit  synchronous vi *              vi                               vi
    p-eva                  synchronous vi *              p-eva                            p-eva
    auto, all is cached    synchronous vi *              policy iteration **              p-eva, then p. iteration **
    auto                   policy iteration **           policy iteration **              p-eva, then p. iteration **
    =====================  ============================  ===============================  ============================

    * where the backend has synchronous sweeps, else as in the last column; ** where it keeps a policy's rows and a
    device's budget has room for evaluations (for the change of the method: where no such budget is given). While other
    solvers have partitions, the method is p-eva, or what was asked for.

    Raises
    ------
    OptionsError : policy iteration was asked for, and the kernels keep no rows.
    """
    others = f"a partition reads {model.mean_partitions_read:.1f} of the {model.n_partitions - 1} others on average"
    p_eva: MethodName = "p-eva on device" if backend.features.overlaps_loads else "p-eva"
    if options.exact_priorities:
        return MethodChoice("exact p-eva", None, "exact p-eva", "exact priorities were asked for")
    if options.way == "policy-iteration":
        if backend.policy_rows is None:
            raise OptionsError(
                f"policy iteration needs kernels that keep a policy's rows, and --kernel {options.kernel} has none; "
                f"leave --kernel out, or take --method p-eva"
            )
        return MethodChoice("policy-iteration", None, "policy-iteration", "it was asked for")
    keeps_rows = backend.policy_rows is not None and _rows_fit(store, options, backend, model)
    synchronous = backend.synchronous is not None and model.densely_coupled and options.sweeps == 1
    shared: MethodName = "vi" if options.way == "vi" else p_eva
    coupled = options.way == "auto" and model.strongly_coupled
    if coupled and keeps_rows and not (synchronous and _all_is_cached(options, model)):
        return MethodChoice("policy-iteration", None, shared, others)
    if synchronous:
        return MethodChoice("synchronous vi", None, shared, others)
    if options.way == "vi":
        return MethodChoice("vi", None, "vi", "it was asked for")
    later = options.way == "auto" and backend.policy_rows is not None and options.device_memory is None
    return MethodChoice(p_eva, "policy-iteration" if later else None, p_eva, others)


def _all_is_cached(options: SolveOptions, model: ModelFacts) -> bool:
    """Whether the cache that is asked for holds the whole table."""
    cache = options.cache_size.resolve(model.table_bytes, model.largest_table_bytes)
    return options.device_memory is None and cache >= model.table_bytes


def _rows_fit(store: TableSource, options: SolveOptions, backend: Backend, model: ModelFacts) -> bool:
    """Whether a device's budget, where one is given, has room for what evaluations of a policy work in."""
    if options.device_memory is None or backend.policy_rows is None:
        return True
    beside = sum(_on_device_beside_the_cache(store, backend, model).values())
    return (
        beside + backend.policy_rows.least_rows_bytes(model) + _place(store, backend, model)[1] <= options.device_memory
    )


def writing_bytes(store: TableSource) -> int:
    """What writing a checkpoint or a result takes: buffers, and the source's numbers of the policy's actions."""
    actions = 8 * store.n_states if "action_labels" in store.fields else 0
    return min(16 * store.n_states, _WRITE_BUFFERS) + actions


def staging_depth(backend: Backend) -> int:
    """Partitions that are read at a time: half the cores, or all of them where sweeps need none."""
    cores = os.cpu_count() or 2
    return min(_MOST_STAGED, cores if backend.features.overlaps_loads else max(2, cores // 2))
