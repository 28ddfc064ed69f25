"""Processes to be killed, forked from one that has loaded the package: each begins with its work, not with imports.

The one they are forked from has no threads and has done nothing but import, so a child is as a fresh process would be
once it is loaded. Loading takes longer than most of these tests' work, and leaves nothing on disk that a kill could
spoil.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from command_line import ooc
from store_models import ModelProblem, ModelSource, random_model

from ooc_mdp.conversion import ConvertOptions, convert, generate
from ooc_mdp.mdp import Rows

__all__ = ["command_in_a_fork", "conversion", "fork", "killed_after", "seconds_of", "slow_generation"]

_LOADED = ("forked", "ooc_mdp.cli.entry", "ooc_mdp.conversion", "ooc_mdp.methods.solver", "zarr")
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(list(_LOADED))


def fork(function: Callable[..., None], *arguments: object) -> multiprocessing.process.BaseProcess:
    """Start a module's function in a process of its own, which ends with this one at the latest."""
    process = _CONTEXT.Process(target=function, args=arguments, daemon=True)
    process.start()
    return process


def seconds_of(function: Callable[..., None], *arguments: object) -> float:
    """Wall-clock seconds of a function in a process of its own, which must succeed."""
    began = time.monotonic()
    process = fork(function, *arguments)
    process.join()
    assert process.exitcode == 0
    return time.monotonic() - began


def killed_after(seconds: float, function: Callable[..., None], *arguments: object) -> int | None:
    """Kill a function's process after so many seconds; its exit status if it ended earlier, else None."""
    began = time.monotonic()
    process = fork(function, *arguments)
    process.join(max(0.0, began + seconds - time.monotonic()))
    if process.exitcode is None:
        process.kill()
        process.join()
    return None if process.exitcode == -signal.SIGKILL else process.exitcode


def command_in_a_fork(*arguments: object) -> None:
    """Run a command line to its end: nothing is printed, the exit status is the command's."""
    raise SystemExit(ooc(*arguments).status)


def conversion(path: Path, seed: int, overwrite: bool) -> None:
    """Convert a random model of 300 states into 20 partitions."""
    source = ModelSource(random_model(seed, 300), block=3)
    convert(source, path, ConvertOptions(partitions=20, workers=2, overwrite=overwrite))


class _Slow(ModelProblem):
    """Takes 10 ms for each request of rows."""

    def rows(self, states: np.ndarray) -> Rows:
        time.sleep(0.01)
        return super().rows(states)


def slow_generation(path: Path, resume: bool) -> None:
    """Generate a random model of 300 states into 30 partitions."""
    problem = _Slow(random_model(3, 300, durations=True, labels=True))
    generate(problem, path, ConvertOptions(partitions=30, workers=2, resume=resume))
