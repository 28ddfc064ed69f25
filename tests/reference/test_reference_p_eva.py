"""The serial reference P-EVA against exact policy iteration, and every engine against the serial reference.

Two solvers that prove errors a and b of the same model give values within a + b of each other, whatever their order of
visits, their arithmetic and their caches.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernel_words import skip_where_refused
from small_mdps import Case, make_store, rows_of
from store_models import Action, Model, State
from tiled_engine import TILE_STATES, MakeDevice, emulated

import ooc_mdp
from ooc_mdp.backends.cuda.simple.literature.catalogue import SIMPLE_KERNELS
from ooc_mdp.backends.cuda.tiles.backend import TiledBackend
from ooc_mdp.backends.layout import Needs
from ooc_mdp.errors import OptionsError
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.mdp import FloatArray, Rows
from ooc_mdp.model.solution import Solution
from ooc_mdp.options import CacheSize, SolveOptions
from ooc_mdp.reference import policy_iteration
from ooc_mdp.reference.p_eva import ReferenceSolution, p_eva
from ooc_mdp.solver import local as solver
from ooc_mdp.store import Store

MODELS = {
    "gridworld": 0.9,
    "random": 0.9,  # each of its partitions reads every partition
    "car": 0.5,
    "ragged": 0.9,  # minimised; durations, and terminal states with rewards
    "ragged without durations": 0.9,  # terminal states, initial values
    "uniform with durations": 0.9,  # minimised; durations, the same number of actions everywhere
    "a state a partition": 0.9,
}
"""Stores of `tiled_engine`, each with a discount."""
METHODS: list[dict[str, Any]] = [
    {"method": "p-eva"},
    {"method": "p-eva", "priority": "h1"},
    {"method": "p-eva", "priority": "h2"},
    {"method": "p-eva", "priority": "hybrid"},
    {"method": "p-eva", "priority": "exact-h1"},
    {"method": "p-eva", "priority": "exact-h2"},
    {"method": "p-eva", "priority": "exact-hybrid"},
    {"method": "vi"},
    {"method": "vi", "sweeps_per_visit": 8},
    {"method": "policy-iteration"},
    {"method": "auto"},
]
EPSILON = 1e-4


def two_largest(store: Store) -> int:
    return int(np.sort(store.facts.partition_bytes)[-2:].sum())


def in_source_order(found: ReferenceSolution, store: Store) -> tuple[FloatArray, np.ndarray]:
    return store.to_source(found.values), store.to_source(found.policy)


def value_of(rows: Rows, policy: np.ndarray, discount: float) -> FloatArray:
    """The value of a policy, by the reference's policy iteration on the rows that the policy leaves."""
    kept = rows.action_ptr[:-1][policy >= 0] + policy[policy >= 0]
    transitions = [np.arange(rows.successor_ptr[j], rows.successor_ptr[j + 1]) for j in kept]
    only = replace(
        rows,
        action_ptr=np.concatenate([[0], np.cumsum(policy >= 0)]),
        successor_ptr=np.concatenate([[0], np.cumsum([t.size for t in transitions])]).astype(np.int64),
        successors=rows.successors[np.concatenate(transitions)],
        probabilities=rows.probabilities[np.concatenate(transitions)],
        rewards=rows.rewards[kept],
        durations=None if rows.durations is None else rows.durations[kept],
    )
    return policy_iteration(only, discount).values


@pytest.fixture(scope="module")
def references(stores: Callable[[str], Store]) -> Callable[[str], ReferenceSolution]:
    """The serial solution of each model, with two partitions in the cache."""
    found: dict[str, ReferenceSolution] = {}

    def of(name: str) -> ReferenceSolution:
        if name not in found:
            found[name] = p_eva(stores(name), MODELS[name], EPSILON, two_largest(stores(name)))
        return found[name]

    return of


# --------------------------------------------------------------------------------------------------- the reference


@pytest.mark.parametrize("share", [1.0, 0.0])
@pytest.mark.parametrize("name", MODELS)
def test_the_reference_is_within_its_bound_of_exact_policy_iteration(
    name: str, share: float, stores: Callable[[str], Store]
) -> None:
    store, discount = stores(name), MODELS[name]
    cache = max(int(share * store.facts.partition_bytes.sum()), two_largest(store))
    found, rows = p_eva(store, discount, EPSILON, cache), rows_of(store)
    best, sign = policy_iteration(rows, discount, store.sense).values, 1.0 if store.sense == "max" else -1.0
    slack = 1e-12 * float(1 + np.abs(best).max()) / (1 - discount)  # of the linear solve
    values, policy = in_source_order(found, store)
    assert 0 < found.error_bound <= EPSILON
    assert np.abs(values - best).max() <= found.error_bound + slack
    achieved = value_of(rows, policy, discount)
    assert np.abs(values - achieved).max() <= found.error_bound + slack
    assert (sign * (best - achieved)).max() <= 2 * found.error_bound + slack
    assert found.visits >= found.loads
    if share == 1.0:
        assert found.loads <= store.n_partitions
    elif name != "gridworld":
        assert found.loads > store.n_partitions


def test_the_reference_reads_nothing_where_zero_is_good_enough(stores: Callable[[str], Store]) -> None:
    store = stores("ragged")
    found, rows = p_eva(store, 0.9, 1e4, two_largest(store)), rows_of(store)
    assert found.loads == found.visits == 0
    assert not found.values.any()
    policy = store.to_source(found.policy)
    assert ((policy == 0) == (np.diff(rows.action_ptr) > 0)).all()
    assert np.abs(value_of(rows, policy, 0.9)).max() <= found.error_bound <= 1e4


