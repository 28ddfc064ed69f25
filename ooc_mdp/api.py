"""The Python interface: `convert`, `generate`, `open_store`, `open_problem`, `solve`, `open_result`, `verify` and
`simulate`.

>>> import ooc_mdp
>>> store = ooc_mdp.convert("model.tra", "model.zarr")  # doctest: +SKIP
>>> solution = ooc_mdp.solve(store, discount=0.95, epsilon=1e-6, cache="22%")  # doctest: +SKIP
>>> solution.error_bound, solution.values, solution.policy  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ooc_mdp.errors import OptionsError, StoreError
from ooc_mdp.options import (
    DEFAULT_KERNEL,
    DEFAULT_PATIENCE,
    DEFAULT_PLACEMENT,
    CacheSize,
    ClusterOptions,
    RunOptions,
    SolveOptions,
    SweepOrder,
    parse_bytes,
    whole_number,
)

if TYPE_CHECKING:
    from distributed import Client

    from ooc_mdp.conversion.recompute import RecomputedTable
    from ooc_mdp.events import SolveWatcher, Watcher
    from ooc_mdp.model.solution import Solution
    from ooc_mdp.model.table_source import TableSource
    from ooc_mdp.problems.control import Discretised, State
    from ooc_mdp.simulation import Simulation, SimulationOptions
    from ooc_mdp.solver.verify import Verification
    from ooc_mdp.store import Store
    from ooc_mdp.store.result import Result

__all__ = [
    "convert",
    "generate",
    "open_problem",
    "open_result",
    "open_store",
    "problem_name",
    "simulate",
    "solve",
    "solve_with",
    "verify",
]

AnyPath = str | PathLike[str]

_PROBLEM_PREFIX = "problem:"


def _partitions_of(
    sense: Literal["max", "min"] | None,
    partitioner: Literal["ranges", "grid", "metis"] | None,
    size: str | int | None,
    number: int | None,
    *,
    grid: Sequence[int] | None = None,
    blocks: Sequence[int] | None = None,
    block_shape: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Fields of `ConvertOptions`: the objective, and how the states are divided into partitions."""
    return {
        "sense": sense,
        "partitioner": partitioner or ("grid" if grid is not None else None),
        "partition_size": None if size is None else parse_bytes(size),
        "partitions": number,
        "shape": _along_axes("grid", grid),
        "blocks": _along_axes("blocks", blocks),
        "block_shape": _along_axes("block_shape", block_shape),
    }


def _threads(workers: int | None) -> dict[str, Any]:
    """The field of `ConvertOptions`, where it does not keep its default."""
    return {} if workers is None else {"workers": workers}


def _along_axes(name: str, given: object) -> tuple[int, ...] | None:
    """Whole numbers along the axes of a grid; OptionsError for anything else."""
    if given is None:
        return None
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise OptionsError(f"{name} is {given!r}; give a whole number for each axis, such as (30, 30)")
    return tuple(whole_number(f"{name} along an axis", each) for each in given)


def convert(
    source: AnyPath,
    store: AnyPath,
    *,
    format: str | None = None,
    rewards: AnyPath | None = None,
    reward_model: str | None = None,
    renormalise: bool = False,
    sense: Literal["max", "min"] | None = None,
    partitioner: Literal["ranges", "grid", "metis"] | None = None,
    partition_size: str | int | None = None,
    partitions: int | None = None,
    grid: Sequence[int] | None = None,
    dtype: Literal["float32", "float64"] = "float64",
    workers: int | None = None,
    overwrite: bool = False,
    progress: Watcher | None = None,
) -> Store:
    """Build a store from a model file.

    Parameters
    ----------
    source : a file, a folder of pymdptoolbox matrices, or "gymnasium:ENV-ID".
    store : where the store appears, whole or not at all.
    format : its format; None to see it from the contents.
    rewards : reward file beside a transition list or a .tra file.
    reward_model : name of the reward structure, where the source holds several.
    renormalise : divide rows by their sums instead of refusing those that do not sum to 1 within 1e-6.
    sense : "max" (the default) or "min".
    partitioner : "ranges" of consecutive states (the default), "grid" blocks (needs `grid`) or "metis".
    partition_size : decoded bytes of a partition at most, such as "64MiB"; 1/256 of the table by default.
    partitions : number of partitions, instead of a size.
    grid : points along each axis, if the states are a grid in C order.
    dtype : type in which probabilities and rewards are stored.
    workers : threads that parse and write at once; the number of cores by default.
    overwrite : replace a store of that name.
    progress : called with (what, done, of how many).

    Raises
    ------
    InputError : the source is not what its format promises; says file, line and what is wrong.
    OptionsError, StoreError, MissingExtraError : as their names say.
    """
    from ooc_mdp.conversion import convert as convert_source
    from ooc_mdp.conversion.options import ConvertOptions
    from ooc_mdp.formats import ReadOptions, open_source
    from ooc_mdp.store.output_lock import refuse_busy
    from ooc_mdp.store.transaction import check_target

    divided = _partitions_of(sense, partitioner, partition_size, partitions, grid=grid)
    options = ConvertOptions(**divided, dtype=dtype, overwrite=overwrite, **_threads(workers))
    reading = ReadOptions(
        rewards=None if rewards is None else Path(rewards), reward_model=reward_model, renormalise=renormalise
    )
    check_target(Path(store), overwrite)
    refuse_busy(Path(store))
    opened = open_source(fspath(source), format, reading)
    try:
        said = {"renormalise": renormalise, "reward_model": reward_model}
        return convert_source(opened, store, options, provenance=said, progress=progress)
    finally:
        opened.close()


