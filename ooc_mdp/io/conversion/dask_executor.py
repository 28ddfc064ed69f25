"""An executor that runs tasks on the workers of a Dask cluster, in processes that may be on several machines.

The function is sent to the cluster once; a task carries its item, and only its result is returned. Where a worker dies,
Dask reassigns its tasks to others, so functions must be repeatable: `PartitionWriter` writes the same bytes again.
"""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any, TypeVar

from distributed import Client, KilledWorker
from distributed import wait as wait_for

from ooc_mdp.errors import ClusterError
from ooc_mdp.io.conversion.executor import Skipped, TaskQueue, completed, ignore

__all__ = ["DaskExecutor"]

Item = TypeVar("Item")
Result = TypeVar("Result")

_PER_THREAD = 4
"""Tasks submitted per thread of the cluster, so that no thread waits for its next task."""
_END_SECONDS = 60.0
"""Longest wait for running tasks when a conversion is stopped."""


class DaskExecutor:
    """See :class:`~ooc_mdp.io.conversion.executor.Executor`; functions, items and results are pickled.

    Parameters
    ----------
    client : client of the cluster, whose workers have this package installed and see the directory of the store.
    """

    def __init__(self, client: Client) -> None:
        self._client: Any = client

    def map(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        on_done: Callable[[Result], object] = ignore,
    ) -> Generator[Result, None, None]:
        """See :class:`~ooc_mdp.io.conversion.executor.Executor`.

        Raises
        ------
        ClusterError : several workers died of the same task, or the scheduler is lost.
        """
        client, run = self._client, uuid.uuid4().hex
        shared = client.submit(_identity, function, key=f"ooc-mdp-function-{run}", pure=False)

        numbers = itertools.count()

        def submit(item: Item) -> Any:
            number = next(numbers)
            key = f"ooc-mdp-task-{run}-{number}"
            return client.submit(_call, run, shared, item, key=key, priority=-number, pure=False)

        def wait(futures: list[Any]) -> list[Any]:
            with client.as_current():
                return list(wait_for(futures, return_when="FIRST_COMPLETED").done)  # type: ignore[no-untyped-call]

        def cancel(future: Any) -> bool:
            future.cancel()
            return True

        def stop() -> None:
            until = time.monotonic() + _END_SECONDS
            with suppress(OSError, TimeoutError, CancelledError):
                while any(client.run(_stop, run, on_error="ignore").values()) and time.monotonic() < until:
                    time.sleep(0.05)

        threads = sum(client.nthreads().values())
        try:
            yield from completed(TaskQueue(submit, wait, cancel, stop, _PER_THREAD * max(threads, 1)), items, on_done)
        except KilledWorker as error:
            raise ClusterError(
                f"{error.allowed_failures + 1} workers died while they computed the same partition; give workers more "
                f"memory, or make partitions smaller (--partition-size)"
            ) from error
        except (CancelledError, TimeoutError) as error:
            raise ClusterError("the connection to the Dask scheduler is lost; restart it and its workers") from error


_LOCK = threading.Lock()
_RUNNING: Counter[str] = Counter()
"""Running tasks of this worker process, by run."""
_STOPPED: set[str] = set()
"""Runs of which no task may start."""


def _identity(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the function, which workers keep during a run."""
    return function


def _call(run: str, function: Callable[[Any], Any], item: Any) -> Any:
    """Run one task, on a worker."""
    with _LOCK:
        if run in _STOPPED:
            raise Skipped
        _RUNNING[run] += 1
    try:
        return function(item)
    finally:
        with _LOCK:
            _RUNNING[run] -= 1


def _stop(run: str) -> int:
    """On a worker: start no more tasks of a run; return the number of running ones."""
    with _LOCK:
        _STOPPED.add(run)
        return _RUNNING[run]
