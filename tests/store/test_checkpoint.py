"""Checkpoints: whole or not there, belonging to one table and discount, and enough to continue from."""

from __future__ import annotations

import itertools
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import ooc, process, refused
from damage import damaged, flipped

import ooc_mdp
from ooc_mdp.errors import OptionsError, StoreError
from ooc_mdp.model.method_record import MethodRecord, Phase
from ooc_mdp.model.solution import Outcome
from ooc_mdp.model.statistics import SolveStatistics
from ooc_mdp.solver.session import Session
from ooc_mdp.store.checkpoint import checkpoint_path, load_checkpoint, read_checkpoint, save_checkpoint
from ooc_mdp.store.sealed_file import write_sealed_file

IDENTITY = {"fingerprint": "f", "sense": "max", "discount": 0.9}
ARRAYS = {"values": np.linspace(0, 1, 500), "policy": np.arange(500, dtype=np.int32)}
EASY = ("--discount", 0.9, "--epsilon", 0.01, "--cache", "50%", "--device", "cpu")
HARD = ("--discount", 0.99, "--epsilon", 1e-4, "--cache", "30%", "--device", "cpu")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checkpoint") / "maze.store"
    assert ooc("generate", "GW-32x4", path, "--seed", 1, "--partitions", 16).status == 0
    return path


@pytest.fixture
def stopped(store: Path, tmp_path: Path) -> Path:
    """The output of a solve that a time limit stopped midway: its checkpoint is there, it is not."""
    output, looks, ended = tmp_path / "r", itertools.count(1), Session.ended

    def late(session: Session) -> Outcome | None:
        return Outcome.TIME_LIMIT if next(looks) == 40 else ended(session)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "ended", late)
        assert ooc("solve", store, *HARD, "--output", output, "--time-limit", 1e5).status == 1
    assert [p.name for p in tmp_path.iterdir()] == ["r.checkpoint"]
    return output


