"""Which GPUs `--device cuda` is: all that form a group where these are expected to be faster, else the first.

What is expected rests on measurements (`benchmarks/notes/2026-11-several-gpus.md`): GPUs meet after every round of
sweeps, and wait for loads that follow each other, so that small models gain nothing.
"""

from __future__ import annotations

from ooc_mdp.backends.cuda.device import device_count
from ooc_mdp.model.facts import ModelFacts

__all__ = ["devices_in_reach", "gains_from_several", "numbers_for"]

_MANY_STATES = 150_000_000
"""From which on visits by priority gain."""
_MANY_ROWS = 20_000_000
"""States from which on evaluations of a policy on its rows gain, which meet after every product."""


def gains_from_several(facts: ModelFacts) -> bool:
    """Whether several devices are expected to solve a model sooner than one."""
    if facts.densely_coupled:  # most that is read would come from other devices
        return False
    return facts.n_states >= (_MANY_ROWS if facts.strongly_coupled else _MANY_STATES)


def numbers_for(facts: ModelFacts) -> tuple[int, ...]:
    """Numbers of the devices: all that can be a group where several gain, else the first."""
    return devices_in_reach() if gains_from_several(facts) else (0,)


def devices_in_reach() -> tuple[int, ...]:
    """Numbers of the first CUDA device and of all that can form a group with it: each reaches the others' memory."""
    group: list[int] = []
    for number in range(device_count()):
        from cupy.cuda.runtime import deviceCanAccessPeer as reaches

        if all(reaches(number, other) and reaches(other, number) for other in group):
            group.append(number)
    return tuple(group)