def test_the_reference_refuses_what_it_cannot_do(tmp_path: Path, stores: Callable[[str], Store]) -> None:
    store = stores("random")
    with pytest.raises(OptionsError, match=r"partition \d needs \d+ bytes, but the cache has 100; enlarge it"):
        p_eva(store, 0.9, EPSILON, 100)
    with pytest.raises(OptionsError, match=r"float64 proves an error of .* in partition \d, not 1e-16; raise it"):
        p_eva(store, 0.9, 1e-16, two_largest(store))
    loop = make_store(Case(Model((State((Action(1.0, {0: 1.0}),)),))), tmp_path / "s")
    with pytest.raises(OptionsError, match=r"discount times row sum reaches 1\.0.*lower the discount"):
        p_eva(loop, 1.0, EPSILON, two_largest(loop))


def test_a_model_of_one_loop_has_the_value_of_its_geometric_series(tmp_path: Path) -> None:
    loop = make_store(Case(Model((State((Action(3.0, {0: 1.0}),)),))), tmp_path / "s")
    found = p_eva(loop, 0.75, 1e-9, two_largest(loop))
    assert found.values == pytest.approx([12.0], abs=1e-9)
    assert (found.loads, found.policy.tolist()) == (1, [0])


# ------------------------------------------------------------------------------------------------- every engine


def assert_agreement(solution: Solution, reference: ReferenceSolution, store: Store, discount: float) -> None:
    """Values within both proved errors, and a policy that achieves what the solution claims of it."""
    rows, sign, c = rows_of(store), 1.0 if store.sense == "max" else -1.0, solution.certificate
    values, _ = in_source_order(reference, store)
    assert solution.outcome.proved
    assert c.error_bound <= EPSILON
    difference = sign * (values - solution.values)
    assert np.abs(difference).max() <= c.error_bound + reference.error_bound
    assert c.error_lower - reference.error_bound <= difference.min()
    assert difference.max() <= c.error_upper + reference.error_bound
    counts = np.diff(rows.action_ptr)
    assert np.where(counts > 0, (solution.policy >= 0) & (solution.policy < counts), solution.policy == -1).all()
    achieved = value_of(rows, solution.policy, discount)
    slack = 1e-12 * float(1 + np.abs(achieved).max()) / (1 - discount)  # of the linear solve
    assert (sign * (values - achieved)).max() <= c.policy_loss_bound + reference.error_bound + slack


def solves(quick: Collection[str], quick_if_exact: bool) -> Iterator[Any]:
    """Every model by every method; slow but for models of these names, with exact priorities or without only."""
    for name in MODELS:
        for method in METHODS:
            exact = method.get("priority", "").startswith("exact-")
            if name == "a state a partition" and exact:
                continue  # strongly coupled: one partition converges at a time, thousands of times over
            marks = () if name in quick and exact <= quick_if_exact else pytest.mark.slow
            words = [name.replace(" ", "-"), *map(str, method.values())]
            yield pytest.param(name, method, marks=marks, id="-".join(words))


@pytest.mark.parametrize(("name", "method"), list(solves(quick=MODELS, quick_if_exact=True)))
def test_each_method_of_the_cpu_agrees_with_the_reference(
    name: str, method: dict[str, Any], stores: Callable[[str], Store], references: Callable[[str], ReferenceSolution]
) -> None:
    store, discount = stores(name), MODELS[name]
    solution = ooc_mdp.solve(store, discount, epsilon=EPSILON, cache=two_largest(store), device="cpu", **method)
    assert_agreement(solution, references(name), store, discount)


@pytest.mark.parametrize(("name", "method"), list(solves(quick=["ragged", "gridworld"], quick_if_exact=False)))
def test_each_method_of_the_tile_engine_agrees_with_the_reference(
    name: str,
    method: dict[str, Any],
    stores: Callable[[str], Store],
    references: Callable[[str], ReferenceSolution],
    device: MakeDevice,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, discount = stores(name), MODELS[name]
    monkeypatch.setattr(solver, "select_backend", lambda *_, **__: TiledBackend(device(), TILE_STATES))
    options = SolveOptions(discount, device="cuda:0", epsilon=EPSILON, **method)
    slot = (
        TiledBackend(emulated(), TILE_STATES)
        .layout(ModelFacts.of(store.facts, options.discount), Needs())
        .largest_entry
    )
    slots = max(2, store.n_partitions // 2)
    solution = solver.solve(store, replace(options, cache=CacheSize(size=slots * slot)))
    assert_agreement(solution, references(name), store, discount)


@pytest.mark.gpu
@pytest.mark.parametrize("method", [method for method in METHODS if method["method"] != "policy-iteration"])
@pytest.mark.parametrize("name", ["gridworld", "random", "ragged"])
@pytest.mark.parametrize("kernel", [kernel.word for kernel in SIMPLE_KERNELS])
def test_each_method_of_simple_kernels_agrees_with_the_reference(
    kernel: str,
    name: str,
    method: dict[str, Any],
    stores: Callable[[str], Store],
    references: Callable[[str], ReferenceSolution],
) -> None:
    store, discount = stores(name), MODELS[name]
    skip_where_refused(kernel, store, discount)
    options: dict[str, Any] = {"device": "cuda:0", "kernel": kernel, "cache": two_largest(store)}
    solution = ooc_mdp.solve(store, discount, epsilon=EPSILON, **options, **method)
    assert_agreement(solution, references(name), store, discount)
