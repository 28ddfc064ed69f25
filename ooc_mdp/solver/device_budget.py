"""The budget of a device in all: what it leaves for the cache beside values, policy, staging and workspace.

    budget >= values + policy + staging + the backend's own buffers + cache,    cache >= one partition (or slot)

Arithmetic on bytes, and refusals that name them before anything is allocated. What the driver keeps for itself (a CUDA
context, loaded code) is neither in the budget nor in what a device has free.
"""

from __future__ import annotations

from collections.abc import Mapping

from ooc_mdp.errors import MemoryBudgetError
from ooc_mdp.options import format_bytes

__all__ = ["cache_left", "refuse_what_is_not_free"]


def cache_left(budget: int, beside: Mapping[str, int], place: int, places: int, device: str) -> int:
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
    taken = sum(beside.values())
    left = budget - taken
    if left < place:
        what = "a slot of the cache" if places else "the largest partition"
        raise MemoryBudgetError(
            f"a budget of {format_bytes(budget)} on {device} cannot hold this solve: {_sum_of(beside)}, and {what} "
            f"takes {format_bytes(place)}; raise --device-memory to at least {taken + place}, or convert again with "
            "smaller partitions (--partition-size)"
        )
    return min(left // place, places) * place if places else left


def refuse_what_is_not_free(
    device_plan: Mapping[str, int], free: int | None, device: str, budget: int | None = None, place: int = 1
) -> None:
    """Compare a device's plan, or its budget where there is one, with what the device has free.

    Parameters
    ----------
    device_plan : bytes on the device by name, "cache" among them.
    free : bytes that the device has free; None where nobody knows.
    budget : bytes of the device's budget, which is refused even if a small table would not take all of it.
    place : bytes of the least cache, which holds a partition.

    Raises
    ------
    MemoryBudgetError : budget or plan is larger.
    """
    planned = sum(device_plan.values())
    wanted = planned if budget is None else budget
    if free is None or wanted <= free:
        return
    beside = {name: size for name, size in device_plan.items() if name != "cache"}
    for_cache = free - sum(beside.values())
    if for_cache <= 0:
        remedy = "use --device cpu or a device with more memory"
    elif for_cache < place:
        remedy = (
            f"beside all else {format_bytes(for_cache)} are left for a cache, in which a partition takes "
            f"{format_bytes(place)}: convert again with smaller partitions (--partition-size), or use --device cpu"
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
