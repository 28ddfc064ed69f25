"""The table of a question has the facts of its partitions, fits its cache, and is another than the one it is of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from exact_properties import random_model

import ooc_mdp
from ooc_mdp.model.criterion import Criterion, record_of
from ooc_mdp.properties.table import INFINITE, AskedTable, asked_table
from ooc_mdp.undiscounted.tables import Streamed

QUESTIONS = (
    ooc_mdp.Reachability("goal", "avoid"),
    ooc_mdp.RewardToGoal("goal", "toll", "min"),
    ooc_mdp.RewardToGoal("goal", "steps", "max"),
    ooc_mdp.TotalReward("toll", infinite=True),
    ooc_mdp.Discounted(0.9, "toll", "min"),
)
GRID = 10


def drn(path: Path) -> Path:
    """A walk on a square with slips, in which one side is a goal and some cells are to be avoided."""
    lines = ["@type: MDP", "@parameters", "", "@reward_models", "steps toll", "@nr_states", str(GRID * GRID), "@model"]
    for s in range(GRID * GRID):
        x, y = divmod(s, GRID)
        labels = " goal" if x == GRID - 1 else " avoid" if (x * 7 + y * 5) % 31 == 6 else ""
        labels += " init" if s == 0 else ""
        lines.append(f"state {s} [1, 0]{labels}")
        for a, (dx, dy) in enumerate(((1, 0), (-1, 0), (0, 1), (0, -1))):
            to = min(max(x + dx, 0), GRID - 1) * GRID + min(max(y + dy, 0), GRID - 1)
            lines.append(f"\taction {a} [0, {a % 2}]")
            lines += [f"\t\t{to} : 0.75", f"\t\t{s} : 0.25"] if to != s else [f"\t\t{s} : 1"]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> list[ooc_mdp.Store]:
    folder = tmp_path_factory.mktemp("stores")
    path = drn(folder / "walk.drn")
    return [
        ooc_mdp.convert(path, folder / "ranges", partitions=16),
        ooc_mdp.convert(path, folder / "metis", partitions=12, partitioner="metis"),
        ooc_mdp.convert(path, folder / "grid", grid=(GRID, GRID), partition_grid=(4, 4), dtype="float32"),
        ooc_mdp.convert(path, folder / "chosen", partitions=5, reward_model="toll"),
    ]


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.name)
def test_facts_are_those_of_the_partitions(stores: list[ooc_mdp.Store], question: Criterion):
    for store in stores:
        table = asked_table(store, record_of(question))
        for p in range(table.n_partitions):
            part, n_bytes = table.read(p)
            assert n_bytes > 0
            assert part.nbytes == table.facts.partition_bytes[p]
            low, high = table.facts.reward_range[p]
            assert low <= min(part.rewards.min(), part.terminal_rewards.min(initial=np.inf))
            assert max(part.rewards.max(), part.terminal_rewards.max(initial=-np.inf)) <= high
            for name in ("rewards", "durations", "terminal_rewards", "probabilities"):
                values = getattr(part, name)
                assert values.size == 0 or values.dtype == table.facts.dtypes[name]


def test_all_orders_of_states_and_types_give_one_answer_through_a_small_cache(stores: list[ooc_mdp.Store]):
    for question in QUESTIONS:
        values = []
        for store in stores:
            largest = int(store.facts.partition_bytes.max())
            solution = ooc_mdp.solve(store, question, epsilon=1e-6, cache=str(3 * largest), device="cpu")
            assert solution.outcome.proved
            assert solution.statistics.cache_peak_bytes <= 3 * largest
            assert ooc_mdp.verify(store, solution).holds
            values.append(solution.values)
        for other in values[1:]:
            np.testing.assert_array_equal(np.isinf(other), np.isinf(values[0]))
            finite = np.isfinite(other)
            np.testing.assert_allclose(other[finite], values[0][finite], atol=3e-6)


def test_a_question_has_a_fingerprint_of_its_own(stores: list[ooc_mdp.Store]):
    asked = [
        asked_table(stores[0], record_of(question)).fingerprint
        for question in (
            *QUESTIONS,
            ooc_mdp.Reachability("goal"),
            ooc_mdp.Reachability("goal", "avoid", sense="min"),
            ooc_mdp.Reachability("avoid"),
            ooc_mdp.RewardToGoal("goal", "toll", "max"),
        )
    ]
    assert len({*asked, stores[0].fingerprint}) == len(asked) + 1


def test_a_question_that_changes_nothing_is_asked_of_the_table_itself(stores: list[ooc_mdp.Store]):
    chosen = stores[3]
    for question in (ooc_mdp.Discounted(0.9), ooc_mdp.Discounted(0.9, "toll"), ooc_mdp.TotalReward(sense="max")):
        assert asked_table(chosen, record_of(question)) is chosen


def test_rows_to_states_of_infinite_value_become_costly_self_loops():
    model = random_model(1)
    P, R = model.arrays()
    store = ooc_mdp.from_arrays(P, R, layout="state-first", labels={"goal": sorted(model.goal)}, partitions=2)
    table = asked_table(store, record_of(ooc_mdp.RewardToGoal("goal", sense="min")))
    assert isinstance(table, AskedTable)
    assert table.ends is not None
    ends = table.ends.copy()
    ends[0] = INFINITE
    inner = table.with_ends(ends, 7.0)
    for p in range(2):
        before, after = table.read(p)[0], inner.read(p)[0]
        local = np.arange(before.first_state, before.first_state + before.n_states)
        everywhere = np.concatenate([local, before.halo])
        lengths = (
            np.full(before.n_rows, before.successors_per_action)
            if before.successors_per_action
            else np.diff(before.successor_ptr.astype(np.int64))
        )
        row = np.repeat(np.arange(before.n_rows), lengths)
        for j in range(before.n_rows):
            own = before.first_state + j // 2
            to = everywhere[before.successors[row == j]]
            if 0 in to and own != 0 and own not in model.goal:
                assert after.rewards[j] == 7
                assert (everywhere[after.successors[row == j]] == own).all()
            elif own != 0 and own not in model.goal:
                assert after.rewards[j] == before.rewards[j]
                np.testing.assert_array_equal(everywhere[after.successors[row == j]], to)


def test_another_table_is_read_after_a_change(stores: list[ooc_mdp.Store]):
    table = asked_table(stores[0], record_of(QUESTIONS[0]))
    assert isinstance(table, AskedTable)
    assert table.ends is not None
    with Streamed(table, 1 << 20, 2) as tables:
        every = np.ones(table.n_partitions, np.bool_)
        before = [rows.rewards.sum() for _, rows, _ in tables.in_order(every, True)]
        tables.change(table.with_ends(np.zeros_like(table.ends)))
        after = [rows.rewards.sum() for _, rows, _ in tables.in_order(every, True)]
    assert sum(before) == 4 * GRID
    assert sum(after) == 0


def test_actions_of_a_policy_have_the_sources_numbers():
    P = np.zeros((3, 2, 2))
    P[:, :, 0] = 1
    P[2, 0] = [0, 1]
    R = np.array([[1.0, -np.inf, 1.0], [-np.inf, 1.0, -np.inf]])
    store = ooc_mdp.from_arrays(P, R, layout="action-first", labels={"goal": [1]})
    solution = ooc_mdp.solve(store, ooc_mdp.Reachability("goal"))
    assert solution.policy.tolist() == [1, 0]
    assert solution.actions.tolist() == [2, 1]
