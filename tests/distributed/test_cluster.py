"""Which device each worker of a cluster uses: the GPUs that a word names, and none that another worker uses."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from distributed import Client, Nanny, Scheduler, SpecCluster
from worker_clusters import Clusters, check, solve

import ooc_mdp
from ooc_mdp.backends.cuda.device import device_count
from ooc_mdp.distributed import cluster
from ooc_mdp.distributed import transport as transport_module
from ooc_mdp.distributed.cluster import WorkerInfo, worker_device
from ooc_mdp.distributed.transport import DaskTransport
from ooc_mdp.errors import MissingExtraError, OptionsError
from ooc_mdp.store import Store


def worker(number: int, host: str, *gpus: str) -> WorkerInfo:
    return WorkerInfo(f"tcp://w{number}:1", host, 4, gpus)


TWO_HOSTS = [worker(0, "a", "a0", "a1"), worker(1, "b", "b0", "b1")]
GPUS_OF_THEIR_OWN = [worker(0, "a", "a0"), worker(1, "a", "a1")]
"""By CUDA_VISIBLE_DEVICES of each."""
SAME_GPUS = [worker(0, "a", "a0", "a1"), worker(1, "a", "a1", "a0")]


@pytest.mark.parametrize(
    ("word", "workers", "device"),
    [
        ("cuda:0,1", TWO_HOSTS, "cuda:0,1"),
        ("cuda", TWO_HOSTS, "cuda:0"),
        ("auto", TWO_HOSTS, "cuda:0"),
        ("auto", GPUS_OF_THEIR_OWN, "cuda:0"),
        ("auto", [*TWO_HOSTS, worker(2, "c")], "cpu"),
        ("cpu", SAME_GPUS, "cpu"),
        ("cuda:0", SAME_GPUS, "cuda:0"),  # one each, as they number them
    ],
)
def test_each_worker_uses_the_gpus_that_the_word_names_there(word: str, workers: list[WorkerInfo], device: str) -> None:
    assert worker_device(word, workers) == device


@pytest.mark.parametrize("word", ["cuda:0,1", "cuda:1,0"])
def test_workers_that_would_use_the_same_gpu_are_refused_with_the_remedies(word: str) -> None:
    told = r"w0:1 and tcp://w1:1 on a would use the same GPU, cuda:. of the latter; start one worker on each host .*"
    with pytest.raises(OptionsError, match=told + r"CUDA_VISIBLE_DEVICES of its own, or give --device cpu"):
        worker_device(word, SAME_GPUS)


def test_a_gpu_that_a_worker_does_not_have_is_refused() -> None:
    with pytest.raises(OptionsError, match=r"tcp://w2:1 on c has no cuda:1: CuPy finds 1 CUDA devices there"):
        worker_device("cuda:0,1", [*TWO_HOSTS, worker(2, "c", "c0")])


def test_processes_of_one_machine_that_would_share_its_gpus_are_refused_before_they_start(
    ragged: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ooc_mdp.backends.cuda.device.device_count", lambda: 2)
    monkeypatch.setattr(cluster, "local_cluster", None)  # to call it is an error
    for word, used in (("auto", "cuda:0"), ("cuda", "cuda:0"), ("cuda:0,1", "cuda:0,1")):
        told = f"2 workers on this machine would all use {used}; leave --workers out, .* or give --device cpu"
        with pytest.raises(OptionsError, match=told):
            ooc_mdp.solve(ragged, 0.9, workers=2, device=word)


def test_a_gpu_that_this_machine_lacks_is_refused_before_a_process_starts(
    ragged: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "local_cluster", None)  # to call it is an error
    with pytest.raises((MissingExtraError, OptionsError), match=r"the device cuda:77|no device cuda:77"):
        ooc_mdp.solve(ragged, 0.9, workers=1, device="cuda:77")


@pytest.mark.parametrize(
    ("asked", "told"),
    [({"device": "nonsense"}, "unknown device 'nonsense'"), ({"kernel": "nonsense"}, "unknown kernel 'nonsense'")],
)
def test_an_unknown_device_or_kernel_is_refused_before_workers_are_reached(
    asked: dict[str, str], told: str, ragged: Store, clusters: Clusters, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("connect", "local_cluster", "prepare_workers"):
        monkeypatch.setattr(cluster, name, None)  # to call it is an error
    for workers in (2, "tcp://127.0.0.1:1", clusters[2]):
        with pytest.raises(OptionsError, match=told):
            ooc_mdp.solve(ragged, 0.9, workers=workers, **asked)  # type: ignore[arg-type]


@pytest.mark.gpu
def test_workers_that_see_the_same_gpu_are_refused_before_a_solve(maze: Store, clusters: Clusters) -> None:
    with pytest.raises(OptionsError, match="would use the same GPU, cuda:0 of the latter"):
        ooc_mdp.solve(maze, 0.9, workers=clusters[2], device="cuda:0")


@pytest.mark.gpu
@pytest.mark.parametrize("visible", [["0"], ["0", "1"], ["0,1"]], ids=lambda visible: " ".join(visible))
def test_workers_solve_on_the_gpus_that_they_see(visible: list[str], maze: Store) -> None:
    """One GPU, a worker for each of two, and a worker that has both as one device."""
    if device_count() < len(",".join(visible).split(",")):
        pytest.skip(f"there are {device_count()} GPUs")
    word = "cuda:0,1" if "," in visible[0] else "cuda:0"
    with workers_that_see(visible) as client:
        solution = solve(maze, 0.9, client, device=word, epsilon=1e-4)
    check(maze, 0.9, solution)
    assert [w.device for w in solution.statistics.workers] == [word] * len(visible)


@contextmanager
def workers_that_see(visible: list[str]) -> Iterator[Client]:
    """A process for each of these values of CUDA_VISIBLE_DEVICES."""
    workers = {
        number: {"cls": Nanny, "options": {"nthreads": 1, "env": {"CUDA_VISIBLE_DEVICES": devices}}}
        for number, devices in enumerate(visible)
    }
    scheduler = {"cls": Scheduler, "options": {"dashboard_address": ":0"}}
    with (
        SpecCluster(workers=workers, scheduler=scheduler) as processes,
        Client(processes, set_as_default=False) as client,
    ):
        client.wait_for_workers(len(visible), timeout=300)
        yield client


def test_a_late_joiner_takes_part_once_the_worker_that_uses_its_gpu_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a killed worker is started again on its host before its loss is noticed."""
    workers = {info.address: info for info in (worker(0, "a", "a0"), worker(1, "b", "b0"), worker(2, "a", "a0"))}
    first, second, again = workers
    started = []

    async def run(function: Any, *_: Any, workers: list[str], on_error: str) -> dict[str, Any]:
        return {address: {} for address in workers}

    async def identity(n_workers: int) -> dict[str, Any]:
        return {"workers": list(workers)}

    async def ends(*_: Any) -> None:
        pass

    def submit(function: Any, *_: Any, key: str, workers: list[str], **how: Any) -> Any:
        started.extend(workers)
        return SimpleNamespace(release=lambda: None)

    client: Any = SimpleNamespace(run=run, submit=submit, scheduler=SimpleNamespace(identity=identity))
    monkeypatch.setattr(transport_module, "worker_info", lambda address, facts: workers[address])
    asked: Any = SimpleNamespace(options=SimpleNamespace(device="cuda:0"))
    link = DaskTransport(client, "run", lambda number, host: asked)
    monkeypatch.setattr(link, "request", ends)
    link._start_solver(0, workers[first], asked)
    link._start_solver(1, workers[second], asked)

    async def join() -> tuple[list[int], list[int]]:
        before = await link.discover()
        await link.release(0)
        del workers[first]
        return before, await link.discover()

    assert asyncio.run(join()) == ([], [2])
    assert started == [first, second, again]
