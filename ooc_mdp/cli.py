"""The command line: options in, one call of the Python interface, figures out.

Exit status: 0 when the work is done and, for solve, the bound is proved; 1 when it was stopped early or a check
failed; 2 for bad input or options, a full disk or too little memory. Errors go to stderr as one short message, never
as a traceback.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import threading
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from ooc_mdp.errors import OocMdpError, OptionsError

if TYPE_CHECKING:
    from ooc_mdp.table_source import TableSource

__all__ = ["app", "main"]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Solve Markov decision processes whose transition tables are larger than memory, to a proved error.",
)


class Sense(StrEnum):
    """Direction of the objective."""

    MAX = "max"
    MIN = "min"


class Partitioner(StrEnum):
    """How states are gathered into partitions."""

    RANGES = "ranges"
    GRID = "grid"
    METIS = "metis"


class Dtype(StrEnum):
    """Stored type of probabilities and rewards."""

    FLOAT32 = "float32"
    FLOAT64 = "float64"


class Method(StrEnum):
    """Solution methods."""

    VI = "vi"
    P_EVA = "p-eva"


class PriorityName(StrEnum):
    """Priority metrics."""

    JOINT = "joint"
    H1 = "h1"
    H2 = "h2"


class SweepOrderName(StrEnum):
    """Orders of the states in a sweep."""

    FORWARD = "forward"
    ALTERNATING = "alternating"
    VOTED = "voted"


class PolicyName(StrEnum):
    """How a policy is taken from the grid to states between its points."""

    LOOKAHEAD = "lookahead"
    VOTE = "vote"
    NEAREST = "nearest"


StoreArgument = Annotated[Path, typer.Argument(metavar="STORE", help="Store directory.")]
TableArgument = Annotated[
    Path,
    typer.Argument(
        metavar="STORE", help="Store directory, or problem:NAME (problem:FILE.py): its table is computed on demand."
    ),
]
ParameterOption = Annotated[
    list[str] | None,
    typer.Option("--parameter", "-p", metavar="NAME=VALUE", help="A parameter of the problem; repeat for more."),
]
ProblemGridOption = Annotated[
    str | None, typer.Option("--grid", help="Points along each axis of problem:NAME; short for -p grid=...")
]
ProblemDtypeOption = Annotated[
    Dtype | None, typer.Option(help="Type of probabilities and rewards of problem:NAME.  [default: the problem's own]")
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
WorkersOption = Annotated[int | None, typer.Option(help="Threads.  [default: the number of cores]")]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Replace what is there, once the new is whole.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]


def _print_json(figures: dict[str, Any]) -> None:
    print(json.dumps(figures, default=str))


def _shape(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(n) for n in text.replace("x", ",").split(","))
    except ValueError:
        raise OptionsError(f"--grid {text!r} is no shape; write for example --grid 100,200") from None


def _parameters(texts: list[str] | None) -> dict[str, str | int | float]:
    """Parameters of a problem from NAME=VALUE texts."""
    parameters: dict[str, str | int | float] = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not equals:
            raise OptionsError(f"--parameter {text!r} has no value; write NAME=VALUE")
        parameters[name] = value
    return parameters


def _open_table(table: Path, parameter: list[str] | None, grid: str | None, device: str, **options: Any) -> TableSource:
    """The store at a path, or the problem behind ``problem:NAME`` after its first pass.

    Raises
    ------
    OptionsError : options of a problem for a store, whose table is what it is.
    """
    from ooc_mdp import api
    from ooc_mdp.report.terminal import WorkBar

    name = api.problem_name(table)
    if name is None:
        given = {"-p": parameter or None, "--grid": grid, **{f"--{k.replace('_', '-')}": v for k, v in options.items()}}
        said = [option for option, value in given.items() if value is not None]
        if said:
            raise OptionsError(
                f"{', '.join(said)} belong to problem:NAME, but {table} is a store, whose table is made: leave them "
                f"out, generate another store, or name the problem (problem:mountain-car) to have it recomputed"
            )
        return api.open_store(table)
    parameters = _parameters(parameter)
    if grid is not None:
        if "grid" in parameters:
            raise OptionsError("--grid and -p grid=... say the same; leave one out")
        parameters["grid"] = grid

    def note(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    with WorkBar() as bar:
        opened = api.open_problem(name, parameters, **options, device=device, progress=bar, note=note)
    note(
        f"{opened.name}: {opened.n_partitions} partitions computed once in {opened.first_pass_seconds:.1f} s; none is "
        f"stored, each is computed again when it is needed"
    )
    return opened


def _print_store(store: Any, as_json: bool) -> None:
    from ooc_mdp.report.terminal import print_inspection
    from ooc_mdp.store.inspect import inspect_store

    facts = inspect_store(store)
    if as_json:
        _print_json(facts)
    else:
        print_inspection(facts)


@app.command()
def convert(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="Model file, matrix folder or gymnasium:ENV-ID.")],
    store: StoreArgument,
    format: Annotated[
        str | None,
        typer.Option(
            help="johannsson, johannsson-xml, transition-list, prism, drn, umb, arrays, mdptoolbox or gymnasium.  "
            "[default: seen from the contents]"
        ),
    ] = None,
    rewards: Annotated[Path | None, typer.Option(help="Reward file of a transition list or .tra file.")] = None,
    reward_model: Annotated[str | None, typer.Option(help="Reward structure to take, where there are several.")] = None,
    renormalise: Annotated[
        bool, typer.Option("--renormalise", help="Divide rows by their sums instead of refusing those off 1.")
    ] = False,
    sense: SenseOption = None,
    partitioner: PartitionerOption = None,
    partition_size: PartitionSizeOption = None,
    partitions: PartitionsOption = None,
    grid: Annotated[str | None, typer.Option(help="Points along each axis, such as 100,200, in C order.")] = None,
    dtype: Annotated[Dtype, typer.Option(help="Stored type of probabilities and rewards.")] = Dtype.FLOAT64,
    workers: WorkersOption = None,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Build a store from a model file, in bounded memory."""
    from ooc_mdp import api
    from ooc_mdp.report.terminal import WorkBar

    with WorkBar() as bar:
        built = api.convert(
            source,
            store,
            format=format,
            rewards=rewards,
            reward_model=reward_model,
            renormalise=renormalise,
            sense=cast(Literal["max", "min"] | None, sense and sense.value),
            partitioner=cast(Literal["ranges", "grid", "metis"] | None, partitioner and partitioner.value),
            partition_size=partition_size,
            partitions=partitions,
            grid=_shape(grid),
            dtype=dtype.value,
            workers=workers,
            overwrite=overwrite,
            progress=bar,
        )
    _print_store(built, as_json)


