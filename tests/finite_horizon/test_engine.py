"""Finite horizons out of core: against rational arithmetic, and the same bits whatever the cache and the stops."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import nullcontext
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from drn_models import TWO_REWARD_MODELS
from exact_stages import exact_stages, random_stage_model
from small_mdps import Case, make_store, rows_of, stored
from store_models import Action, Model, State, random_model

import ooc_mdp
from ooc_mdp import FiniteHorizon
from ooc_mdp.errors import OptionsError, StoreError
from ooc_mdp.finite_horizon import engine
from ooc_mdp.finite_horizon.backends import HostStages
from ooc_mdp.model.solution import Outcome
from ooc_mdp.solver import run as life_cycle
from ooc_mdp.solver.session import Session
from ooc_mdp.store import Store
from ooc_mdp.store.checkpoint import checkpoint_path
from ooc_mdp.store.stage_file import stages_path


def check(seed: int) -> None:
    """Solve a random model through a random cache, and hold each stage against rational arithmetic."""
    rng = np.random.default_rng(seed)
    model, stages = random_stage_model(rng), int(rng.integers(1, 31))
    n, sense = len(model.states), str(rng.choice(["max", "min"]))
    discount = float(rng.choice([1.0, 0.9, 0.5, 0.0]))
    final = rng.normal(size=n) if rng.random() < 0.5 else None
    asked = FiniteHorizon(stages, discount, final, tuple(range(stages + 1)))
    with stored(Case(model, sense, "float64", int(rng.integers(1, n + 1)))) as store:
        cache = str(rng.choice(["1%", "40%", "100%"]))
        solution = ooc_mdp.solve(store, asked, device="cpu", cache=cache)
        rows = rows_of(store)
        exact = exact_stages(rows, stages, discount, np.zeros(n) if final is None else final, sense)
        assert ooc_mdp.verify(store, solution).holds
    found = solution.stages
    assert found is not None
    assert solution.values.tolist() == found.values(0).tolist()
    assert solution.certificate.error_bound == found.errors.max()
    for stage, true in enumerate(exact):
        apart = max(abs(Fraction(v) - t) for v, t in zip(found.values(stage).tolist(), true, strict=True))
        assert apart <= Fraction(float(found.errors[stage])), (seed, stage)
    assert Fraction(solution.certificate.lower) <= min(exact[0])
    assert Fraction(solution.certificate.upper) >= max(exact[0])
    assert lost_by_policies(solution, rows, exact, sense, discount) <= Fraction(solution.certificate.policy_loss_bound)


def lost_by_policies(solution: ooc_mdp.Solution, rows, exact, sense: str, discount: float) -> Fraction:
    """The most that a state of any stage loses by following the policies of the result, in rational arithmetic."""
    assert solution.stages is not None
    earned, most = exact[-1], Fraction(0)
    for stage in reversed(range(solution.stages.count)):
        policy, following, earned = solution.stages.policy(stage), earned, []
        for s in range(rows.n_states):
            if policy[s] < 0:
                earned.append(exact[-1][s])
                continue
            j = int(rows.action_ptr[s] + policy[s])
            span = range(rows.successor_ptr[j], rows.successor_ptr[j + 1])
            expected = sum(
                (Fraction(float(rows.probabilities[k])) * following[rows.successors[k]] for k in span), Fraction(0)
            )
            earned.append(Fraction(float(rows.rewards[j])) + Fraction(discount) * expected)
        most = max(most, *(abs(a - b) for a, b in zip(earned, exact[stage], strict=True)))
    return most


@pytest.mark.parametrize(
    ("first", "count"), [(0, 40), pytest.param(40, 460, marks=pytest.mark.slow)], ids=["some", "others"]
)
def test_every_stage_is_within_its_bound_of_exact_arithmetic(first: int, count: int) -> None:
    for seed in range(first, first + count):
        check(seed)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A world of 32 x 32 cells in 64 partitions."""
    return ooc_mdp.generate("GW-32x4", tmp_path / "s", {"seed": 1}, partition_grid=(8, 8))


ASKED = FiniteHorizon(25, 0.97, np.linspace(-1.0, 1.0, 1024), (0, 7, 25))


def content(solution: ooc_mdp.Solution) -> list[list[float]]:
    stages = solution.stages
    assert stages is not None
    kept = [stages.values(stage).tolist() for stage in stages.kept]
    policies = [stages.policy(stage).tolist() for stage in range(stages.count)]
    return [solution.values.tolist(), *kept, *policies, stages.errors.tolist()]


def test_the_same_bits_come_of_every_cache_and_from_a_result(store: Store, tmp_path: Path) -> None:
    whole = ooc_mdp.solve(store, ASKED, device="cpu", cache="100%")
    small = ooc_mdp.solve(store, ASKED, device="cpu", cache="5%", output=tmp_path / "r")
    kept = ooc_mdp.open_result(tmp_path / "r").solution
    assert content(whole) == content(small) == content(kept)
    assert kept.certificate == small.certificate
    assert kept.criterion["criterion"] == "horizon"
    assert not stages_path(tmp_path / "r").exists()
    assert ooc_mdp.verify(store, tmp_path / "r").holds


