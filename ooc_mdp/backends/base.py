"""What a backend is: it holds the value vector and resident partitions, and sweeps them.

To add a backend, define a class that satisfies :class:`Backend` and name it in ``backends/select.py``. A backend
always maximises: the sense is a sign on the rewards. Every sweep backs up each state of the partition exactly once
from values that are at most one sweep old inside the partition, so that the last sweep's changes bound the
residual (see `ooc_mdp.scheduling.residual_bounds`); in which order is the backend's choice. Ties go to the lowest
action. Backends know neither stores nor caches nor priorities.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.layout import Layout, Needs
from ooc_mdp.backends.state_lists import ListChanges, StateLists
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.partition import Coupling, PartitionTable
from ooc_mdp.model.state_order import GridOrder
from ooc_mdp.model.table import Loader

__all__ = [
    "RESIDUALS",
    "Backend",
    "Backups",
    "Evaluation",
    "Features",
    "FinishedVisit",
    "Improvement",
    "Loops",
    "PolicyEvaluation",
    "PolicyRows",
    "Resident",
    "SweepLimits",
    "SynchronousSweeps",
    "Visit",
    "VisitReport",
]


RESIDUALS = ("rise", "fall", "plain_rise", "plain_fall")
"""Rows of what a pass over partitions without updates measures, float64 [4, k]: max over a partition's states of N(s)
(negative where all of them are too high), -min of N(s) of the policy's action (negative where all are too low), max of
max_a Q_a - V, and -min of Q_a - V for the policy's action. A backend may report 0 for what is below it, but then its
values are never shifted."""


@dataclass(frozen=True, slots=True)
class SweepLimits:
    """When the sweeps of a visit end."""

    change: FloatArray | float
    """float64 [k], or one for all; a partition is left once a sweep changes no value of it by more than this."""
    most: int
    """Full sweeps of each partition at most (at least 1). `relax` on the CPU, whose rounds are no full sweeps, ends by
    `change` and `residual` alone."""
    residual: float = 0.0
    """Bound on the residual in force, plain or normalised, at which a partition is settled."""
    plain: bool = False
    """Whether that is the plain residual."""
    unmeasured: float = math.inf
    """A partition whose last sweep was a full one and changed a value by more than so many times `change` need not be
    measured: bounds on its residuals follow from that change."""

    def changes(self, count: int) -> FloatArray:
        """float64 [count]; `change` of each of so many partitions."""
        return np.full(count, self.change, np.float64)


@dataclass(frozen=True, slots=True)
class VisitReport:
    """What the sweeps of k partitions did; arrays [k] in the order in which the partitions were given."""

    sweeps: IntArray
    backups: IntArray
    """Of a state."""
    boundary_rise: FloatArray
    """Largest rise of a boundary value over the whole visit, at least 0."""
    boundary_fall: FloatArray
    """Largest fall likewise."""
    boundary_value: FloatArray
    """Largest boundary value that changed (-inf if none did)."""
    largest_value: FloatArray
    """Largest value of the partition, or a little more (at most 2^-20 of it)."""
    smallest_value: FloatArray
    """Smallest value of the partition, or a little less."""
    residuals: FloatArray | None = None
    """float64 [4, k]; bounds on the residuals as in `RESIDUALS`; None: only `last_change` tells."""
    joint: bool = False
    """Whether `residuals` hold at the values of all k partitions together, at the end of the visit."""
    last_change: FloatArray | None = None
    """float64 [2, k]; largest rise and fall of a value in the last sweep, which was one of every state, at least 0."""
    changed: bool = True
    """False where no value changed at all."""


class Visit(Protocol):
    """Sweeps that have begun."""

    def done(self) -> bool:
        """Whether `report` would not wait."""
        ...

    def report(self) -> VisitReport:
        """What was done; waits for it."""
        ...


@dataclass(frozen=True, slots=True)
class FinishedVisit:
    """A visit of a backend that returns when it is done."""

    finished: VisitReport

    def done(self) -> bool:
        """Always."""
        return True

    def report(self) -> VisitReport:
        """Without waiting."""
        return self.finished


@dataclass(frozen=True, slots=True)
class Resident:
    """A partition as the backend keeps it while it is in the cache."""

    index: int
    n_states: int
    has_durations: bool
    arrays: Sequence[Any]
    """The backend's own arrays, in its own order."""


@dataclass(frozen=True, slots=True)
class Features:
    """What a backend can do."""

    overlaps_loads: bool
    """Sweeps leave the host's cores free, so that many loads should run beside them."""
    sweep_batch: int = 1
    """Partitions that `sweep` takes as fast as one; 1 where it takes them one after the other."""


