"""The command line: what each command prints, where, and with which exit status it ends."""

from __future__ import annotations

import csv
import io
import json
import os

import numpy as np
import pytest
from command_line import ooc, process, refused

import ooc_mdp
from ooc_mdp.store.seal import digest_of

COMMANDS = (
    "convert", "generate", "solve", "inspect", "check", "verify", "export", "cache-curve", "cache-sweep", "simulate",
    "kernels", "report", "plot", "problems", "animate",
)  # fmt: skip
FIGURES = {
    "outcome", "method", "error_bound", "residual_bound", "n_states", "n_partitions", "cache_bytes", "table_bytes",
    "accesses", "hits", "misses", "auxiliary_accesses", "loads", "loads_per_partition", "hit_rate", "bytes_read",
    "bytes_decoded", "visits", "backups", "solve_seconds", "memory_plan",
}  # fmt: skip
ALPHA = 0.5


def test_help_and_version_name_every_command():
    shown = process("--help")
    assert shown.status == 0
    assert all(name in shown.out for name in COMMANDS)
    assert process("--version").out == f"ooc-mdp {ooc_mdp.__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_explains_itself(name):
    shown = ooc(name, "--help")
    assert shown.status == 0
    assert f"ooc-mdp {name}" in shown.out


def test_solve_prints_one_json_object_and_everything_else_on_stderr(place):
    ran = process("solve", place / "maze.store", "--discount", 0.9, "--cache", "30%", "--device", "cpu", "--json")
    assert ran.status == 0
    figures = ran.figures
    assert set(figures) >= FIGURES
    assert ran.err.startswith("memory plan, RAM: ")
    assert figures["outcome"] == "proved"
    assert figures["error_bound"] <= figures["target"]
    assert (figures["n_states"], figures["n_partitions"]) == (1024, 16)
    assert figures["hits"] + figures["misses"] == figures["accesses"]
    assert figures["loads_per_partition"] == figures["loads"] / 16
    assert figures["cache_peak_bytes"] <= figures["cache_bytes"] < figures["table_bytes"]
    assert sum(figures["memory_plan"]["host"].values()) > figures["cache_bytes"]


def test_solve_in_words_says_what_is_proved_and_where_the_result_is(place):
    ran = ooc("solve", place / "maze.store", "--discount", 0.9, "--device", "cpu")
    assert ran.status == 0
    assert ran.out.startswith("PROVED")
    assert "not kept (name one with --output)" in ran.out


def test_a_residual_rule_says_what_it_proves(place):
    figures = ooc(
        "solve", place / "maze.store", "--discount", 0.9, "--residual", 0.001, "--device", "cpu", "--json"
    ).figures
    assert figures["outcome"] == "residual_reached"
    assert figures["residual_bound"] <= 0.001
    assert figures["error_bound"] > 0


@pytest.mark.parametrize("suffix", ["npy", "npz", "csv"])
def test_values_and_policy_are_exported_in_the_order_of_the_source(place, tmp_path, suffix):
    store, result, file = tmp_path / "s", tmp_path / "r", tmp_path / f"ladder.{suffix}"
    assert ooc("convert", place / "ladder.npz", store, "--grid", "4,4", "--partitions", 4).status == 0
    assert (ooc_mdp.open_store(store).original_states(0) != np.arange(4)).any()
    solving = ("solve", store, "--discount", ALPHA, "--epsilon", 1e-9, "--output", result, "--device", "cpu")
    assert ooc(*solving).status == 0
    assert ooc("export", result, file).out == f"{file}\n"
    due_values = np.append(np.arange(15) / (1 - ALPHA), 7.0)
    due_policy = np.append(np.ones(15), -1)
    if suffix == "csv":
        rows = list(csv.DictReader(io.StringIO(file.read_text())))
        assert [int(row["state"]) for row in rows] == list(range(16))
        values, policy = [float(r["value"]) for r in rows], [int(r["policy"]) for r in rows]
        np.testing.assert_array_equal(policy, due_policy)
    elif suffix == "npz":
        with np.load(file) as arrays:
            assert sorted(arrays.files) == ["policy", "value"]
            values = arrays["value"]
            np.testing.assert_array_equal(arrays["policy"], due_policy)
    else:
        values = np.load(file)
    np.testing.assert_allclose(values, due_values, atol=1e-9)
    assert "exists" in refused("export", result, file)
    assert ooc("export", result, file, "--overwrite").status == 0


