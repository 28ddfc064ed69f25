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
from typing import TYPE_CHECKING, Any

import numpy as np

from ooc_mdp.arguments import (
    CACHE,
    FLAG,
    FUNCTION,
    MODEL,
    NOTHING,
    PATH,
    POLICY,
    RESULT,
    SIZE,
    STARTS,
    TABLE,
    TEXT,
    WHOLE,
    check_types,
    either,
    maybe,
)
from ooc_mdp.array_tables import from_arrays, is_array, open_model, rewards_apart
from ooc_mdp.criteria import QUESTIONS, question_of
from ooc_mdp.errors import OptionsError
from ooc_mdp.model.annotations import INITIAL
from ooc_mdp.model.criterion import EVALUATED, Criterion, criterion_of, record_of
from ooc_mdp.options import (
    DEFAULT_KERNEL,
    DEFAULT_PLACEMENT,
    DEFAULT_WORKER_TIMEOUT,
    CacheSize,
    ClusterOptions,
    MethodName,
    PriorityName,
    RunOptions,
    SolveOptions,
    Stopping,
    SweepOrder,
    parse_bytes,
)
from ooc_mdp.tables import AnyPath, convert, generate, open_problem, open_store

if TYPE_CHECKING:
    from distributed import Client

    from ooc_mdp.array_tables import Arrays
    from ooc_mdp.events import SolveWatcher, Watcher
    from ooc_mdp.model.solution import Solution
    from ooc_mdp.model.table import Table
    from ooc_mdp.problems.control import DiscretisedProblem, State
    from ooc_mdp.simulation import Simulation, SimulationOptions
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


def _opened(table: Any, rewards: Any = None) -> Table:
    """The source itself, what a path names, or the store of P and these rewards."""
    if is_array(table):
        return from_arrays(table, rewards)
    opened: Table = open_model(table) if isinstance(table, str | PathLike) else table
    return opened


def _path(given: AnyPath | None) -> Path | None:
    return None if given is None else Path(given)


