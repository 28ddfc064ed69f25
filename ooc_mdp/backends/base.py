"""What a backend is: it holds the value vector and resident partitions, and sweeps them.

To add a backend, define a class that satisfies :class:`Backend` and name it in ``backends/select.py``. A backend
always maximises: the sense is a sign on the rewards. Every sweep backs up each state of the partition exactly once
from values that are at most one sweep old inside the partition, so that the last sweep's changes bound the
residual (see `ooc_mdp.scheduling.residual_bounds`); in which order is the backend's choice. Ties go to the lowest
action. Backends know neither stores nor caches nor priorities.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.state_lists import ListChanges, StateLists
from ooc_mdp.model.contraction import UP
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.partition import Coupling, PartitionTable

__all__ = [
    "Backend",
    "BatchReport",
    "BatchVisits",
    "CompilesLoops",
    "Evaluation",
    "ExchangesValues",
    "FinishedVisits",
    "Improvement",
    "KeepsPolicyRows",
    "Measured",
    "Resident",
    "ShiftsValues",
    "SlotsTooSmall",
    "SweepLimits",
    "SweepsAside",
    "SweepsAtOnce",
    "VisitReport",
    "Visits",
]


@dataclass(frozen=True, slots=True)
class Measured:
    """What a pass over a partition without updates measured: the ranges of both residuals.

    A backend may report 0 for what is below it, but then its values are never shifted.
    """

    rise: float
    """max over its states of N(s); negative where all of them are too high."""
    fall: float
    """-min over its states of N(s) of the policy's action; negative where all of them are too low."""
    plain_rise: float
    """max of max_a Q_a - V."""
    plain_fall: float
    """-min of Q_a - V for the policy's action."""

    def rounded_up(self) -> Measured:
        """Wider by what the subtraction of V and the division may have rounded away, which grows with the residual."""
        return Measured(*(x + abs(x) * (UP - 1) for x in astuple(self)))


@dataclass(frozen=True, slots=True)
class SweepLimits:
    """When a visit's sweeps end."""

    change: float
    """Stop once a sweep changed no value by more than this."""
    most: int
    """Stop after this many sweeps in any case (at least 1)."""
    residual: float = 0.0
    """Bound on the residual in force, plain or normalised, at which a partition is settled."""
    plain: bool = False
    """Whether that is the plain residual."""


@dataclass(frozen=True, slots=True)
class VisitReport:
    """What the sweeps of one access did."""

    sweeps: int
    up: float
    """Largest rise of a value in the last sweep, at least 0."""
    down: float
    """Largest fall of a value in the last sweep, at least 0."""
    boundary_up: float
    """Largest rise of a boundary value over the whole access, at least 0."""
    boundary_down: float
    """Largest fall of a boundary value over the whole access, at least 0."""
    boundary_value: float
    """Largest boundary value that changed (-inf if none did)."""
    largest_value: float
    """Largest value of the partition, or a little more (at most 2^-20 of it)."""
    smallest_value: float
    """Smallest value of the partition, or a little less."""
    measured: Measured | None = field(default=None, kw_only=True)
    """Bounds on the residuals at the values of the end of the access, if the backend has better ones than `up` and
    `down` give. In an access of several partitions they hold at the values of all of them together."""
    backups: int | None = field(default=None, kw_only=True)
    """Backups of a state, where that is not `sweeps` times the partition's states."""
    changed: bool = field(default=True, kw_only=True)
    """False where no value of the partition changed at all."""


@dataclass(frozen=True, slots=True)
class BatchReport:
    """:class:`VisitReport` of k partitions that were swept at the same time, as arrays [k] in their order."""

    sweeps: IntArray
    boundary_up: FloatArray
    boundary_down: FloatArray
    largest_value: FloatArray
    smallest_value: FloatArray
    measured: FloatArray
    """float64 [4, k]: rows as in :class:`Measured`, at the values of all partitions together."""
    backups: IntArray
    changed: npt.NDArray[np.bool_]


class Visits(Protocol):
    """Partitions that are being swept."""

    def done(self) -> bool:
        """Whether `reports` would not wait."""
        ...

    def reports(self) -> list[VisitReport]:
        """What was done to each partition, in the order in which they were given; waits for it."""
        ...


@runtime_checkable
class BatchVisits(Protocol):
    """Visits of hundreds of partitions, for which an object each would keep a device waiting for milliseconds."""

    def batch_report(self) -> BatchReport:
        """What `Visits.reports` says."""
        ...


@dataclass(frozen=True, slots=True)
class FinishedVisits:
    """Visits of a backend that returns when they are done."""

    finished: list[VisitReport]

    def done(self) -> bool:
        """Always."""
        return True

    def reports(self) -> list[VisitReport]:
        """At once."""
        return self.finished


@dataclass(frozen=True, slots=True)
class Resident:
    """A partition as the backend keeps it while it is in the cache."""

    index: int
    n_states: int
    has_durations: bool
    arrays: Sequence[Any]
    """The backend's own arrays, in its own order."""


