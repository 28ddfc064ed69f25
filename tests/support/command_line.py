"""Running the command line in tests: in this process for speed, in a process of its own for signals and limits."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import traceback
from dataclasses import dataclass
from typing import Any
from unittest import mock

from paths import python_path


@dataclass(frozen=True)
class Ran:
    """Exit status and output of a command."""

    status: int
    out: str
    err: str

    @property
    def figures(self) -> dict[str, Any]:
        """The one JSON object on stdout; what is no JSON (NaN, Infinity, a second line) fails."""

        def refuse(word: str) -> None:
            raise AssertionError(f"{word} is no JSON")

        assert self.out.count("\n") == 1, self.out
        found: dict[str, Any] = json.loads(self.out, parse_constant=refuse)
        return found


def ooc(*arguments: object) -> Ran:
    """Run a command in this process."""
    from ooc_mdp.cli import main

    out, err = io.StringIO(), io.StringIO()
    status = 0
    given = ["ooc-mdp", *map(str, arguments)]
    with mock.patch.object(sys, "argv", given), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
        except Exception:
            traceback.print_exc()
            status = 1
    return Ran(status, out.getvalue(), err.getvalue())


def refused(*arguments: object) -> str:
    """The message of a command that must end with status 2, a few lines on stderr and nothing on stdout."""
    ran = ooc(*arguments)
    assert ran.status == 2, ran
    assert ran.out == ""
    assert "Traceback" not in ran.err
    assert 1 <= len(ran.err.strip().splitlines()) <= 4, ran.err
    assert len(ran.err) < 1500
    return ran.err


def command(*arguments: object) -> list[str]:
    """The command line of a process of its own."""
    return [sys.executable, "-m", "ooc_mdp", *map(str, arguments)]


def environment() -> dict[str, str]:
    """What such a process needs to find the package and the helpers of the tests."""
    return {**os.environ, "PYTHONPATH": python_path()}


def process(*arguments: object, limit: str | None = None, timeout: float = 600) -> Ran:
    """Run a command in a process of its own, under a limit such as "-f 100" (of bash's ulimit: files of 100 KiB).

    The timeout is for what hangs: on a busy machine, with loops to compile, minutes can pass.
    """
    line = command(*arguments)
    if limit is not None:
        line = ["bash", "-c", f'ulimit {limit}; exec "$@"', "limited", *line]
    return _done(line, environment(), timeout)


def interrupted(number: int, at: str, nth: int, *arguments: object, timeout: float = 600) -> Ran:
    """Run a command in a process of its own, which sends itself a signal at the n-th of some steps (`steps`).

    Parameters
    ----------
    at : "changes FOLDER", "changes FOLDER SUFFIX" or "entry JOURNAL".
    """
    line = [sys.executable, "-c", _INTERRUPTED, str(int(number)), at, str(nth), *map(str, arguments)]
    return _done(line, environment(), timeout)


_INTERRUPTED = """
import sys
from functools import partial
from pathlib import Path
import steps

number, at, nth = int(sys.argv[1]), sys.argv[2].split(), int(sys.argv[3])
sys.argv = ["ooc-mdp", *sys.argv[4:]]
from ooc_mdp.cli import main

steps.note_handled_signals()
act = partial(steps.send, number)
if at[0] == "entry":
    steps.at_entry(nth, "after", act, Path(at[1]))
else:
    steps.count_changes(Path(at[1]), lambda now: act() if now == nth else None, *at[2:])
main()
"""


def _done(line: list[str], environment: dict[str, str], timeout: float) -> Ran:
    done = subprocess.run(
        line, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, check=False
    )
    return Ran(done.returncode, done.stdout, done.stderr)
