"""Dask clusters: connects to one or starts one on this machine, and compares the versions and devices of its workers.

There is one worker for each host. It uses the GPUs that `--device` names, as one process does
(`backends/cuda/group.py`). No GPU is used by two workers: several workers on one host use the CPU, or each sees GPUs of
its own.
"""

from __future__ import annotations

import logging
import platform
import re
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import dask
from distributed import Client, LocalCluster, Worker
from distributed.diagnostics.plugin import WorkerPlugin

from ooc_mdp.backends.cuda.device import cupy_for
from ooc_mdp.backends.cuda.identity import device_uuids
from ooc_mdp.backends.select import cuda_numbers
from ooc_mdp.errors import ClusterError, OptionsError
from ooc_mdp.runtime import quotas

__all__ = [
    "PACKAGES",
    "WorkerInfo",
    "check_devices",
    "check_staging_directory",
    "client_of",
    "connect",
    "describe",
    "local_cluster",
    "prepare_workers",
    "silence_dask",
    "worker_device",
    "worker_info",
]

_ADDRESS = re.compile(r"((tcp|tls|ws|wss|ucx|ucxx)://)?([^\s/:\[\]]+|\[[^\s/\[\]]+\]):\d+")
_CONNECT_SECONDS = 30.0
_WORKERS_PER_CORE = 8
"""Processes that this machine starts at most, for each of its cores."""


@contextmanager
def client_of(workers: int | str | Client, device: str) -> Iterator[Client]:
    """A client of processes started on this machine for `device`, of the scheduler at an address, or the caller's own.

    Raises
    ------
    OptionsError, ClusterError : the caller's client is asynchronous, or not connected; or as :func:`connect` and
        :func:`local_cluster` raise it.
    """
    if isinstance(workers, Client):
        if workers.asynchronous:
            raise OptionsError("the call returns when all is done: give a client that is not asynchronous")
        if workers.status not in ("running", "connecting"):
            raise ClusterError(f"the client is {workers.status}; give one that is connected to its scheduler")
        yield workers
        return
    if isinstance(workers, int):
        _check_local(workers, device)
    with connect(workers) if isinstance(workers, str) else local_cluster(workers) as client:
        yield client


def _check_local(workers: int, device: str) -> None:
    """Refuse more processes than this machine can run side by side, or that would share a GPU; raises OptionsError."""
    numbers = cuda_numbers(device)
    if numbers and workers > 1:
        raise OptionsError(
            f"{workers} workers on this machine would all use {_word(numbers)}; leave --workers out, since one process "
            f"uses all GPUs of a machine (--device cuda:0,1 is two as one), or give --device cpu"
        )
    if numbers:
        cupy_for(max(numbers))
    cores = quotas.cores()
    most = _WORKERS_PER_CORE * cores
    if workers > most:
        raise OptionsError(
            f"{workers} workers are more processes than the {most} that this machine starts at most, "
            f"{_WORKERS_PER_CORE} for each of its {cores} cores; give --workers {cores}, or the workers of several "
            f"machines (--scheduler)"
        )


