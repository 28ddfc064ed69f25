"""The first load of a partition compares it with the store's small arrays, from which bounds are proved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from altered_stores import opened_with_small_array, with_small_array, with_values
from store_models import ModelSource, random_model

import ooc_mdp
from ooc_mdp.errors import StoreError
from ooc_mdp.io.conversion import ConvertOptions, convert
from ooc_mdp.store import Store, open_store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Rows of every length, durations, and terminal states with rewards."""
    model = random_model(3, 40, durations=True)
    place = tmp_path_factory.mktemp("check_load")
    return convert(ModelSource(model), place / "s", ConvertOptions(partitions=4, threads=1))


def read_all(store: Store, order: int = 1) -> None:
    for p in range(store.n_partitions)[::order]:
        store.read(p)


def scaled(by: float) -> Callable[[np.ndarray], None]:
    def change(values: np.ndarray) -> None:
        values *= by

    return change


def set_to(place: object, value: float) -> Callable[[np.ndarray], None]:
    def change(values: np.ndarray) -> None:
        values[place] = value

    return change


SUMMARIES = {
    "rewards are all 0": ("reward_range", scaled(0.0)),
    "rewards are smaller": ("reward_range", scaled(0.5)),
    "rewards are larger": ("reward_range", scaled(2.0)),
    "durations are longer": ("duration_range", scaled(2.0)),
    "durations are shorter": ("duration_range", scaled(0.5)),
    "rows sum to less": ("row_sum_range", scaled(1 - 1e-9)),
    "rows sum to more": ("row_sum_range", scaled(1 + 1e-9)),
    "nothing is coupled": ("coupling_mass", scaled(0.0)),
    "less is coupled": ("coupling_mass", scaled(1 - 1e-9)),
    "more is coupled": ("coupling_mass", scaled(1 + 1e-6)),
}


@pytest.mark.parametrize("which", SUMMARIES)
def test_a_partition_that_is_not_what_a_small_array_says_is_refused(store: Store, tmp_path: Path, which: str) -> None:
    name, change = SUMMARIES[which]
    forged = opened_with_small_array(store, tmp_path / "forged", name, change)
    with pytest.raises(StoreError, match=f"forged contradicts itself: {name} of partition 0: "):
        forged.read(0)


def test_a_coupling_with_other_partitions_is_refused(store: Store, tmp_path: Path) -> None:
    chain = "".join(f"S:{i}:0:1\nA:0:1\nD:{min(i + 1, 59)}:1:-1\n" for i in range(60))
    (tmp_path / "m.txt").write_text(chain)
    line = ooc_mdp.convert(tmp_path / "m.txt", tmp_path / "s", partitions=6, threads=1)
    assert line.facts.coupling.partitions[:3].tolist() == [0, 1, 1]
    forged = opened_with_small_array(line, tmp_path / "forged", "coupling_partitions", set_to(1, 4))
    with pytest.raises(StoreError, match=r"coupling_partitions of partition 0: says \[0, 4\], its halo has"):
        forged.read(0)


CHUNKS = {
    "a reward is no number": ("rewards", "reward_range", set_to(3, np.nan)),
    "a reward is infinite": ("rewards", "reward_range", set_to(3, np.inf)),
    "a reward is larger": ("rewards", "reward_range", set_to(3, 1e3)),
    "a duration is no number": ("durations", "duration_range", set_to(3, np.nan)),
    "a duration is negative": ("durations", "duration_range", set_to(3, -1.0)),
    "a probability is no number": ("probabilities", "probabilities", set_to(3, np.nan)),
    "a probability is negative": ("probabilities", "probabilities", set_to(3, -1e-12)),
    "a probability is above 1": ("probabilities", "probabilities", set_to(3, 1.5)),
    "a halo descends": ("halo", "halo", lambda halo: halo.sort() or halo.__setitem__(slice(None), halo[::-1].copy())),
    "a halo repeats a state": ("halo", "halo", lambda halo: halo.__setitem__(1, halo[0])),
    "a halo has own states": ("halo", "halo", set_to(0, 0)),
}


@pytest.mark.parametrize("which", CHUNKS)
def test_a_chunk_that_the_small_arrays_do_not_describe_is_refused(store: Store, tmp_path: Path, which: str) -> None:
    field, named, change = CHUNKS[which]
    forged = open_store(with_values(store, tmp_path / "forged", field, 0, change))
    with pytest.raises(StoreError, match=f"forged contradicts itself: {named} of partition 0: "):
        forged.read(0)


@pytest.mark.parametrize("order", [1, -1])
def test_a_boundary_that_lacks_a_state_is_refused_once_its_readers_are_loaded(
    store: Store, tmp_path: Path, order: int
) -> None:
    assert store.read(1)[0].boundary.any()
    forged = open_store(with_values(store, tmp_path / "forged", "boundary", 1, set_to(slice(None), False)))
    with pytest.raises(StoreError, match=r"boundary of partition 1: state \d+ is not in it, and .* reads it"):
        read_all(forged, order)


def test_a_terminal_reward_outside_the_range_is_refused(store: Store, tmp_path: Path) -> None:
    p = next(p for p in range(4) if (store.action_counts(p) == 0).any())
    state = int(np.argmin(store.action_counts(p)))
    forged = open_store(with_values(store, tmp_path / "forged", "terminal_rewards", p, set_to(state, np.nan)))
    with pytest.raises(StoreError, match=f"reward_range of partition {p}: says"):
        forged.read(p)


def test_a_weight_above_1_in_an_encoding_without_the_last_is_refused(tmp_path: Path) -> None:
    car = ooc_mdp.generate("mountain-car", tmp_path / "car", {"grid": "16,16"}, partitions=4)
    assert car.fields["probabilities"].encoding == "fixed24-delta2"
    forged = open_store(
        with_values(car, tmp_path / "forged", "probabilities", 0, set_to(0, 2 * (1 << 25)), as_stored=True)
    )
    with pytest.raises(StoreError, match="probabilities of partition 0: one in local row 0 is negative"):
        forged.read(0)


@pytest.mark.parametrize("problem", ["GW-16x4", "mountain-car", "quintanilla", "random"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_was_generated_is_loaded(tmp_path: Path, problem: str, dtype: str) -> None:
    parameters = {"mountain-car": {"grid": "24,24"}, "quintanilla": {"height": 16, "width": 16}}.get(problem, {})
    store = ooc_mdp.generate(problem, tmp_path / "s", parameters, partitions=5, dtype=dtype)
    read_all(store)
    read_all(ooc_mdp.open_problem(problem, parameters, partitions=5, dtype=dtype))


def test_only_the_first_load_is_compared(store: Store, tmp_path: Path) -> None:
    forged = opened_with_small_array(store, tmp_path / "forged", "reward_range", lambda values: None)
    read_all(forged)
    forged.facts.reward_range[:] = 0.0
    read_all(forged)
    with pytest.raises(StoreError, match="contradicts itself"):
        open_store(with_small_array(store, tmp_path / "other", "reward_range", scaled(0.0))).read(0)
