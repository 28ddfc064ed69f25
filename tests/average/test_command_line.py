"""An average reward on the command line and in reports: the interval comes first, and other options work or refuse."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import ooc, refused
from drn_models import TWO_REWARD_MODELS

import ooc_mdp
from ooc_mdp.errors import OptionsError
from ooc_mdp.store import Store


@pytest.fixture
def network(tmp_path: Path) -> Store:
    return ooc_mdp.generate("queueing-network", tmp_path / "q.store", parameters={"capacity": 4}, partitions=5)


def test_the_interval_follows_what_is_proved(tmp_path: Path, network: Store) -> None:
    store, result = tmp_path / "q.store", tmp_path / "r"
    solved = ooc("solve", store, "--average", "--epsilon", "1e-3", "--output", result)
    assert solved.status == 0
    solution = ooc_mdp.open_result(result).solution
    assert solution.gain is not None
    words = f"between {solution.gain[0]!r} and {solution.gain[1]!r} in every state"
    lines = solved.out.splitlines()
    assert lines[0].split(maxsplit=1) == ["gain", words]
    assert lines[1].startswith("PROVED")
    assert "average reward" in solved.out
    figures = ooc("solve", store, "--average", "--epsilon", "1e-3", "--json").figures
    assert list(figures)[:2] == ["gain_lower", "gain_upper"]
    assert figures["gain_upper"] - figures["gain_lower"] <= 2e-3
    assert figures["criterion"] == "average"
    assert words in ooc("inspect", result).out
    assert ooc("report", result, "-o", tmp_path / "r.html").status == 0
    assert words in (tmp_path / "r.html").read_text()
    assert repr(solution).startswith("Solution(proved, gain between ")


@pytest.mark.parametrize(("sense", "gain"), [("max", 1.5), ("min", 1.0)])
def test_an_average_is_of_the_reward_model_and_in_the_sense_that_are_named(
    tmp_path: Path, sense: str, gain: float
) -> None:
    (tmp_path / "m.drn").write_text(TWO_REWARD_MODELS)
    store, result = ooc_mdp.convert(tmp_path / "m.drn", tmp_path / "s"), tmp_path / "r"
    words = ["--average", "--reward", "toll", "--sense", sense, "--epsilon", "1e-9"]
    figures = ooc("solve", store.path, *words, "--output", result, "--json").figures
    assert figures["gain_lower"] <= gain <= figures["gain_upper"]
    assert figures["gain_upper"] - figures["gain_lower"] <= 2e-9
    assert ooc("verify", store.path, result).status == 0
    assert f"--average --reward toll --sense {sense}" in ooc("inspect", result).out
    assert ooc("solve", store.path, *words, "--output", result, "--resume").status == 0
    assert "belongs to" in refused(
        "solve", store.path, "--average", "--reward", "steps", "--output", result, "--resume"
    )


def test_verify_prints_the_interval_that_it_measured(tmp_path: Path, network: Store) -> None:
    store, result = tmp_path / "q.store", tmp_path / "r"
    ooc("solve", store, "--average", "--epsilon", "1e-3", "--output", result)
    verified = ooc("verify", store, result)
    assert verified.status == 0
    assert "gain" in verified.out
    figures = ooc("verify", store, result, "--json").figures
    assert list(figures)[:3] == ["gain_lower", "gain_upper", "holds"]


def test_a_stopped_solve_says_that_nothing_is_known_and_continues(tmp_path: Path, network: Store) -> None:
    store, result = tmp_path / "q.store", tmp_path / "r"
    stopped = ooc("solve", store, "--average", "--time-limit", "1e-9", "--output", result, "--json")
    assert stopped.status == 1
    assert stopped.figures["gain_lower"] is None
    assert stopped.figures["partitions_unread"] >= 4
    assert "--average" in ooc("inspect", result).out
    assert ooc("solve", store, "--average", "--output", result, "--resume").status == 0
    assert "belongs to criterion average" in refused("solve", store, "--total", "--output", result, "--resume")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--residual", "1e-3"), "give --epsilon"),
        (("--method", "vi"), "has a method of its own"),
        (("--device", "cuda:0,1"), "on one device"),
        (("--workers", "2"), "one machine only"),
        (("--discount", "0.9"), "exactly one of"),
        (("--total",), "exactly one of"),
    ],
)
def test_options_of_other_criteria_are_refused(
    tmp_path: Path, network: Store, options: tuple[str, ...], message: str
) -> None:
    assert message in refused("solve", tmp_path / "q.store", "--average", *options)


def test_relative_values_are_not_simulated(tmp_path: Path, network: Store) -> None:
    ooc_mdp.solve(network, ooc_mdp.AverageReward(), output=tmp_path / "r")
    with pytest.raises(OptionsError, match="relative values"):
        ooc_mdp.simulate(tmp_path / "r")


def test_values_and_policy_are_exported(tmp_path: Path, network: Store) -> None:
    ooc_mdp.solve(network, ooc_mdp.AverageReward(), output=tmp_path / "r")
    assert ooc("export", tmp_path / "r", tmp_path / "r.csv").status == 0
    assert (tmp_path / "r.csv").read_text().count("\n") == 126
