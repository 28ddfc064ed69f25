"""Acyclic tables, as with time in the state: each partition is loaded once and taken through all stages.

    p reads q  =>  q comes first;    V of q's boundary after 0, 1, ... stages is kept until its last reader is done

Where the partitions' coupling has no cycle but that each reads itself, an order exists in which a partition comes after
all that it reads. What readers need of it is the value of its boundary states after every number of stages: a history,
which ends where nothing changes any more (in an acyclic model after as many stages as the process can last). Histories
take part of the cache's budget; where that has no room for them, the schedule of skewed stages is taken.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.base import Resident
from ooc_mdp.errors import StoreError
from ooc_mdp.model.mdp import FloatArray, IntArray
from ooc_mdp.model.partition import Coupling
from ooc_mdp.model.table import TableFacts

if TYPE_CHECKING:
    from ooc_mdp.finite_horizon.state import StageState

__all__ = ["AcyclicPlan", "Histories", "plan_acyclic", "take_all_stages", "topological_order"]


@dataclass(frozen=True, slots=True)
class AcyclicPlan:
    """An order in which each partition comes after all that it reads."""

    order: IntArray
    """int64 [P]."""
    last_reader: IntArray
    """int64 [P]; the place in the order of the last partition that reads each one, its own where there is none."""
    history_bytes: int
    """Most bytes of the histories that are kept at a time."""


def plan_acyclic(facts: TableFacts, budget: int, ahead: int, stages: int) -> AcyclicPlan | None:
    """The order; None where partitions read each other in a cycle, or the cache has no room for histories.

    Parameters
    ----------
    budget : bytes of the cache.
    ahead : partitions that are read while another works.
    """
    order = topological_order(facts.coupling)
    if order is None or order.size < 2:
        return None
    n_partitions = order.size
    place = np.empty(n_partitions, np.int64)
    place[order] = np.arange(n_partitions)
    readers = np.repeat(np.arange(n_partitions), np.diff(facts.coupling.ptr))
    last = place.copy()
    np.maximum.at(last, facts.coupling.partitions, place[readers])
    others = facts.coupling.partitions != readers
    read = np.zeros(n_partitions, np.int64)
    np.add.at(read, facts.coupling.partitions[others], facts.partition_halo[readers[others]])
    boundary = np.minimum(read, np.diff(facts.partition_ptr))
    sizes = 8 * (stages + 1) * (boundary + 2)
    # Kept from a partition's own place to its last reader's.
    changes = np.zeros(n_partitions + 1, np.int64)
    np.add.at(changes, place, sizes)
    np.add.at(changes, last + 1, -sizes)
    most = int(np.cumsum(changes)[:-1].max())
    tables = (1 + ahead) * int(facts.partition_bytes.max())
    return AcyclicPlan(order, last, most) if most + tables <= budget else None


def topological_order(coupling: Coupling) -> IntArray | None:
    """int64 [P]: each partition after those that it reads, itself apart; None where there is a cycle (Kahn 1962)."""
    n_partitions = coupling.ptr.size - 1
    readers = np.repeat(np.arange(n_partitions), np.diff(coupling.ptr))
    others = coupling.partitions != readers
    read, reading = coupling.partitions[others], readers[others]
    by_read = np.argsort(read, kind="stable")
    ptr = np.searchsorted(read[by_read], np.arange(n_partitions + 1))
    waiting = np.bincount(reading, minlength=n_partitions)
    order = np.flatnonzero(waiting == 0).tolist()
    for p in order:
        for reader in reading[by_read[ptr[p] : ptr[p + 1]]].tolist():
            waiting[reader] -= 1
            if waiting[reader] == 0:
                order.append(reader)
    return np.array(order, np.int64) if len(order) == n_partitions else None


@dataclass(slots=True)
class _History:
    """A partition after 0, 1, ... stages."""

    states: IntArray
    """int64 [b]; its boundary states."""
    rows: list[FloatArray]
    """float64 [b] each: their values; the last row is that of all later stages."""
    errors: FloatArray
    """float64 [T+1]."""
    sizes: FloatArray
    """float64 [T+1]."""

    def row(self, done: int) -> FloatArray:
        """The values after so many stages."""
        return self.rows[min(done, len(self.rows) - 1)]

    def settled(self, done: int) -> bool:
        """Whether nothing changes after so many stages."""
        return done >= len(self.rows) - 1


@dataclass(slots=True)
class Histories:
    """Of the partitions that others have yet to read."""

    of: dict[int, _History] = field(default_factory=dict)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What a checkpoint holds, by name."""
        kept = sorted(self.of)
        each = [self.of[p] for p in kept]
        nothing = np.zeros(0)
        return {
            "past_partitions": np.array(kept, np.int64),
            "past_counts": np.array([(h.states.size, len(h.rows)) for h in each], np.int64).reshape(-1, 2),
            "past_states": np.concatenate([nothing.astype(np.int64), *(h.states for h in each)]),
            "past_values": np.concatenate([nothing, *(row for h in each for row in h.rows)]),
            "past_bounds": np.concatenate([nothing, *(a for h in each for a in (h.errors, h.sizes))]),
        }

    def restore(self, saved: dict[str, npt.NDArray[Any]], stages: int, where: object) -> None:
        """Continue from what a checkpoint holds; StoreError where that does not fit together."""
        try:
            counts, bounds = saved["past_counts"], saved["past_bounds"].reshape(-1, 2, stages + 1)
            states = np.split(saved["past_states"], np.cumsum(counts[:, 0]))
            values = np.split(saved["past_values"], np.cumsum(counts[:, 0] * counts[:, 1]))
            for i, p in enumerate(saved["past_partitions"].tolist()):
                rows = list(values[i].reshape(counts[i, 1], counts[i, 0]))
                self.of[p] = _History(states[i], rows, bounds[i, 0], bounds[i, 1])
        except (KeyError, ValueError, IndexError) as error:
            raise StoreError(
                f"the checkpoint {where} is damaged (its histories do not fit together); remove it to solve from the "
                f"beginning"
            ) from error