@app.command()
def generate(
    problem: Annotated[str, typer.Argument(metavar="PROBLEM", help="GW-1024x4, QK-500, gridworld, random, ...")],
    store: StoreArgument,
    parameter: ParameterOption = None,
    seed: Annotated[int | None, typer.Option(help="Short for -p seed=N.")] = None,
    scramble: Annotated[float | None, typer.Option(help="Short for -p scramble=SHARE, 0 to 0.5.")] = None,
    states: Annotated[int | None, typer.Option(help="Short for -p states=N (random).")] = None,
    actions: Annotated[int | None, typer.Option(help="Short for -p actions=N (random).")] = None,
    successors: Annotated[int | None, typer.Option(help="Short for -p successors=N.")] = None,
    grid: Annotated[str | None, typer.Option(help="Short for -p grid=100,200: points along each axis.")] = None,
    sense: SenseOption = None,
    partitioner: PartitionerOption = None,
    partition_size: PartitionSizeOption = None,
    partitions: PartitionsOption = None,
    blocks: BlocksOption = None,
    block_shape: BlockShapeOption = None,
    dtype: Annotated[
        Dtype | None, typer.Option(help="Stored type of probabilities and rewards.  [default: the problem's own]")
    ] = None,
    workers: WorkersOption = None,
    device: Annotated[str, typer.Option(help="What computes a control problem's rows: auto, cpu or cuda:0.")] = "auto",
    overwrite: OverwriteOption = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where the same command was stopped or killed.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Build the store of a generated problem, partition by partition, of any size."""
    from ooc_mdp import api
    from ooc_mdp.report.terminal import WorkBar

    parameters = _parameters(parameter)
    short = {
        "seed": seed,
        "scramble": scramble,
        "states": states,
        "actions": actions,
        "successors": successors,
        "grid": grid,
    }
    parameters |= {name: given for name, given in short.items() if given is not None}
    with WorkBar() as bar:
        built = api.generate(
            problem,
            store,
            parameters,
            sense=cast(Literal["max", "min"] | None, sense and sense.value),
            partitioner=cast(Literal["ranges", "grid", "metis"] | None, partitioner and partitioner.value),
            partition_size=partition_size,
            partitions=partitions,
            blocks=_shape(blocks),
            block_shape=_shape(block_shape),
            dtype=cast(Literal["float32", "float64"] | None, dtype and dtype.value),
            workers=workers,
            overwrite=overwrite,
            resume=resume,
            device=device,
            progress=bar,
            note=lambda text: print(text, file=sys.stderr, flush=True),
        )
    _print_store(built, as_json)


@app.command()
def solve(
    store: TableArgument,
    discount: Annotated[float, typer.Option(help="Discount a step (or a unit of duration), at least 0, below 1.")],
    epsilon: Annotated[
        float | None,
        typer.Option(help="Prove |V - V*| to be at most this.  [default: 1e-4 of the value range]"),
    ] = None,
    residual: Annotated[
        float | None, typer.Option(help="Stop at this plain Bellman residual instead; says what it proves.")
    ] = None,
    method: Annotated[Method, typer.Option(help="Streamed value iteration, or partitions by priority.")] = Method.P_EVA,
    priority: Annotated[
        PriorityName | None,
        typer.Option(help="Which partition next: joint, or Wingate's.  [default: joint; h2 with --exact-priorities]"),
    ] = None,
    exact_priorities: Annotated[
        bool,
        typer.Option("--exact-priorities", help="Recompute priorities from the tables, as in the thesis."),
    ] = False,
    sweeps: Annotated[int, typer.Option(help="Most sweeps of a visit by vi; more than 1 saves loads.")] = 1,
    cache: Annotated[str, typer.Option(help="Budget of the partition cache: 256MiB, or 22% of the table.")] = "256MiB",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda:0.")] = "auto",
    sweep_order: Annotated[
        SweepOrderName,
        typer.Option(help="Order of the states in a sweep on the CPU; voted: by where transitions lead."),
    ] = SweepOrderName.VOTED,
    output: Annotated[Path | None, typer.Option(help="Where the result is kept; checkpoints lie beside it.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the output's checkpoint.")] = False,
    overwrite: OverwriteOption = False,
    trace: Annotated[Path | None, typer.Option(help="CSV file that gets every access to a partition.")] = None,
    time_limit: Annotated[float | None, typer.Option(help="Stop after so many seconds, with a checkpoint.")] = None,
    checkpoint_interval: Annotated[float, typer.Option(help="Seconds between checkpoints.")] = 60.0,
    parameter: ParameterOption = None,
    grid: ProblemGridOption = None,
    sense: SenseOption = None,
    partitioner: PartitionerOption = None,
    partition_size: PartitionSizeOption = None,
    partitions: PartitionsOption = None,
    blocks: BlocksOption = None,
    block_shape: BlockShapeOption = None,
    dtype: ProblemDtypeOption = None,
    workers: WorkersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Solve the MDP of a store, through a partition cache of bounded size, to a proved error.

    With problem:NAME in place of the store nothing is stored: each partition is computed when it is needed, and the
    options -p, --grid, --sense, --partitioner, --partition-size, --partitions, --blocks, --block-shape, --dtype and
    --workers are those of generate.
    """
    from ooc_mdp.memory_plan import MemoryPlan
    from ooc_mdp.methods.solver import solve as solve_store
    from ooc_mdp.options import CacheSize, SolveOptions
    from ooc_mdp.report.terminal import SolveLine, print_solution

    options = SolveOptions(
        discount=discount,
        epsilon=epsilon,
        residual=residual,
        method=method.value,
        priority=cast(Literal["joint", "h1", "h2"] | None, priority and priority.value),
        exact_priorities=exact_priorities,
        sweeps=sweeps,
        cache=CacheSize.parse(cache),
        device=device,
        sweep_order=sweep_order.value,
        time_limit=time_limit,
        checkpoint_interval=checkpoint_interval,
    )
    if resume and output is None:
        raise OptionsError("--resume needs --output: the checkpoint lies beside it")

    def announce(plan: MemoryPlan) -> None:
        note(plan.describe())

    def note(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    table = _open_table(
        store,
        parameter,
        grid,
        device,
        sense=sense and sense.value,
        partitioner=partitioner and partitioner.value,
        partition_size=partition_size,
        partitions=partitions,
        blocks=_shape(blocks),
        block_shape=_shape(block_shape),
        dtype=dtype and dtype.value,
        workers=workers,
    )
    with SolveLine() as line:
        solution = solve_store(
            table,
            options,
            output=output,
            resume=resume,
            overwrite=overwrite,
            trace=trace,
            watch=line,
            announce=announce,
            note=note,
        )
    figures = solution.summary()
    if as_json:
        _print_json(figures)
    else:
        print_solution(figures, solution.outcome, output)
    if not solution.outcome.proved:
        raise typer.Exit(1)


@app.command()
def inspect(store: StoreArgument, as_json: JsonOption = False) -> None:
    """Say what a store holds: sizes, partitions, compression by field, halo, cut and provenance."""
    from ooc_mdp import api

    _print_store(api.open_store(store), as_json)


@app.command()
def validate(store: StoreArgument, as_json: JsonOption = False) -> None:
    """Check every chunk of a store: checksums, row sums, indices, coupling. Exit status 1 if anything is wrong."""
    from ooc_mdp import api
    from ooc_mdp.report.terminal import WorkBar
    from ooc_mdp.store.validate import validate_store

    opened = api.open_store(store)
    with WorkBar() as bar:
        report = validate_store(opened, bar)
    if as_json:
        findings = [{"field": f.field, "partition": f.partition, "message": f.message} for f in report.findings]
        _print_json({"valid": report.valid, "partitions": report.partitions, "findings": findings})
    else:
        for finding in report.findings:
            print(finding)
        print(f"{store}: {report.partitions} partitions checked, {len(report.findings)} findings")
    if not report.valid:
        raise typer.Exit(1)


@app.command()
def verify(
    store: TableArgument,
    result: Annotated[Path, typer.Argument(metavar="RESULT", help="Result directory of a solve.")],
    parameter: ParameterOption = None,
    grid: ProblemGridOption = None,
    sense: SenseOption = None,
    partitioner: PartitionerOption = None,
    partition_size: PartitionSizeOption = None,
    partitions: PartitionsOption = None,
    blocks: BlocksOption = None,
    block_shape: BlockShapeOption = None,
    dtype: ProblemDtypeOption = None,
    workers: WorkersOption = None,
    device: Annotated[str, typer.Option(help="What computes the rows of problem:NAME: auto, cpu or cuda:0.")] = "auto",
    as_json: JsonOption = False,
) -> None:
    """Stream the whole table once and measure the true residual of a result. Exit status 1 if its claim fails.

    A result of problem:NAME is verified with the options that it was solved with.
    """
    from ooc_mdp import api
    from ooc_mdp.report.terminal import WorkBar, print_verification

    table = _open_table(
        store,
        parameter,
        grid,
        device,
        sense=sense and sense.value,
        partitioner=partitioner and partitioner.value,
        partition_size=partition_size,
        partitions=partitions,
        blocks=_shape(blocks),
        block_shape=_shape(block_shape),
        dtype=dtype and dtype.value,
        workers=workers,
    )
    with WorkBar() as bar:
        found = api.verify(table, result, progress=bar)
    if as_json:
        _print_json(found.summary())
    else:
        print_verification(found.summary())
    if not found.holds:
        raise typer.Exit(1)


@app.command()
def export(
    result: Annotated[Path, typer.Argument(metavar="RESULT", help="Result directory of a solve.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="values.npy, solution.npz or solution.csv.")],
    overwrite: OverwriteOption = False,
) -> None:
    """Write values and policy, in the source's state order, for other programs."""
    from ooc_mdp import api
    from ooc_mdp.methods.results import export_result

    export_result(api.open_result(result), file, overwrite=overwrite)
    print(file)


@app.command("cache-curve")
def cache_curve(
    traces: Annotated[list[Path], typer.Argument(metavar="TRACE...", help="Files that solve --trace wrote.")],
    sizes: Annotated[
        str, typer.Option(help="Cache sizes of the table, in partitions or as shares of them.")
    ] = "5%,10%,22%,50%,100%",
    policy: Annotated[
        str, typer.Option(help="Which partition goes: lru, priority (the lowest), optimum (needed again last).")
    ] = "lru,priority,optimum",
    frontier_only: Annotated[
        bool | None,
        typer.Option(
            "--frontier-only/--all", help="Leave auxiliary accesses out, or count them.  [default: show both]"
        ),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Count each access; else those that follow each other are one visit.")
    ] = False,
    labels: Annotated[str | None, typer.Option(help="A name for each trace, with commas between.")] = None,
    csv: Annotated[Path | None, typer.Option(help="CSV file that gets every size of every curve.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Plot of all traces: .png, .svg or .pdf.")] = None,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Say from a trace what every cache size would have hit and loaded, and where more cache stops to pay.

    Exact for any cache size where the order of accesses does not depend on the cache: traces of vi and of
    --exact-priorities. p-eva as it is by default takes resident partitions first; for its traces the curves say what
    other caches would have made of that one sequence.
    """
    from ooc_mdp.report import cache_plot, cache_report
    from ooc_mdp.report.files import check_output_file

    shown, policies = cache_report.parse_sizes(sizes), cache_report.parse_policies(policy)
    outputs = [file for file in (csv, plot) if file is not None]
    for file in outputs:
        check_output_file(file, overwrite=overwrite, sources=[*traces, *(o for o in outputs if o is not file)])
    if plot is not None:
        cache_plot.check_plot(plot, len(traces))
    curves = cache_report.curves_of_traces(
        traces,
        policies=policies,
        scopes=None if frontier_only is None else ("frontier",) if frontier_only else ("all",),
        raw=raw,
        labels=None if labels is None else [label.strip() for label in labels.split(",")],
    )
    figures = cache_report.figures_of(curves, shown)
    if csv is not None:
        cache_report.write_cache_curves(curves, csv, overwrite=overwrite)
    if plot is not None:
        cache_plot.plot_cache_curves(curves, plot, overwrite=overwrite)
    for each in curves:
        for sentence in cache_report.notes_on(each):
            print(sentence, file=sys.stderr)
    if as_json:
        _print_json(figures)
    else:
        cache_report.print_cache_curves(curves, shown)


@app.command()
def simulate(
    result: Annotated[Path, typer.Argument(metavar="RESULT", help="Result directory of a solved control problem.")],
    start: Annotated[
        list[str] | None,
        typer.Option(help="A start, such as 0.1,-2 or rest; repeat for more.  [default: rest, where there is one]"),
    ] = None,
    starts: Annotated[int | None, typer.Option(help="So many random starts, uniform over the axes.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random starts.")] = 1,
    seconds: Annotated[float, typer.Option(help="Longest run, in the problem's unit of time.")] = 20.0,
    policy: Annotated[
        PolicyName, typer.Option(help="Plans weighed by interpolated values, or stored actions: vote, nearest.")
    ] = PolicyName.LOOKAHEAD,
    depth: Annotated[int, typer.Option(help="Controls in turn of a plan (lookahead).")] = 4,
    period: Annotated[
        float | None, typer.Option(help="Time between decisions.  [default: the crossing of two cells]")
    ] = None,
    keep: Annotated[float, typer.Option(help="The goal must be held for this last part of a run.")] = 5.0,
    past_end: Annotated[
        bool, typer.Option("--past-end", help="Go on where the problem ends inside its axes, to see what holds.")
    ] = False,
    problem: Annotated[
        str | None, typer.Option(metavar="FILE.py", help="The problem's file, where it has moved.")
    ] = None,
    csv: Annotated[Path | None, typer.Option(help="CSV file that gets every sample.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Plot of all runs: .png, .svg or .pdf.")] = None,
    animation: Annotated[Path | None, typer.Option(help="Animation of the first run: .gif or .mp4.")] = None,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run a control problem's continuous dynamics under the policy of a result; say whether the goal is reached.

    Exit status 1 where no start succeeds.
    """
    from ooc_mdp import api
    from ooc_mdp.report import animation as animations
    from ooc_mdp.report import trajectory_plot as plots
    from ooc_mdp.report import trajectory_table as tables
    from ooc_mdp.report.files import check_output_file
    from ooc_mdp.simulation import PolicyKind, SimulationOptions, problem_of

    options = SimulationOptions(
        seconds=seconds,
        policy=PolicyKind(policy.value),
        depth=depth,
        period=period or 0.0,
        keep=keep,
        past_end=past_end,
    )
    opened = api.open_result(result)
    discretised = problem_of(opened, problem, note=lambda text: print(text, file=sys.stderr))
    outputs = [file for file in (csv, plot, animation) if file is not None]
    for file in outputs:
        check_output_file(file, overwrite=overwrite, sources=[o for o in outputs if o is not file])
    if plot is not None:
        plots.check_trajectory_plot(plot)
    if animation is not None:
        animations.check_animation(animation, discretised.problem, seconds)
    simulation = api.simulate(opened, start or [], random=starts, seed=seed, options=options, problem=discretised)
    if csv is not None:
        tables.write_trajectories(simulation, csv, overwrite=overwrite)
    if plot is not None:
        plots.plot_trajectories(simulation, opened.solution.values, plot, overwrite=overwrite)
    if animation is not None:
        animations.animate(simulation, animation, overwrite=overwrite)
    if as_json:
        _print_json(simulation.summary())
    else:
        tables.print_simulation(simulation)
    if not simulation.summary()["successes"]:
        raise typer.Exit(1)


@app.callback(invoke_without_command=True)
def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        import ooc_mdp

        print(f"ooc-mdp {ooc_mdp.__version__}")
        raise typer.Exit


class _Stopped(BaseException):
    """SIGINT or SIGTERM, outside a solve's own handling of them; unwinds what is being written."""


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise _Stopped

    previous = {s: signal.signal(s, stop) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for s, handler in previous.items():
            signal.signal(s, handler)


def main() -> None:
    """Run the command line of this process."""
    try:
        with _stoppable():
            app()
    except OocMdpError as error:
        _fail(str(error), 2)
    except OSError as error:
        _fail(f"the system reports: {error}", 2)
    except MemoryError as error:
        _fail(f"out of memory ({error or 'no details'}); lower --cache, --partition-size or --workers", 2)
    except _Stopped as stopped:
        left = getattr(stopped, "__notes__", ["nothing half-written was left behind"])
        _fail("; ".join(["interrupted", *left]), 1)


def _fail(message: str, status: int) -> None:
    print(f"error: {message}" if status == 2 else message, file=sys.stderr)
    sys.exit(status)


if __name__ == "__main__":
    main()
