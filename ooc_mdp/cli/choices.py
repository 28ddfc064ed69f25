"""Groups of options that a command takes as one object, and shows under a heading of their own in its help.

    @app.command(cls=GroupedCommand)
    @with_choices(CriterionChoices, SolveChoices)
    def solve(store: TableArgument, asked: CriterionChoices, choices: SolveChoices) -> None: ...

Each field of a group is an option. The options of criteria and solves are declared there (`Criterion.flags`, and the
fields of `ooc_mdp.options`); groups that describe tables are in `table_choices.py`.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

import typer

from ooc_mdp.backends.device_kernels import DEVICE_KERNELS
from ooc_mdp.cli.help_pages import GroupedCommand
from ooc_mdp.criteria import QUESTIONS, asked_criterion
from ooc_mdp.distributed.placement import PLACEMENTS
from ooc_mdp.errors import OptionsError
from ooc_mdp.model.criterion import Criterion
from ooc_mdp.option_fields import options_in
from ooc_mdp.options import ClusterOptions, RunOptions, SolveOptions, solve_options

__all__ = [
    "CriterionChoices",
    "GroupedCommand",
    "SolveChoices",
    "option_field",
    "option_fields",
    "with_choices",
    "workers_of",
]

Command = Callable[..., None]


def with_choices(*groups: type[Any]) -> Callable[[Command], Command]:
    """Add the fields of the groups to a command as options; its parameters of a group's type receive the objects."""

    def decorate(command: Command) -> Command:
        hints = typing.get_type_hints(command, include_extras=True)
        own = inspect.signature(command).parameters
        grouped = {name: hints[name] for name in own if hints[name] in groups}

        @functools.wraps(command)
        def call(**given: Any) -> None:
            made = {
                name: group(**{field.name: given.pop(field.name) for field in dataclasses.fields(group)})
                for name, group in grouped.items()
            }
            command(**given, **made)

        parameters = [own[name].replace(annotation=hints[name]) for name in own if name not in grouped]
        for group in groups:
            parameters += _parameters_of(group)
        keyword = inspect.Parameter.KEYWORD_ONLY
        signature = inspect.Signature([parameter.replace(kind=keyword) for parameter in parameters])
        vars(call)["__signature__"] = signature
        call.__annotations__ = {name: parameter.annotation for name, parameter in signature.parameters.items()}
        del vars(call)["__wrapped__"]
        return call

    return decorate


def _parameters_of(group: type[Any]) -> list[inspect.Parameter]:
    """A parameter for each field of a group, under the field's own heading or else the group's."""
    parameters = []
    for field in dataclasses.fields(group):
        annotation = typing.get_type_hints(group, include_extras=True)[field.name]
        kind, shared = typing.get_args(annotation)
        option = copy.copy(shared)
        option.rich_help_panel = option.rich_help_panel or group.heading
        parameters.append(
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=Annotated[kind, option],
            )
        )
    return parameters


def option_field(
    name: str, parsed: Any, default: Any, help: str, *, heading: str | None = None, metavar: str | None = None
) -> tuple[str, Any, Any]:
    """A field of a group, as `dataclasses.make_dataclass` takes it, for an option that is declared elsewhere.

    Parameters
    ----------
    parsed : the type that is parsed; an option of type bool takes no value.
    """
    written = [f"--{name.replace('_', '-')}"] if parsed is bool else []
    option = typer.Option(*written, help=help, metavar=metavar, rich_help_panel=heading)
    return name, Annotated[parsed if default is not None else parsed | None, option], default


def option_fields(
    *classes: Any,
    only: Collection[str] | None = None,
    words: Mapping[str, Iterable[str]] = MappingProxyType({}),
    heading: str | None = None,
) -> list[tuple[str, Any, Any]]:
    """The fields of a group for the options that some dataclasses declare (`ooc_mdp.option_fields`).

    Parameters
    ----------
    only : names of the options that the group has; None for all.
    words : of options whose values are registered elsewhere, by name.
    heading : for all of them; None for each option's own.
    """
    return [
        option_field(
            each.name,
            each.takes.parsed,
            each.default,
            each.help,
            heading=heading or each.heading,
            metavar="|".join(words[each.name]) if each.name in words else each.metavar,
        )
        for each in options_in(*classes)
        if only is None or each.name in only
    ]


_CriterionFields: Any = dataclasses.make_dataclass(
    "_CriterionFields",
    [
        option_field(flag.name, flag.kind, False if flag.kind is bool else None, flag.help, metavar=flag.metavar)
        for question in QUESTIONS.values()
        for flag in question.criterion.flags
    ],
)


class CriterionChoices(_CriterionFields):  # type: ignore[misc]
    """What is asked of the table: the flags of all criteria in the registry."""

    heading: ClassVar[str] = "Criterion (one of these)"

    def criterion(self) -> Criterion:
        """The criterion that is asked for."""
        given = {name: value for name, value in vars(self).items() if value is not None and value is not False}
        return asked_criterion(given)


def workers_of(workers: int | None, scheduler: str | None) -> int | str | None:
    """What `workers` of the API is for --workers and --scheduler; raises OptionsError where both are given."""
    if workers is not None and scheduler is not None:
        raise OptionsError("--workers and --scheduler contradict each other; give one of them")
    return workers if scheduler is None else scheduler


_SolveFields: Any = dataclasses.make_dataclass(
    "_SolveFields",
    [
        *option_fields(
            SolveOptions, RunOptions, ClusterOptions, words={"kernel": DEVICE_KERNELS, "placement": PLACEMENTS}
        ),
        option_field(
            "scheduler",
            str,
            None,
            "Solve on the workers of this Dask scheduler, tcp://HOST:8786, each on what --device names there.",
            heading=ClusterOptions.heading,
            metavar="ADDRESS",
        ),
    ],
)


class SolveChoices(_SolveFields):  # type: ignore[misc]
    """Everything that a solve takes beside its criterion."""

    heading: ClassVar[str] = SolveOptions.heading

    def options(self, criterion: Criterion) -> tuple[SolveOptions, RunOptions, ClusterOptions | None]:
        """The options of `api.solve_with`."""
        given = {**vars(self), "workers": workers_of(self.workers, self.scheduler)}
        return solve_options(criterion, given)
