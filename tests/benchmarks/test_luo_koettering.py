"""The benchmark of Luo and Koettering at toy size: on the CPU, on the emulator of CUDA, and the documented tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmark_scripts import figures_of, run_here
from emulated_device import EmulatedDevice
from emulated_order import Order
from paths import BENCHMARKS

from ooc_mdp.backends.cuda.group import DeviceGroup

CUDA_DEVICE = "ooc_mdp.backends.cuda.device.CudaDevice"
SCRIPT = "papers/luo_koettering/run.py"
README = BENCHMARKS / "papers" / "luo_koettering" / "README.md"
TABLES = (
    "made with",
    "claims",
    *(f"figure {n}" for n in (2, 3, 4, 5)),
    *(f"figure {n}, speed-up" for n in (2, 3, 4, 5)),
    "several GPUs",
    "default kernel",
)
SIZES = [(6, 4), (12, 2), (12, 6), (20, 6)]


def toy(folder: Path, *more: str) -> dict:
    return figures_of(SCRIPT, folder, "--toy", "--repeat", "1", *more)


def test_the_schedule_of_dense_computes_the_values_of_the_four_loops(tmp_path):
    figures = toy(tmp_path, "--part", "cases")
    assert [(case["states"], case["actions"]) for case in figures["cases"]] == SIZES
    for case in figures["cases"]:
        sequential, dense = case["runs"]
        assert (sequential["what"], dense["what"]) == ("sequential", "dense")
        assert sequential["outcome"] == dense["outcome"] == "done"
        assert len(sequential["seconds"]) == len(sequential["iterations"])
        assert "seconds" not in dense, "a schedule's seconds say nothing"
        assert case["array_bytes"] == 8 * case["states"] ** 2 * case["actions"]
        assert 0 <= case["largest_difference"]["dense"] < 1e-13
        assert case["default"]["residual"] <= case["residual"]


@pytest.mark.parametrize("seed", range(3))
def test_groups_of_devices_compute_the_values_of_numpy(seed, tmp_path, monkeypatch):
    order = Order(seed)
    monkeypatch.setattr(CUDA_DEVICE, lambda number: EmulatedDevice(1 << 26, number, order))
    figures = toy(tmp_path, "--part", "devices", "--device", "cuda:0", "--devices", "1,2,3")
    assert [(case["states"], case["actions"]) for case in figures["devices"]] == SIZES
    assert figures["link_bytes_per_second"] > 0
    versions = [(what, devices) for devices in (1, 2, 3) for what in ("algorithm 3", "dense")]
    for case in figures["devices"]:
        assert [(run["what"], run["devices"]) for run in case["runs"]] == versions
        assert len(case["largest_difference"]) == len(versions)
        assert all(difference < 1e-13 for difference in case["largest_difference"].values())
        for run in case["runs"]:
            assert run["outcome"] == "done"
            assert len(run["seconds"]) == len(run["iterations"])
            assert run["load_seconds"] > 0


class SendsNothing(EmulatedDevice):
    """Its kernels write no value to other devices."""

    def compile(self, source, defines, names, *, fused=True):
        return super().compile(source.replace("there[other][s] = own[s];", "{}"), defines, names, fused=fused)


@pytest.mark.parametrize("forgotten", ["meetings", "values"])
def test_dense_on_a_group_is_wrong_where_devices_do_not_meet_or_send(forgotten, tmp_path, monkeypatch):
    if forgotten == "meetings":
        monkeypatch.setattr(DeviceGroup, "meet", staticmethod(lambda streams: None))
    device, order = (SendsNothing if forgotten == "values" else EmulatedDevice), Order(1)
    monkeypatch.setattr(CUDA_DEVICE, lambda number: device(1 << 26, number, order))
    figures = toy(tmp_path, "--part", "devices", "--device", "cuda:0", "--devices", "3")
    assert max(case["largest_difference"]["dense on 3 GPUs"] for case in figures["devices"]) > 1e-6
    assert all(case["largest_difference"]["algorithm 3 on 3 GPUs"] < 1e-13 for case in figures["devices"])


def test_what_a_time_limit_or_the_budget_left_out_is_said(tmp_path):
    figures = toy(tmp_path, "--part", "cases", "--time-limit", "1e-9")
    for case in figures["cases"]:
        sequential = case["runs"][0]
        assert sequential["outcome"] == ("done" if case["runs"][1]["done"] == 1 else "time_limit")
        assert sequential["done"] == 1
        assert sequential["iterations"] == [n for n in case["runs"][1]["iterations"] if n == 1]


@pytest.mark.slow
def test_every_version_computes_the_same_values_on_a_device(tmp_path, monkeypatch):
    order = Order(1)
    monkeypatch.setattr(CUDA_DEVICE, lambda number: EmulatedDevice(1 << 26, number, order))
    figures = toy(tmp_path, "--device", "cuda:0", "--devices", "1,2")
    for case in figures["cases"]:
        assert [run["what"] for run in case["runs"]] == ["sequential", "state by state", "dense"]
        for run in case["runs"]:
            assert run["outcome"] == "done"
            assert len(run["seconds"]) == len(run["iterations"])
            assert run["seconds_an_iteration"] > 0
        assert all(difference < 1e-13 for difference in case["largest_difference"].values())
        assert case["default"]["what"] == "tiles"
    pytest.importorskip("matplotlib")
    plots = tmp_path / "plots"
    run_here("papers/luo_koettering/plots.py", tmp_path / "figures.json", "--folder", plots)
    assert sorted(file.name for file in plots.iterdir()) == [f"figure-{n}.svg" for n in (2, 3, 4, 5)]
    assert all(2 << 10 < file.stat().st_size < 200 << 10 for file in plots.iterdir())


def test_each_table_has_its_place_in_the_readme_also_for_a_run_that_was_cut_short(tmp_path):
    (tmp_path / "run").mkdir()
    figures = toy(tmp_path / "run", "--budget", "0")
    assert len(figures["left_out"]) == len(SIZES)
    file, readme = tmp_path / "run" / "figures.json", tmp_path / "README.md"
    printed = run_here(SCRIPT, "--document", file)
    text = README.read_text()
    readme.write_text(text)
    run_here(SCRIPT, "--document", file, "--into", readme)
    for title in TABLES:
        assert f"<!-- {title} -->\n" in text
        assert f"{title}\n\n" in printed
    for table in printed.strip().split("\n\n"):
        assert table in readme.read_text() or table in TABLES


def test_the_documented_tables_are_those_of_the_kept_figures():
    kept = sorted((BENCHMARKS / "results").glob("luo_koettering*.json"))
    assert all(json.loads(file.read_text())["benchmark"] == "luo_koettering" for file in kept)
    for table in run_here(SCRIPT, "--document", *kept).strip().split("\n\n"):
        assert table in README.read_text() or table in TABLES
