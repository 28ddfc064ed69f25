"""What is asked of a table: which sum of rewards a policy is to maximise, or minimise.

    Discounted(g)    V*(s) = max E[ sum over t of g^t r_t ],              0 <= g < 1
    TotalReward()    V*(s) = max E[ sum of rewards until the process ends ]

A criterion is a value: solves, results and checkpoints record its name and parameters. This module knows neither tables
nor methods. To add one, write a frozen dataclass with the members of :class:`Criterion` in a file of its own, and name
in ``ooc_mdp/criteria.py: QUESTIONS`` what solves and what verifies it.
"""

from __future__ import annotations

import difflib
import functools
import shlex
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any, ClassVar, Protocol, TypeVar, cast

from ooc_mdp.arguments import real_number
from ooc_mdp.errors import OptionsError
from ooc_mdp.quoting import quote

__all__ = [
    "EVALUATED",
    "Criterion",
    "Discounted",
    "Flag",
    "TotalReward",
    "asked_choices",
    "check_keywords",
    "check_sense",
    "criterion_of",
    "given_parameters",
    "option_of",
    "other_identity",
    "record_of",
    "recorded_criterion",
]

EVALUATED = "evaluated_policy"
"""Name under which the SHA-256 of a policy is recorded beside the criterion, where its value was asked for in place of
the best one."""
C = TypeVar("C")
_MAX_SHOWN = 80
"""Characters of another identity that a message shows."""


@dataclass(frozen=True, slots=True)
class Flag:
    """An option of the command line that asks for a criterion, or gives one of its parameters."""

    name: str
    """As a Python name: "final_values" is --final-values."""
    kind: type
    """bool, int, float or str; a flag of kind bool takes no value."""
    help: str
    metavar: str | None = None

    @property
    def option(self) -> str:
        """As it is written."""
        return "--" + self.name.replace("_", "-")


class Criterion(Protocol):
    """What is asked."""

    name: ClassVar[str]
    """What results and checkpoints call it."""
    own_method: ClassVar[str | None]
    """The method that there is for it, in one process; None where the options choose the method."""
    on_devices: ClassVar[bool]
    """Whether it is solved on CUDA devices too."""
    flags: ClassVar[tuple[Flag, ...]]
    """Options of the command line; the first one asks for the criterion."""
    borrowed: ClassVar[tuple[str, ...]]
    """Names of flags of other criteria that are parameters of this one where its own first flag is given."""

    @property
    def discount(self) -> float:
        """What a value one unit of time later counts now."""
        ...

    @property
    def from_values(self) -> bool:
        """Whether a solve may begin from any values, such as those of another result."""
        ...

    @property
    def parameters(self) -> dict[str, Any]:
        """What results and checkpoints record of it beside its name and discount: numbers, texts, null."""
        ...

    @classmethod
    def of_flags(cls, given: Mapping[str, Any]) -> Criterion:
        """The criterion that the flags ask for; those that were not given are absent."""
        ...

    @classmethod
    def recorded_option(cls, record: Mapping[str, Any]) -> str:
        """How the command line asks for what :func:`record_of` made."""
        ...


def check_keywords(**remedies: str) -> Callable[[type[C]], type[C]]:
    """Decorator of a criterion's dataclass: OptionsError for a keyword that it does not take, with those that it does.

    Parameters
    ----------
    remedies : by keywords that belong to another criterion, what to give instead.
    """

    def decorate(kind: type[C]) -> type[C]:
        made = cast(Any, kind).__init__
        taken = [each.name for each in fields(cast(Any, kind)) if each.init]

        @functools.wraps(made)
        def checked(self: C, *arguments: Any, **given: Any) -> None:
            for name in given:
                if name not in taken:
                    likely = difflib.get_close_matches(name, taken, 1)
                    remedy = remedies.get(name, f"did you mean {likely[0]}?" if likely else "leave it out")
                    raise OptionsError(
                        f"{kind.__name__} has no parameter {quote(name)}; it takes {', '.join(taken)}: {remedy}"
                    )
            made(self, *arguments, **given)

        cast(Any, kind).__init__ = checked
        return kind

    return decorate


@check_keywords()
@dataclass(frozen=True, slots=True)
class Discounted:
    """The discounted sum of rewards; a (state, action) of duration tau is discounted by discount**tau."""

    discount: float
    """At least 0 and below 1."""
    reward: str | None = None
    """Name of the reward model; None for the table's own rewards."""
    sense: str | None = None
    """ "max" or "min"; None for the table's."""
    name: ClassVar[str] = "discounted"
    own_method: ClassVar[str | None] = None
    """None: the options choose method and device."""
    on_devices: ClassVar[bool] = True
    from_values: ClassVar[bool] = True
    flags: ClassVar[tuple[Flag, ...]] = (
        Flag("discount", float, "Discount per step (or unit of duration), at least 0 and below 1."),
    )
    borrowed: ClassVar[tuple[str, ...]] = ("reward", "sense")

    def __post_init__(self) -> None:
        object.__setattr__(self, "discount", real_number("discount", self.discount))
        check_sense(self.sense)
        if self.discount == 1:
            raise OptionsError(
                "discount 1 is no discount; give --total (in Python TotalReward()) for the total reward until the "
                "process ends, or a discount below 1"
            )
        if not 0 <= self.discount < 1:
            raise OptionsError(f"the discount must be at least 0 and below 1, not {self.discount}")

    @property
    def parameters(self) -> dict[str, Any]:
        """Those that are given beside the discount."""
        return given_parameters(reward=self.reward, asked_sense=self.sense)

    @classmethod
    def of_flags(cls, given: Mapping[str, Any]) -> Criterion:
        """Each flag is a parameter."""
        return cls(**given)

    @classmethod
    def recorded_option(cls, record: Mapping[str, Any]) -> str:
        """How the command line asks for a recorded one."""
        return f"--discount {record['discount']}{asked_choices(record)}"