class SlotsTooSmall(Exception):
    """A partition does not fit into a slot as slots are; `Backend.enlarge` makes larger ones."""


@runtime_checkable
class ShiftsValues(Protocol):
    """A backend whose values can be moved all at once, and whose measurements are signed, so that one knows by what."""

    def shift(self, by: float) -> None:
        """Add a number to all values; nothing may be under way."""
        ...


@runtime_checkable
class SweepsAside(ShiftsValues, Protocol):
    """A backend that can sweep the partitions of a model one after the other, each from the values before them all."""

    def sweep_aside(self, resident: Resident) -> VisitReport:
        """One sweep over all actions whose backups no value takes up yet; the policy becomes greedy.

        The report's bounds are those at the values as they stand; it names no changes of boundary values.
        """
        ...

    def take_aside(self) -> tuple[FloatArray, FloatArray]:
        """All values become the backups of the last `sweep_aside` of every partition, which have been made all.

        Returns
        -------
        two float64 [P] : largest and smallest value of each partition.
        """
        ...

    def aside_bytes(self, model: ModelFacts) -> int:
        """What `sweep_aside` takes beside the cache and what else `plan` names."""
        ...


@runtime_checkable
class SweepsSeveral(Protocol):
    """A backend that sweeps some partitions a number of times as fast as one of them."""

    def visit_several(self, residents: Sequence[Resident], limits: SweepLimits) -> Visits:
        """Begin to sweep partitions, every state of each at least once, as `Backend.visit` does one."""
        ...


@runtime_checkable
class CompilesLoops(Protocol):
    """A backend whose loops are compiled when they are first called."""

    def call_loops(self, resident: Resident, rows: bool) -> None:
        """Call every loop that sweeps or measures partitions like this one, which is all of the model, and with `rows`
        those that keep a policy's rows and evaluate it on them; values and policy are no use afterwards."""
        ...


@runtime_checkable
class SweepsAtOnce(ShiftsValues, Protocol):
    """A backend that sweeps a whole model at once, every state from the values before the sweep."""

    def visit_all(self, residents: Sequence[Resident], most: int, drop: float) -> Visits:
        """Begin to sweep all partitions of the model over their policies, then to measure and improve those.

        Reports bring bounds at the values of all of them, and no changes of boundary values, for no partition is left
        to be told of them. Otherwise as `Backend.visit_together`.

        Parameters
        ----------
        most : most sweeps, at least 0. With 0 the partitions need no policy yet.
        drop : they end once the changes of one differ by no more than this share of what those of the first did.
        """
        ...

    def at_once_bytes(self, model: ModelFacts) -> int:
        """What `visit_all` takes beside the cache and what else `plan` names."""
        ...


@runtime_checkable
class ExchangesValues(Protocol):
    """A backend that can solve a part of the model, where others solve the rest and tell it of their values."""

    def read(self, states: IntArray) -> FloatArray:
        """float64 [k]: the present values of k states; nothing but loads may be under way."""
        ...

    def gather(self, lists: StateLists, which: IntArray) -> FloatArray:
        """float64: the present values of some of the lists (int64 [m]), one after the other."""
        ...

    def take(self, lists: StateLists, which: IntArray, values: FloatArray) -> ListChanges:
        """:meth:`write` for some of the lists (int64 [m]), and by how much the values of each changed."""
        ...

    def write(self, states: IntArray, values: FloatArray, partitions: IntArray, ptr: IntArray) -> None:
        """Take other values of states, each of them once; nothing but loads may be under way.

        States ``states[ptr[i]:ptr[i+1]]`` are of partition ``partitions[i]`` (int64 [k] and [k + 1]; each once), which
        may be resident.
        What this does to the bounds of other partitions is the caller's to know, as after a visit; bounds that later
        visits bring take it into account.
        """
        ...

    def write_policy(self, partition: int, policy: npt.NDArray[np.int32]) -> None:
        """Take the policy of all states of a partition, -1 for each where nobody has chosen actions yet."""
        ...

    def copy(self, start: int, values: FloatArray, policy: npt.NDArray[np.int32]) -> None:
        """Copy values and policy of the states from `start` on to arrays of the host, as many as these hold."""
        ...


@dataclass(frozen=True, slots=True)
class Improvement:
    """What a reading of k partitions at the present values, which stay as they are, found; arrays in their order."""

    measured: FloatArray
    """float64 [4, k]: rows as in :class:`Measured`, over all actions and for the policy as it was made."""
    changed: IntArray
    """int64 [k]; states whose action is another now, or that had none."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What sweeps over the rows of a policy did; arrays of length P, whatever for partitions without rows."""

    backups: int
    """Of a state; products with the matrix of the rows count as one of each state."""
    rise: FloatArray
    """float64 [P]; largest change of a value from the beginning to the end, with its sign."""
    fall: FloatArray
    """float64 [P]; smallest change likewise, its sign turned: -min."""
    measured: FloatArray
    """float64 [4, P]: as in :class:`Measured`, of the policy's actions alone, at the values that resulted."""
    others: FloatArray
    """float64 [P]; max over the states of Q2(s) - V(s): Q2 what the best other action was worth when the partition was
    last improved, V the values that resulted. -inf where no state has another action."""
    largest_value: FloatArray
    """float64 [P]; as in :class:`VisitReport`."""
    smallest_value: FloatArray


