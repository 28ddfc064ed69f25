"""Too few file descriptors, too little memory and a failing disk are reported as what they are, never as damage."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import ooc
from store_models import ModelProblem, random_model

import ooc_mdp
from ooc_mdp.errors import SystemFailureError
from ooc_mdp.io.conversion import ConvertOptions, generate
from ooc_mdp.report.cache_trace import read_trace
from ooc_mdp.store import check_store, chunk_reads, reader
from ooc_mdp.store.checkpoint import read_checkpoint
from ooc_mdp.store.result import is_result

MODEL = random_model(5, 40)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    generate(ModelProblem(MODEL), folder / "s", ConvertOptions(partitions=4, threads=1))
    ooc_mdp.generate("mountain-car", folder / "v", {"grid": "8,8"}, partitions=4, virtual=True, device="cpu")
    how: dict[str, Any] = {"discount": 0.9, "device": "cpu", "cache": "30%"}
    ooc_mdp.solve(folder / "s", output=folder / "r", trace=folder / "t.csv", **how)
    ooc_mdp.solve(folder / "s", output=folder / "c", method="vi", time_limit=1e-9, **how)
    n = np.arange(4)
    np.savez(folder / "m.npz", state_ptr=np.arange(5), indptr=np.arange(5), indices=n, data=np.ones(4), r_s=np.ones(4))
    ooc_mdp.convert(folder / "m.npz", folder / "m")
    return folder


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


READS: dict[str, Callable[[Path], object]] = {
    "a store": lambda place: ooc_mdp.open_store(place / "s"),
    "a virtual store": lambda place: ooc_mdp.open_store(place / "v"),
    "a result": lambda place: ooc_mdp.open_result(place / "r"),
    "what may be a result": lambda place: is_result(place / "r"),
    "a checkpoint": lambda place: read_checkpoint(place / "c.checkpoint"),
    "a trace": lambda place: read_trace(place / "t.csv"),
    "an archive": lambda place: ooc_mdp.convert(place / "m.npz", place / "new"),
}


@pytest.mark.parametrize("what", READS)
def test_too_few_descriptors_are_no_damage(place: Path, what: str) -> None:
    with no_descriptor_left(), pytest.raises((SystemFailureError, OSError)) as raised:
        READS[what](place)
    if isinstance(raised.value, SystemFailureError):
        assert "Too many open files; this process may not open more files; allow more (ulimit -n" in str(raised.value)
    else:
        assert raised.value.errno == errno.EMFILE
    assert not (place / "new").exists()


def test_a_check_reports_no_finding_where_chunks_cannot_be_opened(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*arguments: Any) -> Any:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    store = ooc_mdp.open_store(place / "s")
    monkeypatch.setattr(reader, "read_frame_file", failing)
    with pytest.raises(SystemFailureError, match="ulimit -n"):
        check_store(store)


def test_the_command_line_names_the_remedy(place: Path) -> None:
    assert ooc("inspect", place / "s").status == 0
    with no_descriptor_left():
        ran = ooc("inspect", place / "s")
    assert ran.status == 2
    assert "ulimit -n" in ran.err
    assert "damaged" not in ran.err


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOMEM, errno.ENFILE, errno.EMFILE, errno.ESTALE])
def test_a_solve_whose_disk_fails_keeps_what_it_solved(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    loads, together = [], chunk_reads.decompress_files

    def failing_together(*arguments: Any) -> bool:
        loads.append(arguments)
        return len(loads) <= 8 and together(*arguments)

    def failing(*arguments: Any) -> Any:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(chunk_reads, "decompress_files", failing_together)
    monkeypatch.setattr(reader, "read_frame_file", failing)
    how: dict[str, Any] = {"device": "cpu", "cache": "30%", "output": tmp_path / "r", "method": "vi", "epsilon": 1e-9}
    with pytest.raises(SystemFailureError, match=rf"{os.strerror(code)}; .*checkpoint: once it can be read, continue"):
        ooc_mdp.solve(place / "s", 0.9, **how)
    monkeypatch.undo()
    assert ooc_mdp.solve(place / "s", 0.9, resume=True, **how).outcome.proved
