"""Who reads a store keeps it from being replaced; who writes an output keeps it from being written twice."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import pytest
from command_line import environment, ooc, refused
from paths import REPOSITORY
from store_models import ModelProblem, random_model

import ooc_mdp
from ooc_mdp.errors import StoreError
from ooc_mdp.io.conversion import ConvertOptions, generate
from ooc_mdp.model.criterion import TotalReward
from ooc_mdp.options import ClusterOptions, RunOptions, SolveOptions
from ooc_mdp.solver import local as solver
from ooc_mdp.store import locks, output_lock
from ooc_mdp.store.directory import Directory
from ooc_mdp.store.locks import BusyError
from ooc_mdp.store.output_lock import lock_path, locked_output, refuse_busy
from ooc_mdp.store.transaction import atomic_directory
from ooc_mdp.undiscounted import totals

if TYPE_CHECKING:
    from _typeshed import TraceFunction

HOLD = "from ooc_mdp.store.directory import Directory\ndef enter(path): return Directory(path).hold()"
LOCK = "from ooc_mdp.store.output_lock import locked_output as enter"
MODEL = random_model(3, 60)
TEN = ConvertOptions(partitions=10, threads=1)


@contextmanager
def hold(path: Path) -> Iterator[int]:
    """What a solve does with its store: the descriptor that it reads from."""
    directory = Directory(path)
    with directory.hold():
        yield directory.fd


@contextmanager
def other_process(enter: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that is inside `enter(path)` until the block ends or kills it."""
    body = "with enter(Path(sys.argv[1])):\n print(1, flush=True)\n input()"
    line = [sys.executable, "-c", f"import sys\nfrom pathlib import Path\n{enter}\n{body}", str(path)]
    with subprocess.Popen(line, env=environment(), stdin=-1, stdout=-1, text=True) as process:
        wait_for_line(process)
        yield process
        if process.poll() is None:
            process.communicate("\n")
            assert process.returncode == 0


