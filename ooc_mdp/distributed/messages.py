"""The messages between workers and their coordinator; they cross the network as they are here.

    coordinator ─▶ worker    Assignment, ValueRange, Start, Pause, Stop; MigrateRequest and SnapshotRequest, answered
    worker ─▶ coordinator    Status, when it becomes passive and at times between
    worker ─▶ worker         Subscribe: states of a partition whose values are requested; Update: their values

A partition has one owner at a time. *Epochs* number the assignments of owners; a partition's *generation* is the epoch
in which its present owner received it, so that late messages of an earlier owner are recognised.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import OocMdpError
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.statistics import SolveStatistics
from ooc_mdp.solver.history import PartitionCounts

__all__ = [
    "MIN_BANDWIDTH",
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

MIN_BANDWIDTH = 10e6
"""Bytes per second that every connection carries; timeouts of large messages are longer accordingly."""


@dataclass(frozen=True, slots=True)
class Values:
    """The values of k partitions."""

    partitions: IntArray
    """int64 [k], ascending."""
    values: FloatArray
    """float64; values of their states, one partition after the other."""
    policy: npt.NDArray[np.int32]
    """int32; likewise."""
    visited: npt.NDArray[np.bool_]
    """bool [k]."""
    bounds: FloatArray | None = None
    """float64 [4, k]: rows as `ResidualBounds.arrays` names them, at the values of all partitions of the model; None
    where there are none."""
    counts: PartitionCounts | None = None
    """In a snapshot: what the worker has done since it started, to partitions that it has lost as well."""

    @property
    def nbytes(self) -> int:
        """Return the bytes of the arrays of states."""
        return self.values.nbytes + self.policy.nbytes


def contiguous_runs(partitions: IntArray, partition_ptr: IntArray) -> list[tuple[slice, slice]]:
    """Return where the states of partitions (int64 [k], ascending) lie in all values, and where in their `Values`.

    One pair of slices for each run of neighbours.
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
    """The owners of all partitions from now on."""

    epoch: int
    owner: npt.NDArray[np.int32]
    """int32 [P]; number of the worker, -1 while a partition is migrated."""
    generation: npt.NDArray[np.int32]
    """int32 [P]."""
    addresses: dict[int, str]
    """Addresses of the workers that take part, by number."""
    initial_values: Values | None = None
    """Last known values of partitions that the worker gains, as far as there are any."""
    initial_start: bool = False
    """Whether all workers begin at values that all of them know: the store's initial ones, or 0."""

    @property
    def nbytes(self) -> int:
        """Return the bytes of the arrays."""
        return (
            self.owner.nbytes
            + self.generation.nbytes
            + (0 if self.initial_values is None else self.initial_values.nbytes)
        )


@dataclass(frozen=True, slots=True)
class ValueRange:
    """The range of all values, on which relative targets depend."""

    smallest: float
    largest: float
    size: float
    """Largest |V| so far."""


@dataclass(frozen=True, slots=True)
class Start:
    """Begin or continue to sweep."""

    seconds: float = 0.0
    """Seconds of the solve so far, from which the worker's clock continues."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Stop sweeping; values are still received and sent."""


@dataclass(frozen=True, slots=True)
class MigrateRequest:
    """Give up dirty partitions outside the cache for another worker; answered with their `Values`."""

    most: int
    """Most partitions to give up."""
    cached: bool = False
    """Whether partitions in the cache may be given up too."""


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """Answered with the `Values` of all partitions of the worker, with bounds."""


@dataclass(frozen=True, slots=True)
class Stop:
    """End the solver."""


class Command(NamedTuple):
    """A numbered command of the coordinator."""

    number: int
    """Increases from command to command; a command that is sent again keeps its number."""
    what: Assignment | ValueRange | Start | Pause | MigrateRequest | SnapshotRequest | Stop


@dataclass(frozen=True, slots=True)
class StatusRequest:
    """Answered with the `Status` once its version differs from the one seen."""

    seen: int = -1
    """Version of the last status; -1 for an immediate answer."""
    wait: float = 0.0
    """Most seconds to wait for another version."""


@dataclass(frozen=True, slots=True)
class PostRequest:
    """Put a command into the mailbox; answered with `Accepted`, before the command is executed."""

    command: Command


@dataclass(frozen=True, slots=True)
class CommandRequest:
    """Execute a command; answered with its result, `Values` or None."""

    command: Command


