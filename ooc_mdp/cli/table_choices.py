"""Groups of options that describe a table: its source or problem, its partitions, and what computes them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import typer

from ooc_mdp.cli.choices import option_field, option_fields, workers_of
from ooc_mdp.cli.tables import parse_parameters, parse_reward_files
from ooc_mdp.io.registry import FORMAT_NAMES
from ooc_mdp.table_options import ConvertOptions

__all__ = ["ProblemChoices", "SourceChoices", "TableChoices"]


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
        return vars(self) | {"rewards": parse_reward_files(self.rewards)}


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


_THREADS = "Threads and workers"
_TableFields: Any = dataclasses.make_dataclass(
    "_TableFields",
    [
        *option_fields(ConvertOptions),
        option_field(
            "workers",
            int,
            None,
            "Processes of this machine that compute and write, instead of threads.",
            heading=_THREADS,
        ),
        option_field(
            "scheduler",
            str,
            None,
            "Compute and write on the workers of this Dask scheduler, tcp://HOST:8786.",
            heading=_THREADS,
            metavar="ADDRESS",
        ),
    ],
)


class TableChoices(_TableFields):  # type: ignore[misc]
    """How the states are divided into partitions, the type of the numbers, and what computes and writes them."""

    heading: ClassVar[str] = ConvertOptions.heading

    def keywords(self) -> dict[str, Any]:
        """Keyword arguments of `api.convert` and `api.generate`."""
        given = dict(vars(self))
        workers = workers_of(given.pop("workers"), given.pop("scheduler"))
        return {**given, "workers": workers}