def generate(
    name: AnyPath,
    store: AnyPath,
    parameters: Mapping[str, str | int | float | Sequence[int]] | None = None,
    *,
    sense: Literal["max", "min"] | None = None,
    partitioner: Literal["ranges", "grid", "metis"] | None = None,
    partition_size: str | int | None = None,
    partitions: int | None = None,
    blocks: Sequence[int] | None = None,
    block_shape: Sequence[int] | None = None,
    dtype: Literal["float32", "float64"] | None = None,
    workers: int | None = None,
    overwrite: bool = False,
    resume: bool = False,
    device: str = "auto",
    progress: Watcher | None = None,
    note: Callable[[str], None] | None = None,
) -> Store:
    """Build the store of a generated problem, partition by partition, whatever its size.

    Parameters
    ----------
    name : a problem, such as "GW-1024x4", "QK-500" or "random" (`ooc_mdp.problems.PROBLEMS`), or a .py file that
        defines one.
    parameters : its options, such as {"seed": 1, "scramble": 0.1}, or {"grid": (300, 300)} for a control problem.
    blocks : number of partitions along each axis of a grid, instead of a size.
    block_shape : points of a partition along each axis of a grid, instead of a size.
    dtype : type in which probabilities and rewards are stored; the problem's own by default.
    resume : go on where the same call was stopped, if it was; else as without.
    device : "auto", "cpu" or "cuda:0": what computes the rows of a control problem; others take the CPU.
    note : told of what deserves a line, such as why "auto" left a control problem to the CPU.
    Other parameters : as for :func:`convert`.

    Raises
    ------
    OptionsError, StoreError, MissingExtraError : as their names say.
    """
    from ooc_mdp.backends.cuda.control.rows import DeviceProblem
    from ooc_mdp.backends.select import select_rows
    from ooc_mdp.conversion import generate as generate_problem
    from ooc_mdp.conversion.options import ConvertOptions
    from ooc_mdp.problems import make_problem
    from ooc_mdp.store.output_lock import refuse_busy
    from ooc_mdp.store.transaction import check_target

    check_target(Path(store), overwrite)
    refuse_busy(Path(store))
    problem = select_rows(make_problem(name, parameters), device, note)
    divided = _partitions_of(sense, partitioner, partition_size, partitions, blocks=blocks, block_shape=block_shape)
    kind = dtype or problem.default_dtype
    options = ConvertOptions(**divided, dtype=kind, overwrite=overwrite, resume=resume, **_threads(workers))
    if not isinstance(problem, DeviceProblem):
        return generate_problem(problem, store, options, progress=progress)
    try:
        return generate_problem(problem, store, options, provenance={"device": problem.source.name}, progress=progress)
    finally:
        problem.source.close()


def open_store(path: AnyPath) -> Store:
    """Open a store; cheap, and safe to use from many threads. Raises StoreError."""
    from ooc_mdp.store import open_store as open_
    from ooc_mdp.store.result import is_result

    try:
        return open_(path)
    except StoreError:
        if is_result(Path(path)):
            raise StoreError(
                f"{path} is the result of a solve, not a store; give the store that it was solved from"
            ) from None
        raise