@contextmanager
def connect(address: str) -> Iterator[Client]:
    """Connect to a running scheduler; raises ClusterError."""
    if not _ADDRESS.fullmatch(address):
        raise ClusterError(
            f'"{address}" is no address of a Dask scheduler; give it as tcp://HOST:8786 (or tls://HOST:8786), as the '
            f"scheduler prints it when it starts"
        )
    try:
        client = Client(address, timeout=_CONNECT_SECONDS, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise ClusterError(
            f"no Dask scheduler answers at {address} ({error}); start one (dask scheduler) and its workers "
            f"(dask worker {address}), or leave --scheduler out and give --workers"
        ) from error
    except TypeError as error:  # raised by Dask without certificates
        raise ClusterError(
            f"{address} is encrypted, and no certificates are set for this client; set distributed.comm.tls in Dask's "
            f"configuration: ca-file, and cert and key of client ({error})"
        ) from error
    try:
        yield client
    finally:
        _close(client)


@contextmanager
def local_cluster(workers: int) -> Iterator[Client]:
    """Start a cluster of processes on this machine, and end it with the context."""
    options: dict[str, Any] = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": ":0"}
    options |= {"memory_limit": None, "silence_logs": logging.CRITICAL}  # memory is limited by the memory plan
    # Dask's profiler reads the frames of running threads every 10 ms, which can crash a worker.
    no_profiles = {"distributed.worker.profile.enabled": False}
    with (
        tempfile.TemporaryDirectory(prefix="ooc-mdp-workers-", ignore_cleanup_errors=True) as scratch,
        dask.config.set({"temporary-directory": scratch} | no_profiles),
        _start(partial(LocalCluster, **options)) as cluster,
    ):
        client = Client(cluster, set_as_default=False)
        client.register_plugin(_ChildPlugin())
        try:
            yield client
        finally:
            _close(client)


def _start(make: Callable[[], Any]) -> Any:
    """Start a cluster of processes; raises ClusterError where they do not start."""
    try:
        return make()
    except (RuntimeError, OSError) as error:
        raise ClusterError(
            f"the worker processes did not start ({error}); each imports the calling script, so what a script does "
            f"must stand under if __name__ == '__main__':"
        ) from None


@contextmanager
def silence_dask() -> Iterator[None]:
    """Suppress Dask's messages in this process: what ends a solve is reported in one line."""
    loggers = [logging.getLogger(f"distributed.{name}") for name in ("client", "worker", "scheduler", "core")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


class _ChildPlugin(WorkerPlugin):
    """Makes workers ignore signals and silences their log: the solve's own process ends them and reports errors.

    Ctrl-C in a terminal, and a SIGTERM of `timeout` or a batch system, reach all processes of the group: the solve
    stops then with what its workers know, and Dask ends them by other means.
    """

    name = "ooc_mdp-child"

    def setup(self, worker: Worker) -> None:
        """Ignore signals; Dask calls it on the worker's main thread."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        logging.getLogger("distributed.worker").setLevel(logging.CRITICAL)


def _close(client: Client) -> None:
    """Disconnect from a cluster whose scheduler may have ended."""
    with suppress(OSError, TimeoutError):
        client.close(timeout=5)


_EXACT = ("ooc-mdp", "distributed")
"""Packages whose versions must be equal in all processes."""
_MINOR = ("python", "numpy", "numba", "zarr", "numcodecs")
"""Packages whose versions must be equal except for the last number."""
PACKAGES = (*_EXACT, *_MINOR[1:])
"""Packages whose versions workers report."""


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """Where a worker runs."""

    address: str
    name: str
    """Name of the machine."""
    cores: int
    devices: tuple[str, ...]
    """Unique identifiers of the CUDA devices that the worker sees, in the order of their numbers there."""
    differs: list[str] = field(default_factory=list)
    """Versions that differ from those of this process, in words."""


def worker_info(address: str, facts: dict[str, Any]) -> WorkerInfo:
    """Return the worker at an address, from the answer of `describe` there."""
    ours, theirs = describe(PACKAGES)["versions"], facts["versions"]
    differs = [
        f"{address} has {package} {theirs[package]}, here is {version}"
        for package, version in ours.items()
        if not _compatible(package, theirs[package], version)
    ]
    return WorkerInfo(address, facts["host"], facts["cores"], facts["devices"], differs)


def _compatible(package: str, theirs: str, ours: str) -> bool:
    if package in _EXACT:
        return theirs == ours
    return theirs.split(".")[:2] == ours.split(".")[:2]


def describe(packages: tuple[str, ...], dask_worker: Worker | None = None) -> dict[str, Any]:
    """Return versions and devices of the process that runs this."""
    from importlib.metadata import PackageNotFoundError, version

    def version_of(package: str) -> str:
        try:
            return version(package)
        except PackageNotFoundError:
            return "none"

    return {
        "versions": {"python": platform.python_version(), **{p: version_of(p) for p in packages}},
        "host": socket.gethostname(),
        "cores": quotas.cores(),
        "devices": device_uuids(),
    }


def prepare_workers(client: Client) -> list[WorkerInfo]:
    """Return the workers of a cluster, in the order of their addresses.

    Raises
    ------
    ClusterError : there are none, one lacks this package, or versions differ.
    """
    found: dict[str, Any] = client.run(describe, PACKAGES, on_error="return")
    hosts = []
    for address, answer in sorted(found.items()):
        if isinstance(answer, dict):
            hosts.append(worker_info(address, answer))
        elif not isinstance(answer, OSError):  # otherwise it was lost meanwhile
            raise ClusterError(
                f"the worker {address} cannot run ooc-mdp ({type(answer).__name__}: {answer}); install the same "
                f"version of it on all machines"
            )
    if not hosts:
        raise ClusterError("the cluster has no workers; start some (dask worker SCHEDULER-ADDRESS)")
    wrong = [text for host in hosts for text in host.differs]
    if wrong:
        more = f" (and {len(wrong) - 3} more)" if len(wrong) > 3 else ""
        raise ClusterError(f"versions differ: {'; '.join(wrong[:3])}{more}; install the same on all machines")
    return hosts


def check_staging_directory(client: Client, workers: list[WorkerInfo], directory: str) -> None:
    """Refuse a directory that some worker cannot write; it is created where only its last part is missing.

    Raises
    ------
    OptionsError : names the first such node, the system's reason and the remedy.
    """
    errors = client.run(_write_error, directory, on_error="ignore")
    for worker in workers:
        if errors.get(worker.address) is not None:
            raise OptionsError(
                f"the staging directory {directory} cannot be written on {worker.name} ({errors[worker.address]}); "
                f"create it on every node for the workers' user, or give another one on the nodes' own disks (--stage)"
            )


def _write_error(directory: str) -> str | None:
    """Return why no file can be created in a directory, on the worker that runs this."""
    try:
        Path(directory).mkdir(exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            return None
    except OSError as error:
        return error.strerror or str(error)


def worker_device(device: str, workers: Sequence[WorkerInfo]) -> str:
    """Return the device of each worker: "cpu", or "cuda:" and the numbers of GPUs as the worker itself sees them.

    "auto" is the first GPU where all workers see one.

    Raises
    ------
    OptionsError : as :func:`check_devices` raises it.
    """
    numbers = cuda_numbers(device, min(len(worker.devices) for worker in workers))
    check_devices(numbers, workers)
    return _word(numbers)


def check_devices(numbers: Sequence[int], workers: Sequence[WorkerInfo]) -> None:
    """Refuse workers that do not see one of the GPUs with these numbers, or that would use the same GPU.

    Raises
    ------
    OptionsError : names the workers and the remedy.
    """
    users: dict[str, WorkerInfo] = {}
    for worker in workers:
        for number in numbers:
            if number >= len(worker.devices):
                raise OptionsError(
                    f"the worker {worker.address} on {worker.name} has no cuda:{number}: CuPy finds "
                    f"{len(worker.devices)} CUDA devices there; give GPUs that every worker has, or --device cpu"
                )
            other = users.setdefault(worker.devices[number], worker)
            if other is not worker:
                raise OptionsError(
                    f"the workers {other.address} and {worker.address} on {worker.name} would use the same GPU, "
                    f"cuda:{number} of the latter; start one worker on each host (with --device cuda:0,1 it uses two "
                    f"GPUs as one), or start each with a CUDA_VISIBLE_DEVICES of its own, or give --device cpu"
                )


def _word(numbers: Sequence[int]) -> str:
    return f"cuda:{','.join(map(str, numbers))}" if numbers else "cpu"