@check_types(
    table=MODEL,
    method=TEXT,
    priority=maybe(TEXT),
    cache=maybe(CACHE),
    device_memory=maybe(SIZE),
    device=TEXT,
    kernel=TEXT,
    stopping=maybe(TEXT),
    sweep_order=TEXT,
    output=maybe(PATH),
    resume=FLAG,
    overwrite=FLAG,
    trace=maybe(PATH),
    progress=maybe(FUNCTION),
    note=maybe(FUNCTION),
    placement=TEXT,
    rebalance=FLAG,
    stage=maybe(PATH),
    policy=maybe(POLICY),
)
def solve(
    table: Table | AnyPath | Arrays,
    criterion: Criterion | float | Arrays | None = None,
    arrays_criterion: Criterion | float | None = None,
    *,
    discount: float | None = None,
    epsilon: float | None = None,
    residual: float | None = None,
    method: MethodName = "auto",
    priority: PriorityName | None = None,
    sweeps_per_visit: int = 1,
    cache: str | float | None = None,
    device_memory: str | int | None = None,
    device: str = "auto",
    kernel: str = DEFAULT_KERNEL,
    stopping: str | None = None,
    sweep_order: SweepOrder = "voted",
    output: AnyPath | None = None,
    resume: bool = False,
    overwrite: bool = False,
    trace: AnyPath | None = None,
    time_limit: float | None = None,
    checkpoint_interval: float = 60.0,
    progress: SolveWatcher | None = None,
    note: Callable[[str], None] | None = None,
    workers: int | str | Client | None = None,
    placement: str = DEFAULT_PLACEMENT,
    rebalance: bool = False,
    worker_timeout: float = DEFAULT_WORKER_TIMEOUT,
    stage: AnyPath | None = None,
    policy: Any = None,
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
    arrays_criterion : the criterion, where R has its place: ``solve(P, R, FiniteHorizon(40))``.
    discount : gamma, at least 0 and below 1, in place of a criterion: short for ``Discounted(gamma)``. A (state,
        action) of duration tau is discounted by gamma**tau.
    epsilon : target for ||V - V*||; 1e-4 of the value range by default. Of an average reward half the width of the
        interval, which is 1e-4 of the range of the rewards by default.
    residual : stop at this plain Bellman residual instead; the bound that it proves is reported.
    method, priority, sweeps_per_visit : see :class:`~ooc_mdp.options.SolveOptions`.
    cache : budget of the partition cache, such as "1GiB", or "22%" or 0.22 of the table; 256 MiB by default.
    device_memory : budget on a CUDA device in all, such as "8GiB": the cache is what the rest leaves of it.
    device : "auto", "cpu" or "cuda:0".
    kernel : what sweeps, in place of the device's own engine (`ooc_mdp.backends.device_kernels`, ``ooc-mdp kernels``).
    stopping : when visits of a simple kernel look whether they may end: "states:K" or "blocks:K"
        (:class:`~ooc_mdp.options.Stopping`).
    sweep_order : order of the states in the CPU's sweeps: "forward", "alternating" or "voted".
    output : where the result is written, with checkpoints beside it meanwhile.
    resume : continue from a checkpoint of that output, by its method where `method` is "auto"; from the values of that
        output where it proves less than what is asked; from the beginning where there is neither.
    overwrite : replace an output or trace that exists.
    trace : CSV file that gets every access.
    time_limit, checkpoint_interval : seconds.
    progress : called with the progress a few times a second.
    note : called with sentences: that loops are compiled first, the memory plan, where a resumed solve begins, what
        makes one slow, and which workers were lost or joined.
    workers, placement, rebalance, worker_timeout, stage : see :class:`~ooc_mdp.options.ClusterOptions`; cache and
        device memory are those of each worker. Worker processes run the calling script anew: call from under
        ``if __name__ == "__main__":``.
    policy : evaluate this policy in place of solving for the best one: an action for each state, as an array; a
        result, a solution, or the path of a result or a .npy file. What is proved then bounds the value of the policy.

    Returns
    -------
    Solution : its `outcome` says whether the target was proved; a limit or signal is an outcome, not an error.

    Raises
    ------
    OptionsError, StoreError, MemoryBudgetError, ClusterError, MissingExtraError : as their names say.
    """
    rewards, question = rewards_apart(table, criterion, arrays_criterion)
    options = SolveOptions(
        criterion_of(question, discount),
        epsilon=epsilon,
        residual=residual,
        method=method,
        priority=priority,
        sweeps_per_visit=sweeps_per_visit,
        cache=None if cache is None else CacheSize.parse(cache),
        device_memory=None if device_memory is None else parse_bytes(device_memory, "device_memory"),
        device=device,
        kernel=kernel,
        stopping=None if stopping is None else Stopping.parse(stopping),
        sweep_order=sweep_order,
    )
    run = RunOptions(_path(output), resume, overwrite, _path(trace), time_limit, checkpoint_interval)
    asked = ClusterOptions(workers, placement, rebalance, worker_timeout, stage=_path(stage))
    cluster = requested_cluster(asked)
    return solve_with(
        lambda: _opened(table, rewards), options, run, cluster, policy=policy, progress=progress, note=note
    )


def solve_with(
    table: Callable[[], Table],
    options: SolveOptions,
    run: RunOptions,
    cluster: ClusterOptions | None = None,
    *,
    policy: Any = None,
    progress: SolveWatcher | None = None,
    note: Callable[[str], None] | None = None,
) -> Solution:
    """:func:`solve` as its options say.

    Parameters
    ----------
    table : opens the table, or computes a problem's; called once, after what can be refused was refused.
    cluster : how the solve is spread over several workers; None for a solve in this process.
    policy : the one to evaluate; None to solve for the best one.
    """
    from ooc_mdp.backends.compiling import note_compiling
    from ooc_mdp.model.solution import MAX_INITIAL
    from ooc_mdp.policies.given import given_policy
    from ooc_mdp.policies.table import policy_table
    from ooc_mdp.properties.table import AskedTable
    from ooc_mdp.solver.run import run_solve
    from ooc_mdp.store.output_lock import refuse_busy
    from ooc_mdp.store.result import source_actions

    if run.output is not None:
        refuse_busy(run.output)
    engine = _engine(options, run, cluster)
    if policy is not None and cluster is not None:
        raise OptionsError(
            "a given policy is evaluated on one machine: leave out --workers and --scheduler, or --policy (in Python "
            "workers, or policy)"
        )
    say = note or (lambda _: None)
    with note_compiling(say):
        given = None if policy is None else given_policy(policy)
        base = table()
        evaluated = None if given is None else policy_table(base, given, say)
        opened = QUESTIONS[options.question.name].table(evaluated or base, record_of(options.question))
        kept = opened.annotations
        initial = kept.first_states(INITIAL, MAX_INITIAL) if INITIAL in kept.labels else np.empty(0, np.int64)
        solution = run_solve(opened, options, run, engine, evaluated=evaluated, watch=progress, note=say)
    limits = opened.limits if isinstance(opened, AskedTable) else (-np.inf, np.inf)
    return replace(
        solution,
        source_actions=source_actions(solution, base),
        initial=solution.at_states(initial, opened.sense, limits),
    )


def _engine(options: SolveOptions, run: RunOptions, cluster: ClusterOptions | None) -> Engine:
    """What solves; raises OptionsError where it does not do what is asked."""
    if cluster is None:
        engine = QUESTIONS[options.question.name].engine()
    else:
        from ooc_mdp.distributed.solve import ClusterEngine

        engine = ClusterEngine(cluster)
    engine.check(options, run)
    return engine


def requested_cluster(asked: ClusterOptions) -> ClusterOptions | None:
    """How to solve on several workers; None, where none are asked for, to solve in this process."""
    if asked.workers is not None:
        return asked
    if asked != ClusterOptions():
        raise OptionsError(
            "placement, rebalance, worker_timeout and stage (--placement, --rebalance, --worker-timeout, --stage) "
            "apply to solves on several workers; leave them out, or give workers (--workers, --scheduler)"
        )
    return None


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


@check_types(
    result=RESULT,
    starts=STARTS,
    random=maybe(WHOLE),
    seed=WHOLE,
    options=either(NOTHING, "SimulationOptions"),
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
    options: SimulationOptions | None = None,
    problem: DiscretisedProblem | AnyPath | None = None,
    trust: bool = False,
    note: Callable[[str], None] | None = None,
) -> Simulation:
    """Run the continuous dynamics of a solved control problem under its policy.

    Parameters
    ----------
    result : of a control problem; its path, or opened.
    starts : states, as tuples or as texts such as "0.1,-2" and "initial".
    random, seed : so many more starts, uniform over the axes. Without any start the run begins at the initial state.
    options : length of a run, kind of policy, ...
    problem : the problem, or its Python file, which is run; not needed for the problems that are built in.
    trust : run the Python file that the result names, if its SHA-256 is the recorded one.
    note : called with a sentence before a trusted file is run, and where `problem` is another file than the recorded;
        and with the memory plan.

    Raises
    ------
    OptionsError : the result is of no control problem or was not kept, it is of a file that was neither given nor
        trusted, or a start is outside its axes.
    StoreError : the result is missing or damaged.
    """
    from ooc_mdp.model.solution import Solution
    from ooc_mdp.problems.control import DiscretisedProblem
    from ooc_mdp.simulation import SimulationOptions, parse_start, problem_of, random_starts
    from ooc_mdp.simulation import simulate as run_policy
    from ooc_mdp.store.result import Result

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
    if isinstance(problem, DiscretisedProblem):
        of = problem
    else:
        of = problem_of(opened, None if problem is None else fspath(problem), trust, note or (lambda _: None))
    chosen = [parse_start(of.problem, start) if isinstance(start, str) else start for start in starts]
    if random is not None:
        chosen += random_starts(of.problem, random, seed)
    return run_policy(
        of,
        opened.solution.values,
        opened.solution.policy,
        opened.solution.discount,
        chosen or [parse_start(of.problem, "initial")],
        options or SimulationOptions(),
        sense=opened.identity["sense"],
        note=note or (lambda _: None),
    )