def problem_name(table: AnyPath) -> str | None:
    """NAME where `table` is "problem:NAME", None where it is a path."""
    text = fspath(table)
    return text.removeprefix(_PROBLEM_PREFIX) if text.startswith(_PROBLEM_PREFIX) else None


def open_problem(
    name: AnyPath,
    parameters: Mapping[str, str | int | float | Sequence[int]] | None = None,
    *,
    sense: Literal["max", "min"] | None = None,
    partitioner: Literal["ranges", "grid", "metis"] | None = None,
    partition_size: str | int | None = None,
    partitions: int | None = None,
    blocks: Sequence[int] | None = None,
    block_shape: Sequence[int] | None = None,
    dtype: Literal["float32", "float64"] | None = None,
    workers: int | None = None,
    device: str = "auto",
    progress: Watcher | None = None,
    note: Callable[[str], None] | None = None,
) -> RecomputedTable:
    """A generated problem as a table that is computed on demand and never stored, for :func:`solve` and :func:`verify`.

    Every partition is computed once now, in parallel, to learn the sizes, ranges and couplings that a store keeps.

    Parameters
    ----------
    name : a problem, as for :func:`generate`, or a .py file that defines one.
    parameters : its options.
    dtype : type of probabilities and rewards; the problem's own by default.
    workers : threads of the first pass, and of the computation of a large partition.
    device : what computes the rows of a control problem; others are computed by the CPU.
    note : as for :func:`generate`.
    Other parameters : as for :func:`generate`.

    Raises
    ------
    OptionsError, InputError, MissingExtraError : as their names say.
    """
    from ooc_mdp.backends.select import select_rows
    from ooc_mdp.conversion.options import ConvertOptions
    from ooc_mdp.conversion.recompute import RecomputedTable
    from ooc_mdp.problems import make_problem
    from ooc_mdp.problems.control.discretised import Discretised

    problem = make_problem(name, parameters)
    problem = select_rows(problem, device if isinstance(problem, Discretised) else "cpu", note)
    divided = _partitions_of(sense, partitioner, partition_size, partitions, blocks=blocks, block_shape=block_shape)
    options = ConvertOptions(**divided, dtype=dtype or problem.default_dtype, **_threads(workers))
    return RecomputedTable(problem, options, _PROBLEM_PREFIX + Path(name).name, progress)


def _opened(table: TableSource | AnyPath, device: str) -> TableSource:
    """The source itself, or what a path or "problem:NAME" names."""
    if not isinstance(table, str | PathLike):
        return table
    name = problem_name(table)
    return open_store(table) if name is None else open_problem(name, device=device)


