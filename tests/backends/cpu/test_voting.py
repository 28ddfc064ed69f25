"""Sweep orders: each visits every state once, votes find where information flows, and no order changes the answer."""

from __future__ import annotations

import math
from typing import get_args

import numpy as np
import pytest
from command_line import ooc, refused
from hypothesis import given, settings
from hypothesis import strategies as st
from model_facts import facts_with
from small_mdps import Case, cases, distance, optimum, rows_of, stored

import ooc_mdp
from ooc_mdp.backends.base import SweepLimits
from ooc_mdp.backends.cpu.backend import CpuBackend
from ooc_mdp.backends.cpu.sweep_order import SweepOrders, cast_votes, traverse
from ooc_mdp.backends.cpu.table import SweptTable
from ooc_mdp.backends.layout import Needs
from ooc_mdp.errors import OptionsError
from ooc_mdp.model.partition import PartitionTable
from ooc_mdp.model.state_order import GridOrder
from ooc_mdp.options import CacheSize, RunOptions, SolveOptions, SweepOrder
from ooc_mdp.solver.local import solve

ORDERS: tuple[SweepOrder, ...] = get_args(SweepOrder)


def traversal(shape: tuple[int, ...], descending: int) -> np.ndarray:
    """int64 [2, k]: extents and strides of the nested loops, without unused ones."""
    found = np.zeros((2, len(shape)), np.int64)
    traverse(np.array(shape), descending, found)
    unused = int(np.argmax(np.append(found[0, :-1] != 1, True)))
    return found[:, unused:]


def states_in_order(shape: tuple[int, ...], descending: int) -> list[int]:
    """What the kernels' odometer does, by indices instead of steps."""
    extents, strides = traversal(shape, descending)
    starts = np.where(strides < 0, -strides * (extents - 1), 0)
    places = np.indices(tuple(extents)).reshape(extents.size, -1)
    return [int(s) for s in starts.sum() + strides @ places]


def block(
    shape: tuple[int, ...], moves: list[list[tuple[tuple[int, ...], float]]], **changes: object
) -> PartitionTable:
    """A partition that is the whole model: in each state action a moves by one of moves[a], clipped at the edges."""
    n, actions = math.prod(shape), len(moves)
    successors, probabilities, ptr = [], [], [0]
    for s in range(n):
        here = np.unravel_index(s, shape)
        for outcomes in moves:
            for move, p in outcomes:
                there = [min(max(x + dx, 0), size - 1) for x, dx, size in zip(here, move, shape, strict=True)]
                successors.append(int(np.ravel_multi_index(there, shape)))
                probabilities.append(p)
            ptr.append(len(successors))
    fields: dict[str, object] = {
        "index": 0,
        "first_state": 0,
        "n_states": n,
        "actions_per_state": actions,
        "successors_per_action": 0,
        "action_ptr": np.empty(0, np.uint32),
        "successor_ptr": np.array(ptr, np.uint32),
        "successors": np.array(successors, np.uint32),
        "probabilities": np.array(probabilities),
        "rewards": np.zeros(n * actions),
        "durations": np.empty(0),
        "terminal_rewards": np.empty(0),
        "initial_values": np.empty(0),
        "halo": np.empty(0, np.int64),
        "boundary": np.zeros(n, np.bool_),
    }
    return PartitionTable(**(fields | changes))  # type: ignore[arg-type]


def votes_of(table: PartitionTable, shape: tuple[int, ...], policy: np.ndarray | None = None) -> np.ndarray:
    if policy is None:
        policy = np.full(table.n_states, -1, np.int32)
    factors = np.power(0.9, table.durations)
    swept = SweptTable(table, factors, False)
    return cast_votes(swept.spec, swept.row, np.array(shape), policy, 0.9)


def backend_for(table: PartitionTable, order: SweepOrder, shape: tuple[int, ...] | None, discount: float) -> CpuBackend:
    backend = CpuBackend(order)
    shapes = None if shape is None else np.array([shape], np.int32)
    model = facts_with([0, table.n_states], discount, block_shapes=shapes)
    policy = np.full(table.n_states, -1, np.int32)
    backend.start(model, backend.layout(model, Needs()), np.zeros(table.n_states), policy)
    return backend


shapes = st.lists(st.integers(1, 4), min_size=1, max_size=6).map(tuple)


@given(shapes, st.integers(0, 63))
def test_every_order_visits_each_state_of_a_block_once(shape: tuple[int, ...], descending: int) -> None:
    assert sorted(states_in_order(shape, descending)) == list(range(math.prod(shape)))


@given(shapes, st.integers(0, 63))
def test_an_order_is_the_nested_loops_with_a_direction_each(shape: tuple[int, ...], descending: int) -> None:
    numbers = np.arange(math.prod(shape)).reshape(shape)
    turned = numbers[tuple(slice(None, None, -1 if descending >> i & 1 else 1) for i in range(len(shape)))]
    assert states_in_order(shape, descending) == turned.ravel().tolist()


