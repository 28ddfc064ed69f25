"""Placements against what defines them: one owner each, shares, regions, cuts, and reassignment after losses."""

from __future__ import annotations

import builtins
import itertools
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_models import ModelProblem, random_model

from ooc_mdp.distributed.ownership import reassign
from ooc_mdp.distributed.partition_graph import PartitionGraph, cut_fraction, partition_graph
from ooc_mdp.distributed.placement import (
    Attractors,
    Blocks,
    Metis,
    Placement,
    Random,
    SingleOwner,
    parse_placement,
)
from ooc_mdp.errors import MissingExtraError, OptionsError
from ooc_mdp.io.conversion import ConvertOptions, generate
from ooc_mdp.model.partition import Coupling

with_metis = pytest.mark.skipif(find_spec("pymetis") is None, reason="pymetis is not installed")

PLACEMENTS = [
    pytest.param(Blocks(), id="blocks"),
    pytest.param(Random(3), id="random"),
    pytest.param(Attractors(1, 5), id="attractors:1"),
    pytest.param(Attractors(20, 6), id="attractors:20"),
    pytest.param(Attractors(2, 7, balanced=False), id="attractors:2, unbalanced"),
    pytest.param(Metis(), id="metis", marks=with_metis),
]
BALANCED = [p for p in PLACEMENTS if p.id != "attractors:2, unbalanced"]


def coupling_of(mass: np.ndarray) -> Coupling:
    """The coupling with the non-zero entries of a matrix, and the diagonal, by rows."""
    rows, columns = np.nonzero(mass + np.eye(len(mass)))
    ptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(mass)))])
    return Coupling(ptr, columns.astype(np.int64), mass[rows, columns])


def grid(*shape: int, periodic: bool = False, seed: int = 0, weight: np.ndarray | None = None) -> PartitionGraph:
    """Partitions of one cell each that send mass to their neighbours along the axes."""
    rng = np.random.default_rng(seed)
    index = np.arange(np.prod(shape)).reshape(shape)
    mass = np.zeros((index.size, index.size))
    for axis, n in enumerate(shape):
        one = np.moveaxis(index, axis, 0)
        for i, j in [*itertools.pairwise(range(n)), *([(n - 1, 0)] if periodic else [])]:
            mass[one[i].ravel(), one[j].ravel()] = 0.5 + rng.random(one[i].size) / 2
            mass[one[j].ravel(), one[i].ravel()] = 0.5 + rng.random(one[i].size) / 2
    centre = np.stack([(i.ravel() + 0.5) / n for i, n in zip(np.indices(shape), shape, strict=True)], axis=1)
    weight = np.ones(index.size) if weight is None else weight
    return PartitionGraph(coupling_of(mass), weight, centre, (periodic,) * len(shape))


def graph(mass: np.ndarray, weight: np.ndarray | None = None) -> PartitionGraph:
    return PartitionGraph(coupling_of(mass), np.ones(len(mass)) if weight is None else weight)


def path(n: int) -> PartitionGraph:
    return graph(np.eye(n, k=1) + np.eye(n, k=-1))


@st.composite
def facts(draw: st.DrawFn, least: int = 1, most: int = 40, heaviest: float = 100.0) -> PartitionGraph:
    """Any coupling, weights from 1 on; a grid or none."""
    n = draw(st.integers(least, most))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    mass = rng.random((n, n)) * (rng.random((n, n)) < draw(st.sampled_from([0.0, 0.05, 0.3, 1.0])))
    weight = heaviest ** rng.random(n)
    if not draw(st.booleans()):
        return graph(mass, weight)
    axes = draw(st.integers(1, 3))
    periodic = tuple(draw(st.lists(st.booleans(), min_size=axes, max_size=axes)))
    return PartitionGraph(coupling_of(mass), weight, rng.integers(0, 5, (n, axes)) / 5 + 0.1, periodic)


shares_of_workers = st.lists(st.floats(1.0, 3.0), min_size=1, max_size=8).map(np.array)


def held(given: PartitionGraph, owner: np.ndarray, workers: int) -> np.ndarray:
    return np.bincount(owner, given.weight, workers)