def solve(
    store: TableSource | AnyPath,
    discount: float,
    *,
    epsilon: float | None = None,
    residual: float | None = None,
    method: Literal["auto", "vi", "p-eva", "policy-iteration"] = "auto",
    priority: Literal["joint", "h1", "h2"] | None = None,
    exact_priorities: bool = False,
    sweeps: int = 1,
    cache: str | int | None = None,
    device_memory: str | int | None = None,
    device: str = "auto",
    kernel: str = DEFAULT_KERNEL,
    sweep_order: SweepOrder = "voted",
    output: AnyPath | None = None,
    resume: bool = False,
    overwrite: bool = False,
    trace: AnyPath | None = None,
    time_limit: float | None = None,
    checkpoint_interval: float = 60.0,
    progress: SolveWatcher | None = None,
    note: Callable[[str], None] | None = None,
    client: Client | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    placement: str = DEFAULT_PLACEMENT,
    patience: float = DEFAULT_PATIENCE,
) -> Solution:
    """Solve the MDP of a store to a proved error, through a partition cache of bounded size.

    Parameters
    ----------
    store : an open store or its path; or a problem from :func:`open_problem`, or "problem:NAME" with its defaults.
    discount : gamma in [0, 1]; a (state, action) of duration tau is discounted by gamma**tau. 1 asks for undiscounted
        totals (``docs/undiscounted.md``).
    epsilon : target for ||V - V*||; 1e-4 of the value range by default.
    residual : stop at this plain Bellman residual instead; the bound that it proves is reported.
    method, priority, exact_priorities, sweeps : see :class:`~ooc_mdp.options.SolveOptions`.
    cache : budget of the partition cache, such as "1GiB" or "22%" of the table; 256 MiB by default.
    device_memory : budget on a CUDA device in all, such as "8GiB": the cache is what the rest leaves of it.
    device : "auto", "cpu" or "cuda:0".
    kernel : what sweeps, in place of the device's own engine (`ooc_mdp.backends.device_kernels`, ``ooc-mdp kernels``).
    sweep_order : order of the states in the CPU's sweeps: "forward", "alternating" or "voted".
    output : where the result is written, with checkpoints beside it meanwhile.
    resume : go on from a checkpoint of that output; from the beginning where there is none.
    overwrite : replace an output or trace that exists.
    trace : CSV file that gets every access.
    time_limit, checkpoint_interval : seconds.
    progress : told of progress a few times a second.
    note : called with sentences: that loops are compiled first, the memory plan, where a resumed solve begins, what
        makes one slow, and which workers were lost or joined.
    client : of a Dask cluster, on whose workers the MDP is solved.
    workers, scheduler, placement, patience : see :class:`~ooc_mdp.options.ClusterOptions`; cache and device memory are
        those of each worker. Worker processes run the calling script anew: call from under
        ``if __name__ == "__main__":``.

    Returns
    -------
    Solution : its `outcome` says whether the target was proved; a limit or signal is an outcome, not an error.

    Raises
    ------
    OptionsError, StoreError, MemoryBudgetError, ClusterError, MissingExtraError : as their names say.
    """
    options = SolveOptions(
        discount=discount,
        epsilon=epsilon,
        residual=residual,
        method=method,
        priority=priority,
        exact_priorities=exact_priorities,
        sweeps=sweeps,
        cache=None if cache is None else CacheSize.parse(cache),
        device_memory=None if device_memory is None else parse_bytes(device_memory),
        device=device,
        kernel=kernel,
        sweep_order=sweep_order,
    )
    run = RunOptions(
        output=None if output is None else Path(output),
        resume=resume,
        overwrite=overwrite,
        trace=None if trace is None else Path(trace),
        time_limit=time_limit,
        checkpoint_interval=checkpoint_interval,
    )
    cluster = cluster_of(workers, scheduler, placement, patience, device, client)
    return solve_with(
        lambda: _opened(store, device), options, run, cluster, client=client, progress=progress, note=note
    )


def solve_with(
    table: Callable[[], TableSource],
    options: SolveOptions,
    run: RunOptions,
    cluster: ClusterOptions | None = None,
    *,
    client: Client | None = None,
    progress: SolveWatcher | None = None,
    note: Callable[[str], None] | None = None,
) -> Solution:
    """:func:`solve` as its options say.

    Parameters
    ----------
    table : opens the source of tables, or computes a problem's; called once, after what can be refused was refused.
    cluster : how the solve is spread over several workers; None for a solve in this process.
    """
    from ooc_mdp.backends.compiling import told_of_compiling
    from ooc_mdp.store.output_lock import refuse_busy

    if run.output is not None:
        refuse_busy(run.output)
    engine = _engine(options, run, cluster, client)
    say = note or (lambda _: None)
    with told_of_compiling(say):
        return engine(table(), options, run, watch=progress, note=say)


def _engine(
    options: SolveOptions, run: RunOptions, cluster: ClusterOptions | None, client: Client | None
) -> Callable[..., Solution]:
    """What solves: see :func:`ooc_mdp.solver.local.solve`. Raises OptionsError where it does not do what is asked."""
    if cluster is not None:
        from ooc_mdp.distributed.solve import check_options, solve_on_cluster

        check_options(options, run)
        return partial(solve_on_cluster, asked=cluster, client=client)
    if options.discount == 1:
        from ooc_mdp.undiscounted.totals import solve as solve_totals

        return solve_totals
    from ooc_mdp.solver.local import solve as solve_discounted

    return solve_discounted


