"""Expressions over labels and state variables, such as `"done" & !crashed | (x = 3 & y < x + 2)`, as sets of states.

    or    = and { "|" and }                  comparison = sum [ ("=" | "!=" | "<" | "<=" | ">" | ">=") sum ]
    and   = not { "&" not }                  sum        = product { ("+" | "-") product }
    not   = "!" not | comparison             product    = factor { "*" factor }
    factor = "-" factor | "(" or ")" | NUMBER | "true" | "false" | NAME | "NAME with any characters but quotes"

Operators bind as in PRISM. A name that stands alone is a label or a bool variable, one beside a comparison or an
arithmetic sign is a variable; of bools, false is 0 and true is 1. Sums, differences and products are of whole numbers,
which are exact; a decimal number is only compared. A variable of texts is compared with a text in quotes. This module
knows no files: who has labels and values is the caller's.
"""

from __future__ import annotations

import operator
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from ooc_mdp.errors import OptionsError
from ooc_mdp.model.annotations import BOOL, DOUBLE, STRING, StateSet, Variable, VariableValues
from ooc_mdp.quoting import listed, quote

__all__ = ["StateNames", "check_expression", "states_where"]

_NUMBER = r"[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_TOKEN = re.compile(rf'\s*(?:"([^"]*)"|([A-Za-z_][A-Za-z0-9_.\-]*)|({_NUMBER})|(<=|>=|!=|[!&|()=<>+*\-]))')
_PRISM = re.compile(r'\s*([PR])(?:\{"([^"]+)"\})?(max|min)?\s*=\s*\?\s*\[\s*F\b(?:<=([0-9]+))?\s*([^\[\]]*\S)\s*\]\s*')
"""A property of PRISM: Pmax=? [F<=3 goal], R{"steps"}min=? [F goal]."""
_DEEPEST = 100
"""Parentheses and negations in each other."""
_DIGITS = 18
_PIECE = 1 << 20
"""States that are compared at a time."""
_INT64 = np.iinfo(np.int64)
_EXACT = 1 << 53
"""Whole numbers up to it are float64."""
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}


class StateNames(Protocol):
    """What names in an expression mean, as :class:`~ooc_mdp.model.annotations.Annotations` has it."""

    @property
    def labels(self) -> Sequence[str]:
        """Names of the labels."""
        ...

    @property
    def variables(self) -> Mapping[str, Variable]:
        """State variables by name."""
        ...

    def label(self, name: str) -> StateSet:
        """The states of a label."""
        ...

    def values(self, name: str, first: int, end: int) -> VariableValues:
        """int64, of doubles float64 [end - first]; values of a variable in consecutive states."""
        ...


@dataclass(frozen=True, slots=True)
class _Name:
    """A name of which is not yet known whether it is a label's or a variable's."""

    text: str
    quoted: bool
    at: int


@dataclass(frozen=True, slots=True)
class _Term:
    """A number for each state."""

    read: Callable[[int, int], VariableValues | float]
    """Returns the numbers of consecutive states: first, end."""
    low: float
    high: float
    """Bounds of all numbers; of whole ones in the exact integers of Python."""

    @property
    def decimal(self) -> bool:
        """Whether the numbers are float64."""
        return isinstance(self.low, float)


_Operand = StateSet | _Term | _Name


