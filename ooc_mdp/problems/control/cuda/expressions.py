"""Python's expressions as C++ ones of the same value; see :mod:`ooc_mdp.problems.control.cuda.translate` for which.

Every number is a double, also Python's integers and booleans, which gives what Python gives as long as integers stay
below 2**53. Expressions have no effects, so one may be written twice (``a < b < c``). Names that are not local stand
for the objects that they name in the function's module, whatever these are called elsewhere.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Hashable, Sequence
from types import FunctionType, ModuleType
from typing import Any, Protocol

import numpy as np

from ooc_mdp.errors import OptionsError
from ooc_mdp.problems.control.cuda.builtins import (
    FLAG,
    FUNCTIONS,
    NUMBER,
    PARAMETERS,
    Kind,
    Value,
    literal,
    mangled,
    tuple_of,
)
from ooc_mdp.problems.control.cuda.python_source import definition_of, plain_function

__all__ = ["Callables", "Expressions"]

_LARGEST_WHOLE_POWER = 64
_ARITHMETIC: dict[type[ast.operator], str] = {
    ast.Add: "({} + {})",
    ast.Sub: "({} - {})",
    ast.Mult: "({} * {})",
    ast.Div: "({} / {})",
    ast.FloorDiv: "floored_quotient({}, {})",
    ast.Mod: "floored_remainder({}, {})",
    ast.Pow: "pow({}, {})",
}
_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}
_INTEGERS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
}
_HINTS: dict[type[ast.AST], str] = {
    ast.While: "repeat with for i in range(CONSTANT)",
    ast.List: "write a tuple",
    ast.ListComp: "write the components out as a tuple",
    ast.GeneratorExp: "write the terms out",
    ast.Break: "put what follows under an if",
    ast.Continue: "put what follows under an if",
    ast.Assert: "leave it out",
    ast.Try: "test with if before computing",
    ast.Raise: "return a value instead",
}


class Callables(Protocol):
    """What expressions ask of the program that they are in."""

    fields: frozenset[str]
    """Names in the parameters."""

    def function(self, function: FunctionType, kinds: tuple[Kind, ...], blame: Callable[[str], Exception]) -> Value:
        """C++ name, and the result's kind, of a function for arguments of these kinds."""
        ...


