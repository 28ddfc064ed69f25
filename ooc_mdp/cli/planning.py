"""The command `plan`, which says what a solve, or the generation of a store, will take."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ooc_mdp.cli.application import app
from ooc_mdp.cli.choices import CriterionChoices, GroupedCommand, SolveChoices, with_choices
from ooc_mdp.cli.options import JsonOption, PolicyOption, TrustOption
from ooc_mdp.cli.table_choices import ProblemChoices, SourceChoices, TableChoices
from ooc_mdp.cli.tables import print_json

__all__ = ["given_options", "plan", "show_conversion", "show_generation"]


@app.command(cls=GroupedCommand)
@with_choices(CriterionChoices, SolveChoices, ProblemChoices)
def plan(
    store: Annotated[
        str, typer.Argument(metavar="STORE|PROBLEM", help="Store directory, a model file, or a problem to generate.")
    ],
    asked: CriterionChoices,
    choices: SolveChoices,
    problem: ProblemChoices,
    policy: PolicyOption = None,
    trust: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Print what a solve with these options will take: memory, disk, bytes and seconds of a pass, expected work.

    The memory is the plan that the solve itself makes. Seconds are measured: the solve is begun, and ended after half a
    second of work. Nothing is written. Exit status 2 if it does not fit.

    Of a PROBLEM, such as mountain-car with --grid, it prints what generating its store will take, from a sample.
    """
    if not Path(store).exists() or store.endswith(".py"):
        _plan_problem(store, problem, as_json)
        return
    from ooc_mdp.errors import OptionsError
    from ooc_mdp.report.progress import working
    from ooc_mdp.report.terminal import print_note

    named = given_options(problem)
    if named:
        raise OptionsError(f"{store} is a store, or a model file: leave out {named[0]}, which describes a problem")
    options, run, cluster = choices.options(asked.criterion())
    output = [] if run.output is not None else ["--output", f"{Path(store).stem or 'model'}.result"]
    run = replace(run, output=run.output or Path(output[-1]))
    with working("trying the solve for half a second"):
        from ooc_mdp import api
        from ooc_mdp.planning import plan_with

        table = partial(api.open_model, store, trust=trust, note=print_note)
        found = plan_with(table, options, run, cluster, policy=policy, note=_without_memory(print_note))
    given = [*given_options(asked), *given_options(choices), *([] if policy is None else ["--policy", policy])]
    command = shlex.join(["ooc-mdp", "solve", store, *given, *output, *(["--trust"] if trust else [])])
    if as_json:
        print_json({**found.summary(), "command": command})
    else:
        from ooc_mdp.report.forecasts import print_forecast

        print_forecast(found.summary(), command)
    if not found.fits:
        raise typer.Exit(2)


def _without_memory(note: Callable[[str], None]) -> Callable[[str], None]:
    """Pass on all lines but those of the memory plan and the method, which the plan shows itself."""

    def shown(text: str) -> None:
        lines = [line for line in text.split("\n") if not line.startswith(("memory plan", "auto:"))]
        if lines:
            note("\n".join(lines))

    return shown


def given_options(choices: Any) -> list[str]:
    """The options of a group that differ from their defaults, as words of a command line."""
    words: list[str] = []
    for field in fields(choices):
        value = getattr(choices, field.name)
        if value == field.default:
            continue
        option = f"--{field.name.replace('_', '-')}"
        if isinstance(value, bool):
            words.append(option)
            continue
        for each in value if isinstance(value, list | tuple) else [value]:
            words += [option, str(each)]
    return words


def _plan_problem(name: str, problem: ProblemChoices, as_json: bool) -> None:
    """Print what generating a problem's store will take, in the working directory and with default partitions."""
    store = f"{Path(name).stem}.store"
    show_generation(name, Path(store), problem, TableChoices(), as_json=as_json, options=given_options(problem))


def show_generation(
    name: str,
    store: Path,
    problem: ProblemChoices,
    table: TableChoices,
    *,
    as_json: bool,
    options: Iterable[str],
    virtual: bool = False,
    device: str = "auto",
) -> None:
    """Print what a generation will take; exit status 2 if it does not fit, or asks for --yes.

    Parameters
    ----------
    options : of the command that begins it.
    """
    from ooc_mdp.errors import OptionsError
    from ooc_mdp.io.conversion.generation_estimate import check_generation
    from ooc_mdp.planning import plan_generation
    from ooc_mdp.report.progress import working
    from ooc_mdp.report.terminal import print_note

    keywords = table.keywords()
    workers = keywords.pop("workers")
    processes = workers if isinstance(workers, int) else None
    with working("computing a sample"):
        estimate, room = plan_generation(
            name,
            store,
            problem.parameters(),
            virtual=virtual,
            device=device,
            workers=processes,
            note=print_note,
            **keywords,
        )
    refusal = None
    try:
        check_generation(estimate, room, confirmed=False)
    except OptionsError as error:
        refusal = str(error).partition(" (estimate:")[0]
    command = shlex.join(["ooc-mdp", "generate", name, str(store), *options])
    figures = {
        "problem": name,
        **estimate.summary(),
        "free_disk_bytes": room.disk,
        "free_memory_bytes": room.memory,
        "refusal": refusal,
    }
    if as_json:
        print_json({**figures, "command": command})
    else:
        from ooc_mdp.report.forecasts import print_generation

        print_generation(figures, command)
    if refusal is not None:
        raise typer.Exit(2)


def show_conversion(
    source: str, store: Path, reading: SourceChoices, table: TableChoices, *, as_json: bool, options: Iterable[str]
) -> None:
    """Print what a conversion will take; exit status 2 if it does not fit, or asks for --yes.

    Parameters
    ----------
    options : of the command that begins it.
    """
    from ooc_mdp.errors import OptionsError
    from ooc_mdp.io.conversion.conversion_estimate import check_fits
    from ooc_mdp.planning import plan_conversion
    from ooc_mdp.report.progress import working

    keywords = reading.keywords() | table.keywords()
    keywords.pop("workers")
    with working("reading the first blocks"):
        estimate, room = plan_conversion(source, store, **keywords)
    refusal = None
    try:
        check_fits(estimate, room, confirmed=False)
    except OptionsError as error:
        refusal = str(error).partition(" (estimate:")[0]
    command = shlex.join(["ooc-mdp", "convert", source, str(store), *options])
    figures = {"source": source, **estimate.summary(), "free_disk_bytes": room.disk, "refusal": refusal}
    if as_json:
        print_json({**figures, "command": command})
    else:
        from ooc_mdp.report.forecasts import print_conversion

        print_conversion(figures, command)
    if refusal is not None:
        raise typer.Exit(2)
