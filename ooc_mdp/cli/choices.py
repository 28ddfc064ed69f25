"""Groups of options that a command takes as one object, and shows under a heading of their own in its help.

    @app.command(cls=GroupedCommand)
    @with_choices(SolveChoices, RunChoices)
    def solve(store: TableArgument, choices: SolveChoices, run: RunChoices) -> None: ...

Each field of a group is an option, declared once for all commands that take it. A group makes the options object that
it represents; groups that describe tables are in `table_choices.py`.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperCommand

from ooc_mdp.backends.device_kernels import DEVICE_KERNELS
from ooc_mdp.cli.options import OverwriteOption
from ooc_mdp.criteria import QUESTIONS, asked_criterion
from ooc_mdp.distributed.placement import PLACEMENTS
from ooc_mdp.errors import OptionsError
from ooc_mdp.model.criterion import Criterion, Flag
from ooc_mdp.options import (
    DEFAULT_KERNEL,
    DEFAULT_PLACEMENT,
    DEFAULT_WORKER_TIMEOUT,
    CacheSize,
    ClusterOptions,
    MethodName,
    PriorityName,
    RunOptions,
    SolveOptions,
    Stopping,
    SweepOrder,
    parse_bytes,
)

__all__ = [
    "ClusterChoices",
    "CriterionChoices",
    "GroupedCommand",
    "RunChoices",
    "SolveChoices",
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


class GroupedCommand(TyperCommand):
    """A command whose help lists its options by heading."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """List arguments first, then options without a heading, then each heading in the order of its first option."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                usual = "Arguments" if parameter.param_type_name == "argument" else "Options"
                heading = getattr(parameter, "rich_help_panel", None) or usual
                sections.setdefault(heading, []).append(record)
        for heading, records in sections.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


_TARGET, _METHOD, _MEMORY = "What is proved", "Method", "Memory and device"


def _option_of(flag: Flag) -> tuple[str, Any, Any]:
    """A field of a group, as `dataclasses.make_dataclass` takes it, for the flag of a criterion."""
    if flag.kind is bool:
        return flag.name, Annotated[bool, typer.Option(flag.option, help=flag.help)], False
    return flag.name, Annotated[flag.kind | None, typer.Option(metavar=flag.metavar, help=flag.help)], None


_CriterionFields: Any = dataclasses.make_dataclass(
    "_CriterionFields", [_option_of(flag) for question in QUESTIONS.values() for flag in question.criterion.flags]
)


class CriterionChoices(_CriterionFields):  # type: ignore[misc]
    """What is asked of the table: the flags of all criteria in the registry."""

    heading: ClassVar[str] = "Criterion (one of these)"

    def criterion(self) -> Criterion:
        """The criterion that is asked for."""
        given = {name: value for name, value in vars(self).items() if value is not None and value is not False}
        return asked_criterion(given)


