"""A result as a file for other programs: coordinates and control values beside the number of each state."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_line import ooc

import ooc_mdp
from ooc_mdp.errors import OptionsError
from ooc_mdp.io import export
from ooc_mdp.io.export import export_result
from ooc_mdp.store.result import Result


def rows_of(result: Result, file: Path) -> list[dict[str, str]]:
    export_result(result, file, overwrite=True)
    with file.open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory: pytest.TempPathFactory) -> Result:
    folder = tmp_path_factory.mktemp("pendulum")
    store = ooc_mdp.generate("single-pendulum", folder / "s", {"grid": "6,5"}, device="cpu")
    ooc_mdp.solve(store, 0.9, device="cpu", output=folder / "r", epsilon=1e-2)
    return ooc_mdp.open_result(folder / "r")


def test_a_control_problem_has_its_coordinates_and_control_values(pendulum: Result, tmp_path: Path) -> None:
    from ooc_mdp.simulation import problem_of

    problem = problem_of(pendulum).problem
    rows = rows_of(pendulum, tmp_path / "d.csv")
    names = [f"{axis.name} [{axis.unit}]" if axis.unit else axis.name for axis in problem.axes]
    assert list(rows[0]) == ["state", *names, "value", "policy", "control0"]
    assert [int(row["state"]) for row in rows] == list(range(30))
    for i, row in enumerate(rows):
        for name, axis, n, k in zip(names, problem.axes, (6, 5), divmod(i, 5), strict=True):
            assert float(row[name]) == pytest.approx(axis.low + k * axis.step(n), abs=1e-12)
        action = int(row["policy"])
        assert action == pendulum.policy[i]
        assert row["control0"] == ("" if action < 0 else repr(float(problem.controls[action][0])))
    assert np.array_equal([float(row["value"]) for row in rows], pendulum.values)


def test_blocks_of_lines_give_the_same_file(pendulum: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = rows_of(pendulum, tmp_path / "a.csv")
    monkeypatch.setattr(export, "_LINES", 7)
    assert rows_of(pendulum, tmp_path / "b.csv") == whole


def test_a_model_without_a_grid_has_the_columns_that_it_had(tmp_path: Path) -> None:
    (tmp_path / "m.txt").write_text("S:0:0:1\nA:0:1\nD:1:1.0:1\nS:1:0:0\n")
    ooc_mdp.solve(ooc_mdp.convert(tmp_path / "m.txt", tmp_path / "s"), 0.9, device="cpu", output=tmp_path / "r")
    rows = rows_of(ooc_mdp.open_result(tmp_path / "r"), tmp_path / "d.csv")
    assert [list(row.values()) for row in rows] == [["0", "1.0", "0"], ["1", "0.0", "-1"]]
    assert list(rows[0]) == ["state", "value", "policy"]


def test_a_grid_without_bounds_has_indices(tmp_path: Path) -> None:
    n = 6
    np.savez(
        tmp_path / "m.npz", state_ptr=np.arange(n + 1), indptr=np.arange(n + 1), indices=np.arange(n), data=np.ones(n),
        r_s=np.ones(n),
    )  # fmt: skip
    store = ooc_mdp.convert(tmp_path / "m.npz", tmp_path / "s", grid=(2, 3))
    ooc_mdp.solve(store, 0.5, device="cpu", output=tmp_path / "r")
    rows = rows_of(ooc_mdp.open_result(tmp_path / "r"), tmp_path / "d.csv")
    assert [(row["axis_0"], row["axis_1"]) for row in rows] == [(str(i), str(j)) for i in range(2) for j in range(3)]


@pytest.mark.parametrize("controls", [None, "none", [[1.0], [2.0, 3.0]], [[math.nan]], [], [["x"]], {"a": 1}])
def test_control_values_that_do_not_belong_to_the_actions_are_left_out(
    pendulum: Result, tmp_path: Path, controls: object
) -> None:
    other = replace(pendulum, geometry={**(pendulum.geometry or {}), "controls": controls})
    assert "control0" not in rows_of(other, tmp_path / "d.csv")[0]


@pytest.fixture
def horizon(tmp_path: Path) -> Result:
    store = ooc_mdp.generate("GW-4x4", tmp_path / "s", partitions=2)
    ooc_mdp.solve(store, ooc_mdp.FiniteHorizon(6, kept_stages=(2, 6)), device="cpu", output=tmp_path / "h")
    return ooc_mdp.open_result(tmp_path / "h")


def test_stages_of_a_finite_horizon_are_columns_and_arrays_of_their_own(horizon: Result, tmp_path: Path) -> None:
    stages = horizon.solution.stages
    assert stages is not None
    export_result(horizon, tmp_path / "d.npz", stages=(2, 3, 6))
    with np.load(tmp_path / "d.npz") as found:
        assert set(found) == {"value", "policy", "value_2", "policy_2", "policy_3", "value_6"}
        np.testing.assert_array_equal(found["value"], horizon.values)
        np.testing.assert_array_equal(found["value_2"], stages.values(2))
        np.testing.assert_array_equal(found["policy_3"], stages.policy(3))
    export_result(horizon, tmp_path / "d.csv", stages=(2,))
    with (tmp_path / "d.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [float(row["value_2"]) for row in rows] == stages.values(2).tolist()
    assert [int(row["policy_2"]) for row in rows] == stages.policy(2).tolist()
    for chosen, due in (((), horizon.values), ((6,), stages.values(6)), ((0,), horizon.values)):
        export_result(horizon, tmp_path / "d.npy", stages=chosen, overwrite=True)
        np.testing.assert_array_equal(np.load(tmp_path / "d.npy"), due)


@pytest.mark.parametrize(
    ("name", "stages", "said"),
    [
        ("d.npy", (3,), r"the values of stage 3 were not kept \(kept are 2, 6\); solve again with --keep-stages 3"),
        ("d.npy", (2, 6), "holds the values of one stage"),
        ("d.npz", (7,), "there is no policy of stage 7: the stages are 0 to 5"),
    ],
)
def test_stages_that_are_not_there_are_refused(
    horizon: Result, tmp_path: Path, name: str, stages: tuple[int, ...], said: str
) -> None:
    with pytest.raises(OptionsError, match=said):
        export_result(horizon, tmp_path / name, stages=stages)
    assert not (tmp_path / name).exists()


def test_other_results_have_no_stages(pendulum: Result, tmp_path: Path) -> None:
    with pytest.raises(OptionsError, match="is no result of a finite horizon"):
        export_result(pendulum, tmp_path / "d.npz", stages=(1,))


@pytest.fixture(scope="module")
def ragged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ooc_mdp.Solution]:
    """States with one to three actions and one without, solved to the result `r` of the store `s`."""
    folder = tmp_path_factory.mktemp("ragged")
    rng = np.random.default_rng(2)
    P, R = rng.dirichlet(np.ones(6), (6, 3)), rng.normal(size=(6, 3))
    R[1, 1:], R[4, 0], P[5], R[5] = -np.inf, -np.inf, 0.0, 0.0
    store = ooc_mdp.from_arrays(P, R, layout="state-first", path=folder / "s", partitions=3, terminal=[5])
    return folder, ooc_mdp.solve(store, 0.9, device="cpu", output=folder / "r")


def test_values_of_actions_are_written_in_each_format(ragged: tuple[Path, ooc_mdp.Solution], tmp_path: Path) -> None:
    folder, solution = ragged
    due = solution.q_values().values
    for name in ("q.npy", "all.npz", "all.csv"):
        ran = ooc("export", folder / "r", tmp_path / name, "--q-values", folder / "s")
        assert (ran.status, ran.out.strip()) == (0, str(tmp_path / name)), ran.err
        assert f"error at most {solution.q_values().error_bound:.3g}" in ran.err
    assert np.array_equal(np.load(tmp_path / "q.npy"), due)
    with np.load(tmp_path / "all.npz") as archive:
        assert np.array_equal(archive["q"], due)
        assert np.array_equal(archive["value"], solution.values)
    with (tmp_path / "all.csv").open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    assert np.array_equal([[float(row[f"q{a}"]) for a in range(3)] for row in rows], due)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["all.csv", "all.npz", "q.npy"]


def test_values_of_actions_need_the_store_of_the_result(pendulum: Result, ragged: object, tmp_path: Path) -> None:
    folder = ragged[0]  # type: ignore[index]
    ran = ooc("export", pendulum.path, tmp_path / "q.npy", "--q-values", folder / "s")
    assert ran.status != 0
    assert "states" in ran.err
    assert not list(tmp_path.iterdir())
