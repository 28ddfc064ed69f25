"""In which order devices of a group do their work: any that the streams allow, drawn anew from a seed.

A device's work of one stream follows in its order, and work of two streams in any, unless one waits for the other. So
work is a graph, and what is done next is drawn among all that waits for nothing more. Work is done when somebody waits
for it: what a host reads or changes too early is as wrong here as on a device.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

__all__ = ["Order", "Work"]


@dataclass(eq=False)
class Work:
    """A copy, a fill or a launch."""

    action: Callable[[], None]
    after: frozenset[Work]
    done: bool = False


class Order:
    """Of the work of all devices of a group.

    Parameters
    ----------
    seed : by which the next work is drawn.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._lock = threading.RLock()
        self._open: list[Work] = []
        self._recorded: list[Work] | None = None

    def draw_anew(self, seed: int) -> None:
        """What is drawn from here on is that of a seed."""
        self._random.seed(seed)

    def add(self, action: Callable[[], None], after: frozenset[Work]) -> frozenset[Work]:
        """Work after other work; what the stream's next work waits for.

        What follows work that is being recorded is recorded too, and the stream goes on behind the rest afterwards.
        """
        with self._lock:
            recorded = self._recorded
            if recorded is not None and not after.isdisjoint(recorded):
                work = Work(action, after.intersection(recorded))
                recorded.append(work)
                return after.difference(recorded) | {work}
            work = Work(action, frozenset(w for w in after if not w.done))
            self._open.append(work)
            return frozenset([work])

    def record(self, stream: Any, launches: Callable[[], None]) -> Callable[[], None]:
        """What is launched on a stream, and on those that wait for it, to be repeated on it."""
        with self._lock:
            begin = Work(lambda: None, frozenset())
            before, stream.last = stream.last, frozenset([begin])
            recorded = self._recorded = [begin]
            try:
                launches()
            finally:
                self._recorded = None
                end, stream.last = stream.last.intersection(recorded), before
        reached, todo = set(end), list(end)
        while todo:
            more = todo.pop().after - reached
            reached |= more
            todo += more
        assert len(reached) == len(recorded), "work on another stream that the recorded stream does not wait for"
        for work in recorded:
            work.done = True  # streams that were recorded do not wait for it

        def repeat() -> None:
            copies: dict[Work, frozenset[Work]] = {}
            for work in recorded:
                after = [stream.last] if work is begin else [copies[w] for w in work.after]
                copies[work] = self.add(work.action, frozenset().union(*after))
            stream.last = frozenset().union(*(copies[w] for w in end))

        return repeat

    def finish(self, work: Iterable[Work]) -> None:
        """Do work until some is done, and maybe other work."""
        work = list(work)
        while not all(w.done for w in work):
            self._step()

    def is_done(self, work: Iterable[Work]) -> bool:
        """Whether some is done; if it is not, a piece of work comes nearer to that."""
        if all(w.done for w in work):
            return True
        self._step()
        return False

    def is_idle(self) -> bool:
        """Whether nothing is left to do."""
        return not self._open

    def _step(self) -> None:
        with self._lock:
            ready = [w for w in self._open if all(before.done for before in w.after)]
            if not ready:
                assert not self._open, "work waits for what no stream does"
                return
            work = self._random.choice(ready)
            self._open.remove(work)
            try:
                work.action()
            finally:
                work.done, work.after = True, frozenset()
