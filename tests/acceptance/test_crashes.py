"""Solves and conversions that are killed: what they leave is whole or refused by name, and can be gone on from."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import ooc
from forked import changes_of, command_in_a_fork, killed_at, saving_command_in_a_fork

import ooc_mdp
from ooc_mdp.errors import StoreError
from ooc_mdp.store import check_store
from ooc_mdp.store.checkpoint import checkpoint_path, read_checkpoint

DISCOUNT = 0.995
SOLVING = ("--discount", DISCOUNT, "--epsilon", 1e-3, "--cache", "22%", "--device", "cpu")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("crashes") / "maze.store"
    assert ooc("generate", "GW-64x4", path, "--partitions", 36, "--seed", 1).status == 0
    return path


@pytest.fixture(scope="module")
def whole(store: Path) -> ooc_mdp.Solution:
    """What an undisturbed solve proves."""
    return ooc_mdp.solve(store, DISCOUNT, epsilon=1e-3, cache="22%", device="cpu")


def solving(store: Path, output: Path, *more: object) -> tuple[object, ...]:
    return ("solve", store, *SOLVING, "--output", output, *more)


def counted(output: Path) -> dict[str, Any]:
    """The counters in the checkpoint of an output; empty where there is none."""
    path = checkpoint_path(output)
    if not path.exists():
        return {}
    statistics: dict[str, Any] = read_checkpoint(path)[0]["statistics"]
    return statistics


def check_leftovers(output: Path) -> None:
    """Whatever a kill left opens as a whole result or not at all."""
    if output.exists():
        assert ooc_mdp.open_result(output).solution.outcome.proved
    else:
        with pytest.raises(StoreError):
            ooc_mdp.open_result(output)
    partial = output.with_name(output.name + ".partial")
    if partial.exists():
        with pytest.raises(StoreError, match="half-written"):
            ooc_mdp.open_result(partial)
    counted(output)


def check_resumed(store: Path, output: Path, whole: ooc_mdp.Solution) -> None:
    """Going on gives the same answer within the bounds, and leaves nothing but the result."""
    ran = ooc(*solving(store, output, "--resume", "--json"))
    assert ran.status == 0, ran.err
    assert ran.figures["outcome"] == "proved"
    resumed = ooc_mdp.open_result(output).solution
    assert np.abs(resumed.values - whole.values).max() <= resumed.error_bound + whole.error_bound
    assert sorted(p.name for p in output.parent.iterdir()) == [output.name]


@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_a_solve_killed_at_several_moments_is_resumed_to_the_same_answer(store, whole, tmp_path, kills):
    """Before changes to its files from first to last: checkpoints after each access, then the result."""
    changes = changes_of(tmp_path, saving_command_in_a_fork, *solving(store, tmp_path / "whole"))
    for number in np.linspace(1, 0.9 * changes, kills).astype(int).tolist():
        output = tmp_path / str(number) / "r"
        output.parent.mkdir()
        while not killed_at(number, tmp_path, saving_command_in_a_fork, *solving(store, output)):
            number = 9 * number // 10  # no two solves load partitions alike: this one had ended before
            shutil.rmtree(output)
        check_leftovers(output)
        check_resumed(store, output, whole)


def chain(store: Path, output: Path) -> list[int]:
    """Kill a solve, and each of its resumes, before a later and later checkpoint; backups done by then."""
    done: list[int] = []
    new = 1.0  # checkpoints of the next process
    suffix = checkpoint_path(output).name
    while not output.exists():
        killed = killed_at(
            int(new) + 1, output.parent, saving_command_in_a_fork, *solving(store, output, "--resume"), only=suffix
        )
        check_leftovers(output)
        if killed:
            done.append(int(counted(output)["backups"]))
        new *= 1.4
    return done


@pytest.mark.slow
def test_resumes_that_are_killed_again_make_progress_and_end(store, whole, tmp_path):
    done = chain(store, tmp_path / "r")
    assert done == sorted(set(done))
    assert len(done) > 1
    assert (tmp_path / "r").exists()
    check_resumed(store, tmp_path / "r", whole)


def write_model(path: Path, n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    with path.open("w") as f:
        for s, (a, b) in enumerate(rng.integers(0, n, (n, 2)).tolist()):
            f.write(f"S:{s}:0:2\nA:0:1\nD:{a}:1:1\nA:1:2\nD:{b}:0.25:3\nD:{(b + 1) % n}:0.75:0\n")


def convert_and_kill(folder: Path, kills: int, seed: int) -> None:
    """Kill conversions of a text file before changes from first to last; each is then run again to the same table."""
    source = folder / "model.txt"
    write_model(source, 20_000, seed)
    options = ("--partitions", 60)
    changes = changes_of(folder, command_in_a_fork, "convert", source, folder / "reference", *options)
    reference = ooc_mdp.open_store(folder / "reference")
    for number in np.linspace(1, 0.9 * changes, kills).astype(int).tolist():
        store = folder / str(number) / "s"
        store.parent.mkdir()
        assert killed_at(number, folder, command_in_a_fork, "convert", source, store, *options)
        check_left(store)
        assert not store.exists()
        assert ooc("convert", source, store, *options).status == 0
        assert ooc_mdp.open_store(store).fingerprint == reference.fingerprint
        assert [p.name for p in store.parent.iterdir()] == ["s"]


def check_left(store: Path) -> None:
    """Whatever a kill left opens as a valid store or not at all."""
    if store.exists():
        assert check_store(ooc_mdp.open_store(store)).valid
        return
    with pytest.raises(StoreError):
        ooc_mdp.open_store(store)
    partial = store.with_name("s.partial")
    if partial.exists():
        with pytest.raises(StoreError, match="half-written"):
            ooc_mdp.open_store(partial)


@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_a_conversion_killed_at_several_moments_can_be_run_again(tmp_path, kills):
    convert_and_kill(tmp_path, kills=kills, seed=6)
