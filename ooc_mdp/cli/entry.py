"""The process of the command line: signals, exit status, and errors as one short line."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Annotated

import typer

from ooc_mdp.cli import kernels, measuring, planning, problems, reports, results, solving, stores  # noqa: F401  (they add their commands)
from ooc_mdp.cli.application import app
from ooc_mdp.errors import OocMdpError, system_remedy
from ooc_mdp.quoting import printable, shorten
from ooc_mdp.runtime.memory import address_space_limit
from ooc_mdp.sizes import format_bytes

__all__ = ["main"]

_MOST_CHARACTERS = 2000
"""Of an error's message, which may quote attributes of a file."""


@app.callback(invoke_without_command=True)
def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        import ooc_mdp

        print(f"ooc-mdp {ooc_mdp.__version__}")
        raise typer.Exit


class _Interrupted(BaseException):
    """Raised for SIGINT and SIGTERM where no solve handles them; partly written outputs are removed on the way."""


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise _Interrupted

    previous = {s: signal.signal(s, stop) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for s, handler in previous.items():
            signal.signal(s, handler)


def main() -> None:
    """Run the command line of this process."""
    try:
        with _interruptible():
            app()
    except OocMdpError as error:
        _fail("; ".join([str(error), *getattr(error, "__notes__", [])]), 2)
    except OSError as error:
        remedies = [remedy for remedy in (system_remedy(error), _address_space_remedy()) if remedy is not None]
        _fail("; ".join([f"the system reports: {error}", *remedies]), 2)
    except MemoryError as error:
        remedy = "lower --cache (solve), or --partition-size and --threads (convert, generate)"
        _fail(f"out of memory ({str(error) or 'no details'}); {_address_space_remedy() or remedy}", 2)
    except _Interrupted as interrupt:
        left = getattr(interrupt, "__notes__", ["nothing half-written was left behind"])
        _fail("; ".join(["interrupted", *left]), 1)


def _address_space_remedy() -> str | None:
    """What to do where the address space of this process is limited; None where it is not."""
    limit = address_space_limit()
    if limit is None:
        return None
    size = format_bytes(limit)
    return f"this process is limited to {size} of address space, libraries and stacks included: raise ulimit -v"


def _fail(message: str, status: int) -> None:
    shown = shorten(printable(message), _MOST_CHARACTERS)
    print(f"error: {shown}" if status == 2 else shown, file=sys.stderr)
    sys.exit(status)
