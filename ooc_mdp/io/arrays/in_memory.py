"""P and R of pymdptoolbox that are in memory: their types and shapes, before a row is read.

Lists, arrays and SciPy matrices of integers and floats up to float64 are read. What float64 would cut or reinterpret is
an error: complex numbers, bools, text, objects, long doubles, masked arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ooc_mdp.errors import InputError
from ooc_mdp.model.mdp import FloatArray

__all__ = [
    "check_square",
    "check_type",
    "csr_arrays",
    "dense_array",
    "matrices_in_memory",
    "reward_shapes",
    "rewards_in_memory",
]


def matrices_in_memory(path: str, name: str, value: Any) -> list[Any]:
    """A list of dense or sparse matrices, one per action."""
    if isinstance(value, np.ndarray) and value.dtype != object:
        if value.ndim != 3:
            raise InputError(path, f"{name} has shape {value.shape}; it must be (actions, states, states)")
        value = list(dense_array(path, name, value))
    if hasattr(value, "tocsr") or not isinstance(value, (list, tuple, np.ndarray)):
        raise InputError(path, f"{name} is one {type(value).__name__}; give a list of matrices, one per action")
    matrices = [m if hasattr(m, "tocsr") else dense_array(path, f"{name}[{i}]", m) for i, m in enumerate(value)]
    if not matrices:
        raise InputError(path, f"{name} is empty; give one matrix per action")
    for action, matrix in enumerate(matrices):
        check_type(path, f"{name}[{action}]", matrix)
    return matrices


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


def check_square(path: str, name: str, matrices: Sequence[Any], n_states: int) -> None:
    """Raise InputError for the first matrix that is not states x states."""
    for action, matrix in enumerate(matrices):
        if tuple(matrix.shape) != (n_states, n_states) or n_states == 0:
            hint = ""
            if name == "P" and isinstance(matrix, np.ndarray) and len(matrix.shape) == 2:
                hint = "; if P is (states, states, actions), give numpy.transpose(P, (2, 0, 1))"
            raise InputError(
                path,
                f"{name}[{action}] has shape {tuple(matrix.shape)}; every matrix is states x states{hint}",
            )


def rewards_in_memory(path: str, value: Any, n_states: int, n_actions: int) -> tuple[FloatArray | None, list[Any]]:
    """R as an array [S, 1] or [S, A], otherwise as matrices."""
    sparse = hasattr(value, "tocsr")
    listed = isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.dtype == object)
    if sparse or not (listed and any(hasattr(m, "tocsr") or dense_array(path, "R", m).ndim == 2 for m in value)):
        dense = dense_array(path, "R", value.toarray() if sparse else value)
        check_type(path, "R", dense)
        if dense.shape in ((n_states,), (n_states, n_actions)):
            return dense.astype(np.float64).reshape(n_states, -1), []
        if dense.ndim != 3:
            raise InputError(path, reward_shapes(dense.shape, n_states, n_actions))
        value = dense
    matrices = matrices_in_memory(path, "R", value)
    if len(matrices) != n_actions:
        raise InputError(path, f"R has {len(matrices)} matrices, P has {n_actions}")
    check_square(path, "R", matrices, n_states)
    return None, matrices


def reward_shapes(shape: tuple[int, ...], n_states: int, n_actions: int) -> str:
    """The message for rewards of another shape."""
    s, a = n_states, n_actions
    return f"R has shape {shape}; {s} states and {a} actions ask for ({s},), ({s}, {a}) or ({a}, {s}, {s})"


def csr_arrays(matrix: Any) -> Any:
    """A dense matrix unchanged, a sparse one as CSR arrays."""
    if not hasattr(matrix, "tocsr"):
        return matrix
    csr = matrix.tocsr()
    return csr.indptr.astype(np.int64), csr.indices.astype(np.int64), csr.data.astype(np.float64)
