"""The Python interface of plans: `plan`, which says before a solve what it will take.

>>> import ooc_mdp
>>> forecast = ooc_mdp.plan("car.store", discount=0.9, cache="10%")  # doctest: +SKIP
>>> forecast.memory_bytes, forecast.bytes_per_pass, forecast.seconds  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from ooc_mdp.arguments import FUNCTION, POLICY, TABLE, check_types, maybe, with_keywords
from ooc_mdp.array_tables import open_model
from ooc_mdp.criteria import IN_PYTHON, QUESTIONS
from ooc_mdp.errors import OptionsError
from ooc_mdp.model.criterion import Criterion, criterion_of, record_of
from ooc_mdp.option_fields import documentation, options_in
from ooc_mdp.options import ClusterOptions, RunOptions, SolveKeywords, SolveOptions, solve_options
from ooc_mdp.table_options import TableKeywords, options_of
from ooc_mdp.tables import AnyPath

if TYPE_CHECKING:
    from ooc_mdp.io.conversion.conversion_estimate import ConversionEstimate
    from ooc_mdp.io.conversion.generation_estimate import GenerationEstimate
    from ooc_mdp.model.table import Table
    from ooc_mdp.runtime.room import Room
    from ooc_mdp.solver.forecast import SolveForecast

__all__ = ["TRIAL_SECONDS", "plan", "plan_conversion", "plan_generation", "plan_with"]

TRIAL_SECONDS = 0.5
"""Of work, in which a plan measures the solve."""


@with_keywords(
    SolveKeywords,
    documentation(SolveOptions, RunOptions, ClusterOptions),
    {each.name: each.default for each in options_in(SolveOptions, RunOptions, ClusterOptions)},
    IN_PYTHON,
)
@check_types(table=TABLE, policy=maybe(POLICY), note=maybe(FUNCTION))
def plan(
    table: Table | AnyPath,
    criterion: Criterion | float | None = None,
    *,
    discount: float | None = None,
    policy: Any = None,
    note: Callable[[str], None] | None = None,
    **options: Unpack[SolveKeywords],
) -> SolveForecast:
    """Compute what a solve with these options will take: memory, disk, bytes and seconds of a pass, expected work.

    The memory is the plan that the solve itself makes, and refuses where there is not so much. Seconds are measured:
    the solve is begun and ended after half a second of work. Nothing is written.

    Parameters
    ----------
    table : an open store, a problem from :func:`open_problem`, or the path of a store or a model file.
    criterion, discount, policy : as for :func:`solve`.
    note : called with sentences: that loops are compiled first, the memory plan.
    **options : those of the solve; see `ooc_mdp.options`.

    Raises
    ------
    OptionsError, StoreError, MemoryBudgetError, MissingExtraError : as the solve would raise them.
    """
    chosen, run, cluster = solve_options(criterion_of(criterion, discount), options)
    return plan_with(lambda: _opened(table), chosen, run, cluster, policy=policy, note=note)


def plan_with(
    table: Callable[[], Table],
    options: SolveOptions,
    run: RunOptions,
    cluster: ClusterOptions | None = None,
    *,
    policy: Any = None,
    note: Callable[[str], None] | None = None,
) -> SolveForecast:
    """:func:`plan` as its options say.

    Raises
    ------
    OptionsError : as the solve would raise it; or several workers are asked for.
    """
    from ooc_mdp.backends.compiling import note_compiling
    from ooc_mdp.policies.given import given_policy
    from ooc_mdp.policies.table import policy_table
    from ooc_mdp.runtime.room import Room
    from ooc_mdp.solver.forecast import forecast_solve
    from ooc_mdp.solver.run import Trial, run_trial

    if cluster is not None:
        raise OptionsError(
            "a plan is of a solve in one process: leave out --workers and --scheduler (in Python workers); each worker "
            "takes its share of the table, with a cache of its own"
        )
    say, writes = note or (lambda _: None), run.output is not None
    free = Room.at(run.output or Path.cwd())
    with note_compiling(say):
        base = table()
        evaluated = base if policy is None else policy_table(base, given_policy(policy), say)
        question = QUESTIONS[options.question.name]
        asked = question.table(evaluated, record_of(options.question))
        trial = run_trial(asked, options, question.engine(), Trial(TRIAL_SECONDS, writes), say)
    return forecast_solve(asked, options, trial, writes, free)


def _opened(table: Table | AnyPath) -> Table:
    """The table itself, or what a path names."""
    return open_model(table) if isinstance(table, str | PathLike) else table


def plan_generation(
    name: AnyPath,
    store: AnyPath,
    parameters: Mapping[str, str | int | float | Sequence[int]] | None = None,
    *,
    virtual: bool = False,
    device: str = "auto",
    workers: int | None = None,
    note: Callable[[str], None] | None = None,
    **table: Unpack[TableKeywords],
) -> tuple[GenerationEstimate, Room]:
    """What :func:`generate` estimates before it begins, and what is free at the place of the store.

    Raises
    ------
    OptionsError, InputError, MissingExtraError : as of :func:`generate`, but not for what does not fit.
    """
    from ooc_mdp.backends.select import select_rows
    from ooc_mdp.io.conversion.generation_estimate import estimate_generation
    from ooc_mdp.problems.registry import make_problem
    from ooc_mdp.runtime.room import Room

    problem = select_rows(make_problem(name, parameters), device if workers is None else "cpu", note)
    room = Room.at(Path(store))
    options = options_of(table, default_dtype=problem.default_dtype)
    return estimate_generation(problem, options, room, virtual=virtual, workers=workers), room


def plan_conversion(
    source: AnyPath,
    store: AnyPath,
    *,
    format: str | None = None,
    rewards: AnyPath | Mapping[str, AnyPath | Sequence[AnyPath]] | None = None,
    reward_model: str | None = None,
    normalize: bool = False,
    grid: Sequence[int] | None = None,
    **table: Unpack[TableKeywords],
) -> tuple[ConversionEstimate, Room]:
    """What :func:`convert` will take by the first blocks of its source, and what is free at the place of the store.

    Raises
    ------
    InputError, OptionsError, MissingExtraError : as of :func:`convert`, but not for what does not fit.
    """
    from ooc_mdp.io.conversion.conversion_estimate import estimate_file
    from ooc_mdp.io.registry import ReadOptions
    from ooc_mdp.io.source import reward_files

    options = options_of(table, default_dtype="float64", grid=grid)
    reading = ReadOptions(
        **reward_files(rewards), reward_model=reward_model, normalize=normalize, sense=options.sense or "max"
    )
    return estimate_file(fspath(source), Path(store), format, reading, options)
