"""The criterion of a finite horizon: what it takes, what it records, and how the command line asks for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ooc_mdp
from ooc_mdp.criteria import asked_criterion, recorded_option
from ooc_mdp.errors import OptionsError
from ooc_mdp.finite_horizon.criterion import FiniteHorizon
from ooc_mdp.model.criterion import Discounted, record_of
from ooc_mdp.options import SolveOptions


def test_the_command_line_asks_for_a_horizon_with_or_without_a_discount() -> None:
    assert asked_criterion({"horizon": 40}) == FiniteHorizon(40)
    asked = asked_criterion({"horizon": 40, "discount": 0.9, "keep_stages": "10, 0,40"})
    assert asked == FiniteHorizon(40, 0.9, kept_stages=(0, 10, 40))
    assert recorded_option(record_of(asked)) == "--horizon 40 --discount 0.9 --keep-stages 0,10,40"
    assert asked_criterion({"discount": 0.9}) == Discounted(0.9)


def test_the_command_line_asks_for_a_horizon_of_a_reward_model_in_a_sense() -> None:
    asked = asked_criterion({"horizon": 40, "reward": "toll", "sense": "min"})
    assert asked == FiniteHorizon(40, reward="toll", sense="min") != FiniteHorizon(40)
    assert recorded_option(record_of(asked)) == "--horizon 40 --reward toll --sense min"
    assert record_of(FiniteHorizon(40)).keys() == {"criterion", "discount", "stages", "final_values", "kept_stages"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"horizon": 0}, "give a whole number from 1"),
        ({"horizon": 3, "discount": 1.5}, "at least 0 and at most 1, not 1.5"),
        ({"horizon": 3, "keep_stages": "4"}, "stage 4 is none of a horizon of 3 stages"),
        ({"horizon": 3, "keep_stages": "1;2"}, "write for example --keep-stages 0,10,50"),
        ({"horizon": 3, "total": True}, "--total and --horizon are given"),
        ({"discount": 0.9, "keep_stages": "1"}, "--keep-stages belongs to --horizon, and --discount is asked for"),
        ({"horizon": 3, "final_values": "/no/such.npy"}, "neither a result nor a .npy file"),
    ],
)
def test_what_is_no_horizon_is_refused_with_a_remedy(given: dict[str, object], said: str) -> None:
    with pytest.raises(OptionsError, match=said):
        asked_criterion(given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([1.0, np.nan], "that of state 1 is nan"),
        (["a"], "no array of numbers"),
        ([], "no array of real numbers"),
        ([1j], "no array of"),
    ],
)
def test_final_values_that_are_no_numbers_are_refused(given: list[object], said: str) -> None:
    with pytest.raises(OptionsError, match=said):
        FiniteHorizon(3, final_values=given)  # type: ignore[arg-type]


def test_final_values_come_from_an_array_a_file_or_a_result(tmp_path: Path) -> None:
    store = ooc_mdp.generate("GW-8x4", tmp_path / "s", partitions=4)
    solution = ooc_mdp.solve(store, 0.9, device="cpu", output=tmp_path / "r")
    np.save(tmp_path / "v.npy", solution.values.reshape(8, 8))
    first = FiniteHorizon(5, final_values=solution.values)
    for other in (solution, ooc_mdp.open_result(tmp_path / "r"), tmp_path / "r", tmp_path / "v.npy"):
        assert FiniteHorizon(5, final_values=other) == first  # type: ignore[arg-type]
    assert first != FiniteHorizon(5)
    assert first.final_values is not None
    assert not first.final_values.flags.writeable


def test_final_values_are_the_criterions_own() -> None:
    given = np.ones(3)
    asked = FiniteHorizon(3, final_values=given)
    given[:] = 7
    assert asked.final_values is not None
    assert asked.final_values.tolist() == [1, 1, 1]


def test_method_options_are_refused_and_devices_are_not() -> None:
    with pytest.raises(OptionsError, match="--horizon 3 has a method of its own, backward induction"):
        SolveOptions(FiniteHorizon(3), method="vi")
    assert SolveOptions(FiniteHorizon(3), device="cuda:0").device == "cuda:0"


def test_one_kept_stage_need_not_be_a_list() -> None:
    assert FiniteHorizon(5, kept_stages=3) == FiniteHorizon(5, kept_stages=(3,))  # type: ignore[arg-type]
    assert FiniteHorizon(5, kept_stages=range(6)).kept_stages == (0, 1, 2, 3, 4, 5)  # type: ignore[arg-type]
    with pytest.raises(OptionsError, match=r"a kept stage is 1\.5"):
        FiniteHorizon(5, kept_stages=(1.5,))  # type: ignore[arg-type]
