"""Calls that lie in memory: the loop gets the arguments that were given, of whatever types."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import njit
from numba.core.errors import TypingError

from ooc_mdp.backends.cpu.calls import call_of
from ooc_mdp.backends.cpu.team import Team
from ooc_mdp.backends.cpu.views import Model


@njit
def _take(
    out: np.ndarray,
    pair: tuple[bool, np.ndarray],
    model: Model,
    nothing: tuple[()],
    small: np.float32,
    large: int,
    matrix: np.ndarray,
    thread: int,
) -> None:
    out[0] = pair[0]
    out[1] = pair[1].sum() * model.sign
    out[2] = len(nothing)
    out[3] = small
    out[4] = large
    for i in range(matrix.shape[0]):
        for j in range(matrix.shape[1]):
            out[5] += (10 * i + j) * matrix[i, j]
    out[6] = thread


@njit
def _fill(into: np.ndarray, value: float, thread: int) -> None:
    into[:] = value


@njit
def _give(value: int, thread: int) -> int:
    return value + thread


def _make(loop: Any, *arguments: object) -> None:
    """Make one call on this thread."""
    team = Team(1)
    team.finish(team.begin([call_of(loop, *arguments)], (), 1))
    team.close()


@pytest.mark.parametrize("flag", [False, True])
@pytest.mark.parametrize("large", [-(1 << 62), 0, 7])
@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.float32, np.bool_])
def test_a_loop_gets_what_was_given(flag: bool, large: int, dtype: type) -> None:
    out, numbers, matrix = np.zeros(7), np.array([1, 0, 1], dtype), np.arange(6.0).reshape(2, 3)
    _make(_take, out, (flag, numbers), Model(0.5, -1.0), (), np.float32(0.1), large, matrix)
    weighted = float(sum((10 * i + j) * (3 * i + j) for i in range(2) for j in range(3)))
    assert out.tolist() == [float(flag), -2.0, 0.0, float(np.float32(0.1)), float(large), weighted, 0.0]


def test_arrays_may_be_empty_or_have_gaps_and_are_the_callers_own() -> None:
    kept = np.zeros((4, 3))
    _make(_fill, kept[::2, 1], 2.5)
    assert kept.tolist() == [[0.0, 2.5, 0.0], [0.0] * 3, [0.0, 2.5, 0.0], [0.0] * 3]
    _make(_fill, np.empty(0), 2.5)


def test_a_loop_that_returns_something_is_refused() -> None:
    with pytest.raises(TypingError, match="none"):
        call_of(_give, 1)
