"""Threads that share one piece of work at a time with the thread that begins it.

The work itself divides its items: each thread takes the next that no other has taken. A visit begins work twice within
some hundred microseconds, for which queues in C cost a tenth of what the futures of a thread pool do.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread

__all__ = ["Team"]

_Work = Callable[[int], None]


class Team:
    """The caller's thread, which has the number 0, and others.

    Parameters
    ----------
    size : threads in all.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._tasks: SimpleQueue[tuple[_Work, int] | None] = SimpleQueue()
        self._results: SimpleQueue[BaseException | None] = SimpleQueue()
        """What each task raised."""
        self._work: _Work | None = None
        """What has begun and is not finished."""
        self._under_way = 0
        """Tasks whose result is not yet taken."""
        self._others = [Thread(target=self._serve, name=f"sweeps-{n}", daemon=True) for n in range(1, size)]
        for other in self._others:
            other.start()

    def begin(self, work: _Work, threads: int | None = None) -> None:
        """Start the other threads on some work, each with its number; :meth:`finish` takes part in it.

        Parameters
        ----------
        threads : that share it, the caller's among them; None: all.
        """
        self._wait()  # for work that was never finished, because its caller failed
        self._work = work
        for thread in range(1, self.size if threads is None else threads):
            self._tasks.put((work, thread))
            self._under_way += 1

    def finish(self) -> None:
        """Take part in the work, and wait until all threads are done; raises what one of them raised."""
        work, self._work = self._work, None  # kept no longer: it holds what it works on
        assert work is not None, "nothing has begun"
        try:
            work(0)
        finally:
            errors = self._wait()
        for error in errors:
            raise error

    def share(self, work: _Work, threads: int | None = None) -> None:
        """Begin some work and finish it."""
        self.begin(work, threads)
        self.finish()

    def others_done(self) -> bool:
        """Whether no other thread is at work."""
        return self._results.qsize() == self._under_way

    def _wait(self) -> list[BaseException]:
        errors = []
        while self._under_way:
            error = self._results.get()
            self._under_way -= 1
            if error is not None:
                errors.append(error)
        return errors

    def _serve(self) -> None:
        while (task := self._tasks.get()) is not None:
            work, thread = task
            error: BaseException | None = None
            try:
                work(thread)
            except BaseException as raised:
                error = raised
            del task, work  # before the caller goes on
            self._results.put(error)
            del error

    def close(self) -> None:
        """End the other threads, after the work that they have begun."""
        for _ in self._others:
            self._tasks.put(None)
        for other in self._others:
            other.join()
        self._others, self._work = [], None
