"""What a solve of a finite horizon knows of each stage; the stage t of T is the one with T - t stages to go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import OptionsError
from ooc_mdp.model.mdp import FloatArray

__all__ = ["StageResults"]


@dataclass(frozen=True, slots=True, eq=False)
class StageResults:
    """Policies and values of the stages, which are read when they are asked for: from a result, or from memory."""

    count: int
    """T."""
    errors: FloatArray
    """float64 [T+1]; no value of the stage is further from the exact one; 0 for the final values."""
    kept: tuple[int, ...]
    """Stages whose values were kept, ascending; those of stage 0 are the solution's in any case."""
    policy_dtype: np.dtype[Any]
    """As the policies are kept: uint8 or int32."""
    read_policy: Callable[[int], npt.NDArray[np.int32]]
    read_values: Callable[[int], FloatArray]
    read_final: Callable[[], FloatArray] | None
    """The final values that were given; None where they were 0."""

    def __repr__(self) -> str:
        return f"StageResults({self.count} stages, values of {list(self.kept)})"

    def policy(self, stage: int) -> npt.NDArray[np.int32]:
        """int32 [n_states]; the policy of a stage from 0 to T - 1, -1 where a state has no action.

        Raises
        ------
        OptionsError : there is no such stage.
        """
        if not 0 <= stage < self.count:
            raise OptionsError(f"there is no policy of stage {stage}: the stages are 0 to {self.count - 1}")
        return self.read_policy(stage)

    def values(self, stage: int) -> FloatArray:
        """float64 [n_states]; the values of a stage that was kept.

        Raises
        ------
        OptionsError : it was not.
        """
        if stage not in self.kept:
            named = ", ".join(map(str, self.kept)) or "none"
            raise OptionsError(
                f"the values of stage {stage} were not kept (kept are {named}); solve again with "
                f"--keep-stages {stage}, in Python FiniteHorizon(..., kept_stages=({stage},))"
            )
        return self.read_values(stage)
