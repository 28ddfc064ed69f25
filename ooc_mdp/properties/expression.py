"""Expressions over labels, such as `"done" & !crashed | (left & right)`, as sets of states.

    or    = and { "|" and }        and  = not { "&" not }
    not   = "!" not | "(" or ")" | "true" | "false" | NAME | "NAME with any characters but quotes"

! binds more than &, & more than |, as in PRISM. This module knows no files: who has the labels is the caller's.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ooc_mdp.errors import OptionsError
from ooc_mdp.model.annotations import StateSet
from ooc_mdp.quoting import quote

__all__ = ["check_expression", "states_where"]

_TOKEN = re.compile(r'\s*(?:"([^"]*)"|([A-Za-z_][A-Za-z0-9_.\-]*)|([!&|()]))')
_DEEPEST = 200
"""Parentheses and negations in each other."""


@dataclass(slots=True)
class _Parser:
    """Reads an expression once, from its beginning."""

    text: str
    label: Callable[[str], StateSet]
    """The states of a label."""
    n_states: int
    at: int = 0
    depth: int = 0

    def read(self) -> StateSet:
        """The whole expression."""
        found = self.any_of()
        if self.text[self.at :].strip():
            raise self.error("& or | or the end")
        return found

    def any_of(self) -> StateSet:
        """Alternatives."""
        found = self.all_of()
        while self.take("|"):
            found = found | self.all_of()
        return found

    def all_of(self) -> StateSet:
        """What holds together."""
        found = self.single()
        while self.take("&"):
            found = found & self.single()
        return found

    def single(self) -> StateSet:
        """A label, a constant, a negation, or an expression in parentheses."""
        self.depth += 1
        if self.depth > _DEEPEST:
            raise OptionsError(f"the expression {quote(self.text, 60)} is nested deeper than {_DEEPEST}; simplify it")
        if self.take("!"):
            found = ~self.single()
        elif self.take("("):
            found = self.any_of()
            if not self.take(")"):
                raise self.error("a closing parenthesis")
        else:
            found = self.named()
        self.depth -= 1
        return found

    def named(self) -> StateSet:
        """The states of a label, all states or none."""
        match = _TOKEN.match(self.text, self.at)
        if match is None or match[3] is not None:
            raise self.error("a label")
        self.at = match.end()
        if match[1] is None and match[2] in ("true", "false"):
            return np.full(self.n_states, match[2] == "true")
        return self.label(match[2] if match[1] is None else match[1])

    def take(self, sign: str) -> bool:
        """Whether the next sign is this one, which is read then."""
        match = _TOKEN.match(self.text, self.at)
        if match is None or match[3] != sign:
            return False
        self.at = match.end()
        return True

    def error(self, expected: str) -> OptionsError:
        """What is wrong where the parser stands."""
        rest = self.text[self.at :].strip()
        found = f"{quote(rest, 20)} follows" if rest else "it ends"
        before = f" after {quote(self.text[: self.at].strip(), 40)}" if self.text[: self.at].strip() else ""
        return OptionsError(
            f"the expression {quote(self.text, 60)}: {expected} is expected{before}, but {found}; write labels with "
            f"!, &, | and parentheses, such as 'done & !\"all lost\"'"
        )


def states_where(text: str, label: Callable[[str], StateSet], n_states: int) -> StateSet:
    """bool [n_states]; where an expression holds.

    Parameters
    ----------
    label : returns the states of a label, and raises OptionsError for one that there is not.

    Raises
    ------
    OptionsError : the text is no expression.
    """
    return _Parser(text, label, n_states).read()


def check_expression(name: str, text: object) -> None:
    """Refuse what is no expression, before any label is known."""
    if not isinstance(text, str):
        raise OptionsError(f"{name} is {text!r}; give an expression over labels as a text")
    states_where(text, lambda _: np.zeros(1, np.bool_), 1)
