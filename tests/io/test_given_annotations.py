"""Labels and variables that a user gives: of arrays, of functions, of a generator and of a builder alike."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import ooc

import ooc_mdp
from ooc_mdp import Reachability, StoreBuilder
from ooc_mdp.errors import InputError, OptionsError
from ooc_mdp.io.conversion import from_problem, state_annotations
from ooc_mdp.store import Store, open_store

N = 200_000
"""States, more than a function is asked for at a time, and no multiple of 8."""


def ring(n: int) -> Callable[[np.ndarray], tuple[Any, ...]]:
    """One action leads to the next of n states, the other stays; the last state has no way on."""

    def rows(states: np.ndarray) -> tuple[Any, ...]:
        ahead = np.minimum(states + 1, n - 1)
        return np.stack([ahead, states], axis=1)[:, :, None], 1.0, -1.0 * (states[:, None] < n - 1)

    return rows


def of_arrays(n: int, path: Path, **given: Any) -> Store:
    P = np.zeros((2, n, n))
    P[0, np.arange(n), np.minimum(np.arange(n) + 1, n - 1)] = P[1, np.arange(n), np.arange(n)] = 1.0
    return ooc_mdp.from_arrays(P, -1.0 * (np.arange(n) < n - 1), layout="action-first", path=path, **given)


def of_function(n: int, path: Path, **given: Any) -> Store:
    return ooc_mdp.from_rows(n, ring(n), path=path, **given)


def of_one_state(n: int, path: Path, **given: Any) -> Store:
    def rows(state: int) -> list[list[tuple[float, int, float]]]:
        return [[(1.0, min(state + 1, n - 1), -1.0)], [(1.0, state, -1.0)]]

    return ooc_mdp.from_rows(n, rows, per_state=True, path=path, **given)


def of_generator(n: int, path: Path, **given: Any) -> Store:
    return ooc_mdp.from_rows(n, (ring(n)(part) for part in parts_of(n)), path=path, **given)


def of_builder(n: int, path: Path, partitions: int | None = None, **given: Any) -> Store:
    with StoreBuilder(path, n, partitions=partitions) as builder:
        for part in reversed(list(parts_of(n))):
            builder.add_rows(int(part[0]), ring(n)(part))
        return builder.commit(**given)


def parts_of(n: int) -> Iterator[np.ndarray]:
    yield from np.array_split(np.arange(n), 3)


ROWS = [of_function, of_one_state, of_generator, of_builder]
MAKERS = [of_arrays, *ROWS]


def kept(store: Store) -> dict[str, Any]:
    """All labels and variables, in the order of the states as they were given."""
    known, n = store.annotations, store.facts.n_states
    found: dict[str, Any] = {name: np.flatnonzero(known.label(name)).tolist() for name in known.labels}
    return found | {name: known.values(name, 0, n).tolist() for name in known.variables}


@pytest.mark.parametrize("make", MAKERS)
def test_states_and_values_are_given_as_arrays_or_by_functions(tmp_path: Path, make: Callable[..., Store]):
    n, low = 13, np.arange(13) < 2
    arrays = make(
        n,
        tmp_path / "a",
        labels={"goal": {12}, "low": low, "even": range(0, n, 2), "none": []},
        initial=3,
        variables={"x": np.arange(n) - 5, "low?": low, "speed": np.arange(n) / 4, "mode": ["b", *"a" * 12]},
        partitions=3,
    )
    functions = make(
        n,
        tmp_path / "f",
        labels={
            "goal": lambda s: s == n - 1,
            "low": lambda s: s < 2,
            "even": lambda s: s % 2 == 0,
            "none": lambda s: np.zeros(s.size, bool),
        },
        initial=lambda s: s == 3,
        variables={
            "x": lambda s: s - 5,
            "low?": lambda s: s < 2,
            "speed": lambda s: s / 4,
            "mode": lambda s: np.where(s == 0, "b", "a"),
        },
        partitions=3,
    )
    assert kept(arrays) == kept(functions)
    assert kept(arrays) == {
        "even": [0, 2, 4, 6, 8, 10, 12],
        "goal": [12],
        "init": [3],
        "low": [0, 1],
        "none": [],
        "x": list(range(-5, 8)),
        "low?": [1, 1, *[0] * 11],
        "speed": [s / 4 for s in range(n)],
        "mode": [1, *[0] * 12],
    }
    types = {name: (each.type, each.texts) for name, each in functions.annotations.variables.items()}
    assert types == {"x": ("int", ()), "low?": ("bool", ()), "speed": ("double", ()), "mode": ("string", ("a", "b"))}
    assert arrays.check().valid
    assert functions.check().valid


def test_labels_are_those_of_the_given_states_where_partitions_reorder_them(tmp_path: Path):
    labels = {"corner": lambda s: (s // 6 == 3) & (s % 6 == 5)}
    store = of_function(24, tmp_path / "s", grid=(4, 6), partition_shape=(2, 2), labels=labels, initial=7)
    assert store.facts.attributes["state_order"]["kind"] == "grid"
    assert kept(store) == {"corner": [23], "init": [7]}
    values = ooc_mdp.solve(store, Reachability("corner", within=4)).values
    assert np.flatnonzero(values > 0.5).tolist() == [19, 20, 21, 22, 23]


def test_functions_are_asked_piece_by_piece_for_a_model_of_many_states(tmp_path: Path):
    sizes = []

    def name(states: np.ndarray) -> np.ndarray:
        sizes.append(states.size)
        return np.where(states < N - 2, "far", "near")

    given: dict[str, Any] = {"labels": {"goal": lambda s: s == N - 1}, "variables": {"name": name, "x": lambda s: -s}}
    store = of_function(N, tmp_path / "s", initial=N - 3, **given)
    assert kept(store)["goal"] == [N - 1]
    assert store.annotations.values("x", 65_530, 65_540).tolist() == [-s for s in range(65_530, 65_540)]
    assert store.annotations.values("name", N - 4, N).tolist() == [0, 0, 1, 1]
    assert max(sizes) < N == sum(sizes)


@pytest.mark.parametrize("make", ROWS)
def test_questions_name_the_labels_variables_and_initial_state(tmp_path: Path, make: Callable[..., Store]):
    store = make(9, tmp_path / "s", labels={"goal": [8]}, initial=6, variables={"left": 8 - np.arange(9)})
    shown = ooc("inspect", tmp_path / "s").out
    assert "goal (1 state), init (1 state)" in shown
    assert "left (0 to 8)" in shown
    solution = ooc_mdp.solve(store, Reachability("goal", within=2))
    assert solution.values == pytest.approx([0, 0, 0, 0, 0, 0, 1, 1, 1])
    assert ooc_mdp.solve(store, Reachability("left <= 0", within=2)).values.tolist() == solution.values.tolist()
    (answer,) = solution.initial
    assert (answer.state, answer.value) == (6, pytest.approx(1))
    asked = ooc("solve", tmp_path / "s", "--goal", "goal", "--within", 2)
    assert asked.out.startswith("initial 1 in [")
    assert "state 6" in asked.out.splitlines()[0]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"labels": {"goal": [9]}}, r"labels\['goal'\] has state 9; the 9 states are 0\.\.8"),
        ({"labels": {"goal": [-1]}}, r"labels\['goal'\] has state -1; the 9 states are 0\.\.8"),
        ({"labels": {"goal": np.ones(8, bool)}}, r"labels\['goal'\] is a mask of shape \(8,\); the model has 9 states"),
        ({"labels": {"goal": [0.5]}}, r"labels\['goal'\] is \[0.5\] of type list; give a list of states"),
        ({"labels": {"": [1]}}, "labels has the names .*; give names that are texts"),
        ({"labels": {"init": [1]}, "initial": 2}, r"initial and labels\['init'\] both give the initial states"),
        ({"initial": "start"}, "initial is 'start' of type str; give a state, or a list of states"),
        ({"initial": lambda s: 3}, r"initial\(states 0\.\.8\) is of type int64 and shape \(\); return a bool for each"),
        ({"labels": {"goal": lambda s: s[:2] == 1}}, r"\(states 0\.\.8\) is of type bool and shape \(2,\); return"),
        ({"labels": {"goal": lambda s: s}}, r"is of type int64 and shape \(9,\); return a bool for each of the 9"),
        ({"variables": {"x": [1, 2]}}, r"variables\['x'\] has the shape \(2,\); give a value for each of the 9 states"),
        ({"variables": {"x": lambda s: 1}}, r"variables\['x'\]\(states 0\.\.8\) has the shape \(\); give a value"),
        ({"variables": {"x": lambda s: s * 1j}}, "is of type complex128; give integers, bools, floats or texts"),
        (
            {"variables": {"x": lambda s: np.log(s + 1) - np.where(s == 4, np.inf, 0)}},
            "is -inf in state 4; give finite",
        ),
        ({"variables": {3: [1] * 9}}, "variables has the names .*; give names that are texts"),
    ],
)
def test_wrong_states_and_values_are_refused_wherever_they_are_given(tmp_path: Path, given: Any, message: str):
    for make, place in zip(MAKERS, ["P and R", *["from_rows"] * 3, f"{tmp_path / 's'}"], strict=True):
        with pytest.raises(InputError, match=message) as refused:
            make(9, tmp_path / "s", **given)
        assert str(refused.value).startswith(f"{place}: ")
        assert not (tmp_path / "s").exists()
        shutil.rmtree(tmp_path / "s.partial", ignore_errors=True)  # of the builder


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda s: s if s[0] == 0 else s / 2, r"\(states 65536\.\.131071\) has floats, and integers before; return"),
        (lambda s: s.astype(str), r"variables\['x'\] has 131072 different texts; at most 65536 are kept, give numbers"),
        (lambda s: np.where(s == N - 1, np.nan, 0.0), "is nan in state 199999; give finite numbers"),
    ],
)
def test_values_of_a_function_are_checked_over_all_pieces(tmp_path: Path, function: Any, message: str):
    with pytest.raises(InputError, match=message):
        of_function(N, tmp_path / "s", variables={"x": function})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("keyword", ["labels", "variables"])
def test_an_exception_of_a_function_keeps_its_type_and_names_the_call(tmp_path: Path, keyword: str):
    with pytest.raises(ValueError, match="truth value of an array") as raised:
        of_one_state(5, tmp_path / "s", **{keyword: {"a": lambda s: 1 if s > 2 else 0}})
    assert raised.value.__notes__ == [f"in the call {keyword}['a'](states 0..4); the function gets an array of states"]


def test_labels_of_a_wrong_type_are_refused_by_commit_and_the_builder_goes_on(tmp_path: Path):
    with StoreBuilder(tmp_path / "s", 3) as builder:
        builder.add_rows(0, ring(3)(np.arange(3)))
        with pytest.raises(OptionsError, match=r"commit: labels is \[1\] of type list; give a dict of states by name"):
            builder.commit(labels=[1])  # type: ignore[arg-type]
        with pytest.raises(InputError, match=r"labels\['goal'\] has state 3"):
            builder.commit(labels={"goal": [3]})
        assert kept(builder.commit(labels={"goal": [2]})) == {"goal": [2]}


def stopping(write: Callable[..., None]) -> Callable[..., None]:
    """Write, and stop as by Ctrl-C."""

    def stop(*arguments: Any) -> None:
        write(*arguments)
        raise KeyboardInterrupt

    return stop


@pytest.mark.parametrize("given", [{}, {"labels": {"new": [1]}, "variables": {"y": [2, 1, 0]}}])
def test_a_run_that_is_resumed_has_its_own_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: Any):
    expected = {"new": [1], "y": [2, 1, 0]} if given else {}
    write = state_annotations.write_state_annotations
    monkeypatch.setattr(from_problem, "write_state_annotations", stopping(write))
    with pytest.raises(KeyboardInterrupt):
        of_function(3, tmp_path / "f", labels={"old": [0]}, variables={"x": [1, 2, 3]})
    monkeypatch.undo()
    assert (tmp_path / "f.partial" / "annotations").is_dir()
    assert kept(of_function(3, tmp_path / "f", resume=True, **given)) == expected

    builder = StoreBuilder(tmp_path / "b", 3)
    builder.add_rows(0, ring(3)(np.arange(3)))
    monkeypatch.setattr(state_annotations, "write_state_annotations", stopping(write))
    with pytest.raises(KeyboardInterrupt):
        builder.commit(labels={"old": [0]}, variables={"x": [1, 2, 3]})
    monkeypatch.undo()
    assert (tmp_path / "b.partial" / "annotations").is_dir()
    with StoreBuilder(tmp_path / "b", 3, resume=True) as resumed:
        assert resumed.missing() == []
        assert kept(resumed.commit(**given)) == expected
    assert kept(open_store(tmp_path / "b")) == expected
