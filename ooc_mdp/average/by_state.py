"""The gain of each state, where it was proved to differ between states.

    maximal end components ─▶ interval of the gain of each ─▶ best way into them ─▶ lower and upper gain of each state
      no row pays             rows confined to them          total reward, of which staying in one has its gain as value

What a policy does for ever, it does in end components (de Alfaro 1997, theorem 3.2), and the rewards before that change
no average. So the gain of a state is the best expected gain of the component in which the process stays (Puterman
1994, section 9.5; Ashok, Chatterjee, Daca, Kretinsky and Meggendorfer 2017). Total rewards of rows that pay nothing are
solved by interval iteration, and checked to be inductive (`ooc_mdp.undiscounted`). ``docs/theory/average-reward.md``
has the argument.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from ooc_mdp.average.component_gains import COMPONENT_GAINS_BYTES, ComponentGains
from ooc_mdp.average.component_tables import ConfinedTable, UnpaidTable
from ooc_mdp.average.host import HostGains
from ooc_mdp.errors import MemoryBudgetError
from ooc_mdp.events import SolveProgress
from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.model.solution import Outcome, Solution
from ooc_mdp.model.statistics import SolveStatistics
from ooc_mdp.options import SolveOptions
from ooc_mdp.runtime.memory import return_freed_memory
from ooc_mdp.runtime.memory_plan import MemoryPlan
from ooc_mdp.solver.history import HistoryRecorder, HistoryRow, progress_of, row_of
from ooc_mdp.solver.output import Snapshot
from ooc_mdp.solver.run import Job
from ooc_mdp.solver.session import Session
from ooc_mdp.solver.verify import from_original
from ooc_mdp.store.trace import Trace
from ooc_mdp.undiscounted.end_components import check_totals
from ooc_mdp.undiscounted.interval_iteration import IntervalIteration
from ooc_mdp.undiscounted.kernels.end_components import NO_COMPONENT
from ooc_mdp.undiscounted.streamed_solve import DEPTH, load_loops
from ooc_mdp.undiscounted.tables import Streamed, Work
from ooc_mdp.undiscounted.totals import load_code_of_totals, plan_totals, start_iteration

__all__ = ["GainsByState", "begin_by_state"]

_PROOF = (
    "lower and upper gains checked to be inductive: P_pi L > L and P U < U in every state, or level, where staying in "
    "an end component has a gain between min_s max_a x and max_s max_a x there, x = r + P h - h at the values h; "
    "float64 rounding included"
)


@dataclass(slots=True)
class GainsByState:
    """A solve at work."""

    interval: Solution
    """What is known before: one interval for all states, and h."""
    tables: Streamed
    """Of the table in which no row pays, and of the confined one meanwhile."""
    iteration: IntervalIteration
    """Of the best way into end components."""
    backend: HostGains
    epsilon: float
    """Half the width that the interval of each state may have."""
    plan: MemoryPlan
    options: SolveOptions
    stopped: Outcome | None
    """What ended it before it could begin."""
    counters: SolveStatistics = field(init=False)
    history: HistoryRecorder = field(init=False)
    values: FloatArray = field(init=False)
    """float64 [n]; h."""

    def __post_init__(self) -> None:
        """Counts go on."""
        self.counters, self.history = self.iteration.counters, self.iteration.history
        self.values = self.iteration.sign * from_original(self.tables.source, self.interval.values)

    def solve(self) -> Work[Outcome]:
        """The components, the gain of each, the way into them."""
        if self.stopped is not None:
            return self.stopped
        unpaid, iteration = self.tables.source, self.iteration
        assert isinstance(unpaid, UnpaidTable)
        found = yield from check_totals(self.tables, iteration.neighbours, iteration.staying)
        confined = ConfinedTable.of(unpaid.base, found.within.zero_reward, NO_COMPONENT)
        self.tables.change(confined)
        self.backend.start(confined, self.values)
        gains = ComponentGains(self.tables, self.backend, 0.5 * self.epsilon, self.counters)
        narrow = yield from gains.narrow()
        self.values, inside = self.backend.values(), self.backend.policy()
        iteration.staying = gains.staying()
        self.tables.change(unpaid)
        self.backend.close()
        iteration.totals = yield from iteration.prove(found, False)
        stays = iteration.values[:, 0] <= iteration.staying.lower
        np.copyto(iteration.totals.policy, inside, where=stays)
        return iteration.totals.outcome if narrow else Outcome.PRECISION_LIMIT

    def conclude(self, outcome: Outcome) -> Solution:
        """Bounds of each state, if they are proved; else the interval."""
        totals, table, sign = self.iteration.totals, self.tables.source, self.iteration.sign
        if totals is None or totals.found is None:
            return replace(
                self.interval, outcome=outcome, statistics=self.statistics(), history=self.history.end(self.row())
            )
        low, high = np.sort(0.0 + sign * self.iteration.values, axis=1).T
        width = float(np.nextafter((high - low).max(), np.inf))
        half = float(np.nextafter(0.5 * width + np.spacing(np.abs(high).max()), np.inf))
        certificate = replace(
            self.interval.certificate,
            error_bound=half,
            error_lower=-half,
            error_upper=half,
            residual_bound=half,
            policy_loss_bound=width,
            proof=_PROOF,
            lower=float(low.min()),
            upper=float(high.max()),
        )
        return replace(
            self.interval,
            outcome=outcome,
            certificate=certificate,
            statistics=self.statistics(),
            history=self.history.end(self.row()),
            values=table.to_source(sign * self.values),
            policy=table.to_source(totals.policy),
            memory_plan={"host": self.plan.host, "device": self.plan.device},
            value_lower=table.to_source(np.ascontiguousarray(low)),
            value_upper=table.to_source(np.ascontiguousarray(high)),
        )

    # ------------------------------------------------------------------------------ what others may ask

    def snapshot(self) -> Snapshot | None:
        """What a checkpoint holds: h, from which the interval of all states is found again."""
        self.history.row(self.row())
        return Snapshot({"values": self.values, **self.history.arrays()}, self.statistics())

    def progress(self) -> SolveProgress:
        """Where the solve stands: one interval for all states is proved."""
        s, half = self.statistics(), self.interval.certificate.error_bound
        return progress_of(
            s,
            error_bound=half,
            residual_bound=half,
            target=self.epsilon,
            stopping_rule="epsilon",
            dirty=int(self.iteration.dirty.sum()),
        )

    def row(self) -> HistoryRow:
        """The same for the history."""
        half, resident = self.interval.certificate.error_bound, int(np.count_nonzero(self.tables.cache.present))
        return row_of(self.statistics(), half, half, int(self.iteration.dirty.sum()), resident)

    def statistics(self) -> SolveStatistics:
        """The counters now."""
        return self.iteration.statistics()


def begin_by_state(
    job: Job, session: Session, interval: Solution, epsilon: float, history: HistoryRecorder, trace: Trace | None
) -> GainsByState | None:
    """Plan and begin the solve; None, with a note, where there is not so much memory.

    Parameters
    ----------
    interval : the solution that proves the gain to differ.
    epsilon : half the width that the interval of each state may have.
    history : of the solve so far, which goes on.
    """
    low, high = interval.certificate.lower, interval.certificate.upper
    unpaid, options = UnpaidTable.of(job.table, low, high), replace(job.options, epsilon=epsilon)
    return_freed_memory()
    try:
        budget, plan = plan_totals(
            unpaid, options, job.writes, {"gains of end components": COMPONENT_GAINS_BYTES * unpaid.n_states}
        )
    except MemoryBudgetError as error:
        job.note(f"the gain of each state is not solved for: {error}")
        return None
    job.note(plan.describe())
    backend = HostGains(plan.host["rows of the policy"])
    job.stack.callback(backend.close)
    nowhere = np.broadcast_to(NO_COMPONENT, unpaid.n_states)
    stopped = load_code_of_totals(unpaid, job.writes, session) or load_loops(
        job.writes, session, lambda: backend.load_code(ConfinedTable.of(job.table, nowhere, NO_COMPONENT))
    )
    tables = job.stack.enter_context(Streamed(unpaid, budget, DEPTH))
    tables.trace = trace
    tables.count_on(interval.statistics)
    tables.cache.loads += history.loads
    history.loads = tables.cache.loads
    iteration = start_iteration(tables, options, budget, session.clock.seconds)
    iteration.history = history
    for name in ("visits", "sweeps", "backups", "policy_evaluations"):
        setattr(iteration.counters, name, getattr(interval.statistics, name))
    return GainsByState(interval, tables, iteration, backend, epsilon, plan, options, stopped)
