"""Values return to the source's order only where each of its states is in one partition."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from altered_stores import with_values

import ooc_mdp
from ooc_mdp.errors import StoreError
from ooc_mdp.store import Store, open_store

pytest.importorskip("pymetis")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    place = tmp_path_factory.mktemp("source_order")
    rng = np.random.default_rng(0)
    lines = [f"S:{i}:0:1\nA:0:1\nD:{rng.integers(40)}:1:-{i}\n" for i in range(40)]
    (place / "m.txt").write_text("".join(lines))
    return ooc_mdp.convert(place / "m.txt", place / "s", partitions=4, partitioner="metis", threads=1)


def test_each_state_of_the_source_gets_its_value(store: Store) -> None:
    numbers = np.concatenate([store.original_states(p) for p in range(4)])
    assert store.to_source(numbers).tolist() == list(range(40))


@pytest.mark.parametrize("at", [0, -1])
def test_a_state_that_two_partitions_have_is_refused_by_name(store: Store, tmp_path: Path, at: int) -> None:
    taken = int(store.original_states(0)[at])

    def take(states: np.ndarray) -> None:
        states[at] = taken
        states.sort()

    forged = open_store(with_values(store, tmp_path / "forged", "original_state", 1, take))
    with pytest.raises(StoreError, match=f"original_state of partition 1 names state {taken} twice .* or another"):
        forged.to_source(np.zeros(40))
    ooc_mdp.solve(store, 0.9, device="cpu", output=tmp_path / "r")
    with pytest.raises(StoreError, match=f"names state {taken} twice"):
        ooc_mdp.verify(forged, tmp_path / "r", other_store=True)


def test_a_state_that_a_partition_repeats_is_refused_by_name(store: Store, tmp_path: Path) -> None:
    forged = open_store(
        with_values(store, tmp_path / "forged", "original_state", 2, lambda states: states.fill(states[0]))
    )
    with pytest.raises(StoreError, match="original_state of partition 2 names state"):
        ooc_mdp.solve(forged, 0.9, device="cpu", output=tmp_path / "r")
    assert not (tmp_path / "r").exists()
