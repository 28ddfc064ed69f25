"""How memory, types and numbers are written so that host and device agree: one copy of each small rule.

    allocation   part | pad to 256 bytes | part | pad | ...
    encoded      a double as an unsigned integer whose order is that of the numbers; 0 is "no number at all"

The device's side of this encoding is in ``numbers.cuh``. Nothing here knows states, partitions or tables.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.model.mdp import FloatArray

__all__ = ["ALIGNMENT", "aligned", "c_type", "numbers_of_encoded"]

ALIGNMENT = 256
"""Bytes at whose multiples the parts of an allocation begin."""
_C_TYPES = {
    "u1": "unsigned char",
    "u2": "unsigned short",
    "u4": "unsigned int",
    "i8": "long long",
    "f4": "float",
    "f8": "double",
}
_SIGN = np.uint64(1 << 63)


def aligned(nbytes: int) -> int:
    """Bytes that a part takes of an allocation."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def c_type(dtype: np.dtype[Any]) -> str:
    """The C type with the values of a NumPy type.

    Raises
    ------
    KeyError : no kernel reads such values.
    """
    return _C_TYPES[dtype.str[1:]]


def numbers_of_encoded(encoded: npt.NDArray[np.uint64]) -> FloatArray:
    """The doubles of an order-preserving encoding, in an array of the same shape; -inf where it is 0."""
    bits = np.where(encoded >= _SIGN, encoded & ~_SIGN, ~encoded)
    return np.where(encoded == 0, -np.inf, bits.view(np.float64))
