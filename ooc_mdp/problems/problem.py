"""What a generated problem is: an MDP whose rows can be computed for any set of states, in any order.

To add a problem, write one module with a class that satisfies :class:`Problem`. A problem owns no memory that
grows with its number of states: every row is a function of the state and the parameters (randomness included:
counter-based, never a stream), so partitions can be generated in parallel and again. A problem with labelled states
has a property ``labels`` as well (`ooc_mdp.io.problem_labels`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from ooc_mdp.model.mdp import IntArray, Rows

__all__ = ["LabelFunction", "Problem", "RowBounds", "provenance_of"]

LabelFunction = Callable[[IntArray], npt.NDArray[np.bool_]]
"""Which of some states (int64 [n]) have a label (bool [n])."""


@dataclass(frozen=True, slots=True)
class RowBounds:
    """What a problem states of all of its rows before any is computed; a partition that breaks it is an error."""

    max_actions: int
    """Most actions of a state."""
    max_successors: int
    """Most transitions of a row."""
    uniform_actions: bool = False
    """Whether every state has `max_actions`."""
    uniform_successors: bool = False
    """Whether every row has `max_successors`."""
    optional: tuple[str, ...] = ()
    """Names of the arrays of :class:`~ooc_mdp.model.mdp.Rows` that may be left out, and that `rows` gives."""


class Problem(Protocol):
    """An MDP given by a function from states to rows."""

    name: str
    n_states: int
    shape: tuple[int, ...] | None
    """Points along each axis where states are a grid in C order, else None."""
    sense: str
    """"max" or "min"."""
    dyadic_probabilities: bool
    """Whether every probability is a multiple of 2**-24, so that float32 holds it and 1 minus the others exactly."""
    default_dtype: Literal["float32", "float64"]
    """Type in which probabilities and rewards are stored unless the user says otherwise."""

    @property
    def row_bounds(self) -> RowBounds | None:
        """What holds for all rows: chunks are laid out from it before the first row is computed; None: nothing is
        known, and chunks that turn out to be laid out otherwise than the whole table are written again."""
        ...

    def rows(self, states: IntArray) -> Rows:
        """Rows of the given states (int64 [n], any order), in that order; successors in the problem's numbering."""
        ...

    def parameters(self) -> dict[str, int | float | str | bool]:
        """Everything needed to make the same problem again, for the store's provenance."""
        ...

    def geometry(self) -> dict[str, Any] | None:
        """Axes of a grid's points for the store's attributes, without the shape; None where states are no grid.

        ``{"axes": [{"name", "low", "high", "periodic", "unit"}, ...]}``, an entry for each axis of `shape`: points
        lie from low to high (high itself is no point of a periodic axis, being low again).
        """
        ...


def provenance_of(problem: Problem) -> dict[str, Any]:
    """What a table of the problem says of its origin: name, parameters and, for a user's problem, its file."""
    said: dict[str, Any] = {"source": problem.name, "format": "problem", "options": problem.parameters()}
    file: Path | None = getattr(problem, "file", None)
    if file is not None:
        said["file"] = {"path": str(file), "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
    return said
