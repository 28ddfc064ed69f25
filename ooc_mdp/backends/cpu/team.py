"""Threads that share one piece of work at a time with the thread that begins it.

The work itself divides its items: each thread takes the next that no other has taken. A visit is work of compiled
calls (`ooc_mdp.backends.cpu.calls`), which no thread needs the interpreter to begin, to go on with or to end: the
others wait for messages in a pipe, and its caller may do something else in Python before it takes part.

    messages of `work`     n > 0: make the calls as thread n;  n < 0: Python work, as thread -n;  0: the end
    messages of `others`   one for each thread that has come to the second calls, from the last that comes there
    messages of `done`     one of each thread whose calls are made
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread
from typing import Any, NamedTuple

import numpy as np
from numba import types

from ooc_mdp.backends.cpu.addresses import address_of, pointer
from ooc_mdp.backends.cpu.calls import Call, make_call, raise_error, word_at
from ooc_mdp.backends.cpu.claims import fetch_increment
from ooc_mdp.model.mdp import IntArray
from ooc_mdp.runtime.compiled import loop, part, short_loop

__all__ = ["Begun", "Team"]

_read: Any = types.ExternalFunction("read", types.intp(types.intc, types.voidptr, types.intp))
_write: Any = types.ExternalFunction("write", types.intp(types.intc, types.voidptr, types.intp))
_FIRST, _COUNT, _THREADS, _ARRIVED, _LEFT, _ERROR, _ERROR_INFO, _CALLS = range(8)
"""Entries of `_Shared.numbers`."""


class _Shared(NamedTuple):
    """What the threads of a team have in common."""

    numbers: IntArray
    """int64 [8]: the number of first calls, and of all calls; the numbers of threads that take part, that have made the
    first calls, and, thread 0 aside, that have made all; the code and the address of what a call raised, for
    `raise_error`; and where the addresses of the calls are."""
    work: tuple[int, int]
    """Ends of a pipe, to read from and to write to; and so"""
    others: tuple[int, int]
    done: tuple[int, int]


@dataclass(slots=True)
class Begun:
    """Calls that a team has begun to make."""

    addresses: IntArray
    calls: Sequence[Call]
    owner: object
    finished: bool = False


class Team:
    """The caller's thread, which has the number 0, and others.

    Parameters
    ----------
    size : threads in all.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._open = size > 1
        pipes = [os.pipe() if self._open else (-1, -1) for _ in range(3)]
        self._shared = _Shared(np.zeros(8, np.int64), *pipes)
        self._begun: Begun | None = None
        """Calls that are not finished."""
        self._work: Callable[[int], None] | None = None
        """Python work that is not finished."""
        self._results: SimpleQueue[BaseException | None] = SimpleQueue()
        """What each thread raised in it."""
        self._others: list[Thread] = []
        """They start with the first work for them."""

    def begin(self, first: Sequence[Call], second: Sequence[Call], threads: int, owner: object = None) -> Begun:
        """Have the other threads make calls: the second ones once all threads have made the first.

        What was begun before is finished before that.

        Parameters
        ----------
        threads : that take part, the caller's among them.
        owner : of what arguments refer to by addresses; kept as long as the calls.
        """
        self.finish()
        if threads > 1:
            self._start()
        calls = [*first, *second]
        begun = Begun(np.array([call.address for call in calls], np.int64), calls, owner)
        self._begun = begun
        _begin(self._shared, begun.addresses, len(first), threads)
        return begun

    def finish(self, begun: Begun | None = None) -> None:
        """Make the calls as well, unless they are finished, and wait until all threads have; raises what one raised.

        Parameters
        ----------
        begun : None: whatever was begun.
        """
        begun = begun or self._begun
        if begun is None or begun.finished:
            return
        assert begun is self._begun, "what was begun before has been finished"
        _finish(self._shared)
        self._begun, begun.finished = None, True
        if self._shared.numbers[_ERROR] != 0:
            _raise(self._shared.numbers[_ERROR], self._shared.numbers[_ERROR_INFO])

    def others_done(self, begun: Begun) -> bool:
        """Whether no other thread is at these calls."""
        return begun.finished or bool(self._shared.numbers[_LEFT] == self._shared.numbers[_THREADS] - 1)

    def share(self, work: Callable[[int], None]) -> None:
        """Have each thread do some work in Python, called with its number; raises what one of them raised."""
        self.finish()
        self._start()
        self._work = work
        _call_upon(self._shared, -1, self.size)
        try:
            work(0)
        finally:
            errors = [error for _ in self._others if (error := self._results.get()) is not None]
            self._work = None  # kept no longer: it holds what it works on
        for error in errors:
            raise error

    def load_code(self) -> None:
        """Load what the other threads run; what the caller's does is loaded when it first begins and finishes work."""
        if self.size > 1:
            _call_upon(self._shared, 0, 2)
            _make_calls_until_told(self._shared)

    def _start(self) -> None:
        if self.size > 1 and not self._others:
            self.load_code()  # before several threads would compile it
            self._others = [Thread(target=self._serve, name=f"sweeps-{n}", daemon=True) for n in range(1, self.size)]
            for other in self._others:
                other.start()

    def _serve(self) -> None:
        while (message := _make_calls_until_told(self._shared)) != 0:
            error: BaseException | None = None
            try:
                assert self._work is not None
                self._work(-message)
            except BaseException as raised:
                error = raised
            self._results.put(error)
            del error

    def close(self) -> None:
        """End the other threads, after what they have begun."""
        try:
            self.finish()
        finally:
            if self._others:
                _call_upon(self._shared, 0, self.size)
            for other in self._others:
                other.join()
            shared, self._others = self._shared, []
            for end in (*shared.work, *shared.others, *shared.done) if self._open else ():
                os.close(end)
            self._open = False


