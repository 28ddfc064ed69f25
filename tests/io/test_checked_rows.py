"""Rows of every format are checked alike: the first error is named, the rest is brought into canonical form."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from ooc_mdp.errors import InputError
from ooc_mdp.io.checked_rows import RawRows, check_block, check_rows
from ooc_mdp.model.mdp import Rows


def integers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def raw_rows(rows: list[list[tuple[int, float]]], actions: list[int] | None = None, **fields) -> RawRows:
    """Rows of (successor, probability), one state each unless `actions` says how many each state has."""
    counts = actions if actions is not None else [1] * len(rows)
    lengths = [len(row) for row in rows]
    flat = [entry for row in rows for entry in row]
    return RawRows(
        action_ptr=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        successor_ptr=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        successors=np.array([s for s, _ in flat], np.int64),
        probabilities=np.array([p for _, p in flat], float),
        **fields,
    )


def check(raw: RawRows, n_states: int | None = 10, normalize: bool = False, first_state: int = 0):
    return check_block("model", first_state, raw, n_states=n_states, normalize=normalize)


def test_sorted_rows_pass_unchanged() -> None:
    block = check(raw_rows([[(0, 0.25), (3, 0.75)], [(9, 1.0)]]))
    assert block.rows.successors.tolist() == [0, 3, 9]
    assert block.rows.rewards.tolist() == [0.0, 0.0]
    assert (block.max_successor, block.max_successor_line) == (9, None)


def test_duplicates_are_added_zeros_dropped_and_successors_sorted() -> None:
    raw = raw_rows(
        [[(5, 0.25), (2, 0.5), (5, 0.25), (1, 0.0)]],
        row_rewards=np.array([100.0]),
        transition_rewards=np.array([4.0, 8.0, 0.0, math.inf]),
    )
    rows = check(raw).rows
    assert rows.successors.tolist() == [2, 5]
    assert rows.probabilities.tolist() == [0.5, 0.5]
    assert rows.successor_ptr.tolist() == [0, 2]
    assert rows.rewards.tolist() == [105.0]


def decimals(total: int, terms: int, digits: int, rng: np.random.Generator) -> list[tuple[int, float]]:
    """A row of decimals with so many digits, whose sum is `total` units of the last of them, exactly."""
    cuts = np.sort(rng.integers(0, total + 1, terms - 1))
    units = np.diff(np.concatenate([[0], cuts, [total]])).tolist()
    assert sum(units) == total
    return [(s, float(f"{unit}e-{digits}")) for s, unit in enumerate(units)]


@pytest.mark.parametrize("terms", [1, 2, 3, 7, 100, 5000])
@pytest.mark.parametrize("digits", [6, 9, 15])
@pytest.mark.parametrize("side", [-1, 1])
def test_the_tolerance_of_sums_is_compared_in_decimals(side: int, digits: int, terms: int) -> None:
    rng = np.random.default_rng(terms)
    one, most = 10**digits, 10 ** (digits - 6)
    beyond = max(1, 10 ** (digits - 14))  # a difference of 1e-14 is more than what rounding can do
    for _ in range(40):
        row = decimals(one + side * most, terms, digits, rng)
        kept = check(raw_rows([row]), n_states=None).rows
        assert check_rows("model", [0], kept, terms) is None
        with pytest.raises(InputError, match=r"allowed difference 1e-06|above 1"):
            check(raw_rows([decimals(one + side * (most + beyond), terms, digits, rng)]), n_states=None)


def test_six_digits_of_a_third_three_times_are_accepted() -> None:
    check(raw_rows([[(0, 0.333333), (1, 0.333333), (2, 0.333333)]]))
    check(raw_rows([[(0, 0.333334), (1, 0.333334), (2, 0.333333)]]))
    with pytest.raises(InputError, match=r"sum to 0\.999998, not 1"):
        check(raw_rows([[(0, 0.333333), (1, 0.333333), (2, 0.333332)]]))


@pytest.mark.parametrize(
    ("actions", "labels", "line", "message"),
    [
        ([1, 1, 2], [0, 0, 7, 7], 40, "state 5, action 7: the state has an action of this number already"),
        ([4], [3, 1, 3, 1], 30, "state 3, action 3: the state has an action of this number already; give each action"),
        ([1, 3], [0, -3, 5, -3], 40, "state 4, action -3: the state has an action of this number already"),
    ],
)
def test_action_numbers_are_not_given_twice(actions, labels, line, message) -> None:
    lines = {"row_positions": integers(10, 20, 30, 40), "transition_positions": integers(11, 21, 31, 41)}
    good = [[(1, 1.0)]] * 4
    with pytest.raises(InputError) as caught:
        check(raw_rows(good, actions, action_labels=integers(*labels), **lines), first_state=3)
    assert caught.value.message.startswith(message)
    assert caught.value.line == line
    for row, first in ((line // 10 - 2, "sum to 0.5"), (line // 10, message)):
        if row < 4:
            spoilt = [[(1, 0.5)] if i == row else entries for i, entries in enumerate(good)]
            with pytest.raises(InputError) as caught:
                check(raw_rows(spoilt, actions, action_labels=integers(*labels), **lines), first_state=3)
            assert first in str(caught.value)


def test_action_numbers_may_come_in_any_order() -> None:
    rows = check(raw_rows([[(1, 1.0)]] * 5, [2, 3], action_labels=integers(1, 0, 2, 0, 1))).rows
    assert rows.action_labels is not None
    assert rows.action_labels.tolist() == [1, 0, 2, 0, 1]


@seed(7)
@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 5)), min_size=1, max_size=80), max_size=6))
def test_canonical_rows_are_those_of_a_dictionary(weights: list[list[tuple[int, int]]]) -> None:
    rows = [[(s, float(w)) for s, w in row] for row in weights if sum(w for _, w in row)]
    rows = [[(s, p / sum(q for _, q in row)) for s, p in row] for row in rows]
    block = check(raw_rows(rows), 7)
    for i, row in enumerate(rows):
        wanted: dict[int, list[float]] = {}
        for s, p in row:
            if p:
                wanted.setdefault(s, []).append(p)
        a, b = block.rows.successor_ptr[i : i + 2]
        assert block.rows.successors[a:b].tolist() == sorted(wanted)
        got = block.rows.probabilities[a:b]
        np.testing.assert_allclose(got, [math.fsum(wanted[s]) for s in sorted(wanted)], rtol=1e-14)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([(0, 0.5), (1, 0.4)], "sum to 0.9, not 1.*--normalize"),
        ([(0, 0.5), (1, 0.6)], "sum to 1.1"),
        ([(0, 1.5), (1, -0.5)], "successor 0 is 1.5, above 1"),
        ([(0, -0.5), (1, 1.5)], "successor 0 is -0.5, below 0"),
        ([(0, math.nan)], "is NaN"),
        ([(0, math.inf)], "is inf, above 1"),
        ([(10, 1.0)], "successor 10 does not exist: the 10 states are 0..9"),
        ([(-1, 1.0)], "successor -1 is negative"),
        ([], "has no successors"),
        ([(0, 0.0)], "sum to 0, not 1.*cannot be normalized"),
    ],
)
def test_a_bad_row_is_refused_with_state_action_and_number(row, message: str) -> None:
    good = [(0, 1.0)]
    with pytest.raises(InputError, match=f"state 21, action 1: .*{message}"):
        check(raw_rows([good, good, row], [1, 2]), first_state=20)


def test_the_first_error_is_named_by_its_line_and_label() -> None:
    raw = raw_rows(
        [[(0, 1.0)], [(0, 0.5), (99, 0.5)], [(-3, 1.0)]],
        [2, 1],
        row_positions=integers(2, 4, 8),
        transition_positions=integers(3, 5, 6, 9),
        action_labels=integers(0, 7, 0),
    )
    with pytest.raises(InputError, match=r"model, line 6: state 0, action 7: successor 99"):
        check(raw)


def test_a_sum_is_reported_at_the_row_or_at_its_first_transition() -> None:
    raw = raw_rows([[(0, 0.5), (1, 0.4)]], row_positions=integers(2), transition_positions=integers(3, 4))
    for lines, line in ((raw, 2), (replace(raw, row_positions=None), 3)):
        with pytest.raises(InputError) as caught:
            check(lines)
        assert caught.value.line == line


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("field", ["row_rewards", "transition_rewards", "durations", "initial_values"])
def test_numbers_that_are_not_finite_are_refused(field: str, value: float) -> None:
    with pytest.raises(InputError, match=r"state 0.*(nan|NaN|inf)"):
        check(raw_rows([[(0, 1.0)]], **{field: np.array([value])}))


@pytest.mark.parametrize("duration", [0.0, -1.0, np.inf])
def test_a_duration_is_positive(duration: float) -> None:
    with pytest.raises(InputError, match="duration"):
        check(raw_rows([[(0, 1.0)]], durations=np.array([duration])))


def test_an_expected_reward_beyond_float64_is_refused() -> None:
    raw = raw_rows([[(0, 1.0)]], row_rewards=np.array([1.7e308]), transition_rewards=np.array([1.7e308]))
    with pytest.raises(InputError, match="overflows"):
        check(raw)


def test_normalizing_divides_probabilities_and_expected_rewards_by_the_sum() -> None:
    raw = raw_rows([[(0, 0.5), (1, 0.3)]], transition_rewards=np.array([1.0, 2.0]), row_rewards=np.array([1.0]))
    rows = check(raw, normalize=True).rows
    np.testing.assert_allclose(rows.probabilities, [0.625, 0.375])
    np.testing.assert_allclose(rows.rewards, [1 + 1.1 / 0.8])
    with pytest.raises(InputError, match="cannot be normalized"):
        check(raw_rows([[(0, 0.0)]]), normalize=True)


def test_published_rounding_is_kept_as_it_is() -> None:
    rows = check(raw_rows([[(k, 0.1) for k in range(10)], [(0, 0.5), (1, 0.5 + 5e-10)]])).rows
    assert rows.probabilities[-1] == 0.5 + 5e-10


def test_a_long_row_of_small_terms_adds_up() -> None:
    n = 1_000_000
    raw = raw_rows([[]])
    raw = replace(
        raw,
        successor_ptr=integers(0, n),
        successors=np.arange(n)[::-1].copy(),
        probabilities=np.full(n, 1e-6),
    )
    block = check(raw, n)
    assert block.rows.successors[0] == 0
    assert block.max_successor == n - 1


def test_labels_and_values_that_say_nothing_become_none() -> None:
    raw = raw_rows(
        [[(0, 1.0)], [(0, 1.0)]],
        [2, 0],
        action_labels=integers(0, 1),
        terminal_rewards=np.array([5.0, 0.0]),
        initial_values=np.zeros(2),
    )
    rows = check(raw).rows
    assert rows.action_labels is None
    assert rows.terminal_rewards is None
    assert rows.initial_values is None
    rows = check(replace(raw, action_labels=integers(0, 7), terminal_rewards=np.array([5.0, 3.0]))).rows
    assert rows.action_labels.tolist() == [0, 7]
    assert rows.terminal_rewards.tolist() == [0.0, 3.0]


def test_an_unknown_number_of_states_leaves_the_largest_successor_to_the_source() -> None:
    raw = raw_rows([[(7, 0.5), (3, 0.5)]], transition_positions=integers(11, 12))
    block = check(raw, None)
    assert (block.max_successor, block.max_successor_line) == (7, 11)


def test_read_only_arrays_are_taken_and_left_alone() -> None:
    raw = raw_rows([[(1, 0.5), (0, 0.5)]])
    raw.successors.setflags(write=False)
    raw.probabilities.setflags(write=False)
    assert check(raw).rows.successors.tolist() == [0, 1]
    assert raw.successors.tolist() == [1, 0]


def canonical(successors: list[int], probabilities: list[float], **fields) -> Rows:
    """One row of the state 4."""
    return Rows(
        action_ptr=integers(0, 1),
        successor_ptr=integers(0, len(successors)),
        successors=np.array(successors, np.int64),
        probabilities=np.array(probabilities, float),
        **({"rewards": np.zeros(1)} | fields),
    )


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (canonical([1, 1], [0.5, 0.5]), "successor 1 follows 1; the successors of a row must increase"),
        (canonical([2, 1], [0.5, 0.5]), "successor 1 follows 2; the successors of a row must increase"),
        (canonical([1, 10], [0.5, 0.5]), "successor 10 does not exist: the 10 states are 0..9"),
        (canonical([-1, 1], [0.5, 0.5]), "successor -1 is negative"),
        (canonical([1, 2], [0.5, 0.6]), "probabilities sum to 1.1, not 1 .*; correct them$"),
        (canonical([], []), "has no successors"),
        (canonical([1], [1.0], rewards=np.array([math.inf])), "reward is inf"),
        (canonical([1], [1.0], durations=np.array([0.0])), "duration is 0.0; a duration is above 0"),
        (canonical([1], [1.0], durations=np.array([math.nan])), "duration is nan; a duration is above 0"),
    ],
)
def test_rows_in_canonical_form_are_checked_by_the_same_rules(rows: Rows, message: str) -> None:
    with pytest.raises(InputError, match=f"^model: state 4, action 0: .*{message}"):
        check_rows("model", [4], rows, 10)


def test_canonical_rows_may_have_zeros_and_infinite_durations() -> None:
    check_rows("model", [4], canonical([0, 3, 7], [0.0, 1.0, 0.0], durations=np.array([math.inf])), 10)
    with pytest.raises(InputError, match=r"^model: state 4: initial value is NaN"):
        check_rows("model", [4], canonical([0], [1.0], initial_values=np.array([math.nan])), 10)
