"""Tasks on the workers of a Dask cluster, in processes that may be on several machines.

The function is sent to the cluster once; a task carries its item, and only its result comes back. Where a worker dies,
Dask gives its tasks to others, so functions must be repeatable: `PartitionWriter` writes the same bytes again.
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
from ooc_mdp.io.conversion.executor import Skipped, TaskQueue, completed, nothing

__all__ = ["DaskExecutor"]

Item = TypeVar("Item")
Result = TypeVar("Result")

_PER_THREAD = 4
"""Tasks submitted for each thread of the cluster, so that none waits for the next."""
_END_SECONDS = 60.0
"""In which tasks under way end once a conversion is stopped."""


class DaskExecutor:
    """See :class:`~ooc_mdp.io.conversion.executor.Executor`; functions, items and results are pickled.

    Parameters
    ----------
    client : of the cluster; its workers have this package, and see the directory that is written.
    """

    def __init__(self, client: Client) -> None:
        self._client: Any = client

    def map(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        keep: Callable[[Result], object] = nothing,
    ) -> Generator[Result, None, None]:
        """See :class:`~ooc_mdp.io.conversion.executor.Executor`.

        Raises
        ------
        ClusterError : workers died of a task again and again, or the scheduler is lost.
        """
        client, run = self._client, uuid.uuid4().hex
        shared = client.submit(_same, function, key=f"ooc-mdp-function-{run}", pure=False)

        numbers = itertools.count()

        def submit(item: Item) -> Any:
            number = next(numbers)
            key = f"ooc-mdp-task-{run}-{number}"
            return client.submit(_call, run, shared, item, key=key, priority=-number, pure=False)

        def ended(futures: list[Any]) -> list[Any]:
            with client.as_current():
                return list(wait_for(futures, return_when="FIRST_COMPLETED").done)  # type: ignore[no-untyped-call]

        def cancel(future: Any) -> bool:
            future.cancel()
            return True

        def stop() -> None:
            until = time.monotonic() + _END_SECONDS
            with suppress(OSError, TimeoutError, CancelledError):
                while any(client.run(_end, run, on_error="ignore").values()) and time.monotonic() < until:
                    time.sleep(0.05)

        threads = sum(client.nthreads().values())
        try:
            yield from completed(TaskQueue(submit, ended, cancel, stop, _PER_THREAD * max(threads, 1)), items, keep)
        except KilledWorker as error:
            raise ClusterError(
                f"{error.allowed_failures + 1} workers died while they computed the same partition; give workers more "
                f"memory, or make partitions smaller (--partition-size)"
            ) from error
        except (CancelledError, TimeoutError) as error:
            raise ClusterError("the connection to the Dask scheduler is lost; start it and its workers anew") from error


_LOCK = threading.Lock()
_RUNNING: Counter[str] = Counter()
"""Tasks under way in this worker process, by run."""
_ENDED: set[str] = set()
"""Runs of which no task may begin."""


def _same(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """What workers keep while a run lasts."""
    return function


def _call(run: str, function: Callable[[Any], Any], item: Any) -> Any:
    """One task, on a worker."""
    with _LOCK:
        if run in _ENDED:
            raise Skipped
        _RUNNING[run] += 1
    try:
        return function(item)
    finally:
        with _LOCK:
            _RUNNING[run] -= 1


def _end(run: str) -> int:
    """On a worker: begin no more tasks of a run; how many are under way."""
    with _LOCK:
        _ENDED.add(run)
        return _RUNNING[run]
