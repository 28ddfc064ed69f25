"""Copies of open stores: each owns its descriptor or shares its owner, and none closes what belongs to others."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from store_models import ModelSource, model_in, random_model

import ooc_mdp
from ooc_mdp.errors import StoreError
from ooc_mdp.io.conversion import ConvertOptions, convert
from ooc_mdp.store import Store
from ooc_mdp.store.locks import OpenDirectory

P, R = np.eye(4)[None].repeat(2, 0), np.ones((4, 2))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return convert(ModelSource(random_model(5, 30)), tmp_path / "s", ConvertOptions(partitions=3))


def through_pickle(value):
    return pickle.loads(pickle.dumps(value))


@pytest.mark.parametrize("copied", [through_pickle, copy.copy, copy.deepcopy])
def test_a_copy_closes_no_file_that_the_user_opened_since(store, copied, tmp_path):
    other = copied(store)
    del other
    gc.collect()
    with open(tmp_path / "mine", "w") as mine:
        del store
        gc.collect()
        mine.write("kept")
        mine.flush()
        os.fstat(mine.fileno())
    assert (tmp_path / "mine").read_text() == "kept"


def test_a_pickled_store_is_opened_anew_and_reads_the_same_tables(store, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    relative = ooc_mdp.open_store("s").checking_sha256()
    pickled = pickle.dumps(relative)
    monkeypatch.chdir("/")
    there = pickle.loads(pickled)
    assert there.checks_sha256
    assert there.directory.fd != relative.directory.fd
    assert model_in(there) == model_in(store)


def test_a_store_of_other_rewards_is_pickled_with_its_base(store, tmp_path):
    other = ooc_mdp.with_rewards(store, np.arange(30), tmp_path / "r")
    there = through_pickle(other.checking_sha256())
    assert there.fingerprint == other.fingerprint
    assert there.base.checks_sha256
    assert model_in(there) == model_in(other)
    assert copy.deepcopy(other) is copy.copy(other) is other


def test_a_pickled_store_that_was_replaced_is_refused(store, tmp_path):
    pickled = pickle.dumps(store)
    convert(ModelSource(random_model(6, 30)), tmp_path / "s", ConvertOptions(partitions=3, overwrite=True))
    with pytest.raises(StoreError, match=r"s is another store than the one that was pickled .*; open it again"):
        pickle.loads(pickled)


def test_another_process_closes_none_of_its_own_files(store, tmp_path):
    (tmp_path / "pickled").write_bytes(pickle.dumps(store))
    script = (
        "import gc, os, pickle, sys\n"
        "files = [open(os.devnull) for _ in range(40)]\n"
        "store = pickle.load(open(sys.argv[1], 'rb'))\n"
        "assert store.read(0)[1] > 0\n"
        "del store\n"
        "gc.collect()\n"
        "for file in files: os.fstat(file.fileno())\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "pickled"], capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stderr) == (0, "")


def test_an_exit_after_pickling_prints_nothing():
    script = (
        "import numpy, ooc_mdp, pickle\n"
        "store = ooc_mdp.from_arrays(numpy.eye(4)[None].repeat(2, 0), numpy.ones((4, 2)))\n"
        "copy = pickle.loads(pickle.dumps(store))\n"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, Store.checking_sha256])
def test_a_temporary_store_lives_as_long_as_its_copies(copied, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    store = ooc_mdp.from_arrays(P, R)
    other = copied(store)
    del store
    gc.collect()
    assert ooc_mdp.solve(other, discount=0.9).outcome.proved
    del other
    gc.collect()
    assert os.listdir(tmp_path) == []


def test_a_pickled_copy_of_a_temporary_store_neither_removes_nor_keeps_it(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    store = ooc_mdp.from_arrays(P, R)
    pickled = pickle.dumps(store)
    other = pickle.loads(pickled)
    del other
    gc.collect()
    other = pickle.loads(pickled)
    assert ooc_mdp.solve(other, discount=0.9).outcome.proved
    del store
    gc.collect()
    assert os.listdir(tmp_path) == []
    with pytest.raises(StoreError, match=r"was removed since it was opened; .*a temporary store .* path="):
        ooc_mdp.solve(other, discount=0.9)
    with pytest.raises(StoreError, match=r"a temporary store .* path="):
        pickle.loads(pickled)


def test_a_descriptor_is_never_copied(tmp_path):
    opened = OpenDirectory(tmp_path)
    assert copy.copy(opened) is copy.deepcopy(opened) is opened
    with pytest.raises(TypeError, match="an open directory cannot be pickled; pickle its path"):
        pickle.dumps(opened)


def test_a_store_that_was_removed_is_said_to_be_missing(store, tmp_path):
    shutil.rmtree(tmp_path / "s")
    with pytest.raises(StoreError, match=r"s was removed since it was opened"), store.hold():
        pass
