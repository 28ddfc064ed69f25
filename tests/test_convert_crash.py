"""Conversions in a process of their own: killed at any moment, out of disk, and measured."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ooc_mdp.errors import StoreError
from ooc_mdp.store import open_store, validate_store

TESTS = Path(__file__).parent
ROOT = TESTS.parent

CONVERT = """
import sys
from store_models import ModelSource, random_model
from ooc_mdp.conversion import ConvertOptions, convert
path, seed, overwrite = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "overwrite"
source = ModelSource(random_model(seed, 300), block=3)
print("ready", flush=True)
convert(source, path, ConvertOptions(partitions=20, workers=2, overwrite=overwrite))
"""

MEASURE = """
import resource, sys
import numpy as np
from functools import partial
from ooc_mdp.conversion import ConvertOptions, convert
from ooc_mdp.mdp import Block, Rows

class Ring:
    path, format = "ring", "test"
    def __init__(self, n):
        self.n_states = n
    def jobs(self):
        return (partial(self.read, first) for first in range(0, self.n_states, 20_000))
    def read(self, first):
        n = min(20_000, self.n_states - first)
        start = np.clip(np.arange(first, first + n) - 4, 0, self.n_states - 8)
        successors = (start[:, None] + np.arange(8)).repeat(2, axis=0).ravel()
        rows = Rows(np.arange(n + 1) * 2, np.arange(2 * n + 1) * 8, successors, np.full(16 * n, 0.125),
                    np.arange(2.0 * n))
        return Block(first, rows, int(successors.max()))
    def finish(self):
        pass
    def close(self):
        pass

options = ConvertOptions(partition_size=2 << 20, workers=2)
convert(Ring(40_000), sys.argv[2] + ".warm", options)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
convert(Ring(int(sys.argv[1])), sys.argv[2], options)
print(before * 1024, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{TESTS}"}


def run(path: Path, seed: int, mode: str, kill_after: float | None = None) -> int:
    """Convert in a process; kill it so many seconds after it is ready; return its exit status."""
    command = [sys.executable, "-c", CONVERT, str(path), str(seed), mode]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment(), text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        if kill_after is not None:
            time.sleep(kill_after)
            process.send_signal(signal.SIGKILL)
        return process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["new", "overwrite"])
def test_a_killed_conversion_leaves_a_valid_store_or_none_and_can_be_run_again(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "s"
    begun = time.monotonic()
    assert run(path, 1, mode) == 0
    whole = time.monotonic() - begun
    old = open_store(path).fingerprint
    if mode == "new":
        path.rename(tmp_path / "reference")
    moments = random.Random(0)
    killed = 0
    for attempt in range(12):
        killed += run(path, 2, mode, moments.uniform(0, 0.5 * whole)) == -signal.SIGKILL
        if mode == "overwrite" or path.exists():
            store = open_store(path)
            assert validate_store(store).findings == ()
            assert mode == "new" or store.fingerprint == old or store.n_states == 300
        else:
            with pytest.raises(StoreError):
                open_store(path)
        if mode == "new" and path.exists():
            path.rename(tmp_path / f"done{attempt}")
    assert killed > 0
    assert run(path, 2, mode) == 0
    store = open_store(path)
    assert validate_store(store).findings == ()
    assert store.fingerprint != old
    assert not (tmp_path / "s.partial").exists()


def test_a_full_disk_leaves_no_store_and_a_plain_message(tmp_path: Path) -> None:
    """A limit on the size of files stands in for a full disk."""
    code = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))\n{CONVERT}"
    code = f"import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n{code}"
    result = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "s"), "1", "new"],
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1
    assert "StoreError" in result.stderr
    assert "s was not written: no room (File too large)" in result.stderr
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
def test_memory_does_not_grow_with_the_input(tmp_path: Path) -> None:
    grown = []
    for n in (200_000, 2_000_000):
        command = [sys.executable, "-c", MEASURE, str(n), str(tmp_path / str(n))]
        result = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
        before, after = map(int, result.stdout.split())
        grown.append(after - before)
    table = 2_000_000 * 16 * 12
    assert grown[1] - grown[0] < table / 10
