"""Total reward without a discount: is it defined, and between which bounds does it lie.

    V(s) = max_pi E_pi [ sum of rewards until the process ends ],      V(s) = r(s) where s has no action

First the graph (`ooc_mdp.methods.end_components`): totals that are infinite or undefined are refused. Then sweeps
of a lower and an upper value at once, from the same start, of the process in which each departure costs, or pays, a
small *charge*: where they settle, L < T_pi L for the greedy policy pi and T U < U, strictly. A last pass checks that on
the table, rounding included, and so proves L <= V_pi <= V <= U. A charge that spreads L and U further than
what was asked for is made smaller. ``docs/undiscounted.md`` has the argument.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import MemoryBudgetError
from ooc_mdp.events import SolveProgress, SolveWatcher
from ooc_mdp.kernels.cpu_end_components import NO_CLASS, can_end, lift, spread_backward, spread_forward, trim
from ooc_mdp.kernels.cpu_rows import TableRows, table_rows
from ooc_mdp.kernels.cpu_total import check, greedy, reach_strict, relax, sweep
from ooc_mdp.mdp import FloatArray, IntArray
from ooc_mdp.memory import give_memory_back, resident_bytes
from ooc_mdp.memory_plan import MemoryPlan
from ooc_mdp.methods.checkpoint import (
    check_arrays,
    checkpoint_path,
    load_checkpoint,
    save_checkpoint,
    saved_unless_written,
)
from ooc_mdp.methods.end_components import ANALYSIS_BYTES, Labels, check_totals
from ooc_mdp.methods.plan import check_size
from ooc_mdp.methods.policy_total import (
    EVALUATION_BYTES,
    POLICY_SWEEPS,
    Departures,
    PolicyRows,
    RowsKept,
    evaluate,
    rows_bytes,
)
from ooc_mdp.methods.results import finished_before, write_result
from ooc_mdp.methods.run import StoppedEarly
from ooc_mdp.methods.streaming import Neighbours, Streamed
from ooc_mdp.methods.target import RELATIVE_EPSILON
from ooc_mdp.methods.trace import Trace
from ooc_mdp.options import SolveOptions, format_bytes
from ooc_mdp.solution import Certificate, Outcome, Solution, SolveStatistics
from ooc_mdp.table_source import TableSource

__all__ = ["METHOD", "Inductive", "inductive", "solve_total"]

METHOD = "interval iteration"
_PROOF = (
    "lower and upper values checked to be inductive: T_pi L > L and T U < U in every state, float64 rounding included"
)
_DEPTH = 2
"""Partitions that are read at a time."""
_FIRST_CHARGE = 1e-3
"""The first charge as a share of the target: enough for a thousand departures."""
_LESS = 8.0
"""Charges are divided by this when values have come apart too far."""
_ROUNDS = 2
"""Rounds over dirty partitions after which the policy is evaluated; half as many again each time, so that sweeps,
which settle from any start, have the last word."""
_STEPS = 64
"""Steps of the first evaluation, where it reads nothing; twice as many after one in vain."""
_SWEEPS = 16
"""Most sweeps of a visit."""
_SETTLED = 1 / 8
"""A visit ends once its changes are down to this share of the charge."""
_DIRTY = 1 / 2
"""A partition is visited again when what changed in it or flowed into it may be more than this share of the charge."""
_LEAST_ULPS = 8.0
"""A charge below so many units in the last place of the values would be lost to rounding."""
_MOST_REFUTED = 6
"""Checks in vain, each after sweeps with a fourth of the tolerance, after which rounding must be the reason."""
_CONSTANT = 1e-8
"""Values count as one number, whose size stands in for their range, where L and U lie in so small a share of it."""
_REPORT_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Inductive:
    """What a pass over the table says of a lower and an upper value, and of a policy."""

    faults: npt.NDArray[np.bool_]
    """bool [P]; partitions in which something is not inductive."""
    at_fault: int
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
        return self.at_fault < 0


def inductive(
    tables: Streamed,
    neighbours: Neighbours,
    values: FloatArray,
    middle: FloatArray,
    policy: npt.NDArray[np.int32],
    sign: float,
) -> Inductive:
    """Check L and U (float64 [n, 2], of the maximisation), state by state, and that the policy does not idle.

    Nothing but the table is trusted. Where the policy keeps an L above 0 for nothing (a row without reward among
    states of one L), it must lead on; that is looked for in further passes over the partitions with such states.
    """
    source = tables.source
    pending = np.zeros(source.n_states, np.uint8)
    faults, waiting = np.zeros(source.n_partitions, np.bool_), np.zeros(source.n_partitions, np.bool_)
    at, wrong = -1, 0
    residual = rounding = 0.0
    for p, rows, _ in tables.each(np.ones(source.n_partitions, np.bool_)):
        above, below, no_action, where, idle, r, e = check(rows, values, middle, policy, sign, pending)
        faults[p] = above + below + no_action > 0
        at = max(at, where)
        wrong += no_action
        waiting[p] = idle > 0
        residual, rounding = max(residual, r), max(rounding, e)
    if not faults.any():
        again = waiting.copy()

        def leading_on(p: int, rows: TableRows) -> IntArray | None:
            _, changed = reach_strict(rows, policy, pending)
            readers: IntArray = neighbours.readers(p)
            return readers[waiting[readers]] if changed else None

        tables.settle(again, leading_on)
        idle_states = np.flatnonzero(pending)
        if idle_states.size:
            at = int(idle_states[0])
            faults[np.searchsorted(source.partition_ptr, idle_states, side="right") - 1] = True
    return Inductive(faults, at, wrong, residual, rounding)


@dataclass(slots=True)
class _Total:
    """A solve at work."""

    tables: Streamed
    neighbours: Neighbours
    options: SolveOptions
    statistics: SolveStatistics
    sign: float
    values: FloatArray
    """float64 [n, 2]; L and U, of the maximisation."""
    classes: Labels
    """uint32 [n]; where one may stay for nothing."""
    members: IntArray
    """int64; states of classes of several, ascending."""
    node: IntArray
    """int64; class of each member, counted from 0."""
    charge: float
    most_charge: float
    """The largest that has not been too large."""
    watch: SolveWatcher | None
    interrupted: Callable[[], bool]
    save: Callable[[], None] | None = None
    earlier_seconds: float = 0.0
    started: float = field(default_factory=time.monotonic)
    reported: tuple[float, int] = (0.0, 0)
    saved: float = field(default_factory=time.monotonic)
    saving_took: float = 0.0
    width: float = 0.0
    """Largest U - L, and what rounding adds to twice the distance from the middle."""
    steps: int = _STEPS
    """Of an evaluation that reads nothing."""
    residual: float = np.inf
    """Largest plain residual when it was last measured."""
    dirty: npt.NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))

    @property
    def seconds(self) -> float:
        """Of work so far, resumed runs included."""
        return self.earlier_seconds + time.monotonic() - self.started

    def floor(self) -> float:
        """See `_floor`."""
        return _floor(self.tables.source)

    def target(self) -> float:
        """What half of `width` must come down to."""
        if self.options.epsilon is not None:
            return self.options.epsilon
        low, high = float(self.values[:, 0].min()), float(self.values[:, 1].max())
        if self.options.residual is not None:  # no error is asked for: only that the charge does not make it absurd
            return max(abs(low), abs(high), self.floor())
        return _default_target(self.tables.source, low, high)

    def tick(self) -> None:
        """Between two partitions: report, save, and stop where a limit says so."""
        now = time.monotonic()
        if self.watch is not None and now - self.reported[0] >= _REPORT_SECONDS:
            self.report(now)
        if self.interrupted():
            raise StoppedEarly(Outcome.INTERRUPTED)
        limit = self.options.time_limit
        if limit is not None and now - self.started >= limit:
            raise StoppedEarly(Outcome.TIME_LIMIT)
        pause = max(self.options.checkpoint_interval, 20 * self.saving_took)
        if self.save is not None and now - self.saved >= pause:
            self.save()
            self.saved = time.monotonic()
            self.saving_took = self.saved - now

    def report(self, now: float) -> None:
        """Tell the watcher; no error is proved before the end."""
        if self.watch is None:
            return
        s, (then, read) = self.count(), self.reported
        self.watch(
            SolveProgress(
                error_bound=np.inf,
                residual_bound=self.residual,
                target=self.options.residual or self.target(),
                dirty=int(self.dirty.sum()),
                partitions=s.n_partitions,
                hit_rate=s.hit_rate,
                bytes_read=s.bytes_read,
                read_rate=(s.bytes_read - read) / max(now - then, 1e-9) if then else 0.0,
                loads=s.loads,
                seconds=s.seconds,
            )
        )
        self.reported = (now, s.bytes_read)

    def count(self) -> SolveStatistics:
        """The counters now."""
        self.tables.count(self.statistics)
        self.statistics.seconds = self.seconds
        return self.statistics

    def join(self, exits: FloatArray) -> bool:
        """Give the states of each class of several what leaving it from the best of them, or staying, is worth."""
        if not self.members.size:
            return False
        best = np.zeros((int(self.node.max()) + 1, 2))
        np.maximum.at(best, self.node, exits)
        change = np.abs(best[self.node] - self.values[self.members])
        self.values[self.members] = best[self.node]
        moved = self.members[change.max(axis=1) > _SETTLED * self.charge]
        for p in np.unique(np.searchsorted(self.tables.source.partition_ptr, moved, side="right") - 1).tolist():
            self.dirty[self.neighbours.readers(p)] = True
        return bool(moved.size)

    def settle(self, exits: FloatArray, tolerance: float, rounds: int) -> Literal["settled", "apart", "slow"]:
        """Sweep until the values change by less than the charge, come apart too far, or so many rounds have passed."""
        store = self.tables.source
        flown = np.zeros(store.n_partitions)
        first = 0.0 if self.options.epsilon is not None else RELATIVE_EPSILON * self.floor()  # while values spread
        for _ in range(rounds):
            for p, rows, hit in self.tables.each(self.dirty.copy(), sweeps=True):
                sweeps, change, moved = sweep(
                    rows, self.values, self.classes, self.members, exits, self.charge, self.sign, _SWEEPS,
                    _SETTLED * tolerance, bool(self.statistics.visits & 1),
                )  # fmt: skip
                self.statistics.visits += 1
                self.statistics.sweeps += sweeps
                self.statistics.backups += sweeps * rows.n
                readers = self.neighbours.readers(p)
                flown[readers] += moved
                flown[p] = change
                self.dirty[readers] |= flown[readers] > _DIRTY * tolerance
                self.dirty[p] = change > _DIRTY * tolerance
                if self.tables.trace is not None:
                    self.tables.trace.access(p, False, hit, sweeps, change, -np.inf)
            self.join(exits)
            size = float(np.abs(self.values).max(initial=0.0))
            self.width = float((self.values[:, 1] - self.values[:, 0]).max(initial=0.0) + 8 * np.spacing(size))
            if not self.width <= 2 * max(self.target(), first):
                return "apart"
            if not self.dirty.any():
                return "settled" if self.width <= 2 * self.target() else "apart"
        return "slow"

    def prove(self, start: Departures | None) -> tuple[Outcome, FloatArray, npt.NDArray[np.int32], Inductive]:
        """Settle, choose the policy, check; until the check holds. Raises StoppedEarly.

        Parameters
        ----------
        start : departures of a policy that ends; None to begin from the values as they are.
        """
        refuted, finer, rounds = 0, 1.0, _ROUNDS
        exits = np.full((self.members.size, 2), -np.inf)
        if start is not None:
            kept = self.keep_rows()
            for p, rows, _ in self.tables.each(np.ones_like(self.dirty)):
                kept.take(p, rows, start.policy)
            self.evaluate(start, kept.rows(), finer, rounds)
        self.dirty = np.ones(self.tables.source.n_partitions, np.bool_)
        self.most_charge = self.charge / _FIRST_CHARGE
        while True:
            if self.charge < _LEAST_ULPS * float(np.spacing(np.abs(self.values).max(initial=0.0))):
                raise StoppedEarly(Outcome.PRECISION)
            state = self.settle(exits, finer * self.charge, rounds)
            if state != "settled":
                if state == "apart":
                    self._come_together()
                kept = self.keep_rows()
                by = self.departures(exits, kept)
                self.evaluate(by, kept.rows(), finer, rounds)
                rounds += -(-rounds // 2)
                continue
            policy = self.greedy_policy(exits)
            middle = self.values.mean(axis=1)
            found = inductive(self.tables, self.neighbours, self.values, middle, policy, self.sign)
            self.residual = found.residual + found.rounding
            if found.holds:
                if self.options.residual is None:
                    return Outcome.PROVED, middle, policy, found
                if self.residual <= self.options.residual:
                    return Outcome.RESIDUAL, middle, policy, found
                self._come_together()
                continue
            refuted += 1
            if refuted > _MOST_REFUTED:
                raise StoppedEarly(Outcome.PRECISION)
            finer /= 4
            self.dirty |= found.faults

    def _come_together(self) -> None:
        """Go on with a smaller charge, from between the two."""
        self.charge /= _LESS
        self.most_charge = self.charge
        self.values[:] = self.values.mean(axis=1)[:, None]
        self.dirty[:] = True

    def keep_rows(self) -> RowsKept:
        """For the rows of one policy."""
        return RowsKept(rows_bytes(self.tables.source), self.tables.tick)

    def evaluate(self, by: Departures, rows: PolicyRows | None, finer: float, rounds: int) -> None:
        """Take the totals of a policy as the middle, and a charge that suits its departures, if it ends."""
        start = np.stack([self.values.mean(axis=1), np.ones(self.values.shape[0])], axis=1)
        enough = np.array([finer * self.charge / 32, 1 / 32])
        partitions = self.tables.source.n_partitions
        most = rounds // 2 if rows is None else self.steps
        found = evaluate(rows or self.tables, partitions, by, self.sign, start, enough, most)
        self.statistics.backups += found.passes * POLICY_SWEEPS * self.values.shape[0]
        if not found.ends or found.residual > max(10 * enough[0], 0.1 * found.residual_before):
            self.steps *= 2
            return
        self.values[:] = found.totals[:, None]
        self.width = 0.0
        if self.options.residual is None:
            suits = self.target() / (2 * max(1.0, float(found.departures.max())))
            self.charge = min(self.most_charge, suits)
        spread = self.charge * found.departures
        self.values[:, 0] -= spread
        self.values[:, 1] += spread
        self.dirty[:] = True

    def departures(self, exits: FloatArray, kept: RowsKept | None = None) -> Departures:
        """The best departures by L; in classes of several, which of the states is left from, if leaving is best.

        Their rows go to `kept`.
        """
        store = self.tables.source
        policy = np.full(store.n_states, -1, np.int32)
        for p, rows, _ in self.tables.each(np.ones(store.n_partitions, np.bool_)):
            greedy(rows, self.values, self.classes, self.members, exits, self.charge, self.sign, policy)
            if kept is not None:
                kept.take(p, rows, policy)
        if not self.members.size:
            return Departures(self.classes, self.members, self.node, np.empty(0, np.int64), policy)
        best = np.full(int(self.node.max()) + 1, -np.inf)
        np.maximum.at(best, self.node, exits[:, 0])
        leaves = best > 0
        at_best = np.flatnonzero(leaves[self.node] & (exits[:, 0] == best[self.node]))
        chosen = np.full(best.size, self.members.size)
        np.minimum.at(chosen, self.node[at_best], at_best)
        chosen[~leaves] = -1
        policy[self.members[~leaves[self.node]]] = -2
        return Departures(self.classes, self.members, self.node, chosen, policy)

    def greedy_policy(self, exits: FloatArray) -> npt.NDArray[np.int32]:
        """int32 [n]: the best departures by L, and in classes the way to the one that is best, if it is above 0."""
        store = self.tables.source
        by = self.departures(exits)
        policy = by.policy
        stays = (policy == -2).astype(np.uint8)
        on_the_way = np.arange(self.members.size) != by.chosen[self.node]
        others = self.members[on_the_way & (by.chosen[self.node] >= 0)]
        policy[others] = -2
        settled = np.ones(store.n_states, np.uint8)
        settled[others] = 0
        open_states = np.zeros(store.n_partitions, np.bool_)
        lifted = np.flatnonzero(policy == -2)
        open_states[np.unique(np.searchsorted(store.partition_ptr, lifted, side="right") - 1)] = True
        waiting = open_states.copy()

        def lifting(p: int, rows: TableRows) -> IntArray | None:
            before = int((policy[rows.first : rows.first + rows.n] == -2).sum())
            left = lift(rows, self.classes, stays, settled, policy)
            waiting[p] = left > 0
            readers = self.neighbours.readers(p)
            return readers[waiting[readers]] if left < before else None

        self.tables.settle(open_states, lifting)
        return policy


def _warm_up(store: TableSource, writes: bool) -> None:
    """Load compiled loops now, so that the plan counts them: they are called on no states of the smallest partition."""
    if writes:
        import zarr.codecs  # noqa: F401
    rows = table_rows(store.read(int(store.partition_bytes.argmin()))[0])._replace(first=0, n=0)
    marks, labels = np.zeros(1, np.uint8), np.zeros(1, np.uint32)
    policy, numbers, values = np.zeros(1, np.int32), np.zeros(1), np.zeros((1, 2))
    members, exits = np.zeros(1, np.int64), np.zeros((1, 2))
    trim(rows, True, labels, labels)
    spread_forward(rows, True, labels, labels, labels)
    spread_backward(rows, True, labels, labels, labels)
    can_end(rows, labels, marks, policy)
    sweep(rows, values, labels, members, exits, 0.0, 1.0, 1, 0.0, True)
    greedy(rows, values, labels, members, exits, 0.0, 1.0, policy)
    lift(rows, labels, marks, marks, policy)
    check(rows, values, numbers, policy, 1.0, marks)
    kept = RowsKept(1 << 30, lambda: None)
    kept.take(0, rows, policy)
    copied = kept.rows()
    for own in (rows, *(copied.tables if copied is not None else ())):
        relax(own, values, labels, members, exits, policy, True, 1.0, 1.0, 1, True)


def _plan(store: TableSource, options: SolveOptions, writes: bool) -> tuple[int, MemoryPlan]:
    """The cache's budget, and every large buffer of the solve in bytes.

    Raises
    ------
    MemoryBudgetError : the cache cannot hold the largest partition.
    """
    n, table = store.n_states, int(store.partition_bytes.sum())
    largest = int(store.partition_bytes.max())
    budget = options.cache_size.resolve(table, largest)
    if largest > budget:
        raise MemoryBudgetError(
            f"partition {int(store.partition_bytes.argmax())} needs {format_bytes(largest)}, the cache holds "
            f"{format_bytes(budget)}; raise --cache to at least {largest}, or convert again with smaller partitions "
            f"(--partition-size {max(1, budget // 2)})"
        )
    host = {
        "interpreter": resident_bytes(),
        "lower and upper values": 16 * n,
        "policy, classes and marks": 12 * n,
        "graph analysis, then evaluations": max(ANALYSIS_BYTES, EVALUATION_BYTES) * n,
        "coupling": 64 * store.n_partitions + 32 * store.coupling.mass.size,
        "rows of the policy": rows_bytes(store),
        "cache": min(budget, table),
        "staging": _DEPTH * store.loader("cpu").scratch_bytes,
    }
    if writes:
        host["writing"] = 16 * n
    return budget, MemoryPlan(host, {})


def solve_total(
    store: TableSource,
    options: SolveOptions,
    identity: dict[str, Any],
    *,
    output: Path | None,
    resume: bool,
    overwrite: bool,
    trace: Path | None,
    watch: SolveWatcher | None,
    announce: Callable[[MemoryPlan], None] | None,
    note: Callable[[str], None],
    signals: Callable[[], AbstractContextManager[Callable[[], bool]]],
) -> Solution:
    """`ooc_mdp.methods.solver.solve` at discount 1; the output has been checked.

    Raises
    ------
    UndefinedTotalError : the totals are infinite, or may be undefined.
    """
    check_size(store, options)
    give_memory_back()
    _warm_up(store, output is not None)
    budget, plan = _plan(store, options, output is not None)
    if announce is not None:
        announce(plan)
    saved = None
    if resume and output is not None:
        saved = load_checkpoint(checkpoint_path(output), identity)
        if saved is None:
            finished = finished_before(output, identity, options, note, lambda s: _target_of(store, s))
            if finished is not None:
                return finished
    neighbours = Neighbours(store.coupling)
    with Streamed(store, budget, _DEPTH) as tables, signals() as interrupted:
        run = _Total(
            tables=tables,
            neighbours=neighbours,
            options=options,
            statistics=SolveStatistics(
                n_states=store.n_states,
                n_partitions=store.n_partitions,
                cache_bytes=budget,
                table_bytes=int(store.partition_bytes.sum()),
                source=store.kind,
            ),
            sign=1.0 if store.sense == "max" else -1.0,
            values=np.zeros((store.n_states, 2)),
            classes=np.empty(0, np.uint32),
            members=np.empty(0, np.int64),
            node=np.empty(0, np.int64),
            charge=0.0,
            most_charge=np.inf,
            watch=watch,
            interrupted=interrupted,
            dirty=np.ones(store.n_partitions, np.bool_),
        )
        run.charge = _FIRST_CHARGE * _first_target(run)
        if saved is not None and output is not None:
            _take_up(run, checkpoint_path(output), saved, note)
        if trace is not None:
            tables.trace = Trace(trace, {**identity, "method": METHOD, "partitions": store.n_partitions})
        try:
            tables.tick = run.tick
            outcome, middle, policy, found = _work(run, output, identity, saved is not None)
        finally:
            if tables.trace is not None:
                tables.trace.close()
        if not outcome.proved and run.save is not None:
            run.save()
        solution = _conclude(run, outcome, middle, policy, found, plan)
        if output is not None and outcome.proved:
            with saved_unless_written(run.save):
                write_result(output, store, solution, identity, replace=resume or overwrite)
            checkpoint_path(output).unlink(missing_ok=True)
    return solution


def _floor(store: TableSource) -> float:
    """What stands for the size of the values while they are not known: the span of one step's rewards, or 1."""
    low, high = store.reward_range.T
    return float(high.max() - low.min()) or float(np.abs(store.reward_range).max()) or 1.0


