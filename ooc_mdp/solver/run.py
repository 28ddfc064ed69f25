"""The life cycle of every solve, whatever is asked and wherever it is solved.

    open output ─▶ what is there already? ─▶ Engine.begin ─▶ Task.run ─▶ Task.conclude ─▶ result, or checkpoint
      locks, table held                      plan, resume    methods     Solution

An engine says how a criterion is solved in one place: discounted or total, in this process or on workers. Locks,
results that are there already, checkpoints after damage and what is written in the end are decided here alone.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Protocol

from ooc_mdp.backends.compiling import timed_compilation
from ooc_mdp.events import SolveWatcher
from ooc_mdp.model.named_actions import named_actions, source_actions
from ooc_mdp.model.solution import Outcome, Solution
from ooc_mdp.model.table import Table
from ooc_mdp.options import RunOptions, SolveOptions
from ooc_mdp.policies.table import PolicyTable
from ooc_mdp.runtime.signals import signals
from ooc_mdp.solver.initial import InitialValues
from ooc_mdp.solver.output import Output, Snapshot, open_output
from ooc_mdp.solver.session import Clock, Progressing, Session

__all__ = ["Engine", "Job", "Task", "Trial", "run_solve", "run_steps", "run_trial"]


class Task(Protocol):
    """A solve that has begun."""

    def run(self) -> Outcome:
        """Work until the target is met, a limit ends it, or float64 can do no more."""
        ...

    def snapshot(self) -> Snapshot | None:
        """What a checkpoint holds, at any time."""
        ...

    def conclude(self, outcome: Outcome) -> Solution:
        """The solution; what it is made of stays as it is."""
        ...


@dataclass(frozen=True, slots=True)
class Trial:
    """The first seconds of a solve, of which nothing is kept."""

    seconds: float
    """Of work, preparations excluded."""
    writes: bool
    """Whether the solve that is planned writes checkpoints and a result."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a solve is to do, with its output checked and locked."""

    table: Table
    options: SolveOptions
    run: RunOptions
    output: Output
    stack: ExitStack
    """Gets what must be closed after the solve."""
    watch: SolveWatcher | None
    note: Callable[[str], None]
    compiled: Callable[[], float] = lambda: 0.0
    """For how many seconds loops have been compiled so far, which is no work."""
    trial: Trial | None = None
    """None for a solve."""

    @property
    def writes(self) -> bool:
        """Whether the memory plan counts what writing checkpoints and a result takes."""
        return self.output.path is not None if self.trial is None else self.trial.writes

    def await_signals(self) -> Callable[[], bool]:
        """From now on signals are noted instead of raised; returns what tells whether one has arrived."""
        return self.stack.enter_context(signals())

    def session(self, interrupted: Callable[[], bool], clock: Clock | None = None) -> Session:
        """From now on the time limit counts."""
        trial = None if self.trial is None else self.trial.seconds
        return Session(
            self.output,
            self.run,
            watch=self.watch,
            note=self.note,
            interrupted=interrupted,
            clock=clock or Clock(compiled=self.compiled),
            trial=trial,
        )


class Engine(Protocol):
    """How one kind of solve is done; to add one, define these and name it in ``ooc_mdp/criteria.py: QUESTIONS``."""

    def check(self, options: SolveOptions, run: RunOptions) -> None:
        """Raise OptionsError for options that it does not support."""
        ...

    def default_target(self, table: Table, solution: Solution) -> float:
        """The error that is asked for at a solution's values where the options do not say."""
        ...

    def begin(self, job: Job) -> Task:
        """Plan the memory, allocate it, and continue from what an earlier run left."""
        ...


def run_solve(
    table: Table,
    options: SolveOptions,
    run: RunOptions | None,
    engine: Engine,
    *,
    evaluated: PolicyTable | None = None,
    initial: InitialValues | None = None,
    watch: SolveWatcher | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> Solution:
    """Solve what the options ask of a table, by an engine.

    Parameters
    ----------
    run : output, trace, limits; by default none of them.
    evaluated : the rows of the policy whose value is asked for, of which `table` is made; None for the best value.
    initial : values to begin from where there is nothing to continue from.
    watch : called with progress a few times a second.
    note : called with sentences: the memory plan before anything large is allocated, where a resumed solve begins, and
        what makes this one slow.

    Returns
    -------
    Solution : whatever the outcome; values and policy in the source's state order.

    Raises
    ------
    OptionsError, StoreError, MemoryBudgetError : before any work, or when the disk fails.
    BusyError : before any work, where another process writes the output or reads what is there.
    """
    run = run or RunOptions()
    engine.check(options, run)
    policy = None if evaluated is None else evaluated.policy
    with (
        timed_compilation() as compiled,
        open_output(table, options.question, run, note, policy) as output,
        ExitStack() as stack,
    ):
        finished = output.finished(options, lambda solution: engine.default_target(table, solution))
        if finished is not None:
            return finished
        if initial is not None:
            output.begin_from(initial, table)
        options = output.continued(options)
        engine.check(options, run)
        task = engine.begin(Job(table, options, run, output, stack, watch, note, compiled))
        with output.saved_on_damage(task.snapshot):
            outcome = task.run()

        model = table if evaluated is None else evaluated.base

        def conclude() -> Solution:
            found = replace(task.conclude(outcome), compile_seconds=compiled())
            found = found if policy is None else policy.answered(found)
            numbers, names = source_actions(found.policy, model), named_actions(found.policy, model)
            return replace(found, source_actions=numbers, named_actions=names)

        return output.finish(model, outcome, task.snapshot, conclude)


def run_trial(
    table: Table, options: SolveOptions, engine: Engine, trial: Trial, note: Callable[[str], None] = lambda _: None
) -> Solution:
    """Plan and begin a solve as :func:`run_solve` does, and end it after some seconds of work; nothing is written.

    Returns
    -------
    Solution : its memory plan is that of the solve; its statistics are those of the first seconds.

    Raises
    ------
    OptionsError, StoreError, MemoryBudgetError : as the solve raises them.
    """
    run = RunOptions()
    engine.check(options, run)
    with (
        timed_compilation() as compiled,
        open_output(table, options.question, run, note, None) as output,
        ExitStack() as stack,
    ):
        task = engine.begin(Job(table, options, run, output, stack, None, note, compiled, trial))
        return task.conclude(task.run())


def run_steps(work: Progressing, steps: Generator[None, None, Outcome], session: Session) -> Outcome:
    """Take the steps of a method until it returns, or a limit or signal ends it; report and save between them."""
    try:
        while True:
            next(steps)
            stop = session.after_step(work)
            if stop is not None:
                return stop
    except StopIteration as ended:
        outcome: Outcome = ended.value
        return outcome
    finally:
        steps.close()
