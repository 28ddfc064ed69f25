"""An evaluation of a policy on a device, which can be left at any time and gone on with: the host's side.

    sweeps in place  ─▶  slow?  ─▶  sweeps that are mixed  ─▶  still slow?  ─▶  BiCGSTAB for what is missing
                                                              better: it is added to the values  ─▶  sweeps  ─▶  ...
                                                              no: nothing, and more sweeps

Sweeps always converge. Where they are slow, Anderson mixing removes their slowest components (`mixing.py`): on balance
problems it saves about a third of the sweeps, where chains mix well and the discount is near 1 nine tenths and more.
Where a policy goes round by many short steps mixing is slow as well, and BiCGSTAB is tried; after a failure it is
tried again four times as late. Its vectors and scalars stay on the device when the host leaves it: what it has found
so far is added to the values if that is better by far, and it continues from there. It solves for the values that it
began with: changes that come from outside meanwhile are taken in by the sweeps afterwards.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ooc_mdp.backends.base import Evaluation
from ooc_mdp.backends.cuda.policy.layout import MAX_SWEEPS
from ooc_mdp.backends.cuda.policy.mixing import Mixing

if TYPE_CHECKING:
    from ooc_mdp.backends.cuda.policy.rows import DeviceRows

__all__ = ["LOST", "RUNNING", "DeviceEvaluation", "EvaluationOptions"]

RUNNING, LOST = 0, 3
"""States of the solver in policy/krylov.cu: it goes on; what it has found has numbers that are none."""
_MIN_REDUCTION = 0.5
"""Share of what values miss that a solver must have come down to for values to take over what it has found halfway:
each change of values counts against the gaps of actions, whether or not the next one takes it back."""


@dataclass(frozen=True, slots=True)
class EvaluationOptions:
    """By what an evaluation chooses between sweeps and the solver."""

    batch: int = 8
    """Sweeps between two looks at their pace, and between two mixes."""
    mix_from: float = 24.0
    """Sweeps still to go, as the pace tells, from which on they are mixed (infinity: never)."""
    patience: float = 300.0
    """Sweeps after which the solver is tried. An iteration costs about three of them; it needs some 50 to 100
    iterations, in the first of which its residuals only grow."""
    iterations: int = 4
    """Of the solver between two looks of the host."""
    max_stalled: int = 12
    """Looks without a smaller residual after which the solver is given up."""
    aim: float = 0.5
    """Share of the limit at which the solver stops: its own idea of the residual drifts away from the true one."""


class DeviceEvaluation:
    """See `ooc_mdp.backends.base.PolicyEvaluation`.

    Parameters
    ----------
    rows : of the policy.
    limit, most : largest change of a sweep at which it ends; sweeps or products after which it ends all the same.
    changed : called whenever values may have changed.
    """

    def __init__(self, rows: DeviceRows, limit: float, most: int, changed: Callable[[], None]) -> None:
        self._rows, self._launches, self._limit, self._most = rows, rows.launches, limit, most
        self._options, self._changed = rows.options, changed
        self._back = False
        self._done = self._reported = 0
        """Sweeps and products, in all and at the last report."""
        self._change = math.inf
        """Largest change of the last sweep."""
        self._mixing = Mixing(rows.launches, rows.value_bytes)
        self._solving = False
        self._missing = self._residual = math.inf
        """Largest residual of the values as they stand and of what the solver has found, as it knows them."""
        self._steps = self._work()

    def advance(self, seconds: float) -> bool:
        """One batch of launches at least."""
        until = time.monotonic() + seconds
        done = True
        for _ in self._steps:
            if time.monotonic() >= until:
                if self._solving:
                    self._take_over(_MIN_REDUCTION)
                done = False
                break
        self._changed()
        return done

    def report(self) -> Evaluation:
        """By a kernel over all rows."""
        found = self._rows.report(self._done - self._reported)
        self._reported = self._done
        self._rows.begin_changes()
        return found

    def _work(self) -> Iterator[None]:
        """To the end; may be left wherever it yields."""
        options, mixing = self._options, self._mixing
        begun, patience = 0, options.patience
        left = self._sweep(options.batch)
        while self._change > self._limit and self._done < self._most:
            yield
            if not self._rows.solves or left <= options.mix_from:
                mixing.forget()
                left = self._sweep(int(min(max(left, options.batch), MAX_SWEEPS)))
            elif self._done - begun < patience:
                mixing.begin_batch()
                left = self._sweep(options.batch)
                if self._change > self._limit:
                    mixing.mix()
            else:
                mixing.forget()
                if not (yield from self._solve()):
                    patience *= 4
                begun = self._done
                left = self._sweep(options.batch)

    def _sweep(self, count: int) -> float:
        """A batch; how many sweeps are left, as the pace of its second half tells."""
        count = max(min(count, self._most - self._done), 1)
        self._launches.begin_batch(self._limit)
        self._launches.sweep(count, self._back)
        self._back ^= count % 2 == 1
        progress = self._launches.progress()
        changes = progress["change"][:count]
        used = min(int(np.count_nonzero(changes > self._limit)) + 1, count)
        self._done += used
        self._change = float(changes[used - 1])
        self._limit = max(self._limit, self._rows.rounding(float(progress["size"])))
        half = (used - 1) // 2
        if not half or not 0 < self._change < changes[half]:
            return math.inf
        pace = math.log(self._change / changes[half]) / (used - 1 - half)
        return math.log(self._limit / self._change) / pace if self._limit > 0 else math.inf

    def _solve(self) -> Generator[None, None, bool]:
        """Let the solver find what is missing; whether values are any better for it."""
        launches, options = self._launches, self._options
        launches.begin_batch(options.aim * self._limit)
        launches.begin_solver()
        first, best, left, before = math.nan, math.inf, options.max_stalled, self._done
        while True:
            launches.iterate(options.iterations)
            progress = launches.progress()
            self._done = before + int(progress["products"])
            if math.isnan(first):
                first = self._missing = float(progress["first_residual"])
            self._residual = math.inf if progress["state"] == LOST else float(progress["residual"])
            left = options.max_stalled if self._residual < best else left - 1
            best = min(best, self._residual)
            if progress["state"] != RUNNING or not left or self._done >= self._most:
                break
            self._solving = True
            yield
            self._solving = False
        self._take_over(1.0)
        return self._missing < first

    def _take_over(self, share: float) -> None:
        """Values become what the solver has found, if that leaves less than this share of what they miss."""
        if self._residual < share * self._missing:
            self._launches.take_over()
            self._missing = self._residual
