"""Processes to be killed, forked from one that has loaded the package: each begins with its work, not with imports.

The one they are forked from has no threads and has done nothing but load code, so a child is as a fresh process would
be once it is loaded. Loading takes longer than most of these tests' work, and leaves nothing on disk that a kill could
spoil.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from command_line import ooc
from steps import When, at_entry, count_changes, kill
from store_models import ModelProblem, ModelSource, random_model, state_rows

from ooc_mdp import StoreBuilder, from_rows
from ooc_mdp.io.conversion import ConvertOptions, convert, generate
from ooc_mdp.solver import session

__all__ = [
    "added_rows",
    "changes_of",
    "command_in_a_fork",
    "conversion",
    "fork",
    "generation",
    "killed_at",
    "killed_at_entry",
    "rows_of_function",
    "saving_command_in_a_fork",
    "succeed",
]

_LOADED = ("forked", "ooc_mdp.cli.entry", "ooc_mdp.io.conversion", "ooc_mdp.solver.local", "zarr", "numba_loaded")
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(list(_LOADED))


def fork(function: Callable[..., None], *arguments: object) -> multiprocessing.process.BaseProcess:
    """Start a module's function in a process of its own, which ends with this one at the latest."""
    process = _CONTEXT.Process(target=function, args=arguments, daemon=True)
    process.start()
    return process


def succeed(function: Callable[..., None], *arguments: object) -> None:
    """Run a function in a process of its own, which must succeed."""
    process = fork(function, *arguments)
    process.join()
    assert process.exitcode == 0


def changes_of(folder: Path, function: Callable[..., None], *arguments: object, only: str = "") -> int:
    """How many changes below a folder (`steps.count_changes`) a function makes in a process of its own."""
    receiver, sender = _CONTEXT.Pipe(duplex=False)
    with receiver:
        with sender:
            process = fork(_counted, sender, folder, only, function, arguments)
        count = int(receiver.recv())
        process.join()
    assert process.exitcode == 0
    return count


def killed_at(number: int, folder: Path, function: Callable[..., None], *arguments: object, only: str = "") -> bool:
    """Run a function in a process that is killed before its n-th change below a folder; whether it came to that."""
    process = fork(_killed_at_change, number, folder, only, function, arguments)
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


def killed_at_entry(number: int, when: When, journal: Path, function: Callable[..., None], *arguments: object) -> None:
    """Run a function in a process that is killed at the n-th entry of its journal; it must come to that."""
    process = fork(_killed_at_entry, number, when, journal, function, arguments)
    process.join()
    assert process.exitcode == -signal.SIGKILL


def _counted(
    sender: Connection, folder: Path, only: str, function: Callable[..., None], arguments: tuple[object, ...]
) -> None:
    counted = [0]
    count_changes(folder, lambda number: counted.append(number), only)
    try:
        function(*arguments)
    finally:
        sender.send(max(counted))


def _killed_at_change(
    number: int, folder: Path, only: str, function: Callable[..., None], arguments: tuple[object, ...]
) -> None:
    count_changes(folder, lambda now: kill() if now == number else None, only)
    function(*arguments)


def _killed_at_entry(
    number: int, when: When, journal: Path, function: Callable[..., None], arguments: tuple[object, ...]
) -> None:
    at_entry(number, when, kill, journal)
    function(*arguments)


def command_in_a_fork(*arguments: object) -> None:
    """Run a command line to its end: nothing is printed, the exit status is the command's."""
    raise SystemExit(ooc(*arguments).status)


def saving_command_in_a_fork(*arguments: object) -> None:
    """The same, with a checkpoint after each access to a partition, and one thread that reads."""
    os.cpu_count = lambda: 1  # the order of accesses hardly depends on when reads arrive
    session._SAVING_SHARE = 0
    command_in_a_fork(*arguments, "--checkpoint-interval", 0)


def conversion(path: Path, seed: int, overwrite: bool) -> None:
    """Convert a random model of 300 states into 20 partitions."""
    source = ModelSource(random_model(seed, 300), block=3)
    convert(source, path, ConvertOptions(partitions=20, threads=2, overwrite=overwrite))


def generation(path: Path, resume: bool) -> None:
    """Generate a random model of 300 states into 30 partitions."""
    problem = ModelProblem(random_model(3, 300, durations=True, labels=True))
    generate(problem, path, ConvertOptions(partitions=30, threads=2, resume=resume))


def rows_of_function(path: Path, resume: bool) -> None:
    """Compute the rows of a random model of 300 states by a function, in 30 partitions."""
    function = functools.partial(state_rows, random_model(3, 300, durations=True, labels=True))
    from_rows(300, function, path=path, partitions=30, threads=2, resume=resume)


def added_rows(path: Path, resume: bool) -> None:
    """Add the rows of the same model in blocks of ten states at most, those that are missing, and commit."""
    model = random_model(3, 300, durations=True, labels=True)
    with StoreBuilder(path, 300, resume=resume, partitions=30, threads=2) as builder:
        for begin, end in builder.missing():
            for first in range(begin, end, 10):
                builder.add_rows(first, state_rows(model, np.arange(first, min(first + 10, end))))
        builder.commit()
