"""What has a temporary file's name and is not ours is named, and neither followed, filled nor removed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import ooc, refused

import ooc_mdp
from ooc_mdp.errors import StoreError
from ooc_mdp.store.atomic_file import atomic_file
from ooc_mdp.store.mark import MARK_FILE, ForeignPathError, is_leftover

Plant = Callable[[Path, Path], None]


def snapshot(folder: Path) -> dict[str, str]:
    """Kind and content of everything below a folder, links not followed."""
    found = {}
    for path in sorted(folder.rglob("*")):
        what = os.readlink(path) if path.is_symlink() else path.read_text() if path.is_file() else "directory"
        found[str(path.relative_to(folder))] = what
    return found


def a_folder(place: Path, elsewhere: Path) -> None:
    (place / "deep").mkdir(parents=True)
    (place / "deep" / "thesis").write_text("dear")


def a_link_to_a_folder(place: Path, elsewhere: Path) -> None:
    elsewhere.mkdir()
    (elsewhere / "notes").write_text("dear")
    place.symlink_to(elsewhere)


def a_link_to_an_empty_folder(place: Path, elsewhere: Path) -> None:
    elsewhere.mkdir()
    place.symlink_to(elsewhere)


def a_link_to_a_file(place: Path, elsewhere: Path) -> None:
    elsewhere.write_text("dear")
    place.symlink_to(elsewhere)


def a_link_to_nothing(place: Path, elsewhere: Path) -> None:
    place.symlink_to(elsewhere)


def a_file(place: Path, elsewhere: Path) -> None:
    place.write_text("dear")


def a_pipe(place: Path, elsewhere: Path) -> None:
    os.mkfifo(place)


def a_folder_with_a_false_mark(place: Path, elsewhere: Path) -> None:
    a_folder(place, elsewhere)
    (place / MARK_FILE).write_text("not the mark")


def a_folder_with_a_link_as_mark(place: Path, elsewhere: Path) -> None:
    a_folder(place, elsewhere)
    elsewhere.write_text("")
    (place / MARK_FILE).symlink_to(elsewhere)


PLANTS = [
    a_folder,
    a_link_to_a_folder,
    a_link_to_an_empty_folder,
    a_link_to_a_file,
    a_link_to_nothing,
    a_file,
    a_pipe,
    a_folder_with_a_false_mark,
    a_folder_with_a_link_as_mark,
]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "inputs" / "m.txt"
    path.parent.mkdir()
    path.write_text("S:0:0:1\nA:0:1\nD:1:1.0:1\nS:1:0:0\n")
    return path


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.fixture
def store(model: Path) -> Path:
    ooc_mdp.convert(model, model.parent / "s")
    return model.parent / "s"


def left_alone(work: Path, name: str, *arguments: object) -> None:
    """The command is refused, names what is in its way, and changes nothing in the folder."""
    before = snapshot(work)
    assert f"{work / name} is " in refused(*arguments)
    assert snapshot(work) == before


@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize("suffix", [".partial", ".previous"])
def test_conversion_leaves_what_is_not_ours(model: Path, work: Path, plant: Plant, suffix: str) -> None:
    plant(work / f"data{suffix}", work / "elsewhere")
    left_alone(work, f"data{suffix}", "convert", model, work / "data")


@pytest.mark.parametrize("options", [(), ("--resume",), ("--virtual",)])
@pytest.mark.parametrize("plant", [a_folder, a_link_to_a_folder, a_link_to_nothing, a_file])
def test_generation_leaves_what_is_not_ours(work: Path, plant: Plant, options: tuple[str, ...]) -> None:
    plant(work / "data.partial", work / "elsewhere")
    left_alone(work, "data.partial", "generate", "GW-4x2", work / "data", *options)


@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize("name", ["r.partial", "r.previous", "r.checkpoint.partial"])
def test_a_solve_is_refused_before_its_work(store: Path, work: Path, plant: Plant, name: str) -> None:
    plant(work / name, work / "elsewhere")
    left_alone(work, name, "solve", store, "--discount", 0.9, "--device", "cpu", "--output", work / "r")


@pytest.mark.parametrize("plant", PLANTS)
def test_a_checkpoint_replaces_only_checkpoints(store: Path, work: Path, plant: Plant) -> None:
    plant(work / "r.checkpoint", work / "elsewhere")
    solving = ("solve", store, "--discount", 0.9, "--device", "cpu", "--output", work / "r", "--overwrite")
    left_alone(work, "r.checkpoint", *solving, "--time-limit", 1e-9)


@pytest.mark.parametrize("plant", PLANTS)
def test_a_lock_is_made_over_nothing_else(model: Path, work: Path, plant: Plant) -> None:
    plant(work / "data.lock", work / "elsewhere")
    before = snapshot(work)
    assert f"{work / 'data.lock'} is no lock of ooc-mdp" in refused("convert", model, work / "data")
    assert snapshot(work) == before


@pytest.mark.parametrize("plant", PLANTS)
def test_an_overwritten_output_is_of_the_kind_that_is_written(
    model: Path, store: Path, work: Path, plant: Plant
) -> None:
    plant(work / "data", work / "elsewhere")
    before = snapshot(work)
    for command in (
        ("convert", model, work / "data", "--overwrite"),
        ("generate", "GW-4x2", work / "data", "--overwrite"),
        ("generate", "GW-4x2", work / "data", "--virtual", "--overwrite"),
        ("solve", store, "--discount", 0.9, "--device", "cpu", "--output", work / "data", "--overwrite"),
    ):
        assert str(work / "data") in refused(*command)
        assert snapshot(work) == before


def written_files() -> list[Any]:
    return [
        pytest.param(("export", "r", "out.csv"), id="export"),
        pytest.param(("cache-curve", "t.csv", "--csv", "out.csv"), id="cache-curve"),
        pytest.param(
            ("cache-sweep", "s", "--discount", "0.9", "--device", "cpu", "--csv", "out.csv"), id="cache-sweep"
        ),
    ]


@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize("words", written_files())
def test_a_file_is_written_beside_what_is_not_ours(
    store: Path, work: Path, plant: Plant, words: tuple[str, ...]
) -> None:
    inputs = store.parent
    ooc_mdp.solve(store, 0.9, device="cpu", output=inputs / "r", trace=inputs / "t.csv")
    plant(work / ".out.csv.partial", work / "elsewhere")
    places = {"s": store, "r": inputs / "r", "t.csv": inputs / "t.csv", "out.csv": work / "out.csv"}
    left_alone(work, ".out.csv.partial", *(places.get(word, word) for word in words))


@pytest.mark.parametrize("plant", [a_link_to_a_file, a_link_to_nothing])
def test_no_output_is_written_through_a_link(store: Path, work: Path, plant: Plant) -> None:
    plant(work / "out.csv", work / "elsewhere")
    before = snapshot(work)
    solving = ("solve", store, "--discount", 0.9, "--device", "cpu", "--overwrite")
    assert "is a symbolic link" in refused(*solving, "--trace", work / "out.csv")
    assert snapshot(work) == before
    ooc_mdp.solve(store, 0.9, device="cpu", output=store.parent / "r")
    assert "is a symbolic link" in refused("export", store.parent / "r", work / "out.csv", "--overwrite")
    assert snapshot(work) == before


def test_a_folder_through_a_link_is_the_users_business(model: Path, work: Path) -> None:
    (work / "real").mkdir()
    (work / "link").symlink_to(work / "real")
    assert ooc("convert", model, work / "link" / "data").status == 0
    assert os.listdir(work / "real") == ["data"]


@pytest.mark.parametrize("name", ["m.partial", "m.previous"])
def test_a_users_own_store_is_neither_removed_nor_renamed(model: Path, work: Path, name: str) -> None:
    ooc_mdp.convert(model, work / "kept").path.rename(work / name)
    kept = sorted(work.rglob("*"))
    assert f"{work / name} is " in refused("convert", model, work / "m", "--overwrite")
    assert sorted(work.rglob("*")) == kept


def test_a_resumed_generation_writes_through_no_link(work: Path) -> None:
    partial = work / "data.partial"
    partial.mkdir()
    (partial / MARK_FILE).touch()
    (work / "precious").mkdir()
    (work / "precious" / "0").write_text("dear")
    (partial / "successors").symlink_to(work / "precious")
    (partial / "zarr.json").symlink_to(work / "precious" / "0")
    (partial / ".journal").symlink_to(work / "precious" / "0")
    assert ooc("generate", "GW-4x2", work / "data", "--resume").status == 0
    assert ooc("check", work / "data").status == 0
    assert snapshot(work / "precious") == {"0": "dear"}


def test_a_leftover_of_a_killed_export_is_taken_over(work: Path) -> None:
    scratch = work / ".out.csv.partial"
    scratch.mkdir()
    (scratch / MARK_FILE).touch()  # as a kill before its text was written leaves it
    (scratch / "out.csv").write_text("half")
    with atomic_file(work / "out.csv", overwrite=False) as file:
        assert os.listdir(scratch) == [MARK_FILE]
        file.write_text("whole")
    assert snapshot(work) == {"out.csv": "whole"}


def test_what_appears_during_the_work_is_not_removed_by_an_error(work: Path) -> None:
    """Something of the user's takes the place of the temporary directory before the work fails."""

    def fail() -> None:
        with atomic_file(work / "out.csv", overwrite=False) as file:
            file.parent.rename(work / "moved")
            a_folder(work / ".out.csv.partial", work)
            raise KeyError("mine")

    with pytest.raises(KeyError):
        fail()
    assert snapshot(work / ".out.csv.partial") == {"deep": "directory", "deep/thesis": "dear"}


