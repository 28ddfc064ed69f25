"""The engine's benchmarks: in-memory peers agree with each other and with a solve; floors, overlaps, extrapolations.

Kernels run on the CPU by emulation; the scripts themselves run at toy size without a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import json
import sys
from dataclasses import fields
from types import ModuleType

import numpy as np
import pytest
from benchmark_scripts import figures_of
from emulated_cuda import compile_kernels
from emulated_device import EmulatedDevice, emulated_group
from hypothesis import given
from hypothesis import strategies as st
from paths import BENCHMARKS

import ooc_mdp
from ooc_mdp.backends.cuda.tiles.backend import TiledBackend
from ooc_mdp.errors import OptionsError

ENGINE = BENCHMARKS / "engine"
GRID = "20,20"
SMALL_TABLE = ("--grid", GRID, "--partition-shape", "5,5")
DEVICES = ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)]
DISCOUNT = 0.9


def benchmark(name: str) -> ModuleType:
    """A module of the folder, whose scripts import each other by name."""
    if str(ENGINE) not in sys.path:
        sys.path.append(str(ENGINE))
    return importlib.import_module(name)


def host(array) -> np.ndarray:
    """NumPy's copy of a device's array, or the array itself."""
    return np.asarray(array.get() if hasattr(array, "get") else array, np.float64)


@pytest.fixture(scope="module")
def car(tmp_path_factory):
    """The car's store, and its optimal values within 1e-6."""
    store = ooc_mdp.generate(
        "mountain-car", tmp_path_factory.mktemp("car") / "store", {"grid": GRID}, partition_shape=[5, 5], device="cpu"
    )
    solved = ooc_mdp.solve(store, DISCOUNT, method="vi", epsilon=1e-6, cache="100%", device="cpu")
    return store, solved.values


def test_planes_of_a_store_and_of_its_problem_hold_the_same_table(car):
    planes = benchmark("planes")
    store, _ = car
    by_problem = planes.planes_of_problem("mountain-car", {"grid": GRID}, DISCOUNT, "cpu")
    by_store = planes.planes_of_store(store, DISCOUNT, "cpu", 2)
    n = store.n_states
    place = np.empty(n, np.int64)  # of each state in the store's order
    order = np.concatenate([store.original_states(p) for p in range(store.n_partitions)])
    place[order] = np.arange(n)
    assert by_store.last_implied
    for name in ("weights", "rewards", "losses"):
        np.testing.assert_array_equal(getattr(by_store, name)[..., :n][..., place], getattr(by_problem, name)[..., :n])
    np.testing.assert_array_equal(order[by_store.successors[..., :n][..., place]], by_problem.successors[..., :n])
    whole = by_problem.all_weights()[..., :n].astype(np.float64)
    np.testing.assert_array_equal(whole.sum(axis=1), 1.0)


def test_ragged_tables_have_no_planes():
    planes = benchmark("planes")
    with pytest.raises(OptionsError, match="the same number of successors"):
        planes.planes_of_problem("gridworld", {"height": 6, "width": 6}, DISCOUNT, "cpu")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("name", ["jacobi", "in-place", "cusparse", "jax-gather", "jax-segment", "mdpax"])
