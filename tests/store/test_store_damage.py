"""Every kind of damage to a store is refused by solve, verify and check alike, or changes nothing that is used.

Quick tests take a sample of bits, slow ones take them all. What a solve reads is compared where a solve would take too
long: attributes, small arrays, and every partition in both ways of reading it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest
from damage import damaged, exchanged, files_of, flipped, replaced
from store_models import ModelSource, random_model

import ooc_mdp
from ooc_mdp.errors import StoreError
from ooc_mdp.io.conversion import ConvertOptions, convert
from ooc_mdp.store import check_store, chunk_reads, open_store
from ooc_mdp.store import reader as reader_module
from ooc_mdp.store.layout import READ_FIELDS, SMALL_ARRAYS

PARTITIONS = 3


def make_store(place: Path, seed: int) -> Path:
    """Ragged, semi-Markov, with labels and initial values; seeds differ in values, not in sizes."""
    model = random_model(3, 24, durations=True, labels=True, initial_values=True)
    source = ModelSource(model)
    if seed:
        read = source.read

        def reread(first: int):
            block = read(first)
            block.rows.rewards[:] = block.rows.rewards[::-1].copy() + seed
            return block

        source.read = reread  # type: ignore[method-assign]
    convert(source, place, ConvertOptions(partitions=PARTITIONS, threads=1))
    return place


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    place = tmp_path_factory.mktemp("damage")
    return make_store(place / "s", 0), make_store(place / "other", 1)


@pytest.fixture
def store(stores: tuple[Path, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(stores[0], tmp_path / "s"))


def is_used(path: Path) -> bool:
    """Whether this program needs a file: chunks, and the group's zarr.json."""
    return path.name != "zarr.json" or not (set(path.parts) & {*READ_FIELDS, *SMALL_ARRAYS, "action_labels"})


def content(path: Path) -> list[object]:
    """All that a solve reads of a store, and what its result names."""
    store = open_store(path)
    found: list[object] = [store.facts.attributes]
    for name in SMALL_ARRAYS:
        owner = {"coupling": store.facts.coupling, "chunk": store.manifest}.get(name.split("_")[0], store)
        held = store.chunk_bytes if name == "chunk_bytes" else getattr(owner, name.split("_", 1)[1], None)
        found.append((getattr(store.facts, name) if held is None else held).tobytes())
    buffer = np.zeros(store.facts.frame_buffer_bytes, np.uint8)
    for p in range(store.n_partitions):
        table, n_bytes = store.read(p)
        raw = store.read_frames(p, buffer)
        labels = store.action_labels(p)
        found += [n_bytes, *(getattr(table, name).tobytes() for name in READ_FIELDS)]
        found += [raw.fields, buffer[: raw.n_bytes].tobytes(), None if labels is None else labels.tobytes()]
    return found


def refused_or_the_same(
    store: Path, damage: Iterator[str], read: Callable[[Path], object] = content, whole: object = None
) -> tuple[int, int]:
    """How many kinds of damage were refused, naming the store, and how many changed nothing.

    What is read of the undamaged store is read here, unless it is given.
    """
    whole = read(store) if whole is None else whole
    refused = same = 0
    for what in damage:
        try:
            found = read(store)
        except StoreError as error:
            found, message = None, str(error)
        if found is None:
            assert str(store) in message, what
            refused += 1
        else:
            assert found == whole, what
            same += 1
    print(f"{refused} refused, {same} without effect")
    return refused, same


@pytest.mark.parametrize("bits", [16, pytest.param(None, marks=pytest.mark.slow)], ids=["some", "all"])
def test_any_bit_flipped_and_any_file_cut_is_refused_or_changes_nothing(store: Path, bits: int | None) -> None:
    files = files_of(store)
    assert len(files) > 70
    whole = content(store)
    for file in files:
        refused, same = refused_or_the_same(store, damaged(file, bits, 4 if bits else None), whole=whole)
        assert same == 0 or file.name == "zarr.json", file
        assert refused == 0 or is_used(file), file


def test_every_bit_of_the_groups_metadata_is_sealed(store: Path) -> None:
    path = store / "zarr.json"
    text = path.read_text()
    begin = text.index('"attributes"') * 8
    refused, same = refused_or_the_same(store, flipped(path, 600))
    assert refused > 500
    assert same <= 100 * begin / (8 * len(text)) + 60  # white space, and what Zarr says of itself


@pytest.mark.parametrize("some", [150, pytest.param(None, marks=pytest.mark.slow)], ids=["some", "all"])
def test_exchanged_files_are_refused(store: Path, some: int | None) -> None:
    used = [file for file in files_of(store) if is_used(file)]
    order = np.random.default_rng(1).permutation(len(used))
    chosen = [used[i] for i in order[: 18 if some else len(used)]]
    refused, same = refused_or_the_same(store, exchanged(chosen))
    assert (refused > 100, same) == (True, 0)


def test_files_of_another_store_and_removed_files_are_refused(store: Path, stores: tuple[Path, Path]) -> None:
    used = [file for file in files_of(store) if is_used(file)]
    assert [(stores[1] / file.relative_to(store)).exists() for file in used] == [True] * len(used)
    refused, same = refused_or_the_same(store, replaced(used, store, stores[1]))
    assert refused >= len(used)
    assert same == 0


