"""Small ragged MDPs as plain Python objects, a source and a problem made of one, and the way back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from ooc_mdp.io.annotations import SourceAnnotations
from ooc_mdp.io.left_out import LeftOut
from ooc_mdp.io.source import BlockReader
from ooc_mdp.io.state_rows import StateRows
from ooc_mdp.model.mdp import Block, Rows
from ooc_mdp.problems.problem import RowBounds
from ooc_mdp.store import Store


@dataclass(frozen=True)
class Action:
    reward: float
    successors: dict[int, float]
    duration: float = 1.0
    label: int = 0


@dataclass(frozen=True)
class State:
    actions: tuple[Action, ...]
    terminal_reward: float = 0.0
    initial_value: float = 0.0


@dataclass(frozen=True)
class Model:
    states: tuple[State, ...]
    durations: bool = False
    labels: bool = False
    initial_values: bool = False

    def rows(self, numbers: np.ndarray) -> Rows:
        states = [self.states[i] for i in numbers]
        actions = [a for s in states for a in s.actions]
        terminal = np.array([s.terminal_reward for s in states])
        return Rows(
            action_ptr=ptr(len(s.actions) for s in states),
            successor_ptr=ptr(len(a.successors) for a in actions),
            successors=np.array([s for a in actions for s in sorted(a.successors)], np.int64),
            probabilities=np.array([a.successors[s] for a in actions for s in sorted(a.successors)], np.float64),
            rewards=np.array([a.reward for a in actions], np.float64),
            terminal_rewards=terminal if terminal.any() else None,
            durations=np.array([a.duration for a in actions], np.float64) if self.durations else None,
            initial_values=np.array([s.initial_value for s in states]) if self.initial_values else None,
            action_labels=np.array([a.label for a in actions], np.int64) if self.labels else None,
        )


def ptr(counts) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(np.fromiter(counts, np.int64))]).astype(np.int64)


def random_model(
    seed: int,
    n: int,
    max_actions: int = 3,
    max_successors: int = 4,
    terminal: float = 0.2,
    uniform: bool = False,
    durations: bool = False,
    labels: bool = False,
    initial_values: bool = False,
) -> Model:
    """Probabilities are multiples of 1/64, rewards of 1/8: both types store them exactly."""
    rng = np.random.default_rng(seed)

    def action(index: int) -> Action:
        k = min(max_successors if uniform else int(rng.integers(1, max_successors + 1)), n)
        chosen = rng.choice(n, k, replace=False)
        weights = 1 + rng.multinomial(64 - k, np.full(k, 1 / k))
        return Action(
            reward=float(rng.integers(-80, 80)) / 8,
            successors={int(s): float(w) / 64 for s, w in zip(chosen, weights, strict=True)},
            duration=float(rng.integers(1, 9)) / 4 if durations else 1.0,
            label=int(10 * index + rng.integers(0, 10)) if labels else index,
        )

    def state() -> State:
        initial = float(rng.integers(-8, 8)) if initial_values else 0.0
        if not uniform and rng.random() < terminal:
            return State((), float(rng.integers(-8, 8)), initial)
        count = max_actions if uniform else int(rng.integers(1, max_actions + 1))
        return State(tuple(action(i) for i in range(count)), 0.0, initial)

    return Model(tuple(state() for _ in range(n)), durations, labels, initial_values)


class ModelSource:
    """A source that hands out the model in blocks and learns its number of states at the end."""

    path = "model.test"
    format = "test"

    def __init__(self, model: Model, block: int = 7) -> None:
        self.model, self.block = model, block
        self.n_states: int | None = None
        self.left_out = LeftOut()
        self.annotations = SourceAnnotations()
        self.checks = 0

    def blocks(self) -> Iterator[BlockReader]:
        for first in range(0, len(self.model.states), self.block):
            yield partial(self.read, first)

    def read(self, first: int) -> Block:
        numbers = np.arange(first, min(first + self.block, len(self.model.states)))
        rows = self.model.rows(numbers)
        return Block(first, rows, int(rows.successors.max(initial=-1)))

    def check_totals(self) -> None:
        self.checks += 1
        self.n_states = len(self.model.states)

    def close(self) -> None:
        pass


class ModelProblem:
    """The same model as a generated problem."""

    name = "model"
    sense = "min"
    dyadic_probabilities = False
    default_dtype: Literal["float32", "float64"] = "float64"

    def __init__(self, model: Model, shape: tuple[int, ...] | None = None) -> None:
        self.model, self.shape = model, shape
        self.n_states = len(model.states)

    @property
    def row_bounds(self) -> RowBounds:
        m = self.model
        actions = [len(s.actions) for s in m.states]
        successors = [len(a.successors) for s in m.states for a in s.actions] or [0]
        given = {"durations": m.durations, "initial_values": m.initial_values, "action_labels": m.labels}
        given["terminal_rewards"] = any(s.terminal_reward for s in m.states)
        return RowBounds(
            max(actions),
            max(successors),
            len(set(actions)) == 1,
            len(set(successors)) == 1,
            tuple(name for name, present in given.items() if present),
        )

    def rows(self, states: np.ndarray) -> Rows:
        return self.model.rows(states)

    def parameters(self) -> dict[str, int | float | str | bool]:
        return {"states": self.n_states}

    def geometry(self) -> dict[str, Any] | None:
        return None


def state_rows(model: Model, numbers: np.ndarray) -> StateRows:
    """The rows of some states of a model as a user's function gives them."""
    rows = model.rows(numbers)
    return StateRows(
        rows.successors,
        rows.probabilities,
        rows.rewards,
        actions=np.diff(rows.action_ptr),
        transitions=np.diff(rows.successor_ptr),
        terminal_rewards=rows.terminal_rewards,
        durations=rows.durations,
        action_labels=rows.action_labels,
    )


def model_in(store: Store) -> Model:
    """The model that a store holds, in original numbers."""
    states: dict[int, State] = {}
    new_to_old = np.concatenate([store.original_states(p) for p in range(store.n_partitions)])
    for p in range(store.n_partitions):
        table, _ = store.read(p)
        to_old = np.concatenate(
            [new_to_old[store.facts.partition_ptr[p] : store.facts.partition_ptr[p + 1]], new_to_old[table.halo]]
        )
        counts = store.action_counts(p)
        labels = store.action_labels(p)
        action_ptr = ptr(counts.tolist())
        k = table.successors_per_action
        successor_ptr = table.successor_ptr if not k else np.arange(table.n_rows + 1) * k
        for i, original in enumerate(store.original_states(p)):
            actions = []
            for j in range(action_ptr[i], action_ptr[i + 1]):
                span = slice(int(successor_ptr[j]), int(successor_ptr[j + 1]))
                pairs = zip(to_old[table.successors[span]], table.probabilities[span], strict=True)
                actions.append(
                    Action(
                        float(table.rewards[j]),
                        {int(s): float(q) for s, q in pairs},
                        float(table.durations[j]) if table.durations.size else 1.0,
                        int(labels[j]) if labels is not None else int(j - action_ptr[i]),
                    )
                )
            states[int(original)] = State(
                tuple(actions),
                float(table.terminal_rewards[i]) if table.terminal_rewards.size else 0.0,
                float(table.initial_values[i]) if table.initial_values.size else 0.0,
            )
    return Model(tuple(states[i] for i in sorted(states)))