def test_a_checkpoint_is_read_back_as_it_was_saved(tmp_path):
    path = checkpoint_path(tmp_path / "r")
    assert load_checkpoint(path, IDENTITY) is None
    save_checkpoint(path, IDENTITY, ARRAYS, SolveStatistics(n_states=500, loads=7, solve_seconds=1.5))
    loaded = load_checkpoint(path, IDENTITY)
    assert loaded is not None
    arrays, statistics = loaded
    assert sorted(arrays) == sorted(ARRAYS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(arrays[name], array)
    assert asdict(statistics) == asdict(SolveStatistics(n_states=500, loads=7, solve_seconds=1.5))
    assert [p.name for p in tmp_path.iterdir()] == ["r.checkpoint"]


@pytest.mark.parametrize(
    ("name", "other"), [("fingerprint", "g"), ("sense", "min"), ("discount", 0.95)], ids=lambda v: str(v)
)
def test_a_checkpoint_of_another_table_sense_or_discount_is_refused(tmp_path, name, other):
    path = tmp_path / "c"
    save_checkpoint(path, IDENTITY, ARRAYS, SolveStatistics())
    with pytest.raises(OptionsError, match=f"belongs to {name}"):
        load_checkpoint(path, {**IDENTITY, name: other})


def test_arrays_of_every_kind_and_shape_are_read_back(tmp_path):
    path = tmp_path / "c"
    arrays: dict[str, Any] = {
        "value_size": np.array(3.5),
        "visited": np.array([True, False, True]),
        "bounds": np.arange(6.0).reshape(3, 2).T,
        "history_seconds": np.zeros(0),
        "big": np.arange(4, dtype=">i8"),
        "large": np.random.default_rng(0).random(400_000),
    }
    save_checkpoint(path, IDENTITY, arrays, SolveStatistics())
    loaded = load_checkpoint(path, IDENTITY)
    assert loaded is not None
    assert list(loaded[0]) == list(arrays)
    for name, array in arrays.items():
        assert loaded[0][name].dtype == array.dtype.newbyteorder("<")
        np.testing.assert_array_equal(loaded[0][name], array)
    loaded[0]["large"][:] = 0  # arrays are the caller's own
    with pytest.raises(ValueError, match="which a sealed file does not hold"):
        save_checkpoint(path, IDENTITY, {"names": np.array(["a"])}, SolveStatistics())


def test_a_checkpoint_of_another_version_is_refused(tmp_path):
    path = tmp_path / "c"
    remedy = "this release reads version 5; remove it to solve from the beginning"
    path.write_bytes(b"ooc-mdp checkpoint 99\n")
    with pytest.raises(StoreError, match=f"is of version 99, {remedy}"):
        load_checkpoint(path, IDENTITY)
    with path.open("wb") as file:
        np.savez(file, facts=np.zeros(3, np.uint8))
    with pytest.raises(StoreError, match=f"is of version 2 or earlier, {remedy}"):
        load_checkpoint(path, IDENTITY)


def test_a_checkpoint_with_any_bit_flipped_or_cut_off_anywhere_is_refused(tmp_path):
    path = tmp_path / "c"
    save_checkpoint(path, IDENTITY, {"values": np.linspace(0, 1, 20)}, SolveStatistics())
    for _ in damaged(path):
        with pytest.raises(StoreError, match="remove it to solve from the beginning"):
            load_checkpoint(path, IDENTITY)


def test_bits_of_the_arrays_of_a_checkpoint_are_refused_too(tmp_path):
    path = tmp_path / "c"
    save_checkpoint(path, IDENTITY, ARRAYS, SolveStatistics())
    for _ in flipped(path, bits=400):
        with pytest.raises(StoreError, match="remove it to solve from the beginning"):
            load_checkpoint(path, IDENTITY)


def test_what_is_no_regular_file_or_claims_another_size_takes_no_memory_and_does_not_hang(tmp_path):
    path = tmp_path / "c"
    os.mkfifo(path)
    with pytest.raises(StoreError, match="it is not a regular file"):
        load_checkpoint(path, IDENTITY)
    path.unlink()
    save_checkpoint(path, IDENTITY, ARRAYS, SolveStatistics())
    whole = path.stat().st_size
    os.truncate(path, 1 << 40)
    with pytest.raises(StoreError, match=f"it has {1 << 40} bytes and was written with {whole}"):
        load_checkpoint(path, IDENTITY)
    path.write_bytes(b"ooc-mdp checkpoint 5\n" + (1 << 40).to_bytes(8, "little") + (1 << 39).to_bytes(8, "little"))
    os.truncate(path, 1 << 40)
    with pytest.raises(StoreError, match="its header would take"):
        load_checkpoint(path, IDENTITY)


@pytest.mark.parametrize("what", ["text", "array", "archive", "folder"])
def test_what_is_no_checkpoint_is_refused_with_the_remedy(tmp_path, what):
    path = tmp_path / "c"
    if what == "folder":
        path.mkdir()
    elif what == "text":
        path.write_text("not a checkpoint")
    else:
        with path.open("wb") as f:
            if what == "array":
                np.save(f, np.zeros(3))
            else:
                np.savez(f, a=np.zeros(3))
    with pytest.raises(StoreError, match="remove it to solve from the beginning"):
        load_checkpoint(path, IDENTITY)


def test_a_checkpoint_that_lacks_something_is_refused(store, stopped):
    path = checkpoint_path(stopped)
    facts, arrays = read_checkpoint(path)
    identity, statistics = facts["identity"], SolveStatistics(**facts["statistics"])
    for name in ("values", "visited", "rise"):
        save_checkpoint(path, identity, {k: v for k, v in arrays.items() if k != name}, statistics)
        said = refused("solve", store, *HARD, "--output", stopped, "--resume")
        assert f"{path} is damaged" in said
        assert "remove it to solve from the beginning" in said
    save_checkpoint(path, identity, {**arrays, "values": arrays["values"][:-1]}, statistics)
    assert f"{path} is damaged" in refused("solve", store, *HARD, "--output", stopped, "--resume")


@pytest.mark.parametrize("action", [-2, 4, 2**31 - 1])
def test_a_checkpoint_whose_policy_names_an_action_that_a_state_lacks_is_refused(store, stopped, action):
    path = checkpoint_path(stopped)
    facts, arrays = read_checkpoint(path)
    policy, visited = arrays["policy"].copy(), np.ones_like(arrays["visited"])
    policy[7] = action
    changed = arrays | {"policy": policy, "visited": visited}
    save_checkpoint(path, facts["identity"], changed, SolveStatistics(**facts["statistics"]))
    said = refused("solve", store, *HARD, "--output", stopped, "--resume")
    assert f"{path} is damaged (its policy names action {action} in state 7)" in said


def test_the_api_says_where_it_goes_on(store, stopped):
    said: list[str] = []
    ooc_mdp.solve(store, 0.99, epsilon=1e-4, cache="30%", device="cpu", output=stopped, resume=True, note=said.append)
    assert any("checkpoint" in text for text in said)


def test_a_resumed_solve_goes_on_counting_and_proves_the_same(store, stopped):
    before = read_checkpoint(checkpoint_path(stopped))[0]["statistics"]
    ran = ooc("solve", store, *HARD, "--output", stopped, "--resume", "--json")
    assert ran.status == 0
    assert f"continuing from the checkpoint {stopped}.checkpoint" in ran.err
    figures = ran.figures
    for name in ("accesses", "loads", "visits", "sweeps", "backups", "bytes_read", "solve_seconds"):
        assert figures[name] >= before[name] > 0
    whole = ooc_mdp.solve(store, 0.99, epsilon=1e-4, device="cpu")
    resumed = ooc_mdp.open_result(stopped).solution
    assert np.abs(whole.values - resumed.values).max() <= whole.error_bound + resumed.error_bound
    assert not checkpoint_path(stopped).exists()


def stopped_with(store: Path, output: Path, *options: object) -> None:
    """A solve that its time limit ended at once: no partition has been visited but one."""
    assert ooc("solve", store, *EASY, "--output", output, "--time-limit", 1e-9, *options).status == 1


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (("--method", "vi"), "vi"),
        (("--method", "vi", "--sweeps-per-visit", 3), "vi, 3 sweeps a visit"),
        (("--method", "policy-iteration"), "policy-iteration"),
        (("--method", "p-eva"), "p-eva joint"),
        (("--priority", "exact-h2"), "p-eva exact-h2"),
    ],
)
def test_a_resume_keeps_the_method_of_the_checkpoint_unless_another_is_asked_for(store, tmp_path, options, name):
    stopped_with(store, tmp_path / "r", *options)
    kept = ooc("solve", store, *EASY, "--output", tmp_path / "r", "--resume", "--json")
    assert kept.status == 0
    assert kept.figures["method"] == name
    assert f"the method is that of the checkpoint, {name}; --method would take another" in kept.err
    assert "auto:" not in kept.err
    stopped_with(store, tmp_path / "other", *options)
    other = "p-eva" if "vi" in options else "vi"
    changed = ooc("solve", store, *EASY, "--output", tmp_path / "other", "--resume", "--method", other, "--json")
    assert changed.status == 0
    assert changed.figures["method"].startswith(other)
    assert "the method is that of the checkpoint" not in changed.err


