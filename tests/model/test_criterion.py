"""A criterion is a value; a number is the short form of a discount."""

from __future__ import annotations

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
