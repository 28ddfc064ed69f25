"""`inspect` of what a solve wrote: a result, or the checkpoint of one that was stopped."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from command_line import ooc, refused

import ooc_mdp
from ooc_mdp.store.seal import digest_of

SOLVING = ("--discount", 0.95, "--device", "cpu", "--cache", "30%")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("solves")
    ooc_mdp.generate("GW-16x4", folder / "maze.store", {"seed": 1}, partitions=6)
    assert ooc("solve", folder / "maze.store", *SOLVING, "--output", folder / "maze.result").status == 0
    stopping = ("--output", folder / "stopped.result", "--method", "vi", "--time-limit", 1e-9)
    assert ooc("solve", folder / "maze.store", *SOLVING, *stopping).status == 1
    return folder


def test_a_result_is_shown_with_what_it_proves_and_where_it_came_from(place: Path) -> None:
    result = ooc_mdp.open_result(place / "maze.result")
    ran = ooc("inspect", place / "maze.result")
    assert ran.status == 0
    for words in (
        f"{place / 'maze.result'}: the result of a solve",
        "proved: the error is proved to be at most the target",
        f"|V - V*| ≤ {result.solution.error_bound:.3e} in every state",
        "discount 0.95",
        "256 states, 6 partitions",
        f"{result.solution.statistics.loads:,} = ",
        f"hit rate {result.solution.statistics.hit_rate:.1%}",
        "the store maze.store, maximise",
        result.identity["fingerprint"],
        "made from   gridworld\n",
    ):
        assert words in ran.out
    figures = ooc("inspect", place / "maze.result", "--json").figures
    assert figures["kind"] == "result"
    assert figures["loads"] == result.solution.statistics.loads
    assert figures["store"] == "maze.store"
    assert set(result.solution.summary()) < set(figures)


@pytest.mark.parametrize(
    "figure",
    ["error_bound", "error_lower", "error_upper", "residual_bound", "rounding_bound", "target", "policy_loss_bound"],
)
def test_a_result_is_shown_whichever_of_its_figures_is_infinite(place: Path, tmp_path: Path, figure: str) -> None:
    shutil.copytree(place / "maze.result", tmp_path / "r")
    document = json.loads((tmp_path / "r" / "zarr.json").read_bytes())
    document["attributes"]["solution"]["certificate"][figure] = None
    document["attributes"]["digest"] = digest_of(document["attributes"])
    (tmp_path / "r" / "zarr.json").write_text(json.dumps(document))
    ran = ooc("inspect", tmp_path / "r")
    assert ran.status == 0
    assert "proved: the error is proved" in ran.out
    assert "None" not in ran.out
    assert ooc("inspect", tmp_path / "r", "--json").figures.get(figure) is None


@pytest.mark.parametrize("name", ["stopped.result", "stopped.result.checkpoint"])
def test_a_checkpoint_is_shown_with_how_to_continue(place: Path, name: str) -> None:
    ran = ooc("inspect", place / name)
    assert ran.status == 0
    assert "stopped.result.checkpoint: the checkpoint of a solve" in ran.out
    assert f"ooc-mdp solve STORE --discount 0.95 --output {place / 'stopped.result'} --resume" in ran.out
    figures = ooc("inspect", place / name, "--json").figures
    assert figures["kind"] == "checkpoint"
    assert figures["identity"]["discount"] == 0.95
    assert figures["arrays"]["values"]["shape"] == [256]


def test_what_is_none_of_them_is_refused_as_a_store(place: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "text").write_text("ooc-mdp")
    for name in ("none", "file"):
        assert str(tmp_path / name) in refused("inspect", tmp_path / name)
    (place / "maze.result" / "zarr.json").write_text((place / "maze.result" / "zarr.json").read_text()[:-20])
    assert "maze.result" in refused("inspect", place / "maze.result")


def test_a_result_has_flat_arrays_and_a_short_representation(place: Path) -> None:
    store = ooc_mdp.open_store(place / "maze.store")
    solution = ooc_mdp.solve(store, 0.95, device="cpu", output=place / "again.result")
    result = ooc_mdp.open_result(place / "again.result")
    assert result.values is result.solution.values
    assert result.policy is result.solution.policy
    assert result.values.shape == result.policy.shape == (256,)
    for shown in (repr(solution), repr(result), repr(solution.history)):
        assert len(shown.splitlines()) == 1
        assert len(shown) < 300 + len(str(place))
    assert repr(solution).startswith("Solution(proved, error at most ")
    assert "256 states, discount 0.95, " in repr(solution)