@runtime_checkable
class KeepsPolicyRows(Protocol):
    """A backend that keeps the rows of the policy's actions, and evaluates the policy on them without the table.

    Rows are of the whole model: their successors are global states. A partition has rows once it has been improved;
    values of those that have none do not change. What flows between partitions is the caller's affair. While rows are
    open no partition that has some may be swept otherwise: its policy would be another than its rows'.
    """

    def rows_bytes(self, model: ModelFacts) -> int:
        """What rows, Q2 and the workspace of evaluations take beside the cache and what else `plan` names."""
        ...

    def open_rows(self, coupling: Coupling) -> None:
        """Make room for rows; no partition has any, whatever was kept before.

        Parameters
        ----------
        coupling : which partitions read which, for backends that leave some out of a sweep.
        """
        ...

    def close_rows(self) -> None:
        """Free them; values and policy stay."""
        ...

    def improve(self, residents: Sequence[Resident], margin: float) -> Improvement:
        """Make the policy of partitions greedy at the present values, which stay; keep its rows and each state's Q2.

        A state keeps the action that it has unless another is worth more by more than `margin`: where actions tie, a
        policy that changes with the rounding would never be done (Q2 is then that other action's).
        """
        ...

    def evaluate(self, limit: float, most: int) -> Evaluation:
        """Sweep over the rows until no plain residual of the policy is above `limit`, `most` sweeps or so at most.

        The values that result need not be backups of anything: residuals are measured at them, last of all.
        """
        ...


@runtime_checkable
class CompilesRowKernels(Protocol):
    """A backend whose kernels for a policy's rows are not among those that it compiles at the start."""

    def load_row_kernels(self) -> None:
        """Once it has been started; else the first improvement does."""
        ...


class Backend(Protocol):
    """Holds values and policy, admits partitions, sweeps and measures them."""

    name: str
    """"cpu" or "cuda:N"."""
    together: int
    """Most partitions that one call of `visit_together` should be given."""

    loads_beside: bool
    """Whether sweeps leave the host's cores to loads, so that many loads should run beside them."""

    def start(self, model: ModelFacts, values: FloatArray | None, policy: npt.NDArray[np.int32] | None) -> None:
        """Take over the value vector (float64 [n], store order, of the maximisation) and the policy (int32 [n]).

        None stands for values of 0, and for a policy that no state has yet (-1).
        """
        ...

    def plan(self, model: ModelFacts) -> dict[str, int]:
        """Bytes that the backend allocates beside the cache, by name."""
        ...

    def open_cache(self, budget: int) -> int | None:
        """Allocate what partitions will lie in, if that is done beforehand.

        Returns
        -------
        Bytes that each partition then takes of the cache; None where that is the size of its table.

        Raises
        ------
        MemoryBudgetError : the budget holds no partition, or the device has not so much memory.
        """
        ...

    def reader(self, source: Any) -> Callable[[int], tuple[Any, int]] | None:
        """Reads partition p of a source for `prepare`, and says how many bytes came from disk; any thread.

        None where the source's own tables are what `prepare` takes.
        """
        ...

    def enlarge(self) -> None:
        """Slots were too small; nothing is resident. Values and policy stay, `open_cache` must follow."""
        ...

    def prepare(self, table: PartitionTable) -> Any:
        """What of decoding can be done on any thread, while others sweep: its result is for `admit` only."""
        ...

    def admit(self, prepared: Any) -> Resident:
        """Take a prepared table into the layout that sweeps read; takes PartitionTable.nbytes of the cache."""
        ...

    def release(self, resident: Resident) -> None:
        """Free it."""
        ...

    def visit(self, resident: Resident, limits: SweepLimits) -> VisitReport:
        """Sweep the partition until a limit is reached; values and greedy policy are updated."""
        ...

    def visit_together(self, residents: Sequence[Resident], limits: Sequence[SweepLimits]) -> Visits:
        """Begin to sweep partitions at the same time, each within its limits.

        Each may see old or new values of the others, of any sweep: the caller holds that against its bounds, unless
        the reports bring bounds of their own (`VisitReport.measured`). Nothing else may be asked of the backend
        before `Visits.reports` has returned, apart from `prepare` and `admit`, and `release` of other partitions.
        """
        ...

    def measure(self, resident: Resident, significant: float) -> tuple[Measured, float]:
        """Residuals at the present values, and the largest B + V where |B| > significant.

        Values stay as they are; a state that has never been swept gets its greedy action as its policy.
        """
        ...

    def values(self) -> FloatArray:
        """float64 [n]: the values now, on the host."""
        ...

    def policy(self) -> npt.NDArray[np.int32]:
        """int32 [n]: the greedy action of each state at its last backup (-1: none), on the host."""
        ...

    def close(self) -> None:
        """Free everything."""
        ...
