"""What the benchmarks share: facts about the machine, runs in fresh processes with their peak memory, tables, JSON.

Nothing here knows what a benchmark compares. Peak memory is the kernel's own record for the ended process
(`wait4`, largest resident set), so it needs no polling and misses nothing; on Linux a process starts with the largest
resident set of the one that started it, so a benchmark keeps its own process small and builds models in children.
Figures never hold paths or host names. Linux and macOS.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import re
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ooc_mdp.events import SolveProgress

__all__ = [
    "Finished",
    "ProgressLine",
    "add_common_options",
    "evict",
    "machine",
    "print_table",
    "read_through",
    "run",
    "run_task",
    "say",
    "spread",
    "versions",
    "write_figures",
]

REPOSITORY = Path(__file__).resolve().parents[1]
_PROGRESS_SECONDS = 10.0
"""Between two lines of a long solve."""
_CHILD = Path(__file__).resolve().parent / "tasks.py"


@dataclass(frozen=True, slots=True)
class Finished:
    """An ended process."""

    status: int
    """Exit status."""
    output: str
    """What it wrote to stdout."""
    messages: str
    """What it wrote to stderr."""
    seconds: float
    """From start to end."""
    peak_bytes: int
    """Largest resident set, shared libraries included."""
    killed: bool = False
    """Whether it was ended at the time limit."""


def run(command: Sequence[str], accepted: Iterable[int] = (0,), limit: float | None = None) -> Finished:
    """Run a command to its end, or kill it after `limit` seconds, and measure it.

    Raises
    ------
    RuntimeError : its exit status is not among the accepted ones; with the end of what it said.
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as messages:
        started = time.monotonic()
        process = subprocess.Popen(command, stdout=output, stderr=messages, stdin=subprocess.DEVNULL)
        killed = threading.Event()

        def kill() -> None:
            killed.set()
            os.kill(process.pid, signal.SIGKILL)

        alarm = threading.Timer(limit or threading.TIMEOUT_MAX, kill)
        alarm.daemon = True
        if limit is not None:
            alarm.start()
        _, wait_status, usage = os.wait4(process.pid, 0)
        alarm.cancel()
        seconds = time.monotonic() - started
        process.returncode = os.waitstatus_to_exitcode(wait_status)
        output.seek(0)
        messages.seek(0)
        finished = Finished(
            status=process.returncode,
            output=output.read().decode(),
            messages=messages.read().decode(),
            seconds=seconds,
            peak_bytes=usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
            killed=killed.is_set(),
        )
    if finished.status not in accepted and not finished.killed:
        raise RuntimeError(f"{shlex.join(command)} ended with {finished.status}:\n{finished.messages[-2000:]}")
    return finished


def run_task(task: str, **parameters: Any) -> tuple[dict[str, Any], Finished]:
    """Run a function of `tasks.py` in a fresh interpreter: what it returned, and what the process took."""
    finished = run([sys.executable, str(_CHILD), json.dumps({"task": task, **parameters})])
    return json.loads(finished.output), finished


def read_through(folder: Path) -> None:
    """Read every file once, so that the operating system's page cache holds what fits."""
    for path in _files(folder):
        with path.open("rb", buffering=0) as file:
            while file.read(1 << 22):
                pass


def evict(folder: Path) -> None:
    """Drop every file of a folder from the page cache (Linux).

    Raises
    ------
    RuntimeError : the system has no such call.
    """
    if not hasattr(os, "posix_fadvise"):
        raise RuntimeError("this system cannot drop files from its page cache; use --page-cache warm")
    for path in _files(folder):
        with path.open("rb", buffering=0) as file:
            os.fsync(file.fileno())  # pages that are not on disk yet would stay
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def machine(shared: bool) -> dict[str, Any]:
    """The machine in words and numbers, without its name."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "ram_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "os": _os(),
        "architecture": platform.machine(),
        "load_average_at_start": round(os.getloadavg()[0], 2),
        "shared": shared,
        "seconds_are": "indicative: other work ran on the machine" if shared else "measured with the machine to itself",
    }


def _cpu() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.processor() or "unknown"


def _os() -> str:
    kernel = re.match(r"\d+\.\d+", platform.release())  # what follows may name whoever built it
    system = f"{platform.system()} {kernel[0] if kernel else ''}".strip()
    try:
        return f"{platform.freedesktop_os_release()['PRETTY_NAME']}, {system}"
    except (OSError, KeyError):
        return system


def versions() -> dict[str, str]:
    """Versions of what takes part, and the commit of ooc-mdp."""
    import ooc_mdp

    found = {"python": platform.python_version()}
    for package in ("numpy", "numba", "zarr", "numcodecs", "cupy-cuda12x", "cupy-cuda13x"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found | {"ooc-mdp": ooc_mdp.__version__, "commit": _commit()}


def _commit() -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(REPOSITORY), *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", "ooc_mdp", "benchmarks/*.py")
        return git("rev-parse", "--short=12", "HEAD") + (" with uncommitted changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def spread(values: Sequence[float]) -> dict[str, float]:
    """Smallest, median and largest of repeated measurements."""
    return {"min": min(values), "median": statistics.median_low(values), "max": max(values), "repeats": len(values)}


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """--output and --machine-shared."""
    parser.add_argument("--output", type=Path, help="JSON file for the figures")
    parser.add_argument(
        "--machine-shared", action="store_true", help="say in the figures that other work ran on the machine meanwhile"
    )


def print_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns aligned, the first to the left and the others to the right."""
    widths = [max(len(line[i]) for line in (headers, *rows)) for i in range(len(headers))]
    for line in (headers, *rows):
        first, *others = (
            text.ljust(w) if i == 0 else text.rjust(w) for i, (text, w) in enumerate(zip(line, widths, strict=True))
        )
        print("  ".join((first, *others)).rstrip())


def write_figures(
    name: str, options: argparse.Namespace, figures: dict[str, Any], facts: dict[str, Any], not_included: Sequence[str]
) -> None:
    """Write the figures, with everything that one needs to read them, if an output is named.

    Parameters
    ----------
    facts : `machine` and `versions`, taken when the benchmark began.
    """
    if options.output is None:
        return
    settings = {k: v for k, v in vars(options).items() if k not in ("output", "machine_shared")}
    whole = {
        "benchmark": name,
        "date": datetime.date.today().isoformat(),
        **facts,
        "settings": settings,
        "not_included": list(not_included),
        **figures,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(whole, indent=2) + "\n")


def say(text: str) -> None:
    """A line for whoever watches."""
    print(text, file=sys.stderr, flush=True)


class ProgressLine:
    """A solve's watcher: says where it stands, every ten seconds."""

    def __init__(self) -> None:
        self._said = time.monotonic()

    def __call__(self, at: SolveProgress) -> None:
        """Print the line if it is time."""
        from ooc_mdp.options import format_bytes

        now = time.monotonic()
        if now - self._said >= _PROGRESS_SECONDS:
            self._said = now
            say(
                f"{at.seconds:6.1f} s  error {at.error_bound:.3g}, residual {at.residual_bound:.3g}, {at.dirty} of "
                f"{at.partitions} dirty, {at.loads / at.partitions:.2f} loads per partition, "
                f"{format_bytes(at.bytes_read)} read"
            )
