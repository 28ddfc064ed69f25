"""The change of the method while a solve runs: P-EVA until it has cost more than policy iteration usually does in all.

P-EVA reads partitions about once where they depend on few others, and tens of times where they depend on many; policy
iteration some six times, whatever the coupling (``benchmarks/notes/2026-11-policy-iteration.md``). So the coupling
decides at first (`solver.plan.choose_method`), and where P-EVA then costs more than policy iteration usually does in
all, the rest is policy iteration's: it begins at the values that are there, so the whole costs at most about twice the
better of the two.
"""

from __future__ import annotations

from contextlib import closing

from ooc_mdp.errors import MemoryBudgetError
from ooc_mdp.model.solution import Outcome
from ooc_mdp.options import format_bytes
from ooc_mdp.solver.driver import Method, Steps
from ooc_mdp.solver.state import SolveState

__all__ = ["p_eva_then"]

_SWITCH_LOADS = 6.0
"""Loads per partition that policy iteration takes on strongly coupled tables, about."""
_SWITCH_BACKUPS = 2000.0
"""Backups of each state on the CPU, after which the rest is policy iteration's even if nothing is loaded: a maze in
memory took P-EVA 13,328 at discount 0.999, policy iteration 1,130. A device makes as many in less time than evaluations
of poor policies take."""


def p_eva_then(first: Method, then: Method) -> Method:
    """One method, then policy iteration once the first has cost too much; back to the first where that has no room.

    With larger slots, and after a resume, a solve begins again here: by policy iteration if that had begun.
    """

    def steps(s: SolveState) -> Steps:
        if s.phases[-1].method != "policy-iteration":
            with closing(first(s)) as visits:
                while not _costly(s):
                    try:
                        next(visits)
                    except StopIteration as ended:
                        outcome: Outcome = ended.value
                        return outcome
                    yield
            _change(s)
        try:
            return (yield from then(s))
        except MemoryBudgetError as error:
            s.remark(f"auto: {_first(s)} goes on after all, since {error}")
            s.phases.pop()
            return (yield from first(s))

    return steps


def _change(s: SolveState) -> None:
    """Policy iteration begins."""
    assert s.backend.policy_rows is not None  # `choose_method` has looked
    needed = format_bytes(s.backend.policy_rows.rows_bytes(s.plan.facts))
    loads, backups = _costs(s)
    s.remark(
        f"auto: policy iteration from here on, with {needed} more, since {_first(s)} has taken {loads:.1f} loads per "
        f"partition and {backups:.0f} backups per state so far"
    )
    s.begin_phase("policy-iteration")


def _first(s: SolveState) -> str:
    """The method before, as users know it."""
    return s.plan.choice.first.removesuffix(" on device")


def _costs(s: SolveState) -> tuple[float, float]:
    """Loads per partition and backups per state since the method began; those of a method before it are not its own."""
    began = s.phases[-1]
    loads, backups = s.cache.statistics.loads - began.loads, s.counters.backups - began.backups
    return loads / s.table.n_partitions, backups / s.table.n_states


def _costly(s: SolveState) -> bool:
    loads, backups = _costs(s)
    return loads > _SWITCH_LOADS or (backups > _SWITCH_BACKUPS and not s.backend.features.overlaps_loads)
