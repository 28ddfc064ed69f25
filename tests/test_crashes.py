"""Solves and conversions that are killed: what they leave is whole or refused by name, and can be gone on from."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import ooc
from forked import command_in_a_fork, fork, killed_after, seconds_of

import ooc_mdp
from ooc_mdp.errors import StoreError
from ooc_mdp.methods.checkpoint import checkpoint_path, read_checkpoint
from ooc_mdp.store import validate_store

DISCOUNT = 0.995
SOLVING = ("--discount", DISCOUNT, "--epsilon", 1e-3, "--cache", "22%", "--device", "cpu")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("crashes") / "maze.store"
    assert ooc("generate", "GW-128x4", path, "--seed", 1).status == 0
    return path


@pytest.fixture(scope="module")
def whole(store: Path) -> ooc_mdp.Solution:
    """What an undisturbed solve proves."""
    return ooc_mdp.solve(store, DISCOUNT, epsilon=1e-3, cache="22%", device="cpu")


@pytest.fixture(scope="module")
def seconds(store: Path, tmp_path_factory: pytest.TempPathFactory) -> float:
    """Wall-clock seconds of an undisturbed solve, process start included; the first may have loops to compile."""
    arguments = solving(store, tmp_path_factory.mktemp("whole") / "r", "--overwrite")
    return min(seconds_of(command_in_a_fork, *arguments) for _ in range(2))


def solving(store: Path, output: Path, *more: object) -> tuple[object, ...]:
    return ("solve", store, *SOLVING, "--output", output, "--checkpoint-interval", 0.05, *more)


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


def kill_and_resume(store: Path, folder: Path, whole: ooc_mdp.Solution, kills: int, seconds: float, seed: int) -> None:
    """Kill so many solves, one in each part of a run of so many seconds, and go on from each."""
    rng = random.Random(seed)
    killed = 0
    for i in range(3 * kills):
        output = folder / str(i) / "r"
        output.parent.mkdir()
        began = time.monotonic()
        moment = (killed + rng.random()) / kills * seconds
        if killed_after(moment, command_in_a_fork, *solving(store, output)) is None:
            killed += 1
        else:
            seconds = min(seconds, time.monotonic() - began)
        check_leftovers(output)
        if i % 3 == 0 or checkpoint_path(output).exists():
            check_resumed(store, output, whole)
        if killed == kills:
            return
    raise AssertionError(f"only {killed} of {kills} solves were still running when they were to be killed")


@pytest.mark.parametrize("kills", [4, pytest.param(10, marks=pytest.mark.slow)])
def test_a_solve_killed_at_several_moments_is_resumed_to_the_same_answer(store, whole, seconds, tmp_path, kills):
    kill_and_resume(store, tmp_path, whole, kills=kills, seconds=seconds, seed=2)


def written(path: Path) -> int | None:
    """When a file was written, in nanoseconds; None where there is none (a solve that ends removes its checkpoint)."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def chain(store: Path, output: Path, seed: int, links: int) -> list[int]:
    """Kill a solve, and each of its resumes, some time after its first new checkpoint; backups done by then."""
    rng = random.Random(seed)
    done: list[int] = []
    for link in range(links):
        before = checkpoint_path(output).stat().st_mtime_ns if checkpoint_path(output).exists() else 0
        running = fork(command_in_a_fork, *solving(store, output, "--resume"))
        while running.is_alive():
            if written(checkpoint_path(output)) not in (None, before):
                time.sleep(rng.uniform(0, 0.05 * 1.4**link))  # longer and longer: the chain ends on any machine
                running.kill()
                break
            time.sleep(0.005)
        running.join()
        check_leftovers(output)
        if output.exists():
            break
        done.append(int(counted(output)["backups"]))
    return done


@pytest.mark.slow
def test_resumes_that_are_killed_again_make_progress_and_end(store, whole, tmp_path):
    done = chain(store, tmp_path / "r", seed=4, links=200)
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
    """Kill conversions of a text file at random moments; each is then run again to the same table."""
    source = folder / "model.txt"
    write_model(source, 20_000, seed)
    options = ("--partitions", 60)
    assert ooc("convert", source, folder / "reference", *options).status == 0
    seconds = seconds_of(command_in_a_fork, "convert", source, folder / "again", *options)
    reference = ooc_mdp.open_store(folder / "reference")
    rng = random.Random(seed)
    killed = 0
    for i in range(3 * kills):
        store = folder / str(i) / "s"
        store.parent.mkdir()
        began = time.monotonic()
        moment = (killed + rng.random()) / kills * seconds
        if killed_after(moment, command_in_a_fork, "convert", source, store, *options) is None:
            killed += 1
        else:
            seconds = min(seconds, time.monotonic() - began)
        check_store(store)
        if not store.exists():
            assert ooc("convert", source, store, *options).status == 0
        assert ooc_mdp.open_store(store).fingerprint == reference.fingerprint
        # A kill between the rename and the end leaves the lock's file, which is in nobody's way.
        assert [p.name for p in store.parent.iterdir() if p.name != "s.lock"] == ["s"]
        if killed == kills:
            return
    raise AssertionError(f"only {killed} of {kills} conversions were still running when they were to be killed")


def check_store(store: Path) -> None:
    """Whatever a kill left opens as a valid store or not at all."""
    if store.exists():
        assert validate_store(ooc_mdp.open_store(store)).valid
        return
    with pytest.raises(StoreError):
        ooc_mdp.open_store(store)
    partial = store.with_name("s.partial")
    if partial.exists():
        with pytest.raises(StoreError, match="half-written"):
            ooc_mdp.open_store(partial)


@pytest.mark.parametrize("kills", [4, pytest.param(10, marks=pytest.mark.slow)])
def test_a_conversion_killed_at_several_moments_can_be_run_again(tmp_path, kills):
    convert_and_kill(tmp_path, kills=kills, seed=6)