def test_an_export_that_cannot_be_written_is_refused(place, tmp_path):
    result = place / "maze.result"
    assert "must end in .npy, .npz or .csv" in refused("export", result, tmp_path / "x.txt")
    assert "is no directory" in refused("export", result, tmp_path / "none" / "x.npy")
    (tmp_path / "file").touch()
    assert "is no directory" in refused("export", result, tmp_path / "file" / "x.npy")
    (tmp_path / "d.npy").mkdir()
    assert "is a directory" in refused("export", result, tmp_path / "d.npy", "--overwrite")
    for around in (result, place / "maze.store"):  # it would go with that when that is replaced
        assert "would lie inside" in refused("export", result, around / "x.npy")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["d.npy", "file"]


@pytest.mark.parametrize("suffix", ["npy", "npz", "csv"])
def test_an_export_replaces_regular_files_only(place, tmp_path, suffix):
    pipe, link, target = (tmp_path / f"{name}.{suffix}" for name in ("pipe", "link", "target"))
    os.mkfifo(pipe)
    target.write_text("mine")
    link.symlink_to(target)
    assert "is a device or pipe" in refused("export", place / "maze.result", pipe, "--overwrite")
    assert "is a symbolic link" in refused("export", place / "maze.result", link, "--overwrite")
    assert pipe.is_fifo()
    assert link.is_symlink()
    assert target.read_text() == "mine"
    assert len(list(tmp_path.iterdir())) == 3


def test_inspect_tells_sizes_in_words_and_in_json(place):
    words = ooc("inspect", place / "maze.store")
    assert words.status == 0
    assert "1,024, 4,096 state-action pairs" in " ".join(words.out.split())
    facts = ooc("inspect", place / "maze.store", "--json").figures
    assert facts["n_states"] == 1024
    assert facts["n_partitions"] == 16
    assert facts["provenance"]["source"] == "gridworld"


def test_convert_and_generate_print_the_same_facts_as_inspect(place, tmp_path):
    made = ooc("convert", place / "ladder.npz", tmp_path / "s", "--json").figures
    assert made == ooc("inspect", tmp_path / "s", "--json").figures
    made = ooc("generate", "random", tmp_path / "t", "--states", 50, "--actions", 2, "--seed", 3, "--json").figures
    assert made == ooc("inspect", tmp_path / "t", "--json").figures
    assert made["n_states"] == 50


