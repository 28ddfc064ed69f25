"""Questions about a goal, as criteria: labels name the states, the sense says whose probability or reward is meant.

Reachability(goal, avoid, within)    V*(s) = opt P_s( goal is reached, over states that are not avoided, in K steps )
RewardToGoal(goal, reward)           V*(s) = opt E_s[ rewards until the goal ],  infinite where it may be missed
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ooc_mdp.arguments import whole_number
from ooc_mdp.errors import OptionsError
from ooc_mdp.model.criterion import Criterion, Flag, check_keywords, check_sense
from ooc_mdp.properties.expression import check_expression

__all__ = ["Reachability", "RewardToGoal"]

_EXPRESSION = "EXPR"


@check_keywords(reward="give RewardToGoal(goal, reward) for the reward until the goal")
@dataclass(frozen=True, slots=True)
class Reachability:
    """The largest, or least, probability to reach a goal."""

    goal: str
    """Where the goal is reached: an expression over labels and variables, such as ``"done" & !"crashed" & x = 3``."""
    avoid: str | None = None
    """States that must not be visited before the goal; one that is both counts as reached."""
    within: int | None = None
    """Steps in which the goal must be reached; None for any number."""
    sense: str | None = None
    """ "max" or "min"; None for the table's."""
    name: ClassVar[str] = "reachability"
    own_method: ClassVar[str | None] = "interval iteration"
    on_devices: ClassVar[bool] = False
    flags: ClassVar[tuple[Flag, ...]] = (
        Flag(
            "goal",
            str,
            "Probability to reach states where this holds: labels with !, &, | and parentheses. With --reward: the "
            "expected reward until then.",
            _EXPRESSION,
        ),
        Flag("avoid", str, "The path must not visit such states before the goal.", _EXPRESSION),
        Flag("within", int, "The goal must be reached in so many steps.", "K"),
        Flag("sense", str, "Whether the largest or the least value is meant.  [default: the store's]", "max|min"),
    )
    borrowed: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        check_expression("goal", self.goal)
        if self.avoid is not None:
            check_expression("avoid", self.avoid)
        if self.within is not None:
            object.__setattr__(self, "within", whole_number("within", self.within))
            if self.within < 0:
                raise OptionsError(f"within is {self.within} steps; give a number from 0 on")
        check_sense(self.sense)

    @property
    def discount(self) -> float:
        """1: it does not matter how soon the goal is reached."""
        return 1.0

    @property
    def from_values(self) -> bool:
        """Within a number of steps each is computed from the one after it alone."""
        return self.within is None

    @property
    def parameters(self) -> dict[str, Any]:
        """All of them."""
        return {"goal": self.goal, "avoid": self.avoid, "within": self.within, "asked_sense": self.sense}

    @classmethod
    def of_flags(cls, given: Mapping[str, Any]) -> Criterion:
        """Each flag is a parameter."""
        return cls(**given)

    @classmethod
    def recorded_option(cls, record: Mapping[str, Any]) -> str:
        """The flags with their values."""
        return _options(record, ("goal", "avoid", "within"))


_PROBABILITY = "leave it out, or give Reachability(goal, avoid, within) for the probability to reach the goal"


@check_keywords(avoid=_PROBABILITY, within=_PROBABILITY)
@dataclass(frozen=True, slots=True)
class RewardToGoal:
    """The largest, or least, expected reward until a goal is reached.

    Rewards have one sign, or every policy reaches the goal from each state that is asked about.
    """

    goal: str
    """As in :class:`Reachability`; a goal state pays nothing."""
    reward: str | None = None
    """Name of the reward model; None for the table's own rewards."""
    sense: str | None = None
    """ "max" or "min"; None for the table's."""
    reachable: bool = False
    """Whether only states that initial ones lead to are asked about; all others have the value 0."""
    name: ClassVar[str] = "reward-to-goal"
    own_method: ClassVar[str | None] = "interval iteration"
    on_devices: ClassVar[bool] = False
    from_values: ClassVar[bool] = True
    flags: ClassVar[tuple[Flag, ...]] = (
        Flag(
            "reward",
            str,
            "Use the rewards of this reward model of the store; `table` for the table's own. With --goal: the expected "
            "reward until the goal.",
            "NAME",
        ),
    )
    borrowed: ClassVar[tuple[str, ...]] = ("goal", "sense", "reachable", "avoid", "within")

    def __post_init__(self) -> None:
        check_expression("goal", self.goal)
        check_sense(self.sense)

    @property
    def discount(self) -> float:
        """1: later rewards count as much."""
        return 1.0

    @property
    def parameters(self) -> dict[str, Any]:
        """All of them."""
        reachable = {"reachable": True} if self.reachable else {}
        return {"goal": self.goal, "reward": self.reward, "asked_sense": self.sense, **reachable}

    @classmethod
    def of_flags(cls, given: Mapping[str, Any]) -> Criterion:
        """Each flag is a parameter, but for those of probabilities alone; a goal is needed."""
        if "goal" not in given:
            raise OptionsError(
                "--reward names the rewards, and nothing says what is asked of them; add --goal EXPR, --total or "
                "--discount D"
            )
        for name in ("avoid", "within"):
            if name in given:
                raise OptionsError(
                    f"a reward until a goal has no --{name}; leave it out, or leave out --reward, which asks for the "
                    f"probability to reach the goal"
                )
        return cls(**given)

    @classmethod
    def recorded_option(cls, record: Mapping[str, Any]) -> str:
        """The flags with their values."""
        options = _options({**record, "reward": record["reward"] or "table"}, ("reward", "goal"))
        return f"{options} --reachable" if record.get("reachable") else options


def _options(record: Mapping[str, Any], names: tuple[str, ...]) -> str:
    """Flags of a command line, as a shell reads them."""
    values = {name: record[name] for name in names} | {"sense": record["asked_sense"]}
    return " ".join(f"--{name} {shlex.quote(str(value))}" for name, value in values.items() if value is not None)
