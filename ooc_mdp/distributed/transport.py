"""The coordinator's requests to workers, over the connections of a Dask client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
from distributed import Client, KilledWorker, wait
from distributed.comm.core import CommClosedError
from distributed.protocol.serialize import to_serialize

from ooc_mdp.backends.select import cuda_numbers
from ooc_mdp.distributed.cluster import PACKAGES, WorkerInfo, check_devices, describe, worker_info
from ooc_mdp.distributed.endpoint import OPERATION, open_mailbox, run_solver, stage_partitions, unwrapped
from ooc_mdp.distributed.messages import (
    EvictRequest,
    NoSuchRun,
    NoSuchRunError,
    StatusRequest,
    WorkerRequest,
)
from ooc_mdp.distributed.worker import StoreLocation, WorkerOptions
from ooc_mdp.errors import OptionsError
from ooc_mdp.runtime.memory_plan import MemoryPlan

__all__ = ["DaskTransport"]

_PROBE_SECONDS = 3.0
_END_SECONDS = 10.0
"""How long the end of workers is waited for after they received the stop."""


class DaskTransport:
    """Reaches workers over a client's connections, directly where that is possible, else through the scheduler.

    Parameters
    ----------
    run : unique name of the solve.
    prepare : returns the options of a worker.
    stage : directory of the store's copies on each node; None to read from the shared store only.
    """

    def __init__(
        self,
        client: Client,
        run: str,
        prepare: Callable[[int, WorkerInfo], WorkerOptions],
        stage: str | None = None,
    ) -> None:
        self._client, self._run, self._prepare = client, run, prepare
        self._stage = stage
        self.hosts: dict[int, WorkerInfo] = {}
        """Where each worker runs, lost ones included."""
        self._released: set[int] = set()
        self._refused: set[str] = set()
        """Addresses of late joiners that have another version."""
        self._tasks: dict[int, Any] = {}
        self._staging: dict[int, Any] = {}
        """Staging tasks whose warning has not been read, by worker."""
        self._direct = True

    def start(self, hosts: list[WorkerInfo], owner: npt.NDArray[np.integer[Any]], note: Callable[[str], None]) -> None:
        """Start a solver on each worker, and where the solve stages, a task before it that copies its partitions.

        Parameters
        ----------
        owner : int [P]; number of the worker that begins with each partition.
        note : receives the warnings of staging tasks.
        """
        asked = {k: self._prepare(k, host) for k, host in enumerate(hosts)}
        numbers = {host.address: k for k, host in enumerate(hosts)}
        self._client.run(open_mailbox, self._run, numbers, self._stage, workers=list(numbers), on_error="ignore")
        self._note = note
        for number, host in enumerate(hosts):
            source = asked[number].source
            if self._stage is not None and isinstance(source, StoreLocation):
                partitions = np.flatnonzero(owner == number).tolist()
                self._staging[number] = self._submit(stage_partitions, number, host, source, partitions, priority=1)
                self._staging[number].add_done_callback(lambda _, number=number: self._note_staging(number))
            self._start_solver(number, host, asked[number])
        self._direct = any(self._client.sync(self._answers, number) for number in asked)

    def _start_solver(self, number: int, host: WorkerInfo, asked: WorkerOptions) -> None:
        self.hosts[number] = host
        self._tasks[number] = self._submit(run_solver, number, host, asked)

    def _submit(
        self, function: Callable[..., Any], number: int, host: WorkerInfo, *arguments: Any, priority: int = 0
    ) -> Any:
        """Submit a task of this run that no other worker can take."""
        return self._client.submit(
            function,
            self._run,
            *arguments,
            key=f"ooc-mdp-{function.__name__}-{number}-{self._run}",
            workers=[host.address],
            allow_other_workers=False,
            pure=False,
            retries=0,
            priority=priority,
        )

    def _note_staging(self, number: int) -> None:
        """Pass on the warning of a staging task that has ended, once; on whichever thread learns of its end."""
        task = self._staging.pop(number, None)
        if task is not None and task.status == "finished":
            with suppress(OSError, TimeoutError, CancelledError, KilledWorker):
                warning = task.result(timeout=_PROBE_SECONDS)
                if warning is not None:
                    self._note(f"worker {number} on {self.hosts[number].name}: {warning}")

    async def discover(self) -> list[int]:
        """Start solvers on workers that have joined, or come back, since; return their numbers."""
        try:
            present = await self._workers()
        except (OSError, TimeoutError):
            return []
        numbers = []
        for address in sorted(present - {host.address for host in self._active()} - self._refused):
            earlier = [k for k, host in self.hosts.items() if host.address == address]
            if earlier and not await self._has_ended(earlier[-1]):
                continue
            found = await self._client.run(describe, PACKAGES, workers=[address], on_error="return")
            facts, number = found.get(address), len(self.hosts)
            if not isinstance(facts, dict) or (host := worker_info(address, facts)).differs:
                self._refused.add(address)
                continue
            asked = self._prepare(number, host)
            try:
                check_devices(cuda_numbers(asked.options.device), [*self._active(), host])
            except OptionsError:  # until the worker that uses its GPU is lost
                continue
            await self._client.run(
                open_mailbox, self._run, {address: number}, self._stage, workers=[address], on_error="ignore"
            )
            self._start_solver(number, host, asked)
            numbers.append(number)
        return numbers

    def _active(self) -> list[WorkerInfo]:
        return [host for k, host in self.hosts.items() if k not in self._released]

    async def _has_ended(self, number: int) -> bool:
        """Return whether the solver of a lost worker that has come back has ended."""
        try:
            await self.request(number, EvictRequest(), _PROBE_SECONDS)
        except NoSuchRunError:
            return True
        except (OSError, TimeoutError):
            return False
        return False

    async def _workers(self) -> set[str]:
        """Return the addresses of the scheduler's workers."""
        scheduler: Any = self._client.scheduler
        found = await asyncio.wait_for(scheduler.identity(n_workers=-1), _PROBE_SECONDS)
        return set(found["workers"])

    def address(self, number: int) -> str:
        """Return the address of a worker."""
        return self.hosts[number].address

    async def _answers(self, number: int) -> bool:
        try:
            await self.request(number, StatusRequest(), _PROBE_SECONDS)
        except NoSuchRunError:
            return True
        except (OSError, TimeoutError):
            return False
        return True

    async def request(self, number: int, request: WorkerRequest, timeout: float) -> Any:
        """Return the worker's answer.

        Raises
        ------
        OSError, TimeoutError : there is no answer.
        NoSuchRunError : the worker has ended, or has not been started.
        """
        address = self.hosts[number].address
        message = {"run": self._run, "request": to_serialize(request)}
        waiting = timeout + (request.wait if isinstance(request, StatusRequest) else 0.0)
        try:
            if self._direct:
                asked = getattr(self._client.rpc(address), OPERATION)(**message)
            else:
                scheduler: Any = self._client.scheduler
                asked = scheduler.proxy(msg={"op": OPERATION, **message}, worker=address)
            answer = unwrapped(await asyncio.wait_for(asked, waiting))
        except CommClosedError as error:
            raise OSError(str(error)) from error
        if isinstance(answer, NoSuchRun):
            raise NoSuchRunError(f"worker {number} ({address}) has ended, or has not been started")
        return answer

    async def lost(self, number: int) -> bool:
        """Return whether the scheduler has lost the worker, or cannot be reached any more."""
        if self.connection_error() is not None:
            return True
        try:
            return self.hosts[number].address not in await self._workers()
        except (OSError, TimeoutError):
            return False  # unknown: the worker timeout decides

    def failure(self, number: int) -> BaseException | None:
        """Return the exception of the worker's task, unless its process was lost."""
        task = self._tasks[number]
        if task.status != "error":
            return None
        error: BaseException = task._state.exception
        return None if isinstance(error, KilledWorker) else error

    async def release(self, number: int) -> None:
        """Release the task of a worker, and evict its solver if it still runs."""
        self._released.add(number)
        with suppress(OSError, TimeoutError, NoSuchRunError):
            self._tasks[number].release()
            await self.request(number, EvictRequest(), _PROBE_SECONDS)

    def connection_error(self) -> str | None:
        """Return why the cluster cannot be reached, or None."""
        if self._client.status in ("running", "connecting"):
            return None
        return "the connection to the Dask scheduler is lost"

    def join(self, numbers: list[int]) -> list[MemoryPlan]:
        """Wait for the end of workers that received the stop, except released ones; return their memory plans."""
        present = [number for number in numbers if number not in self._released]
        tasks = [self._tasks[number] for number in present]
        staging = {number: task for number in present if (task := self._staging.get(number)) is not None}
        with suppress(TimeoutError), self._client.as_current():
            wait([*tasks, *staging.values()], timeout=_END_SECONDS)
        for number in staging:
            self._note_staging(number)
        plans = []
        for task in tasks:
            if task.status == "finished":
                # The worker may be lost since; Dask then waits for one at its address.
                with suppress(OSError, TimeoutError, CancelledError, KilledWorker):
                    plans.append(task.result(timeout=_PROBE_SECONDS)[1])
        return [plan for plan in plans if plan is not None]
