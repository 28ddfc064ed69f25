"""Commands that make and examine stores: check, convert, generate, inspect."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ooc_mdp.cli.application import app
from ooc_mdp.cli.choices import GroupedCommand, with_choices
from ooc_mdp.cli.options import JsonOption, OverwriteOption, StoreArgument, TrustOption
from ooc_mdp.cli.table_choices import ProblemChoices, SourceChoices, TableChoices
from ooc_mdp.cli.tables import print_json, print_store
from ooc_mdp.sizes import counted

__all__ = ["check", "convert", "generate", "inspect"]

PlanOption = Annotated[bool, typer.Option("--plan", help="Print what it would take, from a sample, and write nothing.")]
YesOption = Annotated[
    bool, typer.Option("--yes", help="Begin although it takes more than an hour or 80% of the free disk.")
]


@app.command(cls=GroupedCommand)
@with_choices(SourceChoices, TableChoices)
def convert(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="Model file, matrix folder or gymnasium:ENV-ID.")],
    store: StoreArgument,
    reading: SourceChoices,
    table: TableChoices,
    overwrite: OverwriteOption = False,
    plan: PlanOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Build a store from a model file, in bounded memory.

    Disk and time are estimated from the first blocks of a large file: what cannot fit is refused, what is large asks
    for --yes.
    """
    if plan:
        from ooc_mdp.cli.planning import given_options, show_conversion

        show_conversion(
            source, store, reading, table, as_json=as_json, options=[*given_options(reading), *given_options(table)]
        )
        return
    from ooc_mdp import api
    from ooc_mdp.report.progress import ProgressBar
    from ooc_mdp.report.terminal import print_note

    keywords = reading.keywords() | table.keywords()
    with ProgressBar() as bar:
        built = api.convert(
            source, store, **keywords, overwrite=overwrite, allow_large=yes, progress=bar, note=print_note
        )
    print_store(built.inspect(), as_json)


@app.command(cls=GroupedCommand)
@with_choices(ProblemChoices, TableChoices)
def generate(
    name: Annotated[
        str, typer.Argument(metavar="PROBLEM", help="Such as GW-1024x4, random, mountain-car, or a Python file.")
    ],
    store: StoreArgument,
    problem: ProblemChoices,
    table: TableChoices,
    device: Annotated[str, typer.Option(help="What computes a control problem's rows: auto, cpu or cuda:0.")] = "auto",
    overwrite: OverwriteOption = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue where the same command was stopped or killed.")
    ] = False,
    virtual: Annotated[
        bool, typer.Option("--virtual", help="Store no tables: each partition is computed when it is loaded.")
    ] = False,
    plan: PlanOption = False,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Build the store of a generated problem, partition by partition, of any size.

    With --virtual the store is a small directory that says how each partition is computed. Disk, memory and time are
    estimated from a sample first: what cannot fit is refused, what is large asks for --yes.
    """
    if plan:
        from ooc_mdp.cli.planning import given_options, show_generation

        options = [*given_options(problem), *given_options(table), *(["--virtual"] if virtual else [])]
        show_generation(
            name, Path(store), problem, table, as_json=as_json, options=options, virtual=virtual, device=device
        )
        return
    from ooc_mdp import api
    from ooc_mdp.report.progress import ProgressBar
    from ooc_mdp.report.terminal import print_note

    with ProgressBar() as bar:
        built = api.generate(
            name,
            store,
            problem.parameters(),
            **table.keywords(),
            overwrite=overwrite,
            resume=resume,
            virtual=virtual,
            device=device,
            allow_large=yes,
            progress=bar,
            note=print_note,
        )
    print_store(built.inspect(), as_json)


@app.command()
def inspect(
    store: Annotated[Path, typer.Argument(metavar="PATH", help="Store, result or checkpoint.")],
    as_json: JsonOption = False,
) -> None:
    """Print the contents of a store: sizes, partitions, compression by field, halo, coupling and provenance.

    Of a virtual store it prints what is recorded, and runs nothing. Of a result it prints what is proved, what the
    solve cost and what it was solved from; of a checkpoint how far the solve has come, and how it continues.
    """
    from ooc_mdp import api
    from ooc_mdp.io.virtual_store import is_virtual_store, read_virtual_store
    from ooc_mdp.store.inspect import inspect_virtual_store

    if _inspect_solve(store, as_json):
        return
    if is_virtual_store(store):
        figures = inspect_virtual_store(store, read_virtual_store(store).facts(str(store)))
    else:
        figures = api.open_store(store).inspect()
    _warn_of_partial(store)
    print_store(figures, as_json)


def _inspect_solve(path: Path, as_json: bool) -> bool:
    """Print a result or a checkpoint; False where the path is neither, nor the output of a solve that was stopped."""
    from ooc_mdp.store.checkpoint import checkpoint_path, is_checkpoint
    from ooc_mdp.store.inspect import inspect_checkpoint, inspect_result
    from ooc_mdp.store.result import is_result

    if is_result(path):
        facts, show = inspect_result(path), _print_result
    elif is_checkpoint(path):
        facts, show = inspect_checkpoint(path), _print_checkpoint
    elif not path.exists() and is_checkpoint(checkpoint_path(path)):
        facts, show = inspect_checkpoint(checkpoint_path(path)), _print_checkpoint
    else:
        return False
    if as_json:
        print_json(facts)
    else:
        show(facts)
    return True


def _print_result(facts: dict[str, Any]) -> None:
    from ooc_mdp.criteria import recorded_option
    from ooc_mdp.report.summaries import print_result

    print_result(facts, recorded_option(facts))


def _print_checkpoint(facts: dict[str, Any]) -> None:
    from ooc_mdp.criteria import recorded_option
    from ooc_mdp.report.summaries import print_checkpoint

    print_checkpoint(facts, recorded_option(facts["identity"]))


def _warn_of_partial(store: Path) -> None:
    """Warn of a partial store that a stopped run left on disk."""
    from ooc_mdp.report.terminal import print_note
    from ooc_mdp.store.transaction import stale_partial

    left = stale_partial(store)
    if left is not None:
        print_note(
            f"{left} was left by a run that was stopped or killed: the next run that writes {store} removes it or, "
            f"with generate --resume, continues from it; otherwise remove it yourself"
        )


@app.command()
def check(store: StoreArgument, trust: TrustOption = False, as_json: JsonOption = False) -> None:
    """Check every chunk of a store: checksums, row sums, indices, coupling. Exit status 1 if an error is found.

    Every partition of a virtual store is computed again, and compared with what is recorded.
    """
    from ooc_mdp import api
    from ooc_mdp.report.progress import ProgressBar
    from ooc_mdp.report.terminal import print_line, print_note

    opened = api.open_store(store, trust=trust, note=print_note)
    _warn_of_partial(store)
    with ProgressBar() as bar:
        report = opened.check(bar, print_note)
    if as_json:
        findings = [{"field": f.field, "partition": f.partition, "message": f.message} for f in report.findings]
        print_json({"valid": report.valid, "n_partitions": report.partitions, "findings": findings})
    else:
        for finding in report.findings:
            print_line(finding)
        print_line(
            f"{store}: {counted(report.partitions, 'partition')} checked, {counted(len(report.findings), 'finding')}"
        )
    if not report.valid:
        raise typer.Exit(1)
