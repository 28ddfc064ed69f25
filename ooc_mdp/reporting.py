"""The Python interface of reports: `write_report`.

>>> import ooc_mdp
>>> ooc_mdp.write_report("car.result", "car.html")  # doctest: +SKIP
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from ooc_mdp.arguments import FLAG, PATH, RESULT, TABLE, check_types, maybe
from ooc_mdp.tables import AnyPath, open_store

if TYPE_CHECKING:
    from ooc_mdp.model.solution import Solution
    from ooc_mdp.model.table import Table
    from ooc_mdp.store.result import Result

__all__ = ["write_report"]


@check_types(
    result=RESULT,
    file=PATH,
    store=maybe(TABLE),
    trace=maybe(PATH),
    cache_sweep=maybe(PATH),
    overwrite=FLAG,
)
def write_report(
    result: Result | Solution | AnyPath,
    file: AnyPath,
    *,
    store: Table | AnyPath | None = None,
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
    store : the table, or its path. A solution that was not written has its grid from there, and a result of format 3
        the partitions of its states.
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
    table = open_store(store) if isinstance(store, str | PathLike) else store
    html.write_report(
        _opened(result, table),
        target,
        store=table,
        trace=None if trace is None else read_trace(Path(trace)),
        sweep=None if cache_sweep is None else read_cache_sweep(Path(cache_sweep)),
        overwrite=overwrite,
    )


def _opened(result: Result | Solution | AnyPath, table: Table | None) -> Result:
    """The result itself, what a path names, or a solution as the result of its table, which may be unknown."""
    from ooc_mdp.model.solution import Solution
    from ooc_mdp.store.result import open_result, unsaved_result

    if isinstance(result, Solution):
        return unsaved_result(result, table)
    return open_result(Path(result)) if isinstance(result, str | PathLike) else result
