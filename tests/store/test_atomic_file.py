"""Single output files appear whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ooc_mdp.errors import StoreError
from ooc_mdp.store.atomic_file import atomic_file


def test_an_output_is_on_disk_before_it_takes_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, synced = tmp_path / "c.csv", []
    file.write_text("mine")

    def sync(fd: int) -> None:
        synced.append((os.fstat(fd).st_ino, file.read_text()))

    monkeypatch.setattr("ooc_mdp.store.transaction.os.fsync", sync)
    with atomic_file(file, overwrite=True) as temporary:
        temporary.write_text("new")
    assert synced == [(file.stat().st_ino, "mine"), (tmp_path.stat().st_ino, "new")]


def test_an_output_that_fails_half_way_leaves_nothing(tmp_path: Path) -> None:
    file = tmp_path / "c.csv"
    file.write_text("mine")

    def write_half() -> None:
        with atomic_file(file, overwrite=True) as temporary:
            temporary.write_text("half")
            raise OSError(28, "No space left on device")

    with pytest.raises(StoreError, match=r"cannot write .*c\.csv: No space left"):
        write_half()
    assert [(f.name, f.read_text()) for f in tmp_path.iterdir()] == [("c.csv", "mine")]
