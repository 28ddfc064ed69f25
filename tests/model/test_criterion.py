"""A criterion is a value; a number is the short form of a discount."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from small_mdps import Case, make_store
from store_models import random_model

import ooc_mdp
from ooc_mdp.errors import OptionsError
from ooc_mdp.model.criterion import (
    Criterion,
    Discounted,
    TotalReward,
    criterion_of,
    option_of,
    record_of,
    recorded_criterion,
)


@pytest.mark.parametrize("criterion", [Discounted(0.0), Discounted(0.9), TotalReward()])
def test_what_a_result_records_of_a_criterion_names_it(criterion: Criterion) -> None:
    record = record_of(criterion)
    assert recorded_criterion(record) == criterion.name
    assert recorded_criterion({"discount": record["discount"]}) == criterion.name  # as it was before there were names
    assert criterion.recorded_option(record) == option_of(criterion)
    assert criterion_of(criterion) == criterion


def test_a_number_asks_for_a_discount() -> None:
    assert criterion_of(0.9) == criterion_of(None, 0.9) == Discounted(0.9)


def test_exactly_one_of_criterion_and_discount_is_given() -> None:
    with pytest.raises(OptionsError, match="neither is given"):
        criterion_of(None)
    with pytest.raises(OptionsError, match="both are given"):
        criterion_of(TotalReward(), 0.9)


def test_discount_1_names_the_total_reward() -> None:
    with pytest.raises(OptionsError, match=r"give --total \(in Python TotalReward\(\)\)"):
        Discounted(1)


def test_each_form_of_a_discount_is_solved_alike(tmp_path: Path) -> None:
    store = make_store(Case(random_model(7, 20), partitions=2), tmp_path / "s")
    how = {"epsilon": 1e-9, "device": "cpu", "method": "vi"}
    values = [
        ooc_mdp.solve(store, *given, **short, **how).values.tolist()  # type: ignore[arg-type]
        for given, short in (((0.5,), {}), ((ooc_mdp.Discounted(0.5),), {}), ((), {"discount": 0.5}))
    ]
    assert values[0] == values[1] == values[2]


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (ooc_mdp.Discounted, {"discount": 0.9, "sens": "min"}, r"Discounted has no parameter 'sens'; .*mean sense\?"),
        (
            ooc_mdp.TotalReward,
            {"discount": 0.9},
            r"TotalReward has no .*give Discounted\(discount\)",
        ),
        (ooc_mdp.AverageReward, {"epsilon": 1}, r"AverageReward has no .*; it takes reward, sense: leave it out"),
        (
            ooc_mdp.FiniteHorizon,
            {"horizon": 3},
            r"it takes stages, .*: the number of stages is stages",
        ),
        (ooc_mdp.Reachability, {"goal": "done", "reward": "steps"}, r"give RewardToGoal\(goal, reward\)"),
        (ooc_mdp.RewardToGoal, {"goal": "done", "within": 3}, r"RewardToGoal has no parameter 'within'.*Reachability"),
    ],
)
def test_a_keyword_that_a_criterion_does_not_take_is_refused_with_what_it_takes(kind, given, message) -> None:
    with pytest.raises(OptionsError, match=message):
        kind(**given)


@pytest.mark.parametrize(
    "criterion",
    [
        ooc_mdp.Discounted(0.9, sense="min"),
        ooc_mdp.TotalReward(sense="min"),
        ooc_mdp.FiniteHorizon(3, sense="min"),
        ooc_mdp.AverageReward(sense="min"),
        ooc_mdp.Reachability("done", sense="min"),
        ooc_mdp.RewardToGoal("done", sense="min"),
    ],
)
def test_every_criterion_takes_a_sense_and_refuses_what_is_none(criterion) -> None:
    assert "--sense min" in option_of(criterion)
    assert record_of(criterion)["asked_sense"] == "min"
    with pytest.raises(OptionsError, match="sense is 'least'; give max or min"):
        dataclasses.replace(criterion, sense="least")