def test_several_stages_are_taken_for_each_load(store: Store) -> None:
    loads = {
        cache: ooc_mdp.solve(store, FiniteHorizon(40), device="cpu", cache=cache).statistics.loads_per_partition / 40
        for cache in ("3%", "50%", "100%")
    }
    assert loads["3%"] > 0.9
    assert loads["50%"] < 0.5
    assert loads["100%"] == 1 / 40


def test_an_economists_arrays_are_solved_without_a_file() -> None:
    """Consumption of a cake in ten pieces: with utility sqrt and no discount it is eaten in equal parts."""
    n = 11
    moves, utility = np.zeros((n, n, n)), np.full((n, n), -1e3)
    for left in range(n):
        for eaten in range(n):
            moves[eaten, left, max(left - eaten, 0)] = 1.0
            if eaten <= left:
                utility[left, eaten] = np.sqrt(eaten)
    table = ooc_mdp.from_arrays(moves, utility, layout="action-first")
    solution = ooc_mdp.solve(table, FiniteHorizon(5), device="cpu")
    assert abs(solution.values[10] - 5 * np.sqrt(2)) < 1e-9
    left = 10
    for stage in range(5):
        assert solution.stages is not None
        left -= int(solution.stages.policy(stage)[left])
        assert left == 10 - 2 * (stage + 1)


@pytest.mark.parametrize(("sense", "paid"), [("max", [6.0, 4.0]), ("min", [3.0, 2.0])])
def test_a_horizon_is_of_the_reward_model_and_in_the_sense_that_are_asked_for(
    tmp_path: Path, sense: str, paid: list[float]
) -> None:
    (tmp_path / "m.drn").write_text(TWO_REWARD_MODELS)
    store, result = ooc_mdp.convert(tmp_path / "m.drn", tmp_path / "s"), tmp_path / "r"
    asked = FiniteHorizon(3, reward="toll", sense=sense)
    solution = ooc_mdp.solve(store, asked, device="cpu", output=result)
    assert solution.values.tolist() == paid
    assert ooc_mdp.verify(store, result).holds
    with pytest.raises(OptionsError, match="belongs to"):
        ooc_mdp.solve(store, FiniteHorizon(3, reward="steps"), device="cpu", output=result, resume=True)


def test_a_horizon_of_costs_in_arrays_is_minimised() -> None:
    P = np.array([np.eye(3)[[1, 2, 0]], np.eye(3)])  # to the next state, or stay
    C = np.array([[3.0, 1.0], [0.0, 2.0], [5.0, 4.0]])
    solution = ooc_mdp.solve(P, C, FiniteHorizon(3, sense="min"), device="cpu")
    assert solution.values.tolist() == [3.0, 4.0, 7.0]


def test_a_row_of_infinite_duration_ends_the_process_and_others_are_refused(tmp_path: Path) -> None:
    endless = float("inf")
    model = Model((State((Action(2.0, {0: 1.0}, endless), Action(1.5, {0: 1.0}))),), durations=True)
    store = make_store(Case(model), tmp_path / "s")
    solution = ooc_mdp.solve(store, FiniteHorizon(3, kept_stages=(1, 2)), device="cpu")
    assert solution.stages is not None
    assert (solution.values[0], solution.stages.values(1)[0], solution.stages.values(2)[0]) == (5.0, 3.5, 2.0)
    for length in (0.5, 2.0):
        model = Model((State((Action(1.0, {0: 1.0}, endless), Action(1.0, {0: 1.0}, length))),), durations=True)
        other = make_store(Case(model), tmp_path / f"s{length}")
        with pytest.raises(OptionsError, match=f"rows of duration {length:g}, and stages are all of one length"):
            ooc_mdp.solve(other, FiniteHorizon(3), device="cpu")


@pytest.mark.parametrize(
    ("asked", "how", "said"),
    [
        (FiniteHorizon(3, final_values=np.ones(7)), {}, "7 final values, and .* has 1024 states"),
        (FiniteHorizon(3, final_values=np.full(1024, 1e200)), {}, "final values up to 1e.200 are above 1e.150"),
        (FiniteHorizon(3), {"residual": 1e-3}, "--residual is a stopping rule"),
        (FiniteHorizon(3), {"workers": 2}, "--horizon 3 is solved on one machine only"),
        (FiniteHorizon(3), {"device": "cuda:0,1"}, "solved on one device; give --device cuda:0"),
    ],
)
def test_what_does_not_apply_is_refused(store: Store, asked: FiniteHorizon, how: dict[str, object], said: str) -> None:
    with pytest.raises(OptionsError, match=said):
        ooc_mdp.solve(store, asked, **({"device": "cpu"} | how))  # type: ignore[arg-type]