@pytest.mark.parametrize("placement", PLACEMENTS)
@given(given=facts(), shares=shares_of_workers)
def test_every_partition_has_one_owner_and_every_worker_something_where_there_is_enough(
    placement: Placement, given: PartitionGraph, shares: np.ndarray
) -> None:
    owner = placement.place(given, shares)
    assert owner.shape == given.weight.shape
    assert owner.dtype == np.int64
    assert set(owner.tolist()) <= set(range(shares.size))
    assert len(set(owner.tolist())) == min(shares.size, given.weight.size)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_worker_with_the_smallest_share_gets_a_partition_too(placement: Placement) -> None:
    owner = placement.place(path(12), np.array([100.0, 100.0, 0.01]))
    assert np.bincount(owner, minlength=3)[2] >= 1


@pytest.mark.parametrize("placement", BALANCED)
@given(given=facts(least=160, most=240, heaviest=2.0), shares=shares_of_workers)
def test_workers_carry_their_shares(placement: Placement, given: PartitionGraph, shares: np.ndarray) -> None:
    wanted = shares / shares.sum() * given.weight.sum()
    missed = np.abs(held(given, placement.place(given, shares), shares.size) - wanted)
    # Three bisections miss by half a partition each; METIS may miss by 3%.
    assert (missed <= np.maximum(0.03 * wanted, 1.5 * given.weight.max()) + 1e-9).all()


@pytest.mark.parametrize("placement", PLACEMENTS)
@given(given=facts(), shares=shares_of_workers)
def test_the_same_facts_always_give_the_same_owners(
    placement: Placement, given: PartitionGraph, shares: np.ndarray
) -> None:
    np.testing.assert_array_equal(placement.place(given, shares), placement.place(given, shares))


@pytest.mark.parametrize("placement", [Random, Attractors], ids=["random", "attractors"])
def test_another_seed_gives_other_owners(placement: type[Random | Attractors]) -> None:
    given, shares = grid(10, 10), np.ones(4)
    assert (placement(seed=1).place(given, shares) != placement(seed=2).place(given, shares)).any()


def test_with_fewer_partitions_than_workers_those_with_the_largest_shares_get_one_each() -> None:
    owner = Blocks().place(path(3), np.array([1.0, 5.0, 2.0, 4.0, 0.5]))
    assert owner.tolist() == [1, 2, 3]


def test_blocks_of_a_square_grid_are_its_quarters() -> None:
    owner = Blocks().place(grid(4, 4), np.ones(4))
    assert owner.reshape(4, 4).tolist() == [[0, 0, 1, 1], [0, 0, 1, 1], [2, 2, 3, 3], [2, 2, 3, 3]]


def test_blocks_cut_a_long_grid_across() -> None:
    owner = Blocks().place(grid(2, 8), np.ones(4))
    assert owner.reshape(2, 8).tolist() == [[0, 0, 1, 1, 2, 2, 3, 3]] * 2


def test_blocks_without_a_grid_are_runs_of_the_stores_order() -> None:
    assert Blocks().place(path(8), np.array([1.0, 3.0])).tolist() == [0, 0, 1, 1, 1, 1, 1, 1]
    heavy = graph(np.zeros((4, 4)), np.array([1.0, 1.0, 1.0, 3.0]))
    assert Blocks().place(heavy, np.ones(2)).tolist() == [0, 0, 0, 1]


@given(st.integers(0, 1000), st.integers(2, 6))
def test_the_cells_of_single_attractors_are_convex(seed: int, workers: int) -> None:
    owner = Attractors(1, seed, balanced=False).place(grid(15, 11), np.ones(workers)).reshape(15, 11)
    for worker in range(workers):
        cells = np.argwhere(owner == worker)
        middles = (cells[:, None] + cells[None]).reshape(-1, 2)
        middles = middles[(middles % 2 == 0).all(axis=1)] // 2
        if len(cells) > 1:  # a worker without a cell was given one
            assert (owner[tuple(middles.T)] == worker).all()


