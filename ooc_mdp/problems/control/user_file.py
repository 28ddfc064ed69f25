"""Control problems from a user's own Python file, which is run as the code that it is."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path

from ooc_mdp.errors import OptionsError
from ooc_mdp.problems.control.definition import ControlProblem
from ooc_mdp.problems.control.discretisation import DiscretisedProblem, discretise
from ooc_mdp.problems.parameters import Parameter

__all__ = ["load_definition", "load_problem"]


def load_problem(file: str, parameters: Mapping[str, Parameter], contents: bytes | None = None) -> DiscretisedProblem:
    """The problem that a file assigns to the name ``problem``, discretised.

    Parameters
    ----------
    contents : what the caller has read of the file; it is run as it is, whatever the file holds by then.

    Raises
    ------
    OptionsError : there is no such file, it fails, or it defines no problem; or parameters do not fit.
    """
    problem = discretise(load_definition(file, contents), parameters)
    problem.file = Path(file).resolve()
    return problem


def load_definition(file: str, contents: bytes | None = None) -> ControlProblem:
    """Run the file and take its ``problem``; no module of its name stays known.

    The text is compiled anew: bytecode that lies beside the file in ``__pycache__`` is not used.
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
    sys.modules[spec.name] = module  # where dataclasses look annotations up
    try:
        exec(compile(contents, str(path), "exec", dont_inherit=True), module.__dict__)
    except OptionsError as error:
        raise OptionsError(f"{file}: {error}") from error
    except Exception as error:
        line = error.__traceback__
        while line is not None and line.tb_next is not None:
            line = line.tb_next
        where = f", line {line.tb_lineno}" if line is not None and line.tb_frame.f_code.co_filename == str(path) else ""
        raise OptionsError(f"{file}{where}: {type(error).__name__}: {error}") from error
    finally:
        sys.modules.pop(spec.name, None)
    problem = getattr(module, "problem", None)
    if not isinstance(problem, ControlProblem):
        raise OptionsError(
            f"{file} assigns no ControlProblem to the name problem (it is {type(problem).__name__}); end it with "
            f"problem = ooc_mdp.ControlProblem(name=..., ...)"
        )
    return problem
