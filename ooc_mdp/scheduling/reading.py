"""Threads that read partitions for the thread that solves.

Requests and results go through queues in C. The futures of a thread pool take several times the work in the
interpreter, which reading threads share with the solving one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

__all__ = ["ReadingThreads"]


@dataclass(frozen=True, slots=True)
class _Result:
    """What reading a partition gave: a value, or an error."""

    partition: int
    value: Any = None
    error: BaseException | None = None


class ReadingThreads:
    """They read requested partitions in any order; the caller takes each result once.

    Parameters
    ----------
    read : given a partition, reads it; on one of the threads.
    most : threads at most, which are started as they are needed.
    """

    def __init__(self, read: Callable[[int], Any], most: int) -> None:
        self._read, self._most = read, most
        self._requests: SimpleQueue[int | None] = SimpleQueue()
        self._results: SimpleQueue[_Result] = SimpleQueue()
        self._arrived: dict[int, _Result] = {}
        self._threads: list[Thread] = []
        self.requested: dict[int, None] = {}
        """Partitions that were requested and whose result was not yet taken, in the order of the requests."""

    def request(self, partition: int) -> None:
        """Request a partition that is not requested yet."""
        if len(self._threads) < min(self._most, len(self.requested) + 1):
            thread = Thread(target=self._serve, name=f"stager-{len(self._threads)}", daemon=True)
            thread.start()
            self._threads.append(thread)
        self.requested[partition] = None
        self._requests.put(partition)

    def arrived(self) -> list[int]:
        """Partitions whose results can be taken without waiting, in the order in which they arrived."""
        while not self._results.empty():
            self._receive()
        return list(self._arrived)

    def wait(self) -> None:
        """Wait until a result has arrived; return immediately if nothing is requested."""
        if self.requested and not self.arrived():
            self._receive()

    def take(self, partition: int) -> Any:
        """Wait for the result of a requested partition and return it; raises the error of the read."""
        while partition not in self._arrived:
            self._receive()
        result = self._arrived.pop(partition)
        del self.requested[partition]
        if result.error is not None:
            raise result.error
        return result.value

    def cancel_queued(self) -> list[int]:
        """Cancel the requests that no thread has begun, and return their partitions."""
        cancelled: list[int] = []
        try:
            while (partition := self._requests.get_nowait()) is not None:
                cancelled.append(partition)
                del self.requested[partition]
        except Empty:
            pass
        return cancelled

    def close(self) -> None:
        """End the threads, after the reads that they have begun."""
        for _ in self._threads:
            self._requests.put(None)
        for thread in self._threads:
            thread.join()
        self._threads = []

    def _receive(self) -> None:
        result = self._results.get()
        self._arrived[result.partition] = result

    def _serve(self) -> None:
        while (partition := self._requests.get()) is not None:
            try:
                result = _Result(partition, self._read(partition))
            except BaseException as error:
                result = _Result(partition, error=error)
            self._results.put(result)
            del result  # before the thread waits: it holds a table
