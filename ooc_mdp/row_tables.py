"""`from_rows` and `StoreBuilder`: the store of a model whose rows a function computes, or a program adds.

function    computed partition by partition, once, on threads or by Dask workers (`io/conversion/from_problem.py`)
blocks      written to a spool as they come, and divided into partitions when all are there (`from_source.py`)
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack, cast

from ooc_mdp.arguments import FLAG, FUNCTION, PATH, WHOLE, Kind, check_types, maybe, whole_number
from ooc_mdp.array_tables import LABELS, VARIABLES, stored_at
from ooc_mdp.errors import OptionsError
from ooc_mdp.table_options import ConvertOptions, TableKeywords, options_of, with_table_keywords
from ooc_mdp.tables import AnyPath, executor_of, refuse_taken

if TYPE_CHECKING:
    from distributed import Client

    from ooc_mdp.events import Watcher
    from ooc_mdp.io.given_annotations import GivenStates, GivenValues
    from ooc_mdp.io.state_rows import GivenRows, RowFunction
    from ooc_mdp.store import Store
    from ooc_mdp.store.annotations import StateAnnotations

__all__ = ["StoreBuilder", "from_rows"]

_SPOOL = ".spool"
ROWS = Kind(
    lambda value: callable(value) or isinstance(value, list | Iterator),
    "a function of states, or a generator or list of the rows of consecutive states",
)


@with_table_keywords
@check_types(
    n_states=WHOLE,
    rows=ROWS,
    per_state=FLAG,
    normalize=FLAG,
    labels=maybe(LABELS),
    variables=maybe(VARIABLES),
    path=maybe(PATH),
    overwrite=FLAG,
    resume=FLAG,
    allow_large=FLAG,
    progress=maybe(FUNCTION),
    note=maybe(FUNCTION),
)
def from_rows(
    n_states: int,
    rows: RowFunction | Callable[[int], Any] | Iterable[GivenRows],
    *,
    per_state: bool = False,
    normalize: bool = False,
    grid: Sequence[int] | None = None,
    labels: Mapping[str, GivenStates] | None = None,
    initial: int | GivenStates | None = None,
    variables: Mapping[str, GivenValues] | None = None,
    path: AnyPath | None = None,
    overwrite: bool = False,
    resume: bool = False,
    workers: int | str | Client | None = None,
    allow_large: bool = False,
    progress: Watcher | None = None,
    note: Callable[[str], None] | None = None,
    **table: Unpack[TableKeywords],
) -> Store:
    """Build a store from a function that computes the rows of any states, of any size.

    Parameters
    ----------
    n_states : number of states; successors are numbered from 0 to n_states - 1.
    rows : a function of an int64 array of states that returns their rows, as :class:`StateRows` or as the tuple
        (successors, probabilities, rewards) of arrays (states, actions, outcomes) and rewards (states, actions) or
        likewise. It is called from several threads, and more than once for some states: what it returns must depend on
        the states alone. Or a generator of the rows of consecutive states, in the same forms, which is read once.
    per_state : the function is one of a single state and returns its actions, each a list of (probability, successor,
        reward), or None for one that is not available; or a number, the value of a state where the process ends.
    normalize : divide rows by their sums instead of refusing those that do not sum to 1 within 1e-6.
    grid : points along each axis, if the states are a grid in C order.
    labels : for each name the states that have it: their numbers, a mask (n_states,), or a function of an int64 array
        of states, called from several threads, that returns a bool for each. What questions about goals name.
    initial : the initial states, likewise, or one number; their label is "init".
    variables : for each name the values that a state variable has, integers, bools, floats or texts (n_states,), or a
        function of an int64 array of states that returns theirs: questions about goals compare them, as
        'stock < 3 & mode = "idle"'.
    path : directory of the store; None for a temporary one, which is removed when the store is no longer used.
    overwrite : replace an existing store.
    resume : continue a run with the same function and arguments that was stopped; without one, begin a new store.
        Labels and variables are those of this call.
    workers : what computes and writes partitions in place of threads, as for :func:`convert`; the function is pickled.
    allow_large : as for :func:`generate`.
    progress : called with (what, done, of how many).
    note : called with sentences: the estimate of disk, memory and time, and the memory plan.
    **table : see `ooc_mdp.table_options`.

    Returns
    -------
    Store : where some actions are not available, ``Solution.actions`` has the actions by the numbers of the function.

    Raises
    ------
    InputError : a shape, type or number of the rows breaks a rule (names state and action), or one of the labels or
        variables.
    OptionsError : options contradict each other, or the store needs more memory or disk than there is.
    StoreError : the store exists, is in use or cannot be written, or the run to resume was another.
    ClusterError : workers or their scheduler cannot be reached, or are lost.
    MemoryBudgetError : partitions under way take more than the RAM that is available.
    """
    from ooc_mdp.io.conversion import generate
    from ooc_mdp.io.conversion.generation_estimate import confirm_generation
    from ooc_mdp.io.conversion.state_annotations import given_state_annotations
    from ooc_mdp.io.function_problem import function_problem, name_of
    from ooc_mdp.io.given_annotations import GivenAnnotations
    from ooc_mdp.io.state_rows import StateFunction

    if resume and path is None:
        raise OptionsError("from_rows: resume continues the store at a path; give path, or leave out resume")
    n, given = _checked_count(n_states), GivenAnnotations(labels, initial, variables)
    if not callable(rows):
        if per_state or resume or workers is not None:
            raise OptionsError(
                "from_rows: a generator is read once, in this process: leave out per_state, resume and workers, or "
                "give a function of states (or add the rows to a StoreBuilder, which is resumed)"
            )
        annotations = given_state_annotations("from_rows", given, n)
        from_blocks = partial(_from_blocks, n, rows, normalize, grid, annotations, overwrite, progress, note, table)
        return stored_at(path, "the table of the rows of a generator", from_blocks)
    options = options_of(table, default_dtype="float64", grid=grid, overwrite=overwrite, resume=resume)
    if path is not None:
        refuse_taken(Path(path), overwrite)
    name, function = name_of(rows), cast(Callable[..., Any], rows)
    problem = function_problem(
        StateFunction(function, name) if per_state else function,
        n,
        name=name,
        shape=options.grid_shape(n),
        sense=options.sense or "max",
        normalize=normalize,
    )
    annotations = given_state_annotations("from_rows", given, n)
    processes = workers if isinstance(workers, int) else None
    if workers is not None:
        _check_sent(function, name)

    def build(place: Path) -> Store:
        confirm_generation(problem, options, place, allow_large, note, virtual=False, workers=processes)
        with executor_of(workers) as executor:
            origin = {"format": "function"}
            return generate(problem, place, options, origin, progress, executor=executor, annotations=annotations)

    return stored_at(path, f"the table of the rows of {name}", build)


def _check_sent(function: Callable[..., Any], name: str) -> None:
    """Refuse a function that no other process can have."""
    from distributed.protocol.pickle import dumps

    try:
        dumps(function)  # type: ignore[no-untyped-call]
    except Exception as error:  # of whatever the function refers to
        raise OptionsError(
            f"the function {name} cannot be sent to workers ({type(error).__name__}: {str(error)[:200]}); it must not "
            "refer to open files, locks and the like; or leave out workers"
        ) from None


def _from_blocks(
    n_states: int,
    blocks: Iterable[GivenRows],
    normalize: bool,
    grid: Sequence[int] | None,
    annotations: StateAnnotations,
    overwrite: bool,
    progress: Watcher | None,
    note: Callable[[str], None] | None,
    table: TableKeywords,
    path: Path,
) -> Store:
    """The store of blocks of consecutive states, from state 0 on."""
    builder = StoreBuilder(
        path, n_states, normalize=normalize, grid=grid, overwrite=overwrite, progress=progress, note=note, **table
    )
    try:
        first = 0
        for rows in blocks:
            first = builder.add_rows(first, rows)
        return builder._commit(None, annotations)
    finally:
        builder.discard()


def _checked_count(n_states: int) -> int:
    n = whole_number("n_states", n_states)
    if n < 1:
        raise OptionsError(f"n_states is {n}; give at least 1")
    return n


class _UncommittedError(Exception):
    """A builder is closed before the store is whole."""


class StoreBuilder:
    """A store whose rows a program adds in blocks, in any order and from any thread.

    Blocks are on disk once they are added. A builder that is closed, fails or is killed before `commit` keeps them: one
    with the same arguments and ``resume=True`` continues there. The store appears whole, by `commit`. A context
    manager, which closes it.

    Parameters
    ----------
    path : directory of the store.
    n_states : number of states; successors are numbered from 0 to n_states - 1.
    resume : keep the blocks that a builder with the same arguments left; without, they are removed.
    normalize, grid, overwrite, progress, note, **table : as for :func:`from_rows`.

    Raises
    ------
    StoreError : the store exists, is in use or cannot be written, or what is to be resumed is of other arguments.
    OptionsError : options contradict each other.
    """

    @with_table_keywords
    @check_types(
        path=PATH,
        n_states=WHOLE,
        resume=FLAG,
        normalize=FLAG,
        overwrite=FLAG,
        progress=maybe(FUNCTION),
        note=maybe(FUNCTION),
    )
    def __init__(
        self,
        path: AnyPath,
        n_states: int,
        *,
        resume: bool = False,
        normalize: bool = False,
        grid: Sequence[int] | None = None,
        overwrite: bool = False,
        progress: Watcher | None = None,
        note: Callable[[str], None] | None = None,
        **table: Unpack[TableKeywords],
    ) -> None:
        from ooc_mdp.io.conversion.added_rows import AddedRows
        from ooc_mdp.io.conversion.write_store import tool_provenance
        from ooc_mdp.store.output_lock import locked_output
        from ooc_mdp.store.transaction import atomic_directory, check_destination

        self.path, self.n_states = Path(path), _checked_count(n_states)
        self._options: ConvertOptions = options_of(table, default_dtype="float64", grid=grid, overwrite=overwrite)
        self._options.grid_shape(self.n_states)
        self._normalize, self._progress, self._note = normalize, progress, note
        self._keep = True
        sense = self._options.sense or "max"
        header = {
            "states": self.n_states,
            "sense": sense,
            "normalize": bool(normalize),
            "version": tool_provenance()["version"],
        }
        with ExitStack() as opened:
            opened.enter_context(locked_output(self.path, partial(check_destination, overwrite=overwrite)))
            place = atomic_directory(self.path, overwrite, resume=resume, keep_partial=lambda _: self._keep)
            self._root: Path = opened.enter_context(place)
            _remove_unfinished_store(self._root)
            self._rows = opened.enter_context(
                closing(AddedRows(self._root / _SPOOL, self.n_states, header, str(self.path), resume))
            )
            self._open: ExitStack | None = opened.pop_all()

    @property
    def n_added(self) -> int:
        """Number of states whose rows are on disk."""
        return self._rows.n_added

    def missing(self) -> list[tuple[int, int]]:
        """Ranges of states whose rows are not there: the first state, and one past the last."""
        return self._rows.missing()

    def add_rows(self, first_state: int, rows: GivenRows) -> int:
        """Add the rows of consecutive states, in a form that :func:`from_rows` takes; returns one past the last state.

        Raises
        ------
        InputError : they are no rows of an MDP, or some of the states have theirs already.
        StoreError : the disk is full.
        """
        from ooc_mdp.io.checked_rows import check_block
        from ooc_mdp.io.state_rows import raw_rows

        self._check_open()
        first = whole_number("first_state", first_state)
        sense = self._options.sense or "max"
        raw = raw_rows(f"{self.path}: the rows from state {first} on", rows, None, sense)
        block = check_block(str(self.path), first, raw, n_states=self.n_states, normalize=self._normalize)
        self._rows.add(block)
        if self._progress is not None:
            self._progress("read", self.n_added, self.n_states)
        return first + block.rows.n_states

    @check_types(labels=maybe(LABELS), variables=maybe(VARIABLES))
    def commit(
        self,
        workers: int | str | Client | None = None,
        *,
        labels: Mapping[str, GivenStates] | None = None,
        initial: int | GivenStates | None = None,
        variables: Mapping[str, GivenValues] | None = None,
    ) -> Store:
        """Divide the states into partitions and write the store, which appears when it is whole.

        Parameters
        ----------
        workers : what writes partitions in place of threads, as for :func:`convert`.
        labels, initial, variables : of the states, as for :func:`from_rows`; a builder that is closed does not keep
            them.

        Raises
        ------
        InputError : states are without rows, or a label or variable breaks a rule; the builder stays open.
        OptionsError, MemoryBudgetError, StoreError, ClusterError : as for :func:`from_rows`; the rows are kept.
        """
        from ooc_mdp.io.conversion.state_annotations import given_state_annotations
        from ooc_mdp.io.given_annotations import GivenAnnotations

        self._check_open()
        given = GivenAnnotations(labels, initial, variables)
        return self._commit(workers, given_state_annotations(str(self.path), given, self.n_states))

    def _commit(self, workers: int | str | Client | None, annotations: StateAnnotations) -> Store:
        from ooc_mdp.io.conversion.from_source import write_spooled
        from ooc_mdp.io.conversion.state_annotations import write_state_annotations
        from ooc_mdp.store import open_store

        opened = self._check_open()
        spool = self._rows.spool()
        origin = {"source": str(self.path), "format": "rows", "normalize": self._normalize}
        self._open = None
        with opened:
            with executor_of(workers) as executor:
                write_spooled(
                    self._root,
                    spool,
                    self.n_states,
                    self._options,
                    origin,
                    progress=self._progress,
                    executor=executor,
                    note=self._note,
                )
            write_state_annotations(self._root, annotations)
            shutil.rmtree(self._root / _SPOOL)
        return open_store(self.path)

    def close(self) -> None:
        """Release the place of the store, and keep what was added for a builder that resumes."""
        opened, self._open = self._open, None
        if opened is not None:
            error = _UncommittedError()
            with suppress(_UncommittedError):
                opened.__exit__(type(error), error, None)

    def discard(self) -> None:
        """Close the builder, and remove what was added; a store that was committed stays."""
        self._keep = False
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _check_open(self) -> ExitStack:
        if self._open is None:
            raise OptionsError(f"{self.path}: the builder is closed; make another one, with resume=True to go on")
        return self._open


def _remove_unfinished_store(root: Path) -> None:
    """Remove what a commit that was stopped wrote, so that another one may divide the states otherwise."""
    from ooc_mdp.store.mark import MARK_FILE

    for entry in root.iterdir():
        if entry.name not in (MARK_FILE, _SPOOL):
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()
