"""What a solve that is stopped has proved is never less than what it had proved before, and `verify` proves it too."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
import pytest

import ooc_mdp
from ooc_mdp import AverageReward
from ooc_mdp.average.engine import solve
from ooc_mdp.events import SolveProgress
from ooc_mdp.model.solution import Outcome, Solution
from ooc_mdp.options import RunOptions, SolveOptions
from ooc_mdp.solver import run as life_cycle
from ooc_mdp.store import Store

SENSES = pytest.mark.parametrize("sense", ["max", "min"])


def careers(folder: Path, sense: str = "max", levels: int = 20) -> Store:
    """Work for wealth, study for skill at a cost of wealth, or rest, which pays: policies on the way mix slowly."""
    skills = levels * 5 // 4
    wealth, skill = np.divmod(np.arange(levels * skills), skills)
    successors, rewards, probabilities = (
        {},
        {},
        {"work": (0.2, 0.3, 0.5), "study": (0.6, 0.3, 0.1), "rest": (0.5, 0.3, 0.2)},
    )

    def state(to: np.ndarray, change: int) -> np.ndarray:
        return np.clip(to, 0, levels - 1) * skills + np.clip(skill + change, 0, skills - 1)

    successors["work"] = [state(wealth + 1 + skill * 5 // skills, change) for change in (1, -1, 0)]
    successors["study"] = [state(wealth - 1, change) for change in (5, 0, -1)]
    successors["rest"] = [state(wealth - 2, change) for change in (0, -1, -2)]
    rewards["work"] = 2 * skill / skills - 1
    rewards["study"] = np.where(wealth >= 5, -0.5, -np.inf)
    rewards["rest"] = np.where(wealth >= 2, 0.5 + 2 * wealth / levels, -np.inf)

    def rows(states: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        to = np.stack([np.stack(each, 1) for each in successors.values()], 1)
        earned = np.stack(list(rewards.values()), 1)
        return to[states], np.array(list(probabilities.values())), (earned if sense == "max" else -earned)[states]

    return ooc_mdp.from_rows(wealth.size, rows, path=folder / "m.store", partitions=5, sense=sense)


def interrupted_after(looks: int) -> Callable[[], AbstractContextManager[Callable[[], bool]]]:
    count = itertools.count()
    return lambda: nullcontext(lambda: next(count) >= looks)


@SENSES
def test_a_longer_solve_proves_no_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sense: str) -> None:
    store = careers(tmp_path, sense)
    least, largest = store.facts.reward_range[:, 0].min(), store.facts.reward_range[:, 1].max()
    width = np.inf
    for looks in range(6, 120, 6):
        monkeypatch.setattr(life_cycle, "signals", interrupted_after(looks))
        solution = solve(store, SolveOptions(AverageReward(), epsilon=1e-7))
        claims = solution.certificate
        assert claims.upper - claims.lower <= width
        if np.isfinite(claims.lower):
            assert least <= claims.lower <= claims.upper <= largest
            assert ooc_mdp.verify(store, solution).holds
            width = claims.upper - claims.lower
    assert width < largest - least


def test_progress_and_history_never_claim_less_than_before(tmp_path: Path) -> None:
    seen: list[float] = []

    def watch(progress: SolveProgress) -> None:
        seen.append(progress.error_bound)

    store = careers(tmp_path)
    solution = solve(store, SolveOptions(AverageReward(), epsilon=1e-7), watch=watch)
    assert solution.outcome is Outcome.PROVED
    assert solution.history is not None
    for bounds in (seen, solution.history.error_bound.tolist()):
        assert bounds == sorted(bounds, reverse=True)


def test_policies_that_mix_slowly_need_few_evaluations(tmp_path: Path) -> None:
    """An evaluation that ended at a share of the interval that such a policy leaves would be followed by many more."""
    solution = solve(careers(tmp_path, levels=40), SolveOptions(AverageReward(), epsilon=1e-6))
    assert solution.outcome is Outcome.PROVED
    assert solution.statistics.policy_evaluations < 30


@SENSES
@pytest.mark.parametrize("looks", [20, 40, 60, 80])
def test_a_resumed_solve_proves_no_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: int, sense: str
) -> None:
    store, output = careers(tmp_path, sense), tmp_path / "r"

    def run(resume: bool, looks: int) -> Solution:
        monkeypatch.setattr(life_cycle, "signals", interrupted_after(looks))
        return solve(store, SolveOptions(AverageReward(), epsilon=1e-7), RunOptions(output, resume=resume))

    stopped, widths = run(False, looks), list[float]()
    assert stopped.outcome is Outcome.INTERRUPTED
    widths.append(stopped.error_bound)
    for again in (2, 25, 35):
        resumed = run(True, again)
        if np.isfinite(resumed.error_bound):  # every partition was read
            widths.append(resumed.error_bound)
            assert ooc_mdp.verify(store, resumed).holds
    assert len(widths) > 1
    assert widths == sorted(widths, reverse=True)
    assert run(True, 100_000).outcome is Outcome.PROVED
    assert ooc_mdp.verify(store, output).holds