@dataclass(slots=True)
class _Parser:
    """Reads an expression once, from its beginning."""

    text: str
    names: StateNames
    n_states: int
    at: int = 0
    depth: int = 0

    def read(self) -> StateSet:
        """The whole expression."""
        found = self.as_set(self.any_of())
        if self.text[self.at :].strip():
            raise self.error("& or | or the end")
        return found

    def any_of(self) -> _Operand:
        """Alternatives."""
        found = self.all_of()
        while self.take("|"):
            found = self.as_set(found) | self.as_set(self.all_of())
        return found

    def all_of(self) -> _Operand:
        """What holds together."""
        found = self.negated()
        while self.take("&"):
            found = self.as_set(found) & self.as_set(self.negated())
        return found

    def negated(self) -> _Operand:
        """A comparison, or a negation."""
        if not self.take("!"):
            return self.comparison()
        self.deeper()
        found = ~self.as_set(self.negated())
        self.depth -= 1
        return found

    def comparison(self) -> _Operand:
        """A label, a number, or two numbers that are compared."""
        left = self.sum_of()
        sign = self.take(*_COMPARISONS)
        if not sign:
            return left
        right = self.sum_of()
        one, other = self.text_terms(left, sign, right) or (self.as_term(left), self.as_term(right))
        self.check_comparable(one, other)
        compare = _COMPARISONS[sign]
        found = np.empty(self.n_states, np.bool_)
        for first in range(0, self.n_states, _PIECE):
            end = min(first + _PIECE, self.n_states)
            found[first:end] = compare(one.read(first, end), other.read(first, end))
        return found

    def sum_of(self) -> _Operand:
        """Sums and differences."""
        found = self.product()
        while sign := self.take("+", "-"):
            found = self.combined(sign, found, self.product())
        return found

    def product(self) -> _Operand:
        """Products."""
        found = self.factor()
        while self.take("*"):
            found = self.combined("*", found, self.factor())
        return found

    def factor(self) -> _Operand:
        """A name, a number, a constant, a negative, or an expression in parentheses."""
        if self.take("-"):
            self.deeper()
            term = self.as_term(self.factor())
            found: _Operand = _negated(term) if term.decimal else self.combined("-", _constant(0), term)
            self.depth -= 1
        elif self.take("("):
            self.deeper()
            found = self.any_of()
            if not self.take(")"):
                raise self.error("a closing parenthesis")
            self.depth -= 1
        else:
            found = self.named()
        return found

    def named(self) -> _Operand:
        """A name, a number, or a constant."""
        match = _TOKEN.match(self.text, self.at)
        if match is None or match[4] is not None:
            raise self.error("a label or a variable")
        if match[3] is not None and (len(match[3]) > _DIGITS or np.isinf(float(match[3]))):
            raise self.error(f"a number of at most {_DIGITS} digits")
        start, self.at = match.end() - len(match[0].lstrip()), match.end()
        if match[3] is not None:
            return _constant(int(match[3]) if match[3].isdigit() else float(match[3]))
        return _Name(match[2] if match[1] is None else match[1], match[1] is not None, start)

    def as_set(self, found: _Operand) -> StateSet:
        """The states of a label or a bool variable, all states, or none."""
        if isinstance(found, _Term):
            raise self.error("a comparison, such as x = 3,")
        if not isinstance(found, _Name):
            return found
        if not found.quoted and found.text in _CONSTANTS:
            return np.full(self.n_states, found.text == "true")
        if found.text in self.names.labels:
            return self.names.label(found.text)
        variable = None if found.quoted else self.names.variables.get(found.text)
        if variable is None:
            raise self.unknown("label", found)
        if variable.type != BOOL:
            what, example = {STRING: ("a text", '"idle"'), DOUBLE: ("a number", "0.5")}.get(
                variable.type, ("a whole number", "3")
            )
            raise self.located(found, f"{quote(found.text)} is {what}; compare it, as in {found.text} = {example}")
        return self.names.values(found.text, 0, self.n_states).astype(np.bool_)

    def as_term(self, found: _Operand) -> _Term:
        """The numbers of a variable, a constant, or a sum."""
        if isinstance(found, _Term):
            return found
        if not isinstance(found, _Name):
            raise self.error("a comparison of numbers, not of sets of states,")
        name = found.text
        if not found.quoted and name in _CONSTANTS:
            return _constant(_CONSTANTS[name])
        variable = self.names.variables.get(name)
        if variable is None:
            raise self.unknown("variable", found)
        if variable.type == STRING:
            raise self.located(found, f"{quote(name)} is a text; compare it with = or != and a text in double quotes")
        values = self.names.values
        return _Term(lambda first, end: values(name, first, end), variable.low, variable.high)

    def text_terms(self, left: _Operand, sign: str, right: _Operand) -> tuple[_Term, _Term] | None:
        """A variable of texts and the number of the text that it is compared with; None for another comparison."""
        for name, text in ((left, right), (right, left)):
            if not isinstance(name, _Name) or not isinstance(text, _Name) or not text.quoted:
                continue
            variable = self.names.variables.get(name.text)
            if variable is None or variable.type != STRING or sign not in ("=", "!="):
                continue
            if text.text not in variable.texts:
                there = listed([quote(each, 30) for each in variable.texts])
                raise self.located(text, f"{quote(name.text)} is never {quote(text.text, 30)}; there are: {there}")
            read = partial(self.names.values, name.text)
            return _Term(read, 0, len(variable.texts) - 1), _constant(variable.texts.index(text.text))
        return None

    def check_comparable(self, one: _Term, other: _Term) -> None:
        """Refuse to compare a decimal number with whole ones that float64 does not hold."""
        whole = [term for term in (one, other) if not term.decimal]
        if len(whole) == 1 and max(-whole[0].low, whole[0].high) > _EXACT:
            raise OptionsError(
                f"the expression {quote(self.text, 60)}: up to character {self.at} whole numbers from {whole[0].low} "
                f"to {whole[0].high} are compared with decimal ones, which are exact up to 2^53; compare whole numbers"
            )

    def combined(self, sign: str, left: _Operand, right: _Operand) -> _Term:
        """A sum, difference or product."""
        one, other, apply = self.as_term(left), self.as_term(right), _ARITHMETIC[sign]
        if one.decimal or other.decimal:
            raise OptionsError(
                f"the expression {quote(self.text, 60)}: up to character {self.at} decimal numbers are combined by "
                f"{sign}, which would be rounded; compare each alone"
            )
        limits = [apply(x, y) for x in (one.low, one.high) for y in (other.low, other.high)]
        low, high = min(limits), max(limits)
        if low < _INT64.min or high > _INT64.max:
            raise OptionsError(
                f"the expression {quote(self.text, 60)}: up to character {self.at} numbers from {low} to {high} are "
                f"possible, which do not fit in int64; compare without {sign}"
            )
        return _Term(lambda first, end: apply(one.read(first, end), other.read(first, end)), low, high)

    def take(self, *signs: str) -> str:
        """The next sign if it is one of these, which is read then; else the empty text."""
        match = _TOKEN.match(self.text, self.at)
        if match is None or match[4] not in signs:
            return ""
        self.at = match.end()
        return str(match[4])

    def deeper(self) -> None:
        """Count one more parenthesis or negation around what follows."""
        self.depth += 1
        if self.depth > _DEEPEST:
            raise OptionsError(f"the expression {quote(self.text, 60)} is nested deeper than {_DEEPEST}; simplify it")

    def unknown(self, kind: str, found: _Name) -> OptionsError:
        """The refusal of a name that is none of the model's."""
        labels, variables = listed(self.names.labels), listed(list(self.names.variables))
        there = [f"{what}s {names}" for what, names in (("label", labels), ("variable", variables)) if names]
        known = ", and ".join(there) or "none: they come with a model's file, or from_arrays(labels=..., variables=...)"
        return self.located(found, f"there is no {kind} {quote(found.text)}; there are: {known}")

    def located(self, found: _Name, message: str) -> OptionsError:
        """What is wrong with a name."""
        return OptionsError(f"the expression {quote(self.text, 60)}, character {found.at + 1}: {message}")

    def error(self, expected: str) -> OptionsError:
        """What is wrong where the parser stands."""
        rest = self.text[self.at :].strip()
        found = f"{quote(rest, 20)} follows" if rest else "it ends"
        before = f" after {quote(self.text[: self.at].strip(), 40)}" if self.text[: self.at].strip() else ""
        return OptionsError(
            f"the expression {quote(self.text, 60)}: {expected} is expected{before}, but {found}; write labels and "
            f"comparisons of variables with !, &, | and parentheses, such as 'x = 3 & !\"all lost\"'"
        )


