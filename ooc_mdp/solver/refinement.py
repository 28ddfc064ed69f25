"""Values that are measured and refined in a higher precision, where float64 sweeps cannot prove what is asked for.

    measure   residuals of V in twice the precision of float64, in one pass over the table: the bound that they prove
    solve     the model of these residuals, whose optimum is what is missing of V (`ooc_mdp.solver.residual_table`)
    add       it to V, which is kept as the sum of two float64 vectors; measure again

The values that are returned are float64, so that what is proved of them ends at half a unit in their last place.
Each round leaves of the error what a solve in float64 leaves, about 1e-15 / (1 - discount) of it (iterative refinement,
Wilkinson 1963, of a nonlinear equation). All of it runs on the host's cores, whatever device has swept.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.cpu.backend import CpuBackend
from ooc_mdp.errors import MemoryBudgetError
from ooc_mdp.events import SolveProgress
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.solution import Outcome
from ooc_mdp.model.statistics import SolveStatistics
from ooc_mdp.model.table import Table
from ooc_mdp.options import DEFAULT_KERNEL, CacheSize, SolveOptions
from ooc_mdp.scheduling.target import default_target
from ooc_mdp.solver.driver import drive
from ooc_mdp.solver.methods.policy_iteration import improve_and_evaluate
from ooc_mdp.solver.plan import plan_solve
from ooc_mdp.solver.residual_table import Measured, PreciseValues, ResidualTable, measure_each
from ooc_mdp.solver.session import Session, StoppedEarly
from ooc_mdp.solver.start import start
from ooc_mdp.solver.state import SolveState

__all__ = ["Refined", "error_of", "refine"]

_REDUCTION = 1e-4
"""A correction is solved for to this share of the error that is left, or to a hundredth of the target."""
_PROGRESS = 0.5
"""A round has to bring the error of the two vectors' sum down to this share."""
_NEAREST = 1e-3
"""Values are the nearest of float64 where the error that is left without their rounding is so small a share of it."""


@dataclass(slots=True)
class Refined:
    """Values that were measured last, and what is proved of them, all rounding included."""

    outcome: Outcome
    values: FloatArray
    """float64 [n], store order, of the maximisation."""
    policy: npt.NDArray[np.int32]
    lower: float
    """V* - V is at least this,"""
    upper: float
    """and at most this."""
    residual: float
    policy_loss: float
    rounding: float
    target: float
    work: SolveStatistics
    """Loads, bytes, backups and evaluations."""
    loads: IntArray
    """int64 [P]; of each partition."""

    @property
    def error(self) -> float:
        """The proved bound on ||V - V*||."""
        return error_of(self.lower, self.upper)

    def count(self, statistics: SolveStatistics) -> None:
        """Add the work to the statistics of the solve."""
        _add(statistics, self.work)


def refine(
    table: Table,
    options: SolveOptions,
    values: FloatArray,
    session: Session,
    note: Callable[[str], None] = lambda _: None,
) -> Refined | None:
    """Measure values (float64 [n], store order, of the maximisation), and refine them while the target is not met.

    The values given stay as they are. None where a limit or signal comes before anything was measured.
    """
    run = _Refinement(table, options, PreciseValues(values.copy()), session, note)
    try:
        run.measure()
        while run.due() and run.correct():
            run.measure()
    except StoppedEarly as stop:
        if run.best is not None:
            run.best.outcome = stop.outcome
    return run.best


