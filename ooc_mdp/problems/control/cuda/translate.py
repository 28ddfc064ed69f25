"""From a small part of Python to C++ device functions with the same values.

What is translated: float arithmetic (``+ - * / // % **``), comparisons and chains of them, ``and``, ``or``, ``not``,
conditional expressions; ``if``, ``for i in range(constant)`` (unrolled), assignments to local names, also of several at
once and in place, ``return``; tuples of numbers, indexed by constants; ``p.name``; numbers and tuples of numbers at the
module's level, by value; functions of ``math``, the same of NumPy, ``abs``, ``min``, ``max``, ``float``; calls of other
functions of the module. All else is refused with file and line. Where Python raises (1 / 0, sqrt(-1)) C++ gives an
infinity or no number.

This module has the statements, :mod:`ooc_mdp.problems.control.cuda.expressions` the expressions. A function is
translated anew for each combination of kinds of arguments (number, tuple of n, parameters). The names that
the C++ uses are those of ``control/rows.cu``.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from types import FunctionType

from ooc_mdp.problems.control.cuda.builtins import FLAG, NUMBER, PARAMETERS, Kind, Value, mangled
from ooc_mdp.problems.control.cuda.expressions import Expressions

__all__ = ["Program"]

_MAX_REPEATS = 4096
"""Passes through loops that one function may unroll to."""


class Program:
    """C++ functions translated so far, those called before those that call."""

    def __init__(self, fields: Sequence[str]) -> None:
        self.fields = frozenset(fields)
        """Names in the parameters."""
        self.texts: list[str] = []
        self._done: dict[tuple[FunctionType, tuple[Kind, ...]], Value] = {}
        self._under_way: list[FunctionType] = []

    def function(self, function: FunctionType, kinds: tuple[Kind, ...], blame: Callable[[str], Exception]) -> Value:
        """C++ name, and the result's kind, of `function` for these arguments; `blame` makes errors of the call."""
        key = function, kinds
        if key not in self._done:
            if function in self._under_way:
                raise blame(f"{function.__name__} calls itself, which")
            self._under_way.append(function)
            name = f"{mangled('f_', function.__name__)}_{len(self._done) + len(self._under_way)}"
            translation = _Function(self, function, kinds, blame)
            self.texts.append(translation.text(name))
            self._under_way.pop()
            self._done[key] = Value(name, translation.result)
        return self._done[key]