def wait_for_line(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "1\n"


def by(process: subprocess.Popen[str]) -> str:
    return rf"\(pid {process.pid} on {platform.node()}"


def anything(path: Path) -> None:
    """Recognises whatever is there."""


def write(path: Path, text: str, during: Callable[[Path], None] = anything) -> None:
    with atomic_directory(path, True, anything) as partial:
        during(partial)
        (partial / "text").write_text(text)


@pytest.fixture
def no_flock(monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(fd: int, operation: int) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(fcntl, "flock", flock)


def test_several_processes_hold_a_store_and_files_open_relative_to_it(tmp_path: Path) -> None:
    write(tmp_path / "s", "old")
    with other_process(HOLD, tmp_path / "s"), hold(tmp_path / "s") as directory:
        fd = os.open("text", os.O_RDONLY, dir_fd=directory)
        assert os.read(fd, 9) == b"old"
        os.close(fd)
    write(tmp_path / "s", "new")
    assert os.listdir(tmp_path) == ["s"]


def test_a_store_that_another_process_reads_is_not_replaced(tmp_path: Path) -> None:
    write(tmp_path / "s", "old")
    with other_process(HOLD, tmp_path / "s") as process:
        message = rf"s is being read by another process {by(process)}\); wait for it or choose another name"
        with pytest.raises(BusyError, match=message), atomic_directory(tmp_path / "s", True, anything):
            pytest.fail("the work began")
    assert os.listdir(tmp_path) == ["s"]
    write(tmp_path / "s", "new")


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_reader_that_comes_during_the_work_keeps_the_old_store(
    tmp_path: Path, can_exchange: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not can_exchange:
        monkeypatch.setattr("ooc_mdp.store.transaction._swap_directories", lambda a, b: False)
    write(tmp_path / "s", "old")
    held = hold(tmp_path / "s")

    def come(directory: Path) -> None:
        held.__enter__()

    with pytest.raises(BusyError, match="s is being read by another process"):
        write(tmp_path / "s", "new", come)
    assert (tmp_path / "s" / "text").read_text() == "old"
    assert os.listdir(tmp_path) == ["s"]
    held.__exit__(None, None, None)
    write(tmp_path / "s", "new")


def test_a_reader_whose_store_was_replaced_since_it_was_opened_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "s", "old")
    directory = Directory(tmp_path / "s")
    write(tmp_path / "s", "new")
    with pytest.raises(StoreError, match="s was replaced since it was opened; open it again"), directory.hold():
        pass


@pytest.mark.usefixtures("no_flock")
def test_without_flock_a_reader_keeps_to_the_directory_that_it_opened(tmp_path: Path) -> None:
    write(tmp_path / "s", "old")
    with hold(tmp_path / "s") as directory:
        old = os.fstat(directory)
        write(tmp_path / "s", "new")
        assert os.path.samestat(os.fstat(directory), old)
        assert not os.path.samestat(os.stat(tmp_path / "s"), old)
    assert (tmp_path / "s" / "text").read_text() == "new"
    assert os.listdir(tmp_path) == ["s"]


def test_a_generation_that_a_reader_refuses_is_kept_for_resume(tmp_path: Path) -> None:
    path = tmp_path / "s"
    old = generate(ModelProblem(random_model(4, 60)), path, TEN).fingerprint
    held, come = hold(path), [5]

    def read(step: str, done: int, of: int | None) -> None:
        if done in come:
            come.remove(done)
            held.__enter__()

    options = ConvertOptions(partitions=10, threads=1, overwrite=True)
    with pytest.raises(BusyError, match=r"is being read by .* what is done was kept: the same command continues"):
        generate(ModelProblem(MODEL), path, options, progress=read)
    assert ooc_mdp.open_store(path).fingerprint == old
    held.__exit__(None, None, None)
    resume = ConvertOptions(partitions=10, threads=1, overwrite=True, resume=True)
    assert generate(ModelProblem(MODEL), path, resume).fingerprint != old
    assert os.listdir(tmp_path) == ["s"]


def test_an_output_is_locked_by_one_process_which_its_file_names(tmp_path: Path) -> None:
    with locked_output(tmp_path / "r"):
        named = json.loads(lock_path(tmp_path / "r").read_bytes())
        assert (named["pid"], named["host"]) == (os.getpid(), platform.node())
        assert named["started"]
        assert named["command"]
        busy = pytest.raises(BusyError, match=f"another process is writing .*pid {os.getpid()}")
        with busy, locked_output(tmp_path / "r"):
            pytest.fail("the work began")
        with locked_output(tmp_path / "other"):
            pass
        assert os.listdir(tmp_path) == ["r.lock"]
    assert os.listdir(tmp_path) == []
    with locked_output(None):
        pass


def test_the_check_runs_before_and_under_the_lock(tmp_path: Path) -> None:
    there = []
    with locked_output(tmp_path / "r", lambda output: there.append(lock_path(output).exists())):
        assert there == [False, True]


@pytest.mark.parametrize("flock", [True, False])
def test_a_second_process_is_refused_and_the_lock_of_a_killed_one_is_taken_over(
    tmp_path: Path, flock: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter = LOCK
    if not flock:
        enter = f"import fcntl, errno\ndef none(*_): raise OSError(errno.ENOTSUP, 'none')\nfcntl.flock = none\n{LOCK}"

        def none(*_: object) -> None:
            raise OSError(errno.ENOTSUP, "none")

        monkeypatch.setattr(fcntl, "flock", none)
    output = tmp_path / "r"
    with other_process(enter, output) as process:
        for attempt in (locked_output(output), refusing(output)):
            with pytest.raises(BusyError, match=f"another process is writing .*r {by(process)}"), attempt:
                pytest.fail("the work began")
        process.kill()
        process.wait()
    assert os.listdir(tmp_path) == ["r.lock"]
    refuse_busy(output)
    with locked_output(output):
        assert json.loads(lock_path(output).read_bytes())["pid"] == os.getpid()
    assert os.listdir(tmp_path) == []


@contextmanager
def refusing(output: Path) -> Iterator[None]:
    refuse_busy(output)
    yield


@pytest.mark.usefixtures("no_flock")
def test_without_flock_a_file_of_a_process_that_cannot_run_is_taken_over(tmp_path: Path) -> None:
    file = lock_path(tmp_path / "r")
    with locked_output(tmp_path / "r"):
        mine = file.read_bytes()
    document = json.loads(mine)
    another = json.dumps({**document, "process": "another boot 17"}).encode()
    for left in (b"", mine[:40], another):
        file.write_bytes(left)
        refuse_busy(tmp_path / "r")
        with locked_output(tmp_path / "r"):
            assert json.loads(file.read_bytes())["process"] == document["process"]
        assert os.listdir(tmp_path) == []


@pytest.mark.usefixtures("no_flock")
def test_without_flock_a_file_of_another_host_is_named_for_removal(tmp_path: Path) -> None:
    file = lock_path(tmp_path / "r")
    with locked_output(tmp_path / "r"):
        document = json.loads(file.read_bytes())
    file.write_text(json.dumps({**document, "host": "elsewhere"}))
    for attempt in (locked_output(tmp_path / "r"), refusing(tmp_path / "r")):
        with pytest.raises(BusyError, match=r"on elsewhere, since .*remove .*r\.lock if it does not"), attempt:
            pytest.fail("the work began")
    assert os.listdir(tmp_path) == ["r.lock"]


@pytest.mark.usefixtures("no_flock")
@pytest.mark.parametrize("links", [True, False])
def test_without_flock_two_that_find_the_same_left_file_do_not_both_lock(
    tmp_path: Path, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second takes over between the first one's look at the file and its removal."""
    output, file = tmp_path / "r", lock_path(tmp_path / "r")
    if not links:
        monkeypatch.setattr(os, "link", unlinkable)
    file.write_bytes(b"")
    second, rename = locked_output(output), Path.rename

    def renamed(path: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "rename", rename)
        second.__enter__()
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", renamed)
    if links:
        with pytest.raises(BusyError), locked_output(output):
            pytest.fail("both have it")
        assert os.listdir(tmp_path) == ["r.lock"]
        second.__exit__(None, None, None)
        assert os.listdir(tmp_path) == []
    else:
        monkeypatch.setattr(Path, "rename", rename)
        with locked_output(output), pytest.raises(BusyError), locked_output(output):
            pytest.fail("both have it")


def unlinkable(*_: object) -> None:
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))


def test_a_file_that_is_no_lock_is_kept(tmp_path: Path) -> None:
    file = lock_path(tmp_path / "r")
    file.write_text("mine")
    with pytest.raises(StoreError, match=r"r\.lock is no lock of ooc-mdp; move it"), locked_output(tmp_path / "r"):
        pass
    assert file.read_text() == "mine"
    file.unlink()
    file.mkdir()
    with pytest.raises(StoreError, match=r"r\.lock is no lock of ooc-mdp; move it"), locked_output(tmp_path / "r"):
        pass
    file.rmdir()
    os.mkfifo(file)
    with pytest.raises(StoreError, match=r"r\.lock is no lock of ooc-mdp; move it"), locked_output(tmp_path / "r"):
        pass


def test_a_lock_that_is_removed_between_open_and_flock_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = fcntl.flock, []

    def flock(fd: int, operation: int) -> None:
        if not calls:
            lock_path(tmp_path / "r").unlink()
        calls.append(fd)
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with locked_output(tmp_path / "r"), pytest.raises(BusyError), locked_output(tmp_path / "r"):
        pass
    assert os.listdir(tmp_path) == []


def test_a_full_disk_leaves_the_lock_without_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with (
        locked_output(tmp_path / "r"),
        pytest.raises(BusyError, match=r"another process is writing .*r; wait for it"),
        locked_output(tmp_path / "r"),
    ):
        pass
    assert os.listdir(tmp_path) == []


class Interrupted(BaseException):
    """Stands for a signal."""


@pytest.mark.parametrize("flock", [True, False])
@pytest.mark.parametrize("before", ["nothing", "a leftover"])
def test_a_signal_at_any_line_blocks_no_later_run(
    tmp_path: Path, before: str, flock: bool, request: pytest.FixtureRequest
) -> None:
    if not flock:
        request.getfixturevalue("no_flock")
    files = (output_lock.__file__, locks.__file__)
    for n in range(10_000):
        output = tmp_path / str(n) / "r"
        output.parent.mkdir()
        if before == "a leftover":
            lock_path(output).write_text('{"format": "ooc-mdp-lock", "pid": 0')
        lines = iter(range(n, -1, -1))

        def trace(frame: FrameType, event: str, argument: object, lines: Iterator[int] = lines) -> TraceFunction | None:
            if frame.f_code.co_filename not in files or frame.f_code is locks.OpenDirectory.close.__code__:
                return None
            if event == "line" and next(lines, None) == 0:
                raise Interrupted
            return trace

        earlier = sys.gettrace()
        sys.settrace(trace)
        try:
            with locked_output(output):
                sys.settrace(earlier)
            stopped = False
        except Interrupted:
            stopped = True
        finally:
            sys.settrace(earlier)
        with locked_output(output):
            pass
        left = os.listdir(output.parent)
        if stopped and not flock:  # a signal while one is tidying is another matter
            left = [name for name in left if not name.startswith("r.lock.")]
        assert left == []
        if not stopped:
            assert n > 30
            return
    pytest.fail("it never came to its end")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("locks") / "s"
    generate(ModelProblem(MODEL), path, TEN)
    return path


SOLVE = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(REPOSITORY)!r})
import ooc_mdp
from ooc_mdp.solver.local import solve
from ooc_mdp.options import RunOptions, SolveOptions