@dataclass(frozen=True, slots=True)
class DeliverRequest:
    """Put a message of another worker into the mailbox; answered with `Accepted`."""

    message: Subscribe | Update


@dataclass(frozen=True, slots=True)
class EvictRequest:
    """The others continue without the worker; answered with `Accepted`."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The request has been executed, or is in the mailbox."""


@dataclass(frozen=True, slots=True)
class NoSuchRun:
    """The process has no mailbox of this run; `Transport.request` raises `NoSuchRunError` instead."""


class NoSuchRunError(OocMdpError):
    """The process has no solver of the run: it has ended, or was not started."""


class StateList(NamedTuple):
    """States of a partition whose values a worker reads."""

    partition: int
    serial: int
    """Number of this version of the list; the values that answer it carry the number."""
    states: IntArray
    """int64, ascending."""


@dataclass(frozen=True, slots=True)
class Subscribe:
    """A subscriber's request to an owner; answered by an `Update`."""

    sender: int
    number: int
    """Number of the message among the sender's; one that arrives after a later one is ignored: it was sent again."""
    wanted: list[StateList]

    @property
    def nbytes(self) -> int:
        """Return the bytes of the arrays."""
        return sum(w.states.nbytes for w in self.wanted)


@dataclass(frozen=True, slots=True)
class Update:
    """Values that an owner sends to a subscriber."""

    sender: int
    number: int
    """Number of the message among the sender's; one that arrives after a later one is ignored: it was sent again."""
    partitions: IntArray
    """int64 [k]; each once."""
    serials: IntArray
    """int64 [k]; of the lists of states whose values these are."""
    generations: IntArray
    """int64 [k]."""
    ptr: IntArray
    """int64 [k + 1]; where the values of each partition begin."""
    values: FloatArray

    @property
    def nbytes(self) -> int:
        """Return the bytes of the arrays."""
        return sum(a.nbytes for a in (self.partitions, self.serials, self.generations, self.ptr, self.values))


WorkerRequest = StatusRequest | PostRequest | CommandRequest | DeliverRequest | EvictRequest
"""The requests to a worker's process; each class has a handler."""


@dataclass(slots=True)
class StagingCounts:
    """Bytes that one worker has staged and loaded; those of a running worker increase."""

    bytes_staged: int = 0
    """Copied to the worker's node."""
    bytes_read_staged: int = 0
    """Loaded from copies on the node, with prefetched partitions that were not used."""
    bytes_read_shared: int = 0
    """Loaded from the shared store, likewise; counted where the solve stages."""


@dataclass(slots=True)
class Status:
    """The published status of a worker."""

    version: int = 0
    """Increases whenever the coordinator should see a change."""
    activity: int = 0
    """Count of the messages put into its mailbox: with the same count and `passive` twice, it was passive between."""
    started: bool = False
    """Whether its thread has started; otherwise the worker's threads are busy with other tasks."""
    compiling: bool = False
    """Whether it compiles loops before it is ready."""
    ready: bool = False
    """Whether it has loaded its code and allocated its memory."""
    stalled_seconds: float = 0.0
    """Seconds since its thread last looked for messages, as it does between two accesses; 0 while it waits."""
    passive: bool = False
    """Whether it has nothing to sweep, no messages to process and none in flight."""
    paused: bool = True
    epoch: int = -1
    """Epoch of the last assignment that it has applied."""
    pending: bool = True
    """Whether some of its partitions wait for values that they read."""
    dirty: int = 0
    """Own partitions whose bounds exceed the target."""
    absent_dirty: int = 0
    """Dirty partitions outside the cache."""
    resident: int = 0
    """Partitions in the cache, whichever solver owns them now."""
    error_bound: float = float("inf")
    residual_bound: float = float("inf")
    smallest: float = float("inf")
    largest: float = float("-inf")
    """Largest own value; less than `smallest` where it owns none."""
    size: float = 0.0
    outcome: str | None = None
    """Word of the outcome, where it cannot continue."""
    statistics: SolveStatistics = field(default_factory=SolveStatistics)
    idle_seconds: float = 0.0
    messages: int = 0
    """Sent to other workers."""
    bytes_sent: int = 0
    staging: StagingCounts = field(default_factory=StagingCounts)
    """The worker's own object, so that a status that is sent has the present counts."""
