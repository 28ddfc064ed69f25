"""The Python interface of reports, pictures and animations: `write_report`, `plot_result`, `animate_solve`.

>>> import ooc_mdp
>>> ooc_mdp.write_report("car.result", "car.html")  # doctest: +SKIP
>>> ooc_mdp.plot_result("car.result", "car.pdf", shown="policy")  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ooc_mdp.arguments import FLAG, FUNCTION, PATH, RESULT, TABLE, TEXT, Kind, check_types, either, maybe, real_number
from ooc_mdp.errors import OptionsError
from ooc_mdp.quoting import quote
from ooc_mdp.tables import AnyPath, open_store

if TYPE_CHECKING:
    from ooc_mdp.events import Watcher
    from ooc_mdp.model.solution import Solution
    from ooc_mdp.model.table import Table
    from ooc_mdp.report.cache_trace import AccessTrace
    from ooc_mdp.store.result import Result

__all__ = ["animate_solve", "plot_result", "write_report"]

_AXES = Kind(
    lambda value: isinstance(value, list | tuple) and all(isinstance(name, str) for name in value),
    "the names of two axes, such as ('x', 'y')",
)
_SLICES = Kind(
    lambda value: isinstance(value, Mapping) and all(isinstance(name, str) for name in value),
    "a dict of positions by the name of an axis, such as {'heading': 0.0} or {'heading': [0.0, 1.57]}",
)
_LIMITS = Kind(
    lambda value: isinstance(value, list | tuple | str) and (value == "all" or len(value) == 2),
    "two numbers, such as (-5.0, 10.0), or 'all'",
)


@check_types(
    result=RESULT,
    file=PATH,
    table=maybe(TABLE),
    trace=maybe(PATH),
    cache_sweep=maybe(PATH),
    overwrite=FLAG,
)
def write_report(
    result: Result | Solution | AnyPath,
    file: AnyPath,
    *,
    table: Table | AnyPath | None = None,
    trace: AnyPath | None = None,
    cache_sweep: AnyPath | None = None,
    overwrite: bool = False,
) -> None:
    """Write one HTML file that shows what a solve proved, how it got there and what it cost.

    The file is below 6 MB and needs no network: values, policy and the work on the partitions over any two axes, error
    bound against time and bytes, cache, accesses, memory, workers. What was not recorded is named.

    Parameters
    ----------
    result : its path, or opened; or what :func:`solve` returned, whatever its outcome.
    file : ends in .html.
    table : an open store, or its path. A solution that was not written has its grid from there, and a result of format
        3 the partitions of its states.
    trace : file that the solve wrote (`trace`); each access is drawn.
    cache_sweep : JSON file of solves of the same table with several caches.
    overwrite : replace an existing file.

    Raises
    ------
    OptionsError : the name does not end in .html; store, trace or cache sweep are of another table.
    MissingExtraError : Bokeh is not installed (the extra `report`).
    StoreError : a result or store is missing or damaged; the file exists or cannot be written.
    InputError : trace or cache sweep are malformed.
    """
    from ooc_mdp.report import html
    from ooc_mdp.report.cache_sweep_file import read_cache_sweep
    from ooc_mdp.report.cache_trace import read_trace
    from ooc_mdp.store.atomic_file import check_output_files

    target = Path(file)
    html.check_report(target)
    check_output_files(target, overwrite=overwrite, sources=[Path(p) for p in (trace, cache_sweep) if p is not None])
    opened = open_store(table) if isinstance(table, str | PathLike) else table
    html.write_report(
        _opened(result, opened),
        target,
        table=opened,
        trace=None if trace is None else read_trace(Path(trace)),
        sweep=None if cache_sweep is None else read_cache_sweep(Path(cache_sweep)),
        overwrite=overwrite,
    )


@check_types(
    result=RESULT,
    file=maybe(PATH),
    shown=TEXT,
    axes=maybe(_AXES),
    slices=maybe(_SLICES),
    paths=maybe(PATH),
    limits=maybe(_LIMITS),
    contours=FLAG,
    overwrite=FLAG,
)
def plot_result(
    result: Result | Solution | AnyPath,
    file: AnyPath | None = None,
    *,
    shown: str = "value",
    axes: Sequence[str] | None = None,
    slices: Mapping[str, float | Sequence[float]] | None = None,
    paths: AnyPath | None = None,
    limits: tuple[float, float] | str | None = None,
    contours: bool = True,
    overwrite: bool = False,
) -> Any:
    """Draw value or policy of a result over two axes of its grid, a panel for each point of the others.

    States that are no grid are drawn as sorted values and shares of the actions.

    Parameters
    ----------
    result : its path, or opened; or what :func:`solve` returned.
    file : ends in .png, .svg or .pdf; None to write none.
    shown : "value" or "policy".
    axes : names of the axes across and up.
    slices : by name of another axis, the positions at which it is cut, in its unit. Axes that are neither drawn nor
        sliced are cut at several points each, as far as they are two.
    paths : CSV file of paths, such as simulate writes.
    limits : values at the ends of the colours, or "all". By default values far below the others (far above, where
        rewards are minimised), such as a penalty for ending in an obstacle, are grey and take no colours.
    contours : draw lines of equal value, at least twice the error bound apart.
    overwrite : replace an existing file.

    Returns
    -------
    Figure : of matplotlib; notebooks show it.

    Raises
    ------
    OptionsError : an axis does not exist, a position is beyond it, or the name of the file has another suffix.
    InputError : the file of paths does not fit.
    MissingExtraError : matplotlib is not installed (the extra `plot`).
    StoreError : the result is missing or damaged; the file exists or cannot be written.
    """
    from ooc_mdp.report import figures
    from ooc_mdp.report.maps import MapOptions, draw_result
    from ooc_mdp.store.atomic_file import check_output_files

    if shown not in ("value", "policy"):
        raise OptionsError(f"plot_result: shown is {quote(shown)}; give 'value' or 'policy'")
    target, source = None if file is None else Path(file), None if paths is None else Path(paths)
    if target is not None:
        figures.check_plot_file(target)
        check_output_files(target, overwrite=overwrite, sources=[] if source is None else [source])
    cuts = {name: _positions(name, at) for name, at in (slices or {}).items()}
    options = MapOptions(shown, axes, cuts, source, _limits(limits), contours)  # type: ignore[arg-type]
    figure = draw_result(_opened(result, None), options)
    if target is not None:
        figures.save_figure(figure, target, overwrite=overwrite)
    return figure


@check_types(
    solve=RESULT,
    file=PATH,
    of=maybe(either(PATH, "Result", "Solution", "Table")),
    axes=maybe(_AXES),
    shown=TEXT,
    overwrite=FLAG,
    progress=maybe(FUNCTION),
)
def animate_solve(
    solve: Result | Solution | AnyPath,
    file: AnyPath,
    *,
    of: Result | Solution | Table | AnyPath | None = None,
    axes: Sequence[str] | None = None,
    shown: str = "order",
    seconds: float = 12.0,
    overwrite: bool = False,
    progress: Watcher | None = None,
) -> None:
    """Animate the order in which a solve visited its partitions, over two axes of the grid.

    Parameters
    ----------
    solve : the trace that a solve wrote, which has every visit; or a result, which has the first and the last visit of
        each partition.
    file : ends in .gif or .mp4.
    of : the store or a result of the table, where `solve` is a trace: it places the partitions on the grid. Without it
        they are drawn in rows by their number.
    axes : names of the axes across and up; of the partitions behind a point of this plane the latest visit is shown.
    shown : "order", the visits since the last one of each partition; "visits", how many there were; or "bound", on the
        residual (of a trace).
    seconds : length of the animation.
    overwrite : replace an existing file.
    progress : called with the name of the step, the frames drawn and their number.

    Raises
    ------
    OptionsError : an axis does not exist; trace and `of` are of different tables; the file has another suffix.
    InputError : the trace is malformed.
    MissingExtraError : matplotlib is not installed (the extra `plot`).
    StoreError : a result or store is missing or damaged; the file exists or cannot be written.
    """
    from ooc_mdp.report import visited_tables
    from ooc_mdp.report.order_animation import animate_visits, check_order_animation
    from ooc_mdp.store.atomic_file import check_output_files

    target, length = Path(file), real_number("animate_solve: seconds", seconds)
    check_order_animation(target, length)
    check_output_files(target, overwrite=overwrite)
    if shown not in ("order", "visits", "bound"):
        raise OptionsError(f"animate_solve: shown is {quote(shown)}; give 'order', 'visits' or 'bound'")
    visits, title, plane = visited_tables.visits_of(_visited(solve), of if of is None else _placed(of), axes)
    watched = {} if progress is None else {"progress": progress}
    animate_visits(visits, plane, title, target, figure=shown, seconds=length, overwrite=overwrite, **watched)  # type: ignore[arg-type]


def _visited(solve: Result | Solution | AnyPath) -> Result | AccessTrace:
    """What a path names: a result, or else a trace."""
    from ooc_mdp.report.cache_trace import read_trace
    from ooc_mdp.store.result import is_result

    if isinstance(solve, str | PathLike) and not is_result(Path(solve)):
        return read_trace(Path(solve))
    return _opened(solve, None)


def _placed(of: Result | Solution | Table | AnyPath) -> Result | Table:
    """The store or result that places partitions on a grid."""
    from ooc_mdp.model.table import Table
    from ooc_mdp.store.result import is_result

    if isinstance(of, Table):
        return of
    if isinstance(of, str | PathLike) and not is_result(Path(of)):
        return open_store(of)
    return _opened(of, None)


def to_xarray(result: Result | Solution, group: str | None) -> Any:
    """The `xarray.Dataset` of a solution; see `Solution.to_xarray`, by which it is called."""
    from ooc_mdp.report.dataset import dataset_of

    return dataset_of(_opened(result, None), group)


def html_summary(result: Result | Solution) -> str:
    """The outcome, what is proved and the main figures, as a notebook shows a solution."""
    from ooc_mdp.model.html_table import html_table
    from ooc_mdp.report.html.facts import headline, rows, warnings

    solution = _opened(result, None).solution
    outcome, proved, _ = headline(solution)
    return html_table(outcome, [(r.name, r.text) for r in rows(solution.summary())], [proved, *warnings(solution)])


def _positions(name: str, at: Any) -> list[float]:
    """The positions at which an axis is cut."""
    several = at if isinstance(at, Sequence) and not isinstance(at, str) else [at]
    return [real_number(f"plot_result: the slice {name}", x) for x in several]


def _limits(given: Any) -> tuple[float, float] | None:
    if given is None:
        return None
    if given == "all":
        return float("-inf"), float("inf")
    low, high = (real_number("plot_result: one of the limits", x) for x in given)
    return low, high


def _opened(result: Result | Solution | AnyPath, table: Table | None) -> Result:
    """The result itself, what a path names, or a solution as the result of its table, which may be unknown."""
    from ooc_mdp.model.solution import Solution
    from ooc_mdp.store.result import open_result, unsaved_result

    if isinstance(result, Solution):
        return unsaved_result(result, result.table if table is None else table)
    return open_result(Path(result)) if isinstance(result, str | PathLike) else result
