"""Runs of a control problem under the policy of its solution, and what is reported of each.

The goal is where the problem's `is_goal` says. Without it, it is where reward is paid: the process ends with a terminal
reward above 0 (the car leaves on the right slowly enough), or the reward rate is above 0 and stays so to the end of the
run (the pendulum is up and kept up); a rate above 0 nearly everywhere, as where it pays to go on, marks no goal. Where
no value is above 0, all rewards are costs, and the goal is to end where `is_terminal` holds and nothing more is to be
paid, as in minimum-time problems; without such an end there is no goal.
No file is read here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import OptionsError
from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.problems.control.definition import ControlProblem, State
from ooc_mdp.problems.control.discretisation import DiscretisedProblem
from ooc_mdp.problems.control.kuhn import Grid
from ooc_mdp.quoting import quote
from ooc_mdp.runtime.memory import resident_bytes
from ooc_mdp.runtime.memory_plan import PROCESS, MemoryPlan
from ooc_mdp.simulation.closed_loop import CompiledSimulation, compile_for, compile_loop
from ooc_mdp.simulation.kernel_types import LOOKAHEAD, NEAREST, VOTE, Feedback, Figures, Limits, Samples
from ooc_mdp.simulation.trajectory import VALUE_THRESHOLD, RunOutcome, Simulation, Trajectory
from ooc_mdp.simulation_options import Controller, SimulationOptions

__all__ = ["parse_start", "random_starts", "simulate", "simulation_plan"]

_FINER = 0.1
"""Longest step of a run's integrator, as a share of the discretisation's."""
_SHORTEST = 0.01
"""Least time between two decisions, as a share of the discretisation's longest step."""

_MOST_GOALS = 0.9
"""Share of the grid points up to which states that pay are the goal."""
_NOTHING = 1e-9
"""Share of the largest magnitude of a value up to which a value counts as 0."""
_SAMPLE = 24
"""Bytes of a sample beside the state: time, action and value."""
_MAX_PLANS = 1e8
"""Weighed at one decision; of many more the number would not fit into 64 bits."""


_KINDS = {Controller.LOOKAHEAD: LOOKAHEAD, Controller.VOTE: VOTE, Controller.NEAREST: NEAREST}


def random_starts(problem: ControlProblem, count: int, seed: int) -> list[State]:
    """States uniform over the axes."""
    if count < 1:
        raise OptionsError(f"{count} starts; give at least 1")
    if seed < 0:
        raise OptionsError(f"seed is {seed}; give at least 0")
    low, high = (np.array([getattr(axis, side) for axis in problem.axes]) for side in ("low", "high"))
    drawn = low + (high - low) * np.random.default_rng(seed).random((count, low.size))
    return [tuple(row) for row in drawn.tolist()]


def parse_start(problem: ControlProblem, text: str) -> State:
    """The state of the text "0.1,-2", or the problem's own for "initial".

    Raises
    ------
    OptionsError : the text is no state, or the problem has no initial state.
    """
    if text.strip() == "rest":
        raise OptionsError("the start 'rest' is now called 'initial'")
    if text.strip() == "initial":
        if problem.initial_state is None:
            raise OptionsError(f"problem {problem.name!r} has no initial state; give numbers, or --random-starts N")
        return problem.initial_state
    try:
        return tuple(float(x) for x in text.split(","))
    except ValueError:
        names = ",".join(axis.name for axis in problem.axes)
        raise OptionsError(f"the start {quote(text)} is no state; write {names} as numbers, or initial") from None