def test_every_peer_stops_at_the_residual_within_the_error_that_is_measured(car, name, precision, device):
    needed = {"cusparse": "scipy", "mdpax": "mdpax"}.get(name, "jax" if name.startswith("jax") else "numpy")
    pytest.importorskip(needed)
    if (name, precision) == ("mdpax", "float64"):
        pytest.skip("its rows travel as float32")
    planes, solvers = benchmark("planes"), benchmark("gpu_solvers")
    _, optimum = car
    table = planes.planes_of_problem("mountain-car", {"grid": GRID}, DISCOUNT, device)
    solver = solvers.SOLVERS[name](table, precision)
    solved = solvers.drive(solver, solvers.Limits(1e-4, None))
    found = planes.residuals(table, solver.values(), piece=97)
    values = host(solver.values())
    assert solved.outcome == "residual_reached"
    assert solved.residual <= 1e-4
    assert found.plain <= 1e-4 + 1e-6
    error = np.abs(values - optimum).max()
    assert error <= found.error + 1e-6
    assert found.error > 0.1 * error
    assert solved.sweeps > 50
    if precision == "float64" and name != "mdpax":
        proved = solvers.drive(solver, solvers.Limits(None, 1e-3))
        assert proved.outcome == "epsilon"
        assert np.abs(host(solver.values()) - optimum).max() <= 1e-3 + 1e-6


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(("value", "name"), [("double", "float64"), ("float", "float32")])
def test_the_fused_kernel_backs_up_and_measures_as_the_reference_does(value, name, in_place):
    planes = benchmark("planes")
    table = planes.planes_of_problem("mountain-car", {"grid": "17,13"}, DISCOUNT, "cpu")
    n = table.n_states
    rng = np.random.default_rng(5)
    before = np.zeros(table.stride, name)
    before[:n] = rng.uniform(0, 1, n)
    source = (ENGINE / "jacobi.cu").read_text()
    kernels = [f"sweep<{value}, float, 3, 3, true, {check}>" for check in ("false", "true")]
    module = compile_kernels(source, kernels)
    q, losses = planes.backup(table, before.astype(np.float64), slice(0, n))
    for kernel, checked in zip(kernels, (False, True), strict=True):
        marks = np.zeros(3, np.uint64)
        given_values = before.copy()
        out = given_values if in_place else np.full(table.stride, np.nan, name)
        arguments = [table.successors, table.weights, table.rewards, table.losses, np.float64(0.1), given_values, out]
        arguments += [marks, np.int64(n), np.int64(table.stride)]
        module.launch(kernel, -(-n // 64), 64, arguments)
        if in_place:
            assert np.abs(out[:n] - q.max(axis=0)).max() < 1, "a mix of old and new values, each a backup of those"
            continue
        np.testing.assert_allclose(out[:n], q.max(axis=0), rtol=1e-14 if value == "double" else 1e-5)
        assert np.isnan(out[n:]).all()
        own = before[:n].astype(np.float64)
        normalised = (q - own) / losses
        kept = np.take_along_axis(normalised, q.argmax(axis=0)[None], axis=0)
        wanted = (
            [np.abs(q.max(axis=0) - own).max(), max(normalised.max(), 0), max(-kept.min(), 0)] if checked else [0] * 3
        )
        np.testing.assert_allclose(marks.view(np.float64), wanted, rtol=1e-12 if value == "double" else 1e-2)


def test_the_fused_kernel_takes_one_discount_for_all_rows_and_weights_that_say_all():
    planes = benchmark("planes")
    rng = np.random.default_rng(6)
    n, a, k = 100, 2, 3
    weights = rng.dirichlet(np.ones(k), (a, n)).transpose(0, 2, 1).copy()
    table = planes.Planes(n, 1.0, 0.8, rng.integers(0, n, (a, k, n), np.uint32), weights, rng.normal(size=(a, n)), None)
    values = rng.normal(size=n)
    q, _ = planes.backup(table, values, slice(0, n))
    out, marks, none = np.empty(n), np.zeros(3, np.uint64), np.uintp(0)
    kernel = f"sweep<double, double, {a}, {k}, false, true>"
    arguments = [table.successors, weights, table.rewards, none, np.float64(1 - 0.8), values, out, marks]
    compile_kernels((ENGINE / "jacobi.cu").read_text(), [kernel]).launch(
        kernel, 2, 64, [*arguments, np.int64(n), np.int64(n)]
    )
    np.testing.assert_allclose(out, q.max(axis=0), rtol=1e-13)
    marks = marks.view(np.float64)
    assert marks[0] == pytest.approx(np.abs(q.max(axis=0) - values).max())
    assert marks[1] == pytest.approx((q - values).max() / 0.2)


def test_sweeps_are_extrapolated_along_a_line_through_two_smaller_grids():
    peers = benchmark("gpu_peers")
    solved = {
        "solver": "jacobi",
        "values": "float64",
        "outcome": "residual_reached",
        "axes": 2,
        "seconds_a_sweep": 0.001,
    }
    ended = solved | {
        "grid": "400,400",
        "states": 160_000,
        "sweeps": 7,
        "outcome": "time_limit",
        "seconds_a_sweep": 0.5,
    }
    solves = [
        solved | {"grid": "100", "states": 10_000, "sweeps": 210},
        solved | {"grid": "200", "states": 40_000, "sweeps": 410},
        solved | {"grid": "300", "states": 90_000, "sweeps": 9, "values": "float32"},
        ended,
    ]
    peers.extrapolate(solves)
    assert ended["extrapolated"] == {"sweeps": pytest.approx(810), "seconds": pytest.approx(405)}
    assert all("extrapolated" not in s for s in solves[:3])


INTERVALS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 10)), max_size=12)


