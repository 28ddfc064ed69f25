"""Answers that are copied from the memory of the process that has them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ooc_mdp.distributed import lending
from ooc_mdp.distributed.lending import Lent, Loan, here, take
from ooc_mdp.distributed.messages import Values

needs_linux = pytest.mark.skipif(here() is None, reason="no process can read another's memory here")

ANSWERING = """
import pickle, sys
import numpy as np
from ooc_mdp.distributed.lending import Loan, here
answer = {"a": np.arange(500_000), "none": np.empty(0), "word": "x", "b": np.full((3, 2), 7.0)}
loan = Loan(answer)
sys.stdout.buffer.write(pickle.dumps((here(), loan.lent())))
sys.stdout.buffer.flush()
sys.stdin.read()
"""


@needs_linux
def test_an_answer_of_another_process_is_copied_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """In pieces that do not divide its arrays."""
    import pickle

    monkeypatch.setattr(lending, "_PIECE", 70_001)
    command = [sys.executable, "-c", ANSWERING]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        there, lent = pickle.load(process.stdout)
        own = here()
        assert own is not None
        assert there.machine == own.machine
        assert there.process == process.pid != own.process
        answer = take(lent)
        process.stdin.close()
    assert answer["a"].tolist() == list(range(500_000))
    assert (answer["none"].size, answer["word"], answer["b"].tolist()) == (0, "x", [[7.0] * 2] * 3)
    answer["a"][0] = 5  # it is a copy that may be changed
    with pytest.raises(OSError, match="cannot be read"):
        take(lent)  # the process is gone


@needs_linux
def test_memory_that_is_not_there_is_an_error_and_no_crash() -> None:
    with pytest.raises(OSError, match=f"memory of process {os.getpid()} cannot be read"):
        take(Lent(os.getpid(), b"", [(8, 100)]))


def test_only_large_answers_are_lent() -> None:
    few = Values(np.arange(2), np.zeros(10), np.zeros(10, np.int32), np.ones(2, np.bool_))
    many = Values(np.arange(2), np.zeros(200_000), np.zeros(200_000, np.int32), np.ones(2, np.bool_))
    assert not Loan(few).large
    assert Loan(many).large


def test_where_the_system_cannot_read_memory_there_is_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lending, "_read_memory", lambda: None)
    here.cache_clear()
    try:
        assert here() is None
    finally:
        here.cache_clear()


def test_where_it_may_not_be_read_an_answer_comes_over_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And lent answers make no difference to what a solve finds."""
    import ooc_mdp
    from ooc_mdp.distributed import cluster
    from ooc_mdp.distributed.cluster import local_cluster

    store = ooc_mdp.generate("mountain-car", tmp_path / "s", {"grid": "400,400"}, blocks=[4, 4])
    asked = {"discount": 0.5, "epsilon": 1e-3, "device": "cpu", "cache": "100%"}
    tried = []

    def refused(lent: Lent) -> object:
        tried.append(lent)
        raise PermissionError("not here")

    with local_cluster(1, 0) as client:
        lent = ooc_mdp.solve(store, client=client, **asked)
        monkeypatch.setattr(cluster, "take", refused)
        sent = ooc_mdp.solve(store, client=client, **asked)
    assert len(tried) == (here() is not None)
    assert np.abs(lent.values - sent.values).max() <= lent.error_bound + sent.error_bound
    assert (lent.policy >= -1).all()
