"""What a generated problem is: an MDP whose rows can be computed for any set of states, in any order.

To add a problem, write one module with a class that satisfies :class:`Problem`. A problem owns no memory that
grows with its number of states: every row is a function of the state and the parameters (randomness included:
counter-based, never a stream), so partitions can be generated in parallel and again.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol

from ooc_mdp.mdp import IntArray, Rows

__all__ = ["Problem"]


class Problem(Protocol):
    """An MDP given by a function from states to rows."""

    name: str
    n_states: int
    shape: tuple[int, ...] | None
    """Points along each axis where states are a grid in C order, else None."""
    sense: str
    """"max" or "min"."""
    exact_weights: bool
    """Whether every probability is a multiple of 2**-24, so that float32 holds it and 1 minus the others exactly."""
    default_dtype: Literal["float32", "float64"]
    """Type in which probabilities and rewards are stored unless the user says otherwise."""

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
