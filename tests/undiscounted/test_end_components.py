"""End components found in passes over partitions are those that a search through all sets of states finds."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from small_mdps import Case, make_store, stored
from store_models import Action, Model, State, random_model

from ooc_mdp.store import Store
from ooc_mdp.undiscounted.end_components import Staying, check_totals, end_components
from ooc_mdp.undiscounted.kernels.end_components import ANY_REWARD, NO_REWARD
from ooc_mdp.undiscounted.refusals import original_numbers
from ooc_mdp.undiscounted.tables import Neighbours, Streamed, finish


def inside(action: Action, states: set[int], zero_only: bool) -> bool:
    kept = {s for s, p in action.successors.items() if p > 0} <= states
    return kept and action.duration != math.inf and not (zero_only and action.reward != 0)


def is_end_component(model: Model, states: set[int], zero_only: bool) -> bool:
    edges = {s: set[int]() for s in states}
    for s in states:
        rows = [a for a in model.states[s].actions if inside(a, states, zero_only)]
        if not rows:
            return False
        for a in rows:
            edges[s] |= {t for t, p in a.successors.items() if p > 0}
    for s in states:
        reached, stack = {s}, [s]
        while stack:
            new = edges[stack.pop()] - reached
            reached |= new
            stack += new
        if reached != states:
            return False
    return True


def maximal_end_components(model: Model, zero_only: bool) -> set[frozenset[int]]:
    n = len(model.states)
    found: list[set[int]] = []
    for size in range(n, 0, -1):
        for chosen in itertools.combinations(range(n), size):
            states = set(chosen)
            if not any(states <= f for f in found) and is_end_component(model, states, zero_only):
                found.append(states)
    return {frozenset(f) for f in found}


def components_of(blocks: np.ndarray) -> set[frozenset[int]]:
    return {frozenset(np.flatnonzero(blocks == b).tolist()) for b in np.unique(blocks[blocks > 0])}


def streamed(store: Store) -> Streamed:
    return Streamed(store, int(store.facts.partition_bytes.max()), 1)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    n = draw(st.integers(1, 7))

    def action() -> Action:
        chosen = draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=2, unique=True))
        ending = draw(st.integers(0, 9)) == 0
        successors = dict.fromkeys(chosen, 1 / len(chosen))
        return Action(float(draw(st.integers(0, 1))), successors, math.inf if ending else 1.0)

    states = [State(tuple(action() for _ in range(draw(st.integers(0, 3))))) for _ in range(n)]
    return Case(Model(tuple(states), durations=True), partitions=draw(st.integers(1, n)))


@given(cases(), st.booleans())
@settings(max_examples=80)
def test_the_maximal_end_components_are_those_of_a_search_through_all_sets(case: Case, zero_only: bool) -> None:
    with stored(case) as store, streamed(store) as tables:
        blocks = finish(
            end_components(tables, Neighbours(store.facts.coupling), NO_REWARD if zero_only else ANY_REWARD)
        )
    assert components_of(blocks) == maximal_end_components(case.model, zero_only)


def components_in_memory(model: Model) -> set[frozenset[int]]:
    """The textbook's algorithm (de Alfaro 1997, section 3.1) on SciPy's strongly connected components."""
    n = len(model.states)
    rows = {s: [set(a.successors) for a in state.actions] for s, state in enumerate(model.states)}
    while True:
        edges = [(s, t) for s, own in rows.items() for r in own for t in r]
        i, j = np.array(edges or [(0, 0)]).T
        _, label = connected_components(coo_array((np.ones(i.size), (i, j)), (n, n)), connection="strong")
        kept = {s: [r for r in own if all(t in rows and label[t] == label[s] for t in r)] for s, own in rows.items()}
        kept = {s: own for s, own in kept.items() if own}
        if kept == rows:
            return {frozenset(s for s in rows if label[s] == b) for b in {label[s] for s in rows}}
        rows = kept


@pytest.mark.parametrize("seed", range(6))
def test_components_of_sparse_graphs_in_many_partitions_are_those_of_the_textbook(tmp_path: Path, seed: int) -> None:
    model = random_model(seed, 400, max_actions=2, max_successors=1 + seed % 2, terminal=0.05 * (1 - seed % 2))
    store = make_store(Case(model, "max", "float64", 25), tmp_path / "m.store")
    with streamed(store) as tables:
        blocks = finish(end_components(tables, Neighbours(store.facts.coupling), ANY_REWARD))
    expected = components_in_memory(model)
    assert components_of(blocks) == expected
    assert expected


@pytest.mark.parametrize("backwards", [False, True])
def test_a_long_ring_is_one_component_and_a_long_path_none(tmp_path: Path, backwards: bool) -> None:
    n, step = 300, -1 if backwards else 1
    ring = tuple(State((Action(0.0, {(s + step) % n: 1.0}),)) for s in range(n))
    cut = (*ring[:150], State(()), *ring[151:])
    for model, count in ((Model(ring), n), (Model(cut), 0)):
        store = make_store(Case(model, "max", "float64", 30), tmp_path / f"{count}.store")
        with streamed(store) as tables:
            neighbours = Neighbours(store.facts.coupling)
            blocks = finish(end_components(tables, neighbours, NO_REWARD))
            assert int((blocks > 0).sum()) == count
            assert np.unique(blocks).size == 1
            found = finish(check_totals(tables, neighbours, Staying.everywhere(0.0, store.n_states)))
            classes, policy = found.within.zero_reward, found.start
            assert len(set(classes.tolist())) == 1
            ending = -2 if count else 0
            assert set(policy.tolist()) == ({ending} if count else {0, -1})


def test_states_that_can_all_stay_where_they_are_do_not_cost_a_round_each(tmp_path: Path) -> None:
    """A walk between two ends, in which each state may wait: what leads to an end is dropped, then what leads there."""
    n = 200
    inner = [State((Action(0.0, {s: 1.0}), Action(0.0, {s - 1: 0.5, s + 1: 0.5}))) for s in range(1, n)]
    model = Model((State(()), *inner, State(())))
    store = make_store(Case(model, "max", "float64", 10), tmp_path / "m.store")
    with streamed(store) as tables:
        blocks = finish(end_components(tables, Neighbours(store.facts.coupling), NO_REWARD))
        assert tables.cache.statistics.auxiliary_accesses < 20 * store.n_partitions
    assert components_of(blocks) == {frozenset([s]) for s in range(1, n)}


@given(cases())
@settings(max_examples=50)
def test_states_are_called_by_their_numbers_in_the_source(case: Case) -> None:
    with stored(case) as store:
        states = np.arange(store.n_states)
        everything = np.concatenate([store.original_states(p) for p in range(store.n_partitions)])
        assert original_numbers(store, states[::-1]).tolist() == everything[::-1].tolist()
