"""Synchronous passes: a measurement that keeps its backups, and leaves out actions that cannot have become the best.

When all actions of state s are looked at, the best one, b, is ahead of the others by a gap. Rows of s sum to numbers
between c' and c, so that while values change by numbers of [l, h], the difference of two action values of s changes by

    g |sum_k p_k d_k - sum_k q_k d_k|  <=  g { c (h - l) + (c - c') max(|l|, |h|) },

and by no more than g (c - c') |x| where all values are shifted by x. The sum of these over passes and shifts is the
drift. While it is less than it was plus the gap, b is the best action and its value the backup: the pass then reads one
row of the state, and all it stores and measures is to the last bit what it would be with all rows. Rounding is on the
safe side: a margin for that of action values is kept off the gap. Rows with durations have their own discounts and
scales, and are all read.

Anything else that changes values or policy ends what is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ooc_mdp.backends.base import Resident, VisitReport
from ooc_mdp.backends.cpu.addresses import Span, load, span, store
from ooc_mdp.backends.cpu.claims import fetch_increment
from ooc_mdp.backends.cpu.loops import action_values, discount_of, row_value
from ooc_mdp.backends.cpu.table import first_row
from ooc_mdp.backends.cpu.views import open_member
from ooc_mdp.model.contraction import UNDERFLOW, UNIT_ROUNDOFF, UP
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.runtime.compiled import loop, part

__all__ = ["Pass", "Passes", "pass_over", "pass_report"]

_ONE = np.uint64(1)
_DOWN = 1.0 - 1e-6
"""Factor that rounds down what is stored in float32, unless that overflows or is denormal there."""


class Pass(NamedTuple):
    """What a pass over some partitions reads and writes beside values and policy."""

    backups: Span
    """float64 [n]; gets max_a Q_a of the states."""
    until: Span
    """float32 [n]; the drift up to which each state's action stays the best."""
    drift: float
    """As it is now."""
    margin: float
    """By at most how much the computed values of two actions are nearer to each other than the exact ones, at any time
    since they were looked at."""


@loop
def pass_over(spec, model, values, policy, members, kept, workspace):
    """Back up all states of the members, which several threads may share, at the values before the pass.

    Parameters
    ----------
    members : `ooc_mdp.backends.cpu.batch.Members`, whose `measured` is filled.
    kept : `Pass`.
    workspace : float64; where their places are.
    """
    while True:
        m = int(fetch_increment(members.next.ctypes.data))
        if m >= members.tables.shape[0]:
            break
        table, view = open_member(spec, members.tables[m], members.places[m], workspace, values, policy)
        _pass_states(spec, table, model, view, kept, members.row_sums[m], members.measured[m])


@part
def _pass_states(spec, table, model, view, kept, row_sum, out):
    """One partition: float64 [8], as :func:`ooc_mdp.backends.cpu.loops.measure` fills it, with every action chosen."""
    one_scale = 1.0 / (1.0 - model.discount * row_sum)
    one_discount = table.discounts.address == 0
    rise = fall = plain_rise = plain_fall = largest = -np.inf
    smallest = np.inf
    differing = 0
    for i in range(table.n):
        s = np.uint64(i)
        at = np.uint64(table.first) + s
        here = load(spec, view.own, s, 0.0)
        known = np.int64(load(spec, view.policy, s, np.int32(0)))
        settled = kept.drift + kept.margin < np.float64(load(spec, kept.until, at, np.float32(0)))
        if known >= 0 and settled:
            j = first_row(spec, table, s) + np.uint64(known)
            best = row_value(spec, table, model, view.values, j)
            normalised = (best - here) * one_scale
            kept_normalised = normalised
        else:
            found = action_values(spec, table, model, view.values, s, here, known, row_sum)
            best = found.best
            normalised = kept_normalised = best - here
            until = -np.inf
            if found.action >= 0:
                differing += known != found.action
                store(spec, view.policy, s, np.int32(found.action))
                normalised, kept_normalised = normalised * one_scale, kept_normalised * one_scale
                until = kept.drift + (best - found.second) * _DOWN
            if found.action >= 0 and not one_discount:
                j = first_row(spec, table, s) + np.uint64(found.action)
                normalised = found.normalised
                kept_normalised = (best - here) / (1.0 - discount_of(spec, table, model, j) * row_sum)
                until = -np.inf
            stored = np.float32(until * _DOWN)  # rounded up where it overflows or is denormal
            store(spec, kept.until, at, stored if np.float64(stored) <= until else np.float32(-np.inf))
        largest = max(largest, here)
        smallest = min(smallest, here)
        rise = max(rise, normalised)
        fall = max(fall, -kept_normalised)
        plain_rise = max(plain_rise, best - here)
        plain_fall = max(plain_fall, here - best)
        store(spec, kept.backups, at, best)
    out[0], out[1], out[2], out[3] = rise, fall, plain_rise, plain_fall
    out[4], out[5], out[6], out[7] = largest, smallest, -np.inf, differing


