"""Arguments and options that several commands share: words, types and help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

Sense = Literal["max", "min"]
Partitioner = Literal["ranges", "grid", "metis"]
Dtype = Literal["float32", "float64"]
ControllerName = Literal["lookahead", "vote", "nearest"]
"""The kinds of `ooc_mdp.simulation.Controller`."""

StoreArgument = Annotated[Path, typer.Argument(metavar="STORE", help="Store directory.")]
TableArgument = Annotated[
    Path,
    typer.Argument(
        metavar="STORE", help="Store directory, or problem:NAME (problem:FILE.py): its table is computed on demand."
    ),
]
SenseOption = Annotated[Sense | None, typer.Option(help="Maximise (the default for files) or minimise.")]
PartitionerOption = Annotated[
    Partitioner | None,
    typer.Option(help="Consecutive states, blocks of a grid, or METIS (holds the state graph in memory)."),
]
PartitionSizeOption = Annotated[
    str | None,
    typer.Option(help="Decoded bytes of a partition, such as 64MiB.  [default: 1/256 of the table, at most 64MiB]"),
]
PartitionsOption = Annotated[int | None, typer.Option(help="Number of partitions, instead of a size.")]
BlocksOption = Annotated[
    str | None, typer.Option(help="Partitions along each axis of a grid, such as 30,30, instead of a size.")
]
BlockShapeOption = Annotated[
    str | None, typer.Option(help="Points of a partition along each axis, such as 10,10, instead of a size.")
]
ThreadsOption = Annotated[
    int | None, typer.Option(help="Threads of this process that parse, compute and write.  [default: all cores]")
]
WritersOption = Annotated[
    int | None, typer.Option("--workers", help="Processes of this machine that compute and write, instead of threads.")
]
SchedulerOption = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="Compute and write on the workers of this Dask scheduler, tcp://HOST:8786."),
]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace what is there, once the new is whole.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
