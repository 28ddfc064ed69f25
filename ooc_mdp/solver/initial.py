"""Values from which a solve begins: those of another result, of the same states or interpolated from another grid.

They change where the iteration begins, and nothing in what it proves: bounds are measured at the values that a solve
ends with, and no method that takes values assumes that they are near, above or below the solution. A method that begins
from values of its own (backward induction: from those after the last stage) takes none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ooc_mdp.errors import OptionsError
from ooc_mdp.model.criterion import Criterion, option_of
from ooc_mdp.model.facts import MAX_VALUE
from ooc_mdp.model.grid_points import GridPoints, interpolated
from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.model.table import Table
from ooc_mdp.store.given_values import GivenValues, given_values

__all__ = ["InitialValues", "initial_values"]

_BLOCK = 1 << 16
"""States whose values are interpolated at a time."""


@dataclass(frozen=True, slots=True)
class InitialValues:
    """Values to begin from, before the table is known."""

    given: GivenValues

    @property
    def where(self) -> str:
        """What messages call them."""
        return self.given.where

    def of_table(self, table: Table) -> FloatArray:
        """float64 [n_states], in the source's order and sign: the given ones, or interpolated at the table's grid.

        Raises
        ------
        OptionsError : they are of another number of states, and not of a grid with the same axes.
        """
        geometry, given = table.facts.attributes.get("geometry"), self.given
        same_size = given.values.size == table.n_states
        if same_size and (given.geometry is None or given.geometry.get("shape") == (geometry or {}).get("shape")):
            return given.values.copy()
        try:
            old, new = GridPoints.of(given.geometry, given.values.size), GridPoints.of(geometry, table.n_states)
        except OptionsError as error:
            raise OptionsError(
                f"{given.where} has values of {given.values.size} states, and {table.name} has {table.n_states}: give "
                f"one for each, or a result on another grid of the same axes ({error})"
            ) from None
        if old.names != new.names:
            raise OptionsError(
                f"{given.where} has the axes {', '.join(old.names)}, and {table.name} has {', '.join(new.names)}; give "
                f"a result of the same problem"
            )
        values = np.empty(table.n_states)
        for start in range(0, table.n_states, _BLOCK):
            states = np.arange(start, min(start + _BLOCK, table.n_states))
            values[states] = interpolated(old, given.values, self._checked(old, new.coordinates(states)))
        return values

    def _checked(self, old: GridPoints, x: FloatArray) -> FloatArray:
        try:
            return old.checked(x)
        except OptionsError as error:
            raise OptionsError(f"{self.given.where} cannot be interpolated: {error}") from None


def initial_values(given: Any, question: Criterion, what: str = "the initial values") -> InitialValues:
    """The values that are given to begin from.

    Parameters
    ----------
    what : they are, for messages.

    Raises
    ------
    OptionsError : they are no values, or too large, or the question's method begins from values of its own.
    """
    if not question.from_values:
        raise OptionsError(
            f"{option_of(question)} computes each step from the one after it, beginning at the end; leave out "
            f"--initial (in Python initial)"
        )
    found = given_values(given, what)
    size = float(np.abs(found.values[np.isfinite(found.values)]).max(initial=0.0))
    if size > MAX_VALUE:
        raise OptionsError(
            f"{found.where}: values up to {size:.3g} are above {MAX_VALUE:.0e}, and too large for float64 once they "
            f"are squared; begin from others, or from none"
        )
    return InitialValues(found)