@dataclass(frozen=True, slots=True)
class SolveChoices:
    """What is proved, by which method, in how much memory."""

    heading: ClassVar[str] = _METHOD

    epsilon: Annotated[
        float | None,
        typer.Option(
            help="Prove |V - V*| to be at most this; with --average, half the width of the interval.  [default: 1e-4 "
            "of the value range; an interval of 1e-4 of the reward range]",
            rich_help_panel=_TARGET,
        ),
    ] = None
    residual: Annotated[
        float | None,
        typer.Option(help="Stop at this plain Bellman residual; its bound is printed.", rich_help_panel=_TARGET),
    ] = None
    method: Annotated[
        MethodName,
        typer.Option(
            help="vi: streamed value iteration; p-eva: partitions by priority; policy-iteration: policies evaluated on "
            "rows that are kept; auto: p-eva or policy-iteration, by how partitions depend on each other; with "
            "--resume, the checkpoint's method."
        ),
    ] = "auto"
    priority: Annotated[
        PriorityName | None,
        typer.Option(
            help="Which partition is loaded next; hybrid: h2 between boxes of partitions, h1 within them; exact-: "
            "recomputed from the tables after each visit, as in the thesis.  [default: joint]"
        ),
    ] = None
    sweeps_per_visit: Annotated[int, typer.Option(help="Most sweeps of a visit by vi; more than 1 may save loads.")] = 1
    sweep_order: Annotated[
        SweepOrder,
        typer.Option(help="Order of the states in a sweep on the CPU; voted: by where transitions lead."),
    ] = "voted"
    cache: Annotated[
        str | None,
        typer.Option(
            help="Budget of the partition cache: 1GiB, or 22% of the table.  [default: 256MiB]",
            rich_help_panel=_MEMORY,
        ),
    ] = None
    device_memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Total budget on a CUDA device, such as 8GiB; the cache gets what other buffers leave.",
            rich_help_panel=_MEMORY,
        ),
    ] = None
    device: Annotated[
        str,
        typer.Option(
            help="auto, cpu, cuda:0, cuda:0,1 (several as one), or cuda (all, where that is faster).",
            rich_help_panel=_MEMORY,
        ),
    ] = "auto"
    kernel: Annotated[
        str,
        typer.Option(
            metavar="|".join(DEVICE_KERNELS),
            help="The kernel that sweeps: the device's own engine (the default), or one listed by ooc-mdp kernels.",
            rich_help_panel=_MEMORY,
        ),
    ] = DEFAULT_KERNEL
    stopping: Annotated[
        str | None,
        typer.Option(
            metavar="states:K|blocks:K",
            help="Every K passes of a simple kernel, copy the changes of all states, or each block's largest, to the "
            "host, and end the visit where they are small.",
            rich_help_panel=_MEMORY,
        ),
    ] = None

    def options(self, criterion: Criterion) -> SolveOptions:
        """The options of `api.solve_with`."""
        return SolveOptions(
            criterion,
            epsilon=self.epsilon,
            residual=self.residual,
            method=self.method,
            priority=self.priority,
            sweeps_per_visit=self.sweeps_per_visit,
            cache=None if self.cache is None else CacheSize.parse(self.cache),
            device_memory=None if self.device_memory is None else parse_bytes(self.device_memory),
            device=self.device,
            kernel=self.kernel,
            stopping=None if self.stopping is None else Stopping.parse(self.stopping),
            sweep_order=self.sweep_order,
        )


@dataclass(frozen=True, slots=True)
class RunChoices:
    """Where the result goes, and what ends the solve early."""

    heading: ClassVar[str] = "Output and limits"

    output: Annotated[Path | None, typer.Option(help="Directory of the result, and of checkpoints next to it.")] = None
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the output's checkpoint, or its values.")] = (
        False
    )
    overwrite: OverwriteOption = False
    trace: Annotated[Path | None, typer.Option(help="CSV file for every access to a partition.")] = None
    time_limit: Annotated[
        float | None, typer.Option(help="Seconds until the solve stops with a checkpoint, compilation included.")
    ] = None
    checkpoint_interval: Annotated[float, typer.Option(help="Seconds between checkpoints.")] = 60.0

    def options(self) -> RunOptions:
        """The options of `api.solve_with`."""
        return RunOptions(**dataclasses.asdict(self))


def workers_of(workers: int | None, scheduler: str | None) -> int | str | None:
    """What `workers` of the API is for --workers and --scheduler; raises OptionsError where both are given."""
    if workers is not None and scheduler is not None:
        raise OptionsError("--workers and --scheduler contradict each other; give one of them")
    return workers if scheduler is None else scheduler


@dataclass(frozen=True, slots=True)
class ClusterChoices:
    """How the solve is spread over several workers."""

    heading: ClassVar[str] = "Several workers"

    workers: Annotated[
        int | None,
        typer.Option(
            help="Number of workers on this machine, processes that share its cores; several use no GPU.  "
            "[default: solve in this process]"
        ),
    ] = None
    scheduler: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Solve on the workers of this Dask scheduler, tcp://HOST:8786, each on what --device names there.",
        ),
    ] = None
    placement: Annotated[
        str,
        typer.Option(
            help=f"Which worker starts with which partitions: {', '.join(PLACEMENTS)}. Single: one worker owns all; "
            "auto: single where partitions read most of the others, else blocks."
        ),
    ] = DEFAULT_PLACEMENT
    rebalance: Annotated[
        bool, typer.Option("--rebalance", help="Move dirty partitions to idle workers during the solve.")
    ] = False
    worker_timeout: Annotated[
        float, typer.Option(help="Seconds without an answer after which a worker counts as lost.")
    ] = DEFAULT_WORKER_TIMEOUT
    stage: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Copy each worker's partitions to this directory of its node, a local disk, and load them from there.",
        ),
    ] = None

    def options(self) -> ClusterOptions | None:
        """The options of `api.solve_with`; None to solve in this process."""
        from ooc_mdp import api

        asked = dataclasses.asdict(self)
        workers = workers_of(asked.pop("workers"), asked.pop("scheduler"))
        return api.requested_cluster(ClusterOptions(workers, **asked))
