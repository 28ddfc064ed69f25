"""Memory of tables: nothing is given twice, everything comes back, and tables in it are those of any memory."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ooc_mdp
from ooc_mdp.errors import MemoryBudgetError
from ooc_mdp.model.partition import PartitionTable
from ooc_mdp.runtime import arena as arena_module
from ooc_mdp.runtime.arena import Arena


@given(
    size=st.integers(0, 2000),
    steps=st.lists(st.one_of(st.integers(0, 700), st.integers(-9, -1)), max_size=60),
)
def test_arrays_never_overlap_and_all_their_memory_comes_back(size: int, steps: list[int]) -> None:
    """Steps that are not negative make an array of that many float32; the others let one go."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arena_module, "_LEAST", 64)
        memory = Arena(size)
        whole = memory.free_bytes
        assert size - 64 < whole <= size
        held: list[tuple[np.ndarray, int]] = []
        inside = 0
        for number, step in enumerate(steps):
            if step < 0:
                if held:
                    array, mark = held.pop(step % len(held))
                    assert (array == mark).all()
                    del array
            else:
                array = memory.empty(step, np.float32)[: step or 1]  # a view keeps its memory, too
                assert array.size == step
                array[:] = number
                held.append((array, number))
                inside = max(inside, whole - memory.free_bytes)
        assert all((array == mark).all() for array, mark in held)
        array = None
        held.clear()
        assert memory.free_bytes == whole
        assert len(memory._by_size) == (whole > 0)


def test_what_does_not_fit_is_allocated_apart() -> None:
    memory = Arena(1 << 20)
    first = memory.empty(1 << 20, np.uint8)
    assert memory.free_bytes == 0
    second = memory.empty(1 << 20, np.uint8)
    first[:], second[:] = 1, 2
    assert first.max() == 1
    del first
    third = memory.empty(1 << 17, np.float64)
    third[:] = 3
    assert memory.free_bytes == 0
    assert second.min() == 2


def test_threads_get_memory_and_scratch_of_their_own() -> None:
    memory, together = Arena(64 << 20), threading.Barrier(4)

    def work(mark: int) -> None:
        for _ in range(50):
            with memory.scratch() as scratch:
                array, room = memory.empty(50_000, np.int64), scratch.buffer("a", 1000)
                array[:], room[:] = mark, mark
                together.wait(300)
                assert (array == mark).all()
                assert (room == mark).all()

    whole = memory.free_bytes
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    assert memory.free_bytes == whole


@pytest.mark.parametrize("problem", ["mountain-car", "random"])
def test_a_table_in_an_arena_is_the_same(tmp_path: Path, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena_module, "_LEAST", 1)
    parameters = {"grid": "40,30"} if problem == "mountain-car" else {"states": 300, "actions": 3, "successors": 4}
    store = ooc_mdp.generate(problem, tmp_path / "s", parameters, partitions=3)
    memory = Arena(1 << 20)
    for p in (0, 2, 1, 2):
        (expected, bytes_read), (table, read) = store.read(p), store.read_into(p, memory)
        assert read == bytes_read
        for field in fields(PartitionTable):
            np.testing.assert_array_equal(getattr(table, field.name), getattr(expected, field.name))
            assert getattr(getattr(table, field.name), "dtype", None) == getattr(
                getattr(expected, field.name), "dtype", None
            )
    assert memory.free_bytes < 1 << 20
    del table
    assert memory.free_bytes == 1 << 20


def test_a_cache_that_the_system_does_not_give_is_refused_plainly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    store = ooc_mdp.generate("GW-8x4", tmp_path / "s", partitions=2)
    monkeypatch.setattr(arena_module.mmap, "mmap", refuse)
    with pytest.raises(MemoryBudgetError, match=r"does not give .* \(Cannot allocate memory\); lower --cache"):
        ooc_mdp.solve(store, discount=0.9, device="cpu")