def test_a_resume_of_a_choice_of_the_solver_leaves_the_choice_to_it(store, stopped):
    ran = ooc("solve", store, *HARD, "--output", stopped, "--resume", "--json")
    assert ran.figures["method"].startswith("auto: ")
    assert "the method is that of the checkpoint" not in ran.err


def test_what_one_method_has_cost_is_not_counted_as_the_cost_of_another(store, tmp_path, monkeypatch):
    """Value iteration has read all partitions more often than p-eva may before auto changes the method."""
    monkeypatch.setattr("ooc_mdp.solver.methods.handover._SWITCH_LOADS", 50.0)
    path = checkpoint_path(tmp_path / "r")
    stopped_with(store, tmp_path / "r", "--method", "vi")
    facts, arrays = read_checkpoint(path)
    statistics = SolveStatistics(**facts["statistics"] | {"loads": 16 * 60})
    save_checkpoint(path, facts["identity"], arrays, statistics, MethodRecord("auto", phases=(Phase("vi", 0, 0),)))
    ran = ooc("solve", store, *EASY, "--output", tmp_path / "r", "--resume", "--json")
    assert ran.status == 0
    assert "policy iteration from here on" not in ran.err
    assert ran.figures["method"] == "auto: vi, then p-eva"
    assert ran.figures["loads"] > 16 * 60