def test_a_cell_crosses_the_seam_of_a_periodic_axis_only() -> None:
    """Two workers share a ring or a line of partitions: arcs meet twice, and once."""
    crosses = {False: 0, True: 0}
    for periodic, seed in itertools.product(crosses, range(30)):
        owner = Attractors(1, seed).place(grid(60, periodic=periodic), np.ones(2))
        crosses[periodic] += int(owner[0] == owner[-1])
        assert np.count_nonzero(np.diff(owner)) <= (2 if periodic else 1)
    assert crosses[False] == 0
    assert crosses[True] > 20


@given(st.integers(0, 1000), st.integers(2, 5))
def test_attractors_without_a_grid_take_what_is_next_to_them_in_the_coupling_graph(seed: int, workers: int) -> None:
    owner = Attractors(1, seed, balanced=False).place(path(50), np.ones(workers))
    assert np.count_nonzero(np.diff(owner)) == workers - 1


@pytest.mark.parametrize("with_grid", [True, False], ids=["grid", "graph"])
def test_many_attractors_come_near_to_a_random_placement_and_few_to_blocks(with_grid: bool) -> None:
    given, shares = grid(24, 24), np.ones(4)
    given = given if with_grid else replace(given, centre=None, periodic=())
    one, some, many = (np.mean([cut_fraction(given, Attractors(n, s).place(given, shares)) for s in range(5)])
                       for n in (1, 10, 3000))  # fmt: skip
    at_random = cut_fraction(given, Random().place(given, shares))
    assert one < 2.5 * cut_fraction(grid(24, 24), Blocks().place(grid(24, 24), shares))
    assert 1.5 * one < some < 0.7 * at_random
    assert many == pytest.approx(at_random, abs=0.05)


def test_balance_costs_attractors_of_a_grid_little_crossing() -> None:
    given, shares = grid(30, 30), np.array([1.0, 1.0, 2.0])
    for seed in range(5):
        plain, even = (Attractors(3, seed, b).place(given, shares) for b in (False, True))
        wanted = given.weight.sum() * shares / 4
        assert np.abs(held(given, even, 3) - wanted).max() <= 9
        assert np.abs(held(given, plain, 3) - wanted).max() > 9
        assert cut_fraction(given, even) < cut_fraction(given, plain) + 0.1


@with_metis
@pytest.mark.parametrize("periodic", [False, True])
def test_metis_cuts_less_mass_than_random_on_a_grid(periodic: bool) -> None:
    given, shares = grid(16, 16, periodic=periodic), np.ones(4)
    cut = cut_fraction(given, Metis().place(given, shares))
    assert cut < 0.25 * cut_fraction(given, Random().place(given, shares))
    assert cut < 1.4 * cut_fraction(given, Blocks().place(given, shares))


@with_metis
def test_metis_keeps_strongly_coupled_partitions_together() -> None:
    group = np.random.default_rng(0).permutation(np.repeat(np.arange(4), 8))
    mass = np.where(group[:, None] == group, 0.9, 0.01)
    owner = Metis().place(graph(mass), np.ones(4))
    assert len({(int(g), int(o)) for g, o in zip(group, owner, strict=True)}) == 4


def test_metis_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: object) -> object:
        if name == "pymetis":
            raise ImportError(name)
        return real(name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"The placement metis needs .*ooc-mdp\[metis\]"):
        Metis().place(path(4), np.ones(2))


@pytest.mark.parametrize("text", ["blocks", "random", "attractors:1", "attractors:30", "voronoi:3", "metis", "single"])
def test_a_placement_is_named_as_it_is_parsed(text: str) -> None:
    assert parse_placement(text).name == text


def test_one_worker_has_everything_where_the_placement_says_so_or_partitions_read_most_of_the_others() -> None:
    owner = SingleOwner().place(path(7), np.array([1.0, 3.0, 3.0, 2.0]))
    assert owner.tolist() == [1] * 7
    assert SingleOwner().place(path(1), np.array([1.0, 2.0])).tolist() == [1]
    assert parse_placement("auto") == Blocks()
    assert parse_placement("auto", dense=True) == SingleOwner()
    assert parse_placement("blocks", dense=True) == Blocks()


