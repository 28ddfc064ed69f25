"""Residuals in twice the precision of float64, held against rational arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from small_mdps import Case, cases, exact_q, rows_of, stored

from ooc_mdp.backends.cpu.double_double import add, precise_residuals

few = settings(max_examples=40, deadline=None)


@few
@given(
    case=cases(max_states=6),
    discount=st.sampled_from([0.0, 0.5, 0.9999, 1 - 1e-9]),
    scale=st.sampled_from([0.0, 1e-200, 1.0, 1e12, 1e140]),
    seed=st.integers(0, 2**32 - 1),
)
def test_residuals_and_their_bounds_hold_in_rational_arithmetic(
    case: Case, discount: float, scale: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    with stored(case) as store:
        rows, sign = rows_of(store), 1 if store.sense == "max" else -1
        high = scale * rng.standard_normal(store.n_states)
        low = np.spacing(high) / 2 * rng.uniform(-1, 1, store.n_states)
        policy = np.full(store.n_states, -9, np.int32)
        order = np.concatenate([store.original_states(p) for p in range(store.n_partitions)])
        values = [Fraction(0)] * store.n_states
        for place, original in enumerate(order.tolist()):
            values[original] = sign * (Fraction(high[place]) + Fraction(low[place]))
        for p in range(store.n_partitions):
            row_sum = float(store.facts.row_sum_range[p, 1]) * (1 + 1e-15)
            table, _ = store.read(p)
            found = precise_residuals(table, discount, float(sign), high, low, row_sum, policy)
            j = 0
            for i, s in enumerate(store.original_states(p).tolist()):
                own = range(rows.action_ptr[s], rows.action_ptr[s + 1])
                exact = [sign * (exact_q(rows, values, k, discount) - values[s]) for k in own]
                if not exact:
                    reward = Fraction(0) if rows.terminal_rewards is None else Fraction(rows.terminal_rewards[s])
                    exact = [sign * (reward - values[s])]
                assert max(abs(x) for x in [max(exact)]) <= found.plain
                if not len(own):
                    assert max(exact[0], 0) <= found.rise
                    continue
                for k, x in zip(own, exact, strict=True):
                    g = discount if rows.durations is None else float(discount ** rows.durations[k])
                    margin = 1 - Fraction(0 if np.isinf(g) else g) * Fraction(row_sum)
                    size = abs(float(rows.rewards[k])) + abs(float(values[s])) + scale * 5
                    assert abs(Fraction(found.rewards[j]) - x) <= Fraction(2.0**-53) * abs(x) + Fraction(
                        1e-28 * size + 1e-300
                    )
                    assert x / margin <= found.rise
                    if k - own.start == policy[table.first_state + i]:
                        assert -x / margin <= found.fall
                    j += 1


@few
@given(st.lists(st.tuples(st.floats(-1e15, 1e15), st.floats(-1e3, 1e3)), min_size=1, max_size=8))
def test_adding_keeps_the_sum_and_leaves_the_nearest_float64(pairs: list[tuple[float, float]]) -> None:
    high = np.array([a for a, _ in pairs])
    low = np.zeros_like(high)
    add(high, low, np.array([b for _, b in pairs]))
    for (a, b), h, x in zip(pairs, high.tolist(), low.tolist(), strict=True):
        assert Fraction(h) + Fraction(x) == Fraction(a) + Fraction(b)
        assert h + x == h