def test_a_resume_goes_on_by_policy_iteration_where_p_eva_had_been_left_for_it(store, tmp_path, monkeypatch):
    stopped_with(store, tmp_path / "r")
    path = checkpoint_path(tmp_path / "r")
    facts, arrays = read_checkpoint(path)
    phases = (Phase("p-eva", 0, 0), Phase("policy-iteration", 7, 900))
    statistics = SolveStatistics(**facts["statistics"])
    save_checkpoint(path, facts["identity"], arrays, statistics, MethodRecord("auto", phases=phases))
    ran = ooc("solve", store, *EASY, "--output", tmp_path / "r", "--resume", "--json")
    assert ran.status == 0
    assert "auto: policy iteration goes on" in ran.err
    assert ran.figures["method"] == "auto: p-eva, then policy-iteration"
    assert ran.figures["policy_evaluations"] > 0


@pytest.mark.parametrize(("name", "most"), [("loads", 2**61 - 1), ("backups", 2**61 - 1), ("solve_seconds", 5e14)])
def test_a_resume_counts_on_from_any_figure_that_is_accepted(store, stopped, name, most):
    path = checkpoint_path(stopped)

    def resumed(figure):
        facts, arrays = read_checkpoint(path)
        facts["statistics"][name] = figure
        path.unlink()
        write_sealed_file(path, "ooc-mdp checkpoint 5", facts, arrays)
        return ooc("solve", store, *HARD[:4], "--device", "cpu", "--output", stopped, "--resume")

    beyond = resumed(2 * most)
    assert beyond.status == 2
    assert f"{path} is damaged (statistics: {name} is " in beyond.err
    assert resumed(most).status == 0
    assert ooc("verify", store, stopped).status == 0


def test_a_checkpoint_that_records_no_method_is_refused(store, stopped):
    path = checkpoint_path(stopped)
    facts, arrays = read_checkpoint(path)
    facts["method"]["sweeps_per_visit"] = 0
    path.unlink()
    write_sealed_file(path, "ooc-mdp checkpoint 5", facts, arrays)
    said = refused("solve", store, *HARD, "--output", stopped, "--resume")
    why = "method: sweeps_per_visit is 0, it must be a whole number of at least 1"
    assert f"{path} is damaged ({why}); remove it" in said


@pytest.mark.parametrize("method", ["vi", "p-eva"])
@pytest.mark.parametrize("cache", ["20%", "100%"])
def test_a_solve_can_be_resumed_by_another_method_with_another_cache(store, stopped, method, cache):
    solving = ("solve", store, *HARD[:4], "--device", "cpu", "--output", stopped, "--resume")
    ran = ooc(*solving, "--method", method, "--cache", cache, "--json")
    assert ran.status == 0
    assert ran.figures["outcome"] == "proved"
    assert ooc("verify", store, stopped).status == 0


def test_resuming_with_another_discount_store_or_sense_is_refused_plainly(store, stopped, tmp_path):
    discount = ("--discount", 0.95, "--device", "cpu", "--output", stopped, "--resume")
    assert "belongs to discount 0.99, not 0.95" in refused("solve", store, *discount)
    assert ooc("generate", "GW-32x4", tmp_path / "other", "--seed", 2).status == 0
    assert "belongs to fingerprint" in refused("solve", tmp_path / "other", *HARD, "--output", stopped, "--resume")
    assert ooc("generate", "GW-32x4", tmp_path / "min", "--seed", 1, "--partitions", 16, "--sense", "min").status == 0
    assert "belongs to" in refused("solve", tmp_path / "min", *HARD, "--output", stopped, "--resume")
    assert checkpoint_path(stopped).exists()


