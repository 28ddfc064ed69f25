"""Whether a lower and an upper value of total rewards are inductive, checked on the table alone.

    T_pi L > L and T U < U in every state, float64 rounding included: then L <= V_pi <= V* <= U

``docs/theory/undiscounted.md`` has the argument.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.cpu.rows import TableRows
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.undiscounted.end_components import Staying
from ooc_mdp.undiscounted.kernels.totals import check, reach_strict, stay_level
from ooc_mdp.undiscounted.tables import Neighbours, Streamed, Work

__all__ = ["Inductive", "inductive", "load_code"]


@dataclass(frozen=True, slots=True)
class Inductive:
    """What a pass over the table says of a lower and an upper value, and of a policy."""

    violated: npt.NDArray[np.bool_]
    """bool [P]; partitions in which something is not inductive."""
    violating_state: int
    """A state (store order) with a fault; -1: there is none."""
    wrong_actions: int
    """States whose policy names an action that they do not have, or none where they have one."""
    residual: float
    """Largest |opt_a Q_a - V| of the middle."""
    rounding: float
    """What rounding may add to it."""

    @property
    def holds(self) -> bool:
        """Whether L <= V_pi <= V* <= U is proved."""
        return self.violating_state < 0


def load_code(rows: TableRows) -> None:
    """Load the compiled loops of a check, on rows of no state, so that a memory plan counts them."""
    marks, policy, values = np.zeros(1, np.uint8), np.zeros(1, np.int32), np.zeros((1, 2))
    staying = Staying.everywhere(0.0, 2)
    check(rows, values, values[:, 0].copy(), policy, 1.0, staying.lower, staying.upper, marks, marks)
    reach_strict(rows, policy, marks)
    stay_level(rows, values[:, 1], marks, 1.0)


def inductive(
    tables: Streamed,
    neighbours: Neighbours,
    values: FloatArray,
    middle: FloatArray,
    policy: npt.NDArray[np.int32],
    sign: float,
    staying: Staying,
) -> Work[Inductive]:
    """Check L and U (float64 [n, 2], of the maximisation), state by state, and that the policy does not idle.

    The check rests on the table alone. Where L is above the value of staying for ever without reward and the policy's
    row is level (without reward, among states of one L), the policy must lead to other states, which further passes
    over the partitions with such states verify.
    """
    source = tables.source
    pending, idle = np.zeros(source.n_states, np.uint8), np.zeros(source.n_states, np.uint8)
    violated, waiting, idling = (np.zeros(source.n_partitions, np.bool_) for _ in range(3))
    at, wrong = -1, 0
    residual = rounding = 0.0
    for p, rows, _ in tables.in_order(np.ones(source.n_partitions, np.bool_)):
        found = check(rows, values, middle, policy, sign, staying.lower, staying.upper, pending, idle)
        above, below, no_action, where, waits, idles, r, e = found
        violated[p] = above + below + no_action > 0
        at = max(at, where)
        wrong += no_action
        waiting[p], idling[p] = waits > 0, idles > 0
        residual, rounding = max(residual, r), max(rounding, e)
        yield
    if not violated.any():
        again = waiting.copy()

        def leading_on(p: int, rows: TableRows) -> IntArray | None:
            _, changed = reach_strict(rows, policy, pending)
            readers: IntArray = neighbours.dependents(p)
            return readers[waiting[readers]] if changed else None

        def leaving(p: int, rows: TableRows) -> IntArray | None:
            changed = stay_level(rows, values[:, 1], idle, sign)
            readers: IntArray = neighbours.dependents(p)
            return readers[idling[readers]] if changed else None

        yield from tables.until_clean(again, leading_on)
        yield from tables.until_clean(idling.copy(), leaving)
        for left in (np.flatnonzero(pending), np.flatnonzero(idle)):
            if left.size:
                at = int(left[0])
                violated[np.searchsorted(source.facts.partition_ptr, left, side="right") - 1] = True
    return Inductive(violated, at, wrong, residual, rounding)
