"""The criterion of average rewards: g*(s) = max over policies of lim inf E[r_1 + ... + r_T] / T."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ooc_mdp.model.criterion import Criterion, Flag, asked_choices, check_keywords, check_sense, given_parameters

__all__ = ["AverageReward"]


@check_keywords(discount="later rewards count as much here; give Discounted(discount)")
@dataclass(frozen=True, slots=True)
class AverageReward:
    """The long-run mean of the rewards per step, of a process that never ends."""

    reward: str | None = None
    """Name of the reward model; None for the table's own rewards."""
    sense: str | None = None
    """ "max" or "min"; None for the table's."""
    name: ClassVar[str] = "average"
    own_method: ClassVar[str | None] = "policy and relative value iteration"
    on_devices: ClassVar[bool] = True
    from_values: ClassVar[bool] = True
    flags: ClassVar[tuple[Flag, ...]] = (
        Flag("average", bool, "Long-run average reward per step, of a process that never ends."),
    )
    borrowed: ClassVar[tuple[str, ...]] = ("reward", "sense")

    def __post_init__(self) -> None:
        check_sense(self.sense)

    @property
    def discount(self) -> float:
        """1: later rewards count as much."""
        return 1.0

    @property
    def parameters(self) -> dict[str, Any]:
        """Those that are given."""
        return given_parameters(reward=self.reward, asked_sense=self.sense)

    @classmethod
    def of_flags(cls, given: Mapping[str, Any]) -> Criterion:
        """Each other flag is a parameter."""
        return cls(**{name: value for name, value in given.items() if name != "average"})

    @classmethod
    def recorded_option(cls, record: Mapping[str, Any]) -> str:
        """How the command line asks for it."""
        return f"--average{asked_choices(record)}"
