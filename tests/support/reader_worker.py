"""A process that reads files as a user would have them read, within limits of memory and processor time.

It handles many inputs, and is replaced when one of them ends it. An input passes if each way of reading it gives rows
or an error of the package, whose message is short and printable.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import resource
import shutil
import signal
import tempfile
import traceback
import warnings
from multiprocessing.connection import Connection
from pathlib import Path

from reader_seeds import SEEDS, Parts, Seed

from ooc_mdp.errors import OocMdpError
from ooc_mdp.io.registry import ReadOptions, open_source

__all__ = ["ReaderProcess", "read_all_ways", "write_files"]

_CONTEXT = multiprocessing.get_context("forkserver")
MEMORY = 768 << 20
"""Bytes of address space that the reading of an input may add."""
SECONDS = 10
"""Processor time for all ways of reading an input."""
LONGEST_MESSAGE = 1500


def read_all_ways(folder: Path, main: str, format: str, reward_model: str | None) -> str:
    """Read a folder's model in detected and named format, in small and large pieces; what is wrong with that, or ""."""
    path = str(folder if main == "." else folder / main)
    rewards = folder / "rewards" if (folder / "rewards").exists() else None
    for named in (None, format):
        for segment_bytes in (50, 16 << 20):
            options = ReadOptions(
                rewards=rewards if named != "mdptoolbox" else None,
                reward_model=reward_model,
                segment_bytes=segment_bytes,
            )
            try:
                source = open_source(path, named, options)
                try:
                    for block in source.blocks():
                        block()
                    source.check_totals()
                finally:
                    source.close()
            except OocMdpError as error:
                message = str(error)
                if len(message) > LONGEST_MESSAGE or not message.isprintable():
                    return f"a message of {len(message)} characters: {message[:300]!r}"
            except BaseException:
                return traceback.format_exc()
    return ""


def write_files(folder: Path, files: Parts) -> None:
    """The files, alone in the folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, contents in files.items():
        (folder / name).write_bytes(contents)


def _serve(connection: Connection, folder: str) -> None:
    """Read all seeds, so that everything is loaded, then inputs until the connection ends."""
    warnings.simplefilter("error")
    for seed in SEEDS.values():
        write_files(Path(folder) / "seed", seed.pack(seed.parts))
        wrong = read_all_ways(Path(folder) / "seed", seed.main, seed.format, seed.reward_model)
        assert not wrong, wrong
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    faulthandler.enable()
    connection.send("ready")
    while True:
        case = connection.recv()
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # ends the process
        answer = read_all_ways(*case)
        signal.setitimer(signal.ITIMER_PROF, 0)
        connection.send(answer)


class ReaderProcess:
    """The present process and its successors; a context manager."""

    def __enter__(self) -> ReaderProcess:
        self._folder = Path(tempfile.mkdtemp(prefix="readers-"))
        self._start()
        return self

    def _start(self) -> None:
        self._connection, other = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_serve, args=(other, str(self._folder)), daemon=True)
        self._process.start()
        other.close()
        assert self._connection.recv() == "ready"

    def read(self, seed: Seed, files: Parts) -> str:
        """What is wrong with how the files of an altered seed are read; "" if nothing is."""
        folder = self._folder / "case"
        write_files(folder, files)
        self._connection.send((folder, seed.main, seed.format, seed.reward_model))
        try:
            answer: str = self._connection.recv()
        except EOFError:
            self._process.join()
            status = self._process.exitcode or 0
            self._start()
            if status == -signal.SIGPROF:
                return f"took more than {SECONDS} s of processor time"
            return f"the process ended with status {status}"
        return answer

    def __exit__(self, *exception: object) -> None:
        self._connection.close()
        self._process.kill()
        self._process.join()
        shutil.rmtree(self._folder, ignore_errors=True)