def test_resuming_without_a_checkpoint_begins_anew_and_says_so(store, tmp_path):
    output = tmp_path / "r"
    ran = ooc("solve", store, "--discount", 0.9, "--device", "cpu", "--output", output, "--resume")
    assert ran.status == 0
    assert f"there is no checkpoint {output}.checkpoint: starting from the beginning" in ran.err


def test_resuming_what_is_finished_returns_it_at_once(store, tmp_path):
    output = tmp_path / "r"
    solving = ("solve", store, "--discount", 0.9, "--device", "cpu", "--output", output, "--json")
    first = ooc(*solving)
    written = (output / "zarr.json").stat().st_mtime_ns
    again = ooc(*solving, "--resume")
    assert again.status == 0
    assert again.figures == first.figures | {"compile_seconds": None}  # which results do not record
    assert "nothing is left to do" in again.err
    assert (output / "zarr.json").stat().st_mtime_ns == written
    finer = ooc(*solving, "--resume", "--epsilon", 1e-9)
    assert "proves less than what is asked for" in finer.err
    assert ooc_mdp.open_result(output).solution.error_bound <= 1e-9
    assert "belongs to discount 0.9" in refused(
        "solve", store, "--discount", 0.8, "--device", "cpu", "--output", output, "--resume"
    )


def test_a_tighter_target_continues_from_the_values_of_the_result(costs, tmp_path):
    """Of a minimisation, whose states are stored in another order: it is read about once, not from the beginning."""
    how: dict[str, Any] = {"device": "cpu", "cache": "60%", "output": tmp_path / "r", "method": "vi"}
    said: list[str] = []
    ooc_mdp.solve(costs, 0.9, epsilon=1e-6, **how)
    finer = ooc_mdp.solve(costs, 0.9, epsilon=3e-7, resume=True, note=said.append, **how)
    assert f"{tmp_path / 'r'} proves less than what is asked for: continuing from its values, counting anew" in said
    assert finer.outcome.proved
    whole = ooc_mdp.solve(costs, 0.9, epsilon=3e-7, **how | {"output": None})
    assert np.abs(finer.values - whole.values).max() <= 6e-7
    assert finer.statistics.sweeps < whole.statistics.sweeps / 4
    assert ooc_mdp.verify(costs, tmp_path / "r").holds


def test_a_tighter_undiscounted_target_continues_from_the_values_of_the_result(tmp_path):
    chain = "".join(f"S:{i}:0:1\nA:0:2\nD:{i}:0.5:-1\nD:{i + 1}:0.5:-1\n" for i in range(60))
    (tmp_path / "m.txt").write_text(f"{chain}S:60:0:0\n")
    ooc_mdp.convert(tmp_path / "m.txt", tmp_path / "s", partitions=8)
    said: list[str] = []
    ooc_mdp.solve(tmp_path / "s", ooc_mdp.TotalReward(), epsilon=1e-2, output=tmp_path / "r")
    finer = ooc_mdp.solve(
        tmp_path / "s", ooc_mdp.TotalReward(), epsilon=1e-4, output=tmp_path / "r", resume=True, note=said.append
    )
    assert any("continuing from its values" in text for text in said)
    np.testing.assert_allclose(finer.values, 2.0 * np.arange(-60, 1), atol=1e-4)
    assert ooc_mdp.verify(tmp_path / "s", tmp_path / "r").holds


@pytest.mark.parametrize("criterion", [0.9, ooc_mdp.TotalReward()])
def test_what_a_kill_left_of_a_checkpoint_goes_with_it(tmp_path, criterion):
    lines = "S:0:0:1\nA:0:1\nD:1:1.0:1\nS:1:0:0\n"
    (tmp_path / "m.txt").write_text(lines)
    store = ooc_mdp.convert(tmp_path / "m.txt", tmp_path / "s")
    (tmp_path / "r.checkpoint.partial").write_bytes(b"ooc-mdp checkpoint 4\nhalf")
    ooc_mdp.solve(store, criterion, device="cpu", output=tmp_path / "r")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.txt", "r", "s"]


