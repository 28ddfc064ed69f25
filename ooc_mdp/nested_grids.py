"""Coarser grids of a control problem's table, whose solutions are where the solve of the table begins.

    grid of n points along an axis  ->  (n + 1) // 2 points; of a periodic axis n // 2

The tables of coarser grids are computed on demand, never stored: each has half as many points along each axis as the
one after it. What is proved of the table is proved as without them.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from ooc_mdp.arguments import whole_number
from ooc_mdp.backends.cuda.control.rows import DeviceProblem
from ooc_mdp.backends.layout import cache_of_size
from ooc_mdp.criteria import QUESTIONS
from ooc_mdp.errors import OptionsError
from ooc_mdp.events import SolveWatcher
from ooc_mdp.io.recomputed_table import RecomputedTable
from ooc_mdp.model.criterion import Criterion, option_of, record_of
from ooc_mdp.model.table import Table
from ooc_mdp.options import CacheSize, RunOptions, SolveOptions
from ooc_mdp.problems.control.discretisation import DiscretisedProblem
from ooc_mdp.problems.registry import built_in_problem
from ooc_mdp.runtime.signals import signals
from ooc_mdp.solver.initial import InitialValues, initial_values
from ooc_mdp.solver.run import run_solve
from ooc_mdp.store.checkpoint import checkpoint_path
from ooc_mdp.table_options import options_of

__all__ = ["after_coarser_grids", "check_grids", "coarser_tables"]

_LEAST = 4
"""Points along each axis of the coarsest grid."""


def coarser_tables(table: Table, grids: int) -> Iterator[RecomputedTable]:
    """The tables of `grids - 1` coarser grids of the problem of a table, the coarsest first, each made when it is due.

    Raises
    ------
    OptionsError : the table is not that of a control problem that can be made again, or its grid has too few points.
    """
    problem = _problem_of(table)
    shapes = [problem.points]
    while len(shapes) < grids:
        periodic = [axis.periodic for axis in problem.problem.axes]
        halved = tuple((n + (not goes_round)) // 2 for n, goes_round in zip(shapes[-1], periodic, strict=True))
        if min(halved) < _LEAST:
            raise OptionsError(
                f"{grids} grids of a grid of {_shape(problem.points)} points: the coarsest would have fewer than "
                f"{_LEAST} points along an axis; give --grids {len(shapes)} or less"
            )
        shapes.append(halved)
    dtype: Any = table.facts.dtypes["rewards"].name
    sense: Any = table.sense
    for shape in reversed(shapes[1:]):
        coarse = DiscretisedProblem(problem.problem, replace(problem.options, grid=",".join(map(str, shape))))
        coarse.file = problem.file
        if isinstance(problem, DeviceProblem):
            coarse = DeviceProblem(coarse, problem.source)
        options = options_of({"sense": sense}, default_dtype=dtype)
        yield RecomputedTable.after_first_pass(coarse, options, f"{problem.name} on {_shape(shape)} points")


def check_grids(grids: int, policy: Any, question: Criterion) -> None:
    """Refuse several grids where their solutions are of no use."""
    if whole_number("grids", grids) < 1:
        raise OptionsError(f"grids is {grids}; give the number of grids, 1 for that of the table alone")
    if grids > 1 and (policy is not None or not question.from_values):
        why = "the policy is one of this grid" if policy is not None else f"{option_of(question)} begins at its end"
        raise OptionsError(f"{why}, so that coarser grids are of no use; leave out --grids (in Python grids)")


def after_coarser_grids(
    table: Table,
    grids: int,
    options: SolveOptions,
    run: RunOptions,
    initial: InitialValues | None,
    progress: SolveWatcher | None,
    note: Callable[[str], None],
) -> tuple[InitialValues | None, RunOptions]:
    """Solve each coarser grid in this process, from the values of the one before.

    Nothing is done for one grid, nor where an earlier run left something to continue from.

    Parameters
    ----------
    run : its time limit is that of all grids together.
    initial : values to begin from on the coarsest grid.

    Returns
    -------
    the values to begin from on the table's own grid, and `run` with what is left of the time limit
    """
    if grids == 1 or _is_continued(run):
        return initial, run
    question, begun = QUESTIONS[options.question.name], time.monotonic()
    if options.cache is not None:  # as many bytes for coarser grids, whose rows are computed at each load
        options = replace(options, cache=CacheSize(cache_of_size(table.facts.partition_bytes, options.cache)))
    for coarse in coarser_tables(table, grids):
        asked, limit = question.table(coarse, record_of(options.question)), _time_left(run, begun)
        with signals() as interrupted:  # also by a signal that comes when this grid is done
            found = run_solve(
                asked, options, RunOptions(time_limit=limit), question.engine(), initial=initial, watch=progress
            )
        if interrupted():
            signal.raise_signal(signal.SIGINT)  # the command line's handler raises
            raise KeyboardInterrupt  # SIGINT may be ignored, as in the background of a shell, where SIGTERM ends a run
        statistics = found.statistics
        note(
            f"{coarse.name}: {statistics.solve_seconds:.1f} s, {statistics.loads_per_partition:.2f} loads per partition"
        )
        found = replace(found, geometry=coarse.facts.attributes.get("geometry"))
        initial = initial_values(found, options.question, f"the grid of {coarse.name}")
    return initial, replace(run, time_limit=_time_left(run, begun))


def _is_continued(run: RunOptions) -> bool:
    """Whether an earlier run left something to continue from."""
    output = run.output
    return run.resume and output is not None and (output.exists() or checkpoint_path(output).exists())


def _time_left(run: RunOptions, begun: float) -> float | None:
    """Seconds of the time limit, a little at least; None without a limit."""
    return None if run.time_limit is None else max(1e-3, run.time_limit - (time.monotonic() - begun))


def _problem_of(table: Table) -> DiscretisedProblem:
    """The control problem of a table, at hand or made again from what its store records."""
    if isinstance(table, RecomputedTable) and isinstance(table.problem, DiscretisedProblem):
        return table.problem
    recorded = dict(table.facts.attributes.get("provenance") or {})
    if recorded.get("file") is not None:
        raise OptionsError(
            f"{table.name} is of a problem in a Python file, which is not run for its name; generate the store with "
            f"--virtual to solve coarser grids first, or give the result of one by --initial"
        )
    if recorded.get("format") == "problem" and isinstance(recorded.get("options"), dict):
        made = built_in_problem(str(recorded.get("source")), recorded["options"])
        if isinstance(made, DiscretisedProblem):
            return made
    raise OptionsError(
        f"{table.name} is of no control problem, and has no coarser grids; leave out --grids (in Python grids)"
    )


def _shape(points: tuple[int, ...]) -> str:
    return " x ".join(map(str, points))