def as_spans(said: list[tuple[int, int]]) -> np.ndarray:
    return np.array([(begin, begin + length) for begin, length in said], float).reshape(-1, 2)


@given(INTERVALS, INTERVALS)
def test_cover_and_overlap_count_each_moment_once(some, others):
    timeline = benchmark("timeline")

    def moments(said):
        return {t for begin, length in said for t in range(begin, begin + length)}

    a, b = as_spans(some), as_spans(others)
    assert timeline.covered(a) == len(moments(some))
    assert timeline.overlap(a, b) == len(moments(some) & moments(others))
    union = timeline.merged(a)
    assert (union[1:, 0] > union[:-1, 1]).all()


def test_a_device_trace_becomes_lanes_on_the_hosts_clock(tmp_path):
    timeline = benchmark("timeline")

    def event(cat, name, ts, dur, **args):
        return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "args": args}

    trace = {
        "traceEvents": [
            event("gpu_memset", "Memset (Device)", 1_000_000, 10),  # the marker: ends at 500 s
            event("kernel", "sweep_tiles", 1_000_100, 100),
            event("kernel", "decode_streams", 1_000_150, 100),
            event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 1_000_120, 40, bytes=4096),
            event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 1_000_300, 40, bytes=1024),
            event("cuda_runtime", "cudaLaunchKernel", 1_000_000, 5),
            {"ph": "M", "name": "process_name"},
        ]
    }
    recorded = timeline.Timeline()
    timeline.spans_of_trace(trace, 500.0, recorded)
    assert set(recorded.lanes) == {timeline.SWEEPS, "decoding", timeline.COPIES}
    np.testing.assert_allclose(recorded.lanes[timeline.SWEEPS], [[500 + 90e-6, 500 + 190e-6]], rtol=0, atol=1e-9)
    figures = recorded.figures()
    assert figures["bytes"] == {timeline.COPIES: 5120}
    assert figures["busy_seconds"][timeline.COPIES] == pytest.approx(80e-6)
    assert figures["share_beside_sweeps"] == {
        timeline.COPIES: pytest.approx(0.5, abs=1e-3),
        "decoding": pytest.approx(0.5, abs=1e-3),
    }
    assert figures["kernels"]["sweep_tiles"]["count"] == 1
    window = recorded.window(500 + 100e-6, 500 + 200e-6)
    assert window[timeline.COPIES] == [(pytest.approx(1e-5), pytest.approx(5e-5))]

    pytest.importorskip("matplotlib")
    timeline.draw(recorded, 500.0, 500.001, tmp_path / "drawn.svg", "a title")
    text = (tmp_path / "drawn.svg").read_text()
    assert text.count("<use") + text.count("PolyCollection") > 3


def test_a_store_that_notes_its_reads_reads_the_same(car):
    common = benchmark("common")
    store, _ = car
    told = []
    watched = common.recording(store, lambda reads: told.append(len(reads.partitions)))
    table, n_bytes = watched.read(3)
    plain, n_plain = store.read(3)
    np.testing.assert_array_equal(table.successors, plain.successors)
    watched.read_frames(5, np.empty(watched.facts.frame_buffer_bytes, np.uint8))
    watched.read(3)
    assert n_bytes == n_plain
    assert watched.reads.partitions == {3, 5}
    assert told == [1, 2, 2]
    assert [(kind, p) for kind, _, p, *_ in watched.reads.spans] == [
        ("read and decode", 3), ("read", 5), ("read and decode", 3)
    ]  # fmt: skip
    assert watched.reads.spans[0][5] == store.chunk_bytes[3] == n_plain


def test_an_uncompressed_store_is_larger_and_holds_the_same_tables(car, tmp_path):
    common = benchmark("common")
    store, _ = car
    with common.uncompressed():
        how = {"partition_shape": [5, 5], "device": "cpu"}
        large = ooc_mdp.generate("mountain-car", tmp_path / "large", {"grid": GRID}, **how)
    again = ooc_mdp.generate("mountain-car", tmp_path / "again", {"grid": GRID}, **how)
    assert large.chunk_bytes.sum() > 1.2 * store.chunk_bytes.sum()
    np.testing.assert_array_equal(again.chunk_bytes, store.chunk_bytes)
    for p in range(store.n_partitions):
        for name, array in vars_of(store.read(p)[0]).items():
            np.testing.assert_array_equal(array, vars_of(large.read(p)[0])[name], name)