class Expressions:
    """Expressions of one function: what its names stand for changes from statement to statement."""

    def __init__(self, program: Callables, function: FunctionType) -> None:
        self._program = program
        self._python = function
        self._node = definition_of(function)
        self._locals: dict[str, Kind] = {}
        """Arguments and local names that have had a value."""
        self._assigned: set[str] = set()
        """Those that have one wherever execution comes from."""
        self._counters: dict[str, int] = {}
        """Values of the loops' counters in the pass being translated."""

    def _refuse(self, node: ast.AST, what: str, remedy: str = "") -> OptionsError:
        line = getattr(node, "lineno", self._node.lineno)
        return OptionsError(
            f"{self._python.__code__.co_filename}, line {line}: {what} cannot run on a GPU; "
            f"{remedy or 'write it with floats, if, tuples and functions of math'}, or run with --device cpu"
        )

    def _unknown(self, node: ast.AST) -> OptionsError:
        text = ast.unparse(node).splitlines()[0]
        return self._refuse(node, f"{text!r} ({type(node).__name__})", _HINTS.get(type(node), ""))

    def _unified(self, kinds: Sequence[Kind], node: ast.AST) -> Kind:
        """The kind that holds all: truth values among numbers are numbers."""
        different = set(kinds)
        if len(different) == 1:
            return kinds[0]
        if different == {NUMBER, FLAG}:
            return NUMBER
        raise self._refuse(node, f"what is once {kinds[0]} and once {next(k for k in kinds if k != kinds[0])}")

    def _truth(self, node: ast.expr) -> str:
        value = self._value(node)
        return value.c if value.kind == FLAG else f"({self._number(value, node)} != 0.0)"

    def _number(self, value: Value, node: ast.AST) -> str:
        if value.kind == FLAG:
            return f"({value.c} ? 1.0 : 0.0)"
        if value.kind != NUMBER:
            raise self._refuse(node, f"{ast.unparse(node)!r}, {value.kind} where a number must be,")
        return value.c

    def _numbers(self, nodes: Sequence[ast.expr]) -> list[str]:
        return [self._number(self._value(node), node) for node in nodes]

    def _value(self, node: ast.expr) -> Value:
        match node:
            case ast.Constant(value=bool() | int() | float()):
                return self._constant(node.value, node)
            case ast.Name():
                return self._name(node)
            case ast.Tuple():
                return _tuple(self._numbers(node.elts))
            case ast.Attribute():
                return self._attribute(node)
            case ast.Subscript():
                return self._component(node)
            case ast.BinOp():
                return self._binary(node.left, node.op, node.right, node)
            case ast.UnaryOp(op=ast.Not()):
                return Value(f"(!{self._truth(node.operand)})", FLAG)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd()):
                sign = "-" if isinstance(node.op, ast.USub) else "+"
                return Value(f"({sign}{self._number(self._value(node.operand), node.operand)})", NUMBER)
            case ast.Compare():
                return self._comparison(node)
            case ast.BoolOp():
                return self._and_or(node)
            case ast.IfExp():
                yes, no = self._value(node.body), self._value(node.orelse)
                kind = self._unified([yes.kind, no.kind], node)
                if kind == NUMBER:
                    yes, no = (Value(self._number(v, node), NUMBER) for v in (yes, no))
                return Value(f"({self._truth(node.test)} ? {yes.c} : {no.c})", kind)
            case ast.Call():
                return self._call(node)
            case _:
                raise self._unknown(node)

    def _constant(self, value: object, node: ast.AST) -> Value:
        """A number or tuple of numbers as it is now."""
        if isinstance(value, bool | np.bool_):
            return Value("true" if value else "false", FLAG)
        if isinstance(value, int | float | np.integer | np.floating):
            if isinstance(value, int) and abs(value) > 2**53:
                raise self._refuse(node, f"the integer {value}, which no double holds,")
            return Value(literal(float(value)), NUMBER)
        if isinstance(value, tuple) and value:
            parts = [self._constant(part, node) for part in value]
            return _tuple([self._number(part, node) for part in parts])
        raise self._refuse(
            node, f"{ast.unparse(node)!r}, a {type(value).__name__},", "keep numbers and tuples of numbers"
        )

    def _name(self, node: ast.Name) -> Value:
        if node.id in self._counters:
            return Value(literal(self._counters[node.id]), NUMBER)
        if node.id in self._assigned:
            return Value(mangled("v_", node.id), self._locals[node.id])
        if node.id in self._python.__code__.co_varnames:
            raise self._refuse(
                node, f"{node.id}, which may have no value here,", "give it one on every way to this line"
            )
        return self._constant(self._global(node), node)

    def _global(self, node: ast.expr) -> Any:
        """The object that a name or module.name is bound to."""
        if isinstance(node, ast.Name) and node.id not in self._python.__code__.co_varnames:
            for place in (self._python.__globals__, vars(builtins)):
                if node.id in place:
                    return place[node.id]
            raise self._refuse(node, f"{node.id}, a name that the module does not have,")
        if isinstance(node, ast.Attribute):
            module = self._global(node.value)
            if isinstance(module, ModuleType) and hasattr(module, node.attr):
                return getattr(module, node.attr)
        raise self._unknown(node)

    def _attribute(self, node: ast.Attribute) -> Value:
        if isinstance(node.value, ast.Name) and self._locals.get(node.value.id) == PARAMETERS:
            if node.attr not in self._program.fields:
                have = ", ".join(sorted(self._program.fields))
                raise self._refuse(node, f"{ast.unparse(node)!r}, which is no parameter,", f"the parameters are {have}")
            return Value(f"{mangled('v_', node.value.id)}.{mangled('p_', node.attr)}", NUMBER)
        return self._constant(self._global(node), node)

    def _component(self, node: ast.Subscript) -> Value:
        whole = self._value(node.value)
        index = self._integer(node.slice)
        if whole.kind.size is None or index is None:
            raise self._refuse(node, f"{ast.unparse(node)!r}", "index tuples with constant integers")
        if not -whole.kind.size <= index < whole.kind.size:
            raise self._refuse(node, f"{ast.unparse(node)!r}, component {index} of {whole.kind.size},")
        return Value(f"{whole.c}.at[{index % whole.kind.size}]", NUMBER)

    def _integer(self, node: ast.expr) -> int | None:
        """The integer that an expression of constants and loop counters is; None if it is none."""
        match node:
            case ast.Constant(value=int()) if not isinstance(node.value, bool):
                assert isinstance(node.value, int)
                return node.value
            case ast.Name(id=name):
                if name in self._counters:
                    return self._counters[name]
                value = None if name in self._python.__code__.co_varnames else self._python.__globals__.get(name)
                return value if isinstance(value, int) and not isinstance(value, bool) else None
            case ast.UnaryOp(op=ast.USub()):
                inner = self._integer(node.operand)
                return None if inner is None else -inner
            case ast.BinOp() if type(node.op) in _INTEGERS:
                left, right = self._integer(node.left), self._integer(node.right)
                return None if left is None or right is None else _INTEGERS[type(node.op)](left, right)
            case ast.Call(func=ast.Name(id="len"), args=[argument], keywords=[]):
                return self._value(argument).kind.size
            case _:
                return None

    def _binary(self, left: ast.expr, op: ast.operator, right: ast.expr, node: ast.AST) -> Value:
        if type(op) not in _ARITHMETIC:
            raise self._unknown(node)
        a = self._number(self._value(left), left)
        power = self._integer(right) if isinstance(op, ast.Pow) else None
        if power is not None and abs(power) <= _LARGEST_WHOLE_POWER:
            return Value(f"whole_power<{power}>({a})", NUMBER)
        return Value(_ARITHMETIC[type(op)].format(a, self._number(self._value(right), right)), NUMBER)

    def _comparison(self, node: ast.Compare) -> Value:
        if any(type(op) not in _COMPARISONS for op in node.ops):
            raise self._unknown(node)
        terms = self._numbers([node.left, *node.comparators])
        links = [f"{a} {_COMPARISONS[type(op)]} {b}" for a, op, b in zip(terms, node.ops, terms[1:], strict=False)]
        return Value("(" + " && ".join(links) + ")", FLAG)

    def _and_or(self, node: ast.BoolOp) -> Value:
        values = [self._value(operand) for operand in node.values]
        conjunction = isinstance(node.op, ast.And)
        if all(value.kind == FLAG for value in values):
            return Value("(" + (" && " if conjunction else " || ").join(v.c for v in values) + ")", FLAG)
        numbers = [self._number(value, operand) for value, operand in zip(values, node.values, strict=True)]
        result = numbers[-1]
        for number in reversed(numbers[:-1]):  # Python's and, or give an operand
            result = f"({number} != 0.0 ? {result if conjunction else number} : {number if conjunction else result})"
        return Value(result, NUMBER)

    def _call(self, node: ast.Call) -> Value:
        if node.keywords or any(isinstance(argument, ast.Starred) for argument in node.args):
            raise self._refuse(node, f"{ast.unparse(node)!r}, with keywords or *,", "give plain arguments")
        called = self._global(node.func)
        if called is len:
            return self._constant(self._integer(node), node)
        if called in (min, max):
            if len(node.args) < 2:
                raise self._refuse(node, f"{ast.unparse(node)!r}, with one argument,", "give min and max two or more")
            name = "smaller" if called is min else "larger"
            result, *others = self._numbers(node.args)
            for other in others:
                result = f"{name}({result}, {other})"
            return Value(result, NUMBER)
        plain = plain_function(called)
        if plain is not None:
            values = [self._value(argument) for argument in node.args]
            kinds = tuple(NUMBER if v.kind == FLAG else v.kind for v in values)
            function = self._program.function(plain, kinds, lambda what: self._refuse(node, what, "mend the call"))
            return Value(f"{function.c}({', '.join(v.c for v in values)})", function.kind)
        known = FUNCTIONS.get(called) if isinstance(called, Hashable) else None
        if known is None:
            raise self._refuse(node, f"the call {ast.unparse(node)!r}", "call functions of math or of this module")
        name, arguments, kind = known
        if len(node.args) != arguments:
            raise self._refuse(node, f"{ast.unparse(node)!r}, with {len(node.args)} arguments,", f"give {arguments}")
        return Value(f"{name}({', '.join(self._numbers(node.args))})", kind)


def _tuple(numbers: Sequence[str]) -> Value:
    kind = tuple_of(len(numbers))
    return Value(f"{kind.c}{{{{{', '.join(numbers)}}}}}", kind)
