"""Labels and reward models beside a table: damage, forgery and annotations of another table are found."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import ooc_mdp
from ooc_mdp.model.annotations import Variable
from ooc_mdp.store.annotations import RewardModel, StateAnnotations, write_annotations
from ooc_mdp.store.sealed_group import SealedGroup, SealedGroupWriter, group_attributes

N, M = 11, 22


@pytest.fixture
def store(tmp_path: Path) -> ooc_mdp.Store:
    rows = np.full((2, N, N), 1 / N)
    built = ooc_mdp.from_arrays(rows, np.ones((N, 2)), path=tmp_path / "s", partitions=3)
    models = {"cost": RewardModel(np.arange(M, dtype=np.float64), np.zeros(N))}
    values = 3 * np.arange(N) - 4
    states = StateAnnotations(
        {"goal": np.array([4, 1], np.uint8)}, {"x": Variable("int", -4, 26)}, lambda _, first, end: values[first:end]
    )
    write_annotations(built.path, built.fingerprint, states, models, (N, M), "own")
    return ooc_mdp.open_store(built.path)


def test_labels_and_rewards_are_read_back(store: ooc_mdp.Store):
    kept = store.annotations
    assert np.flatnonzero(kept.label("goal")).tolist() == [2, 8]
    assert kept.values("x", 1, 4).tolist() == [-1, 2, 5]
    assert kept.rewards("cost", 5, 9).tolist() == [5, 6, 7, 8]
    assert kept.reward_range("cost") == (0, M - 1)
    assert store.check().valid
    with pytest.raises(ooc_mdp.OptionsError, match="no label 'gaol'; there are: goal"):
        kept.label("gaol")
    with pytest.raises(ooc_mdp.OptionsError, match="no variable 'y'; there are: x"):
        kept.values("y", 0, 1)
    with pytest.raises(ooc_mdp.OptionsError, match="no reward model 'own'; there are: cost"):
        kept.rewards("own", 0, 1)


@pytest.mark.parametrize("array", ["label_0", "variable_0", "reward_0"])
@pytest.mark.parametrize("damage", ["altered", "cut", "missing"])
def test_a_damaged_array_is_named_by_reads_and_by_check(store: ooc_mdp.Store, array: str, damage: str):
    path = next(p for p in (store.path / "annotations" / array / "c").rglob("*") if p.is_file())
    contents = bytearray(path.read_bytes())
    contents[len(contents) // 2] ^= 1
    path.unlink()
    if damage != "missing":
        path.write_bytes(contents if damage == "altered" else contents[:-1])
    kept = ooc_mdp.open_store(store.path).annotations
    with pytest.raises(ooc_mdp.StoreError, match=array):
        _ = {"label_0": lambda: kept.label("goal"), "variable_0": lambda: kept.values("x", 0, N)}.get(
            array, lambda: kept.rewards("cost", 0, M)
        )()
    report = store.check()
    assert not report.valid
    assert array in str(report.findings[0])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("labels", ["aim"]),
        ("reward_models", []),
        ("fingerprint", "0" * 64),
        ("n_states", 5),
        ("variables", []),
    ],
)
def test_altered_attributes_are_refused(store: ooc_mdp.Store, name: str, value: object):
    group = store.path / "annotations" / "zarr.json"
    document = json.loads(group.read_text())
    document["attributes"][name] = value
    group.write_text(json.dumps(document))
    with pytest.raises(ooc_mdp.StoreError, match="are damaged"):
        _ = ooc_mdp.open_store(store.path).annotations


@pytest.mark.parametrize("version", [2, 99])
def test_another_format_version_is_named(store: ooc_mdp.Store, version: int):
    group = store.path / "annotations" / "zarr.json"
    document = json.loads(group.read_text())
    document["attributes"]["format_version"] = version
    group.write_text(json.dumps(document))
    message = rf"format version {version}, this program reads 3; make the store again, or"
    with pytest.raises(ooc_mdp.StoreError, match=message):
        _ = ooc_mdp.open_store(store.path).annotations


@pytest.mark.parametrize(
    "variable",
    [
        {"low": -3},
        {"high": 25},
        {"type": "bool"},
        {"type": "float"},
        {"low": 27},
        {"name": "goal", "more": 1},
        {"high": 1 << 63},
    ],
)
def test_sealed_anew_with_another_variable_they_are_refused(store: ooc_mdp.Store, variable: dict):
    place = store.path / "annotations"
    attributes = group_attributes(place)
    values = SealedGroup(place, attributes).read("variable_0")
    attributes["variables"] = [attributes["variables"][0] | variable]
    shutil.rmtree(place)
    place.mkdir()
    forged = SealedGroupWriter(place)
    forged.write("label_0", np.array([4, 1], np.uint8), (2,), ("byte",))
    forged.write("variable_0", values, (N,), ("state",))
    forged.write("reward_0", np.arange(M, dtype=np.float64), (M,), ("row",))
    forged.seal({name: attributes[name] for name in attributes if name not in ("arrays", "arrays_digest", "digest")})
    with pytest.raises(ooc_mdp.StoreError, match="are damaged"):
        ooc_mdp.open_store(store.path).annotations.values("x", 0, N)


def test_labels_of_another_table_are_refused(store: ooc_mdp.Store, tmp_path: Path):
    rows = np.full((2, N, N), 1 / N)
    other = ooc_mdp.from_arrays(rows, np.zeros((N, 2)), path=tmp_path / "other", labels={"goal": [0]}, partitions=3)
    shutil.rmtree(store.path / "annotations")
    shutil.copytree(other.path / "annotations", store.path / "annotations")
    with pytest.raises(ooc_mdp.StoreError, match="belongs to a table of fingerprint"):
        _ = ooc_mdp.open_store(store.path).annotations


def test_sealed_anew_with_other_sizes_they_are_refused(store: ooc_mdp.Store):
    place = store.path / "annotations"
    attributes = group_attributes(place)
    shutil.rmtree(place)
    place.mkdir()
    forged = SealedGroupWriter(place)
    forged.write("label_0", np.zeros(9, np.uint8), (9,), ("byte",))
    forged.seal({name: attributes[name] for name in attributes if name not in ("arrays", "arrays_digest", "digest")})
    with pytest.raises(ooc_mdp.StoreError, match="label_0, reward_0, variable_0 are not those"):
        _ = ooc_mdp.open_store(store.path).annotations


def test_a_store_without_them_has_none(tmp_path: Path):
    store = ooc_mdp.from_arrays(np.eye(2)[None], np.zeros((2, 1)), path=tmp_path / "s")
    assert not (store.path / "annotations").exists()
    assert store.annotations.labels == ()
    with pytest.raises(ooc_mdp.OptionsError, match="no label 'goal', as the model has none"):
        store.annotations.label("goal")


def test_part_of_an_array_reads_the_chunks_that_hold_it(tmp_path: Path):
    values = np.random.default_rng(1).normal(size=(3 << 20) + 5)
    group = SealedGroupWriter(tmp_path)
    group.write("x", values, values.shape, ("row",))
    group.seal({})
    read = SealedGroup(tmp_path, group_attributes(tmp_path)).read_run
    for first, end in ((0, 1), (0, values.size), (values.size - 1, values.size), (900_000, 2_100_000), (7, 7)):
        found, n_bytes = read("x", first, end)
        np.testing.assert_array_equal(found, values[first:end])
        assert (n_bytes > 0) == (end > first)
