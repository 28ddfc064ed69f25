"""What the tests of commands share: a store, its result and a small input."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from command_line import ooc


def save_ladder(path: Path, terminal: bool = True) -> None:
    """16 states that stay where they are, paid -1 by action 0 and s by action 1; the last one is terminal, worth 7."""
    n = 16
    acting = n - 1 if terminal else n
    rewards = np.stack([np.full(acting, -1.0), np.arange(acting)], axis=1).ravel()
    np.savez(
        path,
        state_ptr=np.concatenate([2 * np.arange(acting + 1), [2 * acting] * (n - acting)]),
        indptr=np.arange(2 * acting + 1),
        indices=np.repeat(np.arange(acting), 2),
        data=np.ones(2 * acting),
        r_sa=rewards,
        r_s=np.concatenate([np.zeros(acting), [7.0] * (n - acting)]),
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with maze.store, its result maze.result, and ladder.npz."""
    folder = tmp_path_factory.mktemp("cli")
    made = ooc("generate", "GW-32x4", folder / "maze.store", "--seed", 1, "--partitions", 16)
    assert made.status == 0, made.err
    solved = ooc(
        "solve", folder / "maze.store", "--discount", 0.95, "--cache", "30%", "--output", folder / "maze.result",
        "--device", "cpu",
    )  # fmt: skip
    assert solved.status == 0, solved.err
    save_ladder(folder / "ladder.npz")
    return folder