def _default_target(store: TableSource, low: float, high: float) -> float:
    """The error that is asked for where nobody says, if the values lie between the two."""
    span, size = high - low, max(abs(low), abs(high), _floor(store))
    return RELATIVE_EPSILON * (size if span <= _CONSTANT * size else span)


def _target_of(store: TableSource, solution: Solution) -> float:
    """The same for a solution that is there already."""
    if solution.lower is None or solution.upper is None:
        return 0.0
    return _default_target(store, float(solution.lower.min()), float(solution.upper.max()))


def _first_target(run: _Total) -> float:
    """An error, or a residual, that the first charge is a share of."""
    if run.options.epsilon is not None:
        return run.options.epsilon
    return run.options.residual if run.options.residual is not None else RELATIVE_EPSILON * run.floor()


def _work(
    run: _Total, output: Path | None, identity: dict[str, Any], resumed: bool
) -> tuple[Outcome, FloatArray, npt.NDArray[np.int32], Inductive | None]:
    """Analysis, then the proof; what there is where a limit ends it."""
    try:
        run.classes, start = check_totals(run.tables, run.neighbours)
        inside = np.flatnonzero(run.classes != NO_CLASS)
        _, which, counts = np.unique(run.classes[inside], return_inverse=True, return_counts=True)
        several = counts[which.reshape(-1)] > 1
        run.members = inside[several]
        run.node = np.unique(run.classes[run.members], return_inverse=True)[1].reshape(-1)
        if output is not None:
            run.save = lambda: save_checkpoint(
                checkpoint_path(output),
                identity,
                {"bounds": run.values},
                run.count(),
            )
        stays = np.full(int(run.node.max(initial=-1)) + 1, -1)
        return run.prove(None if resumed else Departures(run.classes, run.members, run.node, stays, start))
    except StoppedEarly as stop:
        policy = np.full(run.tables.source.n_states, -1, np.int32)
        return stop.outcome, run.values.mean(axis=1), policy, None