def simulate(
    problem: DiscretisedProblem,
    values: FloatArray,
    policy: npt.NDArray[np.int32],
    discount: float,
    starts: Sequence[State],
    options: SimulationOptions | None = None,
    *,
    sense: str = "max",
    note: Callable[[str], None] = lambda _: None,
) -> Simulation:
    """Run the continuous dynamics under the policy of a solution, from each start.

    Parameters
    ----------
    values : float64 [n]; in the problem's state order.
    policy : int32 [n]; read by the kinds "vote" and "nearest" only.
    discount : for one unit of duration, as given to solve.
    starts : states within the axes (periodic components anywhere).
    sense : "max" or "min", as solved.
    note : called with the memory plan.

    Raises
    ------
    OptionsError : values or policy of another size, a start outside the axes, more plans than can be weighed, or a
        function of the problem that fails on the way.
    MemoryBudgetError : samples of all runs take more than the RAM that is available.
    """
    options = options or SimulationOptions()
    _check_request(problem, values, policy, starts, options)
    checked = [_checked(problem, start) for start in starts]
    prepared = _prepare(problem, values, policy, discount, options, sense)
    _load_code(prepared, problem, checked[0])
    plan = simulation_plan(problem, options, len(starts))
    plan.check_available(
        f"{len(starts)} runs of {options.duration:g} with samples every {options.sample:g}",
        "give fewer starts, a shorter --duration or a longer --sample",
    )
    note(plan.describe())
    prepared = _with_goal(prepared, problem)
    runs = []
    for start in checked:
        try:
            runs.append(_run(prepared, start, options))
        except (ArithmeticError, ValueError) as error:
            place = ", ".join(f"{axis.name} = {x:.6g}" for axis, x in zip(problem.problem.axes, start, strict=True))
            raise OptionsError(
                f"problem {problem.name!r}: {type(error).__name__}: {error} in its functions on the way from the start "
                f"{place}; correct them there, or simulate from other starts"
            ) from error
    return Simulation(
        problem,
        options,
        tuple(runs),
        prepared.has_goal,
        float(values.max() - values.min()),
        prepared.feedback.sign,
        prepared.feedback.goal_is_end,
        prepared.feedback.goal_pays,
    )


def _prepare(
    problem: DiscretisedProblem,
    values: FloatArray,
    policy: npt.NDArray[np.int32],
    discount: float,
    options: SimulationOptions,
    sense: str,
) -> _Prepared:
    """What runs share, before anything of the size of the model is computed: :func:`_with_goal` does that."""
    grid, controls, p = problem.kernel_arguments()
    feedback = Feedback(
        values=np.ascontiguousarray(values, np.float64),
        policy=np.ascontiguousarray(policy, np.int32),
        kind=_KINDS[options.controller],
        sign=1.0 if sense == "max" else -1.0,
        decay=-math.log(max(discount, 1e-300)) / problem.options.time_unit,
        continue_after_end=options.continue_after_end,
        goal_is_end=False,
        goal_pays=False,
    )
    loop = compile_loop(problem.problem)
    return _Prepared(loop, grid, _limits(problem, options), controls, p, feedback, None, has_goal=True)


def _with_goal(prepared: _Prepared, problem: DiscretisedProblem) -> _Prepared:
    """With what the values say of the goal."""
    values, sign = prepared.feedback.values, prepared.feedback.sign
    best = float((sign * values).max())
    only_costs = best <= _NOTHING * float(np.abs(values).max())
    stated = problem.problem.is_goal is not None
    goal_is_end = only_costs and _may_end_at_goal(problem) and _has_end(prepared, problem, 0.0)
    goal_pays = not stated and not only_costs and _pays_somewhere(prepared, problem)
    has_goal = stated or goal_is_end or goal_pays or (not only_costs and _end_pays(prepared, problem))
    return replace(
        prepared,
        feedback=prepared.feedback._replace(goal_is_end=goal_is_end, goal_pays=goal_pays),
        value_threshold=None if only_costs or not has_goal else VALUE_THRESHOLD * best,
        has_goal=has_goal,
    )