def test_an_error_below_what_rounding_allows_is_not_called_proved(store: Store, tmp_path: Path) -> None:
    solution = ooc_mdp.solve(store, FiniteHorizon(5), epsilon=1e-30, device="cpu", output=tmp_path / "r")
    assert solution.outcome is Outcome.PRECISION_LIMIT
    assert not (tmp_path / "r").exists()
    done = ooc_mdp.solve(store, FiniteHorizon(5), epsilon=1e-6, device="cpu", output=tmp_path / "r", resume=True)
    assert done.outcome is Outcome.PROVED
    assert done.statistics.loads == solution.statistics.loads
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r", "s"]


def run_for(steps: int, monkeypatch: pytest.MonkeyPatch, solve: Callable[[], ooc_mdp.Solution]) -> ooc_mdp.Solution:
    """Solve until a signal arrives after so many steps."""
    taken = itertools.count()
    with monkeypatch.context() as patch:
        patch.setattr(life_cycle, "signals", lambda: nullcontext(lambda: next(taken) > steps))
        return solve()


@pytest.mark.parametrize("steps", [1, 17, 64, 333, 1000])
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    output, whole = tmp_path / "r", ooc_mdp.solve(store, ASKED, device="cpu", cache="20%")
    for number, cache in enumerate(["20%", "50%", "3%", "20%", "50%"]):
        found = run_for(
            steps,
            monkeypatch,
            partial(ooc_mdp.solve, store, ASKED, device="cpu", cache=cache, output=output, resume=number > 0),
        )
        if found.outcome is not Outcome.PROVED:
            assert found.error_bound == np.inf
            assert found.stages is None
            assert not output.exists()
    found = ooc_mdp.solve(store, ASKED, device="cpu", cache="10%", output=output, resume=True)
    assert content(found) == content(whole)
    assert found.statistics.sweeps == 25 * 64


def test_a_solve_that_ends_before_its_first_stage_leaves_nothing(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_load_code", lambda *_: Outcome.TIME_LIMIT)
    assert ooc_mdp.solve(store, ASKED, device="cpu", output=tmp_path / "r").outcome is Outcome.TIME_LIMIT
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


def stopped(store: Store, output: Path) -> None:
    looks, ended = itertools.count(), Session.ended

    def late(session: Session) -> Outcome | None:
        return Outcome.TIME_LIMIT if next(looks) > 300 else ended(session)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "ended", late)
        assert ooc_mdp.solve(store, ASKED, device="cpu", output=output).outcome is Outcome.TIME_LIMIT


@pytest.mark.parametrize("damage", ["gone", "shorter", "of another run", "changed"])
def test_policies_that_are_not_those_of_the_checkpoint_are_refused(store: Store, tmp_path: Path, damage: str) -> None:
    output = tmp_path / "r"
    stopped(store, output)
    pieces = stages_path(output)
    match damage:
        case "gone":
            pieces.unlink()
        case "shorter":
            pieces.write_bytes(pieces.read_bytes()[:-1])
        case "of another run":
            stopped(store, tmp_path / "other")
            pieces.write_bytes(stages_path(tmp_path / "other").read_bytes())
        case _:
            content = bytearray(pieces.read_bytes())
            content[64 + 25 * 1024 - 1] ^= 1  # the policy of the last stage, which every partition has done
            pieces.write_bytes(content)
    with pytest.raises(StoreError, match=r"r\.stages, the policies of the stages done so far, cannot be used"):
        ooc_mdp.solve(store, ASKED, device="cpu", output=output, resume=True)
    assert ooc_mdp.solve(store, ASKED, device="cpu", output=output, overwrite=True).outcome is Outcome.PROVED
    assert not pieces.exists()


def test_another_horizon_does_not_continue_a_checkpoint(store: Store, tmp_path: Path) -> None:
    stopped(store, tmp_path / "r")
    assert checkpoint_path(tmp_path / "r").exists()
    with pytest.raises(OptionsError, match="belongs to stages 25, not 26"):
        ooc_mdp.solve(store, FiniteHorizon(26, 0.97), device="cpu", output=tmp_path / "r", resume=True)


def test_what_has_the_name_of_the_stages_and_is_another_file_stays(store: Store, tmp_path: Path) -> None:
    mine = tmp_path / "r.stages"
    mine.write_text("letters from home")
    with pytest.raises(StoreError, match="has the name that unfinished output would take"):
        ooc_mdp.solve(store, ASKED, device="cpu", output=tmp_path / "r")
    assert mine.read_text() == "letters from home"


def test_many_actions_take_four_bytes(tmp_path: Path) -> None:
    model = random_model(1, 4, max_actions=300, uniform=True)
    solution = ooc_mdp.solve(
        make_store(Case(model), tmp_path / "s"), FiniteHorizon(2), device="cpu", output=tmp_path / "r"
    )
    assert solution.stages is not None
    assert solution.stages.policy_dtype == np.int32
    assert solution.stages.policy(0).max() > 100
    assert ooc_mdp.verify(tmp_path / "s", tmp_path / "r").holds


def test_a_devices_budget_is_refused_where_there_is_no_device(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "stage_backend", lambda _: HostStages(1))
    with pytest.raises(OptionsError, match="--device-memory is a CUDA device's budget"):
        ooc_mdp.solve(store, FiniteHorizon(3), device_memory="8GiB")
