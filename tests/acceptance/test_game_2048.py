"""The example of the game 2048: published probabilities of winning, and those of backward induction over the sums."""

from __future__ import annotations

import importlib.util
import sys
from itertools import pairwise
from types import ModuleType

import numpy as np
import pytest
from paths import DOCS

import ooc_mdp


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("game_2048", DOCS / "examples" / "game_2048.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["game_2048"] = module
    spec.loader.exec_module(module)
    return module


def backward_induction(game) -> np.ndarray:
    """The values of all states: each sum of the tiles from those of the larger ones."""
    values = np.zeros(game.n_states)
    values[game.victory] = 1.0
    cuts = [*np.flatnonzero(np.diff(game.keys >> game.sum_shift, prepend=-1)).tolist(), game.start]
    for first, last in [*reversed(list(pairwise(cuts))), (game.start, game.victory)]:
        for begin in range(first, last, 1 << 15):
            states = np.arange(begin, min(begin + (1 << 15), last))
            rows = game.rows(states)
            if rows.transitions.size:
                starts = np.cumsum(rows.transitions) - rows.transitions
                of_rows = np.add.reduceat(rows.probabilities * values[rows.successors], starts)
                acts = rows.actions > 0
                values[states[acts]] = np.maximum.reduceat(of_rows, (np.cumsum(rows.actions) - rows.actions)[acts])
    return values


@pytest.mark.parametrize(("goal", "value"), [(3, 1.0), (4, 0.9625112537500004), (5, 0.08288728907155417)])
def test_four_cells_have_the_probabilities_of_an_independent_solver(example, goal, value):
    game = example.Game(2, goal)
    solution = ooc_mdp.solve(ooc_mdp.from_rows(game.n_states, game.rows), ooc_mdp.TotalReward(), epsilon=1e-12)
    assert solution.values[game.start] == pytest.approx(value, abs=1e-12)
    assert solution.values == pytest.approx(backward_induction(game), abs=1e-12)


def test_a_board_has_the_moves_of_the_game(example):
    game = example.Game(3, 3)

    def board(*tiles):
        return np.array([sum(tile << 4 * i for i, tile in enumerate(tiles))])

    left, right, up, down = game.moved(board(1, 1, 2, 1, 1, 1, 0, 0, 3))[0].tolist()
    assert left == board(2, 2, 0, 2, 1, 0, 3, 0, 0)[0]  # each tile merges once, those nearest the wall first
    assert right == board(0, 2, 2, 0, 1, 2, 0, 0, 3)[0]
    assert up == board(2, 2, 2, 0, 0, 1, 0, 0, 3)[0]
    assert down == board(0, 0, 2, 0, 0, 1, 2, 2, 3)[0]


@pytest.mark.slow
@pytest.mark.parametrize(("goal", "published"), [(5, 1.0), (9, 0.74)])
def test_nine_cells_have_the_published_probability(example, tmp_path, goal, published):
    game = example.Game(3, goal)
    store = ooc_mdp.from_rows(game.n_states, game.rows, path=tmp_path / "game")
    solution = ooc_mdp.solve(store, ooc_mdp.TotalReward(), epsilon=1e-9)
    assert solution.outcome.proved
    assert solution.values[game.start] == pytest.approx(backward_induction(game)[game.start], abs=1e-9)
    assert round(float(solution.values[game.start]), 2) == published
