from __future__ import annotations

import errno
import fcntl
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from _typeshed import TraceFunction

from ooc_mdp.errors import StoreError
from ooc_mdp.store import locks, mark, transaction
from ooc_mdp.store.mark import MARK_FILE
from ooc_mdp.store.transaction import atomic_directory, stale_partial


def anything(path: Path) -> None:
    """Recognises whatever is there."""


def content(path: Path) -> str:
    return (path / "inner" / "text").read_text()


def leftover(path: Path) -> Path:
    """A directory as a killed writer leaves it."""
    path.mkdir(exist_ok=True)
    opened = locks.OpenDirectory(path)
    mark.mark_directory(opened.fd, path)
    opened.close()
    return path


def write(path: Path, text: str, overwrite: bool = False) -> None:
    with atomic_directory(path, overwrite, anything) as partial:
        (partial / "inner").mkdir()
        (partial / "inner" / "text").write_text(text)
        assert not path.exists() or content(path) != text


def test_the_store_appears_whole_and_alone(tmp_path: Path) -> None:
    write(tmp_path / "s", "new")
    assert content(tmp_path / "s") == "new"
    assert os.listdir(tmp_path) == ["s"]
    assert os.listdir(tmp_path / "s") == ["inner"]


def test_everything_is_on_disk_before_the_store_appears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, store = [], tmp_path / "s"

    def sync(fd: int) -> None:
        if not store.exists():
            synced.append(os.fstat(fd).st_ino)

    monkeypatch.setattr("ooc_mdp.store.transaction.os.fsync", sync)
    with atomic_directory(store, False, anything) as partial:
        (partial / "a" / "c").mkdir(parents=True)
        (partial / "a" / "c" / "0").write_bytes(b"1")
        (partial / "zarr.json").write_bytes(b"{}")
    written = {path.stat().st_ino for path in (store, *store.rglob("*"))}
    assert len(written) == 5
    assert written <= set(synced)


@pytest.mark.parametrize("can_exchange", [True, False])
def test_replacing_leaves_only_the_new_store(
    tmp_path: Path, can_exchange: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not can_exchange:
        monkeypatch.setattr(transaction, "_swap_directories", lambda a, b: False)
    write(tmp_path / "s", "old")
    with pytest.raises(StoreError, match="exists; choose another name or overwrite it"):
        write(tmp_path / "s", "new")
    write(tmp_path / "s", "new", overwrite=True)
    assert content(tmp_path / "s") == "new"
    assert os.listdir(tmp_path) == ["s"]
    assert os.listdir(tmp_path / "s") == ["inner"]


def test_a_replacement_cut_short_between_its_renames_is_undone_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "s", "old")
    leftover(tmp_path / "s").rename(tmp_path / "s.previous")
    with pytest.raises(StoreError, match="exists"):
        write(tmp_path / "s", "new")
    assert content(tmp_path / "s") == "old"
    assert os.listdir(tmp_path) == ["s"]
    assert os.listdir(tmp_path / "s") == ["inner"]


@pytest.mark.parametrize("place", ["", ".", "..", "/", "s/.."])
def test_a_place_without_a_name_is_refused(tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "s").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreError, match="names no new directory; give the path of one that is"):
        write(Path(place), "new", overwrite=True)
    assert os.listdir(tmp_path) == ["s"]


def fail(path: Path, error: Exception) -> None:
    with atomic_directory(path, False) as partial:
        (partial / "x").touch()
        raise error


