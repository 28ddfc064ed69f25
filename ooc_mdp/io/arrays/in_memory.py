"""Arrays and matrices that are in memory: their types, before a row is read.

Lists, arrays and SciPy matrices of integers and floats up to float64 are read. What float64 would cut or reinterpret is
an error: complex numbers, bools, text, objects, long doubles, masked arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ooc_mdp.errors import InputError
from ooc_mdp.model.mdp import FloatArray, IntArray

__all__ = ["check_type", "csr_arrays", "dense_array", "exact_floats"]

_EXACT = 2.0**53
"""Integers below this are float64 numbers."""


def dense_array(path: str, name: str, value: Any) -> np.ndarray[Any, Any]:
    """A list or array as an ndarray, whose dtype is still to be checked."""
    if isinstance(value, np.ma.MaskedArray):
        raise InputError(path, f"{name} is a masked array; fill it, or give a sparse matrix")
    try:
        return np.asarray(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise InputError(path, f"{name} is no array of numbers: {str(error)[:200]}") from None


def check_type(path: str, name: str, matrix: Any) -> None:
    """Raise InputError for numbers that float64 would cut or reinterpret: complex, bool, text, objects, long double."""
    dtype = np.dtype(matrix.dtype)
    if dtype.kind not in "fiu" or dtype.itemsize > 8:
        raise InputError(
            path, f"{name} has dtype {dtype}; probabilities and rewards are numbers: integers or floats up to float64"
        )


def exact_floats(
    path: str, name: str, values: np.ndarray[Any, Any], place: Callable[[int], str] | None = None
) -> FloatArray:
    """Numbers as float64, of whatever type `check_type` accepts.

    Parameters
    ----------
    place : how a user writes the i-th element in C order; by its index in the array by default.

    Raises
    ------
    InputError : float64 does not hold an integer exactly.
    """
    floats = values.astype(np.float64)
    if values.dtype.kind in "iu" and values.dtype.itemsize == 8:
        for i in map(int, np.flatnonzero(np.abs(floats) >= _EXACT)):
            given, rounded = int(values.flat[i]), int(floats.flat[i])
            if given != rounded:
                index = ", ".join(str(int(k)) for k in np.unravel_index(i, values.shape))
                raise InputError(
                    path,
                    f"{place(i) if place else f'{name}[{index}]'} is {given}, which float64 would round to {rounded}; "
                    "scale the numbers down, or give them as floats if the difference does not matter",
                )
    return floats


def csr_arrays(path: str, name: str, matrix: Any) -> tuple[IntArray, IntArray, FloatArray]:
    """A SciPy matrix as CSR arrays: pointers, columns, values; raises InputError as :func:`exact_floats`."""
    csr = matrix.tocsr()

    def place(i: int) -> str:
        return f"{name}[{np.searchsorted(csr.indptr, i, side='right') - 1}, {csr.indices[i]}]"

    return csr.indptr.astype(np.int64), csr.indices.astype(np.int64), exact_floats(path, name, csr.data, place)