@dataclass
class _Refinement:
    """A refinement at work."""

    table: Table
    options: SolveOptions
    values: PreciseValues
    session: Session
    note: Callable[[str], None]
    best: Refined | None = None
    """With the least bound so far."""
    stalled: bool = False
    """Whether the last round has brought no progress."""
    facts: ModelFacts = field(init=False)
    measured: Measured = field(init=False)
    work: SolveStatistics = field(default_factory=SolveStatistics)
    loads: IntArray = field(init=False)

    def __post_init__(self) -> None:
        """Nothing is measured yet."""
        self.facts = ModelFacts.of(self.table.facts, self.options.discount)
        self.loads = np.zeros(self.table.n_partitions, np.int64)

    @property
    def plain(self) -> bool:
        """Whether the plain residual is what must come down."""
        return self.options.residual is not None

    def measure(self) -> None:
        """Residuals of all partitions, and what they prove of the values rounded to float64."""
        if self.plain:
            self.values.round()  # it is a residual of the float64 values
        table, policy = self.table, np.empty(self.table.n_states, np.int32)
        ranges = np.empty((table.n_partitions, 2))
        rise = fall = plain = rounding = 0.0
        for p, (rows, n_bytes, found) in enumerate(measure_each(table, self.facts, self.values, policy)):
            every = np.concatenate([found.rewards, found.terminal_rewards])
            ranges[p] = every.min(), every.max()
            rise, fall = max(rise, found.rise), max(fall, found.fall)
            plain, rounding = max(plain, found.plain), max(rounding, found.rounding)
            self.work.loads += 1
            self.work.bytes_read += n_bytes
            self.work.bytes_decoded += rows.nbytes
            self.work.backups += rows.n_states
            self.loads[p] += 1
            self.session.stop()
        before = np.inf if self.best is None else self.measured.error
        self.measured = Measured(rise, fall, plain, rounding, ranges, policy)
        self.stalled = not self.measured.error <= _PROGRESS * before
        found_now = self._refined()
        if self.best is None or found_now.error <= self.best.error:
            self.best = found_now

    def _refined(self) -> Refined:
        """What the measurement proves."""
        m, low = self.measured, self.values.low
        least, most = float(low.min()), float(low.max())
        lower, upper = _outwards(min(least - m.fall, 0.0)), _outwards(max(most + m.rise, 0.0))
        # |T V - V| <= |T W - W| + (1 + g rho) |V - W|, and g rho < 1.
        residual = _outwards(m.plain + 2 * max(most, -least))
        error = error_of(lower, upper)
        target = self._target(error, m.rounding)
        proved, reached = (residual, Outcome.RESIDUAL_REACHED) if self.plain else (error, Outcome.PROVED)
        return Refined(
            reached if proved <= target else Outcome.PRECISION_LIMIT,
            self.values.high.copy(),
            m.policy,
            lower,
            upper,
            residual,
            _outwards(m.rise + m.fall),
            m.rounding,
            target,
            self.work,
            self.loads,
        )

    def _target(self, error: float, rounding: float) -> float:
        """What is asked for, at the values as they are."""
        if self.options.residual is not None:
            return self.options.residual
        if self.options.epsilon is not None:
            return self.options.epsilon
        high = self.values.high
        return default_target(float(high.min()), float(high.max()), lambda: error, rounding)

    def due(self) -> bool:
        """Whether the target is not met, and another round may bring the values nearer to it."""
        assert self.best is not None  # something has been measured
        of_values = float(np.abs(self.values.low).max())
        nearest = of_values > 0 and self.measured.error <= _NEAREST * of_values
        return self.best.outcome is Outcome.PRECISION_LIMIT and not self.stalled and not nearest

    def correct(self) -> bool:
        """Solve for what is missing of the values, and add it; False where the rows of a policy have no room."""
        assert self.best is not None  # something has been measured
        table = ResidualTable(self.table, self.facts, self.values, self.measured)
        options, facts = self._options(table), ModelFacts.of(table.facts, self.options.discount)
        with ExitStack() as stack:
            backend = CpuBackend(self.options.sweep_order)
            stack.callback(backend.close)
            try:
                plan = plan_solve(table, options, backend, facts, writes=False)
                state = start(table, plan, backend, stack)
                if self.work.policy_evaluations == 0:
                    self.note(f"values are refined beyond float64: {plan.describe()}")
                outcome = drive(state, improve_and_evaluate, _Limits(self.session, self.best, self.plain))
            except MemoryBudgetError as error:
                self.note(f"values are not refined beyond float64, since {error}")
                return False
            self._count(state)
            if outcome in (Outcome.TIME_LIMIT, Outcome.INTERRUPTED):
                raise StoppedEarly(outcome)
            self.values.add(state.backend.values())
        return True

    def _options(self, table: Table) -> SolveOptions:
        """Of a correction; its rewards may be wider than the model's, but the cache has room for a partition."""
        assert self.best is not None  # something has been measured
        budget = self.options.cache_size.resolve(self.facts.table_bytes, self.facts.largest_table_bytes)
        return replace(
            self.options,
            epsilon=max(_REDUCTION * self.measured.error, 0.0 if self.plain else 0.01 * self.best.target),
            residual=None,
            method="policy-iteration",
            priority=None,
            sweeps_per_visit=1,
            cache=CacheSize(size=max(budget, int(table.facts.partition_bytes.max()))),
            device="cpu",
            device_memory=None,
            kernel=DEFAULT_KERNEL,
            stopping=None,
        )

    def _count(self, state: SolveState) -> None:
        """Count the work of a correction."""
        _add(self.work, state.statistics())
        self.loads += state.cache.loads


@dataclass(frozen=True)
class _Limits:
    """Looks on while a correction is solved for."""

    session: Session
    best: Refined
    plain: bool

    def after_step(self, state: SolveState) -> Outcome | None:
        """Report the error that the corrected values have, and end where a limit or signal says so."""
        self.session.report(lambda: self._progress(state))
        return self.session.ended()

    def _progress(self, state: SolveState) -> SolveProgress:
        found = state.progress()
        error = min(found.error_bound, self.best.error)
        rule = "residual" if self.plain else "epsilon"
        return replace(
            found, error_bound=error, residual_bound=self.best.residual, target=self.best.target, stopping_rule=rule
        )


def _add(to: SolveStatistics, done: SolveStatistics) -> None:
    """Count work that was done beside a solve's own."""
    for name in ("loads", "bytes_read", "bytes_decoded", "backups", "policy_evaluations"):
        setattr(to, name, getattr(to, name) + getattr(done, name))


def error_of(lower: float, upper: float) -> float:
    """The bound on |V - V*| where V* - V lies between `lower` and `upper`; NaN where either is."""
    return float(np.maximum(-lower, upper)) + 0.0  # of an exact value 0, and not -0


def _outwards(x: float) -> float:
    """A bound of either sign, away from 0 by more than its last operations have rounded."""
    return x * (1 + 2.0**-50)
