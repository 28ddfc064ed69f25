"""Control problems from a user's own Python file, which is run as the code that it is.

A file from which a table is made is run twice: constants that its second run defines otherwise (drawn at random, read
from a clock, hashed) would be frozen into the table, and another generation would give another one.
"""

from __future__ import annotations

import builtins
import dataclasses
import importlib.util
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ooc_mdp.errors import OptionsError
from ooc_mdp.problems.control.definition import ControlProblem
from ooc_mdp.problems.control.discretisation import DiscretisedProblem, discretise
from ooc_mdp.problems.control.function_checks import sampled_values
from ooc_mdp.problems.control.purity import FUNCTION_NAMES
from ooc_mdp.problems.parameters import Parameter

__all__ = ["load_definition", "load_problem"]


def load_problem(file: str, parameters: Mapping[str, Parameter], contents: bytes | None = None) -> DiscretisedProblem:
    """The problem that a file assigns to the name ``problem``, discretised.

    Parameters
    ----------
    contents : what the caller has read of the file; it is run as it is, whatever the file holds by then.

    Raises
    ------
    OptionsError : there is no such file, it fails, it defines no problem, or another one each time that it is run; or
        parameters do not fit.
    """
    definition = load_definition(file, contents)
    problem = discretise(definition, parameters)
    if contents is None:
        _check_repeatable(file, definition)
    problem.file = Path(file).resolve()
    return problem


def _check_repeatable(file: str, first: ControlProblem) -> None:
    """Run the file again, with other hashes and addresses; OptionsError where it defines another problem."""
    other: dict[str, Any] = {
        **vars(builtins),
        "hash": lambda thing: hash(("again", hash(thing))),
        "id": lambda thing: id(thing) + 1,
    }
    second = load_definition(file, builtins=other)
    stated = [f.name for f in dataclasses.fields(ControlProblem) if f.name not in FUNCTION_NAMES]
    different = [name for name in stated if repr(getattr(first, name)) != repr(getattr(second, name))]
    once, twice = sampled_values(first), sampled_values(second)
    different += [name for name in FUNCTION_NAMES if once.get(name) != twice.get(name)]
    if different:
        raise OptionsError(
            f"{file}: problem {first.name!r} is another one each time that the file is run: {', '.join(different)} "
            f"differ{'s' if len(different) == 1 else ''}; write constants into the file, not random numbers, times or "
            f"hashes"
        )


def load_definition(
    file: str, contents: bytes | None = None, builtins: Mapping[str, Any] | None = None
) -> ControlProblem:
    """Run the file and take its ``problem``; no module of its name stays known.

    The text is compiled anew: bytecode that lies beside the file in ``__pycache__`` is not used.

    Parameters
    ----------
    contents : of the file, where the caller has read it.
    builtins : the names that Python has built in, in place of its own.
    """
    path = Path(file)
    if contents is None:
        if not path.is_file():
            raise OptionsError(f"there is no problem file {file}")
        contents = path.read_bytes()
    spec = importlib.util.spec_from_file_location(f"ooc_mdp_problem_file_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise OptionsError(f"{file} cannot be run as Python")
    module = importlib.util.module_from_spec(spec)
    if builtins is not None:
        module.__dict__["__builtins__"] = builtins
    sys.modules[spec.name] = module  # where dataclasses look annotations up
    try:
        exec(compile(contents, str(path), "exec", dont_inherit=True), module.__dict__)
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        where = f"{file}, line {lines[-1]}" if lines else file
        what = "" if isinstance(error, OptionsError) else f"{type(error).__name__}: "
        raise OptionsError(f"{where}: {what}{error}") from error
    finally:
        sys.modules.pop(spec.name, None)
    problem = getattr(module, "problem", None)
    if not isinstance(problem, ControlProblem):
        raise OptionsError(
            f"{file} assigns no ControlProblem to the name problem (it is {type(problem).__name__}); end it with "
            f"problem = ooc_mdp.ControlProblem(name=..., ...)"
        )
    return problem
