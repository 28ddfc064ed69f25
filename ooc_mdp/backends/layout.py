"""How a backend will hold one model: bytes by name, computed before anything is allocated.

    facts, needs ─▶ Backend.layout ─▶ Layout ─▶ Backend.start
    budget of a device >= values + policy + staging + the backend's own buffers + rows of the policy + cache
                 cache >= one partition (or slot)

Arithmetic only, with refusals that name the bytes and the remedy. What a driver keeps for itself (a CUDA context,
loaded code) is neither in a budget nor in what a device has free.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import MemoryBudgetError
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import IntArray
from ooc_mdp.options import CacheSize, format_bytes
from ooc_mdp.runtime.memory_plan import SMALLER

__all__ = [
    "ROWS",
    "TRIANGLE",
    "Layout",
    "Needs",
    "SlotsTooSmall",
    "cache_of_size",
    "cache_within_budget",
    "check_free_memory",
    "device_layout",
]

ROWS = "rows of the policy"
"""What a memory plan calls the rows of a policy and the workspace of its evaluations."""
TRIANGLE = "triangular solves for the policy's values"
"""What it calls the memory of a better solver, which an evaluation comes to where a simple one takes long."""
_WHOLE_TABLE = CacheSize(share=1.0)


@dataclass(frozen=True, slots=True)
class Needs:
    """What the options and the method of a solve need of a layout."""

    cache: CacheSize = _WHOLE_TABLE
    """Budget of the partition cache, unless it follows from `device_memory`."""
    device_memory: int | None = None
    """Bytes of the device for everything; None where `cache` gives the size of the cache."""
    free: int | None = None
    """Bytes that are free on the device, or in RAM on the CPU; None where that is unknown."""
    staging: Mapping[str, int] = field(default_factory=dict)
    """Bytes on the device, by name, of tables that are being loaded."""
    policy_rows: bool = False
    """Whether the solve begins with policy iteration, which keeps rows."""
    synchronous: bool = False
    """Whether it begins with synchronous sweeps, which keep a second value vector."""

    @property
    def room(self) -> int | None:
        """Bytes of the device for everything: its budget, or what is free; None where that is unknown."""
        return self.free if self.device_memory is None else self.device_memory


@dataclass(frozen=True, slots=True)
class Layout:
    """How a backend will hold one model; made by :meth:`ooc_mdp.backends.base.Backend.layout`, never changed."""

    cache_bytes: int
    """Budget of the partition cache, on each device."""
    entries: IntArray
    """int64 [P]; bytes of the cache that each partition takes."""
    batch_size: int
    """Most partitions that one call of `relax` should be given."""
    host: Mapping[str, int]
    """Bytes in RAM by name, beside values and policy; the cache among them on the CPU."""
    device: Mapping[str, int]
    """Bytes on the device by name, the cache among them, the most of a group's devices; empty on the CPU."""
    rows_room: int | None = None
    """Bytes, of the device or on the CPU of RAM, within which a policy's rows are placed; None where none are planned:
    what is free when they are opened."""
    later: Mapping[str, int] = field(default_factory=dict)
    """Bytes in RAM beside those of `host`, by name, of what the backend comes to in some cases only."""
    places: npt.NDArray[np.uint8] | None = None
    """uint8 [P]; which device of a group holds each partition; None where one holds all."""
    detail: Any = None
    """The backend's own."""

    @property
    def devices(self) -> int:
        """That hold partitions: 1 unless there is a group."""
        return 1 if self.places is None else int(self.places.max()) + 1

    @property
    def largest_entry(self) -> int:
        """Bytes of the cache that the largest partition takes."""
        return int(self.entries.max(initial=0))

    @property
    def holds_all(self) -> bool:
        """Whether all partitions can be in the cache together."""
        on = np.zeros(self.entries.size, np.uint8) if self.places is None else self.places
        return all(int(self.entries[on == place].sum()) <= self.cache_bytes for place in range(self.devices))


class SlotsTooSmall(Exception):
    """A partition does not fit into a slot of the layout; `Backend.enlarged` gives one with larger slots."""


