"""Public functions refuse arguments of wrong types before any work, by name, with what is accepted."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ooc_mdp
from ooc_mdp.arguments import check_types, maybe
from ooc_mdp.errors import OocMdpError, OptionsError
from ooc_mdp.option_fields import options_in
from ooc_mdp.options import ClusterOptions, RunOptions, SolveOptions

WRONG: dict[str, Any] = {
    "none": None,
    "true": True,
    "float": 3.5,
    "text": "0.5 apples",
    "bytes": b"x",
    "list": [],
    "dict": {},
    "array": np.ones(2),
    "object": SimpleNamespace(),
    "function": len,
    "environment": SimpleNamespace(observation_space=1, action_space=2, spec=SimpleNamespace(id="Taxi-v3")),
}
FLAGS = ("resume", "overwrite", "rebalance", "normalize", "virtual", "trust", "other_store", "allow_large", "per_state",
         "contours")  # fmt: skip
OPTIONAL = {
    "discount", "epsilon", "residual", "priority", "cache", "device_memory", "stopping", "output", "trace",
    "time_limit", "progress", "note", "workers", "stage", "format", "rewards", "reward_model", "grid", "parameters",
    "random", "period", "problem", "dtype", "sense", "partitioner", "partition_size", "partitions", "partition_grid",
    "partition_shape", "threads", "cache_sweep",
}  # fmt: skip
ALSO: dict[str, str] = {
    "discount": "float", "epsilon": "float", "residual": "float", "time_limit": "float", "checkpoint_interval": "float",
    "worker_timeout": "float", "progress": "function", "note": "function", "parameters": "dict", "starts": "list",
    "store": "text", "table": "text", "criterion": "float", "source": "text", "name": "text", "path": "text",
    "result": "text", "output": "text",
    "trace": "text", "stage": "text", "rewards": "text", "format": "text", "reward_model": "text", "problem": "text",
    "workers": "text", "device": "text", "dtype": "text", "grid": "list",
    "partition_grid": "list", "partition_shape": "list", "file": "text", "cache_sweep": "text", "policy": "list",
    "rows": "function list", "env": "", "sizes": "text list", "priorities": "text list", "methods": "text list",
}  # fmt: skip
"""Kinds of values of WRONG that an argument accepts, or that are refused for what they say and not for their type."""


ARRAYS = {
    "P": "list array", "R": "list array", "s_indices": "none list array", "a_indices": "none list array",
    "layout": "none text", "terminal": "none list dict", "path": "none text",
    "action_names": "none list",
}  # fmt: skip
"""Likewise, of `from_arrays`."""
ANNOTATIONS = {"labels": "none dict", "initial": "none list function", "variables": "none dict"}
"""Likewise, of what takes labels and variables of states."""


REWARDS = {"rewards": "list array function", "terminal": "none dict"}
"""Likewise, of `with_rewards`."""
OWN = {
    "convert": {"rewards": "text dict"},
    "from_arrays": ARRAYS | ANNOTATIONS,
    "from_rows": ANNOTATIONS,
    "with_rewards": REWARDS,
    "q_values": {"states": "none list array"},
    "simulate_policy": {"starts": "list array", "steps": "none"},
    "simulate": dict.fromkeys(("duration", "period", "cell_fraction", "hold_time", "sample", "cells"), "float")
    | {"continue_after_end": "true"},
    "solve": {"initial": "none text list array"},
    "animate_solve": {"shown": "text", "axes": "list", "solve": "text", "of": "none text", "seconds": "float"},
    "plot_result": {"shown": "text", "axes": "list", "slices": "dict", "paths": "text"},
}


def accepted(function: str, name: str) -> set[str]:
    kinds = set((ALSO | OWN.get(function, {})).get(name, "").split())
    return kinds | ({"none"} if name in OPTIONAL else set()) | ({"true"} if name in FLAGS else set())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("arguments")
    (folder / "m.txt").write_text("S:0:0:1\nA:0:1\nD:1:1.0:1\nS:1:0:0\n")
    ooc_mdp.convert(folder / "m.txt", folder / "s")
    ooc_mdp.solve(folder / "s", 0.9, device="cpu", output=folder / "r")
    return folder


def one_action(states: np.ndarray) -> tuple[np.ndarray, ...]:
    return states.reshape(-1, 1, 1), np.ones(1), np.ones((states.size, 1))


def calls(place: Path) -> dict[str, tuple[Any, ...]]:
    return {
        "animate_solve": (place / "r", place / "r.gif"),
        "cache_sweep": (place / "s", 0.9),
        "convert": (place / "m.txt", place / "new"),
        "from_arrays": (np.ones((1, 2, 2)) / 2, np.ones(2)),
        "from_gymnasium": (SimpleNamespace(P={0: {0: [(1.0, 0, 0.0, False)]}}),),
        "from_rows": (2, one_action),
        "generate": ("GW-8x4", place / "new"),
        "open_problem": ("GW-8x4",),
        "plan": (place / "s", 0.9),
        "plot_result": (place / "r",),
        "q_values": (place / "s", place / "r"),
        "open_result": (place / "r",),
        "open_store": (place / "s",),
        "simulate": (place / "r",),
        "simulate_policy": (place / "s", place / "r"),
        "solve": (place / "s", 0.9),
        "verify": (place / "s", place / "r"),
        "with_rewards": (place / "s", np.ones(2), place / "new"),
        "write_report": (place / "r", place / "r.html"),
    }


FUNCTIONS = [name for name in ooc_mdp.__all__ if inspect.isfunction(getattr(ooc_mdp, name))]
PARAMETERS = [(name, given) for name in FUNCTIONS for given in inspect.signature(getattr(ooc_mdp, name)).parameters]


def test_every_public_function_is_called_here(place: Path) -> None:
    assert sorted(calls(place)) == sorted(FUNCTIONS)


@pytest.mark.parametrize(("function", "name"), PARAMETERS, ids=lambda word: str(word))
def test_an_argument_of_a_wrong_type_is_refused_by_name_with_its_type(place: Path, function: str, name: str) -> None:
    call: Callable[..., Any] = getattr(ooc_mdp, function)
    right = dict(zip(inspect.signature(call).parameters, calls(place)[function], strict=False))
    optional = inspect.signature(call).parameters[name].default is None
    tried = [kind for kind in WRONG if kind not in accepted(function, name) and not (optional and kind == "none")]
    assert tried
    for kind in tried:
        with pytest.raises(OocMdpError) as refusal:
            call(**right | {name: WRONG[kind]})
        said = str(refusal.value)
        assert name in said.replace(" ", "_"), (kind, said)
        types = {"array": ("ndarray", "float64"), "text": ("",), "none": ("",)}  # of an array, or of its elements
        assert any(word in said for word in types.get(kind, (type(WRONG[kind]).__name__,))), (kind, said)
        assert len(said) < 500
    assert not (place / "new").exists()


@pytest.mark.parametrize("name", ["solve", "verify", "convert"])
def test_a_model_in_memory_is_refused_with_the_way_to_a_store(place: Path, name: str) -> None:
    call, (_, *others) = getattr(ooc_mdp, name), calls(place)[name]
    with pytest.raises(OptionsError, match=r"ooc_mdp\.from_gymnasium\(env\)"):
        call(WRONG["environment"], *others)
    with pytest.raises(OptionsError, match=r"ooc_mdp\.from_arrays\(P, R\) with P of shape"):
        call((np.ones((1, 2, 2)), np.ones(2)), *others)


def test_the_way_from_arrays_to_a_store_that_a_refusal_names_works() -> None:
    P, R = np.array([[[0.5, 0.5], [0.0, 1.0]]]), np.array([[1.0], [0.0]])
    store = ooc_mdp.from_arrays(P, R)
    assert ooc_mdp.solve(store, 0.5, epsilon=1e-6, device="cpu").values == pytest.approx([4 / 3, 0.0], abs=1e-6)


def test_a_path_of_a_file_is_no_store(place: Path) -> None:
    with pytest.raises(OocMdpError, match=r"m\.txt"):
        ooc_mdp.open_store(place / "m.txt")


def test_wrapped_functions_keep_their_signature_and_refuse_unknown_keywords() -> None:
    @check_types(flag=maybe(ooc_mdp.arguments.FLAG))
    def function(number: int, *, flag: bool | None = None) -> int:
        """Say it."""
        return number

    assert function(3, flag=None) == 3
    assert list(inspect.signature(function).parameters) == ["number", "flag"]
    with pytest.raises(TypeError, match="unexpected keyword argument 'flags'"):
        function(3, flags=True)  # type: ignore[call-arg]


def test_an_unknown_keyword_of_solve_is_refused_with_the_nearest_one(place: Path) -> None:
    with pytest.raises(
        TypeError, match=r"solve\(\) got an unexpected keyword argument 'methd'; did you mean 'method'\?"
    ):
        ooc_mdp.solve(place / "s", discount=0.9, methd="vi")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("name", "criterion"),
    [("horizon", "FiniteHorizon"), ("average", "AverageReward"), ("total", "TotalReward"), ("goal", "Reachability")],
)
def test_a_criterion_that_is_given_as_on_the_command_line_is_named(place: Path, name: str, criterion: str) -> None:
    with pytest.raises(
        TypeError, match=rf"unexpected keyword argument '{name}'; give the criterion {criterion}\(\.\.\.\)"
    ):
        ooc_mdp.solve(place / "s", **{name: 4})


def test_the_signature_and_docstring_of_solve_show_every_option_with_its_default_and_help() -> None:
    parameters, said = inspect.signature(ooc_mdp.solve).parameters, inspect.getdoc(ooc_mdp.solve)
    assert said is not None
    assert "**options" not in said
    assert "options" not in parameters
    for option in options_in(SolveOptions, RunOptions, ClusterOptions):
        assert parameters[option.name].default == option.default
        assert f"{option.name} : {' '.join(option.help.split()[:4])}" in said
