"""What titles and labels say of a result: its name, its criterion, what is proved."""

from __future__ import annotations

import math

from ooc_mdp.model.criterion import EVALUATED
from ooc_mdp.store.result import Result

__all__ = ["heading", "proved", "value_word"]


def value_word(result: Result) -> str:
    """What the values are called."""
    return "relative value" if result.solution.gain is not None else "value"


def heading(result: Result, shown: str) -> str:
    """What is drawn, of which model, under which criterion."""
    source = result.provenance.get("source", result.path.name)
    asked = f"discount {result.solution.discount:g}"
    criterion = str(result.solution.criterion.get("criterion", "discounted"))
    if criterion != "discounted":
        asked = criterion.replace("_", " ").replace("-", " ")
    return f"{shown} of {source}, {asked}"


def proved(result: Result) -> str:
    """What is proved of the values, in symbols."""
    solution = result.solution
    if solution.gain is not None:
        return f"gain between {solution.gain[0]:.6g} and {solution.gain[1]:.6g}"
    if not math.isfinite(solution.error_bound):
        return "no error bound is proved"
    exact = "V_π" if EVALUATED in solution.criterion else "V*"
    return f"|V − {exact}| ≤ {solution.error_bound:.2g}"