class Loops(enum.Flag):
    """Methods of a backend whose compiled loops are loaded before a solve: those that it is likely to call."""

    MEASURE = enum.auto()
    """`measure`"""
    BATCHES = enum.auto()
    """`relax`"""
    SINGLE = enum.auto()
    """`sweep`"""
    PASSES = enum.auto()
    """`sweep_synchronously`"""
    POLICY_ROWS = enum.auto()
    """Improvement and evaluation of policies."""


@dataclass(frozen=True, slots=True)
class Backups:
    """What a sweep of k partitions did; arrays in their order."""

    rise: FloatArray
    """float64 [k]; largest change of a value, with its sign."""
    fall: FloatArray
    """float64 [k]; smallest change likewise, its sign turned: -min."""
    largest_value: FloatArray
    """float64 [k]"""
    smallest_value: FloatArray


@dataclass(frozen=True, slots=True)
class Improvement:
    """What a reading of k partitions at the present values, which stay as they are, found; arrays in their order."""

    measured: FloatArray
    """float64 [4, k]: rows as in `RESIDUALS`, over all actions and for the policy as it was made."""
    changed: IntArray
    """int64 [k]; states whose action is another now, or that had none."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What sweeps over the rows of a policy did; arrays of length P, whatever for partitions without rows."""

    backups: int
    """Of a state, since the last report; products with the matrix of the rows count as one of each state."""
    rise: FloatArray
    """float64 [P]; largest change of a value since the last report, or the beginning, with its sign."""
    fall: FloatArray
    """float64 [P]; smallest change likewise, its sign turned: -min."""
    measured: FloatArray
    """float64 [4, P]: as in `RESIDUALS`, of the policy's actions alone, at the values that resulted."""
    second_best: FloatArray
    """float64 [P]; max over the states of Q2(s) - V(s): Q2 what the best other action was worth when the partition was
    last improved, V the values that resulted. -inf where no state has another action."""
    largest_value: FloatArray
    """float64 [P]; as in :class:`VisitReport`."""
    smallest_value: FloatArray


class PolicyEvaluation(Protocol):
    """An evaluation under way, which keeps all that it works with however often it is left.

    Between two calls partitions may not be improved, but others may change values of partitions that have no rows.
    """

    def advance(self, seconds: float) -> bool:
        """Work for about so long, one step at least; whether the evaluation is done."""
        ...

    def report(self) -> Evaluation:
        """What it has done since the last report, measured at the values as they stand; at any time."""
        ...


class PolicyRows(Protocol):
    """The rows of the policy's actions, kept apart from the table, and the policy's evaluation on them.

    Rows are of the whole model: their successors are global states. A partition has rows once it has been improved;
    values of those that have none do not change. What flows between partitions is the caller's affair. While rows are
    open no partition that has some may be swept otherwise: its policy would be another than its rows'.
    """

    def rows_bytes(self, facts: ModelFacts) -> int:
        """What rows, Q2 and the workspace of evaluations take where no layout has planned for them."""
        ...

    def open_rows(self, coupling: Coupling) -> None:
        """Make room for rows, as the layout has planned; no partition has any, whatever was kept before.

        Parameters
        ----------
        coupling : which partitions read which, for backends that leave some out of a sweep.
        """
        ...

    def close_rows(self) -> None:
        """Free them; values and policy stay."""
        ...

    def back_up(self, residents: Sequence[Resident]) -> Backups:
        """Every state of partitions becomes its backup over all actions, from the values before (Jacobi).

        The policy stays as it is, and so do rows.
        """
        ...

    def improve(self, residents: Sequence[Resident], margin: float) -> Improvement:
        """Make the policy of partitions greedy at the present values, which stay; keep its rows and each state's Q2.

        A state keeps the action that it has unless another is worth more by more than `margin`: where actions tie, a
        policy that changes with the rounding would never be done (Q2 is then that other action's).
        """
        ...

    def evaluation(self, limit: float, most: int) -> PolicyEvaluation:
        """Begin to evaluate the policy: until no plain residual of it is above `limit`, `most` sweeps or so at most.

        No other may be under way. The values that result need not be backups of anything: residuals are measured at
        them.
        """
        ...


class SynchronousSweeps(Protocol):
    """Sweeps of a whole model from the values before them (Jacobi), partition by partition; residuals are signed."""

    def sweep_synchronously(self, residents: Sequence[Resident]) -> VisitReport:
        """One sweep over all actions whose backups no value takes up yet; the policy becomes greedy.

        The report's residuals are those at the values as they stand, signed; it names no changes of boundary values.
        """
        ...

    def commit(self) -> tuple[FloatArray, FloatArray]:
        """All values become the backups of the last `sweep_synchronously` of every partition, which have all been made.

        Returns
        -------
        two float64 [P] : largest and smallest value of each partition.
        """
        ...

    def shift(self, by: float) -> None:
        """Add a number to all values; nothing may be under way."""
        ...


