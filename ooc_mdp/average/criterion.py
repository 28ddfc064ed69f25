"""The criterion of average rewards: g*(s) = max over policies of lim inf E[r_1 + ... + r_T] / T."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ooc_mdp.model.criterion import Criterion, Flag

__all__ = ["AverageReward"]


@dataclass(frozen=True, slots=True)
class AverageReward:
    """The long-run mean of the rewards per step, of a process that never ends."""

    name: ClassVar[str] = "average"
    own_method: ClassVar[str | None] = "policy and relative value iteration"
    on_devices: ClassVar[bool] = True
    from_values: ClassVar[bool] = True
    flags: ClassVar[tuple[Flag, ...]] = (
        Flag("average", bool, "Long-run average reward per step, of a process that never ends."),
    )
    borrowed: ClassVar[tuple[str, ...]] = ()

    @property
    def discount(self) -> float:
        """1: later rewards count as much."""
        return 1.0

    @property
    def parameters(self) -> dict[str, Any]:
        """None."""
        return {}

    @classmethod
    def of_flags(cls, given: Mapping[str, Any]) -> Criterion:
        """There is only one."""
        return cls()

    @classmethod
    def recorded_option(cls, record: Mapping[str, Any]) -> str:
        """How the command line asks for it."""
        return "--average"
