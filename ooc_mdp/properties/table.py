"""The table of a question: another table's, with the rewards that are asked for, and states in which the process ends.

    Reachability    rows pay 0; the process ends in goal states, where it pays 1, and in avoided states
    RewardToGoal    rows pay by the named reward model; the process ends in goal states
    others          rows pay by the named reward model, where one is named, in the sense that is asked for

With `reachable` the process ends, with value 0, in all states that initial states never lead to.

A state in which the process ends keeps its rows, which end the process then (infinite duration), so that pointers and
successors are those of the other table. Its facts are replaced, the fingerprint among them, which is that of the other
table and of the question together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import OptionsError
from ooc_mdp.model.annotations import INITIAL, Annotations, StateSet, unknown_name
from ooc_mdp.model.criterion import recorded_criterion
from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.model.partition import PartitionTable, led_back
from ooc_mdp.model.table import DerivedTable, Loader, Table, TableFacts
from ooc_mdp.properties.expression import states_where
from ooc_mdp.properties.reachable import reachable_states, reward_ranges
from ooc_mdp.solver.verify import from_original
from ooc_mdp.store.seal import hash_of

__all__ = ["CONTINUES", "GOAL", "INFINITE", "STOPPED", "AskedTable", "Ends", "asked_table"]

CONTINUES, GOAL, STOPPED, INFINITE = (np.uint8(code) for code in range(4))
"""What happens in a state: a row is taken; or the process ends, at the goal, without it, or at an infinite value."""
Ends = npt.NDArray[np.uint8]
"""uint8 [n_states]; one of these codes for each state, in the table's order."""
_TITLE = "ooc-mdp question 1"
_OWN = "table"
"""Word for the table's own rewards."""