def test_attractors_are_thirty_a_worker_where_nothing_is_said() -> None:
    assert parse_placement("attractors") == Attractors(30) == parse_placement("attractors:30")


@pytest.mark.parametrize("text", ["", "voronoi", "Metis", "attractors:", "attractors:-1", "attractors:x", "blocks "])
def test_another_name_is_refused_with_the_choices(text: str) -> None:
    with pytest.raises(OptionsError, match=r"give one of blocks, .*, attractors\[:N\], voronoi:N, auto"):
        parse_placement(text)


def test_voronoi_leaves_the_weights_to_chance() -> None:
    assert parse_placement("voronoi:2") == Attractors(2, balanced=False)


@pytest.mark.parametrize(
    ("text", "new"),
    [
        ("alone", '"single"'),
        ("dynamic", '"blocks" with --rebalance'),
        ("dynamic:random", '"random" with --rebalance'),
    ],
)
def test_a_former_placement_names_the_present_option(text: str, new: str) -> None:
    with pytest.raises(OptionsError, match=f'placement "{text}" is now .*{new}'):
        parse_placement(text)


@pytest.mark.parametrize("text", ["attractors:0", "voronoi:0"])
def test_no_attractors_are_refused(text: str) -> None:
    with pytest.raises(OptionsError, match=f"{text}: give at least 1 attractor"):
        parse_placement(text)


@pytest.mark.parametrize("shares", [[], [0.0, 1.0], [-1.0], [np.nan], [np.inf, 1.0]])
def test_shares_that_are_none_are_refused(shares: list[float]) -> None:
    with pytest.raises(ValueError, match="positive number for each worker"):
        Random().place(path(4), np.array(shares))


def test_facts_that_do_not_fit_each_other_are_refused() -> None:
    coupling = path(4).coupling
    with pytest.raises(ValueError, match="weights of shape"):
        PartitionGraph(coupling, np.ones(3))
    with pytest.raises(ValueError, match="positive one for each"):
        PartitionGraph(coupling, np.zeros(4))
    with pytest.raises(ValueError, match="centres of shape"):
        PartitionGraph(coupling, np.ones(4), np.zeros((4, 2)), (False,))


def test_crossing_is_the_share_of_mass_between_different_owners() -> None:
    mass = np.array([[0.7, 0.2, 0.0], [0.0, 0.1, 0.5], [0.3, 0.0, 0.9]])
    given = graph(mass)
    assert cut_fraction(given, np.array([0, 0, 1])) == pytest.approx((0.5 + 0.3) / (0.2 + 0.5 + 0.3))
    assert cut_fraction(given, np.zeros(3, np.int64)) == 0.0
    assert cut_fraction(graph(np.eye(3)), np.arange(3)) == 0.0


@given(given=facts(), shares=shares_of_workers, data=st.data())
def test_the_lost_workers_partitions_go_to_the_living_and_no_other_moves(
    given: PartitionGraph, shares: np.ndarray, data: st.DataObject
) -> None:
    workers = shares.size
    owner = np.array(data.draw(st.lists(st.integers(-1, workers - 1), min_size=given.weight.size,
                                        max_size=given.weight.size)))  # fmt: skip
    alive = np.array(data.draw(st.lists(st.integers(0, workers - 1), min_size=1, unique=True)))
    lost = np.setdiff1d(np.arange(-1, workers), alive)
    after = reassign(given, owner, lost, alive, shares[alive])
    stay = np.isin(owner, alive)
    assert (after[stay] == owner[stay]).all()
    assert np.isin(after, alive).all()
    np.testing.assert_array_equal(after, reassign(given, owner, lost, alive, shares[alive]))

    # Whoever got something is, for its share, no more than a partition above the one who has least.
    before, carries = (np.bincount(o[np.isin(o, alive)], given.weight[np.isin(o, alive)], workers)[alive]
                       for o in (owner, after))  # fmt: skip
    got, share = carries > before, shares[alive]
    level = (before[got].sum() + given.weight[~stay].sum()) / share[got].sum() if got.any() else 0.0
    assert (carries[got] <= 1.01 * np.maximum(level * share[got], before[got]) + given.weight.max() + 1e-9).all()