def _load_code(prepared: _Prepared, problem: DiscretisedProblem, start: State) -> None:
    """Compile the loops, so that the plan counts what that takes; nothing is run."""
    loop, grid, feedback = prepared.loop, prepared.grid, prepared.feedback
    compile_for(loop.run, _run_arguments(prepared, start, _samples(0, len(start))))
    compile_for(loop.value_at, (start, grid, feedback.values))
    if _may_end_at_goal(problem):
        compile_for(loop.has_end, (grid, problem.n_states, prepared.p, feedback.sign, 0.0))
    if _may_pay_at_goal(problem):
        shared = grid, problem.n_states, prepared.controls, prepared.p, feedback.sign, _MOST_GOALS
        compile_for(loop.pays_at_most, shared)


def _check_request(
    problem: DiscretisedProblem,
    values: FloatArray,
    policy: npt.NDArray[np.int32],
    starts: Sequence[State],
    options: SimulationOptions,
) -> None:
    """Refuse a solution of another size, no starts, and more plans than can be weighed."""
    if values.shape != (problem.n_states,) or policy.shape != (problem.n_states,):
        raise OptionsError(
            f"{values.size} values and {policy.size} actions for the {problem.n_states} states of {problem.name} on "
            f"a grid of {problem.points}; give the result of this grid"
        )
    if not starts:
        raise OptionsError("there is no start to simulate from")
    plans = problem.n_actions**options.plan_depth
    if options.controller is Controller.LOOKAHEAD and plans > _MAX_PLANS:
        raise OptionsError(
            f"{problem.n_actions} controls give {plans:.3g} plans of depth {options.plan_depth}, all weighed at each "
            f"decision; give a smaller depth, or choose another controller than lookahead"
        )


def _has_end(prepared: _Prepared, problem: DiscretisedProblem, least: float) -> bool:
    """Whether the process ends at some grid point with a terminal reward of `least` or more."""
    grid, p, sign = prepared.grid, prepared.p, prepared.feedback.sign
    return prepared.loop.has_end(grid, problem.n_states, p, sign, least)


def _pays_somewhere(prepared: _Prepared, problem: DiscretisedProblem) -> bool:
    """Whether the reward rate is above 0, if at all, at some grid points and not at nearly all."""
    if not _may_pay_at_goal(problem):
        return False
    grid, controls, p = prepared.grid, prepared.controls, prepared.p
    return prepared.loop.pays_at_most(grid, problem.n_states, controls, p, prepared.feedback.sign, _MOST_GOALS)


def _end_pays(prepared: _Prepared, problem: DiscretisedProblem) -> bool:
    """Whether an end may be the goal: without a reward rate, what values above 0 come from is an end that pays."""
    if problem.problem.reward_rate is None:
        return True
    return _may_end_at_goal(problem) and _has_end(prepared, problem, math.ulp(0.0))


def _may_pay_at_goal(problem: DiscretisedProblem) -> bool:
    """Whether the goal may be where the reward rate is above 0: none is stated, and there is a rate."""
    return problem.problem.is_goal is None and problem.problem.reward_rate is not None


def _may_end_at_goal(problem: DiscretisedProblem) -> bool:
    """Whether the goal may be an end of the process: none is stated, and it does end."""
    return problem.problem.is_goal is None and problem.problem.is_terminal is not None


def simulation_plan(problem: DiscretisedProblem, options: SimulationOptions, starts: int) -> MemoryPlan:
    """What runs hold: their samples, of one run twice, and at first magnitudes of values; values are in the process."""
    one = (_SAMPLE + 8 * len(problem.problem.axes)) * _capacity(options)
    host = {PROCESS: resident_bytes(), "samples": one * (starts + 1), "magnitudes of values": 8 * problem.n_states}
    return MemoryPlan(host, {})


def _capacity(options: SimulationOptions) -> int:
    """Samples of a run at most."""
    return math.ceil(options.duration / options.sample) + 2


@dataclass(frozen=True, slots=True)
class _Prepared:
    """What every run of a simulation shares."""

    loop: CompiledSimulation
    grid: Grid
    limits: Limits
    controls: tuple[tuple[float, ...], ...]
    p: Any
    feedback: Feedback
    value_threshold: float | None
    """Value, in the direction of the objective, above which the goal can be reached from a start; None: unknown."""
    has_goal: bool


