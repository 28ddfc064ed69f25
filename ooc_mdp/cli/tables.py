"""Parse parameters from the command line, and print stores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ooc_mdp.errors import OptionsError
from ooc_mdp.quoting import quote, shorten

__all__ = ["parse_parameters", "parse_reward_files", "print_json", "print_store"]


def print_json(figures: dict[str, Any]) -> None:
    """Print one JSON object on stdout, in ASCII without control characters."""
    print(json.dumps(figures, default=str).replace("\x7f", "\\u007f"))


def parse_parameters(texts: list[str] | None, **short: str | int | float | None) -> dict[str, str | int | float]:
    """Parameters of a problem from NAME=VALUE texts and from `short` options, such as --seed."""
    parameters: dict[str, str | int | float] = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not equals:
            raise OptionsError(f"--parameter {quote(text)} has no value; write NAME=VALUE")
        if name in parameters:
            raise OptionsError(f"-p {shorten(name)}=... is given twice; leave one out")
        parameters[name] = value
    given = {name: value for name, value in short.items() if value is not None}
    for name in given:
        if name in parameters:
            raise OptionsError(f"--{name} and -p {name}=... are the same parameter; leave one out")
    return parameters | given


def parse_reward_files(texts: list[str] | None) -> str | dict[str, list[str]] | None:
    """One reward file, or files by the names of their structures from NAME=FILE texts."""
    if not texts:
        return None
    if len(texts) == 1 and ("=" not in texts[0] or Path(texts[0]).exists()):
        return texts[0]
    files: dict[str, list[str]] = {}
    for text in texts:
        name, _, file = text.partition("=")
        if not name or not file:
            raise OptionsError(f"--rewards {quote(text)} is one of several without a name; write --rewards NAME=FILE")
        files.setdefault(name, []).append(file)
    return files


def print_store(figures: dict[str, Any], as_json: bool) -> None:
    """Print the contents of a store, or what a virtual one records, as a table or as JSON."""
    from ooc_mdp.report.summaries import print_inspection
    from ooc_mdp.report.terminal import print_line

    if as_json:
        print_json(figures)
        return
    print_inspection(figures)
    if "base" in figures:
        print_line(
            f"rewards of its own for the transitions of {shorten(figures['base'], 1000)}, which are counted above"
        )
    if figures.get("virtual"):
        print_line(f"virtual: computed on demand, by {shorten(figures['provenance']['device'])}")
