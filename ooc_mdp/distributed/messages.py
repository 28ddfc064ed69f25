"""What solvers and their coordinator tell each other; everything crosses the network as it is here.

    coordinator ─▶ solver    Assignment, Span, Go, Halt, End; Release and Report, which are answered
    solver ─▶ coordinator    Status, whenever it comes to rest, and at times meanwhile
    solver ─▶ solver         Subscribe: "tell me of these states of your partition"; Update: their values

Partitions have one owner at a time. *Epochs* number the assignments of owners; a partition's *generation* is the epoch
in which its present owner got it, so that what an earlier owner sent late is known to be old.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ooc_mdp.distributed.remote_memory import ProcessId
from ooc_mdp.errors import OocMdpError
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.solution import SolveStatistics
from ooc_mdp.solver.history import PartitionCounts

__all__ = [
    "SLOWEST",
    "Accepted",
    "Assignment",
    "Command",
    "CommandRequest",
    "DeliverRequest",
    "EvictRequest",
    "MigrateRequest",
    "NoSuchRun",
    "NoSuchRunError",
    "Pause",
    "PostRequest",
    "ReleaseRequest",
    "SnapshotRequest",
    "StagingCounts",
    "Start",
    "StateList",
    "Status",
    "StatusRequest",
    "Stop",
    "Subscribe",
    "Update",
    "ValueRange",
    "Values",
    "WorkerRequest",
    "contiguous_runs",
]

SLOWEST = 10e6
"""Bytes a second that every connection carries: what is large is waited for by so much longer."""


@dataclass(frozen=True, slots=True)
class Values:
    """What is known of k partitions."""

    partitions: IntArray
    """int64 [k], ascending."""
    values: FloatArray
    """float64; those of their states, one partition after the other."""
    policy: npt.NDArray[np.int32]
    """int32; likewise."""
    visited: npt.NDArray[np.bool_]
    """bool [k]."""
    bounds: FloatArray | None = None
    """float64 [4, k]: rows as `ResidualBounds.arrays` names them, at the values of all partitions of the model; None
    where nothing is known of them."""
    counts: PartitionCounts | None = None
    """With all partitions of a solver: what it has done since it began, to partitions that are others' now as well."""

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays of states."""
        return self.values.nbytes + self.policy.nbytes

    @property
    def state_arrays(self) -> tuple[FloatArray, npt.NDArray[np.int32]]:
        """Arrays that another process of the machine may read where they are."""
        return self.values, self.policy


def contiguous_runs(partitions: IntArray, partition_ptr: IntArray) -> list[tuple[slice, slice]]:
    """Where the states of partitions (int64 [k], ascending) lie among all, and where in `Values` of these.

    One piece for each run of neighbours.
    """
    sizes = np.diff(partition_ptr)[partitions]
    ends = np.cumsum(sizes)
    first = np.flatnonzero(np.diff(partitions, prepend=-2) != 1)
    last = np.append(first[1:], partitions.size) - 1 if first.size else first
    return [
        (
            slice(int(partition_ptr[partitions[a]]), int(partition_ptr[partitions[b] + 1])),
            slice(int(ends[a] - sizes[a]), int(ends[b])),
        )
        for a, b in zip(first.tolist(), last.tolist(), strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Assignment:
    """Who owns what from now on."""

    epoch: int
    owner: npt.NDArray[np.int32]
    """int32 [P]; number of the solver, -1 where a partition is on its way from one to another."""
    generation: npt.NDArray[np.int32]
    """int32 [P]."""
    addresses: dict[int, str]
    """Of the solvers that take part."""
    initial_values: Values | None = None
    """Last known values of partitions that the solver gets, as far as there are any."""
    initial_start: bool = False
    """Whether all solvers begin at values that all of them know: the store's initial ones, or 0."""

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return (
            self.owner.nbytes
            + self.generation.nbytes
            + (0 if self.initial_values is None else self.initial_values.nbytes)
        )


@dataclass(frozen=True, slots=True)
class ValueRange:
    """The range of all values, by which relative targets go."""

    smallest: float
    largest: float
    size: float
    """Largest |V| so far."""


@dataclass(frozen=True, slots=True)
class Start:
    """Begin to sweep, or go on."""

    seconds: float = 0.0
    """Of the solve so far: visits are at times of the solve, whenever a solver has joined it."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Sweep no more; still take in and pass on values."""


@dataclass(frozen=True, slots=True)
class MigrateRequest:
    """Give up partitions that are dirty and not in the cache, for another solver; answered with their `Values`."""

    most: int
    """So many at most."""
    cached: bool = False
    """Whether those in the cache will do too."""


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """Answered with the `Values` of all partitions of the solver, bounds and all."""


@dataclass(frozen=True, slots=True)
class Stop:
    """It is over."""


class Command(NamedTuple):
    """What the coordinator tells a solver, as it crosses the network."""

    number: int
    """Rises from command to command; what is sent again has its number again."""
    what: Assignment | ValueRange | Start | Pause | MigrateRequest | SnapshotRequest | Stop


