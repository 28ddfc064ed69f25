"""Refusals of models whose totals are infinite or may be undefined, with the source's numbers of the states."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import UndefinedTotalError
from ooc_mdp.model.annotations import INITIAL
from ooc_mdp.model.mdp import IntArray
from ooc_mdp.model.table import Table

__all__ = ["Labels", "infinite", "named", "only_reachable", "original_numbers", "some", "undecided"]

Labels = npt.NDArray[np.uint32]

_NAMED = 8
"""States that a message names."""


def infinite(table: Table, states: IntArray, sign: float, why: str) -> UndefinedTotalError:
    """The refusal of states among which good rewards are collected again and again."""
    total, good = ("infinite", "positive") if sign > 0 else ("minus infinity", "negative")
    return UndefinedTotalError(
        f"without a discount the total reward of {named(table, states)} is {total}: a policy may stay among these "
        f"states for ever and collect {good} rewards again and again, {why}; give a discount below 1, or end the "
        f"process where such a reward is paid, or, where all rewards have one sign, add --infinite (in Python "
        f"infinite=True), by which infinite totals are answers{only_reachable(table)}",
        some(table, states),
    )


def undecided(table: Table, states: IntArray, least: float, most: float) -> UndefinedTotalError:
    """The refusal of states among which rewards of both signs balance, as far as float64 can tell."""
    return UndefinedTotalError(
        f"total rewards are not supported here: a policy may stay for ever among {named(table, states)}, where "
        f"rewards of both signs balance (the best mean reward a step is between {least:.3g} and {most:.3g}, "
        f"and cannot be told from 0 at values of this size), so that totals may have no limit; give a discount below 1"
        f"{only_reachable(table)}",
        some(table, states),
    )


def only_reachable(table: Table) -> str:
    """The remedy where the model names initial states."""
    if INITIAL not in table.annotations.labels:
        return ""
    return "; --reachable (in Python reachable=True) asks only about states that the initial ones lead to"


def some(table: Table, states: IntArray) -> tuple[int, ...]:
    """The lowest of the source's numbers."""
    return tuple(np.sort(original_numbers(table, states))[:_NAMED].tolist())


def named(table: Table, states: IntArray) -> str:
    """ "states 3, 7 and 12", the source's numbers; only some where there are many."""
    numbers = [str(s) for s in some(table, states)]
    more = states.size - len(numbers)
    if more:
        return f"states {', '.join(numbers)} and {more} more"
    if len(numbers) == 1:
        return f"state {numbers[0]}"
    return f"states {', '.join(numbers[:-1])} and {numbers[-1]}"


def original_numbers(table: Table, states: IntArray) -> IntArray:
    """The source's numbers of states in store order."""
    found = np.empty_like(states)
    owners = np.searchsorted(table.facts.partition_ptr, states, side="right") - 1
    for p in np.unique(owners).tolist():
        own = owners == p
        found[own] = table.original_states(p)[states[own] - table.facts.partition_ptr[p]]
    return found
