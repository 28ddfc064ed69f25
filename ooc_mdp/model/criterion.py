"""What is asked of a table: which sum of rewards a policy is to maximise, or minimise.

    Discounted(g)    V*(s) = max E[ sum over t of g^t r_t ],              0 <= g < 1
    TotalReward()    V*(s) = max E[ sum of rewards until the process ends ]

A criterion is a value: solves, results and checkpoints carry it. This module knows neither tables nor methods. To add
one, write a frozen dataclass with the members of :class:`Criterion`, and name in ``ooc_mdp/api.py: QUESTIONS`` what
solves and what verifies it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol, cast

from ooc_mdp.arguments import real_number
from ooc_mdp.errors import OptionsError

__all__ = ["Criterion", "Discounted", "TotalReward", "criterion_at", "criterion_of"]


class Criterion(Protocol):
    """What is asked."""

    own_method: ClassVar[str | None]
    """The method that there is for it, in one process on the CPU; None where the options choose method and device."""

    @property
    def discount(self) -> float:
        """What a value one unit of time later counts now; results and checkpoints record it."""
        ...

    @property
    def option(self) -> str:
        """How the command line asks for it."""
        ...


@dataclass(frozen=True, slots=True)
class Discounted:
    """The discounted sum of rewards; a (state, action) of duration tau is discounted by discount**tau."""

    discount: float
    """At least 0 and below 1."""
    own_method: ClassVar[str | None] = None
    """None: the options choose method and device."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "discount", real_number("discount", self.discount))
        if self.discount == 1:
            raise OptionsError(
                "discount 1 is no discount; give --total (in Python TotalReward()) for the total reward until the "
                "process ends, or a discount below 1"
            )
        if not 0 <= self.discount < 1:
            raise OptionsError(f"the discount must be at least 0 and below 1, not {self.discount}")

    @property
    def option(self) -> str:
        """How the command line asks for it."""
        return f"--discount {self.discount}"


@dataclass(frozen=True, slots=True)
class TotalReward:
    """The sum of rewards until the process ends, without a discount."""

    own_method: ClassVar[str | None] = "interval iteration"
    """In one process on the CPU."""

    @property
    def discount(self) -> float:
        """1: later rewards count as much."""
        return 1.0

    @property
    def option(self) -> str:
        """How the command line asks for it."""
        return "--total"


def criterion_of(asked: Criterion | float | None, discount: float | None = None) -> Criterion:
    """The criterion itself, or that of a discount, which is its short form; exactly one of them is given.

    Raises
    ------
    OptionsError : neither or both are given, or the discount is none.
    """
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


def criterion_at(discount: float) -> Criterion:
    """The criterion of a result that records this discount."""
    return TotalReward() if discount == 1 else Discounted(discount)
