"""Copies of partitions on the nodes' own disks: loads read whole copies, and no solve depends on them."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from command_line import ooc, refused
from worker_clusters import Clusters, check, solve

import ooc_mdp
from ooc_mdp.distributed import endpoint, staging
from ooc_mdp.distributed.endpoint import SolverPlugin
from ooc_mdp.distributed.messages import StagingCounts, Status
from ooc_mdp.distributed.staging import NodeStaging
from ooc_mdp.distributed.worker import run_worker
from ooc_mdp.errors import DamagedStoreError, MemoryBudgetError, OptionsError, StoreError
from ooc_mdp.model.solution import Outcome
from ooc_mdp.model.statistics import WorkerStatistics
from ooc_mdp.model.table import Table
from ooc_mdp.store import Store
from ooc_mdp.store.layout import READ_FIELDS
from ooc_mdp.store.mark import MARK_FILE
from ooc_mdp.store.seal import digest_of


@pytest.fixture
def local(tmp_path: Path) -> Path:
    """A directory of the node."""
    path = tmp_path / "local"
    path.mkdir()
    return path


@pytest.fixture
def node(local: Path, ragged: Store) -> Iterator[NodeStaging]:
    """One worker's part in the staging of the ragged table."""
    made = NodeStaging(str(local / ragged.fingerprint))
    yield made
    made.close()


def files_in(directory: Path) -> list[str]:
    files = [path for path in directory.rglob("*") if path.is_file() and path.name != MARK_FILE]
    return sorted(str(path.relative_to(directory)) for path in files)


def chunks_of(store: Store, *partitions: int) -> list[str]:
    return sorted(store.chunk_name(name, p) for name in READ_FIELDS if name in store.fields for p in partitions)


def assert_same_table(store: Store, other: Table, p: int) -> None:
    expected, found = store.read(p)[0], other.read(p)[0]
    for name in READ_FIELDS:
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


create = open


class FullDisk:
    """In place of a module's `open`: the files that are created have room for so many bytes together."""

    def __init__(self, room: int) -> None:
        self.room = room

    def __call__(self, path: Any, mode: str) -> Any:
        file = create(path, mode)
        return file if mode == "rb" else FileOfFullDisk(file, self)


class FileOfFullDisk:
    def __init__(self, file: Any, disk: FullDisk) -> None:
        self.file, self.disk = file, disk

    def __enter__(self) -> FileOfFullDisk:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def write(self, block: bytes) -> None:
        self.disk.room -= len(block)
        if self.disk.room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.file.write(block)


def test_copied_partitions_are_loaded_from_the_node_and_others_from_the_store(node: NodeStaging, ragged: Store) -> None:
    assert node.copy(ragged, [0, 3]) is None
    assert files_in(node.path) == chunks_of(ragged, 0, 3)
    for name in chunks_of(ragged, 0, 3):
        assert (node.path / name).read_bytes() == (ragged.path / name).read_bytes()
    opened = node.over(ragged)
    for p in (0, 1, 3):
        assert_same_table(ragged, opened, p)
    size = ragged.chunk_bytes
    assert node.counts == StagingCounts(size[0] + size[3], size[0] + size[3], size[1])


def test_frames_for_a_device_are_loaded_from_the_node(node: NodeStaging, ragged: Store) -> None:
    node.copy(ragged, [2])
    buffers = np.zeros((2, ragged.facts.frame_buffer_bytes), np.uint8)
    assert node.over(ragged).read_frames(2, buffers[0]) == ragged.read_frames(2, buffers[1])
    np.testing.assert_array_equal(buffers[0], buffers[1])
    assert node.counts.bytes_read_staged == ragged.chunk_bytes[2]
    assert node.counts.bytes_read_shared == 0


