"""Groups of options that describe a table: its source or problem, its partitions, and what computes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import typer

from ooc_mdp.cli.choices import workers_of
from ooc_mdp.cli.tables import parse_parameters, parse_reward_files, parse_shape
from ooc_mdp.io.registry import FORMAT_NAMES

__all__ = ["ExecutorChoices", "PartitionChoices", "ProblemChoices", "SourceChoices"]


@dataclass(frozen=True)
class SourceChoices:
    """What a model file contains, where the file leaves a choice."""

    heading: ClassVar[str] = "Source"

    format: Annotated[
        str | None,
        typer.Option(help=f"{', '.join(FORMAT_NAMES)}.  [default: recognised from the contents]"),
    ] = None
    rewards: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]FILE",
            help="Reward file of a transition list or .tra file; of a .tra also several, each with the name of its "
            "reward structure.",
        ),
    ] = None
    reward_model: Annotated[
        str | None, typer.Option(help="Name of the reward structure, where the source has several.")
    ] = None
    normalize: Annotated[
        bool, typer.Option("--normalize", help="Divide rows by their sums instead of refusing those off 1.")
    ] = False
    grid: Annotated[str | None, typer.Option(help="Points along each axis, such as 100,200, in C order.")] = None

    def keywords(self) -> dict[str, Any]:
        """Keyword arguments of `api.convert`."""
        return {
            "format": self.format,
            "rewards": parse_reward_files(self.rewards),
            "reward_model": self.reward_model,
            "normalize": self.normalize,
            "grid": parse_shape(self.grid, "--grid"),
        }


@dataclass(frozen=True)
class PartitionChoices:
    """How the states are divided into partitions, and the type of the numbers."""

    heading: ClassVar[str] = "Partitions"

    sense: Annotated[
        Literal["max", "min"] | None, typer.Option(help="Maximise (the default for files) or minimise.")
    ] = None
    partitioner: Annotated[
        Literal["ranges", "grid", "metis"] | None,
        typer.Option(help="Consecutive states, blocks of a grid, or METIS (holds the state graph in memory)."),
    ] = None
    partition_size: Annotated[
        str | None,
        typer.Option(help="Decoded bytes of a partition, such as 64MiB.  [default: 1/256 of the table, at most 64MiB]"),
    ] = None
    partitions: Annotated[int | None, typer.Option(help="Number of partitions, instead of a size.")] = None
    partition_grid: Annotated[
        str | None, typer.Option(help="Partitions along each axis of a grid, such as 30,30, instead of a size.")
    ] = None
    partition_shape: Annotated[
        str | None, typer.Option(help="Points of a partition along each axis, such as 10,10, instead of a size.")
    ] = None
    dtype: Annotated[
        Literal["float32", "float64"] | None,
        typer.Option(help="Type of probabilities and rewards.  [default: the problem's own; float64 for a file]"),
    ] = None

    def keywords(self) -> dict[str, Any]:
        """Keyword arguments of `api.convert` and `api.generate`."""
        return {
            "sense": self.sense,
            "partitioner": self.partitioner,
            "partition_size": self.partition_size,
            "partitions": self.partitions,
            "partition_grid": parse_shape(self.partition_grid, "--partition-grid"),
            "partition_shape": parse_shape(self.partition_shape, "--partition-shape"),
            "dtype": self.dtype,
        }


@dataclass(frozen=True)
class ProblemChoices:
    """The parameters of a generated problem, with short options for the usual ones."""

    heading: ClassVar[str] = "Problem"

    parameter: Annotated[
        list[str] | None,
        typer.Option("--parameter", "-p", metavar="NAME=VALUE", help="A parameter of the problem; repeat for more."),
    ] = None
    grid: Annotated[str | None, typer.Option(help="Short for -p grid=100,200: points along each axis.")] = None
    seed: Annotated[int | None, typer.Option(help="Short for -p seed=N.")] = None
    scramble: Annotated[float | None, typer.Option(help="Short for -p scramble=SHARE, 0 to 0.5.")] = None
    states: Annotated[int | None, typer.Option(help="Short for -p states=N (random).")] = None
    actions: Annotated[int | None, typer.Option(help="Short for -p actions=N (random).")] = None
    successors: Annotated[int | None, typer.Option(help="Short for -p successors=N.")] = None

    def parameters(self) -> dict[str, str | int | float]:
        """The parameters by name."""
        return parse_parameters(
            self.parameter,
            seed=self.seed,
            scramble=self.scramble,
            states=self.states,
            actions=self.actions,
            successors=self.successors,
            grid=self.grid,
        )


@dataclass(frozen=True)
class ExecutorChoices:
    """What computes and writes partitions."""

    heading: ClassVar[str] = "Threads and workers"

    threads: Annotated[
        int | None, typer.Option(help="Threads of this process that parse, compute and write.  [default: all cores]")
    ] = None
    workers: Annotated[
        int | None, typer.Option(help="Processes of this machine that compute and write, instead of threads.")
    ] = None
    scheduler: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="Compute and write on the workers of this Dask scheduler, tcp://HOST:8786."
        ),
    ] = None

    def keywords(self) -> dict[str, Any]:
        """Keyword arguments of `api.convert` and `api.generate`."""
        return {"threads": self.threads, "workers": workers_of(self.workers, self.scheduler)}