def test_solve_verify_and_check_refuse_the_same_damage(store: Path, tmp_path: Path) -> None:
    expected = ooc_mdp.solve(store, 0.9, device="cpu", epsilon=1e-4, output=tmp_path / "r").values

    def answer(path: Path) -> object:
        return bool(np.abs(ooc_mdp.solve(path, 0.9, device="cpu", epsilon=1e-4).values - expected).max() <= 2e-4)

    assert ooc_mdp.verify(store, tmp_path / "r").holds

    def verified(path: Path) -> object:
        return ooc_mdp.verify(path, tmp_path / "r").holds

    def checked(path: Path) -> object:
        report = check_store(open_store(path))
        if not report.valid:
            raise StoreError(f"{path}: {report.findings[0]}")
        return True

    assert [read(store) for read in (answer, verified, checked)] == [True] * 3
    for file in (f for f in files_of(store) if is_used(f)):
        name, chunk = file.relative_to(store).parts[0], file.name.split(".")[1:2]
        for read in (answer, verified, checked):
            refused, same = refused_or_the_same(store, flipped(file, 2), read, whole=True)
            # What a solve does not need (labels of actions) it does not read; validation reads everything.
            assert refused == 2 or (name == "action_labels" and read is not checked) or name == "zarr.json"
            assert refused + same == 2
        if name in READ_FIELDS:
            with (
                file_damaged(file),
                pytest.raises(StoreError, match=rf"field {name} of partition {chunk[0]} is damaged"),
            ):
                answer(store)


@contextmanager
def file_damaged(file: Path) -> Iterator[None]:
    """One flipped bit for the time of a block."""
    with closing(flipped(file, 1)) as steps:
        next(steps)
        yield


class Replacing:
    """Counts the chunks that are read, or the partitions whose chunks are, and does something to the store at one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object], together: bool) -> None:
        self.count, self.at, self._act = 0, -1, act
        module, name = (chunk_reads, "decompress_files") if together else (reader_module, "read_frame_file")
        read = getattr(module, name)

        def counted(*arguments):
            if self.count == self.at:
                self._act()
            self.count += 1
            return read(*arguments)

        if not together:
            monkeypatch.setattr(chunk_reads, "decompress_files", lambda *_: False)
        monkeypatch.setattr(module, name, counted)


def copy_over(source: Path, target: Path, names: list[Path]) -> None:
    for name in names:
        shutil.copyfile(source / name, target / name)


@pytest.mark.parametrize("moments", [4, pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.parametrize("together", [True, False], ids=["together", "one by one"])
@pytest.mark.parametrize("how", ["renamed", "removed", "copied", "half"])
def test_a_store_replaced_at_any_moment_never_proves_the_other(
    how: str, together: bool, moments: int, stores: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At 50 moments in each of eight ways (4 in the quick test), as on a file system without locks."""
    place, rng = tmp_path / "model", np.random.default_rng(7)
    names = [file.relative_to(stores[0]) for file in files_of(stores[0])]

    def replace_store() -> None:
        if how == "copied":
            copy_over(stores[1], place, names)
        elif how == "half":
            copy_over(stores[1], place, [names[i] for i in rng.permutation(len(names))[: len(names) // 2]])
        else:
            place.rename(tmp_path / "old")
            shutil.copytree(stores[1], place)
            if how == "removed":
                shutil.rmtree(tmp_path / "old")

    replacing = Replacing(monkeypatch, replace_store, together)
    monkeypatch.setattr(os, "fsync", lambda fd: None)  # the disk is not what is tested

    def solve() -> ooc_mdp.Solution:
        opened = open_store(place)
        options = {"method": "vi", "epsilon": 1e-6, "device": "cpu", "cache": "40%"}
        return ooc_mdp.solve(opened, 0.5, output=tmp_path / "r", overwrite=True, **options)

    shutil.copytree(stores[0], place)
    expected = solve().values
    reads = replacing.count
    proved = refused = 0
    replaced_at = rng.choice(np.arange(PARTITIONS, reads), moments, replace=False)  # before, initial values are read
    if how == "removed":
        replaced_at[-1] = reads - 1  # the solve is done, and its result is not yet written
    for at in replaced_at.tolist():
        for folder in (place, tmp_path / "old", tmp_path / "r"):
            shutil.rmtree(folder, ignore_errors=True)
        (tmp_path / "r.checkpoint").unlink(missing_ok=True)
        shutil.copytree(stores[0], place)
        replacing.count, replacing.at = 0, at
        try:
            found = solve()
        except StoreError as error:
            found, message = None, str(error)
        if found is None:
            assert "model" in message
            assert (tmp_path / "r.checkpoint").exists()
            assert "in the checkpoint" in message
            assert not (tmp_path / "r").exists()
            refused += 1
        else:
            np.testing.assert_allclose(found.values, expected, rtol=0, atol=2e-6)
            proved += 1
    assert proved + refused == moments
    print(how, moments, proved, refused)
    assert proved == moments if how == "renamed" else refused > 0.7 * moments
