"""A partition's table as the CPU's loops read it: uniform rows where they cost no memory, and where its arrays lie.

A store whose rows are ragged often has partitions, most of them or all, whose rows are all alike: a gridworld's corners
have fewer successors than the other states. Such a partition needs no pointers, and where a few transitions are
missing they are filled in with probability 0, if that takes no more bytes than the pointers did. Where a partition
reads several times as many outside states as it has own ones, gathering them would take longer than a sweep: its
successors are made global states, in place, and its halo is freed.

    0 first | 1 n | 2 h | 3 action_ptr | 4 successor_ptr | 5 successors | 6 probabilities | 7 rewards | 8 discounts |
    9 terminal rewards | 10 halo | 11 boundary | 12 whether successors are global | 13 actions of every state |
    14 transitions of every row (0: they vary) | 15 to 23 sizes of the arrays whose addresses are 3 to 11 | 24 number |
    25 distributions | 26 their size

is a table as a row of numbers, so that one call of a loop works on many partitions without the interpreter, and
`open_table` makes a `Table` of it. A `Specialisation` says what loops are compiled for: its type decides which loop is
called.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numba import config

from ooc_mdp.backends.cpu.addresses import Span, load
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.partition import PartitionTable
from ooc_mdp.runtime.arena import TableMemory
from ooc_mdp.runtime.compiled import inlined, loop

__all__ = [
    "CHECKED",
    "MAX_GATHERED",
    "MAX_UNROLLED",
    "MIN_COMPILED_FOR",
    "Specialisation",
    "SweptTable",
    "Table",
    "first_probability",
    "first_row",
    "freed_halo_bytes",
    "in_one_piece",
    "load_code",
    "open_table",
    "row_begin",
    "swept_table",
    "uniform_width",
]

MAX_GATHERED = 2
"""Outside states read for each own one, above which successors are made global."""
MAX_UNROLLED = 16
"""Actions of a state and successors of a row up to which loops are compiled for their number."""
MIN_COMPILED_FOR = 256
"""Least states of a partition for whose numbers of actions and successors loops are compiled."""
_SWEPT = (
    "action_ptr",
    "successor_ptr",
    "successors",
    "probabilities",
    "rewards",
    "terminal_rewards",
    "initial_values",
    "halo",
    "boundary",
)
"""Arrays of a table beside its durations."""
_LARGEST = np.iinfo(np.uint32).max
_POINTER_BYTES = 4
_Counts = int | IntArray
CHECKED = bool(config.BOUNDSCHECK)  # type: ignore[attr-defined]
"""Whether loops check each index: a debugging aid, by Numba's own variable NUMBA_BOUNDSCHECK."""


class Specialisation(NamedTuple):
    """What loops over a table are compiled for."""

    actions: tuple[int, ...]
    """As many zeros as every state has actions; empty where that varies or is too much to unroll."""
    width: tuple[int, ...]
    """Likewise for the successors of a row."""
    successor: np.unsignedinteger[Any]
    """A zero of the type of successors,"""
    probability: np.floating[Any]
    """of probabilities,"""
    reward: np.floating[Any]
    """and of rewards."""
    checked: tuple[int, ...]
    """One zero where each index is checked against the size of its array, else empty, which costs nothing."""


class Table(NamedTuple):
    """A partition's table; absent arrays have the address 0."""

    first: int
    n: int
    action_ptr: Span
    successor_ptr: Span
    successors: Span
    probabilities: Span
    rewards: Span
    discounts: Span
    terminal: Span
    halo: Span
    boundary: Span
    global_successors: bool
    actions: int
    """Of every state; 0 where they vary."""
    width: int
    """Successors of every row; 0 where they vary."""
    partition: int
    """Its number."""
    distributions: Span
    """uint8 [m]; where rows share a few: which of them, all that `probabilities` holds, each row has."""


_SPECIALISATIONS: dict[tuple[Any, ...], Specialisation] = {}
"""One object for each combination of counts and types. Specialisations are compared by identity: equality would not
distinguish their zeros, since NumPy's numbers of different types are equal."""