@pytest.mark.parametrize("damage", ["changed", "truncated", "missing"])
def test_a_damaged_copy_is_read_once_and_the_store_from_then_on(
    damage: str, node: NodeStaging, ragged: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.copy(ragged, [4])
    copy = node.path / ragged.chunk_name("rewards", 4)
    content = bytearray(copy.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "missing":
        copy.unlink()
    else:
        copy.write_bytes(content if damage == "changed" else content[:-1])
    opened = node.over(ragged)
    tries = []
    read = Store.read_into
    monkeypatch.setattr(Store, "read_into", lambda self, *how: tries.append(self is ragged) or read(self, *how))
    for _ in range(2):
        assert_same_table(ragged, opened, 4)
    # Each comparison reads the store itself first.
    assert tries == [True, False, True, True, True]
    assert node.counts.bytes_read_staged == 0
    assert node.counts.bytes_read_shared == 2 * ragged.chunk_bytes[4]


def test_damage_of_the_shared_store_is_an_error_with_and_without_a_copy(
    node: NodeStaging, tmp_path: Path, clusters: Clusters
) -> None:
    store = ooc_mdp.generate("GW-24x4", tmp_path / "s", {"seed": 1}, partitions=4, threads=1)
    (store.path / store.chunk_name("rewards", 1)).unlink()
    with pytest.raises(DamagedStoreError, match="field rewards of partition 1 is missing"):
        node.over(store).read(1)
    warning = node.copy(store, [0, 1])
    assert warning is not None
    assert "ended after 1 of 2 partitions" in warning
    assert "No such file" in warning


def test_a_file_that_does_not_fit_leaves_nothing_and_a_warning_with_numbers(
    node: NodeStaging, ragged: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "open", FullDisk(int(ragged.chunk_bytes[:2].sum()) + 10), raising=False)
    warning = node.copy(ragged, range(12))
    assert warning is not None
    assert re.fullmatch(
        rf"staging to {node.path.parent} \([\d.]+ .iB free\) ended after 2 of 12 partitions and [\d.]+ K?i?B: "
        r"\[Errno 28\] No space left on device; the others are read from the shared store",
        warning,
    )
    assert set(chunks_of(ragged, 0, 1)) <= set(files_in(node.path)) < set(chunks_of(ragged, 0, 1, 2))
    for name in files_in(node.path):
        assert (node.path / name).read_bytes() == (ragged.path / name).read_bytes()
    assert_same_table(ragged, node.over(ragged), 2)
    assert node.counts.bytes_read_shared == ragged.chunk_bytes[2]


def test_the_last_worker_of_a_node_removes_the_copies(local: Path, ragged: Store) -> None:
    one, other = (NodeStaging(str(local / ragged.fingerprint)) for _ in range(2))
    one.copy(ragged, [0])
    one.close()
    opened = other.over(ragged)
    assert_same_table(ragged, opened, 0)
    assert other.counts == StagingCounts(0, int(ragged.chunk_bytes[0]), 0)
    other.copy(ragged, [0, 1])
    assert files_in(other.path) == chunks_of(ragged, 0, 1)
    other.close()
    assert list(local.iterdir()) == []
    assert_same_table(ragged, opened, 0)  # as a load that is under way while the worker closes
    other.close()


def test_the_end_of_a_solve_stops_a_copy_in_the_middle_of_a_file(
    local: Path, ragged: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = NodeStaging(str(local / ragged.fingerprint))
    closing: list[threading.Thread] = []

    class Closing(FileOfFullDisk):
        def write(self, block: bytes) -> None:
            super().write(block)
            closing.append(threading.Thread(target=node.close))
            closing[0].start()
            while not node._closing.is_set():
                pass

    def opened(path: Any, mode: str) -> Any:
        file = create(path, mode)
        return file if mode == "rb" else Closing(file, FullDisk(99))

    monkeypatch.setattr(staging, "_BLOCK", 8)
    monkeypatch.setattr(staging, "open", opened, raising=False)
    assert node.copy(ragged, range(12)) is None
    closing[0].join()
    assert list(local.iterdir()) == []
    assert node.counts == StagingCounts()


def test_a_worker_that_cannot_create_its_directory_reads_the_shared_store(local: Path, ragged: Store) -> None:
    node = NodeStaging(str(local / "missing" / ragged.fingerprint))
    assert_same_table(ragged, node.over(ragged), 0)
    assert node.counts.bytes_read_shared == ragged.chunk_bytes[0]
    warning = node.copy(ragged, [0])
    assert warning is not None
    assert "ended after 0 of 1 partitions and 0 B: [Errno 2] No such file or directory" in warning
    node.close()


def test_a_partition_is_read_ahead_from_where_it_will_be_loaded(
    node: NodeStaging, ragged: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.copy(ragged, [1])
    opened = node.over(ragged)
    ahead = []
    monkeypatch.setattr(Store, "prefetch", lambda self, p: ahead.append((p, self is ragged)))
    for p in (0, 1):
        opened.prefetch(p)
    assert ahead == [(0, True), (1, False)]


def test_the_dashboard_has_bytes_staged_and_read_and_the_hit_rate() -> None:
    async def ask() -> None:
        plugin, worker = SolverPlugin(), SimpleNamespace(handlers={}, metrics={})
        plugin.setup(worker)  # type: ignore[arg-type]
        plugin.open("run", 0)
        mailbox = plugin.mailbox("run")
        assert mailbox is not None
        counts = StagingCounts()
        mailbox.publish(Status(staging=counts))
        counts.bytes_staged, counts.bytes_read_staged, counts.bytes_read_shared = 1 << 20, 2 << 20, 3 << 20
        titles = ("MiB staged", "MiB read staged", "MiB read shared")
        assert [worker.metrics[f"ooc-mdp {title}"](worker) for title in titles] == [1.0, 2.0, 3.0]
        assert "ooc-mdp hit rate" in worker.metrics

    asyncio.run(ask())


@pytest.fixture
def staged_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Solvers begin when their partitions have been copied, as far as that goes."""
    copied: dict[NodeStaging, threading.Event] = {}
    copy = NodeStaging.copy

    def copying(self: NodeStaging, *what: Any) -> str | None:
        try:
            return copy(self, *what)
        finally:
            copied.setdefault(self, threading.Event()).set()

    def waiting(*how: Any) -> str:
        assert copied.setdefault(how[-1], threading.Event()).wait(300)
        return run_worker(*how)

    monkeypatch.setattr(NodeStaging, "copy", copying)
    monkeypatch.setattr(endpoint, "run_worker", waiting)


def test_workers_of_one_node_load_all_partitions_from_their_common_copies(
    staged_first: None, ragged: Store, clusters: Clusters, local: Path
) -> None:
    notes: list[str] = []
    solution = solve(ragged, 0.9, clusters[2], epsilon=1e-6, cache="30%", stage=local, note=notes.append)
    check(ragged, 0.9, solution, size=100.0)
    workers = solution.statistics.workers
    assert sum(w.bytes_staged for w in workers) == ragged.chunk_bytes.sum()
    assert all(w.bytes_staged > 0 and w.bytes_read_shared == 0 for w in workers)
    assert all(w.bytes_read_staged >= w.bytes_read > 0 for w in workers)
    assert not any("staging" in note for note in notes)
    assert list(local.iterdir()) == []


def test_partitions_that_move_are_read_where_they_are(
    staged_first: None, maze: Store, clusters: Clusters, local: Path
) -> None:
    solution = solve(maze, 0.9, clusters[2], epsilon=1e-6, cache="30%", stage=local, rebalance=True)
    check(maze, 0.9, solution)
    assert sum(w.bytes_staged for w in solution.statistics.workers) == maze.chunk_bytes.sum()
    assert list(local.iterdir()) == []


def test_a_solve_does_not_wait_for_its_staging(
    ragged: Store, clusters: Clusters, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each worker has one thread, and its copies begin when the solve is over."""
    copy = NodeStaging.copy

    def late(self: NodeStaging, *what: Any) -> str | None:
        assert self._closing.wait(300)
        return copy(self, *what)

    monkeypatch.setattr(NodeStaging, "copy", late)
    solution = solve(ragged, 0.9, clusters[2], epsilon=1e-6, stage=local)
    check(ragged, 0.9, solution, size=100.0)
    for w in solution.statistics.workers:
        assert (w.bytes_staged, w.bytes_read_staged) == (0, 0)
        assert w.bytes_read_shared >= w.bytes_read > 0
    assert list(local.iterdir()) == []


def test_a_full_disk_is_one_warning_of_a_worker_and_the_solve_continues(
    staged_first: None, ragged: Store, clusters: Clusters, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "open", FullDisk(int(ragged.chunk_bytes[0]) + 1), raising=False)
    notes: list[str] = []
    solution = solve(ragged, 0.9, clusters[1], epsilon=1e-6, stage=local, note=notes.append)
    check(ragged, 0.9, solution, size=100.0)
    (warning,) = [note for note in notes if "staging" in note]
    assert re.match(r"worker 0 on .*: staging to .* ended after 1 of 12 partitions and .*No space left", warning)
    (worker,) = solution.statistics.workers
    assert worker.bytes_staged == ragged.chunk_bytes[0]
    assert worker.bytes_read_shared > 0
    assert list(local.iterdir()) == []


@pytest.mark.parametrize(
    ("how", "error"),
    [({"cache": "1B"}, MemoryBudgetError), ({"time_limit": 1e-9}, None)],
    ids=["failed", "stopped"],
)
def test_no_copies_are_left_of_a_solve_that_fails_or_is_stopped(
    how: dict[str, Any],
    error: type[Exception] | None,
    staged_first: None,
    ragged: Store,
    clusters: Clusters,
    local: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes: list[Closing] = []

    class Closing(NodeStaging):
        def __init__(self, path: str) -> None:
            super().__init__(path)
            self.ended = threading.Event()
            nodes.append(self)

        def close(self) -> None:
            super().close()
            self.ended.set()

    monkeypatch.setattr(endpoint, "NodeStaging", Closing)
    if error is None:
        assert solve(ragged, 0.9, clusters[2], stage=local, **how).outcome is Outcome.TIME_LIMIT
    else:
        with pytest.raises(error):
            solve(ragged, 0.9, clusters[2], stage=local, **how)
    assert [node.ended.wait(300) for node in nodes] == [True, True]  # for which a solve that fails does not wait
    assert list(local.iterdir()) == []


def test_a_directory_that_cannot_be_written_is_refused_before_the_solve(
    ragged: Store, clusters: Clusters, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    for directory, why in ((tmp_path / "file", "File exists"), (tmp_path / "no" / "such", "No such file")):
        said = rf"the staging directory {directory} cannot be written on \S+ \({why}.*\); create it on every node"
        with pytest.raises(OptionsError, match=said):
            solve(ragged, 0.9, clusters[2], stage=directory, output=tmp_path / "r")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("link", [False, True])
def test_a_folder_that_is_not_ours_is_neither_filled_nor_removed(maze: Store, tmp_path: Path, link: bool) -> None:
    (tmp_path / "mine").mkdir()
    if link:
        (tmp_path / "staged").symlink_to(tmp_path / "mine")
    else:
        (tmp_path / "mine").rename(tmp_path / "staged")
        (tmp_path / "staged" / "thesis").write_text("dear")
    before = sorted(tmp_path.rglob("*"))
    node = NodeStaging(str(tmp_path / "staged"))
    warning = node.copy(maze, [0])
    node.close()
    assert warning is not None
    assert "that ooc-mdp did not make" in warning
    assert sorted(tmp_path.rglob("*")) == before


def test_a_directory_is_created_where_only_its_last_part_is_missing(
    ragged: Store, clusters: Clusters, tmp_path: Path
) -> None:
    solution = solve(ragged, 0.9, clusters[1], stage=tmp_path / "new")
    assert solution.outcome.proved
    assert list((tmp_path / "new").iterdir()) == []


def test_what_cannot_be_staged_is_refused(ragged: Store, clusters: Clusters, local: Path) -> None:
    table = ooc_mdp.open_problem("single-pendulum", {"grid": "8,8"}, partitions=2)
    with pytest.raises(OptionsError, match="computed, not read from disk: there is nothing to stage"):
        ooc_mdp.solve(table, 0.9, workers=clusters[1], stage=local)
    with pytest.raises(StoreError, match="would lie inside"):
        solve(ragged, 0.9, clusters[1], stage=ragged.path)
    assert "--stage" in refused("solve", ragged.path, "--discount", 0.9, "--device", "cpu", "--stage", local)


def test_results_of_workers_that_counted_no_staging_can_be_read(
    ragged: Store, clusters: Clusters, tmp_path: Path
) -> None:
    solve(ragged, 0.9, clusters[2], output=tmp_path / "r")
    document = json.loads((tmp_path / "r" / "zarr.json").read_bytes())
    attributes = document["attributes"]
    for worker in attributes["solution"]["statistics"]["workers"]:
        for name in ("bytes_staged", "bytes_read_staged", "bytes_read_shared"):
            assert worker.pop(name) == 0
    attributes["digest"] = digest_of(attributes)
    (tmp_path / "r" / "zarr.json").write_text(json.dumps(document))
    workers = ooc_mdp.open_result(tmp_path / "r").solution.statistics.workers
    assert [type(w) for w in workers] == [WorkerStatistics] * 2
    assert workers[0].bytes_staged == 0


@pytest.mark.slow
def test_the_command_line_stages_for_worker_processes_and_reports_it(maze: Store, local: Path) -> None:
    how = ("--workers", 2, "--device", "cpu", "--worker-timeout", 300, "--stage", local)
    ran = ooc("solve", maze.path, "--discount", 0.9, *how)
    assert ran.status == 0, ran.err
    assert "read staged" in ran.out
    assert list(local.iterdir()) == []
