"""The registry of criteria: for each what solves it, what verifies its results, and how the command line asks for it.

To add a criterion, write it in a file of its own (:class:`~ooc_mdp.model.criterion.Criterion`) and name it in
`QUESTIONS`: options of the command line, results, checkpoints and `verify` follow from the entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ooc_mdp.average.criterion import AverageReward
from ooc_mdp.errors import OptionsError, StoreError
from ooc_mdp.finite_horizon.criterion import FiniteHorizon
from ooc_mdp.model.criterion import EVALUATED, Criterion, Discounted, TotalReward, recorded_criterion
from ooc_mdp.properties.criterion import Reachability, RewardToGoal

if TYPE_CHECKING:
    from ooc_mdp.model.table import Table
    from ooc_mdp.solver.run import Engine
    from ooc_mdp.solver.verify import Verification
    from ooc_mdp.store.result import Result

__all__ = ["IN_PYTHON", "QUESTIONS", "Question", "asked_criterion", "question_of", "recorded_option"]


@dataclass(frozen=True, slots=True)
class Question:
    """A criterion, how it is answered in this process, and how its results are verified; imports what it needs."""

    criterion: type[Criterion]
    engine: Callable[[], Engine]
    verify: Callable[..., Verification]
    """As `ooc_mdp.api.verify`, of a table and an opened result."""
    table: Callable[[Table, Mapping[str, Any]], Table] = lambda table, record: table
    """The table that a record of the criterion is asked of, made of the one that is given."""


def _discounted() -> Engine:
    from ooc_mdp.solver.local import LocalEngine

    return LocalEngine()


def _verify_discounted(*what: Any, **how: Any) -> Verification:
    from ooc_mdp.solver.verify import verify

    return verify(*what, **how)


def _totals() -> Engine:
    from ooc_mdp.properties.engine import TotalRewardEngine

    return TotalRewardEngine()


def _verify_totals(table: Table, result: Result, *what: Any, **how: Any) -> Verification:
    from ooc_mdp.undiscounted.verify import verify

    if result.identity.get("infinite"):
        return _verify_properties(table, result, *what, **how)
    return verify(table, result, *what, **how)


def _properties() -> Engine:
    from ooc_mdp.properties.engine import PropertyEngine

    return PropertyEngine()


def _verify_properties(*what: Any, **how: Any) -> Verification:
    from ooc_mdp.properties.verify import verify

    return verify(*what, **how)


def _horizon() -> Engine:
    from ooc_mdp.finite_horizon.engine import HorizonEngine

    return HorizonEngine()


def _verify_horizon(*what: Any, **how: Any) -> Verification:
    from ooc_mdp.finite_horizon.verify import verify

    return verify(*what, **how)


def _asked(table: Table, record: Mapping[str, Any]) -> Table:
    from ooc_mdp.properties.table import asked_table

    return asked_table(table, record)


def _average() -> Engine:
    from ooc_mdp.average.engine import AverageEngine

    return AverageEngine()


def _verify_average(*what: Any, **how: Any) -> Verification:
    from ooc_mdp.average.verify import verify

    return verify(*what, **how)


QUESTIONS: dict[str, Question] = {
    question.criterion.name: question
    for question in (
        Question(Discounted, _discounted, _verify_discounted, _asked),
        Question(TotalReward, _totals, _verify_totals, _asked),
        Question(FiniteHorizon, _horizon, _verify_horizon, _asked),
        Question(Reachability, _properties, _verify_properties, _asked),
        Question(RewardToGoal, _properties, _verify_properties, _asked),
        Question(AverageReward, _average, _verify_average, _asked),
    )
}
"""By the criterion's name, in the order in which the command line lists them."""
IN_PYTHON = {
    kind.flags[0].name: f"give the criterion {kind.__name__}(...)"
    for kind in (question.criterion for question in QUESTIONS.values())
} | {
    "sense": "to minimise, give the criterion, such as Discounted(0.9, sense='min'), or a table of this sense, such as "
    "from_arrays(P, C, sense='min')"
}
"""What Python takes in place of the flag that asks for a criterion, or for a sense, by the flag's name."""


def question_of(record: Mapping[str, Any]) -> Question:
    """The entry of what a result or checkpoint records; StoreError where this release has no such criterion."""
    name = recorded_criterion(record)
    if name not in QUESTIONS:
        raise StoreError(f"this release does not know the criterion {name!r}; it knows {', '.join(QUESTIONS)}")
    return QUESTIONS[name]


def recorded_option(record: Mapping[str, Any]) -> str:
    """How the command line asks for what a checkpoint records."""
    option = question_of(record).criterion.recorded_option(record)
    return f"{option} --policy FILE" if EVALUATED in record else option


def asked_criterion(given: Mapping[str, Any]) -> Criterion:
    """The criterion that the flags of a command line ask for.

    Parameters
    ----------
    given : the flags that were given, by name, and what they were given.

    Raises
    ------
    OptionsError : none or several criteria are asked for, or a flag belongs to another one.
    """
    kinds = [question.criterion for question in QUESTIONS.values()]
    asked = [kind for kind in kinds if kind.flags[0].name in given]
    lent = {name for kind in asked for name in kind.borrowed}
    asked = [kind for kind in asked if kind.flags[0].name not in lent]
    if len(asked) != 1:
        named = " and ".join(kind.flags[0].option for kind in asked) + " are" if asked else "none is"
        known = ", ".join(kind.flags[0].option for kind in kinds)
        raise OptionsError(f"give exactly one of {known}, which say what is asked: {named} given")
    kind = asked[0]
    own = {flag.name for flag in kind.flags} | set(kind.borrowed)
    for other in kinds:
        for flag in other.flags:
            if flag.name in given and flag.name not in own:
                raise OptionsError(
                    f"{flag.option} belongs to {other.flags[0].option}, and {kind.flags[0].option} is asked for; leave "
                    f"it out"
                )
    return kind.of_flags(given)