def test_a_lost_run_goes_to_the_neighbours_on_either_side() -> None:
    owner = np.repeat([0, 1, 2], 4)
    after = reassign(path(12), owner, np.array([1]), np.array([0, 2]))
    assert after.tolist() == [0] * 6 + [2] * 6


def test_partitions_go_to_whom_they_are_strongly_coupled_with() -> None:
    mass = np.array([[0.0, 0.0, 0.1, 0.9], [0.0, 0.0, 0.9, 0.1], [0.0] * 4, [0.0] * 4])
    after = reassign(graph(mass), np.array([0, 1, 2, 2]), np.array([2]), np.array([0, 1]))
    assert after.tolist() == [0, 1, 1, 0]


def test_those_who_own_least_are_filled_up_first() -> None:
    owner = np.array([0] * 7 + [1] * 2 + [2] * 3)
    after = reassign(path(12), owner, np.array([2]), np.array([0, 1]))
    assert after.tolist() == [0] * 7 + [1] * 5
    larger = reassign(path(12), owner, np.array([2]), np.array([1, 0]), np.array([1.0, 5.0]))
    assert larger.tolist() == [0] * 7 + [1] * 2 + [0] * 3


def test_a_takeover_parts_fewer_neighbours_than_chance_would() -> None:
    given = grid(20, 20)
    rng = np.random.default_rng(0)
    for placement in (Blocks(), Attractors(5), Random()):
        owner = placement.place(given, np.ones(5))
        alive = np.array([0, 1, 3, 4])
        dealt = owner.copy()
        dealt[owner == 2] = rng.permutation(np.resize(alive, np.count_nonzero(owner == 2)))
        after = reassign(given, owner, np.array([2]), alive)
        assert cut_fraction(given, after) < cut_fraction(given, dealt) - 0.02
        assert np.ptp(held(given, after, 5)[alive]) <= 2


def test_no_worker_is_both_lost_and_alive_and_one_must_be_left() -> None:
    owner = np.array([0, 0, 1, 1])
    with pytest.raises(ValueError, match=r"\[1\] are both lost and alive"):
        reassign(path(4), owner, np.array([0, 1]), np.array([1]))
    with pytest.raises(ValueError, match="no worker is left for 2 partitions"):
        reassign(path(4), owner, np.array([0]), np.empty(0, np.int64))
    assert reassign(path(4), owner, np.array([2]), np.array([0, 1])).tolist() == [0, 0, 1, 1]


def test_facts_of_a_grid_hold_the_middles_and_its_periodic_axes(tmp_path: Path) -> None:
    problem, options = ModelProblem(random_model(1, 24), shape=(4, 6)), ConvertOptions(partition_grid=(2, 3))
    axes = {"axes": [{"name": "speed", "periodic": False}, {"name": "angle", "periodic": True}]}
    store = generate(problem, tmp_path / "s", options, geometry=axes)
    given = partition_graph(store)
    assert given.periodic == (False, True)
    assert given.centre is not None
    for p in range(store.n_partitions):
        points = np.stack(np.unravel_index(store.original_states(p), (4, 6)), axis=1)
        np.testing.assert_allclose(given.centre[p], (points.mean(axis=0) + 0.5) / [4, 6])
    np.testing.assert_array_equal(given.weight, store.facts.partition_bytes)
    assert given.coupling is store.facts.coupling
    unnamed = partition_graph(generate(problem, tmp_path / "t", options))
    assert unnamed.periodic == (False, False)
    np.testing.assert_array_equal(unnamed.centre, given.centre)


def test_a_store_without_a_grid_has_no_centres_and_can_be_placed(tmp_path: Path) -> None:
    given = partition_graph(generate(ModelProblem(random_model(1, 30)), tmp_path / "s", ConvertOptions(partitions=6)))
    assert given.centre is None
    owner = Blocks().place(given, np.ones(3))
    assert (np.diff(owner) >= 0).all()
    assert set(owner.tolist()) == {0, 1, 2}
    assert sorted(set(Attractors(2).place(given, np.ones(3)).tolist())) == [0, 1, 2]