def test_a_foreign_path_is_no_leftover(work: Path) -> None:
    (work / "empty").mkdir()
    assert is_leftover(work / "empty")
    assert not is_leftover(work / "nothing")
    a_folder(work / "folder", work)
    with pytest.raises(ForeignPathError, match="is a directory that ooc-mdp did not make"):
        is_leftover(work / "folder")


def test_a_trace_takes_no_place_of_the_output(store: Path, work: Path) -> None:
    for name in ("r", "r.checkpoint", "r.partial", "r.previous", "r.checkpoint.partial", "r.lock"):
        with pytest.raises((ooc_mdp.OptionsError, StoreError)):
            ooc_mdp.solve(store, 0.9, device="cpu", output=work / "r", trace=work / name, overwrite=True)
    assert not list(work.iterdir())


def test_a_store_with_the_mark_of_a_killed_replacement_is_whole(model: Path, work: Path) -> None:
    ooc_mdp.convert(model, work / "s")
    (work / "s" / MARK_FILE).touch()
    assert ooc("check", work / "s").status == 0
    ooc_mdp.convert(model, work / "s", overwrite=True)
    assert MARK_FILE not in os.listdir(work / "s")
    assert np.array_equal(ooc_mdp.solve(work / "s", 0.9, device="cpu").values, [1.0, 0.0])
