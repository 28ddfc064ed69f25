"""Conversion and generation on two Dask workers in processes of their own, one of which may be killed in the middle."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import ooc, process
from distributed import Client
from killed_workers import KillAt, writers
from store_models import ModelProblem, ModelSource, random_model

import ooc_mdp
from ooc_mdp.distributed.cluster import local_cluster, silence_dask
from ooc_mdp.errors import ClusterError, InputError, OptionsError, StoreError
from ooc_mdp.io.conversion import ConvertOptions, convert, generate
from ooc_mdp.io.conversion.dask_executor import DaskExecutor
from ooc_mdp.io.conversion.executor import SerialExecutor
from ooc_mdp.store import Store, check_store
from ooc_mdp.store.journal import Journal
from ooc_mdp.store.layout import JOURNAL_FILE
from ooc_mdp.store.partition_writer import PartitionWriter

MODEL = random_model(3, 300, durations=True, labels=True, initial_values=True)
OPTIONS = ConvertOptions(partitions=20, threads=1)


@pytest.fixture
def processes() -> Iterator[Client]:
    """Two workers of one thread each."""
    with silence_dask(), local_cluster(2) as client:
        yield client


def make(kind: str, path: Path, executor: Any) -> Store:
    if kind == "generate":
        return generate(ModelProblem(MODEL), path, OPTIONS, executor=executor)
    return convert(ModelSource(MODEL), path, OPTIONS, executor=executor)


def assert_same(store: Store, serial: Store) -> None:
    assert store.fingerprint == serial.fingerprint
    assert check_store(store).findings == ()


@pytest.mark.parametrize("kind", ["convert", "generate"])
@pytest.mark.parametrize("killed_at", [0, 7])
def test_two_workers_write_the_serial_store_although_one_is_killed(
    kind: str, killed_at: int, tmp_path: Path, processes: Client
) -> None:
    serial = make(kind, tmp_path / "serial", SerialExecutor())
    folder = tmp_path / "begun"
    folder.mkdir()
    processes.register_plugin(KillAt(folder, killed_at))
    store = make(kind, tmp_path / "s", DaskExecutor(processes))
    assert_same(store, serial)
    begun = writers(folder)
    assert {p for _, p in begun} == set(range(20))
    assert os.getpid() not in {pid for pid, _ in begun}
    if killed_at:
        killed, partition = begun[killed_at - 1]
        assert killed not in {pid for pid, _ in begun[killed_at:]}
        assert partition in {p for _, p in begun[killed_at:]}, "nobody wrote the killed worker's partition again"
    else:
        assert len(begun) == 20
    assert sorted(os.listdir(tmp_path)) == ["begun", "s", "serial"]


class Faulty(ModelProblem):
    """Gives rows that sum to 2 in the state 150."""

    def rows(self, states: Any) -> Any:
        rows = super().rows(states)
        if states.size < 100 and 150 in states:
            rows.probabilities[:] *= 2
        return rows


def test_an_error_in_a_worker_is_named_and_leaves_nothing(tmp_path: Path, clusters: Any) -> None:
    with pytest.raises(InputError, match=r"state \d+, action 0: probabilities sum to .*not 1"):
        generate(Faulty(MODEL), tmp_path / "s", OPTIONS, executor=DaskExecutor(clusters[2]))
    assert os.listdir(tmp_path) == []


def test_a_generation_on_workers_that_is_stopped_goes_on_on_threads(tmp_path: Path, clusters: Any) -> None:
    serial = make("generate", tmp_path / "serial", SerialExecutor())

    def stop(step: str, done: int, of: int | None) -> None:
        if step == "partitions" and done == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate(ModelProblem(MODEL), tmp_path / "s", OPTIONS, progress=stop, executor=DaskExecutor(clusters[2]))
    with Journal.resume(tmp_path / "s.partial") as journal:  # type: ignore[union-attr]
        done = len(journal.records)
    assert 6 <= done < 20
    steps: list[tuple[str, int]] = []
    resumed = generate(
        ModelProblem(MODEL),
        tmp_path / "s",
        ConvertOptions(partitions=20, threads=2, resume=True),
        progress=lambda step, now, of: steps.append((step, now)),
    )
    assert steps[0] == ("partitions", done + 1)
    assert_same(resumed, serial)
    assert not (tmp_path / "s" / JOURNAL_FILE).exists()


def test_workers_that_do_not_see_the_directory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="all workers must see the store's directory"):
        PartitionWriter(tmp_path / "elsewhere")._check_root()
    assert os.listdir(tmp_path) == []


def test_the_command_line_starts_workers(tmp_path: Path) -> None:
    source = tmp_path / "model.txt"
    source.write_text("S:0:0:1\nA:0:2\nD:0:0.5:5\nD:1:0.5:5\nS:1:0:1\nA:0:1\nD:0:1:1\n")
    ran = process("convert", source, tmp_path / "s", "--partitions", 2, "--workers", 2)
    assert ran.status == 0, ran.err
    assert ooc("convert", source, tmp_path / "t", "--partitions", 2).status == 0
    assert_same(ooc_mdp.open_store(tmp_path / "s"), ooc_mdp.open_store(tmp_path / "t"))


def test_the_command_line_joins_a_scheduler(tmp_path: Path, processes: Client) -> None:
    address = processes.scheduler.address  # type: ignore[union-attr]
    ran = process("generate", "random", tmp_path / "s", "--states", 200, "--partitions", 8, "--scheduler", address)
    assert ran.status == 0, ran.err
    threads = ooc_mdp.generate("random", tmp_path / "t", {"states": 200}, partitions=8)
    assert_same(ooc_mdp.open_store(tmp_path / "s"), threads)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"workers": 0}, "0 workers"),
        ({"workers": 2.5}, "a number of processes, the address of a Dask scheduler or a Dask client"),
        ({"workers": 2, "device": "cuda:0"}, "workers compute rows on the CPU"),
    ],
)
def test_contradicting_options_are_refused(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(OptionsError, match=said):
        ooc_mdp.generate("random", tmp_path / "s", {"states": 20}, **options)


def test_an_address_of_no_scheduler_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="is no address of a Dask scheduler"):
        ooc_mdp.generate("random", tmp_path / "s", {"states": 20}, workers="there")
