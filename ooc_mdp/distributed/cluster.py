"""The Dask cluster that a solve runs on: one that is there, or one of this machine; and the link to its solvers.

With dask-cuda installed, a machine's own cluster is its LocalCUDACluster, one worker a GPU; else one of processes, each
told which GPU is its own.
"""

from __future__ import annotations

import asyncio
import logging
import re
import signal
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import dask
from distributed import Client, KilledWorker, LocalCluster, Worker, wait
from distributed.comm.core import CommClosedError
from distributed.diagnostics.plugin import WorkerPlugin
from distributed.protocol.serialize import to_serialize

from ooc_mdp.distributed.endpoint import OPERATION, SolverPlugin, describe, open_mailbox, run_solver, unwrapped
from ooc_mdp.distributed.hosts import PACKAGES, Host, host_of
from ooc_mdp.distributed.lending import Borrowed, Lent, borrow, here
from ooc_mdp.distributed.solver import SolverOptions
from ooc_mdp.errors import ClusterError, OptionsError
from ooc_mdp.runtime.memory_plan import MemoryPlan

__all__ = [
    "DaskLink",
    "connect",
    "local_cluster",
    "make_ready",
    "quiet",
]

_ADDRESS = re.compile(r"((tcp|tls|ws|wss|ucx|ucxx)://)?([^\s/:\[\]]+|\[[^\s/\[\]]+\]):\d+")
_CONNECT_SECONDS = 30.0
_PROBE_SECONDS = 3.0
_ATTEMPTS = 5
_END_SECONDS = 10.0
"""In which solvers end once they are told to."""


@contextmanager
def connect(address: str) -> Iterator[Client]:
    """A client of a scheduler that is there; raises ClusterError."""
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
    except TypeError as error:  # what Dask raises where it lacks certificates
        raise ClusterError(
            f"{address} is encrypted, and no certificates are set for this client; set distributed.comm.tls in Dask's "
            f"configuration: ca-file, and cert and key of client ({error})"
        ) from error
    try:
        yield client
    finally:
        _close(client)


@contextmanager
def local_cluster(workers: int, devices: int) -> Iterator[Client]:
    """A cluster of processes on this machine, for as long as it is needed; `devices` is how many GPUs they use."""
    options: dict[str, Any] = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": ":0"}
    options |= {"memory_limit": None, "silence_logs": logging.CRITICAL}  # the memory plan is what limits memory
    if devices:
        try:
            from dask_cuda import LocalCUDACluster as Cluster

            options["CUDA_VISIBLE_DEVICES"] = list(range(workers))
        except ImportError:
            Cluster = LocalCluster
    else:
        Cluster = LocalCluster
    # Dask's profiler walks the frames of working threads every 10 ms, while they work on; that may end a worker.
    no_profiles = {"distributed.worker.profile.enabled": False}
    with (
        tempfile.TemporaryDirectory(prefix="ooc-mdp-workers-", ignore_cleanup_errors=True) as scratch,
        dask.config.set({"temporary-directory": scratch} | no_profiles),
        _begun(partial(Cluster, **options)) as cluster,
    ):
        client = Client(cluster, set_as_default=False)
        client.register_plugin(_ChildPlugin())
        try:
            yield client
        finally:
            _close(client)


def _begun(make: Callable[[], Any]) -> Any:
    """A cluster of new processes; ClusterError where they do not start."""
    try:
        return make()
    except (RuntimeError, OSError) as error:
        raise ClusterError(
            f"the worker processes did not start ({error}); each runs the calling script anew, so what a script does "
            f"must stand under if __name__ == '__main__': (docs/guides/several-machines.md)"
        ) from None


