"""Threads that read partitions for one thread that asks for them.

Requests and answers go through queues in C. A pool's futures do as much with several times the work of the interpreter,
which the threads that read share with the one that solves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

__all__ = ["ReadingThreads"]


@dataclass(frozen=True, slots=True)
class _Answer:
    partition: int
    read: Any = None
    error: BaseException | None = None


class ReadingThreads:
    """Reads in any order; who asks takes each of them.

    Parameters
    ----------
    read : given a partition, reads it; on one of the threads.
    most : threads, which are started as they are needed.
    """

    def __init__(self, read: Callable[[int], Any], most: int) -> None:
        self._read, self._most = read, most
        self._requests: SimpleQueue[int | None] = SimpleQueue()
        self._answers: SimpleQueue[_Answer] = SimpleQueue()
        self._arrived: dict[int, _Answer] = {}
        self._threads: list[Thread] = []
        self.asked_for: dict[int, None] = {}
        """Partitions that were asked for and not yet taken, in their order."""

    def ask(self, partition: int) -> None:
        """Have a partition read, which is not asked for."""
        if len(self._threads) < min(self._most, len(self.asked_for) + 1):
            thread = Thread(target=self._serve, name=f"stager-{len(self._threads)}", daemon=True)
            thread.start()
            self._threads.append(thread)
        self.asked_for[partition] = None
        self._requests.put(partition)

    def arrived(self) -> list[int]:
        """Partitions that can be taken at once, in the order in which they came."""
        while not self._answers.empty():
            self._receive()
        return list(self._arrived)

    def wait(self) -> None:
        """Wait until one can be taken; return immediately where none is asked for."""
        if self.asked_for and not self.arrived():
            self._receive()

    def take(self, partition: int) -> Any:
        """What was read of a partition that was asked for; waits for it, and raises what reading raised."""
        while partition not in self._arrived:
            self._receive()
        answer = self._arrived.pop(partition)
        del self.asked_for[partition]
        if answer.error is not None:
            raise answer.error
        return answer.read

    def take_back(self) -> list[int]:
        """Ask no longer for those that no thread has begun; which they were."""
        taken: list[int] = []
        try:
            while (partition := self._requests.get_nowait()) is not None:
                taken.append(partition)
                del self.asked_for[partition]
        except Empty:
            pass
        return taken

    def close(self) -> None:
        """End the threads, after what they have begun."""
        for _ in self._threads:
            self._requests.put(None)
        for thread in self._threads:
            thread.join()
        self._threads = []

    def _receive(self) -> None:
        answer = self._answers.get()
        self._arrived[answer.partition] = answer

    def _serve(self) -> None:
        while (partition := self._requests.get()) is not None:
            try:
                answer = _Answer(partition, self._read(partition))
            except BaseException as error:
                answer = _Answer(partition, error=error)
            self._answers.put(answer)
            del answer  # before the thread waits: it holds a table
