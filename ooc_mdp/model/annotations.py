"""What is known of a model beside its table: labels and variables of states, reward models, and names of actions.

No solve of the table reads them; questions about such states, and about one of several reward models, do, and names
stand beside the actions of a policy. This module knows no files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import OptionsError
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.quoting import printable, quote, shorten

__all__ = [
    "BOOL",
    "DOUBLE",
    "INITIAL",
    "INT",
    "NO_ANNOTATIONS",
    "STRING",
    "Annotations",
    "StateSet",
    "Variable",
    "VariableValues",
    "unknown_name",
]

StateSet = npt.NDArray[np.bool_]
"""bool [n_states]; which states belong to a set."""
VariableValues = npt.NDArray[Any]
"""int64, or of DOUBLE float64."""
INITIAL = "init"
"""The label of the initial states, as PRISM and Storm call it."""
BOOL, INT, DOUBLE, STRING = "bool", "int", "double", "string"
"""Types of state variables."""


@dataclass(frozen=True, slots=True)
class Variable:
    """A state variable, of which each state has a value: a number, 0 or 1 for false and true, or which text it is."""

    type: str
    """BOOL, INT, DOUBLE or STRING."""
    low: float
    """Least value that a state has; an int but of DOUBLE."""
    high: float
    """Largest value that a state has, likewise."""
    texts: tuple[str, ...] = ()
    """Of STRING the different texts, which values count from 0."""


class Annotations:
    """Of a model that has none; a table with some overrides all of it."""

    n_states: int = 0
    """Of the model, where there are labels or variables."""
    labels: Sequence[str] = ()
    """Names of the labels."""
    variables: Mapping[str, Variable] = MappingProxyType({})
    """State variables by name."""
    table_rewards: str | None = None
    """Name of the reward model whose rewards the table has, where it has a name."""
    reward_models: Sequence[str] = ()
    """Names of the other ones."""
    rewards_chosen: bool = True
    """False where the source had several reward models and the table has none of them."""
    action_names: Sequence[str] = ()
    """Different names of actions."""

    def label_bits(self, name: str) -> npt.NDArray[np.uint8]:
        """uint8 [ceil(n/8)]; one bit for each state, in the source's order, the first in the lowest bit of a byte.

        Raises
        ------
        OptionsError : there is no such label.
        """
        raise unknown_name("label", name, self.labels)

    def label(self, name: str) -> StateSet:
        """bool [n_states]; which states have a label; as :meth:`label_bits`."""
        return np.unpackbits(self.label_bits(name), count=self.n_states, bitorder="little").view(np.bool_)

    def first_states(self, name: str, most: int) -> IntArray:
        """int64; the first states with a label, ascending, at most so many; as :meth:`label_bits`."""
        bits = self.label_bits(name)
        groups = np.flatnonzero(bits != 0)[:most]  # NumPy searches booleans twelve times as fast as bytes
        group, bit = np.nonzero(np.unpackbits(bits[groups, None], axis=1, bitorder="little"))
        return (8 * groups[group] + bit)[:most]

    def values(self, name: str, first: int, end: int) -> VariableValues:
        """int64, of DOUBLE float64 [end - first]; values of a variable in consecutive states, in the source's order.

        Raises
        ------
        OptionsError : there is no such variable.
        """
        raise unknown_name("variable", name, tuple(self.variables))

    def rewards(self, name: str, first: int, end: int) -> FloatArray:
        """float64 [end - first]; rewards of rows, in the table's order, by one of `reward_models`."""
        raise unknown_name("reward model", name, self.reward_models)

    def terminal_rewards(self, name: str, first: int, end: int) -> FloatArray:
        """float64 [end - first]; values of states without action, in the table's order, by one of `reward_models`."""
        raise unknown_name("reward model", name, self.reward_models)

    def reward_range(self, name: str) -> tuple[float, float]:
        """Least and largest reward by one of `reward_models`, values of states without action included."""
        raise unknown_name("reward model", name, self.reward_models)

    def row_names(self, first: int, end: int) -> IntArray:
        """int64 [end - first]; which of `action_names` each row has, in the table's order; -1 where it has none."""
        return np.full(end - first, -1)

    def faults(self) -> list[str]:
        """Read everything, and return what is damaged."""
        return []


NO_ANNOTATIONS = Annotations()


def unknown_name(kind: str, name: str, known: Sequence[str]) -> OptionsError:
    """The refusal of a name that no label, or reward model, has."""
    listed = shorten(printable(", ".join(known)), 300)
    return OptionsError(f"there is no {kind} {quote(name)}; there are: {listed}" if known else
                        f"there is no {kind} {quote(name)}, as the model has none")  # fmt: skip