@contextmanager
def quiet() -> Iterator[None]:
    """Have Dask print nothing of what ends a solve in this process: the solve says it in one line."""
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
    """Leaves it to the solve's own process to end a worker, and to say what went wrong.

    Ctrl-C in a terminal, and a SIGTERM of `timeout` or a batch system, reach all processes of the group: the solve
    stops then with what its workers know, and Dask ends them by other means.
    """

    name = "ooc_mdp-child"

    def setup(self, worker: Worker) -> None:
        """Dask calls it on the worker's main thread."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        logging.getLogger("distributed.worker").setLevel(logging.CRITICAL)


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
    found: dict[str, Any] = client.run(describe, PACKAGES, on_error="return")
    hosts = []
    for address, answer in sorted(found.items()):
        if isinstance(answer, dict):
            hosts.append(host_of(address, answer))
        elif not isinstance(answer, OSError):  # else it has gone meanwhile
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
    for attempts_left in range(_ATTEMPTS - 1, -1, -1):
        try:
            client.register_plugin(SolverPlugin())
        except CommClosedError:  # a worker went away meanwhile
            if not attempts_left:
                raise
        else:
            break
    return hosts


class DaskLink:
    """Reaches solvers over a client's connections, straight to the workers where that is possible.

    Parameters
    ----------
    run : name of the solve, which no other has.
    prepare : what the solver of a number is asked, on a worker; raises OptionsError where it cannot take part.
    forget : told of workers that are lost.
    """

    def __init__(
        self,
        client: Client,
        run: str,
        prepare: Callable[[int, Host], SolverOptions],
        forget: Callable[[Host], None] = lambda _: None,
    ) -> None:
        self._client, self._run, self._prepare, self._forget = client, run, prepare, forget
        self.devices: dict[int, str] = {}
        """Of each solver."""
        self.hosts: dict[int, Host] = {}
        """Where each solver is, or was."""
        self._gone: set[int] = set()
        self._refused: set[str] = set()
        """Addresses of workers that came later and cannot take part."""
        self._tasks: dict[int, Any] = {}
        self._direct = True
        self._borrows = True
        """Whether answers of this machine's processes may be copied from their memory."""

    def start(self, hosts: list[Host]) -> None:
        """Start a solver on each worker."""
        asked = {k: self._prepare(k, host) for k, host in enumerate(hosts)}
        numbers = {host.address: k for k, host in enumerate(hosts)}
        self._client.run(open_mailbox, self._run, numbers, workers=list(numbers), on_error="ignore")
        for number, host in enumerate(hosts):
            self._submit(number, host, asked[number])
        self._direct = any(self._client.sync(self._answers, number) for number in asked)

    def _submit(self, number: int, host: Host, asked: SolverOptions) -> None:
        self.hosts[number], self.devices[number] = host, asked.options.device
        self._tasks[number] = self._client.submit(
            run_solver,
            self._run,
            asked,
            key=f"ooc-mdp-solver-{number}-{self._run}",
            workers=[host.address],
            allow_other_workers=False,
            pure=False,
            retries=0,
        )

    async def newcomers(self) -> list[int]:
        """Start solvers on workers that have come, or come back, since; their numbers."""
        try:
            present = await self._workers()
        except (OSError, TimeoutError):
            return []
        active = {host.address for k, host in self.hosts.items() if k not in self._gone}
        numbers = []
        for address in sorted(present - active - self._refused):
            earlier = [k for k, host in self.hosts.items() if host.address == address]
            if earlier and not await self._has_ended(earlier[-1]):
                continue
            found = await self._client.run(describe, PACKAGES, workers=[address], on_error="return")
            facts, number = found.get(address), len(self.hosts)
            try:
                if not isinstance(facts, dict) or (host := host_of(address, facts)).differs:
                    raise OptionsError("it cannot run this version")
                asked = self._prepare(number, host)
            except OptionsError:
                self._refused.add(address)
                continue
            await self._client.run(open_mailbox, self._run, {address: number}, workers=[address], on_error="ignore")
            self._submit(number, host, asked)
            numbers.append(number)
        return numbers

    async def _has_ended(self, number: int) -> bool:
        """Whether a lost solver, whose worker is there again, has noticed that it is no longer needed."""
        try:
            return bool(await self.ask(number, "expel", None, _PROBE_SECONDS) == "unknown")
        except (OSError, TimeoutError):
            return False

    async def _workers(self) -> set[str]:
        """Addresses that the scheduler has."""
        scheduler: Any = self._client.scheduler
        found = await asyncio.wait_for(scheduler.identity(n_workers=-1), _PROBE_SECONDS)
        return set(found["workers"])

    def address(self, number: int) -> str:
        """Of a solver's worker."""
        return self.hosts[number].address

    async def _answers(self, number: int) -> bool:
        try:
            await self.ask(number, "status", (-1, 0.0), _PROBE_SECONDS)
        except (OSError, TimeoutError):
            return False
        return True

    async def ask(self, number: int, verb: str, argument: Any, timeout: float) -> Any:
        """The solver's answer, perhaps `Borrowed`; OSError or TimeoutError where there is none."""
        if verb != "command":
            return await self._ask(number, verb, argument, timeout)
        answer = await self._ask(number, verb, (argument, here() if self._borrows else None), timeout)
        if not isinstance(answer, Lent):
            return answer

        async def settle(copied: bool) -> Any:
            self._borrows = self._borrows and copied  # others come over the connection at once
            return await self._ask(number, "give back", (argument.number, not copied), timeout)

        return Borrowed(borrow(answer), settle)

    async def _ask(self, number: int, verb: str, argument: Any, timeout: float) -> Any:
        address = self.hosts[number].address
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
        try:
            return self.hosts[number].address not in await self._workers()
        except (OSError, TimeoutError):
            return False  # nothing is known: patience decides

    def failure(self, number: int) -> BaseException | None:
        """What the solver's task raised, unless its worker is lost."""
        task = self._tasks[number]
        if task.status != "error":
            return None
        error: BaseException = task._state.exception
        return None if isinstance(error, KilledWorker) else error

    async def dismiss(self, number: int) -> None:
        """Let the task go, and tell a solver that is alive after all that nobody needs it."""
        self._gone.add(number)
        self._forget(self.hosts[number])
        with suppress(OSError, TimeoutError):
            self._tasks[number].release()
            await self.ask(number, "expel", None, _PROBE_SECONDS)

    def broken(self) -> str | None:
        """Why the cluster cannot be reached."""
        if self._client.status in ("running", "connecting"):
            return None
        return "the connection to the Dask scheduler is lost"

    def finish(self, numbers: list[int]) -> list[MemoryPlan]:
        """Wait for solvers that were told that it is over, save those dismissed; what memory they had planned."""
        tasks = [self._tasks[number] for number in numbers if number not in self._gone]
        with suppress(TimeoutError), self._client.as_current():
            wait(tasks, timeout=_END_SECONDS)
        plans = []
        for task in tasks:
            if task.status == "finished":
                # The worker may have gone since: Dask waits for one at its address then.
                with suppress(OSError, TimeoutError, CancelledError, KilledWorker):
                    plans.append(task.result(timeout=_PROBE_SECONDS)[1])
        return [plan for plan in plans if plan is not None]
