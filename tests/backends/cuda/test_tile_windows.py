"""Windows in which a process stays are solved at once, and what is proved of the values holds all the same."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from small_mdps import rows_of
from store_models import Action, Model, ModelProblem, State
from tiled_engine import Engine, MakeDevice, ShuffledDevice, wander

from ooc_mdp.backends.base import SweepLimits
from ooc_mdp.backends.cuda.tiles import launches as tile_launches
from ooc_mdp.io.conversion import ConvertOptions, generate
from ooc_mdp.reference import policy_iteration
from ooc_mdp.store import Store

DISCOUNT = 0.9999
LIMITS = SweepLimits(0.0, 1000, 5e-4)

# Tiles are of 16 states: of 4 x 4 on a grid of two dimensions.
BOARDS = {
    "within a tile": ((64,), [(24,)]),
    "two tiles": ((64,), [(15,), (16,)]),
    "the last border": ((64,), [(47,), (48,)]),
    "four tiles": ((16, 16), [(3, 3), (3, 4), (4, 4), (4, 3)]),
    "a corner": ((16, 16), [(15, 15)]),
}


class Board(ModelProblem):
    """Cells, from each of which one can go to its neighbours, with some chance to stay; some have a reward."""

    sense = "max"

    def __init__(self, shape: tuple[int, ...], rewarded: list[tuple[int, ...]], durations: bool = False) -> None:
        cells = list(itertools.product(*map(range, shape)))
        numbers = {cell: i for i, cell in enumerate(cells)}

        def action(cell: tuple[int, ...], axis: int, by: int) -> Action:
            to = tuple(at + by * (d == axis) for d, at in enumerate(cell))
            here, there = numbers[cell], numbers.get(to, numbers[cell])
            other = numbers[tuple(at - by * (d == axis) for d, at in enumerate(cell))] if here == there else here
            duration = 0.5 + here / len(cells) if durations else 1.0
            return Action(float(cell in rewarded), {there: 0.9, other: 0.1}, duration)

        moves = [(axis, by) for axis in range(len(shape)) for by in (-1, 1)]
        states = tuple(State(tuple(action(cell, *move) for move in moves)) for cell in cells)
        super().__init__(Model(states, durations), shape)


def make(path: Path, name: str, durations: bool = False, blocks: tuple[int, ...] | None = None) -> Store:
    shape, rewarded = BOARDS[name]
    return generate(Board(shape, rewarded, durations), path, ConvertOptions(partition_grid=blocks or (1,) * len(shape)))


def batch(engine: Engine, limits: SweepLimits = LIMITS) -> int:
    """One batch of all residents; the backups of a state that it took."""
    report = engine.sweep_together(list(engine.residents), limits)
    engine.assert_that_the_bounds_are_true()
    return int(report.backups.sum()) // engine.store.n_states


def converge(engine: Engine, limits: SweepLimits = LIMITS) -> int:
    """Batches until no bound is above twice the limit: what tiles left is below it, and what their inputs did."""
    backups = 0
    for _ in range(50):
        backups += batch(engine, limits)
        bounds = engine.bounds.plain() if limits.plain else engine.bounds.normalised()
        if bounds.max() <= 2 * limits.residual:
            return backups
    raise AssertionError("it did not converge")


def error(engine: Engine) -> float:
    best = policy_iteration(rows_of(engine.store), engine.discount).values
    return float(np.abs(engine.backend.values() - best).max())


def windows(engine: Engine) -> set[int]:
    """1 + the halves of all windows in which a trap was found."""
    found = np.empty(engine.backend._tiling.total, np.uint32)
    engine.backend._stream.download(found, engine.backend._memory.at["traps"])
    engine.backend._stream.wait()
    return set(found.tolist()) - {0}


@pytest.mark.parametrize("durations", [False, True])
@pytest.mark.parametrize("name", BOARDS)
def test_where_a_process_stays_values_need_not_wait_for_the_discount(
    name: str, durations: bool, tmp_path: Path, device: MakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make(tmp_path / "store", name, durations)
    engine = Engine(store, DISCOUNT, device())
    engine.load(0)
    backups = converge(engine)
    assert error(engine) <= 1e-3
    assert windows(engine)
    monkeypatch.setattr(tile_launches, "_WINDOW_ROUNDS", ())
    usual = Engine(store, DISCOUNT, device())
    usual.load(0)
    done = 0
    while done < 4 * backups:
        done += batch(usual)
    assert error(usual) > 100
    assert not windows(usual)


@pytest.mark.parametrize("target", [1e-4, 1e-6])
def test_a_plain_residual_is_small_where_a_process_stays_since_its_values_are_right(
    target: float, tmp_path: Path, device: MakeDevice
) -> None:
    """Visits alone would end with errors of the target over 1 - discount there, 1 and 0.01."""
    engine = Engine(make(tmp_path / "store", "two tiles"), DISCOUNT, device())
    engine.load(0)
    converge(engine, SweepLimits(0.0, 1000, target, plain=True))
    assert error(engine) <= 100 * target


@pytest.mark.parametrize(("name", "blocks"), [("two tiles", (2,)), ("four tiles", (1, 2)), ("a corner", (2, 1))])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_bounds_hold_in_whatever_order_windows_are_solved(
    name: str, blocks: tuple[int, ...], seed: int, tmp_path: Path
) -> None:
    """Windows overlap each other and the borders of tiles; partitions come and go."""
    engine = Engine(make(tmp_path / "store", name, blocks=blocks), 0.999, ShuffledDevice(seed))
    wander(engine, seed, steps=30)
    assert windows(engine)
