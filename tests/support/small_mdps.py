"""Small MDPs for the solver's tests: a Hypothesis strategy, stores made of them, and their exact optimum.

The optimum is found in rational arithmetic, so that a bound of 1e-14 can be held against it. The discount of a pair
is the float64 gamma**tau, as kernels and reference use it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from hypothesis import strategies as st
from paths import place_in_memory
from store_models import Action, Model, ModelSource, State, model_in

from ooc_mdp import reference
from ooc_mdp.io.conversion import ConvertOptions, convert
from ooc_mdp.model.mdp import Rows, discounts
from ooc_mdp.store import Store

SIZES = (1e-6, 1.0, 1e3, 1e6)
_MEMORY = place_in_memory()
"""Where stores of examples lie: making and removing their files on a disk would take most of an example's time."""
ROW_FAULTS = (0.0, 0.0, 2e-11, -2e-11)


@dataclass(frozen=True)
class Case:
    """A model and how it is stored."""

    model: Model
    sense: str = "max"
    dtype: str = "float64"
    partitions: int = 1


@st.composite
def actions(draw: st.DrawFn, n: int, durations: st.SearchStrategy[float] | None) -> Action:
    chosen = draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=4, unique=True))
    weights = [draw(st.integers(0 if i else 1, 9)) for i, _ in enumerate(chosen)]
    fault = 1 + draw(st.sampled_from(ROW_FAULTS))
    return Action(
        reward=draw(st.integers(-8, 8)) / 7 * draw(st.sampled_from(SIZES)),
        successors={s: w / sum(weights) * fault for s, w in zip(chosen, weights, strict=True)},
        duration=1.0 if durations is None else draw(durations),
    )


@st.composite
def models(draw: st.DrawFn, max_states: int = 12, shortest: float = 0.01) -> Model:
    """Ragged: ties (duplicate actions), terminal states, self loops, rows that end, states that nothing leads to."""
    n = draw(st.integers(1, max_states))
    with_durations, with_initial, uniform = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    lengths = [max(0.01, shortest), max(0.3, shortest), 1.0, 3.0, math.inf]
    durations = st.sampled_from(lengths) if with_durations else None

    def state() -> State:
        count = 2 if uniform else draw(st.integers(0, 3))
        own = [draw(actions(n, durations)) for _ in range(count)]
        if own and not uniform and draw(st.booleans()):
            own.append(own[0])
        initial = draw(st.integers(-5, 5)) * draw(st.sampled_from(SIZES)) if with_initial else 0.0
        return State(tuple(own), 0.0 if own else draw(st.integers(-3, 3)) / 3, initial)

    return Model(tuple(state() for _ in range(n)), with_durations, False, with_initial)


@st.composite
def cases(draw: st.DrawFn, max_states: int = 12, shortest: float = 0.01) -> Case:
    model = draw(models(max_states, shortest))
    return Case(
        model,
        draw(st.sampled_from(["max", "min"])),
        draw(st.sampled_from(["float64", "float32"])),
        draw(st.integers(1, len(model.states))),
    )


def model_of_shape(n: int, actions_each: int, successors_each: int) -> Model:
    """As many actions in every state, of as many equally likely successors anywhere."""
    rng = np.random.default_rng(actions_each + successors_each)

    def action() -> Action:
        chosen = rng.choice(n, successors_each, replace=False)
        return Action(float(rng.random()), {int(s): 1 / successors_each for s in chosen})

    return Model(tuple(State(tuple(action() for _ in range(actions_each))) for _ in range(n)))


def make_store(case: Case, path: Path) -> Store:
    options = ConvertOptions(sense=case.sense, dtype=case.dtype, partitions=case.partitions, threads=1)
    return convert(ModelSource(case.model), path, options)


@contextmanager
def stored(case: Case) -> Iterator[Store]:
    with TemporaryDirectory(dir=_MEMORY) as place:
        yield make_store(case, Path(place, "m.store"))


def rows_of(store: Store) -> Rows:
    """The rows that a store holds (float32 ones as float64), in the source's order."""
    has = {name: name in store.fields for name in ("durations", "initial_values")}
    model = replace(model_in(store), **has)
    return model.rows(np.arange(store.n_states))


def evaluate(rows: Rows, policy: np.ndarray, discount: float) -> list[Fraction]:
    """The exact value of a policy, by Gaussian elimination."""
    n = rows.n_states
    matrix = [[Fraction(int(i == j)) for j in range(n)] for i in range(n)]
    right = [Fraction(0) if rows.terminal_rewards is None else Fraction(rows.terminal_rewards[s]) for s in range(n)]
    for s in range(n):
        if policy[s] >= 0:
            j = int(rows.action_ptr[s] + policy[s])
            g = Fraction(_discount(rows, j, discount))
            for k in range(rows.successor_ptr[j], rows.successor_ptr[j + 1]):
                matrix[s][rows.successors[k]] -= g * Fraction(rows.probabilities[k])
            right[s] = Fraction(rows.rewards[j])
    for i in range(n):  # diagonally dominant: no pivoting
        for s in range(i + 1, n):
            if matrix[s][i]:
                factor = matrix[s][i] / matrix[i][i]
                for j in range(i, n):
                    if matrix[i][j]:
                        matrix[s][j] -= factor * matrix[i][j]
                right[s] -= factor * right[i]
    for i in reversed(range(n)):
        right[i] = (right[i] - sum(matrix[i][j] * right[j] for j in range(i + 1, n))) / matrix[i][i]
    return right


def exact_q(rows: Rows, values: list[Fraction], j: int, discount: float) -> Fraction:
    span = range(rows.successor_ptr[j], rows.successor_ptr[j + 1])
    expected = sum((Fraction(rows.probabilities[k]) * values[rows.successors[k]] for k in span), Fraction(0))
    return Fraction(rows.rewards[j]) + Fraction(_discount(rows, j, discount)) * expected


def _discount(rows: Rows, j: int, discount: float) -> float:
    return discount if rows.durations is None else float(discounts(discount, rows.durations[j : j + 1])[0])


def optimum(rows: Rows, discount: float, sense: str = "max") -> list[Fraction]:
    """V*, exact: the reference's policy, improved in rational arithmetic until nothing is better."""
    sign = 1 if sense == "max" else -1
    policy = reference.policy_iteration(rows, discount, sense).policy.copy()
    while True:
        values = evaluate(rows, policy, discount)
        better = False
        for s in np.flatnonzero(policy >= 0):
            q = [sign * exact_q(rows, values, j, discount) for j in range(rows.action_ptr[s], rows.action_ptr[s + 1])]
            if max(q) > q[policy[s]]:
                policy[s], better = q.index(max(q)), True
        if not better:
            return values


def distance(a: np.ndarray | list[Fraction], b: list[Fraction]) -> list[Fraction]:
    """b - a, exact."""
    return [y - Fraction(x) for x, y in zip(a, b, strict=True)]