def note(text):
    if text.startswith("memory plan"):
        print(1, flush=True)
        input()

discount, store, output = float(sys.argv[1]), *map(Path, sys.argv[2:])
solve(ooc_mdp.open_store(store), SolveOptions(discount, device="cpu"), RunOptions(output), note=note)
"""


def test_a_second_solve_with_the_output_of_a_running_one_is_refused_before_any_work(
    store: Path, tmp_path: Path
) -> None:
    output = tmp_path / "r"
    line = [sys.executable, "-c", SOLVE, "0.9", str(store), str(output)]
    opened, solve_of = ooc_mdp.open_store(store), {0.9: solver.solve, 1.0: totals.solve}

    def note(text: str) -> None:
        pytest.fail(f"the work began: {text}")

    with subprocess.Popen(line, env=environment(), stdin=-1, stdout=-1, text=True) as process:
        wait_for_line(process)
        for discount in (0.9, 1.0):
            options = SolveOptions(TotalReward() if discount == 1 else discount, device="cpu")
            with pytest.raises(BusyError, match=f"another process is writing .*r {by(process)}"):
                solve_of[discount](opened, options, RunOptions(output, overwrite=True), note=note)
        message = refused("solve", tmp_path / "none", "--discount", 0.9, "--output", output, "--resume")
        assert f"pid {process.pid} on {platform.node()}" in message
        process.communicate("\n")
    assert process.returncode == 0
    assert os.listdir(tmp_path) == ["r"]
    with pytest.raises(StoreError, match="exists"):
        solver.solve(opened, SolveOptions(0.9, device="cpu"), RunOptions(output))


def test_a_solve_replaces_no_result_that_another_process_reads(store: Path, tmp_path: Path) -> None:
    output = tmp_path / "r"
    options = SolveOptions(0.9, device="cpu")
    opened = ooc_mdp.open_store(store)
    solver.solve(opened, options, RunOptions(output))

    def note(text: str) -> None:
        pytest.fail(f"the work began: {text}")

    with other_process(HOLD, output) as process:
        busy = pytest.raises(BusyError, match=f"r is being read by another process {by(process)}")
        with busy:
            solver.solve(opened, options, RunOptions(output, overwrite=True), note=note)
    assert os.listdir(tmp_path) == ["r"]
    solver.solve(opened, options, RunOptions(output, overwrite=True))
    assert os.listdir(tmp_path) == ["r"]


@pytest.mark.usefixtures("no_flock")
def test_a_solve_works_without_flock(store: Path, tmp_path: Path) -> None:
    for overwrite in (False, True):
        run = RunOptions(tmp_path / "r", overwrite=overwrite)
        solver.solve(ooc_mdp.open_store(store), SolveOptions(0.9, device="cpu"), run)
    shutil.copytree(store, tmp_path / "s")
    generate(ModelProblem(MODEL), tmp_path / "s", ConvertOptions(partitions=10, threads=1, overwrite=True))
    assert sorted(os.listdir(tmp_path)) == ["r", "s"]


def test_a_solve_on_workers_is_refused_before_any_are_started(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ooc_mdp.distributed import solve as distributed

    def started(*_: Any) -> None:
        pytest.fail("workers were started")

    monkeypatch.setattr(distributed, "client_of", started)
    opened, options = ooc_mdp.open_store(store), SolveOptions(0.9, device="cpu")
    with locked_output(tmp_path / "r"), pytest.raises(BusyError, match="another process is writing"):
        distributed.solve_distributed(opened, options, RunOptions(tmp_path / "r"), asked=ClusterOptions(workers=2))


def test_a_busy_target_is_refused_before_its_input_is_read(tmp_path: Path) -> None:
    store = tmp_path / "s"
    commands = (("convert", tmp_path / "none", store), ("generate", tmp_path / "none.py", store))
    with other_process(LOCK, store) as process:
        for line in commands:
            assert f"another process is writing {store} (pid {process.pid} on {platform.node()}" in refused(*line)
    assert ooc("generate", "random", store, "--states", 50).status == 0
    with other_process(HOLD, store) as process:
        for line in commands:
            message = refused(*line, "--overwrite")
            assert f"{store} is being read by another process (pid {process.pid} on {platform.node()})" in message
    assert os.listdir(tmp_path) == ["s"]
