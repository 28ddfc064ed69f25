"""P and R in memory: every layout means the same model, and what is no model is refused by array, index and value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sparse
from array_layouts import FORMS, Given, Typed, given_models, meaning, typed
from format_checks import SIZES, peak_bytes, rows_of
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ooc_mdp.errors import InputError, MemoryBudgetError, OptionsError
from ooc_mdp.io.arrays.copy_memory import copy_plan
from ooc_mdp.io.arrays.memory import ArrayModel, open_arrays
from ooc_mdp.io.source import ReadOptions
from ooc_mdp.runtime import memory_plan

P = np.array([[[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]], [[0.0, 0.0, 1.0], [0.25, 0.5, 0.25], [1.0, 0, 0]]])
"""Two actions, three states: (actions, states, states)."""
R = np.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])
INF = np.inf


def opened(typed: Typed, size: int = 16 << 20, sense: str = "max", normalize: bool = False) -> list[dict[int, Any]]:
    """The rows that the package reads, by state and action number."""
    source = open_arrays(
        ArrayModel(typed.P, typed.R, sense=sense, **typed.keywords),
        ReadOptions(segment_bytes=size, normalize=normalize),
    )
    blocks = [read().rows for read in source.blocks()]
    rows = rows_of(source)
    labels = np.concatenate(
        [
            np.arange(b.n_rows) - np.repeat(b.action_ptr[:-1], np.diff(b.action_ptr))
            if b.action_labels is None
            else b.action_labels
            for b in blocks
        ]
    )
    said: list[dict[int, Any]] = []
    for s in range(rows["action_ptr"].size - 1):
        own = {}
        for j in range(rows["action_ptr"][s], rows["action_ptr"][s + 1]):
            at = slice(rows["successor_ptr"][j], rows["successor_ptr"][j + 1])
            row = dict(zip(rows["successors"][at].tolist(), rows["probabilities"][at].tolist(), strict=True))
            own[int(labels[j])] = (row, float(rows["rewards"][j]))
        said.append(own)
    return said


@given(given_models(), st.sampled_from(FORMS), st.permutations(range(12)), st.sampled_from(SIZES))
def test_every_layout_gives_exactly_the_model_that_was_typed(model, form, order, size):
    entered = typed(model, form, np.array(order))
    if entered is not None:
        assert opened(entered, size) == meaning(model)


@settings(max_examples=300)
@given(given_models(), st.sampled_from(FORMS), st.data())
def test_an_altered_entry_is_refused_or_is_that_of_the_altered_model(model, form, data):
    if form.endswith("pairs") and model.R.ndim == 1:
        model.R = np.repeat(model.R[:, None], model.available.shape[1], axis=1)
    array = data.draw(st.sampled_from([model.P, model.R]))
    at = tuple(data.draw(st.integers(0, size - 1)) for size in array.shape)
    assume(array.ndim == 1 or model.available[at[:2]])
    array[at] = data.draw(st.sampled_from([np.nan, INF, -INF, -0.125, 0.0, 0.25, 1.0, 1.125, 1e300]))
    entered = typed(model, form)
    if entered is None:
        return
    wanted = meaning(model)
    if wanted is None:
        with pytest.raises(InputError):
            opened(entered)
    else:
        assert opened(entered) == wanted


@given(given_models(), st.sampled_from(["pairs", "sparse pairs"]), st.data())
def test_an_altered_index_is_refused_or_is_that_of_the_altered_model(model, form, data):
    entered = typed(model, form)
    if entered is None:
        return
    name = data.draw(st.sampled_from(["s_indices", "a_indices"]))
    indices = np.array(entered.keywords[name])
    i = data.draw(st.integers(0, indices.size - 1))
    s, a = (int(entered.keywords[each][i]) for each in ("s_indices", "a_indices"))
    indices[i] = data.draw(st.integers(-1, 4))
    entered.keywords[name] = indices
    n, actions = model.available.shape
    to = (int(indices[i]), a) if name == "s_indices" else (s, int(indices[i]))
    wide = Given(
        np.zeros((n, max(5, actions), n)), np.zeros((n, max(5, actions), n)), np.zeros((n, max(5, actions)), bool)
    )
    named = set[tuple[int, int]]()
    for x, y in np.argwhere(model.available).tolist():
        target = to if (x, y) == (s, a) else (x, y)
        if not 0 <= target[0] < n or target[1] < 0 or target in named:
            with pytest.raises(InputError, match=r"_indices"):
                opened(entered)
            return
        named.add(target)
        wide.available[target] = True
        wide.P[target] = model.P[x, y]
        wide.R[target] = model.R[x] if model.R.ndim == 1 else model.R[x, y]
        if np.isneginf(wide.R[target]).all():
            wide.available[target] = False
    wide.terminal = model.terminal
    wanted = meaning(wide)
    if wanted is None:
        with pytest.raises(InputError):
            opened(entered)
    else:
        assert opened(entered) == wanted


@pytest.mark.parametrize(
    ("entered", "said"),
    [
        (Typed(P[:, :2, :2], R[:2], {}), "shape (2, 2, 2), with as many actions as states"),
        (Typed([sparse.csr_matrix(p[:2, :2]) for p in P], R[:2], {}), "give layout='state-first' or layout='action-"),
        (Typed(P.transpose(1, 2, 0), R, {}), "numpy.transpose(P, (2, 0, 1))"),
        (Typed(P[0], R, {}), "P has shape (3, 3); give three axes"),
        (Typed(sparse.csr_matrix(P[0]), R, {}), "P is one csr_matrix; give an array of three axes or a list"),
        (Typed(P, R, {"layout": "state-first"}), "give (states, actions, states)"),
        (Typed([], R, {}), "P holds no rows; give a list of matrices"),
        (Typed([P[0], P[1][:2]], R, {}), "P[1] has shape (2, 3); it must be (3, 3)"),
        (Typed([[None, None, None], P[1], P[1][:2]], R, {}), "P[2] has shape (2, 3)"),
        (Typed(P + 0j, R, {}), "P[0] has dtype complex128"),
        (Typed(P > 0, R, {}), "P[0] has dtype bool"),
        (Typed(P.astype(str), R, {}), "P[0] has dtype <U"),
        (Typed(P.astype(str).tolist(), R, {}), "P[0] has dtype <U"),
        (Typed([sparse.csr_matrix(p + 0j) for p in P], R, {}), "P[0] has dtype complex128"),
        (Typed([[[1, 0], [1]]], R, {}), "P[0] is no array of numbers"),
        (Typed([1.0, 2.0], R, {}), "P holds no rows; give a list of matrices"),
        (Typed(P, np.zeros(4), {}), "R has shape (4,)"),
        (Typed(P, np.ma.masked_array(R), {}), "R is a masked array"),
        (Typed(P, [sparse.csr_matrix(p > 0) for p in P], {}), "R[0] has dtype bool"),
        (Typed(P, R + 0j, {}), "R has dtype complex128"),
        (Typed(np.ma.masked_less(P, 0.1), R, {}), "P is a masked array"),
        (Typed(P, R.T, {}), "R has shape (2, 3); P asks for (3,), (3, 2) or the layout of P"),
        (Typed(P, P.transpose(1, 0, 2), {}), "R has 3 matrices, but 2 are asked for"),
        (Typed(P, R > 0, {}), "R has dtype bool"),
        (Typed(P, [["a", None]] * 3, {}), "R has dtype <U"),
        (Typed(P, [[1, 2], [3]], {}), "R is no array of numbers"),
        (Typed(P, [[1, 2], [3, np.nan], [1, 1]], {}), "R[1, 1] is nan; give a finite number, or -inf"),
        (Typed(P, [[1, 2], [INF, 2], [1, 1]], {}), "R[1, 0] is inf; give a finite number, or -inf"),
        (Typed(P, [1, -INF, 2], {}), "R[1] is -inf"),
        (Typed(P, [[1, 2], [-INF, None], [1, 1]], {}), "state 1 has no available action; give it one, or name it"),
        (Typed(P, [[1, 2], [3, 4], [1, 1]], {"terminal": [1]}), "state 1 is terminal, but P[0][1] pays 3.0"),
        (Typed(P, np.zeros((3, 2)), {"terminal": [0]}), "state 0 is terminal, but P[0][0] leads to [0, 1]"),
        (Typed(P, R, {"terminal": [3]}), "terminal has state 3; the 3 states are 0..2"),
        (Typed(P, R, {"terminal": np.zeros(3, bool)}), "terminal is a mask; give the numbers"),
        (Typed(P, R, {"terminal": [0.5]}), "terminal is [0.5] of type list; give a list of states"),
        (Typed(P, R[:, 0], {"terminal": {0: 1.0}}), "R of shape (states,) has those of terminal states"),
        (Typed(P * (np.arange(3) != 1)[:, None], R, {}), "P[0][1] is a row of zeros"),
        (Typed(P * 0.5, R, {}), "state 0, action 0: probabilities sum to 0.5, not 1"),
        (Typed(P, np.full((2, 3, 3), -INF), {}), "reward of successor 0 is -inf"),
        (Typed(P[0], [1, 2, 3], {"s_indices": [0, 1, 2]}), "a_indices is missing"),
        (Typed(P[0], [1, 2, 3], {"s_indices": [0, 1, 3], "a_indices": [0] * 3}), "s_indices[2] is 3, but P has 3 col"),
        (Typed(P[0], [1, 2, 3], {"s_indices": [0, 1, 2], "a_indices": [0, -1, 0]}), "a_indices[1] is -1"),
        (Typed(P[0], [1, 2, 3], {"s_indices": [0, 1, 0], "a_indices": [0] * 3}), "entries 0 and 2 are both state 0"),
        (Typed(P[0], [1, 2, 3], {"s_indices": [0.0, 1, 2], "a_indices": [0] * 3}), "s_indices has dtype float64"),
        (Typed(P[0], [1, 2, 3], {"s_indices": [0, 1], "a_indices": [0] * 3}), "s_indices has shape (2,)"),
        (Typed(P[0], [1, 2], {"s_indices": [0, 1, 2], "a_indices": [0] * 3}), "for rewards r(s) give R[s_indices]"),
        (Typed(P[0, :2], [1, 2], {"s_indices": [0, 1], "a_indices": [0, 0]}), "state 2 has no available action"),
    ],
)  # fmt: skip
def test_what_is_no_model_is_refused_by_array_index_and_value(entered: Typed, said: str):
    with pytest.raises(InputError) as caught:
        opened(entered)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 400


def test_layouts_are_named_as_documented():
    with pytest.raises(OptionsError, match="'SAS'; give 'action-first' or 'state-first'"):
        opened(Typed(P, R, {"layout": "SAS"}))
    with pytest.raises(OptionsError, match="s_indices and a_indices give pairs"):
        opened(Typed(P[0], R, {"layout": "state-first", "s_indices": [0], "a_indices": [0]}))


def test_infinity_forbids_actions_where_rewards_are_costs():
    costs = np.where(R == 3.0, INF, R)
    assert [sorted(own) for own in opened(Typed(P, costs, {}), sense="min")] == [[0, 1], [0], [0, 1]]
    with pytest.raises(InputError, match=r"R\[1, 1\] is -inf; give a finite number, or inf"):
        opened(Typed(P, -costs, {}), sense="min")


def test_the_row_of_an_action_that_is_not_available_is_not_read():
    arbitrary = P.copy()
    arbitrary[1, 1] = np.nan
    assert [sorted(own) for own in opened(Typed(arbitrary, np.where(R == 3.0, -INF, R), {}))] == [[0, 1], [0], [0, 1]]


def test_terminal_states_have_the_values_that_are_given_and_no_actions():
    ends = P.copy()
    ends[:, 2] = [[0, 0, 0], [0, 0, 1]]
    rewards = R * [[1], [1], [0]]
    source = open_arrays(ArrayModel(ends, rewards, terminal={2: 7.5}), ReadOptions())
    assert rows_of(source)["terminal_rewards"].tolist() == [0, 0, 7.5]
    assert rows_of(source)["action_ptr"].tolist() == [0, 2, 4, 4]
    of_states = open_arrays(ArrayModel(ends, [1, 2, 3], terminal=[2]), ReadOptions())
    assert rows_of(of_states)["terminal_rewards"].tolist() == [0, 0, 3]


def test_rows_are_normalized_on_request():
    assert opened(Typed(P * 0.5, R, {}), normalize=True) == opened(Typed(P, R, {}))


def test_arrays_of_the_user_are_not_changed():
    matrices = [sparse.coo_matrix(p) for p in P]
    before = [m.copy() for m in matrices]
    opened(Typed(matrices, R, {"terminal": None}))
    for old, new in zip(before, matrices, strict=True):
        assert (old != new).nnz == 0
        assert old.nnz == new.nnz


BIG = 2**53 + 1


@pytest.mark.parametrize(
    ("P", "R", "keywords", "place"),
    [
        (P, np.array([[0, 1], [2, BIG], [4, 5]]), {}, r"R\[1, 1\]"),
        (P, np.array([0, 0, BIG]), {}, r"R\[2\]"),
        (P, [np.where(P[0] > 0.9, BIG, 0), np.zeros((3, 3), int)], {}, r"R\[0\]\[1, 1\]"),
        (P, [sparse.csr_array(np.where(each > 0.9, BIG, 0)) for each in P], {}, r"R\[0\]\[1, 1\]"),
        (P, [[0, 1], [2, None], [4, BIG]], {}, r"R\[2, 1\]"),
        (P * [[[1], [1], [0]]], np.zeros((3, 2)), {"terminal": {2: BIG}}, r"the values of terminal\[0\]"),
    ],
)
def test_integers_that_float64_would_round_are_refused_by_index(P, R, keywords, place):
    with pytest.raises(InputError, match=rf"{place} is {BIG}, which float64 would round to {BIG - 1}; scale"):
        open_arrays(ArrayModel(P, R, **keywords), ReadOptions())
    exact = open_arrays(ArrayModel(np.eye(2)[None], np.array([2**60, -(2**53)])), ReadOptions())
    assert exact.rows.row_rewards.tolist() == [2.0**60, -(2.0**53)]


@pytest.mark.parametrize("given", ["dense", "sparse", "transitions", "state-first"])
def test_the_copy_of_the_arrays_stays_within_its_plan(given):
    rng = np.random.default_rng(1)
    n, a = 400, 3
    dense = rng.random((a, n, n)) * (rng.random((a, n, n)) < 0.3) + np.eye(n)
    model = {
        "dense": (dense, np.zeros((n, a))),
        "sparse": ([sparse.csr_matrix(each) for each in dense], np.zeros((n, a))),
        "transitions": (dense, dense),
        "state-first": (dense.transpose(1, 0, 2).copy(), np.zeros((n, a))),
    }[given]
    peak = peak_bytes(lambda: open_arrays(ArrayModel(*model), ReadOptions()))
    planned = copy_plan(*model, n * a, given == "transitions").new_bytes
    assert planned / 2 < peak < planned


def test_arrays_whose_copy_has_no_room_are_refused_before_it(monkeypatch):
    monkeypatch.setattr(memory_plan, "available_bytes", lambda: 100)
    with pytest.raises(MemoryBudgetError, match=r"reading P and R from memory needs .* of RAM .*convert that"):
        open_arrays(ArrayModel(P, R), ReadOptions())
