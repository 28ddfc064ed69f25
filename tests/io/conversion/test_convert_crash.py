"""Conversions in a process of their own: killed at any moment, out of disk, and measured."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command_line import environment
from forked import changes_of, conversion, killed_at, succeed

from ooc_mdp.errors import StoreError
from ooc_mdp.store import check_store, open_store

FULL = """
import resource, signal, sys
from pathlib import Path
from command_line import environment
from forked import conversion
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
conversion(Path(sys.argv[1]), 1, False)
"""

MEASURE = """
import resource, sys
import numpy as np
from functools import partial
from ooc_mdp.io.annotations import SourceAnnotations
from ooc_mdp.io.conversion import ConvertOptions, convert
from ooc_mdp.model.mdp import Block, Rows

class Ring:
    path, format = "ring", "test"
    def __init__(self, n):
        self.n_states, self.annotations = n, SourceAnnotations()
    def blocks(self):
        return (partial(self.read, first) for first in range(0, self.n_states, 20_000))
    def read(self, first):
        n = min(20_000, self.n_states - first)
        start = np.clip(np.arange(first, first + n) - 4, 0, self.n_states - 8)
        successors = (start[:, None] + np.arange(8)).repeat(2, axis=0).ravel()
        rows = Rows(np.arange(n + 1) * 2, np.arange(2 * n + 1) * 8, successors, np.full(16 * n, 0.125),
                    np.arange(2.0 * n))
        return Block(first, rows, int(successors.max()))
    def check_totals(self):
        pass
    def close(self):
        pass

options = ConvertOptions(partition_size=2 << 20, threads=2)
convert(Ring(40_000), sys.argv[2] + ".warm", options)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
convert(Ring(int(sys.argv[1])), sys.argv[2], options)
print(before * 1024, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.parametrize("mode", ["new", "overwrite"])
@pytest.mark.parametrize("kills", [4, pytest.param(12, marks=pytest.mark.slow)])
def test_a_killed_conversion_leaves_a_valid_store_or_none_and_can_be_run_again(
    tmp_path: Path, mode: str, kills: int
) -> None:
    path, overwrite = tmp_path / "s", mode == "overwrite"
    succeed(conversion, path, 1, False)
    old = open_store(path).fingerprint
    changes = changes_of(tmp_path, conversion, tmp_path / "again", 2, False)
    assert changes > 20
    if mode == "new":
        path.rename(tmp_path / "reference")
    for number in np.linspace(1, 0.9 * changes, kills).astype(int).tolist():
        assert killed_at(number, tmp_path, conversion, path, 2, overwrite)
        if overwrite:
            store = open_store(path)
            assert check_store(store).findings == ()
            assert store.fingerprint == old
        else:
            with pytest.raises(StoreError):
                open_store(path)
    succeed(conversion, path, 2, overwrite)
    store = open_store(path)
    assert check_store(store).findings == ()
    assert store.fingerprint != old
    assert not (tmp_path / "s.partial").exists()


def test_a_full_disk_leaves_no_store_and_a_plain_message(tmp_path: Path) -> None:
    """A limit on the size of files stands in for a full disk."""
    result = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "s")],
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
