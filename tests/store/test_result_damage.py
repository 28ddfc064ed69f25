"""Every kind of damage to a result is refused, or changes nothing that is used.

The quick test takes a sample of bits; the slow one takes them all.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from damage import damaged, exchanged, files_of, replaced
from solve_histories import history_of

import ooc_mdp
from ooc_mdp.errors import StoreError
from ooc_mdp.store.result import Result, open_result, write_result


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Results of two problems of the same shape, the first in several chunks."""
    place = tmp_path_factory.mktemp("damage")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ooc_mdp.store.slabs.MAX_ELEMENTS", 8)
        for seed in (0, 1):
            store = ooc_mdp.generate("quintanilla", place / f"s{seed}", {"height": 6, "width": 4, "seed": seed})
            solved = replace(ooc_mdp.solve(store, 0.9, device="cpu"), history=history_of(3 + seed, 2))
            identity = {
                "fingerprint": store.fingerprint,
                "sense": store.sense,
                "criterion": "discounted",
                "discount": 0.9,
            }
            write_result(place / f"r{seed}", store, solved, identity)
    return place / "r0", place / "r1"


def content(result: Result) -> tuple[object, ...]:
    solution = result.solution
    arrays = {name: np.asarray(array).tobytes() for name, array in asdict(solution.history or history_of(0, 1)).items()}
    return (
        *(result.identity, result.provenance, result.geometry, arrays, solution.summary()),
        *(solution.values.tobytes(), solution.policy.tobytes(), solution.certificate),
    )


def refused_or_the_same(path: Path, damage: Iterator[str]) -> tuple[int, int]:
    """How many kinds of damage were refused, and how many changed nothing; fails at any that changed something."""
    whole = content(open_result(path))
    refused = same = 0
    for number, what in enumerate(damage, 1):
        try:
            opened = open_result(path)
        except StoreError as error:
            refused += str(path) in str(error)
        else:
            assert content(opened) == whole, what
            same += 1
        assert refused + same == number, f"{what}: refused without its path"
    return refused, same


def is_used(path: Path) -> bool:
    """Whether our reader needs a file: chunks, and the group's own zarr.json."""
    return path.name != "zarr.json" or path.parent.name == "r0"


@pytest.mark.parametrize("bits", [25, pytest.param(None, marks=pytest.mark.slow)], ids=["some", "all"])
def test_any_bit_flipped_and_any_file_cut_is_refused_or_changes_nothing(results, tmp_path, bits):
    path = tmp_path / "r0"
    shutil.copytree(results[0], path)
    for file in files_of(path):
        if not is_used(file):
            file.unlink()  # so nothing can be read from it
    files = files_of(path)
    assert len(files) > 15
    for file in files:
        refused, same = refused_or_the_same(path, damaged(file, bits, 3 if bits else None))
        assert refused > 0
        if file.name != "zarr.json":
            assert same == 0, file


def test_files_that_are_exchanged_or_of_another_result_or_removed_are_refused(results):
    path, other = results
    files = [file for file in files_of(path) if is_used(file)]
    refused, same = refused_or_the_same(path, exchanged(files))
    assert (refused > 100, same) == (True, 0)
    mine = [file for file in files if (other / file.relative_to(path)).exists()]
    assert mine == files
    refused, same = refused_or_the_same(path, replaced(files, path, other))
    assert refused > len(files)
    assert same == 0
