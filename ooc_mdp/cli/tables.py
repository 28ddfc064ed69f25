"""Parse tables, shapes and parameters from the command line, and print stores."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ooc_mdp.errors import OptionsError
from ooc_mdp.model.table_source import TableSource

__all__ = ["open_table", "parse_parameters", "parse_shape", "print_json", "print_store"]


def print_json(figures: dict[str, Any]) -> None:
    """Print one JSON object on stdout."""
    print(json.dumps(figures, default=str))


def parse_shape(text: str | None, option: str) -> tuple[int, ...] | None:
    """Numbers along each axis, written 100,200 or 100x200."""
    if text is None:
        return None
    try:
        return tuple(int(n) for n in text.replace("x", ",").split(","))
    except ValueError:
        raise OptionsError(f"{option} {text!r} is no list of numbers; write for example {option} 100,200") from None


def parse_parameters(texts: list[str] | None, **short: str | int | float | None) -> dict[str, str | int | float]:
    """Parameters of a problem from NAME=VALUE texts and from `short` options, such as --seed."""
    parameters: dict[str, str | int | float] = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not equals:
            raise OptionsError(f"--parameter {text!r} has no value; write NAME=VALUE")
        if name in parameters:
            raise OptionsError(f"-p {name}=... is given twice; leave one out")
        parameters[name] = value
    given = {name: value for name, value in short.items() if value is not None}
    for name in given:
        if name in parameters:
            raise OptionsError(f"--{name} and -p {name}=... are the same parameter; leave one out")
    return parameters | given


def open_table(table: Path, parameter: list[str] | None, grid: str | None, device: str, **options: Any) -> TableSource:
    """The store at a path, or the problem behind ``problem:NAME`` after its first pass.

    Raises
    ------
    OptionsError : options of a problem were given for a store, whose table exists.
    """
    from ooc_mdp import api
    from ooc_mdp.report.progress import ProgressBar

    name = api.problem_name(table)
    if name is None:
        given = {"-p": parameter or None, "--grid": grid, **{f"--{k.replace('_', '-')}": v for k, v in options.items()}}
        unused = [option for option, value in given.items() if value is not None]
        if unused:
            raise OptionsError(
                f"{', '.join(unused)} belong to problem:NAME, but {table} is a store, whose table exists: leave them "
                f"out, generate another store, or name the problem (problem:mountain-car) to have it recomputed"
            )
        return api.open_store(table)
    parameters = parse_parameters(parameter, grid=grid)

    def note(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    with ProgressBar() as bar:
        opened = api.open_problem(name, parameters, **options, device=device, progress=bar, note=note)
    note(
        f"{opened.name}: {opened.n_partitions} partitions computed once in {opened.first_pass_seconds:.1f} s; none is "
        f"stored, each is computed again when it is needed"
    )
    return opened


def print_store(store: Any, as_json: bool) -> None:
    """Print the contents of a store as a table or as JSON."""
    from ooc_mdp.report.summaries import print_inspection
    from ooc_mdp.store.inspect import inspect_store

    facts = inspect_store(store)
    if as_json:
        print_json(facts)
    else:
        print_inspection(facts)
