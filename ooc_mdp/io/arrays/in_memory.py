"""Arrays and matrices that are in memory: their types, before a row is read.

Lists, arrays and SciPy matrices of integers and floats up to float64 are read. What float64 would cut or reinterpret is
an error: complex numbers, bools, text, objects, long doubles, masked arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ooc_mdp.errors import InputError
from ooc_mdp.model.mdp import FloatArray, IntArray

__all__ = ["check_type", "csr_arrays", "dense_array"]


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


def csr_arrays(matrix: Any) -> tuple[IntArray, IntArray, FloatArray]:
    """A SciPy matrix as CSR arrays: pointers, columns, values."""
    csr = matrix.tocsr()
    return csr.indptr.astype(np.int64), csr.indices.astype(np.int64), csr.data.astype(np.float64)
