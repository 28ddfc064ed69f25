"""Arguments and options that several commands share: names, types and help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

ControllerName = Literal["lookahead", "vote", "nearest"]
"""The kinds of `ooc_mdp.simulation.Controller`."""

StoreArgument = Annotated[Path, typer.Argument(metavar="STORE", help="Store directory.")]
TableArgument = Annotated[
    Path,
    typer.Argument(
        metavar="STORE", help="Store directory, or problem:NAME (problem:FILE.py): its table is computed on demand."
    ),
]
OverwriteOption = Annotated[
    bool, typer.Option("--overwrite", help="Replace an existing output by the complete new one.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
