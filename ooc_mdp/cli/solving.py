"""Commands that work on a table: solve, verify, export."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from ooc_mdp.cli.application import app
from ooc_mdp.cli.choices import (
    ClusterChoices,
    GroupedCommand,
    RunChoices,
    SolveChoices,
    with_choices,
)
from ooc_mdp.cli.options import JsonOption, OverwriteOption, TableArgument
from ooc_mdp.cli.table_choices import TableChoices
from ooc_mdp.cli.tables import print_json
from ooc_mdp.model.table_source import TableSource

__all__ = ["export", "solve", "verify"]


@app.command(cls=GroupedCommand)
@with_choices(SolveChoices, RunChoices, ClusterChoices, TableChoices)
def solve(
    store: TableArgument,
    discount: Annotated[
        float, typer.Option(help="Discount per step (or unit of duration), 0 to 1; 1: undiscounted totals.")
    ],
    choices: SolveChoices,
    run: RunChoices,
    cluster: ClusterChoices,
    problem: TableChoices,
    as_json: JsonOption = False,
) -> None:
    """Solve the MDP of a store, through a partition cache of bounded size, to a proved error.

    With problem:NAME in place of the store nothing is stored: each partition is computed when it is needed. The options
    of problem:NAME are those of generate.

    With --workers or --scheduler the partitions are divided among Dask workers, each with its own cache.
    """
    from ooc_mdp import api
    from ooc_mdp.report.progress import SolveProgressLine
    from ooc_mdp.report.summaries import print_solution

    options, asked = choices.options(discount), run.options()
    spread = cluster.options(choices.device)
    line = SolveProgressLine()

    def note(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    with ExitStack() as stack:

        def table() -> TableSource:
            opened = problem.open(store, choices.device)
            stack.enter_context(line)  # shown after the progress bar of the problem's first pass
            return opened

        if spread is not None:
            from ooc_mdp.distributed.cluster import silence_dask

            stack.enter_context(silence_dask())
        solution = api.solve_with(table, options, asked, spread, progress=line, note=note)
    figures = solution.summary()
    if as_json:
        print_json(figures)
    else:
        print_solution(figures, solution.outcome, run.output)
    if not solution.outcome.proved:
        raise typer.Exit(1)


@app.command(cls=GroupedCommand)
@with_choices(TableChoices)
def verify(
    store: TableArgument,
    result: Annotated[Path, typer.Argument(metavar="RESULT", help="Result directory of a solve.")],
    problem: TableChoices,
    device: Annotated[str, typer.Option(help="What computes the rows of problem:NAME: auto, cpu or cuda:0.")] = "auto",
    other_store: Annotated[
        bool, typer.Option("--other-store", help="Measure the result although it was solved from another table.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Stream the whole table once and measure the true residual of a result. Exit status 1 if its bound does not hold.

    A result of problem:NAME is verified with the options that it was solved with.
    """
    from ooc_mdp import api
    from ooc_mdp.report.progress import ProgressBar
    from ooc_mdp.report.summaries import print_verification

    table = problem.open(store, device)
    with ProgressBar() as bar:
        found = api.verify(table, result, other_store=other_store, progress=bar)
    if as_json:
        print_json(found.summary())
    else:
        print_verification(found.summary())
    if not found.holds:
        raise typer.Exit(1)


@app.command()
def export(
    result: Annotated[Path, typer.Argument(metavar="RESULT", help="Result directory of a solve.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="values.npy, solution.npz or solution.csv.")],
    overwrite: OverwriteOption = False,
) -> None:
    """Write values and policy, in the source's state order, for other programs."""
    from ooc_mdp import api
    from ooc_mdp.io.export import export_result

    export_result(api.open_result(result), file, overwrite=overwrite)
    print(file)
