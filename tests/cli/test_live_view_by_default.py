"""A solve draws the live view on a terminal that has room for it, unless it is told not to."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import termios
from pathlib import Path

import pytest
from command_line import command, environment

import ooc_mdp

MAP = ". done"
"""In the title of the live view's map, and nowhere in the line."""
REFUSED = "--live needs a terminal of 100 x 24 characters"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("live") / "car.store"
    ooc_mdp.generate("mountain-car", path, {"grid": "20,20"}, partition_grid=(4, 5), device="cpu")
    return path


def shown(store: Path, size: tuple[int, int], *options: str) -> str:
    """What a solve writes to a terminal of that many columns and lines."""
    terminal, stderr = pty.openpty()
    fcntl.ioctl(stderr, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
    solve = command("solve", store, "--discount", 0.9, "--device", "cpu", *options)
    known = {k: v for k, v in environment().items() if k not in ("COLUMNS", "LINES")} | {"TERM": "xterm"}
    with subprocess.Popen(solve, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, env=known) as ran:
        os.close(stderr)
        text = b""
        try:
            while read := os.read(terminal, 1 << 16):
                text += read
        except OSError:  # how a terminal ends that nothing writes to any more
            pass
        os.close(terminal)
        assert ran.stdout is not None
        assert b"PROVED" in ran.stdout.read()
    return text.decode()


@pytest.mark.parametrize(
    ("size", "options", "draws", "notes"),
    [
        ((100, 24), (), True, False),
        ((99, 24), (), False, False),
        ((80, 24), ("--live",), False, True),
        ((100, 24), ("--no-live",), False, False),
    ],
)
def test_the_live_view_is_drawn_where_it_fits(
    store: Path, size: tuple[int, int], options: tuple[str, ...], draws: bool, notes: bool
) -> None:
    text = shown(store, size, *options)
    assert (MAP in text) == draws
    assert (REFUSED in text) == notes