class _Function(Expressions):
    """One function for one combination of arguments."""

    def __init__(
        self, program: Program, function: FunctionType, kinds: tuple[Kind, ...], blame: Callable[[str], Exception]
    ) -> None:
        super().__init__(program, function)
        self._repeats = 0
        self._lines: list[str] = []
        self._returned: list[Kind] = []
        arguments = self._node.args
        names = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
        if arguments.vararg or arguments.kwarg or arguments.kwonlyargs:
            raise self._refuse(self._node, "a function with *arguments, **keywords or keyword-only arguments")
        if len(names) != len(kinds):
            raise blame(f"{function.__name__} takes {len(names)} arguments and is given {len(kinds)}, which")
        self._arguments = dict(zip(names, kinds, strict=True))
        self._locals |= self._arguments
        self._assigned |= set(names)

    def text(self, name: str) -> str:
        """The C++ function; `result` is its kind afterwards."""
        if self._block(self._node.body):
            raise self._refuse(
                self._node, f"{self._python.__name__}, which can end without a return,", "return a value"
            )
        self.result = self._unified(self._returned, self._node)
        given = ", ".join(f"{kind.c} {mangled('v_', n)}" for n, kind in self._arguments.items())
        declared = [f"{kind.c} {mangled('v_', n)}{{}};" for n, kind in self._locals.items() if n not in self._arguments]
        body = "\n".join(f"    {line}" for line in (*declared, *self._lines))
        return f"__device__ __forceinline__ {self.result.c} {name}({given}) {{\n{body}\n}}\n"

    def _block(self, statements: Sequence[ast.stmt]) -> bool:
        return all(self._statement(statement) for statement in statements)

    def _statement(self, node: ast.stmt) -> bool:
        match node:
            case ast.Pass() | ast.Expr(value=ast.Constant(value=str())):
                return True
            case ast.Return(value=ast.expr() as value):
                returned = self._value(value)
                self._returned.append(returned.kind)
                self._lines.append(f"return {returned.c};")
                return False
            case ast.Assign():
                self._assign(node.targets, self._value(node.value), node)
                return True
            case ast.AnnAssign(value=ast.expr() as value):
                self._assign([node.target], self._value(value), node)
                return True
            case ast.AugAssign(target=ast.Name(id=name)):
                new = self._binary(ast.Name(name, ast.Load(), lineno=node.lineno), node.op, node.value, node)
                self._assign([node.target], new, node)
                return True
            case ast.If():
                return self._if(node)
            case ast.For():
                return self._for(node)
            case _:
                raise self._unknown(node)

    def _if(self, node: ast.If) -> bool:
        before = set(self._assigned)
        self._lines.append(f"if ({self._truth(node.test)}) {{")
        through = self._block(node.body)
        after = self._assigned
        self._assigned = before
        self._lines.append("} else {")
        through_else = self._block(node.orelse)
        self._lines.append("}")
        if through and through_else:
            self._assigned &= after
        elif through:
            self._assigned = after
        return through or through_else

    def _for(self, node: ast.For) -> bool:
        match node:
            case ast.For(target=ast.Name(id=name), iter=ast.Call(func=ast.Name(id="range"), keywords=[]), orelse=[]):
                pass
            case _:
                raise self._refuse(
                    node, "a for that is not over range(...), or has an else,", "write for i in range(N)"
                )
        assert isinstance(node.iter, ast.Call)
        bounds = [self._integer(argument) for argument in node.iter.args]
        if None in bounds or not 1 <= len(bounds) <= 3 or (len(bounds) == 3 and bounds[2] == 0):
            raise self._refuse(node.iter, f"{ast.unparse(node.iter)!r}", "give range constant integers")
        if name in self._locals or name in self._counters:
            raise self._refuse(node, f"a loop over {name}, which has a value already,", "give it a name of its own")
        numbers = range(*(b for b in bounds if b is not None))
        self._repeats += len(numbers)
        if self._repeats > _MAX_REPEATS:
            raise self._refuse(node, f"a function whose loops run more than {_MAX_REPEATS} times", "shorten them")
        through = True
        for i in numbers:
            self._counters[name] = i
            through = through and self._block(node.body)
        self._counters.pop(name, None)
        return through

    def _assign(self, targets: Sequence[ast.expr], value: Value, node: ast.stmt) -> None:
        if isinstance(targets[0], ast.Name) and len(targets) == 1:
            self._set(targets[0], value)
            return
        # All of the right side before any of the left: a, b = b, a.
        self._lines.append(f"{{ const {value.kind.c} right = {value.c};")
        for target in targets:
            if not isinstance(target, ast.Tuple):
                self._set(target, Value("right", value.kind))
                continue
            if value.kind.size != len(target.elts):
                raise self._refuse(node, f"an assignment of {value.kind} to {len(target.elts)} names")
            for i, part in enumerate(target.elts):
                self._set(part, Value(f"right.at[{i}]", NUMBER))
        self._lines.append("}")

    def _set(self, target: ast.expr, value: Value) -> None:
        if not isinstance(target, ast.Name):
            raise self._refuse(target, f"an assignment to {ast.unparse(target)!r}", "assign to local names")
        name = target.id
        if name in self._counters:
            raise self._refuse(target, f"an assignment to {name}, which counts a loop,", "take another name")
        kind = NUMBER if value.kind == FLAG else value.kind
        if kind == PARAMETERS or self._locals.setdefault(name, kind) != kind:
            held = self._locals.get(name, kind)
            raise self._refuse(
                target, f"an assignment of {value.kind} to {name}, elsewhere {held},", "take another name"
            )
        self._assigned.add(name)
        self._lines.append(f"{mangled('v_', name)} = {value.c};")
