"""The command `problems`, which lists the generated problems and describes one."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from ooc_mdp.cli.application import app
from ooc_mdp.cli.options import JsonOption
from ooc_mdp.cli.tables import print_json

__all__ = ["problems"]


@app.command()
def problems(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[PROBLEM]", help="Such as mountain-car, or a Python file, which is executed."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the problems that generate builds, or describe one: axes, controls, parameters, equations."""
    from ooc_mdp.problems.description import describe_problem
    from ooc_mdp.problems.registry import PROBLEMS
    from ooc_mdp.report.problem_text import print_problem, print_problems

    if name is None:
        summaries = {each: entry.summary for each, entry in PROBLEMS.items()}
        if as_json:
            print_json({"problems": [{"name": each, "summary": text} for each, text in summaries.items()]})
        else:
            print_problems(summaries)
        return
    found = describe_problem(name)
    if as_json:
        print_json(dataclasses.asdict(found))
    else:
        print_problem(found, name)
