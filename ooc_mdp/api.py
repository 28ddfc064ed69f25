"""The Python interface: `convert`, `generate`, `open_store`, `open_problem`, `solve`, `open_result`, `verify` and
`simulate`.

>>> import ooc_mdp
>>> store = ooc_mdp.convert("model.tra", "model.zarr")  # doctest: +SKIP
>>> solution = ooc_mdp.solve(store, discount=0.95, epsilon=1e-6, cache="22%")  # doctest: +SKIP
>>> solution.error_bound, solution.values, solution.policy  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, cast

import numpy as np

from ooc_mdp.arguments import (
    FLAG,
    FUNCTION,
    MODEL,
    PATH,
    POLICY,
    RESULT,
    STARTS,
    TABLE,
    VALUES,
    WHOLE,
    check_types,
    either,
    maybe,
    with_keywords,
)
from ooc_mdp.array_tables import from_arrays, is_array, open_model, rewards_apart
from ooc_mdp.criteria import IN_PYTHON, QUESTIONS, question_of
from ooc_mdp.errors import OptionsError
from ooc_mdp.model.annotations import INITIAL
from ooc_mdp.model.criterion import EVALUATED, Criterion, criterion_of, record_of
from ooc_mdp.option_fields import documentation, options_in
from ooc_mdp.options import ClusterOptions, RunOptions, SolveKeywords, SolveOptions, solve_options
from ooc_mdp.simulation_options import SimulationKeywords, SimulationOptions
from ooc_mdp.tables import AnyPath, convert, generate, open_problem, open_store

if TYPE_CHECKING:
    from ooc_mdp.array_tables import Arrays
    from ooc_mdp.events import SolveWatcher, Watcher
    from ooc_mdp.model.mdp import IntArray
    from ooc_mdp.model.solution import Solution
    from ooc_mdp.model.table import Table
    from ooc_mdp.problems.control import DiscretisedProblem, State
    from ooc_mdp.simulation import Simulation
    from ooc_mdp.solver.run import Engine
    from ooc_mdp.solver.verify import Verification
    from ooc_mdp.store.result import Result

__all__ = [
    "convert",
    "generate",
    "open_model",
    "open_problem",
    "open_result",
    "open_store",
    "simulate",
    "solve",
    "solve_with",
    "verify",
]


def _opened(table: Any, rewards: Any = None, sense: Literal["max", "min"] | None = None) -> Table:
    """The source itself, what a path names, or the store of P and these rewards, of the sense that is asked for."""
    if is_array(table):
        return from_arrays(table, rewards, sense=sense)
    opened: Table = open_model(table) if isinstance(table, str | PathLike) else table
    return opened


@with_keywords(
    SolveKeywords,
    documentation(SolveOptions, RunOptions, ClusterOptions),
    {each.name: each.default for each in options_in(SolveOptions, RunOptions, ClusterOptions)},
    IN_PYTHON,
)
@check_types(
    table=MODEL,
    policy=maybe(POLICY),
    initial=maybe(VALUES),
    grids=WHOLE,
    progress=maybe(FUNCTION),
    note=maybe(FUNCTION),
)
def solve(
    table: Table | AnyPath | Arrays,
    criterion: Criterion | float | Arrays | None = None,
    arrays_criterion: Criterion | float | None = None,
    *,
    discount: float | None = None,
    policy: Any = None,
    initial: Any = None,
    grids: int = 1,
    progress: SolveWatcher | None = None,
    note: Callable[[str], None] | None = None,
    **options: Unpack[SolveKeywords],
) -> Solution:
    """Solve the MDP of a table to a proved error, through a partition cache of bounded size.

    Parameters
    ----------
    table : an open store or its path; or a problem from :func:`open_problem`; or P of :func:`from_arrays`, as an array
        or list, then with R in second place: ``solve(P, R, discount=0.9)``; or the path of a model file, of which
        :func:`convert` makes a temporary store.
    criterion : what is asked (``docs/guides/which-question.md``): ``Discounted(0.95)``, ``TotalReward()``,
        ``FiniteHorizon(40)``, ``AverageReward()``, ``Reachability("done")`` or ``RewardToGoal("done", "steps")``
        (``docs/guides/properties.md``); R, where the table is P.
    arrays_criterion : the criterion, where R has its place: ``solve(P, R, FiniteHorizon(40))``. To minimise costs,
        ``solve(P, C, Discounted(0.9, sense="min"))``, or give ``from_arrays(P, C, sense="min")`` as the table.
    discount : gamma, at least 0 and below 1, in place of a criterion: short for ``Discounted(gamma)``. A (state,
        action) of duration tau is discounted by gamma**tau.
    policy : evaluate this policy in place of solving for the best one: an action for each state, as an array; a
        result, a solution, or the path of a result or a .npy file. What is proved then bounds the value of the policy.
    initial : values to begin from: of another result or solution, or its path, of as many states or of a coarser or
        finer grid of the same axes; or an array, or a .npy file, with a value for each state. They change nothing in
        what is proved.
    grids : of a control problem, how many grids are solved one after the other, each with twice as many points along
        each axis and begun from the solution of the one before; the last is that of the table.
    progress : called with the progress a few times a second.
    note : called with sentences: that loops are compiled first, the memory plan, where a resumed solve begins, what
        makes one slow, and which workers were lost or joined.
    **options : see `ooc_mdp.options`.

    A cache may be given as 0.22 of the table too, and `workers` as the address of a Dask scheduler, such as
    "tcp://host:8786", or as a client of one, which is not closed. Cache and device memory are those of each worker,
    and a device has the number that it has where the worker runs. Worker processes run the calling script anew: call
    from under ``if __name__ == "__main__":``.

    Returns
    -------
    Solution : its `outcome` says whether the target was proved; a limit or signal is an outcome, not an error.

    Raises
    ------
    OptionsError, StoreError, MemoryBudgetError, ClusterError, MissingExtraError : as their names say.
    """
    rewards, question = rewards_apart(table, criterion, arrays_criterion)
    chosen = solve_options(criterion_of(question, discount), options)
    sense = getattr(chosen[0].question, "sense", None)
    return solve_with(
        lambda: _opened(table, rewards, sense),
        *chosen,
        policy=policy,
        initial=initial,
        grids=grids,
        progress=progress,
        note=note,
    )


def solve_with(
    table: Callable[[], Table],
    options: SolveOptions,
    run: RunOptions,
    cluster: ClusterOptions | None = None,
    *,
    policy: Any = None,
    initial: Any = None,
    grids: int = 1,
    progress: SolveWatcher | None = None,
    note: Callable[[str], None] | None = None,
) -> Solution:
    """:func:`solve` as its options say.

    Parameters
    ----------
    table : opens the table, or computes a problem's; called once, after what can be refused was refused.
    cluster : how the solve is spread over several workers; None for a solve in this process.
    policy : the one to evaluate; None to solve for the best one.
    initial : values to begin from; None for those of the table, or 0.
    grids : solved one after the other, the last of which is that of the table.
    """
    from ooc_mdp.backends.compiling import note_compiling
    from ooc_mdp.nested_grids import after_coarser_grids, check_grids
    from ooc_mdp.policies.given import given_policy
    from ooc_mdp.policies.table import policy_table
    from ooc_mdp.properties.table import AskedTable
    from ooc_mdp.solver.initial import initial_values
    from ooc_mdp.solver.run import run_solve
    from ooc_mdp.store.output_lock import refuse_busy

    if run.output is not None:
        refuse_busy(run.output)
    engine = _engine(options, run, cluster)
    check_grids(grids, policy, options.question)
    if policy is not None and cluster is not None:
        raise OptionsError(
            "a given policy is evaluated on one machine: leave out --workers and --scheduler, or --policy (in Python "
            "workers, or policy)"
        )
    say = note or (lambda _: None)
    with note_compiling(say):
        given = None if policy is None else given_policy(policy)
        begin = None if initial is None else initial_values(initial, options.question)
        base = table()
        begin, run = after_coarser_grids(base, grids, options, run, begin, progress, say)
        evaluated = None if given is None else policy_table(base, given, say)
        asked, record = QUESTIONS[options.question.name].table, record_of(options.question)
        opened = asked(evaluated or base, record)
        initial_states = _first_initial_states(opened)
        solution = run_solve(opened, options, run, engine, evaluated=evaluated, initial=begin, watch=progress, note=say)
    limits = opened.limits if isinstance(opened, AskedTable) else (-np.inf, np.inf)
    return replace(
        solution,
        initial=solution.at_states(initial_states, opened.sense, limits),
        geometry=base.facts.attributes.get("geometry"),
        table=opened if evaluated is None else asked(base, record),
    )


def _first_initial_states(table: Table) -> IntArray:
    """int64; as many of the model's initial states as a solution answers for, none where it names none."""
    from ooc_mdp.model.solution import MAX_INITIAL

    kept = table.annotations
    return kept.first_states(INITIAL, MAX_INITIAL) if INITIAL in kept.labels else np.empty(0, np.int64)