def _take_up(
    run: _Total,
    where: Path,
    saved: tuple[dict[str, npt.NDArray[Any]], SolveStatistics],
    note: Callable[[str], None],
) -> None:
    """Go on from a checkpoint's values: sweeps settle from any start, so nothing else is needed of it.

    What stops for float64's precision had lowered its charge as far as that goes; another target begins with its own.
    """
    arrays, statistics = saved
    check_arrays(where, arrays, {"bounds": run.values}, optional=frozenset())
    note(f"going on from the values of the checkpoint {where}, after {statistics.seconds:.1f} s of work")
    run.values[:] = arrays["bounds"].mean(axis=1)[:, None]
    run.earlier_seconds = statistics.seconds
    run.tables.count_on(statistics)
    for name in ("visits", "sweeps", "backups"):
        setattr(run.statistics, name, getattr(statistics, name))


def _conclude(
    run: _Total,
    outcome: Outcome,
    middle: FloatArray,
    policy: npt.NDArray[np.int32],
    found: Inductive | None,
    plan: MemoryPlan,
) -> Solution:
    store = run.tables.source
    low, high = (np.ascontiguousarray(run.values[:, i]) for i in (0, 1))
    below, above = -np.inf, np.inf
    if found is not None:
        below, above = float((low - middle).min(initial=0.0)), float((high - middle).max(initial=0.0))
        below, above = np.nextafter(below, -np.inf), np.nextafter(above, np.inf)
    if run.sign < 0:
        low, high = 0.0 - high, 0.0 - low
        middle = 0.0 - middle
    proved = found is not None
    return Solution(
        outcome=outcome,
        method=METHOD,
        device="cpu",
        discount=1.0,
        certificate=Certificate(
            error_bound=float(max(-below, above)),
            lower=float(below),
            upper=float(above),
            residual_bound=run.residual,
            rounding=found.rounding if found is not None else 0.0,
            target=run.options.residual if run.options.residual is not None else run.target(),
            target_kind="residual" if run.options.residual is not None else "epsilon",
            policy_loss_bound=float(np.nextafter(above - below, np.inf)) if proved else np.inf,
            proof=_PROOF,
        ),
        statistics=run.count(),
        values=store.to_original(middle),
        policy=store.to_original(policy),
        memory_plan={"host": plan.host, "device": plan.device},
        lower=store.to_original(low) if proved else None,
        upper=store.to_original(high) if proved else None,
    )
