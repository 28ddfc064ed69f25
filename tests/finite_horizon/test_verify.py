"""`verify` of a finite horizon computes all stages again, and finds what does not stand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_mdps import Case, make_store
from store_models import random_model

import ooc_mdp
from ooc_mdp import FiniteHorizon, Solution
from ooc_mdp.errors import StoreError
from ooc_mdp.store import Store


@pytest.fixture(params=["max", "min"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Store:
    return make_store(Case(random_model(3, 40), request.param, "float64", 4), tmp_path / "s")


def solved(store: Store) -> Solution:
    return ooc_mdp.solve(store, FiniteHorizon(12, 0.9, np.arange(40.0), (0, 5)), device="cpu")


def with_stages(**changes: Any) -> Callable[[Solution], Solution]:
    def changed(solution: Solution) -> Solution:
        assert solution.stages is not None
        return replace(solution, stages=replace(solution.stages, **changes))

    return changed


def worse_policy(solution: Solution) -> Solution:
    """Another action in one state of stage 7."""
    stages = solution.stages
    assert stages is not None

    def read(stage: int) -> Any:
        policy = stages.policy(stage).copy()
        if stage == 7:
            state = int(np.flatnonzero(policy == 1)[0])
            policy[state] = 0
        return policy

    return replace(solution, stages=replace(stages, read_policy=read))


def moved(solution: Solution) -> Solution:
    values = solution.values.copy()
    values[3] += 1e-6
    return replace(solution, values=values)


def moved_stage(solution: Solution) -> Solution:
    stages = solution.stages
    assert stages is not None
    values = {stage: stages.values(stage).copy() for stage in stages.kept}
    values[5][3] += 1e-6
    return replace(solution, stages=replace(stages, read_values=values.__getitem__))


def smaller_claim(**changes: float) -> Callable[[Solution], Solution]:
    return lambda solution: replace(solution, certificate=replace(solution.certificate, **changes))


@pytest.mark.parametrize(
    ("change", "violated"),
    [
        (moved, "stage_error"),
        (moved_stage, "stage_error"),
        (worse_policy, "policy_loss_bound"),
        (smaller_claim(error_bound=0.0), "error_bound"),
        (smaller_claim(lower=1e9), "lower"),
        (smaller_claim(upper=-1e9), "upper"),
        (with_stages(read_policy=lambda stage: np.full(40, 5, np.int32)), "policy"),
    ],
)
def test_what_does_not_stand_is_a_violated_claim(
    store: Store, change: Callable[[Solution], Solution], violated: str
) -> None:
    solution = solved(store)
    assert ooc_mdp.verify(store, solution).holds
    found = ooc_mdp.verify(store, change(solution))
    assert not found.holds
    assert violated in found.violated_claims


def test_final_values_that_are_not_those_recorded_are_refused(store: Store) -> None:
    solution = with_stages(read_final=lambda: np.zeros(40))(solved(store))
    with pytest.raises(StoreError, match="records final values with the SHA-256"):
        ooc_mdp.verify(store, solution)


def test_a_solution_without_its_stages_is_refused(store: Store) -> None:
    with pytest.raises(StoreError, match="has no policies of its stages"):
        ooc_mdp.verify(store, replace(solved(store), stages=None))
