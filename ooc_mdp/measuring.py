"""Measurements that take several solves: the cache sweep, of a table with caches of several sizes.

Knows neither methods nor kernels: each solve is one of `ooc_mdp.api`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from ooc_mdp.arguments import CACHES, FLAG, FUNCTION, PATH, TABLE, WHOLE, WORDS, check_types, maybe
from ooc_mdp.model.criterion import Discounted
from ooc_mdp.options import CacheSize, RunOptions, SolveOptions, SweepOrder
from ooc_mdp.tables import AnyPath, open_store

if TYPE_CHECKING:
    from ooc_mdp.events import SolveWatcher
    from ooc_mdp.model.solution import Solution
    from ooc_mdp.model.table import Table
    from ooc_mdp.report.cache_sweep import CacheSweep, SweepPlan

__all__ = ["DEFAULT_SIZES", "cache_sweep", "cache_sweep_with"]

DEFAULT_SIZES = "2%,5%,10%,22%,50%"


@check_types(
    table=TABLE,
    sizes=CACHES,
    priorities=WORDS,
    methods=WORDS,
    sweeps_per_visit=WHOLE,
    output=maybe(PATH),
    resume=FLAG,
    overwrite=FLAG,
    progress=maybe(FUNCTION),
    note=maybe(FUNCTION),
)
def cache_sweep(
    table: Table | AnyPath,
    discount: float,
    sizes: str | Sequence[str | float] = DEFAULT_SIZES,
    *,
    priorities: str | Sequence[str] = (),
    methods: str | Sequence[str] = "auto",
    epsilon: float | None = None,
    residual: float | None = None,
    sweeps_per_visit: int = 1,
    sweep_order: SweepOrder = "voted",
    device: str = "auto",
    time_limit: float | None = None,
    output: AnyPath | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: SolveWatcher | None = None,
    note: Callable[[str], None] | None = None,
) -> CacheSweep:
    """Solve a table with caches of several sizes and measure what each solve loads, reads and takes.

    Every point is a solve: by default p-eva prefers partitions in the cache, so that the accesses of one solve do not
    show what a solve with another cache loads. For vi and exact priorities, whose order of accesses does not depend on
    the cache, loads of the same accesses under LRU and Belady's optimum are kept as well, for every size.

    Parameters
    ----------
    table, discount : as for :func:`solve`.
    sizes : of the cache, such as "5%,22%,64MiB" or ["5%", 0.22, "64MiB"]; a share is one of the table's decoded bytes.
    priorities : of p-eva, such as "joint,h1,exact-h1" or a list of these; none for the default.
    methods : such as "p-eva,vi"; p-eva and auto are measured with each of the priorities.
    epsilon, residual, sweep_order, device : as for :func:`solve`.
    sweeps_per_visit : of the method vi.
    time_limit : seconds of each solve.
    output : JSON file that is replaced after each solve.
    resume : keep the solves that the output has, and do the others; those that a time limit stopped are repeated.
    overwrite : replace an output that exists.
    progress : called with the progress of each solve a few times a second.
    note : called with sentences about solves.

    Returns
    -------
    CacheSweep : not `complete` where a solve was stopped by a signal or limit, or reached no target.

    Raises
    ------
    OptionsError, StoreError, InputError, MemoryBudgetError, MissingExtraError : as their names say.
    """
    from ooc_mdp.report.cache_sweep import SweepPlan, parse_words

    given: Sequence[str | float] = parse_words(sizes) if isinstance(sizes, str) else sizes
    options = SolveOptions(
        Discounted(discount), epsilon, residual, sweeps_per_visit=1, sweep_order=sweep_order, device=device
    )
    plan = SweepPlan.of(
        options,
        parse_words(methods) if isinstance(methods, str) else methods,
        parse_words(priorities) if isinstance(priorities, str) else priorities,
        [CacheSize.parse(size) for size in given],
        sweeps_per_visit,
        time_limit,
    )
    kept = None if output is None else Path(output)
    return cache_sweep_with(table, plan, kept, resume=resume, overwrite=overwrite, progress=progress, note=note)


def cache_sweep_with(
    table: Table | AnyPath,
    plan: SweepPlan,
    output: Path | None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    progress: SolveWatcher | None = None,
    note: Callable[[str], None] | None = None,
) -> CacheSweep:
    """:func:`cache_sweep` as its plan says."""
    from ooc_mdp.errors import OptionsError, StoreError
    from ooc_mdp.report.cache_sweep import CacheSweep, check_holds_a_partition, facts_of, measure_caches
    from ooc_mdp.report.cache_sweep_file import continued, write_cache_sweep
    from ooc_mdp.store.atomic_file import check_output_files
    from ooc_mdp.store.output_lock import locked_output

    if resume and output is None:
        raise OptionsError("resume needs an output (--output): the file of the sweep that continues")
    if output is not None and output.is_file() and not (resume or overwrite):
        raise StoreError(f"{output} exists; continue it, or add sizes, with --resume, or replace it with --overwrite")
    say = note or (lambda _: None)
    with locked_output(output, lambda file: check_output_files(file, overwrite=overwrite or resume)):
        opened = open_store(table) if isinstance(table, str | PathLike) else table
        check_holds_a_partition(plan.sizes, int(opened.facts.partition_bytes.max()))
        facts = facts_of(opened.name, opened.fingerprint, plan)
        begun = continued(output, facts) if output is not None and resume else CacheSweep(facts)

        def keep(sweep: CacheSweep) -> None:
            if output is not None:
                write_cache_sweep(sweep, output)

        solve = _Solver(opened, progress, say)
        return measure_caches(plan, solve, begun, keep, say)


class _Solver:
    """Solves a table; sentences of the first solve are passed on, which are those of all."""

    def __init__(self, table: Table, progress: SolveWatcher | None, note: Callable[[str], None]) -> None:
        self._table = table
        self._progress = progress
        self._note: Callable[[str], None] | None = note

    def __call__(self, options: SolveOptions, run: RunOptions) -> Solution:
        from ooc_mdp import api

        note, self._note = self._note, None
        return api.solve_with(lambda: self._table, options, run, progress=self._progress, note=note)
