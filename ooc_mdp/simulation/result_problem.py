"""From a result on disk back to the control problem that it solves.

A result keeps the provenance of the store that it was solved from: the problem's name, or its file, and every
parameter, grid included. This module turns that into the discretised problem again, or says why it cannot. What a
result names is data: a built-in problem is looked up in the registry, and a Python file is run only where the user
names it, or trusts the recorded path and the file there still has the recorded SHA-256.
"""

from __future__ import annotations

from collections.abc import Callable

from ooc_mdp.errors import OptionsError
from ooc_mdp.problems.control.discretisation import DiscretisedProblem
from ooc_mdp.problems.control.user_file import load_problem
from ooc_mdp.problems.registry import Problem, built_in_problem
from ooc_mdp.store.result import Result
from ooc_mdp.store.trusted_file import file_contents, is_recorded, trusted_file

__all__ = ["other_problem", "problem_of"]


def problem_of(
    result: Result,
    file: str | None = None,
    trust: bool = False,
    note: Callable[[str], None] = lambda text: None,
) -> DiscretisedProblem:
    """The control problem of a result.

    Parameters
    ----------
    file : Python file of the problem, which is run.
    trust : run the file whose path the result records, if its SHA-256 is the recorded one.
    note : called with a sentence when `file` is another than the recorded one, and before a trusted file is run.

    Raises
    ------
    OptionsError : the result is of no control problem or does not record it; it is of a user's file, which was
        neither named nor trusted; or the file does not fit.
    """
    provenance = result.provenance
    if not provenance:
        raise OptionsError(
            f"{result.path} does not say which problem it solves: it was written by an earlier release; solve again"
        )
    source, options, recorded = provenance.get("source"), provenance.get("options"), provenance.get("file")
    other = OptionsError(
        f"{result.path} was solved from {str(source)!r}, which has no continuous dynamics; simulate takes results of "
        f"control problems, such as mountain-car or a file of your own"
    )
    if provenance.get("format") != "problem" or not isinstance(options, dict):
        raise other
    if file is not None and trust:
        raise OptionsError("--problem names the file to run, so --trust has no use; leave one of them out")
    problem: Problem
    if file is not None:
        problem = load_problem(file, options, _named(file))
    elif recorded is None:
        problem = built_in_problem(str(source), options)
    else:
        path, contents = trusted_file(result.path, recorded, trust, "name the file to run with --problem FILE.py", note)
        problem = load_problem(path, options, contents)
    if not isinstance(problem, DiscretisedProblem):
        raise other
    simulated = other_problem(result, problem)
    if simulated is not None:
        note(f"{simulated} is not what the store was generated from ({source}), or has changed since")
    return problem


def other_problem(result: Result, problem: DiscretisedProblem) -> str | None:
    """What a problem is called that is another than the result's, by name or by the contents of its file; else None.

    None as well where the result does not record its problem, or the file cannot be read any more.
    """
    provenance = result.provenance or {}
    recorded, source = provenance.get("file"), provenance.get("source")
    if problem.file is None:
        return problem.name if recorded is None and source not in (None, problem.name) else None
    if recorded is None:
        return str(problem.file) if provenance else None
    try:
        contents = file_contents(str(problem.file))
    except (OSError, ValueError):
        return None
    return None if is_recorded(recorded, contents) else str(problem.file)


def _named(file: str) -> bytes:
    """What is in the file that the user names."""
    if not file.endswith(".py"):
        raise OptionsError(f"--problem {file} is no Python file; leave it out for problems that have a name")
    try:
        return file_contents(file)
    except (OSError, ValueError) as error:
        raise OptionsError(f"--problem {file} cannot be read: {error}") from None
