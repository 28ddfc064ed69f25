"""Not a package but the floor of a careful afternoon: a fused Jacobi sweep in Numba, on as many threads as asked.

Its tolerance is the largest change of a value in the last sweep, or with "vi:span" the span of the changes. float64
weights, int32 successors; rows of one length are swept without pointers.
"""

from __future__ import annotations

from collections.abc import Callable

import numba
import numpy as np
from table import Asked, FloatArray, Model, Solved, run

_PIECES = 64


def prepare(model: Model, asked: Asked) -> Callable[[], Solved]:
    numba.set_num_threads(min(asked.threads, numba.config.NUMBA_NUM_THREADS))
    uniform = bool((np.diff(model.row_ptr) == model.largest_row).all())
    pointer = model.row_ptr[:0] if uniform else model.row_ptr
    length = model.largest_row if uniform else 0
    _sweep(model.n_states, model.actions, length, pointer, model.successors, model.weights,
           model.rewards, model.discount, np.zeros(model.n_states), np.zeros(model.n_states))  # fmt: skip

    def solve() -> Solved:
        values, new = np.zeros(model.n_states), np.empty(model.n_states)
        sweeps, change = 0, np.inf
        while change > asked.tolerance and sweeps < asked.max_iterations:
            least, most = _sweep(model.n_states, model.actions, length, pointer, model.successors, model.weights,
                                 model.rewards, model.discount, values, new)  # fmt: skip
            change = most - least if asked.method == "vi:span" else max(abs(least), abs(most))
            values, new, sweeps = new, values, sweeps + 1
        return Solved(values, sweeps)

    return solve


@numba.njit(parallel=True, nogil=True)
def _sweep(  # type: ignore[no-untyped-def]
    n_states, actions, length, pointer, successors, weights, rewards, discount, values: FloatArray, new: FloatArray
) -> tuple[float, float]:
    least, most = np.empty(_PIECES), np.empty(_PIECES)
    for piece in numba.prange(_PIECES):
        low, high = np.inf, -np.inf
        for s in range(n_states * piece // _PIECES, n_states * (piece + 1) // _PIECES):
            best = -np.inf
            for row in range(s * actions, (s + 1) * actions):
                begin = row * length if length else pointer[row]
                end = begin + length if length else pointer[row + 1]
                total = 0.0
                for x in range(begin, end):
                    total += weights[x] * values[successors[x]]
                best = max(best, rewards[row] + discount * total)
            low, high = min(low, best - values[s]), max(high, best - values[s])
            new[s] = best
        least[piece], most[piece] = low, high
    return least.min(), most.max()


if __name__ == "__main__":
    run("numba", prepare)