def _samples(capacity: int, axes: int) -> Samples:
    """Room for the samples of a run."""
    return Samples(
        times=np.empty(capacity),
        states=np.empty((capacity, axes)),
        actions=np.empty(capacity, np.int64),
        values=np.empty(capacity),
    )


def _run_arguments(prepared: _Prepared, start: State, samples: Samples) -> tuple[Any, ...]:
    """Of `CompiledSimulation.run`."""
    return start, prepared.grid, prepared.limits, prepared.controls, prepared.p, prepared.feedback, samples


def _run(prepared: _Prepared, start: State, options: SimulationOptions) -> Trajectory:
    samples = _samples(_capacity(options), len(start))
    figures: Figures = prepared.loop.run(*_run_arguments(prepared, start, samples))
    goal, over, threshold = figures.goal, figures.over, prepared.value_threshold
    last = min(options.hold_time, options.duration)
    start_value = float(prepared.loop.value_at(start, prepared.grid, prepared.feedback.values))
    after = figures.time - goal.reached
    return Trajectory(
        outcome=_outcome(figures, prepared.has_goal, options.duration - last),
        times=samples.times[: figures.samples].copy(),
        states=samples.states[: figures.samples].copy(),
        actions=samples.actions[: figures.samples].copy(),
        values=samples.values[: figures.samples].copy(),
        start_value=start_value,
        above_value_threshold=None if threshold is None else prepared.feedback.sign * start_value > threshold,
        duration=float(figures.time),
        terminal_reward=float(figures.terminal_reward),
        discounted_return=float(figures.discounted_return),
        remaining_value=(
            0.0
            if over
            else math.exp(-prepared.feedback.decay * figures.time) * float(samples.values[figures.samples - 1])
        ),
        reached=None if math.isinf(goal.reached) else float(goal.reached),
        held_since=None if math.isinf(goal.held_since) else float(goal.held_since),
        goal_fraction=min(1.0, goal.inside / after) if after > 0.0 else None,
        goal_fraction_last=None if over else min(1.0, goal.inside_last / last),
    )


def _outcome(figures: Figures, has_goal: bool, latest: float) -> RunOutcome:
    """How a run ended, whose goal, where there is one, is to be held from the time `latest` on."""
    if not has_goal:
        return RunOutcome.ENDED if figures.over else RunOutcome.NOT_ENDED
    if figures.over:
        return RunOutcome.GOAL if figures.arrived else RunOutcome.CRASHED
    if math.isinf(figures.goal.reached):
        return RunOutcome.NOT_REACHED
    return RunOutcome.HELD if figures.goal.held_since <= latest else RunOutcome.NOT_HELD


def _checked(problem: DiscretisedProblem, start: State) -> State:
    """The start as floats; OptionsError where it is no state of the problem."""
    axes = problem.problem.axes
    if len(start) != len(axes):
        names = ", ".join(axis.name for axis in axes)
        raise OptionsError(f"the start {start} has {len(start)} numbers; {problem.name} needs {len(axes)} ({names})")
    for axis, x in zip(axes, start, strict=True):
        if not math.isfinite(x) or (not axis.periodic and not axis.low <= x <= axis.high):
            raise OptionsError(f"the start has {axis.name} = {x}, outside {axis.low:g} .. {axis.high:g}")
    return tuple(float(x) for x in start)


def _limits(problem: DiscretisedProblem, options: SimulationOptions) -> Limits:
    return Limits(
        max_step=float(problem.max_step),
        max_duration=float(problem.max_duration),
        duration=float(options.duration),
        fine_step=_FINER * problem.max_step,
        sample=float(options.sample),
        hold_time=float(options.hold_time),
        period=options.period or 0.0,
        cell_fraction=float(options.cell_fraction),
        shortest=_SHORTEST * problem.max_step,
        cells=float(options.cells),
        plan_depth=options.plan_depth,
    )
