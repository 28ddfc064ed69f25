"""Arguments and options that several commands share: names, types and help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

StoreArgument = Annotated[Path, typer.Argument(metavar="STORE", help="Store directory.")]
ModelArgument = Annotated[Path, typer.Argument(metavar="STORE", help="Store directory, or a model file.")]
TrustOption = Annotated[
    bool, typer.Option("--trust", help="Execute the file that a virtual store names, if it is unchanged since.")
]
PolicyOption = Annotated[
    str | None,
    typer.Option(
        metavar="RESULT|FILE.npy",
        help="Evaluate this policy in place of solving for the best one: the policy of a result, or a .npy file with "
        "an action for each state. What is proved bounds its value.",
    ),
]
InitialOption = Annotated[
    Path | None,
    typer.Option(
        metavar="RESULT|FILE.npy",
        help="Begin from these values: of a result of as many states or of another grid of the same axes, or of a .npy "
        "file. What is proved does not depend on them.",
    ),
]
GridsOption = Annotated[
    int,
    typer.Option(
        metavar="N",
        help="Solve N grids of a control problem, each with twice as many points along each axis and begun from the "
        "solution of the one before; the last is the store's.",
    ),
]
OverwriteOption = Annotated[
    bool, typer.Option("--overwrite", help="Replace an existing output by the complete new one.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
