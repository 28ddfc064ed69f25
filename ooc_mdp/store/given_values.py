"""Values of states that a user gives: an array, a .npy file, a result or a solution."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np

from ooc_mdp.errors import OptionsError
from ooc_mdp.model.mdp import FloatArray

__all__ = ["GivenValues", "given_values"]


@dataclass(frozen=True, slots=True, eq=False)
class GivenValues:
    """One value for each state."""

    values: FloatArray
    """float64 [n_states], in the source's order and sign; the holder's own, infinite where the given ones are."""
    where: str
    """What messages call them."""
    geometry: dict[str, Any] | None = None
    """The grid of the states, where it is known."""


def given_values(given: Any, what: str) -> GivenValues:
    """The values that are given.

    Parameters
    ----------
    given : an array, of the grid's shape or flat, in the source's order; a result, or what :func:`ooc_mdp.solve`
        returned; or the path of a result or of a .npy file.
    what : they are, for messages, such as "final values".

    Raises
    ------
    OptionsError : it is none of these, or one is no number.
    StoreError : the result is damaged.
    """
    where = what
    if isinstance(given, str | PathLike):
        where = fspath(given)
        given = _read(Path(where))
    holder = getattr(given, "solution", given)
    array = getattr(holder, "values", holder)
    try:
        values = np.array(array, np.float64).reshape(-1)
    except (TypeError, ValueError, OverflowError) as error:
        raise OptionsError(f"{where} are no array of numbers: {error}") from None
    if np.iscomplexobj(array) or values.size == 0:
        raise OptionsError(f"{where} are no array of real numbers, one for each state")
    unknown = np.flatnonzero(np.isnan(values))
    if unknown.size:
        raise OptionsError(f"{where}: that of state {unknown[0]} is nan; give finite numbers")
    return GivenValues(values, where, getattr(holder, "geometry", None))


def _read(path: Path) -> Any:
    """The array of a .npy file, or a result."""
    from ooc_mdp.store.result import is_result, open_result

    if is_result(path):
        return open_result(path)
    try:
        loaded = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        why = getattr(error, "strerror", None) or error
        raise OptionsError(f"{path} is neither a result nor a .npy file with a value for each state: {why}") from None
    if not isinstance(loaded, np.ndarray):
        raise OptionsError(f"{path} holds several arrays; give a .npy file, which holds one")
    return loaded
