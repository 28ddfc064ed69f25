"""What discount and row sums make of a change of values, and how far float64 rounds it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import OptionsError
from ooc_mdp.model.mdp import FloatArray, IntArray, discounts

__all__ = ["UNDERFLOW", "UNIT_ROUNDOFF", "UP", "Contraction", "underflow_of"]

UNIT_ROUNDOFF = 2.0**-53
UNDERFLOW = 1e-310
"""Stands for what a product loses where it underflows: 2.5e-324 at most, and many enter a bound."""
_UNDERFLOW_FLOAT32 = 2.0**-178
"""The same where a device multiplies weights that are 2^-896 of themselves, as it reads float32 (`tiles/rows.cuh`)."""
UP = 1.0 + 1e-12
"""Sums of a few float64 bounds are rounded up by this factor."""


@dataclass(frozen=True, slots=True)
class Contraction:
    """Per partition, what discount and row sums make of a change of one unit of value."""

    discount: FloatArray
    """float64 [P]; largest g(s,a) = gamma**tau of the partition."""
    row_sum: FloatArray
    """float64 [P]; largest row sum, rounded up."""
    normaliser: FloatArray
    """float64 [P]; 1 / (1 - discount * row_sum)."""
    shift_ratio: FloatArray
    """float64 [P]; by at most how much a normalised residual falls, and by at least 1, when all values rise by 1: more
    than 1 where rows sum to less than the largest, infinite where nothing is known of the least sum."""
    normaliser_max: FloatArray
    """float64 [P]; what a normalised residual is multiplied by at most to give the plain one: the largest
    1 - g(s,a) row_sum, at most 1."""

    @classmethod
    def of(
        cls,
        gamma: float,
        shortest_durations: FloatArray,
        row_sums: FloatArray,
        max_successors: IntArray,
        min_row_sums: FloatArray | None = None,
        uniform_discount: bool = False,
    ) -> Contraction:
        """From the discount and the store's small arrays (each [P]).

        Parameters
        ----------
        shortest_durations : of the rows of each partition, 1 where there are no durations.
        row_sums, min_row_sums : largest and least sums of rows that do not end the process.
        uniform_discount : whether every state has actions and all rows the same discount.

        Raises
        ------
        OptionsError : a row sums to so much above 1 that gamma times it is no contraction.
        """
        with np.errstate(divide="ignore"):
            discount = discounts(gamma, shortest_durations) * (1 + 4 * UNIT_ROUNDOFF)
        row_sum = row_sums * (1 + (max_successors + 2) * UNIT_ROUNDOFF)
        margin = 1 - discount * row_sum
        if margin.size and margin.min() <= 0:
            p = int(np.argmin(margin))
            raise OptionsError(
                f"partition {p} has a row that sums to {row_sum[p]:.9g} and a discount of {discount[p]:.9g} a "
                f"step: their product is not below 1, so no error can be proved; lower the discount, or make the "
                f"store again with float64 numbers (--dtype, in Python dtype) and, where its rows do not sum to 1, "
                f"with --normalize (normalize=True)"
            )
        shift_ratio = np.full_like(margin, np.inf)
        if min_row_sums is not None:
            least = min_row_sums * (1 - (max_successors + 2) * UNIT_ROUNDOFF)
            shift_ratio = (1 + discount * (row_sum - least) / margin) * UP
        return cls(
            discount, row_sum, 1 / margin, shift_ratio, margin * UP if uniform_discount else np.ones_like(margin)
        )


def underflow_of(dtype: npt.DTypeLike) -> float:
    """What a product of a backup loses where it underflows, on any backend, for weights of this type."""
    return _UNDERFLOW_FLOAT32 if np.dtype(dtype) == np.float32 else UNDERFLOW