@given(shapes, st.integers(0, 63), st.integers(1, 4))
def test_the_kernel_sweeps_in_the_order_of_the_walk(shape: tuple[int, ...], descending: int, sweeps: int) -> None:
    """Each state counts up from the one that the order puts before it, so a wrong step shows in the values."""
    order = states_in_order(shape, descending)
    n = len(order)
    before = np.empty(n, np.int64)
    before[order[1:]], before[order[0]] = order[:-1], order[-1]
    table = block(shape, [[((0,) * len(shape), 1.0)]], successors=before.astype(np.uint32), rewards=np.ones(n))
    backend = backend_for(table, "voted", shape, 0.5)
    resident = backend.admit(backend.prepare(table))
    traverse(np.array(shape), descending, backend._orders.traversals[0])
    backend._orders._due[0] = 100
    backend.sweep([resident], SweepLimits(-1.0, sweeps)).report()
    expected, value = np.zeros(n), 0.0
    for _ in range(sweeps):
        for s in order:
            value = expected[s] = 1.0 + 0.5 * value
    np.testing.assert_array_equal(backend.values(), expected)


def test_neighbouring_axes_of_one_direction_are_one_line_of_memory() -> None:
    for descending, extents, strides in (
        (0b000, [24], [1]),
        (0b111, [24], [-1]),
        (0b100, [6, 4], [4, -1]),
        (0b011, [6, 4], [-4, 1]),
        (0b010, [2, 3, 4], [12, -4, 1]),
    ):
        found = traversal((2, 3, 4), descending)
        assert [a.tolist() for a in found] == [extents, strides]


@pytest.mark.parametrize("shape", [(40,), None])
def test_along_a_corridor_the_voted_order_needs_two_sweeps_where_memory_order_needs_n(shape) -> None:
    """Figure 5.7 of the thesis: everything comes from the far end, where the process ends; n^2 backups against n."""
    n = 40
    at_the_end = np.arange(n) == n - 1
    table = block(
        (n,), [[((1,), 1.0)]], rewards=np.where(at_the_end, 1.0, 0.0), durations=np.where(at_the_end, np.inf, 1.0)
    )
    sweeps = {}
    for order in ORDERS:
        backend = backend_for(table, order, shape, 0.5)
        resident = backend.admit(backend.prepare(table))
        sweeps[order] = int(backend.sweep([resident], SweepLimits(0.0, 10 * n, -1.0)).report().sweeps[0])
        np.testing.assert_array_equal(backend.values(), 0.5 ** np.arange(n - 1, -1, -1))
    assert sweeps == {"forward": n + 1, "alternating": 3, "voted": 2}  # the last one changes nothing


@pytest.mark.parametrize("shape", [(7, 5), (4, 3, 5), (2, 3, 2, 3, 2, 3)])
def test_each_axis_is_walked_against_the_flow_along_it(shape: tuple[int, ...]) -> None:
    d = len(shape)
    for upwards in range(1 << d):
        flow = [tuple((1 if upwards >> i & 1 else -1) if i == axis else 0 for i in range(d)) for axis in range(d)]
        table = block(shape, [[(move, 1.0)] for move in flow])
        votes = votes_of(table, shape)
        assert sum(1 << i for i in range(d) if votes[i] > 0) == upwards
        assert (votes != 0).all()