@dataclass(frozen=True, slots=True)
class StatusRequest:
    """Answered with the `Status`, as soon as its version is not the one seen."""

    seen: int = -1
    """Version of the last status; -1 to be answered at once."""
    wait: float = 0.0
    """Seconds to wait for another version at most."""


@dataclass(frozen=True, slots=True)
class PostRequest:
    """Put a command into the mailbox; answered with `Accepted`, before the command is executed."""

    command: Command


@dataclass(frozen=True, slots=True)
class CommandRequest:
    """Execute a command; answered with its result, `Values` or None.

    Large arrays stay where they are, and the answer is a `RemoteHandle`, for an asker that can read them there.
    """

    command: Command
    asker: ProcessId | None = None
    """Process of the asker, where it can read the memory of others."""


@dataclass(frozen=True, slots=True)
class ReleaseRequest:
    """Arrays of an answer are read no longer; answered with True, or None where they were not kept until now."""

    number: int
    """Of the command."""
    whole: bool = False
    """Whether to answer with the `Values` instead of True."""


@dataclass(frozen=True, slots=True)
class DeliverRequest:
    """Put a message of another worker into the mailbox; answered with `Accepted`."""

    message: Subscribe | Update


@dataclass(frozen=True, slots=True)
class EvictRequest:
    """The others have gone on without the worker; answered with `Accepted`."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The request has been carried out, or lies in the mailbox."""


@dataclass(frozen=True, slots=True)
class NoSuchRun:
    """The process has no mailbox of this run; `Transport.request` raises `NoSuchRunError` instead."""


class NoSuchRunError(OocMdpError):
    """No worker of the run is there: it has ended, or has not been started."""


class StateList(NamedTuple):
    """States of a partition whose values a solver reads."""

    partition: int
    serial: int
    """Number of this list among the solver's lists for this partition: values come with it."""
    states: IntArray
    """int64, ascending."""


@dataclass(frozen=True, slots=True)
class Subscribe:
    """From a reader to the owner; answered by an `Update`."""

    sender: int
    number: int
    """Of the sender's messages: one that comes after a later one is old, and what it held has been sent again."""
    wanted: list[StateList]

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(w.states.nbytes for w in self.wanted)


@dataclass(frozen=True, slots=True)
class Update:
    """From an owner to a reader."""

    sender: int
    number: int
    """Of the sender's messages: one that comes after a later one is old, and what it held has been sent again."""
    partitions: IntArray
    """int64 [k]; each once."""
    serials: IntArray
    """int64 [k]; of the lists of `Wanted` states whose values these are."""
    generations: IntArray
    """int64 [k]."""
    ptr: IntArray
    """int64 [k + 1]; where the values of each begin."""
    values: FloatArray

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(a.nbytes for a in (self.partitions, self.serials, self.generations, self.ptr, self.values))


WorkerRequest = StatusRequest | PostRequest | CommandRequest | ReleaseRequest | DeliverRequest | EvictRequest
"""What a process with a worker answers, by a handler for each class."""


@dataclass(slots=True)
class StagingCounts:
    """What one worker has staged and loaded; the counts of a running worker increase."""

    bytes_staged: int = 0
    """Copied to the worker's node."""
    bytes_read_staged: int = 0
    """Loaded from copies on the node, with prefetched partitions that were not used."""
    bytes_read_shared: int = 0
    """Loaded from the shared store, likewise; counted where the solve stages."""


@dataclass(slots=True)
class Status:
    """How a solver stands."""

    version: int = 0
    """Rises with each status."""
    activity: int = 0
    """Rises whenever something is put into its mailbox: with the same number and `passive` twice, it was so between."""
    started: bool = False
    """Whether its thread has started: else the worker's threads are busy with something else."""
    compiling: bool = False
    """Whether it has loops to compile before it is ready."""
    ready: bool = False
    """Whether it has loaded its code and has its memory."""
    stalled_seconds: float = 0.0
    """Seconds since its thread last looked for messages, as it does between two accesses; 0 while it rests."""
    passive: bool = False
    """Nothing to sweep, nothing to take in, nothing on its way to others."""
    halted: bool = True
    epoch: int = -1
    """Of the last assignment that it has taken in."""
    pending: bool = True
    """Whether values are awaited without which it cannot begin."""
    dirty: int = 0
    """Own partitions above the target."""
    absent_dirty: int = 0
    """Those of them that are not in the cache."""
    resident: int = 0
    """Partitions in the cache, whoever owns them now."""
    error_bound: float = float("inf")
    residual_bound: float = float("inf")
    smallest: float = float("inf")
    largest: float = float("-inf")
    """Of the solver's values; smaller than `smallest` where it has none."""
    size: float = 0.0
    outcome: str | None = None
    """Word of the outcome, where it cannot go on."""
    statistics: SolveStatistics = field(default_factory=SolveStatistics)
    idle_seconds: float = 0.0
    messages: int = 0
    """Sent to other solvers."""
    bytes_sent: int = 0
    staging: StagingCounts = field(default_factory=StagingCounts)
    """Those of the worker itself: a status that is sent has the present ones."""