def test_check_finds_a_flipped_byte_and_ends_with_1(place, tmp_path):
    assert ooc("generate", "GW-16x4", tmp_path / "s", "--partitions", 4).status == 0
    whole = ooc("check", tmp_path / "s", "--json")
    assert (whole.status, whole.figures) == (0, {"valid": True, "n_partitions": 4, "findings": []})
    chunk = next(p for p in (tmp_path / "s" / "probabilities").rglob("c.*"))
    raw = bytearray(chunk.read_bytes())
    raw[len(raw) // 2] ^= 4
    chunk.write_bytes(raw)
    ran = ooc("check", tmp_path / "s", "--json")
    assert ran.status == 1
    assert not ran.figures["valid"]
    assert {f["field"] for f in ran.figures["findings"]} == {"probabilities"}
    words = ooc("check", tmp_path / "s")
    assert words.status == 1
    assert "probabilities" in words.out
    assert "damaged" in refused("solve", tmp_path / "s", "--discount", 0.9, "--device", "cpu")


def test_verify_confirms_a_result_and_ends_with_1_when_its_claim_fails(place, tmp_path):
    good = ooc("verify", place / "maze.store", place / "maze.result", "--json")
    assert good.status == 0
    assert good.figures["holds"]
    assert good.figures["invalid_policy_states"] == 0
    claimed = good.figures["claimed_bound"]
    assert "the certificate holds" in ooc("verify", place / "maze.store", place / "maze.result").out
    import shutil

    forged = shutil.copytree(place / "maze.result", tmp_path / "forged")
    document = json.loads((forged / "zarr.json").read_text())
    document["attributes"]["solution"]["certificate"]["error_bound"] = claimed / 100
    document["attributes"]["digest"] = digest_of(document["attributes"])
    (forged / "zarr.json").write_text(json.dumps(document))
    bad = ooc("verify", place / "maze.store", forged, "--json")
    assert bad.status == 1
    assert not bad.figures["holds"]
    assert "DOES NOT HOLD" in ooc("verify", place / "maze.store", forged).out


def test_a_result_of_another_store_is_not_verified(place, tmp_path):
    assert ooc("generate", "GW-32x4", tmp_path / "other", "--seed", 2).status == 0
    assert "another table" in refused("verify", tmp_path / "other", place / "maze.result")


def test_a_result_a_half_written_store_and_a_missing_one_are_refused_as_stores(place, tmp_path):
    for order in (("inspect",), ("check",), ("solve", "--discount", "0.9", "--device", "cpu")):
        if order != ("inspect",):
            said = refused(order[0], place / "maze.result", *order[1:])
            assert "maze.result is the result of a solve, not a store" in said
        (tmp_path / "s.partial").mkdir(exist_ok=True)
        assert "s.partial is half-written" in refused(order[0], tmp_path / "s.partial", *order[1:])
        assert "s is half-written" in refused(order[0], tmp_path / "s", *order[1:])
        assert "none does not exist" in refused(order[0], tmp_path / "none", *order[1:])


def test_a_store_a_file_and_an_empty_folder_are_refused_as_results(place, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "r.partial").mkdir()
    assert "half-written" in refused("export", tmp_path / "r.partial", tmp_path / "x.npy")
    for path in (place / "maze.store", tmp_path / "file", tmp_path / "folder"):
        for said in (refused("verify", place / "maze.store", path), refused("export", path, tmp_path / "x.npy")):
            assert f"{path} is no result" in said
            assert "PosixPath" not in said
    assert "does not exist" in refused("export", tmp_path / "none", tmp_path / "x.npy")


def test_what_exists_is_replaced_only_on_request_and_only_if_it_is_a_result(place, tmp_path):
    output = tmp_path / "r"
    solving = ("solve", place / "maze.store", "--discount", 0.9, "--device", "cpu", "--output")
    assert ooc(*solving, output).status == 0
    first = ooc_mdp.open_result(output)
    assert "exists" in refused(*solving, output)
    again = ("solve", place / "maze.store", "--discount", 0.8, "--device", "cpu", "--output", output)
    assert ooc(*again, "--overwrite").status == 0
    assert ooc_mdp.open_result(output).solution.discount == 0.8 != first.solution.discount
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.tex").touch()
    for path in (tmp_path / "file", tmp_path / "folder", place / "maze.store"):
        for permission in ("--overwrite", "--resume"):
            assert str(path) in refused(*solving, path, permission)
    assert (tmp_path / "file").read_text() == "mine"
    assert (tmp_path / "folder" / "thesis.tex").exists()
    assert ooc_mdp.open_store(place / "maze.store").n_states == 1024
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder", "r"]


@pytest.mark.parametrize("command", ["inspect", "check"])
def test_what_a_killed_run_left_beside_a_store_is_named(tmp_path, command):
    store = tmp_path / "s"
    assert ooc("generate", "GW-4x2", store).status == 0
    assert "partial" not in ooc(command, store).err
    (tmp_path / "s.partial").mkdir()  # as a kill right after the exchange of --overwrite leaves it
    ran = ooc(command, store)
    assert ran.status == 0
    assert f"{store}.partial was left by a run that was stopped or killed" in ran.err
    assert ooc("generate", "GW-4x2", store, "--overwrite").status == 0
    assert "partial" not in ooc(command, store).err


def test_outputs_that_could_not_be_written_are_refused_before_the_work(place, tmp_path):
    solving = ("solve", place / "maze.store", "--discount", 0.9, "--device", "cpu")
    (tmp_path / "file").touch()
    places = ("none/r", "file/r", "r.partial", "r.previous", "r.checkpoint")
    for output in (tmp_path / place for place in places):
        said = refused(*solving, "--output", output)
        assert str(output) in said
        assert "memory plan" not in said
    assert "cannot write the trace" in refused(*solving, "--trace", tmp_path / "none" / "t.csv")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--discount", "1.5"), "below 1"),
        (("--discount", "1"), "give --total"),
        (("--total",), "without a discount the total reward"),
        (("--total", "--discount", "0.9"), "--discount and --total are given"),
        (("--total", "--device", "cuda:0"), "on the CPU only"),
        (("--discount", "nan"), "below 1"),
        (("--discount", "-0.1"), "at least 0"),
        (("--discount", "x"), "Invalid value"),
        ((), "none is given"),
        (("--discount", "0.9", "--epsilon", "0"), "epsilon must be a positive number"),
        (("--discount", "0.9", "--epsilon", "1", "--residual", "1"), "not both"),
        (("--discount", "0.9", "--cache", "many"), "no size"),
        (("--discount", "0.9", "--cache", "0%"), "above 0"),
        (("--discount", "0.9", "--cache", "1KiB"), "raise --cache to at least"),
        (("--discount", "0.9", "--device", "tpu"), "unknown device"),
        (("--discount", "0.9", "--kernel", "fast"), "unknown kernel 'fast'; there are tiles, plain"),
        (("--discount", "0.9", "--method", "q"), "Invalid value"),
        (("--discount", "0.9", "--method", "vi", "--priority", "exact-h2"), "belong to the method p-eva"),
        (("--discount", "0.9", "--time-limit", "0"), "time limit must be a positive number"),
        (("--discount", "0.9", "--checkpoint-interval", "-1"), "must not be negative"),
        (("--discount", "0.9", "--resume"), "resume needs an output (--output)"),
        (("--discount", "0.9", "--no-such"), "No such option"),
    ],
)
def test_options_out_of_range_end_with_2_and_a_remedy(place, options, said):
    assert said in refused("solve", place / "maze.store", *options)


