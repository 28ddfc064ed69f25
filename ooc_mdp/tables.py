"""Tables for :func:`ooc_mdp.solve`: `convert`, `generate`, `open_store`, `open_problem`.

A table is made from a file or from a generated problem, and stored, or computed on demand: from a virtual store, or
without any directory (`open_problem`). The same keywords describe it everywhere (`ooc_mdp.table_options`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from ooc_mdp.arguments import (
    FLAG,
    FUNCTION,
    PARAMETERS,
    PATH,
    REWARD_FILES,
    SOURCE,
    TEXT,
    check_types,
    maybe,
)
from ooc_mdp.errors import OptionsError, StoreError
from ooc_mdp.options import ClusterOptions
from ooc_mdp.table_options import TableKeywords, options_of, with_table_keywords

if TYPE_CHECKING:
    from distributed import Client

    from ooc_mdp.events import Watcher
    from ooc_mdp.io.conversion.executor import Executor
    from ooc_mdp.io.recomputed_table import RecomputedTable
    from ooc_mdp.store import Store
    from ooc_mdp.store.reward_store import RewardStore

__all__ = [
    "AnyPath",
    "convert",
    "generate",
    "open_problem",
    "open_store",
]

AnyPath = str | PathLike[str]

_PROBLEM_PREFIX = "problem:"
_VIRTUAL_ALONE = (
    "a virtual store is written in one step by this process: leave out resume, workers and scheduler (--resume, "
    "--workers, --scheduler), or virtual (--virtual)"
)
_ESTIMATED_FROM = 64 << 20
"""Bytes of a source, from which on its conversion is estimated before it begins."""
_WORKERS_ON_CPU = "workers compute rows on the CPU; leave out the device {device}, or workers and scheduler"


@with_table_keywords
@check_types(
    source=SOURCE,
    store=PATH,
    format=maybe(TEXT),
    rewards=maybe(REWARD_FILES),
    reward_model=maybe(TEXT),
    normalize=FLAG,
    overwrite=FLAG,
    allow_large=FLAG,
    progress=maybe(FUNCTION),
    note=maybe(FUNCTION),
)
def convert(
    source: AnyPath,
    store: AnyPath,
    *,
    format: str | None = None,
    rewards: AnyPath | Mapping[str, AnyPath | Sequence[AnyPath]] | None = None,
    reward_model: str | None = None,
    normalize: bool = False,
    grid: Sequence[int] | None = None,
    overwrite: bool = False,
    workers: int | str | Client | None = None,
    allow_large: bool = False,
    progress: Watcher | None = None,
    note: Callable[[str], None] | None = None,
    **table: Unpack[TableKeywords],
) -> Store:
    """Build a store from a model file.

    Parameters
    ----------
    source : a file, a folder of pymdptoolbox matrices, or "gymnasium:ENV-ID".
    store : directory of the store, which appears when it is complete.
    format : its format; None to detect it from the contents.
    rewards : reward file of a transition list or a .tra file; of a .tra file also a dict of such files by the names of
        their reward structures, as {"steps": "model.srew", "cost": ["cost.srew", "cost.trew"]}.
    reward_model : name of the reward structure that becomes the table's, where the source has several; without it none
        of several does. All are kept by name.
    normalize : divide rows by their sums instead of refusing those that do not sum to 1 within 1e-6.
    grid : points along each axis, if the states are a grid in C order.
    overwrite : replace an existing store.
    workers : what computes and writes partitions in place of threads: a number of processes on this machine, the
        address of a Dask scheduler such as "tcp://host:8786", or the client of a Dask cluster. Processes run the
        calling script again: call from under ``if __name__ == "__main__":``. All workers must see the directory of the
        store under the same path.
    allow_large : begin although it takes more than an hour or 80% of the free disk, which is estimated from the first
        blocks of a large file; what cannot fit is refused all the same.
    progress : called with (what, done, of how many).
    note : called with the memory plan, once the source has been read, and with what the source has and the store does
        not keep, such as labels of choices.
    **table : see `ooc_mdp.table_options`.

    Raises
    ------
    InputError : the source breaks a rule of its format; names file, line and error.
    OptionsError : options contradict each other or the source, or the store needs more disk than there is.
    StoreError : the store exists, is in use or cannot be written.
    MemoryBudgetError : partitions under way take more than the RAM that is available.
    ClusterError : workers or their scheduler cannot be reached, or are lost.
    MissingExtraError : an optional package is not installed.
    """
    from ooc_mdp.io.conversion import convert as convert_source
    from ooc_mdp.io.conversion.conversion_estimate import check_fits, estimate_file, source_bytes
    from ooc_mdp.io.registry import ReadOptions, open_source
    from ooc_mdp.io.source import reward_files

    options = options_of(table, default_dtype="float64", grid=grid, overwrite=overwrite)
    reading = ReadOptions(
        **reward_files(rewards),
        reward_model=reward_model,
        normalize=normalize,
        sense=options.sense or "max",
    )
    refuse_taken(Path(store), overwrite)
    if source_bytes(fspath(source)) >= _ESTIMATED_FROM:
        check_fits(*estimate_file(fspath(source), Path(store), format, reading, options), allow_large)
    opened = open_source(fspath(source), format, reading)
    try:
        provenance = {"normalize": normalize, "reward_model": reward_model}
        with executor_of(workers) as executor:
            built = convert_source(
                opened, store, options, provenance=provenance, progress=progress, executor=executor, note=note
            )
        left_out = opened.left_out.sentence(opened.path)
        if note is not None and left_out is not None:
            note(left_out)
        return built
    finally:
        opened.close()


def refuse_taken(store: Path, overwrite: bool) -> None:
    """Refuse, before any work, a place where no store can be written, or that another process writes or reads."""
    from ooc_mdp.store.output_lock import refuse_busy
    from ooc_mdp.store.transaction import check_destination

    check_destination(store, overwrite)
    refuse_busy(store)


@contextmanager
def executor_of(workers: int | str | Client | None) -> Iterator[Executor | None]:
    """What computes and writes partitions; None for the threads of this process. Raises ClusterError, OptionsError."""
    if workers is None:
        yield None
        return
    from ooc_mdp.distributed.cluster import client_of, prepare_workers, silence_dask
    from ooc_mdp.io.conversion.dask_executor import DaskExecutor

    checked = ClusterOptions(workers).workers
    assert checked is not None
    with silence_dask(), client_of(checked, "cpu") as client:
        prepare_workers(client)
        yield DaskExecutor(client)


@with_table_keywords
@check_types(
    name=PATH,
    store=PATH,
    parameters=maybe(PARAMETERS),
    overwrite=FLAG,
    resume=FLAG,
    virtual=FLAG,
    device=TEXT,
    allow_large=FLAG,
    progress=maybe(FUNCTION),
    note=maybe(FUNCTION),
)
def generate(
    name: AnyPath,
    store: AnyPath,
    parameters: Mapping[str, str | int | float | Sequence[int]] | None = None,
    *,
    overwrite: bool = False,
    resume: bool = False,
    virtual: bool = False,
    device: str = "auto",
    workers: int | str | Client | None = None,
    allow_large: bool = False,
    progress: Watcher | None = None,
    note: Callable[[str], None] | None = None,
    **table: Unpack[TableKeywords],
) -> Store | RecomputedTable:
    """Build the store of a generated problem, partition by partition, whatever its size.

    Parameters
    ----------
    name : a problem, such as "GW-1024x4", "QK-500" or "random" (`ooc_mdp.problems.registry.PROBLEMS`), or a .py file
        that defines one.
    parameters : its options, such as {"seed": 1, "scramble": 0.1}, or {"grid": (300, 300)} for a control problem.
    resume : continue a generation with the same arguments that was stopped; without one, begin a new store.
    virtual : write a small directory without tables: each partition is computed once now, for its sizes, ranges and
        couplings, and again whenever it is loaded.
    device : "auto", "cpu" or "cuda:0": what computes the rows of a control problem. Other problems, and workers, use
        the CPU.
    allow_large : begin although it takes more than an hour or 80% of the free disk, or a solve could not hold so many
        states here; what cannot fit is refused all the same.
    note : called with sentences: the estimate of disk, memory and time, and why "auto" chose the CPU.
    store, overwrite, workers, progress : as for :func:`convert`.
    **table : see `ooc_mdp.table_options`.

    Raises
    ------
    OptionsError : options contradict each other or the problem, or the store needs more memory or disk than there is.
    InputError : the rows of the problem are no probability distributions.
    StoreError : the store exists, is in use or cannot be written, or the run to resume had other options.
    ClusterError : workers or their scheduler cannot be reached, or are lost.
    MissingExtraError : an optional package is not installed.
    """
    from ooc_mdp.backends.cuda.control.rows import DeviceProblem
    from ooc_mdp.backends.select import select_rows
    from ooc_mdp.io.conversion import generate as generate_problem
    from ooc_mdp.io.conversion.generation_estimate import confirm_generation
    from ooc_mdp.io.virtual_store import generate_virtual
    from ooc_mdp.problems.registry import make_problem

    if virtual and (resume or workers is not None):
        raise OptionsError(_VIRTUAL_ALONE)
    if workers is not None and device not in ("auto", "cpu"):
        raise OptionsError(_WORKERS_ON_CPU.format(device=device))
    refuse_taken(Path(store), overwrite)
    problem = select_rows(make_problem(name, parameters), device if workers is None else "cpu", note)
    options = options_of(table, default_dtype=problem.default_dtype, overwrite=overwrite, resume=resume)
    processes = workers if isinstance(workers, int) else None
    with _noted_compilation(problem, note):
        confirm_generation(problem, options, Path(store), allow_large, note, virtual=virtual, workers=processes)
    if virtual:
        return generate_virtual(problem, Path(store), options, progress)
    if not isinstance(problem, DeviceProblem):
        with executor_of(workers) as executor:
            return generate_problem(problem, store, options, progress=progress, executor=executor)
    try:
        return generate_problem(problem, store, options, provenance={"device": problem.source.name}, progress=progress)
    finally:
        problem.source.close()


def _noted_compilation(problem: object, note: Callable[[str], None] | None) -> AbstractContextManager[None]:
    """Meanwhile, `note` is called when the functions of a control problem are compiled."""
    from ooc_mdp.backends.compiling import COMPILING_FUNCTIONS, note_compiling
    from ooc_mdp.problems.control import DiscretisedProblem

    if note is None or not isinstance(problem, DiscretisedProblem):
        return nullcontext()
    return note_compiling(note, COMPILING_FUNCTIONS)


@check_types(path=PATH, trust=FLAG, note=maybe(FUNCTION))
def open_store(
    path: AnyPath, *, trust: bool = False, note: Callable[[str], None] | None = None
) -> Store | RewardStore | RecomputedTable:
    """Open a store, which many threads can read at the same time; of a virtual one, the problem is made again.

    Parameters
    ----------
    trust : run the Python file that a virtual store names, if its SHA-256 is the recorded one.
    note : called with a sentence before a trusted file is run.

    Raises
    ------
    StoreError : the path is no store, or it is damaged; or the problem of a virtual store gives another table now.
    OptionsError : a virtual store is of a Python file that is not trusted or has changed, or of a missing device.
    """
    from ooc_mdp.store.result import is_result
    from ooc_mdp.store.reward_store import open_table

    try:
        return open_table(path)
    except StoreError:
        _refuse_problem_name(path)
        if is_result(Path(path)):
            raise StoreError(
                f"{path} is the result of a solve, not a store; give the store that it was solved from"
            ) from None
        from ooc_mdp.io.virtual_store import is_virtual_store, open_virtual_store

        if not is_virtual_store(Path(path)):
            raise
    return open_virtual_store(Path(path), trust, note or (lambda _: None))


def _refuse_problem_name(path: AnyPath) -> None:
    """Refuse "problem:NAME", which earlier releases took in the place of a store."""
    name = fspath(path).removeprefix(_PROBLEM_PREFIX)
    if name != fspath(path):
        raise OptionsError(
            f"{path} is no store: write a virtual one, whose tables are computed on demand, and give its path: "
            f"ooc-mdp generate {name} STORE --virtual"
        )


@with_table_keywords
@check_types(
    name=PATH,
    parameters=maybe(PARAMETERS),
    device=TEXT,
    allow_large=FLAG,
    progress=maybe(FUNCTION),
    note=maybe(FUNCTION),
)
def open_problem(
    name: AnyPath,
    parameters: Mapping[str, str | int | float | Sequence[int]] | None = None,
    *,
    device: str = "auto",
    allow_large: bool = False,
    progress: Watcher | None = None,
    note: Callable[[str], None] | None = None,
    **table: Unpack[TableKeywords],
) -> RecomputedTable:
    """Open a generated problem as a table that is computed on demand, for :func:`solve` and :func:`verify`.

    It is the table of a virtual store (:func:`generate`), without a directory. Every partition is computed once now, in
    parallel, for the sizes, ranges and couplings that a store contains.

    Parameters
    ----------
    name : a problem, as for :func:`generate`, or a .py file that defines one.
    parameters : its options.
    device : "auto", "cpu" or "cuda:0": what computes the rows of a control problem. Other problems use the CPU.
    allow_large, progress, note : as for :func:`generate`.
    **table : see `ooc_mdp.table_options`.

    Raises
    ------
    OptionsError : options contradict each other or the problem.
    InputError : the rows of the problem are no probability distributions.
    MissingExtraError : an optional package is not installed.
    """
    from ooc_mdp.backends.select import select_rows
    from ooc_mdp.io.conversion.generation_estimate import confirm_generation
    from ooc_mdp.io.recomputed_table import RecomputedTable
    from ooc_mdp.problems.registry import make_problem

    problem = select_rows(make_problem(name, parameters), device, note)
    options = options_of(table, default_dtype=problem.default_dtype)
    with _noted_compilation(problem, note):
        confirm_generation(problem, options, Path.cwd(), allow_large, note, virtual=True)
    return RecomputedTable.after_first_pass(problem, options, Path(name).name, progress)
