"""Commands that work on a table: solve, verify, export."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ooc_mdp.cli.application import app
from ooc_mdp.cli.choices import CriterionChoices, GroupedCommand, SolveChoices, with_choices
from ooc_mdp.cli.options import (
    GridsOption,
    InitialOption,
    JsonOption,
    ModelArgument,
    OverwriteOption,
    PolicyOption,
    StoreArgument,
    TrustOption,
)
from ooc_mdp.cli.tables import print_json

if TYPE_CHECKING:
    from ooc_mdp.model.solution import Solution
    from ooc_mdp.report.live_view import SolveLiveView
    from ooc_mdp.report.progress import SolveProgressLine

__all__ = ["export", "solve", "verify"]


@app.command(cls=GroupedCommand)
@with_choices(CriterionChoices, SolveChoices)
def solve(
    store: ModelArgument,
    asked: CriterionChoices,
    choices: SolveChoices,
    policy: PolicyOption = None,
    initial: InitialOption = None,
    grids: GridsOption = 1,
    trust: TrustOption = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print the memory plan by name, and all counters of the solve.")
    ] = False,
    live: Annotated[
        bool | None,
        typer.Option(
            "--live/--no-live",
            help="Draw a map of the partitions; by default on a terminal of 100 x 24 characters or more.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Solve the MDP of a store, through a partition cache of bounded size, to a proved error.

    A model file is converted to a temporary store first. Each partition of a virtual store (generate --virtual) is
    computed when it is needed.

    With --workers or --scheduler the partitions are divided among Dask workers, each with its own cache.
    """
    from ooc_mdp.report.terminal import print_note, print_short_note

    options, run, cluster = choices.options(asked.criterion())
    note = print_note if verbose else print_short_note
    view = _progress_view(str(store), live)

    with ExitStack() as stack:
        stack.enter_context(view)
        from ooc_mdp import api
        from ooc_mdp.report.solve_summary import print_solution

        if cluster is not None:
            from ooc_mdp.distributed.cluster import silence_dask

            stack.enter_context(silence_dask())
        table = partial(api.open_model, store, trust=trust, note=note)
        solution = api.solve_with(
            table, options, run, cluster, policy=policy, initial=initial, grids=grids, progress=view, note=note
        )
    figures = solution.summary()
    if as_json:
        print_json(figures)
    else:
        simulate = _simulation(solution)
        print_solution(figures, solution.outcome, run.output, str(store), verbose, trace=run.trace, simulate=simulate)
    if not solution.outcome.proved:
        raise typer.Exit(1)


def _simulation(solution: Solution) -> list[str] | None:
    """Options with which `ooc-mdp simulate` runs the policy, given its result; None where it cannot."""
    attributes = {} if solution.table is None else solution.table.facts.attributes
    provenance = attributes.get("provenance") or {}
    controlled = provenance.get("format") == "problem" and "controls" in (solution.geometry or {})
    if not controlled or solution.criterion["criterion"] not in ("discounted", "total"):
        return None
    return [] if provenance.get("file") is None else ["--trust"]


def _progress_view(name: str, live: bool | None) -> SolveLiveView | SolveProgressLine:
    """The live view where it is not refused (`live` is False) and the terminal has room for it, or else the line."""
    from ooc_mdp.report.live_view import LEAST_SIZE, SolveLiveView
    from ooc_mdp.report.progress import SolveProgressLine
    from ooc_mdp.report.terminal import print_note

    fits = SolveLiveView.fits()
    if live and not fits:
        print_note("--live needs a terminal of {} x {} characters; there is one line in its place".format(*LEAST_SIZE))
    return SolveLiveView(name) if fits and live is not False else SolveProgressLine()


@app.command()
def verify(
    store: StoreArgument,
    result: Annotated[Path, typer.Argument(metavar="RESULT", help="Result directory of a solve.")],
    other_store: Annotated[
        bool, typer.Option("--other-store", help="Measure the result although it was solved from another table.")
    ] = False,
    trust: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Stream the whole table once and measure the true residual of a result.

    Exit status 1 if its bound does not hold.
    """
    from ooc_mdp.report.progress import ProgressBar
    from ooc_mdp.report.terminal import print_note

    with ProgressBar() as bar:
        from ooc_mdp import api
        from ooc_mdp.report.summaries import print_verification

        table = api.open_store(store, trust=trust, note=print_note)
        found = api.verify(table, result, other_store=other_store, progress=bar, note=print_note)
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
    stages: Annotated[
        str | None,
        typer.Option(
            metavar="0,10,...",
            help="Of a finite horizon: stages that are written beside the first; in .npy one stage in its place.",
        ),
    ] = None,
    q_values: Annotated[
        Path | None,
        typer.Option(
            metavar="STORE",
            help="Store of the result, to write the value of each action too; in .npy in place of the values.",
        ),
    ] = None,
    trust: TrustOption = False,
    overwrite: OverwriteOption = False,
) -> None:
    """Write values and policy, in the source's state order, for other programs."""
    from ooc_mdp.report.progress import working
    from ooc_mdp.report.terminal import print_line, print_note

    with working("writing values and policy"):
        from ooc_mdp import api
        from ooc_mdp.answers import answered_table
        from ooc_mdp.finite_horizon.criterion import parse_stages
        from ooc_mdp.io.export import export_result

        chosen = () if stages is None else parse_stages(stages, "--stages")
        opened, asked = api.open_result(result), None
        if q_values is not None:
            asked = answered_table(api.open_store(q_values, trust=trust, note=print_note), opened, print_note)[0]
        error = export_result(opened, file, overwrite=overwrite, stages=chosen, asked=asked)
    print_line(file)
    if error is not None:
        print_note(f"values of actions: error at most {error:.3g}")