def _engine(options: SolveOptions, run: RunOptions, cluster: ClusterOptions | None) -> Engine:
    """What solves; raises OptionsError where it does not do what is asked."""
    if cluster is None:
        engine = QUESTIONS[options.question.name].engine()
    else:
        from ooc_mdp.distributed.solve import ClusterEngine

        engine = ClusterEngine(cluster)
    engine.check(options, run)
    return engine


@check_types(path=PATH)
def open_result(path: AnyPath) -> Result:
    """Open what :func:`solve` wrote. Raises StoreError."""
    from ooc_mdp.store.result import open_result as open_

    return open_(Path(path))


@check_types(table=TABLE, result=RESULT, other_store=FLAG, progress=maybe(FUNCTION), note=maybe(FUNCTION))
def verify(
    table: Table | AnyPath,
    result: Result | Solution | AnyPath,
    *,
    other_store: bool = False,
    progress: Watcher | None = None,
    note: Callable[[str], None] | None = None,
) -> Verification:
    """Stream the whole table once in float64 and measure what a result's values really leave.

    Parameters
    ----------
    table : as for :func:`solve`.
    result : its path, or opened; or what :func:`solve` returned, which does not say of which table it is: any of as
        many states is taken for it, and refutes it if it is another.
    other_store : measure the result on this table, although it was solved from another one.
    progress : called with ("verify", partitions done, of how many).
    note : called with the memory plan.

    Raises
    ------
    OptionsError : the result belongs to another table.
    StoreError : store or result is missing or damaged.
    MemoryBudgetError : a partition, with what is recomputed of it, takes more than the RAM that is available.
    """
    from ooc_mdp.model.solution import Solution
    from ooc_mdp.policies.table import evaluated_table
    from ooc_mdp.store.result import Result, unsaved_result

    found = result if isinstance(result, Result | Solution) else open_result(result)
    given, found = evaluated_table(_opened(table), found, note or (lambda _: None))
    record = found.criterion if isinstance(found, Solution) else found.identity
    question = question_of(record)
    of = question.table(given, record)
    opened = unsaved_result(found, of) if isinstance(found, Solution) else found
    checked = question.verify(of, opened, progress, other_store=other_store, note=note)
    return replace(checked, evaluated_policy=record.get(EVALUATED))