@short_loop
def _begin(shared, calls, first, threads):
    """Call upon the other threads to make the calls at these addresses."""
    numbers = shared.numbers
    numbers[:] = 0
    numbers[_FIRST], numbers[_COUNT], numbers[_THREADS], numbers[_CALLS] = first, calls.size, threads, address_of(calls)
    _send(shared.work, 1, threads)


@short_loop
def _call_upon(shared, sign, threads):
    """Send a message to each of the other threads: its number times a sign."""
    _send(shared.work, sign, threads)


@loop
def _finish(shared):
    """Make the calls as thread 0, and wait until the others have made them; then there are none."""
    numbers = shared.numbers
    _make_calls(shared, 0)
    for _ in range(numbers[_THREADS] - 1):
        _receive(shared.done)
    numbers[_COUNT], numbers[_THREADS] = 0, 1


@loop
def _make_calls_until_told(shared):
    """Make calls for each message that asks for them; returns the first other message, which is for Python."""
    while True:
        message = _receive(shared.work)
        if message <= 0:
            return message
        _make_calls(shared, message)
        fetch_increment(address_of(shared.numbers) + 8 * _LEFT)
        _send(shared.done, 0, 2)


@part
def _make_calls(shared, thread):
    """Make all calls as this thread."""
    numbers = shared.numbers
    for i in range(numbers[_COUNT]):
        if i == numbers[_FIRST]:
            _wait_for_others(shared)
        address = word_at(numbers[_CALLS] + 8 * i)
        make_call(address, thread, address_of(numbers) + 8 * _ERROR)


@part
def _wait_for_others(shared):
    """Return once all threads that take part are here."""
    threads = shared.numbers[_THREADS]
    if fetch_increment(address_of(shared.numbers) + 8 * _ARRIVED) < threads - 1:
        _receive(shared.others)
    else:
        _send(shared.others, 0, threads)


@part
def _send(pipe, sign, threads):
    """Send the numbers of all threads but 0, times a sign; pipes have room for some hundred messages."""
    messages = np.empty(threads - 1, np.int64)
    for i in range(messages.size):
        messages[i] = sign * (i + 1)
    sent = 0
    while sent < 8 * messages.size:
        sent += max(0, _write(pipe[1], pointer(address_of(messages) + sent), 8 * messages.size - sent))


@part
def _receive(pipe):
    """The next message; 0 once the pipe is closed for writing."""
    message = np.zeros(1, np.int64)
    got = -1
    while got < 0:  # a signal came
        got = _read(pipe[0], pointer(address_of(message)), 8)
    return message[0]


@loop
def _raise(code, info):
    """Raise what a call has raised."""
    raise_error(code, info)
