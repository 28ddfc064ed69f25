"""The command that writes the report of a result."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ooc_mdp.cli.application import app
from ooc_mdp.cli.options import OverwriteOption

__all__ = ["report"]


@app.command()
def report(
    result: Annotated[Path, typer.Argument(metavar="RESULT", help="Result directory of a solve.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="HTML file to write.  [default: RESULT with .html]")
    ] = None,
    store: Annotated[
        Path | None, typer.Option(help="Store of the table: maps loads of results that lack their partitions.")
    ] = None,
    trace: Annotated[Path | None, typer.Option(help="File that solve --trace wrote: draws each access.")] = None,
    cache_sweep: Annotated[Path | None, typer.Option(help="JSON file of solves with other caches: draws them.")] = None,
    overwrite: OverwriteOption = False,
) -> None:
    """Write one HTML file that shows a result: what is proved, values and policy, convergence, cache and memory.

    The file needs no network. What was not recorded is named in its place.
    """
    from ooc_mdp.report.terminal import print_line
    from ooc_mdp.reporting import write_report

    file = result.with_name(f"{result.name.removesuffix('.result')}.html") if output is None else output
    write_report(result, file, store=store, trace=trace, cache_sweep=cache_sweep, overwrite=overwrite)
    print_line(file)