def test_an_error_leaves_nothing_and_passes_on(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        fail(tmp_path / "s", KeyError("mine"))
    assert os.listdir(tmp_path) == []


class Interrupted(BaseException):
    """Stands for a signal."""


@pytest.mark.parametrize("before", ["nothing", "a store", "a leftover"])
def test_a_signal_at_any_line_leaves_the_old_or_the_new_and_nothing_half(tmp_path: Path, before: str) -> None:
    """The n-th line that runs in the module raises, for each n; a signal while one is tidying is another matter."""
    files = (transaction.__file__, locks.__file__, mark.__file__)
    for n in range(10_000):
        place = tmp_path / str(n)
        place.mkdir()
        if before == "a store":
            write(place / "s", "old")
        elif before == "a leftover":
            (leftover(place / "s.partial") / "junk").touch()
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
            write(place / "s", "new", overwrite=True)
            stopped = False
        except Interrupted:
            stopped = True
        finally:
            sys.settrace(earlier)
        left = os.listdir(place)
        if stopped and before == "a leftover" and left == ["s.partial"]:
            assert sorted(os.listdir(place / "s.partial")) == [MARK_FILE, "junk"]
        elif left or before == "a store" or not stopped:
            assert left == ["s"]
            assert content(place / "s") in (("old", "new") if stopped else ("new",))
        if not stopped:
            assert n > 30
            break
        write(place / "s", "newer", overwrite=True)
        assert content(place / "s") == "newer"
        assert os.listdir(place / "s") == ["inner"]
    else:
        pytest.fail("it never came to its end")


def test_a_second_writer_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    with atomic_directory(tmp_path / "s", False) as partial:
        (partial / "x").touch()
        with pytest.raises(StoreError, match="another process is writing"):
            write(tmp_path / "s", "second")
        assert (partial / "x").exists()
    assert (tmp_path / "s" / "x").exists()


def test_what_a_dead_writer_left_beside_a_store_is_found_and_a_living_ones_is_not(tmp_path: Path) -> None:
    store, partial = tmp_path / "s", tmp_path / "s.partial"
    write(store, "old")
    assert stale_partial(store) is None
    with atomic_directory(tmp_path / "t", False):
        assert (tmp_path / "t.partial").is_dir()
        assert stale_partial(tmp_path / "t") is None
    partial.mkdir()
    assert stale_partial(store) == partial
    (leftover(partial) / "chunk").touch()
    assert stale_partial(store) == partial
    write(store, "new", overwrite=True)
    assert stale_partial(store) is None


def test_the_leftover_of_a_dead_writer_is_cleared(tmp_path: Path) -> None:
    partial = leftover(tmp_path / "s.partial")
    (partial / "deep" / "er").mkdir(parents=True)
    (partial / "file").touch()
    write(tmp_path / "s", "new")
    assert os.listdir(tmp_path) == ["s"]
    assert os.listdir(tmp_path / "s") == ["inner"]


def test_a_writer_that_opened_the_directory_of_a_finished_one_starts_afresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other writer renames its directory away between our open and our flock."""
    partial = leftover(tmp_path / "s.partial")
    (partial / "theirs").touch()
    real, calls = fcntl.flock, []

    def flock(fd: int, operation: int) -> None:
        if not calls:
            partial.rename(tmp_path / "s")
        calls.append(fd)
        real(fd, operation)

    monkeypatch.setattr(transaction.fcntl, "flock", flock)
    with pytest.raises(StoreError, match="exists"):
        write(tmp_path / "s", "new")
    assert (tmp_path / "s" / "theirs").exists()
    assert len(calls) >= 2


def test_what_is_no_store_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis").touch()
    with pytest.raises(StoreError, match="is not overwritten"), atomic_directory(tmp_path / "precious", True):
        pass
    (tmp_path / "link").symlink_to(tmp_path / "precious")
    with pytest.raises(StoreError, match="symbolic link"):
        write(tmp_path / "link", "new", overwrite=True)
    assert sorted(os.listdir(tmp_path)) == ["link", "precious"]
    assert os.listdir(tmp_path / "precious") == ["thesis"]


def test_places_where_no_store_can_be_are_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"the directory .*none does not exist"):
        write(tmp_path / "none" / "s", "new")
    with pytest.raises(StoreError, match="choose another name"):
        write(tmp_path / "s.partial", "new")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_said_plainly(tmp_path: Path, code: int) -> None:
    with pytest.raises(StoreError, match="no room"):
        fail(tmp_path / "s", OSError(code, os.strerror(code)))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("before", [None, "half"])
def test_a_lock_that_cannot_be_taken_leaves_what_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    usual = os.open

    def full(path: object, *arguments: int, dir_fd: int | None = None) -> int:
        if str(path).endswith(".partial"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return usual(path, *arguments, dir_fd=dir_fd)  # type: ignore[arg-type]

    if before is not None:
        (leftover(tmp_path / "s.partial") / before).touch()
    found = sorted(map(str, tmp_path.rglob("*")))
    monkeypatch.setattr(transaction.os, "open", full)
    with pytest.raises(StoreError, match="no room"):
        write(tmp_path / "s", "new")
    assert sorted(map(str, tmp_path.rglob("*"))) == found


def test_a_disk_that_fails_is_said_with_what_to_do(tmp_path: Path) -> None:
    ours = str(tmp_path / "s.partial" / "c")
    with pytest.raises(StoreError, match=r"s was not written: Input/output error: .*partial/c; look at the disk"):
        fail(tmp_path / "s", OSError(errno.EIO, "broken", ours))
    with pytest.raises(StoreError, match=r"s was not written: Input/output error; look at the disks that are read and"):
        fail(tmp_path / "s", OSError(errno.EIO, "broken"))
    with pytest.raises(OSError, match="/elsewhere/model"):
        fail(tmp_path / "s", OSError(errno.EIO, "broken", "/elsewhere/model"))
    assert os.listdir(tmp_path) == []


def test_a_store_that_is_in_its_place_is_not_called_unwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "s", "old")

    def broken(path: Path) -> None:
        if path == tmp_path:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(transaction, "fsync_path", broken)
    with pytest.raises(StoreError, match=r"s is whole and in its place, but then Input/output error"):
        write(tmp_path / "s", "new", overwrite=True)
    assert content(tmp_path / "s") == "new"


@pytest.mark.parametrize("stop", [OSError(errno.EIO, "broken"), KeyboardInterrupt()])
def test_a_store_that_waits_for_the_new_one_is_put_back_where_that_cannot_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: BaseException
) -> None:
    write(tmp_path / "s", "old")
    rename = os.rename

    def renamed(a: Path, b: Path) -> None:
        if a.name == "s.partial":
            raise stop
        rename(a, b)

    monkeypatch.setattr(transaction, "_swap_directories", lambda a, b: False)
    monkeypatch.setattr(transaction.os, "rename", renamed)
    with pytest.raises((StoreError, KeyboardInterrupt)):
        write(tmp_path / "s", "new", overwrite=True)
    assert content(tmp_path / "s") == "old"
    assert sorted(os.listdir(tmp_path)) == ["s"]


def test_a_refused_permission_is_said_plainly_only_where_it_is_ours(tmp_path: Path) -> None:
    ours = str(tmp_path / "s.partial" / "c")
    with pytest.raises(StoreError, match="check the directory's permissions"):
        fail(tmp_path / "s", PermissionError(errno.EACCES, "denied", ours))
    with pytest.raises(PermissionError):
        fail(tmp_path / "s", PermissionError(errno.EACCES, "denied", "/elsewhere/model"))
    assert os.listdir(tmp_path) == []
