"""What a problem is and takes, for people: axes, controls, parameters with defaults and meanings, and its source.

Meanings are the texts that stand under the fields of a problem's parameters, and the physics are the docstring of its
module; both are read from the source and are empty where an installation has none. No problem is discretised.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import re
from importlib import import_module
from pathlib import Path
from typing import Any

from ooc_mdp.problems.parameters import DISPLAY_DEFAULT
from ooc_mdp.problems.registry import PROBLEMS, registered_name

__all__ = ["ParameterDescription", "ProblemDescription", "describe_problem"]


@dataclasses.dataclass(frozen=True, slots=True)
class ParameterDescription:
    """One parameter, as `generate -p NAME=VALUE` takes it."""

    name: str
    default: str
    """Empty where there is none, so that it must be given."""
    meaning: str


@dataclasses.dataclass(frozen=True, slots=True)
class ProblemDescription:
    """One problem."""

    name: str
    summary: str
    axes: tuple[dict[str, Any], ...]
    """Of a control problem: name, low, high, periodic, clipped, unit."""
    controls: tuple[tuple[float, ...], ...]
    parameters: tuple[ParameterDescription, ...]
    text: str
    """Equations, source and readings."""


def describe_problem(name: str) -> ProblemDescription:
    """The description of a problem of the registry, or of the control problem in a Python file, which is executed.

    Raises
    ------
    OptionsError : there is no such problem, or the file defines none.
    """
    if name.endswith(".py"):
        from ooc_mdp.problems.control.user_file import load_definition

        definition = load_definition(name)
        source = _source(name)
        return _control_problem(definition, definition.summary, ast.get_docstring(source), source)
    known = registered_name(name)
    entry = PROBLEMS[known]
    module = import_module(f"ooc_mdp.problems.{entry.module}")
    defined, source = getattr(module, entry.name), _source(module.__file__)
    if entry.options is None:
        return _control_problem(defined, entry.summary, module.__doc__, source)
    parameters = _parameters(getattr(module, entry.options), source)
    return ProblemDescription(known, entry.summary, (), (), parameters, _text(module.__doc__))


def _control_problem(definition: Any, summary: str, text: str | None, source: ast.Module) -> ProblemDescription:
    from ooc_mdp.problems.control import discretisation

    shown = {
        "grid": ",".join(map(str, discretisation.own_grid(definition))),
        "max_step": f"{definition.max_step:g}",
        "max_duration": f"{definition.max_duration:g}",
    }
    meanings = _meanings(type(definition.parameters), source)
    physics = tuple(
        ParameterDescription(name, f"{value:g}", meanings.get(name, ""))
        for name, value in definition.parameters._asdict().items()
    )
    grid = tuple(
        dataclasses.replace(each, default=shown.get(each.name, each.default))
        for each in _parameters(discretisation.DiscretisationOptions, _source(discretisation.__file__))
    )
    axes = tuple(dataclasses.asdict(axis) for axis in definition.axes)
    return ProblemDescription(definition.name, summary, axes, definition.controls, (*physics, *grid), _text(text))


def _parameters(options: Any, source: ast.Module) -> tuple[ParameterDescription, ...]:
    meanings = _meanings(options, source)
    return tuple(
        ParameterDescription(
            field.name,
            "" if field.default is dataclasses.MISSING else str(field.metadata.get(DISPLAY_DEFAULT, field.default)),
            meanings.get(field.name, ""),
        )
        for field in dataclasses.fields(options)
    )


def _source(file: str | None) -> ast.Module:
    """A module's source; an empty one where there is none."""
    try:
        return ast.parse(Path(file or "").read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return ast.Module([], [])


def _meanings(found: type, source: ast.Module) -> dict[str, str]:
    """By field of a class the text under it."""
    bodies = (node.body for node in source.body if isinstance(node, ast.ClassDef) and node.name == found.__name__)
    body: list[ast.stmt] = next(bodies, [])
    return {
        here.target.id: " ".join(inspect.cleandoc(str(after.value.value)).split())
        for here, after in itertools.pairwise(body)
        if isinstance(here, ast.AnnAssign)
        and isinstance(here.target, ast.Name)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
    }


def _text(docstring: str | None) -> str:
    return re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"\1", inspect.cleandoc(docstring or ""))
