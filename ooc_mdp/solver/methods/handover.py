"""The choice between p-eva and policy iteration, from what the table looks like and what the solve has cost so far.

P-eva reads partitions about once where they depend on few others, and tens of times where they depend on many; policy
iteration some six times, whatever the coupling (``docs/policy-iteration.md`` has the figures). So the coupling decides
at first, and where p-eva then costs more than policy iteration usually does in all, the rest is policy iteration's: it
begins at the values that are there, so the whole costs at most about twice the better of the two.
"""

from __future__ import annotations

from ooc_mdp.backends.base import KeepsPolicyRows
from ooc_mdp.errors import MemoryBudgetError
from ooc_mdp.options import format_bytes
from ooc_mdp.solver.methods.p_eva import p_eva
from ooc_mdp.solver.methods.policy_iteration import policy_iteration
from ooc_mdp.solver.plan import begins_with_rows
from ooc_mdp.solver.run import Run

__all__ = ["auto"]

_ENOUGH_LOADS = 6.0
"""Loads a partition that policy iteration takes on strongly coupled tables, about."""
_ENOUGH_BACKUPS = 2000.0
"""Backups of each state on the CPU, after which the rest is policy iteration's even if nothing is loaded: a maze in
memory took p-eva 13,328 at discount 0.999, policy iteration 1,130. A device makes as many in less time than evaluations
of poor policies take."""


def auto(run: Run) -> None:
    """Solve by whatever suits; raises StoppedEarly. `run.remark` is told of the choice, and of a change of mind."""
    store = run.store
    model = run.facts
    read = f"a partition reads {model.mean_partitions_read:.1f} of the {store.n_partitions - 1} others on average"
    if begins_with_rows(store, run.options, run.backend, model, run.cache.budget):
        run.remark(f"auto: policy iteration, since {read}")
        run.taken = ["policy-iteration"]
        policy_iteration(run)
        return
    run.remark(f"auto: p-eva, since {read}")
    run.taken = ["p-eva"]  # and no other: with larger slots a solve begins again here
    if not isinstance(run.backend, KeepsPolicyRows):
        p_eva(run)
        return
    p_eva(run, give_up=lambda: _costly(run))
    if run.target.reached():
        return
    loads, backups = _costs(run)
    so_far = f"p-eva has taken {loads:.1f} loads a partition and {backups:.0f} backups a state so far"
    needed = run.backend.rows_bytes(model)
    if run.options.device_memory is not None:
        run.remark(f"auto: {so_far}; policy iteration would not keep to --device-memory now, so p-eva goes on")
        p_eva(run)
    else:
        run.remark(f"auto: policy iteration from here on, with {format_bytes(needed)} more, since {so_far}")
        run.taken.append("policy-iteration")
        try:
            policy_iteration(run)
        except MemoryBudgetError as error:
            run.remark(f"auto: p-eva goes on after all, since {error}")
            run.taken.pop()
            p_eva(run)


def _costs(run: Run) -> tuple[float, float]:
    """Loads a partition and backups a state so far."""
    return run.cache.statistics.loads / run.store.n_partitions, run.statistics.backups / run.store.n_states


def _costly(run: Run) -> bool:
    loads, backups = _costs(run)
    return loads > _ENOUGH_LOADS or (backups > _ENOUGH_BACKUPS and not run.backend.loads_beside)