@inlined
def open_table(row):
    """The table that a row of numbers (int64 [27]; see above) describes."""
    return Table(
        row[0],
        row[1],
        Span(row[3], row[15]),
        Span(row[4], row[16]),
        Span(row[5], row[17]),
        Span(row[6], row[18]),
        Span(row[7], row[19]),
        Span(row[8], row[20]),
        Span(row[9], row[21]),
        Span(row[10], row[22]),
        Span(row[11], row[23]),
        row[12] != 0,
        row[13],
        row[14],
        row[24],
        Span(row[25], row[26]),
    )


@inlined
def first_row(spec, table, s):
    """First row of state s, which is where those of the state before end."""
    n = len(spec.actions) if len(spec.actions) > 0 else table.actions
    return s * np.uint64(n) if n > 0 else np.uint64(load(spec, table.action_ptr, s, np.uint32(0)))


@inlined
def row_begin(spec, table, j):
    """First transition of row j, which is where those of the row before end."""
    n = len(spec.width) if len(spec.width) > 0 else table.width
    return j * np.uint64(n) if n > 0 else np.uint64(load(spec, table.successor_ptr, j, np.uint32(0)))


@inlined
def first_probability(spec, table, j):
    """Where the probabilities of row j begin: with its first transition, or with the distribution that it has."""
    if table.distributions.address == 0:
        return row_begin(spec, table, j)
    n = len(spec.width) if len(spec.width) > 0 else table.width
    return np.uint64(load(spec, table.distributions, j, np.uint8(0))) * np.uint64(n)


@dataclass(frozen=True, slots=True)
class SweptTable:
    """A resident partition as sweeps read it."""

    table: PartitionTable
    """Kept for its arrays."""
    discounts: FloatArray
    """float64 [m] or empty."""
    global_successors: bool
    """Whether successors are in global numbering."""
    distributions: npt.NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, np.uint8))
    """uint8 [m]; number of each row's distribution among those that the table holds, or empty: each has its own."""
    row: IntArray = field(init=False)
    """int64 [27]; see above."""
    spec: Specialisation = field(init=False)
    """What loops over the table are compiled for: the same object for all tables that share loops."""

    def __post_init__(self) -> None:
        t = self.table
        counts = (t.actions_per_state, t.successors_per_action) if t.n_states >= MIN_COMPILED_FOR else (0, 0)
        types = t.successors.dtype, t.probabilities.dtype, t.rewards.dtype
        object.__setattr__(self, "spec", _specialisation(*counts, *types))
        object.__setattr__(self, "row", _row_of(self))


def _specialisation(actions: int, width: int, *types: np.dtype[Any]) -> Specialisation:
    """For as many rows of each state and transitions of each row, 0 where they vary.

    Parameters
    ----------
    types : of successors, probabilities and rewards.
    """
    wanted = actions, width, CHECKED, *types
    if wanted not in _SPECIALISATIONS:
        successor, probability, reward = (dtype.type(0) for dtype in types)
        counts = [(0,) * n if n <= MAX_UNROLLED else () for n in (actions, width)]
        made = Specialisation(counts[0], counts[1], successor, probability, reward, (0,) if CHECKED else ())
        return _SPECIALISATIONS.setdefault(wanted, made)  # or another thread's
    return _SPECIALISATIONS[wanted]


def freed_halo_bytes(facts: ModelFacts) -> IntArray:
    """int64 [P]; bytes of each partition's halo that :func:`swept_table` frees; 0 where sweeps need it."""
    wide = facts.successor_dtype == np.uint32 and facts.n_states <= _LARGEST
    large = facts.partition_halo > MAX_GATHERED * np.diff(facts.partition_ptr)
    return np.where(large & wide, 8 * facts.partition_halo, 0)


