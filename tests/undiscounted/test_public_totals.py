"""Public cases without a discount and near 1, against their references."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from paths import PUBLIC
from store_models import model_in

import ooc_mdp
from ooc_mdp.model.solution import Outcome
from ooc_mdp.store import Store

UNDISCOUNTED = sorted(p.parent.name for p in PUBLIC.glob("*/reference.npz") if "V_undiscounted" in np.load(p).files)
NEAR_ONE = sorted(p.parent.name for p in PUBLIC.glob("*/reference.npz") if "V_max_0p999" in np.load(p).files)


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Store]:
    place = tmp_path_factory.mktemp("cases")
    return {
        name: ooc_mdp.convert(PUBLIC / name / "model.npz", place / f"{name}.zarr", partitions=4)
        for name in {*UNDISCOUNTED, *NEAR_ONE}
    }


@pytest.mark.skipif(not UNDISCOUNTED, reason="the shared cases are not here")
@pytest.mark.parametrize("name", UNDISCOUNTED)
def test_public_cases_have_their_undiscounted_reference(name: str, converted: dict[str, Store], tmp_path: Path) -> None:
    case = json.loads((PUBLIC / name / "case.json").read_text())["undiscounted"]
    assert case["objective"] == "max"
    expected = np.load(PUBLIC / name / "reference.npz")["V_undiscounted"]
    scale = max(1.0, float(np.abs(expected).max()))
    solution = ooc_mdp.solve(
        converted[name], ooc_mdp.TotalReward(), epsilon=1e-9 * scale, cache="40%", output=tmp_path / "r"
    )
    assert solution.outcome is Outcome.PROVED
    assert solution.error_bound <= 1e-9 * scale
    assert np.abs(solution.values - expected).max() <= solution.error_bound + 1e-12 * scale
    assert ooc_mdp.verify(converted[name], tmp_path / "r").holds
    model = model_in(converted[name])
    chosen = [s.actions[a] if a >= 0 else None for s, a in zip(model.states, solution.policy, strict=True)]
    n = len(chosen)
    matrix, right = np.eye(n), np.array([s.terminal_reward for s in model.states])
    for s, a in enumerate(chosen):
        if a is not None and a.successors != {s: 1.0}:
            right[s] = a.reward
            for t, p in a.successors.items():
                matrix[s, t] -= p
    np.testing.assert_allclose(np.linalg.solve(matrix, right), expected, atol=1e-8 * scale)


@pytest.mark.skipif(not NEAR_ONE, reason="the shared cases are not here")
@pytest.mark.parametrize("name", NEAR_ONE)
@pytest.mark.parametrize("method", ["auto", "vi", "p-eva", "policy-iteration"])
def test_public_cases_at_a_discount_of_0_999_are_proved_by_the_discounted_methods(
    name: str, method: str, converted: dict[str, Store]
) -> None:
    expected = np.load(PUBLIC / name / "reference.npz")["V_max_0p999"]
    solution = ooc_mdp.solve(converted[name], 0.999, epsilon=1e-6, method=method, cache="40%")  # type: ignore[arg-type]
    assert solution.outcome is Outcome.PROVED
    assert np.abs(solution.values - expected).max() <= solution.error_bound <= 1e-6
