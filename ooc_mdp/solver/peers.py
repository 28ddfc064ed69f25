"""Other solvers of the same model, as a solve sees them; in one process there are none."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from ooc_mdp.model.mdp import FloatArray, IntArray

if TYPE_CHECKING:
    from ooc_mdp.solver.state import SolveState

__all__ = ["NO_PEERS", "Peers", "Signal"]


class Signal(enum.Enum):
    """What a solve does next."""

    GO = enum.auto()
    """A step of its method."""
    RESTART = enum.auto()
    """Its method anew: partitions have come or gone, or it was paused meanwhile."""
    DONE = enum.auto()
    """Nothing more: the target is met."""


class Peers(Protocol):
    """To share a model with others, define these and hand the object to the state."""

    @property
    def owned(self) -> npt.NDArray[np.bool_] | None:
        """bool [P]; partitions that this solver sweeps, read at all times; None: all of them."""
        ...

    @property
    def count(self) -> int:
        """Solvers that have partitions, this one among them."""
        ...

    def before_step(self, state: SolveState) -> Signal:
        """Apply what has arrived and send what has changed; wait where nothing is to be done yet."""
        ...

    def boundary_changed(self, partitions: IntArray) -> None:
        """Boundary values of these are others now: solvers that read them are to be sent them."""
        ...

    def take_rises(self) -> FloatArray | None:
        """float64 [P]; by how much values of others' partitions rose since this was last asked; None: none changed."""
        ...


class _NoPeers:
    owned = None
    count = 1

    def before_step(self, state: SolveState) -> Signal:
        if not state.target.reached():
            return Signal.GO
        state.finish()
        return Signal.DONE if state.target.reached() else Signal.GO

    def boundary_changed(self, partitions: IntArray) -> None:
        """Nobody reads them."""

    def take_rises(self) -> None:
        """Nobody else has any."""


NO_PEERS: Peers = _NoPeers()
