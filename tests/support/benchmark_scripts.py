"""Scripts of the benchmarks: run in this process for speed, or in one of their own where they change the process.

In this process a script neither loads the package again nor compiles anew what a test before it has compiled, which
takes longer than most toy sizes. It runs as ``__main__`` with modules of its own: folders of benchmarks name theirs
freely, and none is left behind.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from paths import BENCHMARKS, REPOSITORY

__all__ = ["figures_of", "run_here", "run_in_a_process"]


def run_here(script: str, *arguments: object, temporary: Path | None = None) -> str:
    """Run a script as its command line would: what it printed. Its temporary files go to a folder, if one is named."""
    path = BENCHMARKS / script
    given = [str(path), *map(str, arguments)]
    folder = tempfile.gettempdir() if temporary is None else str(temporary)
    environment = _environment(folder)
    out = io.StringIO()
    with (
        _own_modules(path),
        mock.patch.object(sys, "argv", given),
        mock.patch.object(tempfile, "tempdir", folder),
        mock.patch.dict(os.environ, environment),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        runpy.run_path(str(path), run_name="__main__")
    return out.getvalue()


def run_in_a_process(script: str, *arguments: object, temporary: Path | None = None) -> str:
    """Run a script in a process of its own."""
    folder = tempfile.gettempdir() if temporary is None else str(temporary)
    line = [sys.executable, str(BENCHMARKS / script), *map(str, arguments)]
    environment = os.environ | _environment(folder)
    return subprocess.run(line, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


def figures_of(script: str, folder: Path, *arguments: str, alone: bool = False) -> dict:
    """What a script writes; alone in a process where it measures or changes the process that it runs in."""
    output = folder / "figures.json"
    run = run_in_a_process if alone else run_here
    run(script, *arguments, "--output", output, temporary=folder)
    assert list(folder.iterdir()) == [output], "a benchmark leaves nothing but its figures"
    text = output.read_text()
    figures = json.loads(text)
    assert str(folder) not in text
    assert str(REPOSITORY) not in text
    if len(socket.gethostname()) > 4:
        assert socket.gethostname() not in text
    assert figures["machine"]["cores"] >= 1
    assert {"python", "numpy", "numba", "zarr", "numcodecs", "ooc-mdp", "commit"} <= set(figures["versions"])
    assert figures["not_included"]
    return figures


def _environment(folder: str) -> dict[str, str]:
    found = [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    torch = str(Path(tempfile.gettempdir(), "torchinductor"))  # its profiler makes a folder for its compiler
    return {"PYTHONPATH": os.pathsep.join(filter(None, found)), "TMPDIR": folder, "TORCHINDUCTOR_CACHE_DIR": torch}


@contextlib.contextmanager
def _own_modules(script: Path) -> Iterator[None]:
    """Modules are looked for beside the script first; tests' modules of the same names are put aside meanwhile."""
    path, modules = list(sys.path), dict(sys.modules)
    names = {file.stem for file in BENCHMARKS.rglob("*.py")}
    for name in names & set(sys.modules):
        del sys.modules[name]
    sys.path.insert(0, str(script.parent))
    try:
        yield
    finally:
        sys.path[:] = path
        for name in names & set(sys.modules):
            del sys.modules[name]
        sys.modules.update({name: modules[name] for name in names & set(modules)})
