"""Commands that work on a table: solve, verify, export."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Literal, cast

import typer

from ooc_mdp.cli.application import app
from ooc_mdp.cli.options import (
    BlockShapeOption,
    BlocksOption,
    EvictionName,
    JsonOption,
    KernelOption,
    Method,
    OverwriteOption,
    ParameterOption,
    PartitionerOption,
    PartitionSizeOption,
    PartitionsOption,
    PriorityName,
    ProblemDtypeOption,
    ProblemGridOption,
    SenseOption,
    SweepOrderName,
    TableArgument,
    ThreadsOption,
)
from ooc_mdp.cli.tables import open_table, print_json, shape_of
from ooc_mdp.model.table_source import TableSource
from ooc_mdp.options import DEFAULT_KERNEL, DEFAULT_PATIENCE, DEFAULT_PLACEMENT

__all__ = ["export", "solve", "verify"]


@app.command()
def solve(
    store: TableArgument,
    discount: Annotated[
        float, typer.Option(help="Discount a step (or a unit of duration), 0 to 1; 1: undiscounted totals.")
    ],
    epsilon: Annotated[
        float | None,
        typer.Option(help="Prove |V - V*| to be at most this.  [default: 1e-4 of the value range]"),
    ] = None,
    residual: Annotated[
        float | None, typer.Option(help="Stop at this plain Bellman residual instead; says what it proves.")
    ] = None,
    method: Annotated[
        Method,
        typer.Option(
            help="vi: streamed value iteration; p-eva: partitions by priority; policy-iteration: policies evaluated on "
            "rows that are kept; auto: one of the last two, by how partitions depend on each other."
        ),
    ] = Method.AUTO,
    priority: Annotated[
        PriorityName | None,
        typer.Option(help="Which partition next: joint, or Wingate's.  [default: joint; h2 with --exact-priorities]"),
    ] = None,
    exact_priorities: Annotated[
        bool,
        typer.Option("--exact-priorities", help="Recompute priorities from the tables, as in the thesis."),
    ] = False,
    sweeps: Annotated[int, typer.Option(help="Most sweeps of a visit by vi; more than 1 saves loads.")] = 1,
    cache: Annotated[
        str | None,
        typer.Option(help="Budget of the partition cache: 1GiB, or 22% of the table.  [default: 256MiB]"),
    ] = None,
    device_memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Budget on a CUDA device in all, such as 8GiB: the cache is what the rest leaves."
        ),
    ] = None,
    eviction: Annotated[
        EvictionName,
        typer.Option(help="What makes way in the cache of p-eva: the least recently used, or the lowest priority."),
    ] = EvictionName.LRU,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda:0.")] = "auto",
    kernel: KernelOption = DEFAULT_KERNEL,
    sweep_order: Annotated[
        SweepOrderName,
        typer.Option(help="Order of the states in a sweep on the CPU; voted: by where transitions lead."),
    ] = SweepOrderName.VOTED,
    output: Annotated[Path | None, typer.Option(help="Where the result is kept; checkpoints lie beside it.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the output's checkpoint.")] = False,
    overwrite: OverwriteOption = False,
    trace: Annotated[Path | None, typer.Option(help="New CSV file that gets every access to a partition.")] = None,
    time_limit: Annotated[float | None, typer.Option(help="Stop after so many seconds, with a checkpoint.")] = None,
    checkpoint_interval: Annotated[float, typer.Option(help="Seconds between checkpoints.")] = 60.0,
    workers: Annotated[
        int | None,
        typer.Option(
            help="Solve on so many workers of this machine, one a GPU or CPU process.  [default: one a GPU where there "
            "are several, else none]"
        ),
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Solve on the workers of this Dask scheduler, tcp://HOST:8786."),
    ] = None,
    placement: Annotated[
        str,
        typer.Option(
            help="Which worker begins with which partitions: blocks, random, attractors[:N], voronoi:N, metis; alone: "
            "one has all; auto: alone where partitions read most of the others, else blocks; "
            "dynamic[:ONE OF THOSE]: idle workers take dirty partitions later on."
        ),
    ] = DEFAULT_PLACEMENT,
    patience: Annotated[
        float, typer.Option(help="Seconds without an answer after which a worker is given up.")
    ] = DEFAULT_PATIENCE,
    parameter: ParameterOption = None,
    grid: ProblemGridOption = None,
    sense: SenseOption = None,
    partitioner: PartitionerOption = None,
    partition_size: PartitionSizeOption = None,
    partitions: PartitionsOption = None,
    blocks: BlocksOption = None,
    block_shape: BlockShapeOption = None,
    dtype: ProblemDtypeOption = None,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Solve the MDP of a store, through a partition cache of bounded size, to a proved error.

    With problem:NAME in place of the store nothing is stored: each partition is computed when it is needed, and the
    options -p, --grid, --sense, --partitioner, --partition-size, --partitions, --blocks, --block-shape, --dtype and
    --threads are those of generate, whose threads are --workers.

    With --workers or --scheduler the partitions are divided among Dask workers, each with a cache of its own.
    """
    from ooc_mdp import api
    from ooc_mdp.options import CacheSize, RunOptions, SolveOptions, parse_bytes
    from ooc_mdp.report.terminal import SolveLine, print_solution

    options = SolveOptions(
        discount=discount,
        epsilon=epsilon,
        residual=residual,
        method=method.value,
        priority=cast(Literal["joint", "h1", "h2"] | None, priority and priority.value),
        exact_priorities=exact_priorities,
        sweeps=sweeps,
        cache=None if cache is None else CacheSize.parse(cache),
        device_memory=None if device_memory is None else parse_bytes(device_memory),
        eviction=eviction.value,
        device=device,
        kernel=kernel,
        sweep_order=sweep_order.value,
    )
    run = RunOptions(output, resume, overwrite, trace, time_limit, checkpoint_interval)
    cluster = api.cluster_of(workers, scheduler, placement, patience, device)
    line = SolveLine()

    def note(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    with ExitStack() as stack:

        def table() -> TableSource:
            opened = open_table(
                store,
                parameter,
                grid,
                device,
                sense=sense and sense.value,
                partitioner=partitioner and partitioner.value,
                partition_size=partition_size,
                partitions=partitions,
                blocks=shape_of(blocks, "--blocks"),
                block_shape=shape_of(block_shape, "--block-shape"),
                dtype=dtype and dtype.value,
                threads=threads,
            )
            stack.enter_context(line)  # which is shown once the bar of the problem's first pass is gone
            return opened

        if cluster is not None:
            from ooc_mdp.distributed.cluster import quiet

            stack.enter_context(quiet())
        solution = api.solve_with(table, options, run, cluster, progress=line, note=note)
    figures = solution.summary()
    if as_json:
        print_json(figures)
    else:
        print_solution(figures, solution.outcome, output)
    if not solution.outcome.proved:
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
    threads: ThreadsOption = None,
    device: Annotated[str, typer.Option(help="What computes the rows of problem:NAME: auto, cpu or cuda:0.")] = "auto",
    other_store: Annotated[
        bool, typer.Option("--other-store", help="Measure the result although it was solved from another table.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Stream the whole table once and measure the true residual of a result. Exit status 1 if its claim fails.

    A result of problem:NAME is verified with the options that it was solved with.
    """
    from ooc_mdp import api
    from ooc_mdp.report.terminal import WorkBar, print_verification

    table = open_table(
        store,
        parameter,
        grid,
        device,
        sense=sense and sense.value,
        partitioner=partitioner and partitioner.value,
        partition_size=partition_size,
        partitions=partitions,
        blocks=shape_of(blocks, "--blocks"),
        block_shape=shape_of(block_shape, "--block-shape"),
        dtype=dtype and dtype.value,
        threads=threads,
    )
    with WorkBar() as bar:
        found = api.verify(table, result, other_store=other_store, progress=bar)
    if as_json:
        print_json(found.summary())
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
    from ooc_mdp.report.export import export_result

    export_result(api.open_result(result), file, overwrite=overwrite)
    print(file)
