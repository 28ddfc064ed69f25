"""A generation that was stopped or killed goes on where it was, and ends as if nothing had happened."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import interrupted, process
from forge import chunk_path
from forked import changes_of, generation, killed_at, killed_at_entry, succeed
from steps import When
from store_models import ModelProblem, ModelSource, random_model

from ooc_mdp.errors import OptionsError, StoreError, SystemFailureError
from ooc_mdp.io.conversion import ConvertOptions, convert, generate
from ooc_mdp.model.mdp import Rows
from ooc_mdp.problems.registry import make_problem
from ooc_mdp.store import Store, check_store, open_store
from ooc_mdp.store.journal import Journal, describe_differences
from ooc_mdp.store.layout import JOURNAL_FILE
from ooc_mdp.store.mark import MARK_FILE
from ooc_mdp.store.partition_summary import PartitionSummary
from ooc_mdp.store.zarr_metadata import remove_metadata


@pytest.mark.parametrize("attempts", [2, pytest.param(6, marks=pytest.mark.slow)])
def test_a_generation_killed_at_an_entry_of_its_journal_goes_on(tmp_path: Path, attempts: int) -> None:
    """It ends as if nothing had happened, and entries that were whole are kept."""
    succeed(generation, tmp_path / "whole", False)
    whole = open_store(tmp_path / "whole")
    rng = random.Random(1)
    for attempt in range(attempts):
        path, noted = tmp_path / f"s{attempt}", 0
        journal = path.with_name(f"{path.name}.partial") / JOURNAL_FILE
        times: list[When] = ["before", "torn", "after"]
        rng.shuffle(times)
        for when in times:
            entry = rng.randint(1, (whole.n_partitions - noted) // 2)
            killed_at_entry(entry, when, journal, generation, path, True)
            noted += entry - (when != "after")
            assert journal.read_bytes().count(b"\n") == 1 + noted
        succeed(generation, path, True)
        assert_same(path, whole)
    assert sorted(os.listdir(tmp_path)) == [*(f"s{i}" for i in range(attempts)), "whole"]


@pytest.mark.parametrize("kills", [3, pytest.param(15, marks=pytest.mark.slow)])
def test_a_generation_killed_before_a_change_of_its_files_goes_on(tmp_path: Path, kills: int) -> None:
    whole = tmp_path / "whole"
    changes = changes_of(tmp_path, generation, whole, False)
    assert changes > 60
    for number in np.linspace(1, 0.9 * changes, kills).astype(int).tolist():
        path = tmp_path / f"s{number}"
        assert killed_at(number, tmp_path, generation, path, True)
        succeed(generation, path, True)
        assert_same(path, open_store(whole))
        assert not path.with_name(f"{path.name}.partial").exists()


def assert_same(path: Path, whole: Store) -> None:
    store = open_store(path)
    assert store.fingerprint == whole.fingerprint
    assert check_store(store).findings == ()


class Stop(BaseException):
    """A signal."""


class Stopping(ModelProblem):
    """Raises `error` when rows are asked for the n-th time (the sample of sizes is the first); counts who asks."""

    def __init__(self, *args: Any, at: int | None = None, error: BaseException | None = None, **named: Any) -> None:
        super().__init__(*args, **named)
        self.at, self.error, self.asked = at, error, 0
        self.lock = threading.Lock()

    def rows(self, states: np.ndarray) -> Rows:
        with self.lock:
            self.asked += 1
            if self.asked == self.at and self.error is not None:
                raise self.error
        return super().rows(states)


MODEL = random_model(3, 60, durations=True)
TEN = ConvertOptions(partitions=10, threads=1)


def generate_from(problem: ModelProblem, path: Path, **options: Any) -> Store:
    return generate(problem, path, ConvertOptions(**{"partitions": 10, "threads": 1, **options}))


def stopped(tmp_path: Path, at: int = 6) -> Path:
    """A store directory whose generation was stopped when its rows were asked for the `at`-th time."""
    path = tmp_path / "s"
    problem = Stopping(MODEL, at=at)

    def stop(step: str, done: int, of: int | None) -> None:
        if done == at:
            raise Stop

    with pytest.raises(Stop) as caught:
        generate(problem, path, TEN, progress=stop)
    assert caught.value.__notes__ == [
        "what is done was kept: the same command continues with --resume, and starts over without it"
    ]
    return path


def test_only_what_is_missing_is_computed_again(tmp_path: Path) -> None:
    whole = generate_from(Stopping(MODEL), tmp_path / "whole")
    path = stopped(tmp_path)
    done = (tmp_path / "s.partial" / JOURNAL_FILE).read_bytes().count(b"\n") - 1
    assert done >= 6
    problem = Stopping(MODEL)
    store = generate_from(problem, path, resume=True)
    assert problem.asked == 1 + 10 - done
    assert store.fingerprint == whole.fingerprint
    assert check_store(store).findings == ()
    assert not (tmp_path / "s.partial").exists()
    assert not (path / JOURNAL_FILE).exists()


def test_without_resume_a_half_written_store_is_begun_anew(tmp_path: Path) -> None:
    path = stopped(tmp_path)
    problem = Stopping(MODEL)
    generate_from(problem, path)
    assert problem.asked == 11


def test_a_store_that_exists_is_refused_before_any_work(tmp_path: Path) -> None:
    path = generate_from(Stopping(MODEL), tmp_path / "s").path
    for options in ({}, {"resume": True}):
        problem = Stopping(MODEL)
        with pytest.raises(StoreError, match="exists; choose another name or overwrite it"):
            generate_from(problem, path, **options)
        assert problem.asked == 0


def test_resume_of_nothing_begins(tmp_path: Path) -> None:
    first = generate_from(Stopping(MODEL), tmp_path / "a", resume=True)
    (tmp_path / "b.partial").mkdir()
    (tmp_path / "b.partial" / MARK_FILE).touch()
    (tmp_path / "b.partial" / "rubbish").touch()
    second = generate_from(Stopping(MODEL), tmp_path / "b", resume=True)
    assert first.fingerprint == second.fingerprint
    assert check_store(second).findings == ()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"partitions": 9}, r"partitions was 10, is 9"),
        ({"dtype": "float32"}, r"dtype was float64, is float32"),
        ({"sense": "max"}, r"sense was min, is max"),
    ],
)
def test_other_options_are_refused_by_name_and_nothing_is_lost(
    tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    path = stopped(tmp_path)
    before = (tmp_path / "s.partial" / JOURNAL_FILE).read_bytes()
    with pytest.raises(StoreError, match=rf"s.partial was begun otherwise and cannot be resumed: .*{said}.*same opt"):
        generate_from(Stopping(MODEL), path, **{"resume": True, **options})
    assert (tmp_path / "s.partial" / JOURNAL_FILE).read_bytes() == before
    problem = Stopping(MODEL)
    generate_from(problem, path, resume=True)
    assert problem.asked < 11


def test_other_parameters_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "s"

    def stop(step: str, done: int, of: int | None) -> None:
        if done == 2:
            raise Stop

    options = ConvertOptions(partitions=4, threads=1)
    with pytest.raises(Stop):
        generate(make_problem("GW-12x4", {"seed": 1}), path, options, progress=stop)
    with pytest.raises(StoreError, match=r"cannot be resumed: seed was 1, is 2\. Give"):
        generate(make_problem("GW-12x4", {"seed": 2}), path, ConvertOptions(partitions=4, resume=True))
    with pytest.raises(StoreError, match=r"source was gridworld, is random"):
        generate(make_problem("random", {"states": 144}), path, ConvertOptions(partitions=4, resume=True))


@pytest.mark.parametrize("fault", ["flip", "cut", "lose"])
def test_a_chunk_that_is_not_as_noted_is_computed_again(tmp_path: Path, fault: str) -> None:
    whole = generate_from(Stopping(MODEL), tmp_path / "whole")
    path = stopped(tmp_path)
    done = (tmp_path / "s.partial" / JOURNAL_FILE).read_bytes().count(b"\n") - 1
    chunk = chunk_path(tmp_path / "s.partial", "probabilities", 2)
    content = bytearray(chunk.read_bytes())
    if fault == "lose":
        chunk.unlink()
    else:
        content[len(content) // 2] ^= 1
        chunk.write_bytes(content if fault == "flip" else content[:-1])
    problem = Stopping(MODEL)
    store = generate_from(problem, path, resume=True)
    assert problem.asked == 1 + 10 - done + 1
    assert store.fingerprint == whole.fingerprint


def test_an_error_of_the_problem_leaves_nothing_and_a_full_disk_what_is_done(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no rows"):
        generate_from(Stopping(MODEL, at=6, error=ValueError("no rows")), tmp_path / "s")
    assert os.listdir(tmp_path) == []
    full = OSError(28, "No space left on device", str(tmp_path / "s.partial" / "x"))
    with pytest.raises(StoreError, match=r"free space or choose another disk; what is done was kept: .* --resume"):
        generate_from(Stopping(MODEL, at=6, error=full), tmp_path / "s")
    problem = Stopping(MODEL)
    generate_from(problem, tmp_path / "s", resume=True)
    assert problem.asked < 11


def test_a_failure_of_the_system_leaves_what_is_done(tmp_path: Path) -> None:
    with pytest.raises(SystemFailureError) as raised:
        generate_from(Stopping(MODEL, at=6, error=SystemFailureError("too many files")), tmp_path / "s")
    assert raised.value.__notes__ == [
        "what is done was kept: the same command continues with --resume, and starts over without it"
    ]
    problem = Stopping(MODEL)
    generate_from(problem, tmp_path / "s", resume=True)
    assert problem.asked < 11


def test_nothing_more_is_computed_once_the_disk_is_full(tmp_path: Path) -> None:
    full = OSError(28, "No space left on device", str(tmp_path / "s.partial" / "x"))
    problem = Stopping(MODEL, at=6, error=full)
    with pytest.raises(StoreError, match="what is done was kept"):
        generate_from(problem, tmp_path / "s")
    assert problem.asked == 6
    assert (tmp_path / "s.partial" / JOURNAL_FILE).read_bytes().count(b"\n") == 1 + 4


def test_a_journal_without_room_keeps_what_is_done(tmp_path: Path) -> None:
    """The journal is the first file to reach the limit on the size of files, which stands in for a full disk."""
    command = ("generate", "random", tmp_path / "s", "--states", 400, "--partitions", 40, "--threads", 1)
    ran = process(*command, limit="-f 14")
    assert ran.status == 2, ran
    assert "no room" in ran.err
    assert "what is done was kept: the same command continues with --resume" in ran.err
    journal = (tmp_path / "s.partial" / JOURNAL_FILE).read_bytes()
    assert journal.endswith(b"\n")
    assert 1 < journal.count(b"\n") < 40
    assert process(*command, "--resume").status == 0
    assert check_store(open_store(tmp_path / "s")).valid


def test_progress_comes_with_each_partition(tmp_path: Path) -> None:
    problem, seen = Stopping(MODEL), []
    generate(problem, tmp_path / "s", TEN, progress=lambda step, done, of: seen.append((step, done, problem.asked)))
    partitions = [(done, asked) for step, done, asked in seen if step == "partitions"]
    assert [done for done, _ in partitions] == list(range(1, 11))
    assert partitions[0][1] < 11


def test_a_run_stopped_while_it_finishes_goes_on(tmp_path: Path) -> None:
    whole = generate_from(Stopping(MODEL), tmp_path / "whole")

    def stop(step: str, done: int, of: int | None) -> None:
        if step == "finish" and done == 4:
            raise Stop

    with pytest.raises(Stop):
        generate(Stopping(MODEL), tmp_path / "s", TEN, progress=stop)
    (tmp_path / "s.partial" / "zarr.json").write_text("{}")
    problem = Stopping(MODEL)
    store = generate_from(problem, tmp_path / "s", resume=True)
    assert problem.asked == 1
    assert store.fingerprint == whole.fingerprint
    assert check_store(store).findings == ()


def test_the_order_of_partitions_does_not_change_a_store(tmp_path: Path) -> None:
    """Padded lengths are guessed from the partitions so far; a resumed run sees them in another order."""
    fingerprints = {
        generate_from(Stopping(MODEL), tmp_path / str(threads), threads=threads).fingerprint for threads in (1, 3, 8)
    }
    path = stopped(tmp_path, at=3)
    fingerprints.add(generate_from(Stopping(MODEL), path, resume=True).fingerprint)
    assert len(fingerprints) == 1


def test_a_half_written_store_is_named_with_the_way_to_go_on(tmp_path: Path) -> None:
    path = stopped(tmp_path)
    for asked in (path, tmp_path / "s.partial"):
        with pytest.raises(
            StoreError, match=r"half-written.*go on with it \(generate PROBLEM .*s --resume, with the options"
        ):
            open_store(asked)


def test_a_conversion_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(OptionsError, match="only the generation of a problem"):
        convert(ModelSource(MODEL), tmp_path / "s", ConvertOptions(resume=True))


def test_a_journal_is_read_up_to_its_first_torn_line(tmp_path: Path) -> None:
    with Journal.create(tmp_path, {"a": 1}) as journal:
        journal.append(3, {"x": 1.5})
        journal.append(4, {"x": float("inf")})
        journal.append(3, {"x": 2.5})
    path = tmp_path / JOURNAL_FILE
    whole = path.read_bytes()
    path.write_bytes(whole + b"12345678 {torn")
    resumed = Journal.resume(tmp_path)
    assert resumed is not None
    with resumed:
        assert resumed.header == {"a": 1}
        assert resumed.records == {3: {"partition": 3, "x": 2.5}, 4: {"partition": 4, "x": float("inf")}}
        assert path.read_bytes() == whole
        resumed.append(5, {})
    lines = path.read_bytes().split(b"\n")
    lines[1] = lines[1].replace(b"1.5", b"1.6")
    path.write_bytes(b"\n".join(lines))
    again = Journal.resume(tmp_path)
    assert again is not None
    with again:
        assert again.records == {}
    path.write_bytes(b"")
    assert Journal.resume(tmp_path) is None


def test_differences_are_named_by_their_own_names() -> None:
    assert describe_differences({"a": {"b": 1, "c": [1, 2]}, "d": 1}, {"a": {"b": 2, "c": (1, 2)}, "e": 3}) == [
        "b was 1, is 2",
        "d was 1, is None",
        "e was None, is 3",
    ]


def test_notes_survive_json_bit_by_bit(tmp_path: Path) -> None:
    note = PartitionSummary(
        generate_from(Stopping(MODEL), tmp_path / "s").sizes(0),
        0,
        2,
        7,
        False,
        (-0.1, 1 / 3),
        (0.3, float("inf")),
        (1 - 2**-53, 1 + 2**-52),
        np.array([0, 7], np.int64),
        np.array([0.1 + 0.2, 5e-324]),
    )
    again = PartitionSummary.from_json(json.loads(json.dumps(note.to_json())))
    for name in PartitionSummary.__slots__:
        np.testing.assert_array_equal(getattr(again, name), getattr(note, name), strict=True) if name.startswith(
            "coupling"
        ) else None
        assert name.startswith("coupling") or getattr(again, name) == getattr(note, name)


@pytest.mark.parametrize("word", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_a_state_to_go_on_from(tmp_path: Path, word: signal.Signals) -> None:
    """It comes at the fourth entry of the journal; the thread that writes it goes on once it was handled."""
    path = tmp_path / "s"
    journal = tmp_path / "s.partial" / JOURNAL_FILE
    command = ("generate", "random", path, "--states", 400, "--partitions", 40, "--threads", 1)
    ran = interrupted(word, f"entry {journal}", 4, *command)
    assert ran.status == 1
    assert "interrupted; what is done was kept: the same command continues with --resume" in ran.err
    assert 4 <= journal.read_bytes().count(b"\n") - 1 < 40
    assert process(*command, "--resume").status == 0
    assert open_store(path).n_partitions == 40


def test_what_zarr_began_to_write_when_it_was_killed_is_removed(tmp_path: Path) -> None:
    began = [tmp_path / "zarr.0a1b.partial", tmp_path / "rewards" / "40" / "zarr.2c3d.partial"]
    chunk = tmp_path / "rewards" / "40" / "c.0.0"
    chunk.parent.mkdir(parents=True)
    for path in (*began, chunk):
        path.write_bytes(b"{")
    remove_metadata(tmp_path)
    assert not any(path.exists() for path in began)
    assert chunk.exists()