@with_keywords(
    SimulationKeywords,
    documentation(SimulationOptions),
    {each.name: each.default for each in options_in(SimulationOptions)},
)
@check_types(
    result=RESULT,
    starts=STARTS,
    random=maybe(WHOLE),
    seed=WHOLE,
    problem=maybe(either(PATH, "DiscretisedProblem")),
    trust=FLAG,
    note=maybe(FUNCTION),
)
def simulate(
    result: Result | AnyPath,
    starts: Sequence[State | str] = (),
    *,
    random: int | None = None,
    seed: int = 1,
    problem: DiscretisedProblem | AnyPath | None = None,
    trust: bool = False,
    note: Callable[[str], None] | None = None,
    **options: Unpack[SimulationKeywords],
) -> Simulation:
    """Run the continuous dynamics of a solved control problem under its policy.

    Parameters
    ----------
    result : of a control problem; its path, or opened.
    starts : states, as tuples or as texts such as "0.1,-2" and "initial".
    random, seed : so many more starts, uniform over the axes. Without any start the run begins at the initial state.
    problem : the problem, or its Python file, which is run; not needed for the problems that are built in.
    trust : run the Python file that the result names, if its SHA-256 is the recorded one.
    note : called with a sentence before a trusted file is run, and where `problem` is another file than the recorded;
        and with the memory plan.
    **options : see `ooc_mdp.simulation_options`.

    Raises
    ------
    OptionsError : the result is of no control problem or was not kept, it is of a file that was neither given nor
        trusted, or a start is outside its axes.
    StoreError : the result is missing or damaged.
    """
    from ooc_mdp.model.solution import Solution
    from ooc_mdp.problems.control import DiscretisedProblem
    from ooc_mdp.simulation import other_problem, parse_start, problem_of, random_starts
    from ooc_mdp.simulation import simulate as run_policy
    from ooc_mdp.store.result import Result

    asked = SimulationOptions(**cast("dict[str, Any]", options))
    if isinstance(result, Solution):
        raise OptionsError(
            "a solution says neither whose values it holds nor whether they were maximised; give solve an output, and "
            "simulate its path"
        )
    opened = result if isinstance(result, Result) else open_result(result)
    if opened.solution.stages is not None:
        raise OptionsError(
            f"{opened.path} is a plan for a number of stages, and simulate runs continuous time, in which decisions "
            f"have no number; read the policy of each stage from the result (solution.stages), or export it with "
            f"--stages"
        )
    if opened.solution.gain is not None:
        raise OptionsError(
            f"{opened.path} holds relative values of an average reward, and simulate adds up rewards with what remains "
            "to be expected of the last state; solve for a discount, or for the total reward"
        )
    if "goal" in opened.solution.criterion:
        raise OptionsError(
            f"{opened.path} answers a question about the goal {opened.solution.criterion['goal']!r}, and simulate "
            f"compares values with the rewards of the problem's own process; run that of the table (ooc-mdp simulate "
            f"STORE {opened.path}), or solve for a discount or the total reward"
        )
    if isinstance(problem, DiscretisedProblem):
        of = problem
    else:
        of = problem_of(opened, None if problem is None else fspath(problem), trust, note or (lambda _: None))
    chosen = [parse_start(of.problem, start) if isinstance(start, str) else start for start in starts]
    if random is not None:
        chosen += random_starts(of.problem, random, seed)
    simulation = run_policy(
        of,
        opened.solution.values,
        opened.solution.policy,
        opened.solution.discount,
        chosen or [parse_start(of.problem, "initial")],
        asked,
        sense=opened.identity["sense"],
        note=note or (lambda _: None),
    )
    return replace(simulation, other_problem=other_problem(opened, of))
