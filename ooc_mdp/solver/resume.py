"""What `--resume` finds where there is no checkpoint: a result that may already prove what is asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ooc_mdp.errors import OptionsError
from ooc_mdp.model.solution import Solution
from ooc_mdp.options import SolveOptions
from ooc_mdp.scheduling.target import default_target
from ooc_mdp.store.checkpoint import checkpoint_path, remove_checkpoint
from ooc_mdp.store.result import open_result

__all__ = ["finished_before"]


def _default_target(solution: Solution) -> float:
    """The error that a solve at a discount below 1 would be asked for at these values, if nobody said."""
    values, claims = solution.values, solution.certificate
    return default_target(float(values.min()), float(values.max()), lambda: claims.error_bound, claims.rounding)


def finished_before(
    output: Path,
    identity: dict[str, Any],
    options: SolveOptions,
    note: Callable[[str], None],
    default: Callable[[Solution], float] = _default_target,
) -> Solution | None:
    """What `--resume` without a checkpoint begins with: the result that is there, if it proves what is asked, or None.

    Parameters
    ----------
    note : is told which.
    default : the error that is asked for at a solution's values where the options do not say.

    Raises
    ------
    OptionsError : a result is there that belongs to another table, sense or discount.
    """
    short = ""
    if output.exists():
        result = open_result(output)
        for name, mine in identity.items():
            if result.identity.get(name) != mine:
                theirs = result.identity.get(name)
                raise OptionsError(f"the result {output} belongs to {name} {theirs}, not {mine}; name another output")
        claims = result.solution.certificate
        if options.residual is not None:
            enough = claims.residual_bound <= options.residual
        else:
            asked = default(result.solution) if options.epsilon is None else options.epsilon
            enough = claims.error_bound <= asked
        if enough:
            remove_checkpoint(checkpoint_path(output))  # of which there is what a killed run began, at most
            note(f"{output} holds what is asked for: nothing is left to do")
            return result.solution
        short = f"{output} proves less than what is asked for, and "
    note(f"{short}there is no checkpoint {checkpoint_path(output)}: starting from the beginning")
    return None
