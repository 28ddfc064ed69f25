"""What the tests of several formats share: reading a whole source, refusals, values, memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from paths import CASES

from ooc_mdp.errors import InputError
from ooc_mdp.io.source import Format, ReadOptions, Source

OTHER = CASES / "bad" / "other"
SIZES = [1, 300, 16 << 20]
"""Segment bytes: a block a state, a few states a block, one block."""


def rows_of(source: Source) -> dict[str, np.ndarray]:
    """All blocks of a source as one set of arrays."""
    blocks = [read() for read in source.blocks()]
    source.check_totals()
    parts = [block.rows for block in blocks]
    assert [b.first_state for b in blocks] == np.cumsum([0] + [p.n_states for p in parts])[:-1].tolist()
    assert source.n_states == sum(p.n_states for p in parts)

    def joined(name: str, default: str) -> np.ndarray:
        sizes = {"n": "n_states", "m": "n_rows"}[default]
        values = [getattr(p, name) for p in parts]
        return np.concatenate(
            [np.zeros(getattr(p, sizes)) if v is None else v for p, v in zip(parts, values, strict=True)]
        )

    def pointers(name: str) -> np.ndarray:
        return np.concatenate([[0], np.cumsum(np.concatenate([np.diff(getattr(p, name)) for p in parts]))])

    return {
        "action_ptr": pointers("action_ptr"),
        "successor_ptr": pointers("successor_ptr"),
        "successors": np.concatenate([p.successors for p in parts]),
        "probabilities": np.concatenate([p.probabilities for p in parts]),
        "rewards": np.concatenate([p.rewards for p in parts]),
        "terminal_rewards": joined("terminal_rewards", "n"),
        "blocks": np.array(len(blocks)),
    }


def read(known: Format, path: Path | str, **options: object) -> dict[str, np.ndarray]:
    source = known.open(str(path), ReadOptions(**options))  # type: ignore[arg-type]
    try:
        return rows_of(source)
    finally:
        source.close()


def refusal(known: Format, path: Path | str, **options: object) -> InputError:
    with pytest.raises(InputError) as caught:
        read(known, path, **options)
    assert len(str(caught.value)) < 600
    return caught.value


def value_iteration(rows: dict[str, np.ndarray], discount: float) -> np.ndarray:
    acts = rows["action_ptr"][:-1] < rows["action_ptr"][1:]
    values = np.where(acts, 0.0, rows["terminal_rewards"])
    for _ in range(4000):
        expected = np.add.reduceat(rows["probabilities"] * values[rows["successors"]], rows["successor_ptr"][:-1])
        of_rows = rows["rewards"] + discount * expected
        values[acts] = np.maximum.reduceat(of_rows, rows["action_ptr"][:-1][acts])
    return values


def same(rows: dict[str, np.ndarray], case: np.lib.npyio.NpzFile) -> None:
    """Exactly the rows of a case's model.npz, rewards aside."""
    np.testing.assert_array_equal(rows["action_ptr"], case["state_ptr"])
    np.testing.assert_array_equal(rows["successor_ptr"], case["indptr"])
    np.testing.assert_array_equal(rows["successors"], case["indices"])
    np.testing.assert_array_equal(rows["probabilities"], case["data"])


def peak_bytes(call: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
