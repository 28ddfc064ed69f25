"""What is known of a model before any partition is read: each fact agrees with the tables themselves."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_facts import facts_with
from small_mdps import Case, cases, make_store, stored
from store_models import random_model

import ooc_mdp
from ooc_mdp.errors import OptionsError
from ooc_mdp.io.conversion import ConvertOptions
from ooc_mdp.io.recomputed_table import RecomputedTable
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.partition import Coupling, PartitionTable
from ooc_mdp.model.table import TableFacts
from ooc_mdp.options import CacheSize, SolveOptions
from ooc_mdp.problems.registry import make_problem
from ooc_mdp.scheduling.residual_bounds import ResidualBounds
from ooc_mdp.solver.local import solve


def row_starts(table: PartitionTable) -> np.ndarray:
    k = table.successors_per_action
    return np.arange(0, table.successors.size, k) if k else table.successor_ptr[:-1].astype(np.int64)


@settings(max_examples=40)
@given(cases(), st.sampled_from([0.0, 0.5, 0.9]))
def test_facts_agree_with_the_tables(case: Case, discount: float) -> None:
    with stored(case) as store:
        facts = ModelFacts.of(store.facts, discount)
        tables = [store.read(p)[0] for p in range(store.n_partitions)]
    assert facts.n_partitions == len(tables)
    assert facts.n_states == sum(t.n_states for t in tables)
    assert facts.largest_partition == max(t.n_states for t in tables)
    assert facts.largest_halo == max(t.halo.size for t in tables)
    assert facts.partition_halo.tolist() == [t.halo.size for t in tables]
    assert facts.table_bytes == facts.partition_bytes.sum()
    assert facts.largest_table_bytes == max(facts.partition_bytes)
    assert facts.probability_dtype == tables[0].probabilities.dtype
    assert facts.successor_dtype == tables[0].successors.dtype
    for p, t in enumerate(tables):
        rewards = facts.sign * t.rewards
        if rewards.size:
            assert facts.reward_range[p, 0] <= rewards.min()
            assert rewards.max() <= facts.reward_range[p, 1]
        starts = row_starts(t)
        starts = starts[starts < t.successors.size]
        if not starts.size or t.successors_per_action == 0:
            continue
        sums = np.add.reduceat(t.probabilities.astype(np.float64), starts)
        durations = t.durations if t.durations.size else np.ones(sums.size)
        weights = (discount**durations * sums)[np.isfinite(durations)]
        assert facts.row_sums[p] >= sums[np.isfinite(durations)].max(initial=0.0)
        assert facts.min_weights[p] <= weights.min(initial=np.inf)


def test_facts_cannot_be_changed(tmp_path: Path) -> None:
    facts = ModelFacts.of(make_store(Case(random_model(1, 12), partitions=3), tmp_path / "s").facts, 0.9)
    with pytest.raises(FrozenInstanceError):
        facts.n_states = 1  # type: ignore[misc]


def test_a_store_has_chunks_and_a_recomputed_table_has_none(tmp_path: Path) -> None:
    store = ooc_mdp.generate("GW-16x4", tmp_path / "s", {"seed": 1}, partitions=4)
    facts = ModelFacts.of(store.facts, 0.9)
    assert {f.name for f in facts.stored_fields} >= {"successors", "probabilities", "rewards"}
    assert facts.frame_buffer_bytes == store.facts.frame_buffer_bytes > 0
    problem = make_problem("GW-16x4", {"seed": 1})
    recomputed = ModelFacts.of(
        RecomputedTable.after_first_pass(problem, ConvertOptions(partitions=4, threads=1)).facts, 0.9
    )
    assert (recomputed.stored_fields, recomputed.frame_buffer_bytes) == ((), 0)
    assert recomputed.block_shapes is not None
    np.testing.assert_array_equal(recomputed.block_shapes, facts.block_shapes)


@pytest.mark.parametrize(
    ("partitions", "read_of_each", "halo", "dense", "strong"),
    [
        (4, 3, 11, True, True),
        (4, 3, 10, False, False),  # no more read from outside than owned
        (40, 12, 25, False, True),  # many, though not most
        (40, 11, 25, False, False),
        (40, 20, 25, True, True),
    ],
)
def test_coupling_is_dense_or_strong_by_what_is_read(
    partitions: int, read_of_each: int, halo: int, dense: bool, strong: bool
) -> None:
    each = read_of_each + 1
    read = np.arange(partitions)[:, None] + np.arange(each)
    coupling = Coupling(np.arange(partitions + 1) * each, (read % partitions).ravel(), np.ones(partitions * each))
    states = [10 * p for p in range(partitions + 1)]
    facts = facts_with(states, coupling=coupling, partition_halo=np.full(partitions, halo))
    assert facts.mean_partitions_read == read_of_each
    assert (facts.densely_coupled, facts.strongly_coupled) == (dense, strong)


def test_rows_per_state_are_the_actions_or_follow_from_the_bytes() -> None:
    assert facts_with([0, 10], actions_per_state=3).rows_per_state == 3.0
    ragged = facts_with([0, 10], row_widths=np.array([4]), partition_bytes=np.array([640]))
    assert ragged.rows_per_state == 2.0  # 64 bytes of a state, 32 of a row


def test_rewards_that_add_up_to_too_much_are_refused_with_the_numbers(tmp_path: Path) -> None:
    case = Case(random_model(1, 12), partitions=3)
    store = make_store(case, tmp_path / "s")
    store.facts.reward_range[:] = (-1e149, 1e149)
    ModelFacts.of(store.facts, 0.5)
    with pytest.raises(OptionsError, match=r"rewards up to 1e\+149 add up to .* larger unit"):
        ModelFacts.of(store.facts, 0.99)


@pytest.mark.parametrize("method", ["p-eva", "vi", "policy-iteration", "auto"])
def test_facts_are_computed_once_in_a_solve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    store = make_store(Case(random_model(2, 40), partitions=5), tmp_path / "s")
    computed = []
    of = ModelFacts.of

    def counted(table: TableFacts, discount: float) -> ModelFacts:
        computed.append(discount)
        return of(table, discount)

    monkeypatch.setattr(ModelFacts, "of", counted)
    options = SolveOptions(0.9, epsilon=1e-3, method=method, cache=CacheSize(share=0.5), device="cpu")  # type: ignore[arg-type]
    assert solve(store, options).outcome.proved
    assert computed == [0.9]


def test_bounds_of_a_model_are_unknown_at_first(tmp_path: Path) -> None:
    store = make_store(Case(random_model(1, 12), partitions=3), tmp_path / "s")
    bounds = ResidualBounds.of_model(ModelFacts.of(store.facts, 0.9))
    assert np.isinf(bounds.rise).all()
    assert np.isinf(bounds.fall).all()