def swept_table(table: PartitionTable) -> tuple[PartitionTable, bool]:
    """The table in the form that sweeps read fastest, in no more bytes, and whether its successors are global now.

    The table's own arrays may change.
    """
    table = _uniform_rows(table)
    n, halo = table.n_states, table.halo
    if table.successors.dtype != np.uint32 or halo.size <= MAX_GATHERED * n or halo[-1] > _LARGEST:
        return table, False
    _make_global(table.successors, table.first_state, n, halo)
    return replace(table, halo=np.empty(0, np.int64)), True


def in_one_piece(
    table: PartitionTable, discounts: FloatArray, memory: TableMemory
) -> tuple[PartitionTable, FloatArray]:
    """The same arrays, those that sweeps read, in one piece of that memory; durations are the caller's to keep."""
    arrays = {name: getattr(table, name) for name in _SWEPT} | {"durations": discounts}
    ends = np.cumsum([-(-a.nbytes // 8) * 8 for a in arrays.values()]).tolist()
    piece = memory.empty(ends[-1], np.uint8)
    begin = 0
    for (name, array), end in zip(arrays.items(), ends, strict=True):
        copied = piece[begin : begin + array.nbytes].view(array.dtype)
        copied[:] = array
        arrays[name], begin = copied, end
    discounts = arrays["durations"]
    return replace(table, **arrays), discounts


@loop
def _make_global(successors, first, n, halo):
    """Number successors by the whole model's states, in place."""
    for i in range(successors.size):
        to = successors[i]
        successors[i] = np.uint32(first + to if to < n else halo[np.uint64(to - n)])


def uniform_width(rows: _Counts, transitions: _Counts, longest: _Counts, bytes_of_one: int) -> IntArray:
    """Successors of each row of a partition once short rows are filled up; 0 where that takes more than pointers do.

    Parameters
    ----------
    rows, transitions, longest : of a partition or of several: rows, transitions of all, and of the longest one.
    bytes_of_one : of a transition.
    """
    added = (longest * rows - transitions) * bytes_of_one
    return np.where((rows > 0) & (added <= _POINTER_BYTES * (rows + 1)), longest, 0)


def load_code() -> None:
    """Load the loop that renumbers successors."""
    _make_global(np.zeros(0, np.uint32), 0, 0, np.zeros(0, np.int64))


def _uniform_rows(table: PartitionTable) -> PartitionTable:
    """The same table without pointers where its rows are alike, or can be made so within the same bytes."""
    if table.n_rows == 0 or table.successors_per_action:
        return table
    counts = np.diff(table.successor_ptr)
    bytes_of_one = table.successors.itemsize + table.probabilities.itemsize
    width = int(uniform_width(table.n_rows, table.successors.size, int(counts.max()), bytes_of_one))
    if width == 0:
        return table
    successors, probabilities = table.successors, table.probabilities
    if successors.size < width * table.n_rows:
        short = np.flatnonzero(counts < width)
        where = np.repeat(table.successor_ptr[short + 1].astype(np.int64), width - counts[short])
        successors = np.insert(successors, where, 0)
        probabilities = np.insert(probabilities, where, 0)
    return replace(
        table,
        successors_per_action=width,
        successor_ptr=np.empty(0, np.uint32),
        successors=successors,
        probabilities=probabilities,
    )


def _row_of(swept: SweptTable) -> IntArray:
    """int64 [27]: sizes and addresses; the arrays must outlive it. Absent arrays have the address 0."""
    table = swept.table
    arrays: tuple[npt.NDArray[Any], ...] = (
        table.action_ptr,
        table.successor_ptr,
        table.successors,
        table.probabilities,
        table.rewards,
        swept.discounts,
        table.terminal_rewards,
        table.halo,
        table.boundary,
        swept.distributions,
    )
    places = [a.__array_interface__["data"][0] if a.size else 0 for a in arrays]  # sooner than a.ctypes.data
    each = table.actions_per_state, table.successors_per_action
    sizes = [a.size for a in arrays]
    first, last = (table.first_state, table.n_states, table.halo.size), (places.pop(), sizes.pop())
    return np.array([*first, *places, swept.global_successors, *each, *sizes, table.index, *last], np.int64)