_CONSTANTS = {"false": 0, "true": 1}


def _constant(number: float) -> _Term:
    return _Term(lambda first, end: number, number, number)


def _negated(term: _Term) -> _Term:
    """The decimal numbers with the other sign, which is exact."""
    return _Term(lambda first, end: -term.read(first, end), -term.high, -term.low)


def states_where(text: str, names: StateNames, n_states: int) -> StateSet:
    """bool [n_states]; where an expression holds, in the order in which the names have their states.

    Raises
    ------
    OptionsError : the text is no expression, or names what the model does not have.
    """
    return _Parser(text, names, n_states).read()


class _AnyNames:
    """Names of which none is unknown, before there is a model."""

    def __init__(self, text: str) -> None:
        self.labels = [match[1] or match[2] or "" for match in _TOKEN.finditer(text)]
        self.variables = dict.fromkeys(self.labels, Variable(BOOL, 0, 0))

    def label(self, name: str) -> StateSet:
        return np.zeros(1, np.bool_)

    def values(self, name: str, first: int, end: int) -> VariableValues:
        return np.zeros(end - first, np.int64)


def check_expression(name: str, text: object) -> None:
    """Refuse what is no expression, before any label is known."""
    if not isinstance(text, str):
        raise OptionsError(f"{name} is {text!r}; give an expression over labels and variables as a text")
    try:
        states_where(text, _AnyNames(text), 1)
    except OptionsError:
        prism = _PRISM.fullmatch(text)
        if prism is None:
            raise
        kind, reward, sense, steps, states = prism.groups()
        given = {
            "reward": reward or ("table" if kind == "R" else None),
            "goal": states,
            "within": steps,
            "sense": sense,
        }
        words = " ".join(f"--{option} {shlex.quote(value)}" for option, value in given.items() if value)
        raise OptionsError(
            f"{name} is {quote(text, 60)}, a property in PRISM's syntax, and only states are named here; write {words}"
        ) from None