class Backend(Protocol):
    """Holds values and policy, admits partitions, sweeps and measures them."""

    name: str
    """"cpu" or "cuda:N"."""
    features: Features

    @property
    def synchronous(self) -> SynchronousSweeps | None:
        """Sweeps from the values before them, where it has such."""
        ...

    @property
    def policy_rows(self) -> PolicyRows | None:
        """Evaluation of policies without the table, where it has that."""
        ...

    def load_code(self, facts: ModelFacts, loops: Loops) -> None:
        """Compile and load what calls of these methods on such a model need.

        Before `start`; nothing else of the backend changes.
        """
        ...

    def free_bytes(self) -> int | None:
        """Bytes that can be allocated now where the cache lies; None where that is unknown."""
        ...

    def layout(self, facts: ModelFacts, needs: Needs) -> Layout:
        """How the model would be held; a pure function, which leaves the backend as it is.

        Raises
        ------
        MemoryBudgetError : the cache, or what a device's budget leaves for it, holds no partition.
        OptionsError : there is a budget of a device, and this is none.
        """
        ...

    def enlarged(self, layout: Layout) -> Layout:
        """The layout with larger slots, after `SlotsTooSmall`; as pure as :meth:`layout`, and raises what that does."""
        ...

    def start(
        self,
        facts: ModelFacts,
        layout: Layout,
        values: FloatArray | None,
        policy: npt.NDArray[np.int32] | None,
        loader: Loader | None = None,
    ) -> None:
        """Allocate what a layout of the model names, and take over values and policy; then nothing is resident.

        Parameters
        ----------
        values : float64 [n], store order, of the maximisation; None for values of 0.
        policy : int32 [n]; None for a policy that no state has yet (-1).
        loader : how partitions are read for `fetch`; None where `prepare` is given every table.

        Raises
        ------
        MemoryBudgetError : the device, or the system for the cache, does not have that much memory.
        """
        ...

    def fetch(self, p: int) -> tuple[Any, int]:
        """Read partition p and prepare it for `admit`, on any thread; with the bytes that were read from disk."""
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

    def sweep(self, residents: Sequence[Resident], limits: SweepLimits) -> Visit:
        """Sweep every state of partitions until a limit is reached; values and greedy policy are updated.

        Rules for the time until the visit is done are those of `relax`.
        """
        ...

    def relax(self, residents: Sequence[Resident], limits: SweepLimits) -> Visit:
        """Begin to work on partitions together, in any order, each until it is settled or a limit is reached.

        Each may see old or new values of the others, of any sweep: the caller holds that against its bounds, unless
        the report's residuals are `joint`. Nothing else may be asked of the backend before `Visit.report` has returned,
        apart from `prepare` and `admit`, `release` of other partitions, and where `features.overlaps_loads` one more
        `relax`, whose work begins when this one's has ended: reports are asked for in the same order, each of values
        at the end of its own.
        """
        ...

    def measure(self, resident: Resident, significant: float) -> tuple[FloatArray, float]:
        """Residuals at the present values (float64 [4], as in `RESIDUALS`), and the largest B + V where
        |B| > significant.

        Values stay as they are; a state that has never been swept gets its greedy action as its policy.
        """
        ...

    def read(self, states: IntArray) -> FloatArray:
        """float64 [k]: the present values of k states; nothing but loads may be under way."""
        ...

    def gather(self, lists: StateLists, which: IntArray) -> FloatArray:
        """float64: the present values of some of the lists (int64 [m]), one after the other."""
        ...

    def write_lists(self, lists: StateLists, which: IntArray, values: FloatArray) -> ListChanges:
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
        """Take the policy of all states of a partition, -1 for each where no actions have been chosen yet."""
        ...

    def copy(self, start: int, values: FloatArray, policy: npt.NDArray[np.int32]) -> None:
        """Copy values and policy of the states from `start` on to arrays of the host, as many as these hold."""
        ...

    def values(self, order: GridOrder | None = None) -> FloatArray:
        """float64 [n]: the values now, on the host; in the grid's order of states, a new array, if one is given."""
        ...

    def policy(self, order: GridOrder | None = None) -> npt.NDArray[np.int32]:
        """int32 [n]: the greedy action of each state at its last backup (-1: none), likewise."""
        ...

    def close(self) -> None:
        """Free everything."""
        ...
