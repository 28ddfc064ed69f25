"""Parts of compiled loops are called by compiled functions only: they have no entry for Python, which would crash.

Each is compiled once for the types of its arguments.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from numba import njit
from paths import REPOSITORY

from ooc_mdp.runtime.compiled import inlined

COMPILED = {"loop", "short_loop", "part", "inlined", "njit"}
WITHOUT_ENTRY = {"part", "inlined"}
FILES = [file for folder in ("ooc_mdp", "tests", "benchmarks") for file in sorted((REPOSITORY / folder).rglob("*.py"))]


def decorators(node: ast.AST) -> set[str]:
    """Names of a function's decorators, without their arguments."""
    found = node.decorator_list if isinstance(node, ast.FunctionDef) else []
    return {ast.unparse(d.func if isinstance(d, ast.Call) else d) for d in found}


def module_of(file: Path) -> str:
    return ".".join(file.relative_to(REPOSITORY).with_suffix("").parts)


def functions_without_entry(tree: ast.Module) -> set[str]:
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and decorators(node) & WITHOUT_ENTRY}


def calls_from_python(node: ast.AST) -> Iterator[str]:
    """Names that a module calls outside of compiled functions."""
    if decorators(node) & COMPILED:
        return
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        yield node.func.id
    for child in ast.iter_child_nodes(node):
        yield from calls_from_python(child)


def imported(tree: ast.Module, known: dict[str, set[str]]) -> Iterator[str]:
    """Names under which a module imports functions without an entry."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in known:
            yield from (name.asname or name.name for name in node.names if name.name in known[node.module])


def test_parts_of_loops_are_called_by_compiled_functions_only() -> None:
    trees = {file: ast.parse(file.read_text("utf-8")) for file in FILES}
    known = {module_of(file): found for file, tree in trees.items() if (found := functions_without_entry(tree))}
    assert "open_table" in known["ooc_mdp.backends.cpu.table"]
    wrong = {
        module_of(file): called
        for file, tree in trees.items()
        if (called := {*imported(tree, known), *known.get(module_of(file), ())} & {*calls_from_python(tree)})
    }
    assert wrong == {}


@inlined
def _twice(number: int, more: int = 0) -> int:
    return 2 * number + more


@njit
def _sum_of_calls(number: int) -> int:
    return _twice(number) + _twice(1) + _twice(2) + _twice(3, more=4) + _twice(number, more=number)


def test_a_function_is_not_compiled_again_for_a_constant() -> None:
    """By default, Numba gives each constant a type of its own."""
    assert _sum_of_calls(5) == 10 + 2 + 4 + 10 + 15
    with_more, without = sorted(_twice.signatures, key=lambda kinds: str(kinds[1]))
    assert str(with_more) == "(int64, int64)"
    assert str(without).startswith("(int64, omitted")
