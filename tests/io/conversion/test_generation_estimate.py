"""What generating takes is estimated from a sample, and what cannot fit is refused before the work."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from command_line import ooc, refused

import ooc_mdp
from ooc_mdp.errors import OptionsError
from ooc_mdp.io.conversion import generation_estimate
from ooc_mdp.io.conversion.generation_estimate import (
    GenerationEstimate,
    Room,
    check_generation,
    estimate_generation,
)
from ooc_mdp.problems.registry import make_problem
from ooc_mdp.table_options import ConvertOptions

GIB = 1 << 30
LARGE = Room(1 << 62, 1 << 62)
UNKNOWN = Room(None, None)

ESTIMATE = GenerationEstimate(
    states=GIB,
    rows=3 * GIB,
    transitions=9 * GIB,
    partitions=100,
    disk=50 * GIB,
    buffers={"boundary": GIB},
    seconds=60.0,
    parallel=2,
)


@pytest.mark.parametrize(
    ("estimate", "room", "said"),
    [
        (
            {"buffers": {"boundary": 3 * GIB}},
            Room(100 * GIB, 2 * GIB),
            "needs 3.0 GiB of memory, 2.0 GiB are free: give a coarser grid",
        ),
        ({}, Room(40 * GIB, 100 * GIB), "needs about 50.0 GiB of disk, 40.0 GiB are free: .*--virtual"),
    ],
)
@pytest.mark.parametrize("confirmed", [False, True])
def test_what_cannot_fit_is_refused_even_if_it_is_confirmed(estimate, room, said, confirmed):
    with pytest.raises(OptionsError, match=said):
        check_generation(dataclasses.replace(ESTIMATE, **estimate), room, confirmed)


@pytest.mark.parametrize(
    ("estimate", "room", "said"),
    [
        ({"seconds": 3601.0}, LARGE, "takes about 60.0 minutes; confirm with --yes"),
        ({"seconds": 9.1 * 3600}, LARGE, r"takes about 9.1 hours; confirm with --yes \(in Python allow_large=True\)"),
        ({}, Room(60 * GIB, 100 * GIB), "fills 83% of the free disk; confirm with --yes"),
        ({}, Room(100 * GIB, 8 * GIB), "more states than a solve could hold in the 8.0 GiB"),
    ],
)
def test_what_is_large_is_refused_unless_it_is_confirmed(estimate, room, said):
    large = dataclasses.replace(ESTIMATE, **estimate)
    with pytest.raises(OptionsError, match=said):
        check_generation(large, room, confirmed=False)
    check_generation(large, room, confirmed=True)


@pytest.mark.parametrize("room", [LARGE, UNKNOWN, Room(63 * GIB, 12 * GIB)])
def test_what_is_neither_is_accepted(room):
    check_generation(ESTIMATE, room, confirmed=False)


def test_the_sentence_has_all_numbers():
    said = ESTIMATE.sentence(Room(100 * GIB, 8 * GIB))
    for part in (
        "1,073,741,824 states",
        "3,221,225,472 rows",
        "in 100 partitions",
        "50.0 GiB on disk (100.0 GiB free)",
        "1.0 GiB of memory (8.0 GiB free)",
        "60.0 seconds on 2 threads",
        "12.0 GiB to 24.0 GiB besides its cache",
    ):
        assert part in said
    assert "free" not in ESTIMATE.sentence(UNKNOWN)


@pytest.mark.parametrize(
    ("name", "parameters", "options"),
    [
        ("mountain-car", {"grid": "200,150"}, {"dtype": "float32"}),
        ("double-pendulum", {"grid": "13"}, {"dtype": "float64", "partitions": 30}),
        ("GW-120x4", {"seed": 3}, {}),
        ("random", {"states": 20_000, "seed": 2}, {"partitions": 4}),
        ("mountain-car", {"grid": "7,5"}, {"partitions": 1}),
    ],
)
def test_the_estimate_is_near_to_what_is_written(name, parameters, options, tmp_path):
    problem = make_problem(name, parameters)
    estimate = estimate_generation(problem, ConvertOptions(**options), UNKNOWN)
    store = ooc_mdp.generate(name, tmp_path / "s", parameters, device="cpu", **options)
    written = sum(file.stat().st_size for file in (tmp_path / "s").rglob("*") if file.is_file())
    files = sum(1 for file in (tmp_path / "s").rglob("*/c*.*.*"))
    assert estimate.partitions == store.n_partitions
    assert estimate.states == store.n_states
    assert estimate.rows == pytest.approx(store.n_rows, rel=0.02)
    assert estimate.transitions == pytest.approx(store.n_transitions, rel=0.02)
    assert 0.6 * written < estimate.disk < 1.6 * written + 4096 * files


def test_a_virtual_store_has_no_tables_on_disk():
    problem = make_problem("mountain-car", {"grid": "40"})
    assert estimate_generation(problem, ConvertOptions(), UNKNOWN, virtual=True).disk == 0


@pytest.mark.parametrize(
    ("name", "parameters", "options"),
    [
        ("mountain-car", {"grid": "1000000,1000000"}, {}),
        ("mountain-car", {"grid": "1000000,1000000"}, {"partition_shape": (1, 1)}),
        ("mountain-car", {"grid": "1000000,1000000"}, {"partitions": 2}),
        ("mountain-car", {"grid": "1000000,1000000"}, {"partition_grid": (1000000, 1000000)}),
        ("random", {"states": 10**12}, {}),
        ("random", {"states": 10**12}, {"partitioner": "metis"}),
        ("GW-1000000x4", {}, {}),
    ],
)
@pytest.mark.parametrize("virtual", [False, True])
def test_more_states_than_memory_has_bits_for_are_refused_without_asking_for_it(name, parameters, options, virtual):
    room = Room(1 << 62, 16 * GIB)
    estimate = estimate_generation(make_problem(name, parameters), ConvertOptions(**options), room, virtual=virtual)
    assert estimate.states == 10**12
    assert estimate.memory > 116 * GIB
    assert estimate.seconds > 0.0
    with pytest.raises(OptionsError, match=r"of memory, 16.0 GiB are free.*1,000,000,000,000 states"):
        check_generation(estimate, room, confirmed=True)


@pytest.fixture
def little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation_estimate.Room, "at", classmethod(lambda cls, path: cls(1000, 16 * GIB)))


@pytest.mark.usefixtures("little_room")
def test_the_command_refuses_before_anything_is_written(tmp_path):
    message = refused("generate", "mountain-car", tmp_path / "s", "--grid", 20, "--device", "cpu", "--yes")
    assert "of disk, 1000 B are free" in message
    assert "estimate: 400 states, 1,200 rows" in message
    assert list(tmp_path.iterdir()) == []
    assert ooc("generate", "mountain-car", tmp_path / "v", "--grid", 20, "--device", "cpu", "--virtual").status == 0


def test_the_command_prints_the_estimate_and_asks_for_yes(tmp_path, monkeypatch):
    monkeypatch.setattr("ooc_mdp.runtime.room._LONG_SECONDS", 0.0)
    command = ("generate", "GW-12x4", tmp_path / "s")
    assert "confirm with --yes" in refused(*command)
    ran = ooc(*command, "--yes", "--json")
    assert ran.status == 0
    assert ran.err.splitlines()[0].startswith("estimate: 144 states, 576 rows and 2,288 transitions in ")
    with pytest.raises(OptionsError, match="allow_large=True"):
        ooc_mdp.generate("GW-12x4", tmp_path / "t")
    with pytest.raises(OptionsError, match="allow_large=True"):
        ooc_mdp.open_problem("GW-12x4")
    assert ooc_mdp.open_problem("GW-12x4", allow_large=True).n_states == 144


def test_room_is_that_of_the_folder_in_which_the_store_will_be(tmp_path):
    room = Room.at(tmp_path / "not" / "there")
    assert room.disk is not None
    assert room.disk > 0
    assert Room.at(Path("s")).disk is not None


def test_a_sample_does_not_depend_on_how_large_partitions_are():
    problem = make_problem("mountain-car", {"grid": "300,300"})
    few, many = (estimate_generation(problem, ConvertOptions(dtype="float32", partitions=n), UNKNOWN) for n in (1, 100))
    assert few.transitions == many.transitions == 300 * 300 * 9
    assert np.isfinite(few.seconds)
