"""State variables of a source: columns of numbers in an unnamed temporary file, written block by block.

    block of states first..end  ─▶  one run of numbers for each variable, in the narrowest type that holds them

Texts are numbered as they come. A variable is dropped if it has a value that is not finite, different types, or more
texts than are kept. Blocks may come in any order, from any thread, and again; memory holds a few numbers per block. The
file is in the folder for temporary files (TMPDIR) and vanishes with the source. Knows no format and no store.
"""

from __future__ import annotations

import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import InputError
from ooc_mdp.model.annotations import BOOL, DOUBLE, INT, STRING, Variable, VariableValues

__all__ = ["MOST_TEXTS", "Texts", "VariableColumns"]

_TYPES = (np.int8, np.int16, np.int32, np.int64)
MOST_TEXTS = 1 << 16
"""Different texts of one variable."""


class Texts(NamedTuple):
    """A column of texts."""

    which: npt.NDArray[np.int64]
    """int64 [states]; positions in `texts`."""
    texts: Sequence[str]


class _Run(NamedTuple):
    """Values of one variable in consecutive states."""

    first: int
    size: int
    at: int
    """Offset in the file."""
    dtype: np.dtype[Any]
    low: float
    high: float


class VariableColumns:
    """Of one source; complete once every state has a value of each variable."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._file: IO[bytes] | None = None
        self._end = 0
        self._runs: dict[str, dict[int, _Run]] = {}
        self._types: dict[str, str] = {}
        self._texts: dict[str, dict[str, int]] = {}
        self._dropped: set[str] = set()

    def put(self, path: str, first: int, values: Mapping[str, npt.NDArray[Any] | Texts]) -> None:
        """Keep values of consecutive states: for each variable an array of integers, bools or floats, or texts.

        Parameters
        ----------
        path : of the source, for messages.

        Raises
        ------
        InputError : the temporary file has no room.
        """
        with self._lock:
            for name, given in values.items():
                column = self._numbered(name, given) if isinstance(given, Texts) else given
                self._join_types(name, STRING if isinstance(given, Texts) else _type_of(column))
                if column.dtype.kind == "f":
                    if not np.isfinite(column).all():
                        self._dropped.add(name)
                    low, high = (float(column.min()), float(column.max())) if column.size else (0.0, 0.0)
                    dtype: np.dtype[Any] = np.dtype(np.float64)
                else:
                    low, high = (int(column.min()), int(column.max())) if column.size else (0, 0)
                    dtype = next(np.dtype(each) for each in _TYPES if _holds(each, low, high))
                run = _Run(first, column.size, self._end, dtype, low, high)
                self._append(path, column.astype(dtype).tobytes())
                self._runs.setdefault(name, {})[first] = run

    def variables(self, n_states: int) -> dict[str, Variable]:
        """The variables of which every state has a value, in the order in which they came."""
        found = {}
        for name, runs in self._runs.items():
            if runs and name not in self._dropped and _cover(list(runs.values()), n_states):
                low, high = min(run.low for run in runs.values()), max(run.high for run in runs.values())
                found[name] = Variable(self._types[name], low, high, tuple(self._texts.get(name, ())))
        return found

    def _join_types(self, name: str, kind: str) -> None:
        """A variable of bools and integers is one of integers; of other types together it is dropped."""
        before = self._types.setdefault(name, kind)
        if {before, kind} == {BOOL, INT}:
            self._types[name] = INT
        elif before != kind:
            self._dropped.add(name)

    def _numbered(self, name: str, given: Texts) -> npt.NDArray[np.int64]:
        """The numbers of a column's texts, which count the variable's texts as they come."""
        known = self._texts.setdefault(name, {})
        used, inverse = np.unique(given.which, return_inverse=True)
        if len(known) + used.size > 2 * MOST_TEXTS:
            self._dropped.add(name)
            return np.zeros(given.which.size, np.int64)
        numbers = np.array([known.setdefault(given.texts[k], len(known)) for k in used.tolist()], np.int64)
        if len(known) > MOST_TEXTS:
            self._dropped.add(name)
        return numbers[inverse] if used.size else np.zeros(0, np.int64)

    def incomplete(self, n_states: int) -> list[str]:
        """The variables of which some states have no value, and those that are dropped."""
        complete = self.variables(n_states)
        return [name for name in self._runs if name not in complete]

    def read(self, name: str, first: int, end: int) -> VariableValues:
        """int64, of doubles float64 [end - first]; values of consecutive states, all of which have one."""
        out: VariableValues = np.empty(end - first, np.float64 if self._types[name] == DOUBLE else np.int64)
        with self._lock:
            assert self._file is not None
            for run in self._runs[name].values():
                low, high = max(first, run.first), min(end, run.first + run.size)
                if low < high:
                    self._file.seek(run.at + (low - run.first) * run.dtype.itemsize)
                    data = self._file.read((high - low) * run.dtype.itemsize)
                    out[low - first : high - first] = np.frombuffer(data, run.dtype)
        return out

    def _append(self, path: str, data: bytes) -> None:
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile()  # noqa: SIM115
                weakref.finalize(self, self._file.close)
            self._file.seek(self._end)
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            folder = tempfile.gettempdir()
            why = f"values of its variables have no room in {folder} ({error.strerror}): {self._end} bytes so far"
            raise InputError(path, f"{why}; set TMPDIR to a folder with more room") from None
        self._end += len(data)


def _type_of(column: npt.NDArray[Any]) -> str:
    """The type of a variable with such a column."""
    return {"b": BOOL, "f": DOUBLE}.get(column.dtype.kind, INT)


def _holds(dtype: type[np.signedinteger[Any]], low: float, high: float) -> bool:
    """Whether a type holds numbers from low to high."""
    return bool(np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max)


def _cover(runs: list[_Run], n_states: int) -> bool:
    """Whether runs follow each other from state 0 to the last."""
    end = 0
    for run in sorted(runs):
        if run.first != end:
            return False
        end += run.size
    return end == n_states
