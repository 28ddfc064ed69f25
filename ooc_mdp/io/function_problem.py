"""A user's function of states as a problem, whose rows are computed for any states, again, and in any process.

Its rows are checked and brought into canonical form here. What identifies a function is its name and a hash of the rows
of a sample of states, so that a generation that was stopped is not continued with another function.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from ooc_mdp.io.checked_rows import canonical_rows
from ooc_mdp.io.dense_rows import merged_rows
from ooc_mdp.io.state_rows import RowFunction, read_rows
from ooc_mdp.model.mdp import IntArray, Rows, joined_rows

__all__ = ["FunctionProblem", "function_problem"]

_SAMPLE = 256
"""States whose rows are part of the identity."""
_PIECE_ENTRIES = 1 << 17
"""Transitions, padding included, that a function is asked for at a time where it has no more per state than in the
sample: arrays of this size stay in a core's cache, and little memory is held besides the rows that are kept."""


@dataclass(slots=True, eq=False)
class FunctionProblem:
    """See :class:`ooc_mdp.problems.problem.Problem`."""

    name: str
    n_states: int
    function: RowFunction
    shape: tuple[int, ...] | None = None
    sense: str = "max"
    normalize: bool = False
    sample: str = ""
    """Hash of the rows of a sample of states."""
    piece: int = 1024
    """States for which the function is called at a time."""
    default_dtype: Literal["float32", "float64"] = "float64"
    dyadic_probabilities: bool = False

    @property
    def row_bounds(self) -> None:
        """None: nothing is known of the rows before they are computed."""
        return None

    def rows(self, states: IntArray) -> Rows:
        """Rows of the given states, checked; an exception of the function gets a note with the states.

        Raises
        ------
        InputError : they are no rows of an MDP of `n_states` states.
        """
        pieces = [self._piece(states[i : i + self.piece])[0] for i in range(0, states.size, self.piece)]
        return pieces[0] if len(pieces) == 1 else joined_rows(pieces)

    def _piece(self, states: IntArray) -> tuple[Rows, int]:
        """Rows of some states, and how many transitions the function gave for them."""
        try:
            given = self.function(states.copy())
        except Exception as error:
            error.add_note(f"{self.name} was called with {_listed(states)}")
            raise
        arrays = read_rows(f"{self.name}({_listed(states)})", given, states.size, self.sense)
        dense = None if self.normalize else arrays.dense()
        rows = None if dense is None else merged_rows(dense, self.n_states)
        if rows is None:
            rows = canonical_rows(self.name, states, arrays.raw(), n_states=self.n_states, normalize=self.normalize)
        return rows, arrays.n_entries

    def parameters(self) -> dict[str, int | float | str | bool]:
        """What identifies the function, though it cannot be made again from it."""
        return {"states": self.n_states, "normalize": self.normalize, "sample": self.sample}

    def geometry(self) -> dict[str, Any] | None:
        """None: nothing is known of the axes of a grid."""
        return None


def function_problem(
    function: RowFunction,
    n_states: int,
    *,
    name: str | None = None,
    shape: tuple[int, ...] | None = None,
    sense: str = "max",
    normalize: bool = False,
) -> FunctionProblem:
    """The problem of a function, whose rows are computed for a sample of states; raises InputError for bad ones."""
    named = FunctionProblem(name or name_of(function), n_states, function, shape, sense, normalize)
    count = min(_SAMPLE, n_states)
    rows, entries = named._piece(np.unique(np.linspace(0, n_states - 1, count).astype(np.int64)))
    digest = hashlib.blake2b(digest_size=16)
    for values in (rows.action_ptr, rows.successor_ptr, rows.successors):
        digest.update(values.astype("<i8").tobytes())
    for reals in (rows.probabilities, rows.rewards, rows.terminal_rewards, rows.durations):
        digest.update(b"" if reals is None else reals.astype("<f8").tobytes())
    return replace(named, sample=digest.hexdigest(), piece=max(_PIECE_ENTRIES * rows.n_states // max(entries, 1), 1))


def name_of(function: Callable[..., Any]) -> str:
    """The name of a function, or of the class of a callable object."""
    return str(getattr(function, "__name__", type(function).__name__))


def _listed(states: IntArray) -> str:
    """States for a message."""
    if states.size == 1:
        return f"state {states[0]}"
    return f"{states.size} states {states.min()}..{states.max()}"