@dataclass(eq=False)
class AskedTable(DerivedTable):
    """A table as a question sees it; reads partitions of the other one."""

    base: Table
    facts: TableFacts
    pays_goal: bool
    """Whether reaching the goal is all that pays."""
    model: str | None
    """The reward model, None for the other table's own rewards."""
    ends: Ends | None
    """None where the process ends nowhere else than in the other table."""
    penalty: float = 0.0
    """What a row pays that leads to a state of infinite value: it becomes a self-loop, which no good policy takes. 0
    where such rows stay as they are."""
    has_goal: bool = False
    """Whether the question names a goal."""

    @classmethod
    def of(cls, table: Table) -> AskedTable:
        """A table as it is, in which ends can be set."""
        return cls(table, _with_rewards(table.facts, table.annotations, None, ending=True), False, None, None)

    def with_ends(self, ends: Ends, penalty: float = 0.0) -> AskedTable:
        """The same table with other ends; its facts must allow for some."""
        assert not self._same_rows
        return replace(self, ends=ends, penalty=penalty)

    @property
    def _same_rows(self) -> bool:
        """Whether partitions are those of the other table, of another sense."""
        return self.facts.dtypes is self.base.facts.dtypes

    @property
    def limits(self) -> tuple[float, float]:
        """Numbers between which every answer lies, whatever was proved: a probability's, or one sign's."""
        if self.pays_goal:
            return 0.0, 1.0
        low, high = self.facts.reward_range[:, 0].min(), self.facts.reward_range[:, 1].max()
        return (0.0 if low >= 0 else -np.inf), (0.0 if high <= 0 and low < 0 else np.inf)

    def read(self, p: int) -> tuple[PartitionTable, int]:
        """Partition p of the other table with the question's rewards and ends."""
        table, n_bytes = self.base.read(p)
        if self._same_rows:
            return table, n_bytes
        counts = table.action_counts()
        rewards, terminal, durations = self._rewards(table), self._terminal(table), table.durations
        if "durations" in self.facts.dtypes:
            durations = durations.copy() if durations.size else np.ones(table.n_rows)
        if self.ends is None:
            return replace(table, rewards=rewards, terminal_rewards=terminal, durations=durations), n_bytes
        ends = self.ends[table.first_state : table.first_state + table.n_states]
        ended = np.repeat(ends != CONTINUES, counts)
        durations[ended] = np.inf
        rewards = np.where(ended, rewards.dtype.type(0), rewards)
        terminal = np.where(ends != CONTINUES, 0.0, terminal)
        if self.pays_goal:
            rewards[np.repeat(ends == GOAL, counts)] = 1
            terminal[ends == GOAL] = 1
        successors = table.successors
        if self.penalty:
            successors = self._without_infinite(table, ended, rewards)
        asked = replace(table, rewards=rewards, durations=durations, terminal_rewards=terminal, successors=successors)
        return asked, n_bytes

    def _rewards(self, table: PartitionTable) -> npt.NDArray[np.floating[Any]]:
        """[m]; what rows pay before the process ends anywhere."""
        if self.pays_goal:
            return np.zeros_like(table.rewards)
        if self.model is None:
            return table.rewards
        first = int(self.base.facts.partition_rows[: table.index].sum())
        rewards = self.base.annotations.rewards(self.model, first, first + table.n_rows)
        return rewards.astype(table.rewards.dtype, copy=False)

    def _terminal(self, table: PartitionTable) -> FloatArray:
        """[n]; the values of states without action."""
        if self.pays_goal:
            return np.zeros(table.n_states)
        if self.model is None:
            return table.terminal_rewards if table.terminal_rewards.size else np.zeros(table.n_states)
        end = table.first_state + table.n_states
        return self.base.annotations.terminal_rewards(self.model, table.first_state, end)

    def _without_infinite(
        self,
        table: PartitionTable,
        ended: npt.NDArray[np.bool_],
        rewards: npt.NDArray[np.floating[Any]],
    ) -> npt.NDArray[np.unsignedinteger[Any]]:
        """Successors in which rows to states of infinite value lead to their own state; `rewards` changes."""
        assert self.ends is not None
        local = np.concatenate([self.ends[table.first_state : table.first_state + table.n_states],
                                self.ends[table.halo]])  # fmt: skip
        row = np.repeat(np.arange(table.n_rows), table.row_lengths())
        infinite = np.zeros(table.n_rows, np.bool_)
        infinite[row[(local[table.successors] == INFINITE) & (table.probabilities > 0)]] = True
        infinite &= ~ended
        rewards[infinite] = self.penalty
        return led_back(table, infinite)

    def loader(self, device: str) -> Loader:
        """Tables are made of the other one's in host memory; as they are, where only the sense is another."""
        other = self.base.loader(device)
        if self._same_rows:
            return other
        most = int(self.facts.partition_bytes.max())
        return Loader(self.read, other.scratch_bytes + most, prefetch=other.prefetch)

    def read_field(self, name: str, p: int) -> tuple[npt.NDArray[Any], int]:
        """A field that questions leave as it is comes from the other table."""
        if name in ("rewards", "durations", "terminal_rewards", "successors"):
            return super().read_field(name, p)
        return self.base.read_field(name, p)

    def checking_sha256(self) -> Table:
        """The same question to the other table, checked."""
        return replace(self, base=self.base.checking_sha256())


def asked_table(table: Table, record: Mapping[str, Any]) -> Table:
    """The table of a question; the table itself where it changes nothing.

    Parameters
    ----------
    record : of the criterion, as results have it (`ooc_mdp.model.criterion.record_of`).

    Raises
    ------
    OptionsError : there is no such label or reward model, or several reward models and none is named.
    """
    kept, kind = table.annotations, recorded_criterion(record)
    sense = record.get("asked_sense") or table.sense
    probability = kind == "reachability"
    model = None if probability else _reward_model(table, record.get("reward"))
    ends = None
    if "goal" in record:
        goal, avoid = (_states(table, record.get(name)) for name in ("goal", "avoid"))
        ends = np.where(goal, GOAL, np.where(avoid, STOPPED, CONTINUES)).astype(np.uint8)
    initial = _initial_states(table) if record.get("reachable") else None
    if initial is not None and ends is None:
        ends = np.full(table.n_states, CONTINUES)
    if ends is None and model is None and sense == table.sense:
        return table
    facts, ending = table.facts, ends is not None or bool(record.get("infinite"))
    if model is not None or ending:
        facts = _with_rewards(facts, kept, model, ending)
    if probability:
        facts = replace(facts, reward_range=np.tile([0.0, 1.0], (table.n_partitions, 1)))
    if initial is not None:
        assert ends is not None
        ends, ranges = _only_reachable(AskedTable(table, facts, probability, model, ends), initial)
        facts = replace(facts, reward_range=ranges)
    about = {"table": table.fingerprint, "sense": sense, "probability": probability, "reward": model}
    fingerprint = hash_of(_TITLE, about, {} if ends is None else {"ends": ends})
    if ends is not None:
        low, high = facts.reward_range.T
        ranges = np.stack([np.minimum(low, 0.0), np.maximum(high, 0.0)], axis=1)
        durations = np.stack([facts.duration_range[:, 0], np.full(table.n_partitions, np.inf)], axis=1)
        facts = replace(facts, reward_range=ranges, duration_range=durations)
    facts = replace(facts, sense=sense, fingerprint=fingerprint, attributes={**facts.attributes, "sense": sense})
    return AskedTable(table, facts, probability, model, ends, has_goal="goal" in record)