@check_keywords(
    discount="later rewards count as much here; give Discounted(discount)",
    goal="give RewardToGoal(goal), or Reachability(goal) for its probability",
)
@dataclass(frozen=True, slots=True)
class TotalReward:
    """The sum of rewards until the process ends, without a discount."""

    reward: str | None = None
    """Name of the reward model; None for the table's own rewards."""
    sense: str | None = None
    """ "max" or "min"; None for the table's."""
    infinite: bool = False
    """Whether a total may be infinite, where all rewards have one sign; if not, such models are refused."""
    reachable: bool = False
    """Whether only states that initial ones lead to are asked about; the process ends in all others, with value 0."""
    name: ClassVar[str] = "total"
    own_method: ClassVar[str | None] = "interval iteration"
    on_devices: ClassVar[bool] = False
    from_values: ClassVar[bool] = True
    flags: ClassVar[tuple[Flag, ...]] = (
        Flag("total", bool, "Total reward until the process ends, without a discount."),
        Flag("infinite", bool, "Totals may be infinite, where all rewards have one sign."),
        Flag("reachable", bool, "Only states that initial states lead to are asked about; others have the value 0."),
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
        flags = {"infinite": self.infinite or None, "reachable": self.reachable or None}
        return given_parameters(reward=self.reward, asked_sense=self.sense, **flags)

    @classmethod
    def of_flags(cls, given: Mapping[str, Any]) -> Criterion:
        """Each other flag is a parameter."""
        return cls(**{name: value for name, value in given.items() if name != "total"})

    @classmethod
    def recorded_option(cls, record: Mapping[str, Any]) -> str:
        """How the command line asks for it."""
        flags = "".join(f" --{name}" for name in ("infinite", "reachable") if record.get(name))
        return f"--total{flags}{asked_choices(record)}"


def check_sense(sense: object) -> None:
    """Refuse a sense that is neither "max" nor "min", nor None."""
    if sense not in (None, "max", "min"):
        raise OptionsError(f"sense is {quote(sense)}; give max or min")


def given_parameters(**parameters: Any) -> dict[str, Any]:
    """Parameters that have a value."""
    return {name: value for name, value in parameters.items() if value is not None}


def asked_choices(record: Mapping[str, Any]) -> str:
    """The options of a reward model and a sense that were asked for."""
    named = {"reward": record.get("reward"), "sense": record.get("asked_sense")}
    return "".join(f" --{name} {shlex.quote(value)}" for name, value in named.items() if value is not None)


def criterion_of(asked: Criterion | type | float | None, discount: float | None = None) -> Criterion:
    """The criterion itself, or that of a discount, which is its short form; exactly one of them is given.

    Raises
    ------
    OptionsError : neither or both are given, a class is given in place of a criterion, or the discount is none.
    """
    if isinstance(asked, type) and is_dataclass(asked) and hasattr(asked, "own_method"):
        needed = ", ".join(each.name for each in fields(asked) if each.init and each.default is MISSING)
        raise OptionsError(
            f"criterion is the class {asked.__name__}; give {asked.__name__}({needed}), with parentheses"
        )
    if discount is not None:
        discount = real_number("discount", discount)
    if (asked is None) == (discount is None):
        many = "neither is" if asked is None else "both are"
        raise OptionsError(
            f"give either a discount below 1 (--discount) or another criterion (--total, in Python TotalReward()): "
            f"{many} given"
        )
    if asked is None:
        return Discounted(cast(float, discount))
    return cast(Criterion, asked) if hasattr(asked, "own_method") else Discounted(real_number("criterion", asked))


def record_of(criterion: Criterion) -> dict[str, Any]:
    """What results and checkpoints record of a criterion: `criterion` (its name), `discount`, its other parameters."""
    return {"criterion": criterion.name, "discount": criterion.discount, **criterion.parameters}


def option_of(criterion: Criterion) -> str:
    """How the command line asks for a criterion."""
    return criterion.recorded_option(record_of(criterion))


def recorded_criterion(record: Mapping[str, Any]) -> str:
    """The name of a recorded criterion; what was recorded before there were names is known by its discount."""
    named = record.get("criterion")
    if named is None:
        return TotalReward.name if record.get("discount") == 1 else Discounted.name
    return str(named)


def other_identity(theirs: Mapping[str, Any], mine: Mapping[str, Any]) -> str | None:
    """Where a result or checkpoint answers another question, as "NAME THEIRS, not MINE"; None where it does not.

    Parameters
    ----------
    theirs, mine : fingerprint of the table, sense, and the record of the criterion.
    """
    theirs = {**theirs, "criterion": recorded_criterion(theirs)}
    for name, due in mine.items():
        if theirs.get(name) != due:
            return f"{name} {str(theirs.get(name))[:_MAX_SHOWN]}, not {due}"
    return None
