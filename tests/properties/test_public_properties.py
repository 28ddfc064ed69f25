"""Certified answers of public models: every format gives them, by bounds that hold, infinities included."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from paths import CASES as ALL_CASES

import ooc_mdp
from ooc_mdp.model.criterion import Criterion

CASES = ALL_CASES / "properties"
FORMATS = ("model.umb", "model.drn", "model.tra")
QUICK = ("prism-mdp-rewards", "prism-robot-files", "prism-total-reward-2")

pytestmark = pytest.mark.skipif(not CASES.is_dir(), reason="needs the shared cases")


@dataclass(frozen=True)
class Property:
    """One property of one model file."""

    folder: str
    file: str
    key: str

    def __str__(self) -> str:
        return f"{self.folder}/{self.file}/{self.key}"


@cache
def case_of(folder: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((CASES / folder / "case.json").read_text())
    return found


def properties(average: bool = False) -> list[Any]:
    found = []
    for folder in (
        sorted(path.name for path in CASES.iterdir() if (path / "case.json").is_file()) if CASES.is_dir() else ()
    ):
        for file in FORMATS:
            if (CASES / folder / file).is_file():
                marks = () if folder in QUICK else (pytest.mark.slow,)
                found += [
                    pytest.param(Property(folder, file, p["key"]), id=f"{folder}-{file}-{p['key']}", marks=marks)
                    for p in case_of(folder)["properties"]
                    if (p["kind"] == "average") == average
                ]
    return found


def question(p: dict[str, Any]) -> Criterion:
    sense = p.get("sense")
    match p["kind"]:
        case "reach" | "bounded-reach":
            return ooc_mdp.Reachability(p["goal"], p.get("avoid"), p.get("steps"), sense)
        case "reward-to-goal":
            return ooc_mdp.RewardToGoal(p["goal"], p["reward_model"], sense)
        case "total-reward":
            return ooc_mdp.TotalReward(p["reward_model"], sense, infinite=True)
        case _:
            return ooc_mdp.Discounted(p["discount"], p["reward_model"], sense)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("stores")

    @cache
    def opened(folder: str, file: str) -> ooc_mdp.Store:
        return ooc_mdp.convert(CASES / folder / file, root / f"{folder}-{file}", partitions=3)

    return opened


@pytest.mark.parametrize("asked", properties(average=True))
def test_the_certified_average_of_each_state_is_given(stores: Any, asked: Property):
    p = next(p for p in case_of(asked.folder)["properties"] if p["key"] == asked.key)
    due = np.load(CASES / asked.folder / "reference.npz")[f"V_{asked.key}"]
    store = stores(asked.folder, asked.file)
    solution = ooc_mdp.solve(store, ooc_mdp.AverageReward(p["reward_model"], p["sense"]), epsilon=1e-8)
    assert solution.outcome is ooc_mdp.Outcome.PROVED
    slack = p["reference_error"] * (1 + np.abs(due))
    assert solution.gains is not None
    assert (np.abs(solution.gains - due) <= solution.error_bound + slack).all()
    if solution.value_lower is not None and solution.value_upper is not None:
        assert (solution.value_lower <= due + slack).all()
        assert (solution.value_upper >= due - slack).all()
    assert ooc_mdp.verify(store, solution).holds


@pytest.mark.parametrize("asked", properties())
def test_the_certified_answer_is_given(stores: Any, asked: Property):
    case = case_of(asked.folder)
    p = next(p for p in case["properties"] if p["key"] == asked.key)
    due = np.load(CASES / asked.folder / "reference.npz")[f"V_{asked.key}"]
    infinite = np.isinf(due)
    sizes = np.abs(due[~infinite & (due != 0)])
    epsilon = case["atol"] + case["rtol"] * float(sizes.min(initial=sizes.max(initial=1e-3)))
    store = stores(asked.folder, asked.file)
    solution = ooc_mdp.solve(store, question(p), epsilon=epsilon)
    assert solution.outcome is ooc_mdp.Outcome.PROVED
    np.testing.assert_array_equal(solution.values[infinite], due[infinite])
    np.testing.assert_allclose(solution.values[~infinite], due[~infinite], case["rtol"], case["atol"])
    if solution.value_lower is not None and solution.value_upper is not None:
        slack = p["reference_error"] * (1 + np.where(infinite, 0, np.abs(due)))
        assert (solution.value_lower <= due + slack).all()
        assert (solution.value_upper >= due - slack).all()
    assert ooc_mdp.verify(store, solution).holds
