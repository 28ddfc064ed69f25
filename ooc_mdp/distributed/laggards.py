"""Solvers that the others go on without although their workers answer: they do not begin, or their threads hang."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from ooc_mdp.distributed.members import Members

__all__ = ["Laggards"]

_STILL = 40
"""Times the patience: a solver whose thread has not looked for messages for so long hangs. A read of a partition from a
slow disk must take less."""


class Laggards:
    """Of one solve."""

    def __init__(self, solvers: Members, note: Callable[[str], None]) -> None:
        self._solvers, self._note = solvers, note
        self._late, self._late_since = -1, 0.0
        """How many have not begun, and since when there are so many."""
        self._still: dict[int, float] = {}
        """Those whose threads seem to hang, and since when."""

    def give_up_late(self) -> None:
        """Go on without solvers that do not begin, once others have for as long as the patience."""
        alive, patience, now = self._solvers.alive(), self._solvers.patience, time.monotonic()
        late = [k for k in alive if not self._solvers.of[k].status.begun]
        if len(late) != self._late:
            self._late, self._late_since = len(late), now
        if not late or now - self._late_since < patience:
            return
        why = "busy with other tasks of the cluster, perhaps another solve"
        if len(late) == len(alive):
            self._late_since = np.inf
            self._note(f"no worker has begun in {patience:g} s: their threads are {why}; waiting for them")
            return
        for k in late:
            self._solvers.lose(
                k,
                f"has not begun in {patience:g} s: its threads are {why}; the others go on without it until it is free",
            )

    def give_up_still(self) -> None:
        """Go on without solvers whose threads hang, where another is left."""
        patience, now = self._solvers.patience, time.monotonic()
        alive = self._solvers.alive()
        statuses = {k: self._solvers.of[k].status for k in alive}
        seconds = {k: 0.0 if s.compiling and not s.ready else s.still for k, s in statuses.items()}
        still = [k for k in alive if seconds[k] > _STILL * patience]
        others = any(statuses[k].begun for k in alive if k not in still)
        # Seen for a while, since threads of a process that was stopped have yet to look.
        self._still = {k: self._still.get(k, now) for k in still}
        for k in still:
            if others and now - self._still[k] > patience:
                self._solvers.lose(
                    k,
                    f"has not finished a step for {seconds[k]:.0f} s: its thread hangs, or waits for a disk or device; "
                    f"the others go on with its partitions (give a longer --patience if such steps are usual)",
                )