def _initial_states(table: Table) -> StateSet:
    """bool [n_states]; the initial states, in the table's order; OptionsError where the model names none."""
    labels = table.annotations.labels
    found = _states(table, f'"{INITIAL}"') if INITIAL in labels else np.zeros(0, np.bool_)
    if not found.any():
        raise OptionsError(
            f"{table.name} names no initial states, which --reachable asks about (in Python reachable=True); leave it "
            f"out, or give the states the label {INITIAL}"
        )
    return found


def _only_reachable(asked: AskedTable, initial: StateSet) -> tuple[Ends, FloatArray]:
    """Ends in all states that initial ones never lead to, and the range of rewards in each partition without them."""
    assert asked.ends is not None
    reached = reachable_states(asked, initial)
    ends = np.where(reached, asked.ends, np.where(asked.ends == CONTINUES, STOPPED, asked.ends))
    return ends, reward_ranges(asked.with_ends(ends), reached & (ends == CONTINUES))


def _reward_model(table: Table, name: str | None) -> str | None:
    """The reward model that is named, None for the table's own.

    Raises
    ------
    OptionsError : there is none of the name, or several and none is named.
    """
    kept = table.annotations
    if name is None or (name == _OWN and name not in kept.reward_models):
        if not kept.rewards_chosen:
            raise OptionsError(
                f"the model has the reward models {', '.join(kept.reward_models)}: name one (--reward NAME, in Python "
                f"reward=...), or convert again with --reward-model NAME"
            )
        return None
    if name == kept.table_rewards:
        return None
    if name not in kept.reward_models:
        raise unknown_name("reward model", name, kept.reward_models or (_OWN,))
    return name


def _states(table: Table, expression: str | None) -> StateSet:
    """bool [n_states]; where an expression holds, in the table's order."""
    if expression is None:
        return np.zeros(table.n_states, np.bool_)
    found = states_where(expression, table.annotations, table.n_states)
    ordered: StateSet = from_original(table, found)
    return ordered


def _with_rewards(facts: TableFacts, kept: Annotations, model: str | None, ending: bool) -> TableFacts:
    """Facts of the table with the rewards of a model, values of states and, if rows may end, durations."""
    dtypes = {**facts.dtypes, "terminal_rewards": np.dtype(np.float64)}
    states, rows = np.diff(facts.partition_ptr), facts.partition_rows
    more = 8 * states * ("terminal_rewards" not in facts.dtypes)
    if ending:
        dtypes["durations"] = np.dtype(np.float64)
        more += 8 * rows * ("durations" not in facts.dtypes)
    ranges = facts.reward_range
    if model is not None:
        low, high = np.array(kept.reward_range(model)).astype(facts.dtypes["rewards"]).astype(np.float64)
        terminal = np.array(kept.reward_range(model))
        ranges = np.tile([min(low, terminal[0]), max(high, terminal[1])], (rows.size, 1))
    return replace(
        facts,
        dtypes=dtypes,
        partition_bytes=facts.partition_bytes + more,
        reward_range=ranges,
        duration_dtype=np.dtype(np.float64) if ending else facts.duration_dtype,
        stored_fields=(),
        frame_buffer_bytes=0,
    )