def take_all_stages(state: StageState, plan: AcyclicPlan) -> Generator[None, None, None]:
    """Take each partition through all stages, in the order of the plan; pauses between two of them."""
    stages = state.asked.stages
    for place, p in enumerate(plan.order.tolist()):
        if state.done[p] == stages:
            continue
        resident, hit = state.stager.load_and_access(p)
        state.cache.pin(p)
        state.stager.prefetch_in_order(plan.order[place : place + 1 + state.plan.ahead])
        state.stager.collect()
        taken = _take(state, p, resident)
        state.cache.unpin(p)
        for q in [q for q in state.histories.of if plan.last_reader[q] <= place]:
            del state.histories.of[q]
        state.count(p, hit, taken)
        yield


def _take(state: StageState, p: int, resident: Resident) -> int:
    """Take a partition through all stages; how many had to be computed."""
    facts, stages = state.table.facts, state.asked.stages
    own = slice(int(facts.partition_ptr[p]), int(facts.partition_ptr[p + 1]))
    read = facts.coupling.read_by(p).tolist()
    others = [state.histories.of[q] for q in read if q != p]
    states = own.start + np.flatnonzero(state.backend.boundary(resident))
    mine = _History(states, [state.values[0, states].copy()], np.zeros(stages + 1), np.zeros(stages + 1))
    mine.sizes[0] = state.bounds.sizes[0, p]
    policy = state.policy[: resident.n_states]
    taken, settled = 0, False
    while taken < stages and not settled:
        following = taken % 2
        for other in others:
            state.backend.put(state.values, following, other.states, other.row(taken))
        after = state.backend.advance(resident, state.values, following, policy)
        before = state.values[following, own]
        settled = bool((after.view(np.int64) == before.view(np.int64)).all()) and all(h.settled(taken) for h in others)
        mine.rows.append(after[states - own.start])
        _record(state, p, taken, after, policy, mine, others)
        taken += 1
    final = state.values[taken % 2, own].copy()
    for done in range(taken, stages):  # as the last one was
        _record(state, p, done, final, policy, mine, others)
    state.values[stages % 2, own] = final
    for other in others:
        state.values[stages % 2, other.states] = other.row(stages)
    state.bounds.errors[stages % 2, p], state.bounds.sizes[stages % 2, p] = mine.errors[stages], mine.sizes[stages]
    state.done[p] = stages
    state.histories.of[p] = mine
    return taken


def _record(
    state: StageState, p: int, done: int, values: FloatArray, policy: npt.NDArray[np.int32], mine: _History,
    others: list[_History],
) -> None:  # fmt: skip
    """Write a stage of a partition, and bound its error."""
    stage = state.asked.stages - done - 1
    read = [mine, *others]
    error, size = max(h.errors[done] for h in read), max(h.sizes[done] for h in read)
    mine.errors[done + 1] = state.bounds.record(p, stage, float(error), float(size))
    mine.sizes[done + 1] = float(np.abs(values).max(initial=0.0))
    state.pieces.write_policy(stage, p, policy)
    state.pieces.write_values(stage, p, values)
