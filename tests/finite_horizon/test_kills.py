"""Solves of finite horizons that are killed go on to the same bits, and leave a whole result or none."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest
from command_line import ooc
from forked import changes_of, fork, killed_at, saving_command_in_a_fork
from killed_stages import command_killed_at_stage

import ooc_mdp
from ooc_mdp.errors import StoreError


def assert_same(output: Path, whole: Path) -> None:
    """Every stage of two results has the same bits."""
    found, due = (ooc_mdp.open_result(path).solution for path in (output, whole))
    assert found.stages is not None
    assert due.stages is not None
    np.testing.assert_array_equal(found.values, due.values)
    np.testing.assert_array_equal(found.stages.errors, due.stages.errors)
    for stage in range(due.stages.count):
        np.testing.assert_array_equal(found.stages.policy(stage), due.stages.policy(stage))
    for stage in due.stages.kept:
        np.testing.assert_array_equal(found.stages.values(stage), due.stages.values(stage))
    assert found.statistics.sweeps == due.statistics.sweeps


@pytest.mark.parametrize("kills", [3, pytest.param(30, marks=pytest.mark.slow)])
def test_a_kill_before_any_change_of_its_files_loses_nothing(tmp_path: Path, kills: int) -> None:
    store = tmp_path / "s"
    ooc_mdp.generate("GW-16x4", store, {"seed": 1}, partition_grid=(4, 4))
    solving = ("solve", store, "--horizon", 6, "--keep-stages", "0,3", "--cache", "30%", "--device", "cpu", "--output")
    changes = changes_of(tmp_path, saving_command_in_a_fork, *solving, tmp_path / "whole")
    for number in np.linspace(2, changes, kills).astype(int).tolist():
        output = tmp_path / str(number) / "r"
        output.parent.mkdir()
        assert killed_at(number, tmp_path, saving_command_in_a_fork, *solving, output)
        if not output.exists():
            with pytest.raises(StoreError):
                ooc_mdp.open_result(output)
        ran = ooc(*solving, output, "--resume")
        assert ran.status == 0, ran.err
        assert sorted(path.name for path in output.parent.iterdir()) == ["r"]
        assert_same(output, tmp_path / "whole")


@pytest.mark.slow
def test_a_car_of_a_million_states_is_killed_twenty_times_and_comes_to_the_same_bits(tmp_path: Path) -> None:
    """200 stages through a cache of 10%, with a checkpoint every 400 stages of a partition."""
    store = ooc_mdp.generate("integer-mountain-car", tmp_path / "s", {"scale": 2100}, partition_grid=(16, 16))
    assert store.n_states > 10**6
    how = ("solve", tmp_path / "s", "--horizon", 200, "--keep-stages", "100", "--cache", "10%", "--device", "cpu")
    assert ooc(*how, "--output", tmp_path / "whole").status == 0
    rng = np.random.default_rng(1)
    for kill in range(20):
        resume = ["--resume"] if kill else []
        number = int(rng.integers(900, 2500))
        process = fork(command_killed_at_stage, number, 400, *how, "--output", tmp_path / "r", *resume)
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert not (tmp_path / "r").exists()
    assert ooc(*how, "--output", tmp_path / "r", "--resume").status == 0
    assert_same(tmp_path / "r", tmp_path / "whole")
    assert ooc_mdp.open_result(tmp_path / "r").solution.statistics.sweeps == 200 * 256
