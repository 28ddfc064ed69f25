"""Runs of a table's own process under the policy of its solution, and what they earn on average.

    mean of K runs  +-  1.96 s / sqrt(K),      s the standard deviation of their returns

All runs advance together: the partition in which most of them are is loaded, and each goes on until it leaves it. What
a run has not earned when its steps are used up is the value of its last state, so that the mean is that of the value of
the policy, up to the error of the values; of an average reward the reward per step is taken. Of a finite horizon, whose
policy differs by stage, all runs are taken through one stage after the other.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.arguments import whole_number
from ooc_mdp.backends.cpu.rows import TableRows, table_rows
from ooc_mdp.errors import OptionsError
from ooc_mdp.model.annotations import INITIAL
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.solution import MAX_INITIAL, Solution
from ooc_mdp.model.state_order import partition_of
from ooc_mdp.model.table import Table
from ooc_mdp.problems.counter_random import stream_key
from ooc_mdp.runtime.memory import resident_bytes
from ooc_mdp.runtime.memory_plan import PROCESS, SMALLER_PARTITIONS, MemoryPlan
from ooc_mdp.simulation.run_kernel import ENDED, GOES_ON, NO_ACTION, OUT_OF_STEPS, Runs, advance

__all__ = ["Returns", "ReturnsOptions", "simulate_returns"]

_DEFAULT_STEPS = 1000
_QUANTILE = 1.959963984540054
"""Of the normal distribution, for an interval of 95%."""
_DOUBTFUL = 5.0
"""Standard errors from which on a difference is reported."""
_CACHE = 256 << 20
"""Bytes of tables that are kept between loads."""
_RUN_BYTES = 64
"""Of each run: its state, and what is sorted of it."""


@dataclass(frozen=True, slots=True)
class ReturnsOptions:
    """How many runs of which length."""

    steps: int | None = None
    """Most steps of a run; None for 1,000, or all stages of a finite horizon."""
    runs: int = 1000
    seed: int = 1
    starts: Sequence[int] = ()
    """States in which runs begin, in turn, by the source's numbers; none for the model's initial states."""

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("runs", 2), ("seed", 0)):
            value = getattr(self, name)
            if value is None:
                continue
            value = whole_number(name, value)
            if value < least:
                raise OptionsError(f"{name} is {value}; give a whole number from {least} on")
            object.__setattr__(self, name, value)
        object.__setattr__(self, "starts", tuple(whole_number("a start", state) for state in self.starts))


@dataclass(frozen=True, slots=True, eq=False)
class Returns:
    """What runs of a policy earn."""

    quantity: str
    """ "return", or "reward per step" of an average reward."""
    mean: float
    standard_error: float
    """Of the mean."""
    interval: tuple[float, float]
    """95% of such intervals hold the exact mean, where the runs are many."""
    solved: tuple[float, float, float]
    """By the solution: the mean value of the starts (of an average reward the middle of the gain's interval), and what
    it is at least and at most."""
    slack: float
    """How far the value of the policy may be from the solved one; infinite where that is not known."""
    remaining: float
    """Part of the mean that runs had not earned when their steps were used up: values of their last states."""
    runs: int
    steps: int
    """Most steps of a run."""
    mean_steps: float
    ended: int
    """Runs in which the process ended."""
    without_action: int
    """Runs that ended in a state where the policy has no action."""
    loads: int
    """Partitions that were loaded."""
    of_runs: FloatArray
    """float64 [runs]; the return of each run."""

    def __repr__(self) -> str:
        mean = f"mean {self.mean:.6g} +- {self.standard_error:.2g}"
        return f"Returns({mean}, solved {self.solved[0]:.6g}, {self.runs} runs)"

    def warnings(self) -> list[str]:
        """What contradicts the solution, or makes the mean doubtful, in sentences."""
        found = []
        difference = abs(self.mean - self.solved[0])
        if math.isfinite(self.slack) and difference > _DOUBTFUL * self.standard_error + self.slack:
            found.append(
                f"the mean differs from the solved value by {difference:.4g}, more than {_DOUBTFUL:g} standard errors "
                f"and what is proved allow"
                + ("; runs may be too short to forget their start" if self.quantity != "return" else "")
            )
        if self.without_action:
            found.append(f"{self.without_action} runs came to a state in which the policy has no action")
        return found

    def summary(self) -> dict[str, Any]:
        """The figures as plain values."""
        names = ("quantity", "mean", "standard_error", "remaining", "runs", "steps", "mean_steps", "ended")
        value, lower, upper = (x if math.isfinite(x) else str(x) for x in self.solved)
        return {
            **{name: getattr(self, name) for name in names},
            "interval": list(self.interval),
            "solved": {"value": value, "lower": lower, "upper": upper},
            "without_action": self.without_action,
            "loads": self.loads,
            "warnings": self.warnings(),
        }


def simulate_returns(
    table: Table,
    solution: Solution,
    options: ReturnsOptions,
    note: Callable[[str], None] = lambda _: None,
    cache: int = _CACHE,
) -> Returns:
    """Follow the policy of a solution through the process of the table that was solved.

    Parameters
    ----------
    table : as the solution's question sees it, with the rows of all actions.
    note : called with the memory plan.
    cache : bytes of tables that are kept between loads; one partition is in any case.

    Raises
    ------
    OptionsError : no start is given or named by the model, or the policy is not one for the whole process.
    MemoryBudgetError : runs and partitions take more than the RAM that is available.
    """
    stages = solution.stages
    if solution.criterion.get("within") is not None:
        raise OptionsError(
            f"the policy is that of the first of {solution.criterion['within']} steps alone; leave --within out of the "
            f"solve to simulate its policy"
        )
    steps = options.steps or (stages.count if stages is not None else _DEFAULT_STEPS)
    if stages is not None and steps > stages.count:
        raise OptionsError(f"the plan is for {stages.count} stages, and has no policy for {steps} steps")
    starts = _starts(table, options)
    _plan(table, options.runs, cache, note)
    loads = _Loads(table, cache)
    runs = _begin(table, starts, options.runs)
    key = np.uint64(stream_key(np.uint64(options.seed), np.uint64(0)))
    for until, policy in _policies(solution, steps):
        runs.status[runs.status == OUT_OF_STEPS] = GOES_ON
        _advance_all(table, loads, runs, _ordered(table, policy), until, key, solution.discount)
    return _measured(table, solution, options, steps, starts, runs, loads.count)


def _policies(solution: Solution, steps: int) -> Any:
    """By the number of steps until which each is followed: the policies, in the source's order."""
    if solution.stages is None:
        return [(steps, solution.policy)]
    stages = solution.stages
    return ((stage + 1, stages.policy(stage)) for stage in range(steps))


def _starts(table: Table, options: ReturnsOptions) -> IntArray:
    """int64; the source's numbers."""
    wrong = [state for state in options.starts if not 0 <= state < table.n_states]
    if wrong:
        raise OptionsError(f"there is no state {wrong[0]} to start in: the states are 0 to {table.n_states - 1}")
    if options.starts:
        return np.array(options.starts, np.int64)
    kept = table.annotations
    if INITIAL not in kept.labels or not kept.first_states(INITIAL, 1).size:
        raise OptionsError(f"{table.name} names no initial states; give one with --start STATE (in Python starts=[0])")
    return kept.first_states(INITIAL, MAX_INITIAL)


def _plan(table: Table, runs: int, cache: int, note: Callable[[str], None]) -> None:
    """Refuse what does not fit into the RAM."""
    sizes = table.facts.partition_bytes
    plan = MemoryPlan(
        {
            PROCESS: resident_bytes(),
            "policy and values": 12 * table.n_states,
            "runs": _RUN_BYTES * runs,
            "tables": min(int(sizes.sum()), cache + int(sizes.max())),
            "loading": table.loader("cpu").scratch_bytes + int(sizes.max()),
        },
        {},
    )
    plan.check_available(f"the simulation of {table.name}", SMALLER_PARTITIONS)
    note(plan.describe())


def _begin(table: Table, starts: IntArray, count: int) -> Runs:
    """Runs at the starts in turn, of which nothing is known yet."""
    places = np.empty(starts.size, np.int64)
    for p in range(table.n_partitions):
        own = table.original_states(p)
        at = np.minimum(np.searchsorted(own, starts), own.size - 1)
        here = own[at] == starts
        places[here] = table.facts.partition_ptr[p] + at[here]
    return Runs(
        places[np.arange(count) % starts.size],
        np.zeros(count, np.int64),
        np.ones(count),
        np.zeros(count),
        np.full(count, GOES_ON),
    )


def _ordered(table: Table, policy: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """A policy in the table's order."""
    ordered = np.empty(table.n_states, np.int32)
    ptr = table.facts.partition_ptr
    for p in range(table.n_partitions):
        ordered[ptr[p] : ptr[p + 1]] = policy[table.original_states(p)]
    return ordered


class _Loads:
    """Tables by partition, those used last within a number of bytes."""

    def __init__(self, table: Table, budget: int) -> None:
        self._table, self._budget, self._bytes = table, budget, 0
        self._kept: OrderedDict[int, tuple[TableRows, int]] = OrderedDict()
        self.count = 0

    def rows(self, p: int) -> TableRows:
        """Partition p's rows."""
        if p not in self._kept:
            table = self._table.read(p)[0]
            self.count += 1
            self._kept[p] = table_rows(table), table.nbytes
            self._bytes += table.nbytes
        self._kept.move_to_end(p)
        while self._bytes > self._budget and len(self._kept) > 1:
            self._bytes -= self._kept.popitem(last=False)[1][1]
        return self._kept[p][0]


def _advance_all(
    table: Table, loads: _Loads, runs: Runs, policy: npt.NDArray[np.int32], until: int, key: np.uint64, gamma: float
) -> None:
    """Take all runs that go on to so many steps: always in the partition that has most of them."""
    ptr = table.facts.partition_ptr
    where = partition_of(ptr, runs.place)
    while True:
        active = np.flatnonzero(runs.status == GOES_ON)
        if not active.size:
            return
        p = int(np.bincount(where[active]).argmax())
        mine = active[where[active] == p]
        advance(loads.rows(p), policy, runs, mine, until, key, gamma)
        where[mine] = partition_of(ptr, runs.place[mine])


def _gain_at(solution: Solution, states: IntArray) -> tuple[float, float, float]:
    """The mean gain of some states, and between which numbers it lies."""
    claims, low, high = solution.certificate, solution.value_lower, solution.value_upper
    lower, upper = claims.lower, claims.upper
    if low is not None and high is not None:
        lower, upper = float(low[states].mean()), float(high[states].mean())
    return 0.5 * (lower + upper), lower, upper


def _measured(
    table: Table,
    solution: Solution,
    options: ReturnsOptions,
    steps: int,
    starts: IntArray,
    runs: Runs,
    loads: int,
) -> Returns:
    """The figures of runs that are over."""
    claims, average = solution.certificate, solution.certificate.quantity == "gain"
    remaining = np.zeros(options.runs)
    if average:
        of_runs = runs.earned / np.maximum(runs.step, 1)
        solved = _gain_at(solution, starts[np.arange(options.runs) % starts.size])
        slack = solved[2] - solved[1] + claims.policy_loss_bound
    else:
        unfinished = runs.status != ENDED
        after = _values_after(solution, steps)
        if after is not None:
            last = _source_states(table, runs.place[unfinished])
            remaining[unfinished] = runs.factor[unfinished] * after[last]
        remaining[~np.isfinite(remaining)] = 0.0
        of_runs = runs.earned + remaining
        low, high = claims.error_lower, claims.error_upper
        low, high = (low, high) if table.sense == "max" else (-high, -low)
        value = float(solution.values[starts[np.arange(options.runs) % starts.size]].mean())
        solved = (value, value + low, value + high)
        slack = 2 * claims.error_bound + claims.policy_loss_bound
    mean = float(of_runs.mean())
    error = float(of_runs.std(ddof=1) / math.sqrt(options.runs))
    return Returns(
        quantity="reward per step" if average else "return",
        mean=mean,
        standard_error=error,
        interval=(mean - _QUANTILE * error, mean + _QUANTILE * error),
        solved=solved,
        slack=slack if math.isfinite(solved[0]) else math.inf,
        remaining=float(remaining.mean()),
        runs=options.runs,
        steps=steps,
        mean_steps=float(runs.step.mean()),
        ended=int((runs.status == ENDED).sum()),
        without_action=int((runs.status == NO_ACTION).sum()),
        loads=loads,
        of_runs=of_runs,
    )


def _values_after(solution: Solution, steps: int) -> FloatArray | None:
    """float64 [n_states]; what is to be expected after so many steps, in the source's order; None for 0."""
    stages = solution.stages
    if stages is None:
        return solution.values
    if steps < stages.count:
        return stages.values(steps)
    return None if stages.read_final is None else stages.read_final()


def _source_states(table: Table, places: IntArray) -> IntArray:
    """int64; the source's numbers of states in the table's order."""
    ptr, found = table.facts.partition_ptr, np.empty(places.size, np.int64)
    where = partition_of(ptr, places)
    for p in np.unique(where).tolist():
        mine = where == p
        found[mine] = table.original_states(p)[places[mine] - ptr[p]]
    return found