@pytest.mark.parametrize("side", [7, 77, 98])
def test_where_a_sample_votes_no_line_of_the_block_has_all_the_votes(side: int) -> None:
    """In every seventh column, or every eleventh, the policy goes down, in all others up."""
    shape = (700 // side + 1, side)
    table = block(shape, [[((0, 1), 1.0)], [((0, -1), 1.0)]])
    assert table.n_states >= 448
    columns = np.arange(table.n_states) % side
    for period in (7, 11):
        policy = (columns % period == 0).astype(np.int32)
        along = votes_of(table, shape, policy)[1]
        assert along > 0.5 * np.count_nonzero(policy == 0) / 13


def test_a_vote_weighs_probability_and_discount() -> None:
    shape = (5, 6)
    table = block(shape, [[((1, 0), 0.7), ((-1, 0), 0.2), ((0, -1), 0.1)]])
    # Clipped moves stay and are no vote: 4 of 5 lines can go up, 4 of 5 down; 5 of 6 columns to the left.
    np.testing.assert_allclose(votes_of(table, shape), [0.9 * 6 * 4 * (0.7 - 0.2), -0.9 * 5 * 5 * 0.1])


def test_rows_that_end_the_process_do_not_vote() -> None:
    shape = (3, 4)
    durations = np.tile([1.0, np.inf], 12)
    table = block(shape, [[((0, 1), 1.0)], [((-1, 0), 1.0)]], durations=durations)
    np.testing.assert_allclose(votes_of(table, shape), [0.0, 0.9 * 3 * 3])


def test_successors_outside_the_partition_do_not_vote() -> None:
    table = block((6,), [[((1,), 1.0)]])
    table.successors[:] = 6
    assert votes_of(table, (6,)).tolist() == [0.0]


def test_only_the_greedy_action_votes_once_there_is_one() -> None:
    shape = (4, 4)
    table = block(shape, [[((1, 0), 1.0)], [((0, -1), 1.0)]])
    np.testing.assert_allclose(votes_of(table, shape), [0.9 * 12, -0.9 * 12])
    np.testing.assert_allclose(votes_of(table, shape, np.zeros(16, np.int32)), [0.9 * 12, 0.0])
    np.testing.assert_allclose(votes_of(table, shape, np.ones(16, np.int32)), [0.0, -0.9 * 12])


def test_a_partition_votes_again_ever_more_rarely() -> None:
    table = block((4, 4), [[((1, 0), 1.0)], [((0, -1), 1.0)]])
    backend = backend_for(table, "voted", (4, 4), 0.9)
    resident = backend.admit(backend.prepare(table))
    votes = []
    for visit in range(1, 51):
        backend.policy()[:] = visit % 2  # action 0 goes up the first axis, action 1 down the second
        before = backend._orders._due[0]
        extents, strides = backend._traversal(resident).tolist()
        if backend._orders._due[0] != before:
            votes.append(visit)
            assert (extents, strides) == (([1, 16], [1, 1]) if visit % 2 else ([4, 4], [-4, 1]))
    assert votes == [1, 2, 3, 4, 6, 9, 13, 19, 28, 42]


def test_the_plan_counts_what_votes_keep() -> None:
    shapes = GridOrder((10, 9), [[0, 4, 10], [0, 3, 6, 9]]).block_shapes()
    assert shapes.tolist() == [[4, 3], [4, 3], [4, 3], [6, 3], [6, 3], [6, 3]]
    model = facts_with([0, *np.cumsum(shapes.prod(axis=1)).tolist()], block_shapes=shapes)
    assert CpuBackend("voted").layout(model, Needs()).host["sweep orders"] == 6 * 8 + 6 * 2 * 8
    assert "sweep orders" not in CpuBackend("forward").layout(model, Needs()).host
    orders = SweepOrders("voted", shapes.prod(axis=1), shapes)
    assert sum(a.nbytes for a in (orders._visits, orders._due, orders.shapes)) == 6 * 8 + 6 * 2 * 8


@settings(max_examples=60)
@given(cases(), st.sampled_from(ORDERS), st.sampled_from(["vi", "p-eva"]), st.sampled_from([0.0, 0.5, 0.9]))
def test_values_are_within_the_bound_of_the_optimum_whatever_the_order(
    case: Case, order: SweepOrder, method: str, discount: float
) -> None:
    with stored(case) as store:
        options = SolveOptions(
            discount,
            epsilon=1e-3,
            method=method,  # type: ignore[arg-type]
            sweep_order=order,
            cache=CacheSize(size=1 << 20),
            device="cpu",
        )
        solution = solve(store, options, RunOptions(time_limit=0.5))
        exact = optimum(rows_of(store), discount, case.sense)
    assert max(abs(x) for x in distance(solution.values, exact)) <= solution.error_bound


@pytest.mark.parametrize("method", ["vi", "p-eva"])
def test_a_grid_world_has_the_same_certified_answer_in_every_order(tmp_path, method: str) -> None:
    ooc_mdp.generate("GW-24x4", tmp_path / "s", {"seed": 3}, partitions=9)
    answers = []
    for order in ORDERS:
        output = tmp_path / f"{order}.npy"
        common = ("--discount", 0.9, "--epsilon", 1e-6, "--device", "cpu", "--method", method, "--json")
        ran = ooc("solve", tmp_path / "s", "--sweep-order", order, "--output", tmp_path / order, *common)
        assert ran.status == 0, ran.err
        assert ran.figures["error_bound"] <= 1e-6
        assert ("sweep orders" in ran.figures["memory_plan"]["host"]) == (order == "voted")
        assert ooc("verify", tmp_path / "s", tmp_path / order).status == 0
        assert ooc("export", tmp_path / order, output).status == 0
        answers.append(np.load(output))
    for answer in answers[1:]:
        np.testing.assert_allclose(answer, answers[0], rtol=0, atol=2e-6)


def test_an_unknown_order_is_refused() -> None:
    with pytest.raises(OptionsError, match=r"unknown sweep order 'sideways'; there are forward, alternating, voted"):
        SolveOptions(0.9, sweep_order="sideways")  # type: ignore[arg-type]
    assert "sideways" in refused("solve", "s", "--discount", 0.9, "--sweep-order", "sideways")