def vars_of(table):
    """The arrays of a table, by name."""
    return {f.name: getattr(table, f.name) for f in fields(table) if f.name not in ("index", "first_state")}


def test_probes_read_every_byte_of_a_folder(tmp_path):
    common = benchmark("common")
    sizes = (1, 4096, 9_000_001)
    for number, size in enumerate(sizes):
        (tmp_path / str(number)).write_bytes(bytes(size))
    (probe,) = common.disk_probes(tmp_path, [2], cold=False)
    assert probe["bytes"] == sum(sizes)
    assert probe["bytes_per_second"] == sum(sizes) / probe["seconds"]
    assert common.make_warm(tmp_path)["cached_share"] == 1.0


def test_the_roofline_backs_up_every_state_once_a_round_in_the_engines_layout(monkeypatch):
    roofline = benchmark("roofline")
    monkeypatch.setattr(
        roofline, "select_backend", lambda *_, **__: TiledBackend(EmulatedDevice(1 << 28), tile_states=64)
    )
    options = argparse.Namespace(discount=DISCOUNT, device="cpu", seconds=0.0, loading_threads=1)
    source = ooc_mdp.open_problem("mountain-car", {"grid": "16,16"}, partition_grid=[2, 2], device="cpu")
    found = roofline.engine_sweeps(options, source, "tiles")
    assert found["sweeps"] == 16.0, "a batch of 16 rounds, each of all states"
    # 3 actions of 3 successors (16 bits), 2 weights, reward and duration (32 bits); values in and out, policy.
    assert found["sweep_bytes"] == 256 * (3 * (6 + 8 + 4 + 4) + 17)
    assert found["slot_bytes_of_a_state"] > 66


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_gpu_peers_compares_at_the_same_residual(tmp_path, device):
    pytest.importorskip("scipy")
    arguments = ("--grids", "12;16", "--device", device, "--values", "float64", "--workers", "2")
    chosen = ("--solver", "jacobi", "--solver", "cusparse", "--solver", "ooc-mdp")
    figures = figures_of("engine/gpu_peers.py", tmp_path, *arguments, *chosen)
    assert [(s["solver"], s["grid"]) for s in figures["solves"]] == [
        (solver, grid) for grid in ("12", "16") for solver in ("jacobi", "cusparse", "ooc-mdp")
    ]
    for solve in figures["solves"]:
        assert solve["outcome"] == "residual_reached", solve
        assert solve["residual"] <= 1e-4
        assert solve["error"] > solve["residual"]
    jacobi, cusparse, _ = figures["solves"][:3]
    assert jacobi["sweeps"] == cusparse["sweeps"]


def test_a_peer_that_fails_is_a_figure_with_its_message(tmp_path):
    if importlib.util.find_spec("jax") is not None:
        pytest.skip("JAX is installed, so nothing fails")
    arguments = ("--grids", "12", "--device", "cpu", "--values", "float32", "--solver", "jax-gather")
    (solve,) = figures_of("engine/gpu_peers.py", tmp_path, *arguments)["solves"]
    assert solve["outcome"] == "failed"
    assert "No module named 'jax'" in solve["message"]


