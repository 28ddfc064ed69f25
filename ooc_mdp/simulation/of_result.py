"""From a result on disk back to the control problem that it solves.

A result keeps the provenance of the store that it was solved from: the problem's name (or its file) and every
parameter, grid included. This module turns that into the discretised problem again, or says why it cannot.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ooc_mdp.errors import OptionsError
from ooc_mdp.methods.results import Result
from ooc_mdp.problems import make_problem
from ooc_mdp.problems.control.discretised import Discretised

__all__ = ["problem_of"]


def problem_of(result: Result, file: str | None = None, note: Callable[[str], None] = lambda text: None) -> Discretised:
    """The control problem of a result.

    Parameters
    ----------
    file : Python file of the problem, where it is no longer where it was when the store was generated.
    note : told in a sentence when the file has changed since.

    Raises
    ------
    OptionsError : the result is of no control problem, says nothing of its problem, or the file does not fit it.
    """
    provenance = result.provenance
    if not provenance:
        raise OptionsError(
            f"{result.path} does not say which problem it solves: it was written by an earlier release; solve again"
        )
    source, options = str(provenance.get("source")), provenance.get("options")
    if provenance.get("format") != "problem" or not isinstance(options, dict):
        raise OptionsError(
            f"{result.path} was solved from {source}, which has no continuous dynamics; simulate takes results of "
            f"control problems, such as mountain-car or a file of your own"
        )
    recorded = provenance.get("file")
    name = file or (str(recorded["path"]) if isinstance(recorded, dict) else source)
    if name.endswith(".py"):
        if not Path(name).is_file():
            raise OptionsError(f"{result.path} solves the problem of {name}, which is not there; say --problem FILE.py")
        _compare(Path(name), recorded, note)
    elif file is not None:
        raise OptionsError(f"--problem {file} is no Python file; leave it out for problems that have a name")
    problem = make_problem(name, options)
    if not isinstance(problem, Discretised):
        raise OptionsError(
            f"{result.path} was solved from {source}, which has no continuous dynamics; simulate takes results of "
            f"control problems, such as mountain-car or a file of your own"
        )
    return problem


def _compare(file: Path, recorded: Any, note: Callable[[str], None]) -> None:
    if isinstance(recorded, dict) and hashlib.sha256(file.read_bytes()).hexdigest() != recorded.get("sha256"):
        note(f"{file} is not the file that the store was generated from, or has changed since")