class Passes:
    """The buffer of passes, and up to which drift each state's action stays the best one.

    Parameters
    ----------
    facts : sizes, discount, row sums and rewards.
    """

    def __init__(self, facts: ModelFacts) -> None:
        c = facts.contraction
        self._discount, self._sum = float(facts.discount), float(c.row_sum.max())
        self._spread = float(((c.shift_ratio - 1.0) / c.normaliser).max()) * UP
        """The largest g (c - c') of a partition."""
        self._rounding = 8.0 * (facts.longest_row + 4) * UNIT_ROUNDOFF
        self._rewards = float(np.abs(facts.reward_range).max(initial=0.0))
        self._backups = np.empty(facts.n_states)
        self._until = np.empty(facts.n_states, np.float32)
        self._passed = np.zeros(facts.n_partitions, np.bool_)
        """bool [P]; whether the present pass has been over a partition,"""
        self._up = self._low = 0.0
        """and the largest and least change that it has found."""
        self._known = False
        """Whether `until`, `drift` and `size` hold."""
        self._drift = self._size = 0.0
        """Its bound on |V|, then and since."""

    @staticmethod
    def nbytes(facts: ModelFacts) -> dict[str, int]:
        """Bytes that are kept, by name."""
        return {"commit buffer": 8 * facts.n_states, "settled actions": 4 * facts.n_states + facts.n_partitions}

    def forget(self) -> None:
        """Values or policy have changed otherwise."""
        self._known = False
        self._passed[:] = False

    def kept(self, values: FloatArray) -> Pass:
        """For the loops of a pass over some partitions; `values` are those before it."""
        if not self._known:
            self._until[:] = -np.inf
            self._drift, self._size, self._known = 0.0, float(np.abs(values).max(initial=0.0)), True
        margin = self._rounding * (self._size + self._rewards + UNDERFLOW)
        return Pass(span(self._backups), span(self._until), self._drift, margin)

    def passed(self, partitions: IntArray, measured: FloatArray) -> None:
        """Note by how much the values of these partitions will change; `measured` (float64 [k, 8]) is theirs."""
        up, low = float(measured[:, 2].max()), -float(measured[:, 3].max())
        begins = not self._passed.any()
        self._up, self._low = (up, low) if begins else (max(self._up, up), min(self._low, low))
        self._passed[partitions] = True

    def commit(self, values: FloatArray) -> FloatArray:
        """The values after the pass; its buffer is where those before it were."""
        largest = max(abs(self._up), abs(self._low))
        rounding = 4 * UNIT_ROUNDOFF * (self._size + largest)
        apart = self._discount * self._sum * (self._up - self._low + rounding)
        self._move(apart + self._spread * largest, largest, bool(self._passed.all()))
        self._backups, committed = values, self._backups
        return committed

    def shifted(self, by: float) -> None:
        """All values have been changed by one number, and what was passed is lost."""
        rounding = 4 * UNIT_ROUNDOFF * (self._size + abs(by))
        self._move(self._discount * self._sum * rounding + self._spread * abs(by), abs(by), True)

    def _move(self, drift: float, largest: float, whole: bool) -> None:
        """Values have changed by `largest` at most, differences of action values by the drift, if that is the whole."""
        self._size += largest
        self._drift = (self._drift + drift) * UP
        self._known &= whole and bool(np.isfinite(self._drift))
        self._passed[:] = False


def pass_report(residents: Sequence[Resident], measured: FloatArray) -> VisitReport:
    """Of a pass over these residents that measured so (float64 [k, 8])."""
    k = len(residents)
    return VisitReport(
        sweeps=np.ones(k, np.int64),
        backups=np.array([r.n_states for r in residents]),
        boundary_rise=np.zeros(k),
        boundary_fall=np.zeros(k),
        boundary_value=np.full(k, -np.inf),
        largest_value=measured[:, 4],
        smallest_value=measured[:, 5],
        residuals=np.ascontiguousarray(measured[:, :4].T),
        changed=False,
    )
