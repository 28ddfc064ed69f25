"""One S x S matrix per action, read forward by rows, and their rows in the order (state, action).

    matrices  P[0], ..., P[A-1]        rows  (s,0), ..., (s,A-1), (s+1,0), ...      row (s,a) = P[a][s, :]

Matrices may be dense, or CSR in a file of scipy.sparse.save_npz. This module knows no format.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from ooc_mdp.errors import InputError
from ooc_mdp.io.arrays.array_stream import ZipArrays
from ooc_mdp.io.arrays.pointer_stream import PointerStream, count_that_fits
from ooc_mdp.model.mdp import FloatArray, IntArray

__all__ = [
    "Csr",
    "CsrFile",
    "DenseMatrix",
    "Matrix",
    "check_columns",
    "interleave_actions",
    "lookup_rewards",
    "sparse_shape",
]

_SPARSE_NAMES = ("format", "shape", "indptr", "indices", "data", "_is_array")
"""What scipy.sparse.save_npz writes; `_is_array` is there where the matrix was a sparse array, of the same numbers."""

Csr = tuple[IntArray, IntArray, FloatArray]
"""pointers from 0 [rows + 1], columns, values."""


class Matrix(Protocol):
    """An S x S matrix whose rows are read forward."""

    def rows_that_fit(self, count: int, limit: int) -> int:
        """Number of the next `count` rows that have at most `limit` entries together, at least 1."""
        ...

    def rows(self, count: int) -> Csr:
        """The next `count` rows."""
        ...


class DenseMatrix:
    """S rows of S floats, which `read(first, rows)` returns in any order."""

    def __init__(self, n_states: int, read: Callable[[int, int], np.ndarray[Any, Any]]) -> None:
        self._n_states = n_states
        self._read = read
        self._next = 0

    def rows_that_fit(self, count: int, limit: int) -> int:
        """See :class:`Matrix`."""
        return max(1, min(count, limit // self._n_states))

    def rows(self, count: int) -> Csr:
        """See :class:`Matrix`."""
        dense = self._read(self._next, count).astype(np.float64, copy=False)
        self._next += count
        row, column = np.nonzero(dense)
        pointers = np.zeros(count + 1, np.int64)
        np.cumsum(np.bincount(row, minlength=count), out=pointers[1:])
        return pointers, column.astype(np.int64, copy=False), dense[row, column]


class CsrFile:
    """A CSR matrix as scipy.sparse.save_npz writes it, read forward."""

    def __init__(self, archive: ZipArrays, n_states: int) -> None:
        self._path = archive.path
        self._n_states = n_states
        self._indices = archive.open("indices").require("iu", 1)
        self._data = archive.open("data").require("fiu", 1)
        indptr = archive.open("indptr").require("iu", 1)
        if indptr.count != n_states + 1:
            raise indptr.error(f"has {indptr.count} entries; {n_states} states ask for {n_states + 1}")
        if self._data.count != self._indices.count:
            raise self._data.error(f"has {self._data.count} entries, indices.npy {self._indices.count}")
        self._next = 0
        self._pointers = PointerStream(self._path, indptr, self._indices.count, "entries in indices.npy")

    def rows_that_fit(self, count: int, limit: int) -> int:
        """See :class:`Matrix`."""
        return count_that_fits(self._pointers.peek(count), limit)

    def rows(self, count: int) -> Csr:
        """See :class:`Matrix`."""
        pointers = self._pointers.peek(count)
        longest = int(np.diff(pointers).max(initial=0))
        if longest > self._n_states:
            raise InputError(self._path, f"indptr.npy: a row has {longest} entries, more than {self._n_states} states")
        self._pointers.advance(count)
        n = int(pointers[-1] - pointers[0])
        csr = pointers - pointers[0], self._indices.read(n), self._data.read_floats(n)
        check_columns(self._path, "indices.npy", self._next, csr, self._n_states)
        self._next += count
        return csr


def check_columns(path: str, name: str, first_row: int, csr: Csr, n_states: int) -> None:
    """Check that all entries lie inside an S x S matrix; the rows begin at `first_row`."""
    pointers, columns, _ = csr
    outside = np.flatnonzero((columns < 0) | (columns >= n_states))
    if outside.size:
        row = first_row + int(np.searchsorted(pointers, outside[0], side="right")) - 1
        raise InputError(
            path,
            f"{name}: row {row} has an entry in column {columns[outside[0]]}, which does not exist: the {n_states} "
            f"states are 0..{n_states - 1}",
        )


def sparse_shape(archive: ZipArrays) -> tuple[int, int]:
    """The shape that scipy.sparse.save_npz wrote, after a check that the matrix is CSR."""
    for name in ("format", "shape", "indptr", "indices", "data"):
        if not archive.has(name):
            what = "holds a matrix that is not CSR" if archive.has("format") else "is no sparse matrix"
            raise InputError(
                archive.path,
                f"{what}: {name}.npy is missing; save with scipy.sparse.save_npz(file, M.tocsr())",
            )
    archive.check_names(_SPARSE_NAMES)
    kind = archive.open("format").require("S", 0)
    word = kind.read(1)[0].decode("ascii", "replace") if kind.dtype.itemsize <= 8 else "unknown"
    if word != "csr":
        raise InputError(archive.path, f"the matrix has format {word}; save M.tocsr() instead")
    shape = archive.open("shape").require("iu", 1)
    if shape.count != 2:
        raise shape.error(f"has {shape.count} entries; a matrix has 2")
    n_rows, n_columns = (int(extent) for extent in shape.read(2))
    return n_rows, n_columns


def interleave_actions(parts: Sequence[Csr], n_states: int) -> Csr:
    """Rows of A matrices, n_states each, in the order (state, action)."""
    n_actions = len(parts)
    lengths = np.stack([np.diff(pointers) for pointers, _, _ in parts], axis=1)
    pointers = np.zeros(n_states * n_actions + 1, np.int64)
    np.cumsum(lengths.ravel(), out=pointers[1:])
    columns = np.empty(int(pointers[-1]), np.int64)
    values = np.empty(columns.size)
    for action, (own, own_columns, own_values) in enumerate(parts):
        shift = pointers[:-1].reshape(n_states, n_actions)[:, action] - own[:-1]
        place = np.arange(own_columns.size) + np.repeat(shift, np.diff(own))
        columns[place] = own_columns
        values[place] = own_values
    return pointers, columns, values


def lookup_rewards(transitions: Csr, rewards: Csr, n_states: int) -> FloatArray:
    """The entries of the reward matrix at the transitions, 0 where it has none; repeated entries are added up."""

    def keys(csr: Csr) -> IntArray:
        return np.repeat(np.arange(csr[0].size - 1), np.diff(csr[0])) * n_states + csr[1]

    wanted, given = keys(transitions), keys(rewards)
    places, inverse = np.unique(given, return_inverse=True)
    if places.size == 0:
        return np.zeros(wanted.size)
    total = np.bincount(inverse, weights=rewards[2], minlength=places.size)
    at = np.minimum(np.searchsorted(places, wanted), places.size - 1)
    return np.where(places[at] == wanted, total[at], 0.0)