def device_layout(
    facts: ModelFacts,
    needs: Needs,
    device: str,
    own: Mapping[str, int],
    slot: int | None = None,
    place_rows: Callable[[int], tuple[int, int]] = lambda room: (0, 0),
    held: int | None = None,
) -> Layout:
    """The layout of a backend whose values, policy and cache are on a device, or on each of a group.

    Parameters
    ----------
    device : its name, for messages.
    own : bytes by name of the backend's buffers beside the cache; values and policy are as on the host if not named.
    slot : bytes of a slot of the cache; None where each partition takes the size of its table.
    place_rows : bytes on the device and in RAM of a policy's rows that may take so many bytes of the device.
    held : partitions at most whose slots are on one device; None for all.

    Raises
    ------
    MemoryBudgetError : the cache, or what the budget leaves for it, holds no partition.
    """
    other_buffers = {"values": 8 * facts.n_states, "policy": 4 * facts.n_states, **own, **needs.staging}
    held = facts.n_partitions if held is None else held
    entries = facts.partition_bytes if slot is None else np.full(facts.n_partitions, slot)
    whole = facts.table_bytes if slot is None else slot * held
    if needs.device_memory is None:
        cache = cache_of_size(facts.partition_bytes, needs.cache, slot)
    else:
        left = needs.device_memory - sum(other_buffers.values())
        rows = {ROWS: place_rows(left // 2)[0]} if needs.policy_rows else {}
        places = 0 if slot is None else held
        cache = cache_within_budget(
            needs.device_memory, other_buffers | rows, slot or facts.largest_table_bytes, places, device
        )
    on_device = {"cache": min(cache, whole), **other_buffers}
    if not needs.policy_rows:
        return Layout(cache, entries, 1, {}, on_device)
    room = (1 << 62 if needs.room is None else needs.room) - sum(on_device.values())
    on_device[ROWS], in_ram = place_rows(room)
    return Layout(cache, entries, 1, {ROWS: in_ram} if in_ram else {}, on_device, room)


def cache_of_size(partition_bytes: IntArray, size: CacheSize, slot: int | None = None) -> int:
    """Bytes of the partition cache of a given size, or share of the table, for partitions of so many bytes (int64 [P]).

    Raises
    ------
    MemoryBudgetError : it does not hold the largest partition.
    """
    sizes = partition_bytes if slot is None else np.full_like(partition_bytes, slot)
    place = int(sizes.max())
    cache = size.resolve(int(sizes.sum()), place)
    if cache < place:
        raise MemoryBudgetError(
            f"partition {int(partition_bytes.argmax())} needs {format_bytes(place)}, the cache holds "
            f"{format_bytes(cache)}; raise --cache to at least {place}, or make the store again with smaller "
            f"partitions (--partition-size {max(1, cache // 2)}, in Python partition_size)"
        )
    return cache


def cache_within_budget(budget: int, other_buffers: Mapping[str, int], place: int, places: int, device: str) -> int:
    """Bytes that a device's budget leaves for the cache.

    Parameters
    ----------
    budget : bytes in all.
    beside : bytes of everything but the cache, by name.
    place : bytes that the largest partition takes; with slots, those of a slot.
    places : number of partitions where the cache has slots, of which it then holds whole ones; 0 without slots.
    device : its name, for messages.

    Raises
    ------
    MemoryBudgetError : not even one partition fits.
    """
    taken = sum(other_buffers.values())
    left = budget - taken
    if left < place:
        what = "a slot of the cache" if places else "the largest partition"
        raise MemoryBudgetError(
            f"a budget of {format_bytes(budget)} on {device} cannot hold this solve: {_sum_of(other_buffers)}, and "
            f"{what} takes {format_bytes(place)}; raise --device-memory to at least {taken + place}, or {SMALLER}"
        )
    return min(left // place, places) * place if places else left


def check_free_memory(
    device_plan: Mapping[str, int], free: int, device: str, budget: int | None = None, place: int = 1
) -> None:
    """Compare a device's plan, or its budget where there is one, with what the device has free.

    Parameters
    ----------
    device_plan : bytes on the device by name, "cache" among them.
    free : bytes that the device has free.
    budget : bytes of the device's budget, which is refused even if a small table would not take all of it.
    place : bytes of the least cache, which holds a partition.

    Raises
    ------
    MemoryBudgetError : budget or plan is larger.
    """
    planned = sum(device_plan.values())
    wanted = planned if budget is None else budget
    if wanted <= free:
        return
    other_buffers = {name: size for name, size in device_plan.items() if name != "cache"}
    for_cache = free - sum(other_buffers.values())
    if for_cache <= 0:
        remedy = "use --device cpu or a device with more memory"
    elif for_cache < place:
        remedy = (
            f"beside all else {format_bytes(for_cache)} are left for a cache, in which a partition takes "
            f"{format_bytes(place)}: {SMALLER}, or use --device cpu"
        )
    else:
        remedy = (
            f"lower --cache to at most {for_cache}" if budget is None else f"lower --device-memory to at most {free}"
        )
    what = f"this solve needs {format_bytes(planned)} on {device} ({_sum_of(device_plan)})"
    if budget is not None:
        what = f"{format_bytes(budget)} are asked for on {device} ({_sum_of(device_plan)} planned)"
    raise MemoryBudgetError(f"{what}, which has {format_bytes(free)} free; {remedy}")


def _sum_of(sizes: Mapping[str, int]) -> str:
    parts = " + ".join(f"{name} {format_bytes(size)}" for name, size in sizes.items())
    return f"{parts} = {format_bytes(sum(sizes.values()))}"