@pytest.mark.parametrize("device", [pytest.param("cpu", marks=pytest.mark.slow), DEVICES[1]])
@pytest.mark.parametrize("jacobi", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_end_to_end_measures_solves_against_the_bytes_that_were_needed(tmp_path, jacobi, device):
    arguments = (*SMALL_TABLE, "--device", device, "--probe-threads", "2", "--workers", "2")
    targets = ("--residual", "1e-4", "--epsilon", "1e-3", "--parts", "cold,warm,in-memory,verify" + ",jacobi" * jacobi)
    figures = figures_of("engine/end_to_end.py", tmp_path, *arguments, *targets, "--cache", "25%")
    solves = figures["solves"]
    assert [(s["part"], list(s["asked"])) for s in solves] == [
        (part, [kind]) for part in ("cold", "warm", "in-memory") for kind in ("residual", "epsilon")
    ]
    for solve in solves:
        assert solve["outcome"] == ("residual_reached" if "residual" in solve["asked"] else "proved")
        assert solve["needed_bytes"] <= solve["bytes_read"]
        assert solve["needed_bytes"] <= figures["store"]["stored_bytes"]
        assert solve["partitions_read"] <= 16
        assert solve["floor_seconds"] == solve["needed_bytes"] / solve["bandwidth"]
        assert solve["seconds_over_floor"] == pytest.approx(solve["solve_seconds"] / solve["floor_seconds"])
        probes = figures["bandwidths"][solve["page_cache"]]
        assert solve["bandwidth"] == max(p["bytes_per_second"] for p in probes)
    verified = [s["verified"] for s in solves if "verified" in s]
    assert len(verified) == 2, "one for each target"
    assert all(v["holds"] for v in verified)
    assert verified[1]["error"] <= 1e-3
    if jacobi:
        assert {s["grid"] for s in figures["in_memory_peers"]} == {"8,8", "20,20"}


@pytest.mark.parametrize("device", [pytest.param("cpu", marks=pytest.mark.slow), DEVICES[1]])
def test_two_versions_take_turns_and_give_the_ratio_with_its_interval(tmp_path, device):
    arguments = ("--before", ENGINE.parents[1], *SMALL_TABLE, "--device", device)
    figures = figures_of("engine/two_versions.py", tmp_path, *arguments, "--passes", "2", "--solves", "1")
    for what, pairs in (("pass", 2), ("solve", 1)):
        runs = figures[what]["runs"]
        assert [len(store) for version in ("before", "after") for store in runs[version]] == [pairs] * 4
        assert all(run["seconds"] > 0 and run["loads"] >= 1 for store in runs["after"] for run in store)
        for ratio in figures[what]["ratios"].values():
            assert ratio["low"] <= ratio["ratio"] <= ratio["high"]


@pytest.mark.slow
def test_two_versions_on_the_cpu_prove_the_same_target_in_turns(tmp_path):
    arguments = ("--before", ENGINE.parents[1], "--toy", "--cases", "gridworld-25", "--pairs", "2")
    case = figures_of("engine/cpu_versions.py", tmp_path, *arguments)["cases"]["gridworld-25"]
    for version in ("before", "after"):
        assert len(case["solves"][version]) == 2
        assert all(solve["outcome"] == "proved" and solve["cpu_seconds"] > 0 for solve in case["solves"][version])
        assert case["medians"][version]["error_bound"] <= case["epsilon"]
    assert case["ratio"]["min"] <= case["ratio"]["median"] <= case["ratio"]["max"]


def test_more_cores_are_measured_beside_what_they_can_do(tmp_path):
    arguments = ("--toy", "--cores", "1", "--cases", "car-25", "--rounds", "2")
    case = figures_of("engine/cpu_cores.py", tmp_path, *arguments)["cases"]["car-25"]
    assert case["table"]["states"] == 48 * 48
    one = case["cores"]["1"]
    assert one["gain"] == 1.0
    assert len(one["solves"]) == 2
    assert all(solve["error_bound"] <= case["epsilon"] for solve in one["solves"])
    assert all(solve["additions_per_second"] > 0 for solve in one["solves"])


@pytest.mark.parametrize("device", DEVICES)
def test_streaming_reads_every_partition_once_and_records_who_worked_when(tmp_path, device):
    pytest.importorskip("matplotlib")
    arguments = (*SMALL_TABLE, "--device", device, "--probe-threads", "2", "--workers", "2")
    plots = tmp_path.with_name(tmp_path.name + "-plots")
    plots.mkdir()
    figures = figures_of(
        "engine/streaming.py",
        tmp_path,
        *arguments,
        "--repeat",
        "2",
        "--cache",
        "25%",
        "--plot",
        str(plots / "lanes.png"),
    )
    assert [p["page_cache"] for p in figures["passes"]] == ["cold", "cold", "warm", "warm"]
    for one in figures["passes"]:
        assert one["outcome"] == "interrupted"
        assert one["partitions_read"] == one["partitions"] == 16
        assert one["stored_bytes"] == figures["store"]["stored_bytes"]
        assert one["backups_per_state"] <= 1.5
        assert one["share_of_floor"] == pytest.approx(one["floor_seconds"] / one["seconds"])
    for record in figures["timelines"].values():
        assert record["busy_seconds"]["reading 1"] > 0
        assert any(record["window"].values())
    assert sorted(file.name for file in plots.iterdir()) == ["lanes-cold.png", "lanes-warm.png"]


@pytest.mark.parametrize("device", DEVICES)
def test_roofline_prints_bandwidths_and_sweeps(tmp_path, device):
    arguments = ("--problem", "mountain-car:12,12", "--device", device, "--seconds", "0.01", "--file-size", "200000")
    more = ("--threads", "2", "--folder", str(tmp_path), "--size", str(1 << 24))
    figures = figures_of("engine/roofline.py", tmp_path, *arguments, *more)
    assert figures["copy_bytes_per_second"] > 1e5
    assert {(d["page_cache"], d["how"]) for d in figures["disk"]} >= {("cold", "buffered"), ("warm", "buffered")}
    assert [(s["kernel"], s["values"]) for s in figures["sweeps"]] == [
        ("engine", "float64"), ("in-memory Jacobi", "float64"), ("in-memory Jacobi", "float32")
    ]  # fmt: skip
    for sweep in figures["sweeps"]:
        assert sweep["share_of_copy"] == pytest.approx(sweep["floor_seconds"] / sweep["seconds"])
    assert json.dumps(figures["settings"]).count("mountain-car") == 1


@pytest.mark.slow
def test_ways_to_evaluate_a_policy_reach_one_limit_from_the_same_values(tmp_path):
    module = benchmark("policy_rows")
    output = tmp_path / "figures.json"
    cases = ("random:states=120,actions=2,successors=4:0.99", "double-pendulum:grid=4:0.9")
    arguments = [part for case in cases for part in ("--case", case)]
    arguments += ["--partitions", "4", "--repeat", "2", "--rounds", "9", "--residual", "1e-3", "--output", str(output)]
    module.main([*arguments, "--devices", "1,2"], emulated_group(2), 16)
    measured = json.loads(output.read_text())["cases"]
    assert [case["devices"] for case in measured] == [1, 2, 1, 2]
    for case in measured:
        assert case["last_residual"] <= 1e-3, "policy iteration ends"
        first = case["rounds"][0]
        for round_ in case["rounds"]:
            for figures in round_["policy_evaluations"].values():
                assert figures["residual"] <= round_["limit"]
                assert figures["seconds"] == min(figures["all_seconds"])
        assert set(first["policy_evaluations"]) == {"sweeps", "solver", "chosen"}
        assert first["changed"] == case["states"]
        if case["problem"] == "random":
            assert first["policy_evaluations"]["solver"]["backups"] < first["policy_evaluations"]["sweeps"]["backups"]


def test_events_of_several_devices_have_lanes_of_their_own():
    timeline = benchmark("timeline")
    kernel = {"ph": "X", "cat": "kernel", "name": "sweep_tiles"}
    events = [kernel | {"ts": 100 * i, "dur": 50, "args": {"device": i % 2}} for i in range(4)]
    recorded = timeline.Timeline()
    timeline.spans_of_trace({"traceEvents": events}, 1.0, recorded)
    assert {name: len(spans) for name, spans in recorded.lanes.items()} == {"sweeps 1": 2, "sweeps 0": 1}


def test_what_a_solve_waits_for_adds_up(tmp_path, monkeypatch):
    module, timeline = benchmark("solve_timeline"), benchmark("timeline")
    store = ooc_mdp.generate("mountain-car", tmp_path / "s", {"grid": GRID}, partition_grid=[4, 4], dtype="float32")
    monkeypatch.setattr("ooc_mdp.solver.local.select_backend", lambda *_: TiledBackend(EmulatedDevice(), 32))

    @contextlib.contextmanager
    def no_device(_):
        yield (found := timeline.Timeline())
        found.lanes[timeline.SWEEPS] = np.array([[0.0, 1e-9]])

    monkeypatch.setattr(module, "recorded", no_device)
    options = module.parse(["--grid", GRID])
    found = module.record(
        options, store, "cuda:0", {"discount": 0.5, "epsilon": 1e-3, "device": "cuda:0", "cache": "60%"}
    )
    assert found["outcome"] == "proved"
    assert sum(tenth["batches"] for tenth in found["batches"]) > 0
    waits = found["waits"][timeline.SWEEPS]
    assert waits["idle"] == pytest.approx(found["seconds_recorded"], abs=1e-3), "no sweep was recorded"
    steps = [seconds for name, seconds in waits.items() if name.startswith("idle in host")]
    assert 0 < sum(steps) <= waits["idle"] + 1e-3
    assert ooc_mdp.solver.state.SolveState.record.__qualname__ == "SolveState.record", "nothing stays observed"


def test_a_timeline_is_asked_for_with_one_cache_or_one_for_each_device():
    module = benchmark("solve_timeline")
    options = module.parse(["--device", "cuda:0", "--device", "cuda:0,1", "--cache", "20%", "--cache", "10%"])
    assert (options.cache, options.residual) == (["20%", "10%"], 1e-4)
    assert module.parse(["--epsilon", "1e-3"]).residual is None
    with pytest.raises(SystemExit):
        module.parse(["--device", "cuda:0", "--cache", "20%", "--cache", "10%"])


@pytest.mark.parametrize("count", [1, 3])
def test_links_of_a_group_are_measured_between_all_of_its_devices(tmp_path, count, monkeypatch):
    module = benchmark("group_links")
    monkeypatch.setattr(module, "ROUNDS", 3)
    output = tmp_path / "figures.json"
    module.main(["--mebibytes", "0", "--repeat", "1", "--output", str(output)], emulated_group(count))
    figures = json.loads(output.read_text())
    assert figures["devices"] == count
    assert {(read["part"], read["readers"]) for read in figures["reads"]} == (
        {("own", 1)} if count == 1 else {(part, n) for part in ("own", "neighbour") for n in (1, 3)}
    )
    assert figures["meetings"]["recorded_microseconds"] > 0


@pytest.mark.slow
def test_scaling_compares_workers_with_one_and_with_none(tmp_path):
    arguments = ("--device", "cpu", "--toy", "--cases", "single", "--placements", "blocks,random", "--counts", "1,2")
    figures = figures_of("engine/scaling.py", tmp_path, *arguments)
    solves = {(s["part"], s["count"], s["placement"]): s for s in figures["solves"]}
    assert list(solves) == [
        ("plain", 0, None), ("strong", 1, None), ("strong", 2, "blocks"), ("strong", 2, "random"), ("weak", 2, "blocks")
    ]  # fmt: skip
    for (_, count, _), solve in solves.items():
        assert solve["outcome"] == "residual_reached"
        assert solve["agrees"]
        assert len(solve["each_worker"]) == count
        assert (solve["messages"] > 0) == (count > 1)
    plain, one, blocks = list(solves.values())[:3]
    ratio = figures["ratios"][0]
    assert ratio["placement"] == "blocks"
    assert ratio["speed_up_over_plain"] == plain["call_seconds"] / blocks["call_seconds"]
    assert ratio["efficiency_over_one"] == one["call_seconds"] / blocks["call_seconds"] / 2
    assert figures["left_out"] == []
    strong, weak = figures["stores"].values()
    assert 1.8 < weak["states"] / strong["states"] < 2.2


def test_scaling_names_what_it_has_no_time_for(tmp_path):
    figures = figures_of("engine/scaling.py", tmp_path, "--device", "cpu", "--toy", "--cases", "car", "--within", "0")
    assert figures["solves"] == []
    assert figures["left_out"] == ["car, all of it: --within 0 s were over"]


def test_scaling_asks_for_a_proved_error_of_an_uncompressed_store(tmp_path):
    arguments = ("--device", "cpu", "--toy", "--cases", "car", "--counts", "1", "--parts", "strong")
    asked = ("--epsilon", "0.5", "--uncompressed")
    figures = figures_of("engine/scaling.py", tmp_path, *arguments, *asked)
    assert [s["count"] for s in figures["solves"]] == [0, 1]
    assert all(s["error_bound"] <= 0.5 and s["agrees"] for s in figures["solves"])
    (store,) = figures["stores"].values()
    assert store["stored_bytes"] > store["decoded_bytes"] / 2


def test_average_rewards_are_bounded_and_verified_from_a_small_cache(tmp_path):
    sizes = ("--states", "216", "--partitions", "8", "--cache", "30%")
    models = figures_of("engine/average_reward.py", tmp_path, *sizes)["models"]
    assert {name: found["states"] for name, found in models.items()} == {
        "random": 216,
        "queueing": 216,
        "inventory": 81,
    }
    for found in models.values():
        assert found["outcome"] == "proved"
        assert found["verified"]
        assert found["width_of_reward_range"] <= 1.0001e-4
        assert found["cache_bytes"] < found["table_bytes"]
        assert found["loads_per_partition"] >= 1