def cluster_of(
    workers: int | None,
    scheduler: str | None,
    placement: str,
    patience: float,
    device: str,
    client: Client | None = None,
) -> ClusterOptions | None:
    """How to solve on several workers; None to solve in this process.

    A machine with several GPUs gets a worker for each where nothing else is said, `device` included.
    """
    asked = ClusterOptions(workers, scheduler, placement, patience)
    if client is not None and (workers or scheduler):
        raise OptionsError("give a client, or workers, or a scheduler: one of them says where to solve")
    if client is not None or workers or scheduler:
        return asked
    if device == "auto":
        from ooc_mdp.backends.cuda.device import device_count

        devices = device_count()
        if devices > 1:
            return replace(asked, workers=devices)
    if (placement, patience) != (DEFAULT_PLACEMENT, DEFAULT_PATIENCE):
        raise OptionsError(
            "placement and patience (--placement, --patience) are of solves on several workers; leave them out, or "
            "give workers (--workers), a scheduler (--scheduler) or a client"
        )
    return None


def open_result(path: AnyPath) -> Result:
    """Open what :func:`solve` wrote. Raises StoreError."""
    from ooc_mdp.store.result import open_result as open_

    return open_(Path(path))


def verify(
    store: TableSource | AnyPath,
    result: Result | Solution | AnyPath,
    *,
    other_store: bool = False,
    progress: Watcher | None = None,
) -> Verification:
    """Stream the whole table once in float64 and measure what a result's values really leave.

    Parameters
    ----------
    store : as for :func:`solve`.
    result : its path, or opened; or what :func:`solve` returned, which does not say of which table it is: any of as
        many states is taken for it, and refutes it if it is another.
    other_store : measure the result on this table, although it was solved from another one.
    progress : called with ("verify", partitions done, of how many).

    Raises
    ------
    OptionsError : the result belongs to another table.
    StoreError : store or result is missing or damaged.
    """
    from ooc_mdp.model.solution import Solution
    from ooc_mdp.store.result import Result, unkept

    table = _opened(store, "auto")
    if isinstance(result, Solution):
        opened = unkept(result, table)
    else:
        opened = result if isinstance(result, Result) else open_result(result)
    if opened.solution.discount == 1:
        from ooc_mdp.undiscounted.verify import verify as verify_totals

        return verify_totals(table, opened, progress, other_store=other_store)
    from ooc_mdp.solver.verify import verify as verify_discounted

    return verify_discounted(table, opened, progress, other_store=other_store)


def simulate(
    result: Result | AnyPath,
    starts: Sequence[State | str] = (),
    *,
    random: int | None = None,
    seed: int = 1,
    options: SimulationOptions | None = None,
    problem: Discretised | AnyPath | None = None,
    trust: bool = False,
    note: Callable[[str], None] | None = None,
) -> Simulation:
    """Run the continuous dynamics of a solved control problem under its policy.

    Parameters
    ----------
    result : of a control problem; its path, or opened.
    starts : states, as tuples or as texts such as "0.1,-2" and "rest".
    random, seed : so many more starts, uniform over the axes. Without any start the run begins at rest.
    options : length of a run, kind of policy, ...
    problem : the problem, or its Python file, which is run; not needed for the problems that are built in.
    trust : run the Python file that the result names, if its SHA-256 is the recorded one.
    note : called with a sentence before a trusted file is run, and where `problem` is another file than the recorded.

    Raises
    ------
    OptionsError : the result is of no control problem or was not kept, it is of a file that was neither given nor
        trusted, or a start is outside its axes.
    StoreError : the result is missing or damaged.
    """
    from ooc_mdp.model.solution import Solution
    from ooc_mdp.problems.control import Discretised
    from ooc_mdp.simulation import SimulationOptions, parse_start, problem_of, random_starts
    from ooc_mdp.simulation import simulate as run_policy
    from ooc_mdp.store.result import Result

    if isinstance(result, Solution):
        raise OptionsError(
            "a solution says neither whose values it holds nor whether they were maximised; give solve an output, and "
            "simulate its path"
        )
    opened = result if isinstance(result, Result) else open_result(result)
    if isinstance(problem, Discretised):
        of = problem
    else:
        of = problem_of(opened, None if problem is None else fspath(problem), trust, note or (lambda _: None))
    chosen = [parse_start(of.problem, start) if isinstance(start, str) else start for start in starts]
    if random is not None:
        chosen += random_starts(of.problem, random, seed)
    return run_policy(
        of,
        opened.solution.values,
        opened.solution.policy,
        opened.solution.discount,
        chosen or [parse_start(of.problem, "rest")],
        options or SimulationOptions(),
        sense=opened.identity["sense"],
    )
