"""The loop of every discounted solve.

    before a step   apply what peers have sent, send what has changed; end where the target is met everywhere
    a step          choose partitions ─▶ obtain them ─▶ sweep ─▶ propagate          (one `next` of a method)
    after a step    report, checkpoint, stop at a limit or signal

A method is a generator: it does one bounded piece of work, then yields. It never asks whether the solve is done; that
is asked here. Whatever a method has computed before a yield may be out of date after it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Protocol

import numpy as np

from ooc_mdp.backends.layout import SlotsTooSmall
from ooc_mdp.model.solution import Outcome
from ooc_mdp.solver.peers import Signal
from ooc_mdp.solver.plan import NEAR_ROUNDING
from ooc_mdp.solver.state import SolveState

__all__ = ["Method", "Observer", "Part", "Steps", "drive"]

Steps = Generator[None, None, Outcome]
"""A method at work: a step for each `next`; it returns an outcome only where it cannot go on."""
Part = Generator[None, None, None]
"""Steps of a part of a method, which a method runs by `yield from`."""
Method = Callable[[SolveState], Steps]


class Observer(Protocol):
    """Looks on between steps."""

    def after_step(self, state: SolveState) -> Outcome | None:
        """Report and save where it is time to; the outcome where a limit or signal ends the solve."""
        ...


_IDLE_BACKUPS = 20_000
"""Bounds near rounding (`NEAR_ROUNDING`) are all that float64 has to give where they have not come down for so many
backups of each state"""
_PROGRESS = 0.9
"""to this share."""


class _Precision:
    """Whether the bounds of a solve have come down as far as float64 allows.

    Rounding may keep values moving for ever a few units in the last place, and a discount near 1 makes much of that.
    """

    def __init__(self, state: SolveState) -> None:
        self._least, self._next = np.inf, state.counters.backups + _IDLE_BACKUPS * state.table.n_states

    def exhausted(self, state: SolveState) -> bool:
        """Whether they have, as far as one can tell."""
        if state.counters.backups < self._next:
            return False
        self._next = state.counters.backups + _IDLE_BACKUPS * state.table.n_states
        before, self._least = self._least, min(self._least, state.target.proved)
        return self._least > _PROGRESS * before and self._least <= NEAR_ROUNDING * state.target.rounding


def drive(state: SolveState, method: Method, observer: Observer) -> Outcome:
    """Run a method until sweeps are done, a limit ends it, or float64 can do no more."""
    precision = _Precision(state)
    while True:
        steps = method(state)
        try:
            while (signal := state.peers.before_step(state)) is Signal.GO:
                next(steps)
                stop = observer.after_step(state)
                if stop is not None:
                    return stop
                if precision.exhausted(state):
                    return Outcome.PRECISION_LIMIT
            if signal is Signal.DONE:
                return state.target.outcome
        except StopIteration as ended:
            outcome: Outcome = ended.value
            return outcome
        except SlotsTooSmall:
            state.rebuild_cache()
        finally:
            steps.close()