def test_what_a_kill_left_of_a_checkpoint_goes_where_the_result_is_finished(tmp_path):
    (tmp_path / "m.txt").write_text("S:0:0:1\nA:0:1\nD:1:1.0:1\nS:1:0:0\n")
    store = ooc_mdp.convert(tmp_path / "m.txt", tmp_path / "s")
    ooc_mdp.solve(store, 0.9, device="cpu", output=tmp_path / "r")
    (tmp_path / "r.checkpoint.partial").write_bytes(b"ooc-mdp checkpoint 4\nhalf")
    ooc_mdp.solve(store, 0.9, device="cpu", output=tmp_path / "r", resume=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.txt", "r", "s"]


def test_a_full_disk_leaves_the_previous_checkpoint(store, stopped):
    """A limit on the size of files stands in for a full disk: the checkpoint needs about 15 KiB."""
    path = checkpoint_path(stopped)
    before = path.read_bytes()
    assert len(before) > 8 << 10
    solving = ("solve", store, *HARD, "--output", stopped, "--resume", "--checkpoint-interval", 0)
    ran = process(*solving, "--time-limit", 1e-9, limit="-f 8")
    assert ran.status == 2, ran
    assert (
        f"error: cannot write the checkpoint {path}: File too large; make room, then continue from the one" in ran.err
    )
    assert "Traceback" not in ran.err
    assert path.read_bytes() == before
    assert sorted(p.name for p in stopped.parent.iterdir()) == ["r.checkpoint"]
    assert process(*solving).status == 0


@pytest.mark.parametrize(
    ("criterion", "fault", "remedy"),
    [
        (0.9, OSError(28, "No space left on device"), "make room"),
        (ooc_mdp.TotalReward(), OSError(28, "No space left on device"), "make room"),
        (0.9, OSError(5, "Input/output error"), "look at the disk"),
        (0.9, OSError(13, "Permission denied"), "allow writing there"),
    ],
)
def test_a_checkpoint_that_cannot_be_written_ends_no_solve(tmp_path, monkeypatch, criterion, fault, remedy):
    """The second and third checkpoint are not written."""
    chain = "".join(f"S:{i}:0:1\nA:0:2\nD:{i}:0.5:-1\nD:{i + 1}:0.5:-1\n" for i in range(60))
    (tmp_path / "m.txt").write_text(f"{chain}S:60:0:0\n")
    path = tmp_path / "s"
    ooc_mdp.convert(tmp_path / "m.txt", path, partitions=8)
    written: list[bytes] = []
    result = tmp_path / "r"

    def sync(place: Path) -> None:
        if place.suffix == ".partial":
            written.append(b"")
            if len(written) in (2, 3):
                raise fault

    monkeypatch.setattr("ooc_mdp.store.checkpoint.fsync_path", sync)
    monkeypatch.setattr("ooc_mdp.solver.session._SAVING_SHARE", 0)
    said: list[str] = []
    how: dict[str, Any] = {"cache": "30%", "device": "cpu", "checkpoint_interval": 0.0, "note": said.append}
    assert ooc_mdp.solve(path, criterion, output=result, **how).outcome.proved
    assert len(written) > 3
    assert [text for text in said if "checkpoint" in text] == [
        f"cannot write the checkpoint {result}.checkpoint: {fault.strerror}; the solve goes on and tries again: "
        f"{remedy}. Until then --resume continues from the one before",
        "checkpoints are written again",
    ]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.txt", "r", "s"]


def test_where_no_checkpoint_was_ever_written_there_is_nothing_to_go_on_from(store, tmp_path, monkeypatch):
    def full(_: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ooc_mdp.store.checkpoint.fsync_path", full)
    said: list[str] = []
    how: dict[str, Any] = {"cache": "30%", "device": "cpu", "checkpoint_interval": 0.0, "note": said.append}
    assert ooc_mdp.solve(store, 0.9, output=tmp_path / "r", **how).outcome.proved
    (told,) = [text for text in said if "checkpoint" in text]
    assert told.endswith("Until then --resume has nothing to continue from")


def test_an_error_while_a_checkpoint_is_written_leaves_no_file(tmp_path, monkeypatch):
    path = tmp_path / "c"
    save_checkpoint(path, IDENTITY, ARRAYS, SolveStatistics())
    before = path.read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ooc_mdp.store.transaction.os.fsync", full)
    with pytest.raises(StoreError, match="No space left on device"):
        save_checkpoint(path, IDENTITY, ARRAYS, SolveStatistics(loads=1))
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


@pytest.fixture(scope="module")
def costs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A minimisation: the solver works on values of the other sign."""
    path = tmp_path_factory.mktemp("costs") / "maze.store"
    ooc_mdp.generate("quintanilla", path, {"height": 16, "width": 16, "seed": 1}, sense="min", partitions=4)
    return path


def test_a_minimisation_goes_on_from_the_values_that_it_was_stopped_with(costs, tmp_path):
    output = tmp_path / "r"
    stopped = ooc_mdp.solve(costs, 0.9, epsilon=1e-30, device="cpu", output=output)
    assert stopped.outcome.value == "precision_limit"
    assert stopped.values.min() < -10.0
    _, arrays = read_checkpoint(checkpoint_path(output))
    # What is refined beyond float64 is not kept: a resumed solve refines its sweeps' values anew.
    np.testing.assert_allclose(np.sort(arrays["values"]), np.sort(0.0 - stopped.values), rtol=1e-12)
    ooc_mdp.solve(costs, 0.9, epsilon=1e-3, device="cpu", output=output, resume=True)
    assert ooc_mdp.verify(costs, output).holds


@pytest.mark.parametrize("sense", ["min", "max"])
def test_a_result_that_cannot_be_written_is_kept_as_a_checkpoint(store, costs, tmp_path, monkeypatch, sense):
    output, table = tmp_path / "r", costs if sense == "min" else store

    def full(*_: object, **__: object) -> None:
        raise StoreError("cannot write the result: no room")

    monkeypatch.setattr("ooc_mdp.solver.output.write_result", full)
    with pytest.raises(StoreError, match="no room; what was solved is kept in the checkpoint: then go on with"):
        ooc_mdp.solve(table, 0.9, epsilon=1e-3, device="cpu", output=output)
    assert [p.name for p in tmp_path.iterdir()] == ["r.checkpoint"]
    monkeypatch.undo()
    resumed = ooc_mdp.solve(table, 0.9, epsilon=1e-3, device="cpu", output=output, resume=True)
    assert ooc_mdp.verify(table, output).holds
    assert resumed.statistics.loads <= 32  # read at most once in the first solve, and once more to be measured
    assert [p.name for p in tmp_path.iterdir()] == ["r"]


def test_a_result_that_is_in_its_place_leaves_no_checkpoint(store, tmp_path, monkeypatch):
    def broken(path: Path) -> None:
        if path == tmp_path:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr("ooc_mdp.store.transaction.fsync_path", broken)
    with pytest.raises(StoreError, match="r is whole and in its place, but then Input/output error"):
        ooc_mdp.solve(store, 0.9, epsilon=1e-3, device="cpu", output=tmp_path / "r")
    assert [p.name for p in tmp_path.iterdir()] == ["r"]
    assert ooc_mdp.verify(store, tmp_path / "r").holds


def test_resuming_without_a_target_asks_for_the_usual_one(store, tmp_path):
    output = tmp_path / "r"
    coarse = ooc_mdp.solve(store, 0.9, epsilon=20.0, device="cpu", output=output)
    usual = ooc_mdp.solve(store, 0.9, device="cpu", output=output, resume=True)
    assert usual.error_bound <= 1e-4 * np.ptp(usual.values) < coarse.error_bound
    again = ooc_mdp.solve(store, 0.9, device="cpu", output=output, resume=True)
    assert again.statistics == usual.statistics
