"""A resumed solve proves nothing by what a checkpoint says: every partition is loaded and measured again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ooc_mdp
from ooc_mdp.errors import StoreError
from ooc_mdp.model.criterion import TotalReward
from ooc_mdp.solver.state import SolveState
from ooc_mdp.store import Store
from ooc_mdp.store.checkpoint import checkpoint_path, read_checkpoint
from ooc_mdp.store.sealed_file import write_sealed_file

Arrays = dict[str, np.ndarray]
METHODS: list[dict[str, Any]] = [
    {"method": "vi"},
    {"method": "vi", "sweeps_per_visit": 8},
    {"method": "p-eva"},
    {"method": "p-eva", "priority": "h1"},
    {"method": "policy-iteration"},
    {"method": "auto"},
    {"method": "auto", "cache": "40%"},
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    place = tmp_path_factory.mktemp("resume")
    return ooc_mdp.generate("GW-16x4", place / "s", {"seed": 1}, partitions=4)


def stopped(store: Store, output: Path, discount: float = 0.9) -> Path:
    """The checkpoint of a solve that was stopped as soon as it began to sweep."""
    how: dict[str, Any] = {"method": "vi"} if discount < 1 else {}
    ooc_mdp.solve(
        store, TotalReward() if discount == 1 else discount, device="cpu", output=output, time_limit=1e-9, **how
    )
    return checkpoint_path(output)


def changed(path: Path, change: Callable[[Arrays], object]) -> None:
    """Change the arrays of a checkpoint and seal it again."""
    title = path.read_bytes().partition(b"\n")[0].decode()
    facts, arrays = read_checkpoint(path)
    change(arrays)
    path.unlink()
    write_sealed_file(path, title, facts, arrays)


def all_proved(arrays: Arrays) -> None:
    """Values that are wrong, with bounds that say that they are exact."""
    arrays["values"][:] = 7.0
    arrays["visited"][:] = True
    arrays["policy"][:] = 0
    for name in ("rise", "fall", "plain_rise", "plain_fall", "value_size"):
        arrays[name][...] = 0.0


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_values_of_a_checkpoint_are_measured_before_they_are_proved(
    store: Store, tmp_path: Path, method: dict[str, Any]
) -> None:
    changed(stopped(store, tmp_path / "r"), all_proved)
    solution = ooc_mdp.solve(store, 0.9, device="cpu", output=tmp_path / "r", resume=True, epsilon=1e-4, **method)
    assert solution.outcome.proved
    assert ooc_mdp.verify(store, tmp_path / "r").holds


@pytest.mark.parametrize("target", [{"epsilon": 1e-4}, {"residual": 1e-4}])
def test_nothing_is_known_of_a_checkpoint_that_no_partition_was_measured_for(
    store: Store, tmp_path: Path, target: dict[str, float]
) -> None:
    changed(stopped(store, tmp_path / "r"), all_proved)
    again = ooc_mdp.solve(
        store,
        0.9,
        device="cpu",
        output=tmp_path / "r",
        resume=True,
        time_limit=1e-9,
        method="vi",
        cache="30%",
        **target,
    )
    assert not again.outcome.proved
    assert again.statistics.partitions_unread == 0
    assert (again.error_bound, again.certificate.residual_bound) == (np.inf, np.inf)
    assert again.certificate.policy_loss_bound == np.inf


def test_a_resumed_solve_reads_what_was_proved_once_more_and_keeps_its_values(store: Store, tmp_path: Path) -> None:
    first = ooc_mdp.solve(store, 0.9, device="cpu", epsilon=1e-4, output=tmp_path / "whole", method="p-eva")
    values = ooc_mdp.solve(store, 0.9, device="cpu", epsilon=1e-8, method="p-eva").values

    def settled(arrays: Arrays) -> None:
        arrays["values"][:] = values[np.concatenate([store.original_states(p) for p in range(4)])]
        for name in ("rise", "fall", "plain_rise", "plain_fall"):
            arrays[name][:] = 1e-6

    changed(stopped(store, tmp_path / "r"), settled)
    before = read_checkpoint(checkpoint_path(tmp_path / "r"))[0]["statistics"]["loads"]
    again = ooc_mdp.solve(store, 0.9, device="cpu", epsilon=1e-4, output=tmp_path / "r", resume=True, method="p-eva")
    assert again.outcome.proved
    assert again.statistics.loads - before == 4
    assert np.abs(again.values - first.values).max() <= again.error_bound + first.error_bound


@pytest.mark.parametrize("value", [7.0, -1e3, 1e3])
def test_totals_of_a_checkpoint_are_proved_by_the_table(tmp_path: Path, value: float) -> None:
    chain = "".join(f"S:{i}:0:1\nA:0:2\nD:{i}:0.5:-1\nD:{i + 1}:0.5:-1\n" for i in range(12))
    (tmp_path / "m.txt").write_text(f"{chain}S:12:0:0\n")
    store = ooc_mdp.convert(tmp_path / "m.txt", tmp_path / "s", partitions=3, threads=1)
    first = ooc_mdp.solve(store, ooc_mdp.TotalReward(), device="cpu", epsilon=1e-6)
    output = tmp_path / "r"
    path = checkpoint_path(output)
    facts = {
        "identity": {"fingerprint": store.fingerprint, "sense": "max", "discount": 1.0},
        "statistics": {
            name: getattr(first.statistics, name) for name in first.statistics.__dataclass_fields__ if name != "workers"
        }
        | {"workers": []},
        "method": {"method": "auto", "priority": None, "sweeps_per_visit": 1, "phases": []},
    }
    write_sealed_file(path, "ooc-mdp checkpoint 5", facts, {"bounds": np.full((13, 2), value)})
    again = ooc_mdp.solve(store, ooc_mdp.TotalReward(), device="cpu", epsilon=1e-6, output=output, resume=True)
    assert again.outcome.proved
    assert ooc_mdp.verify(store, output).holds
    assert np.abs(again.values - first.values).max() <= again.error_bound + first.error_bound


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("values", np.nan, "values has numbers that are none"),
        ("values", 1e200, "values has numbers that are none, or above 1e"),
        ("value_size", np.inf, "value_size has numbers that are none"),
        ("rise", np.nan, "rise and fall are not numbers"),
        ("plain_fall", np.nan, "plain_rise and plain_fall are not numbers"),
    ],
)
def test_numbers_that_no_solve_has_are_refused(
    store: Store, tmp_path: Path, name: str, value: float, said: str
) -> None:
    path = stopped(store, tmp_path / "r")
    changed(path, lambda arrays: arrays[name].fill(value))
    with pytest.raises(StoreError, match=f"the checkpoint {path} is damaged .{said}"):
        ooc_mdp.solve(store, 0.9, device="cpu", output=tmp_path / "r", resume=True)


@pytest.mark.slow
def test_several_workers_measure_the_values_of_a_checkpoint(store: Store, tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    changed(stopped(store, tmp_path / "r"), all_proved)
    ooc_mdp.solve(store, 0.9, device="cpu", output=tmp_path / "r", resume=True, epsilon=1e-4, workers=2)
    assert ooc_mdp.verify(store, tmp_path / "r").holds


@pytest.mark.parametrize("resume", [False, True])
def test_values_are_not_brought_from_the_device_before_there_is_a_checkpoint_to_compare_them_with(
    store: Store, tmp_path: Path, resume: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[float]()
    arrays = SolveState.arrays

    def noted(self: SolveState) -> Arrays:
        asked.append(self.counters.backups)
        return arrays(self)

    monkeypatch.setattr(SolveState, "arrays", noted)
    ooc_mdp.solve(store, 0.9, device="cpu", output=tmp_path / "r", resume=resume)
    assert 0 not in asked
