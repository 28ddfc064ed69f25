"""The Dask cluster that a solve runs on: one that is there, or one of this machine; and what its workers are.

With dask-cuda installed, a machine's own cluster is its LocalCUDACluster, one worker a GPU; else one of processes, each
told which GPU is its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from distributed import Client, LocalCluster, wait
from distributed.comm.core import CommClosedError
from distributed.protocol.serialize import to_serialize

from ooc_mdp.distributed.endpoint import OPERATION, SolverPlugin, describe, open_mailbox, run_solver, unwrapped
from ooc_mdp.distributed.solver import SolverOptions
from ooc_mdp.errors import OocMdpError, OptionsError
from ooc_mdp.memory_plan import MemoryPlan

__all__ = ["ClusterError", "DaskLink", "Host", "connect", "devices_of", "local_cluster", "make_ready", "use_devices"]

_EXACT = ("ooc-mdp", "distributed")
"""Packages of which all processes must have the same version."""
_MINOR = ("python", "numpy", "numba", "zarr", "numcodecs")
"""The same, apart from the last number of the version."""
_CONNECT_SECONDS = 30.0
_PROBE_SECONDS = 3.0
_END_SECONDS = 10.0
"""In which solvers end once they are told to."""


class ClusterError(OocMdpError):
    """The cluster cannot be reached, or its workers do not fit together."""


@dataclass(frozen=True, slots=True)
class Host:
    """Where a worker runs."""

    address: str
    name: str
    """Of the machine."""
    cores: int
    devices: int
    """CUDA devices that it sees."""
    visible: str | None
    """CUDA_VISIBLE_DEVICES."""


@contextmanager
def connect(address: str) -> Iterator[Client]:
    """A client of a scheduler that is there; raises ClusterError."""
    try:
        client = Client(address, timeout=_CONNECT_SECONDS, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise ClusterError(
            f"no Dask scheduler answers at {address} ({error}); start one (dask scheduler) and its workers "
            f"(dask worker {address}), or leave --scheduler out and give --workers"
        ) from error
    try:
        yield client
    finally:
        _close(client)


@contextmanager
def local_cluster(workers: int, devices: int) -> Iterator[Client]:
    """A cluster of processes on this machine, for as long as it is needed; `devices` is how many GPUs they use."""
    options: dict[str, Any] = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": ":0"}
    options |= {"memory_limit": None, "silence_logs": logging.ERROR}  # the memory plan is what limits memory
    if devices:
        try:
            from dask_cuda import LocalCUDACluster as Cluster

            options["CUDA_VISIBLE_DEVICES"] = list(range(workers))
        except ImportError:
            Cluster = LocalCluster
    else:
        Cluster = LocalCluster
    with Cluster(**options) as cluster:
        client = Client(cluster, set_as_default=False)
        try:
            yield client
        finally:
            _close(client)


def _close(client: Client) -> None:
    """Leave a cluster, whose scheduler may be gone."""
    with suppress(OSError, TimeoutError):
        client.close(timeout=5)


def make_ready(client: Client) -> list[Host]:
    """Have the workers take part, and say where they run.

    Raises
    ------
    ClusterError : there are none, one lacks this package, or versions differ.
    """
    packages = (*_EXACT, *_MINOR[1:])
    answers: dict[str, Any] = client.run(describe, packages, on_error="return")
    found = {address: answer for address, answer in answers.items() if isinstance(answer, dict)}
    for address, error in answers.items():
        if address not in found and not isinstance(error, OSError):  # else it has gone meanwhile
            raise ClusterError(
                f"the worker {address} cannot run ooc-mdp ({type(error).__name__}: {error}); install the same version "
                f"of it on all machines"
            )
    if not found:
        raise ClusterError("the cluster has no workers; start some (dask worker SCHEDULER-ADDRESS)")
    here = describe(packages)["versions"]
    wrong = [
        f"{address} has {package} {facts['versions'][package]}, here is {ours}"
        for address, facts in sorted(found.items())
        for package, ours in here.items()
        if not _alike(package, facts["versions"][package], ours)
    ]
    if wrong:
        more = f" (and {len(wrong) - 3} more)" if len(wrong) > 3 else ""
        raise ClusterError(f"versions differ: {'; '.join(wrong[:3])}{more}; install the same on all machines")
    client.register_plugin(SolverPlugin())
    return [Host(a, f["host"], f["cores"], f["devices"], f["visible"]) for a, f in sorted(found.items())]


def _alike(package: str, theirs: str, ours: str) -> bool:
    if package in _EXACT:
        return theirs == ours
    return theirs.split(".")[:2] == ours.split(".")[:2]


def devices_of(hosts: list[Host], device: str) -> list[str]:
    """The device of each worker: `device` says "cpu", "auto", or "cuda" for a GPU each.

    Workers of one machine that see the same GPUs take one after the other.

    Raises
    ------
    OptionsError : one GPU by its number is asked of several workers, or there are fewer than workers on a machine.
    """
    if device == "cpu" or (device == "auto" and not all(h.devices for h in hosts)):
        return ["cpu"] * len(hosts)
    if device not in ("auto", "cuda"):
        if len(hosts) == 1:
            return [device]
        raise OptionsError(f"{device} is one device, and there are {len(hosts)} workers; give --device cuda, one each")
    taken: dict[tuple[str, str | None], int] = {}
    chosen = []
    for host in hosts:
        place = (host.name, host.visible)
        number = taken.get(place, 0)
        taken[place] = number + 1
        if number >= host.devices:
            raise OptionsError(
                f"machine {host.name} has more workers than the {host.devices} CUDA devices that they see; start one "
                f"worker a device, or give --device cpu"
            )
        chosen.append(f"cuda:{number}")
    return chosen


class DaskLink:
    """Reaches solvers over a client's connections, straight to the workers where that is possible.

    Parameters
    ----------
    run : name of the solve, which no other has.
    """

    def __init__(self, client: Client, run: str) -> None:
        self._client, self._run = client, run
        self._addresses: dict[int, str] = {}
        self._tasks: dict[int, Any] = {}
        self._direct = True

    def start(self, solvers: dict[int, tuple[str, SolverOptions]]) -> None:
        """Start solvers at addresses."""
        addresses = [address for address, _ in solvers.values()]
        self._client.run(open_mailbox, self._run, workers=addresses, on_error="ignore")
        for number, (address, asked) in solvers.items():
            self._addresses[number] = address
            self._tasks[number] = self._client.submit(
                run_solver,
                self._run,
                asked,
                key=f"ooc-mdp-solver-{number}-{self._run}",
                workers=[address],
                allow_other_workers=False,
                pure=False,
                retries=0,
            )
        self._direct = all(self._client.sync(self._answers, number) for number in solvers)

    async def _answers(self, number: int) -> bool:
        try:
            await self.ask(number, "status", (-1, 0.0), _PROBE_SECONDS)
        except (OSError, TimeoutError):
            return False
        return True

    async def ask(self, number: int, verb: str, argument: Any, timeout: float) -> Any:
        """The solver's answer; OSError or TimeoutError where there is none."""
        address = self._addresses[number]
        message = {"run": self._run, "verb": verb, "argument": to_serialize(argument)}
        waiting = timeout + (argument[1] if verb == "status" else 0.0)
        try:
            if self._direct:
                asked = getattr(self._client.rpc(address), OPERATION)(**message)
            else:
                scheduler: Any = self._client.scheduler
                asked = scheduler.proxy(msg={"op": OPERATION, **message}, worker=address)
            return unwrapped(await asyncio.wait_for(asked, waiting))
        except CommClosedError as error:
            raise OSError(str(error)) from error

    async def lost(self, number: int) -> bool:
        """Whether the scheduler has lost the worker, or cannot be asked any more."""
        if self.broken() is not None:
            return True
        scheduler: Any = self._client.scheduler
        try:
            found = await asyncio.wait_for(scheduler.identity(n_workers=-1), _PROBE_SECONDS)
        except (OSError, TimeoutError):
            return False  # nothing is known: patience decides
        return self._addresses[number] not in found["workers"]

    def failure(self, number: int) -> BaseException | None:
        """What the solver's task raised."""
        task = self._tasks[number]
        if task.status == "error":
            error: BaseException = task._state.exception
            return error
        return None

    async def dismiss(self, number: int) -> None:
        """Let the task go, and tell a solver that is alive after all that nobody needs it."""
        with suppress(OSError, TimeoutError):
            self._tasks[number].release()
            await self.ask(number, "expel", None, _PROBE_SECONDS)

    def broken(self) -> str | None:
        """Why the cluster cannot be reached."""
        if self._client.status in ("running", "connecting"):
            return None
        return "the connection to the Dask scheduler is lost"

    def finish(self, numbers: list[int]) -> list[MemoryPlan]:
        """Wait for solvers that were told that it is over; what memory they had planned."""
        tasks = [self._tasks[number] for number in numbers]
        with suppress(TimeoutError), self._client.as_current():
            wait(tasks, timeout=_END_SECONDS)
        done = [task for task in tasks if task.status == "finished"]
        return [plan for _, plan in self._client.gather(done) if plan is not None]


def use_devices(device: str, workers: int) -> int:
    """How many GPUs a cluster of this machine is to use, for the solve's `--device`; raises OptionsError."""
    if device == "cpu":
        return 0
    from ooc_mdp.kernels.cuda import device_count

    devices = device_count()
    if device == "auto" and devices < workers:
        return 0
    return workers