def test_a_control_problem_is_made_on_the_grid_and_in_the_blocks_asked_for(tmp_path):
    made = ooc(
        "generate", "mountain-car", tmp_path / "s", "--grid", "24,18", "--partition-grid", "4,3", "--json"
    ).figures
    assert made["n_states"] == 24 * 18
    assert made["n_partitions"] == 12
    assert made["dtype"] == "float32"
    assert [axis["name"] for axis in made["geometry"]["axes"]] == ["position", "velocity"]
    assert made["geometry"]["shape"] == [24, 18]
    other = ("--grid", "24,18", "--partition-shape", "5,6", "--dtype", "float64", "--json")
    made = ooc("generate", "mountain-car", tmp_path / "t", *other).figures
    assert made["n_partitions"] == 15
    assert made["dtype"] == "float64"
    assert ooc("generate", "GW-8x4", tmp_path / "u", "--json").figures["dtype"] == "float64"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("GW-8x4", "--partitions", "0"), "at least 1"),
        (("GW-8x4", "--workers", "0"), "at least 1"),
        (("GW-8x4", "--partition-size", "0"), "positive"),
        (("GW-8x4", "-p", "seed"), "NAME=VALUE"),
        (("GW-8x4", "-p", "seed=1", "-p", "seed=2"), "-p seed=... is given twice; leave one out"),
        (("GW-8x4", "-p", "depth=3"), "no parameter 'depth'"),
        (("maze",), "no problem 'maze'"),
        (("GW-8x4", "--dtype", "int8"), "Invalid value"),
        (("GW-8x4", "--grid", "9,9"), "'gridworld' takes no grid; these do: mountain-car, single-pendulum"),
        (("mountain-car", "--grid", "9,9,9"), "has 3 numbers for 2 axes"),
        (("mountain-car", "--grid", "9,9", "--partition-grid", "3,10"), "cannot be cut into (3, 10) blocks"),
        (
            ("mountain-car", "--partition-grid", "3,3", "--partition-shape", "3,3"),
            "partition_shape and partition_grid contradict each other",
        ),
        (
            ("random", "--partition-grid", "3,3"),
            "random has no grid to cut into blocks; leave out --partitioner grid, --partition-grid",
        ),
    ],
)
def test_a_problem_that_cannot_be_made_leaves_nothing(tmp_path, options, said):
    assert said in refused("generate", options[0], tmp_path / "s", *options[1:])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("grid", ["4,x", "4,5", "0,16", ""])
def test_a_grid_that_does_not_fit_is_refused(place, tmp_path, grid):
    refused("convert", place / "ladder.npz", tmp_path / "s", "--grid", grid)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_extra_is_named(place, monkeypatch):
    import importlib.util

    if importlib.util.find_spec("cupy") is not None:
        pytest.skip("CuPy is installed")
    assert "ooc-mdp[cuda" in refused("solve", place / "maze.store", "--discount", 0.9, "--device", "cuda:0")


@pytest.mark.parametrize("failure", [OSError(5, "Input/output error", "disk"), MemoryError("Unable to allocate 9 TiB")])
def test_a_failing_disk_or_memory_is_a_message_and_not_a_traceback(place, monkeypatch, failure):
    def fail(*_: object, **__: object) -> None:
        raise failure

    monkeypatch.setattr("ooc_mdp.api.open_store", fail)
    said = refused("inspect", place / "maze.store")
    assert "Input/output error" in said or "9 TiB" in said
    if isinstance(failure, MemoryError):
        assert "lower --cache (solve), or --partition-size and --threads (convert, generate)" in said


def test_brackets_in_a_name_are_shown_as_they_are_on_a_terminal(tmp_path, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "400")
    store = tmp_path / "[red]a[" / "b]"
    store.parent.mkdir()
    assert ooc("generate", "GW-8x4", store).status == 0
    shown = ooc("inspect", store)
    assert shown.status == 0, shown.err
    assert "\x1b[" in shown.out
    assert str(store) in shown.out
