"""The trace of a solve: its lines agree with what the solve counted."""

from __future__ import annotations

import csv
import hashlib
import itertools
import math
from pathlib import Path
from typing import Any

import pytest
from small_mdps import Case, make_store
from store_models import random_model

import ooc_mdp
from ooc_mdp.errors import OptionsError, StoreError
from ooc_mdp.model.criterion import Criterion
from ooc_mdp.store.trace import TRACE_TITLE, TRACE_VERSION, Trace


def read(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    whole = path.read_text().splitlines()
    assert whole[-1] == f"# sha256: {hashlib.sha256(path.read_bytes()[:-75]).hexdigest()}"
    lines = [line for line in whole[:-1] if not line.startswith("# remark ")]
    facts = [line for line in lines if line.startswith("#")]
    return facts, list(csv.DictReader(lines[len(facts) :]))


@pytest.mark.parametrize("exact", [False, True])
def test_a_trace_has_a_line_an_access_that_adds_up_to_the_statistics(tmp_path: Path, exact: bool) -> None:
    store = make_store(Case(random_model(0, 40), partitions=8), tmp_path / "s")
    options: dict[str, Any] = {
        "priority": "exact-h2" if exact else "joint",
        "cache": "40%",
        "device": "cpu",
        "epsilon": 1e-6,
    }
    solution = ooc_mdp.solve(store, 0.9, trace=tmp_path / "t.csv", **options)
    facts, accesses = read(tmp_path / "t.csv")
    s = solution.statistics
    assert facts[0] == "# ooc-mdp trace 3"
    assert f"# fingerprint: {store.fingerprint}" in facts
    assert "# discount: 0.9" in facts
    assert [int(a["access"]) for a in accesses] == list(range(len(accesses)))
    frontier = [a for a in accesses if a["kind"] == "frontier"]
    auxiliary = [a for a in accesses if a["kind"] == "auxiliary"]
    assert (len(frontier), sum(int(a["hit"]) for a in frontier)) == (s.accesses, s.hits)
    assert (len(auxiliary), sum(int(a["hit"]) for a in auxiliary)) == (s.auxiliary_accesses, s.auxiliary_hits)
    assert bool(auxiliary) == exact
    assert sum(int(a["sweeps"]) for a in frontier) == s.sweeps
    assert all(int(a["sweeps"]) == 0 for a in auxiliary)
    assert {int(a["partition"]) for a in accesses} <= set(range(8))
    seconds = [float(a["seconds"]) for a in accesses]
    assert seconds == sorted(seconds)
    for p in range(8):
        mine = [a for a in accesses if int(a["partition"]) == p]
        swept = [int(a["kind"] == "frontier") for a in mine]
        assert [int(a["visit"]) for a in mine] == list(itertools.accumulate(swept))


@pytest.mark.parametrize("priority", ["exact-h1", "exact-h2"])
def test_the_recorded_priorities_are_those_that_the_scheduler_went_by(tmp_path: Path, priority: Any) -> None:
    store = make_store(Case(random_model(3, 60), partitions=12), tmp_path / "s")
    ooc_mdp.solve(
        store, 0.9, trace=tmp_path / "t.csv", priority=priority, cache="40%", device="cpu",
        epsilon=1e-2,
    )  # fmt: skip
    _, accesses = read(tmp_path / "t.csv")
    known: dict[int, float] = {}
    chosen = 0
    for access in accesses:
        partition = int(access["partition"])
        if access["kind"] == "frontier":
            assert len(known) == 12  # every priority was computed first
            assert known[partition] == max(known.values()) > -math.inf
            chosen += 1
        known[partition] = float(access["priority"])
    assert chosen > 12
    assert set(known.values()) == {-math.inf}  # nothing is dirty when the target is reached


def test_a_trace_of_a_solve_that_an_error_ended_is_not_sealed(tmp_path: Path) -> None:
    trace = Trace(tmp_path / "t.csv", {"partitions": 1})
    trace.access(0, False, True, 1, 0.5, 0.5)
    trace.__exit__(KeyError, KeyError(), None)
    lines = (tmp_path / "t.csv").read_text().splitlines()
    assert lines[-1].startswith("0,0,frontier,1,1,1,0.5,0.5,")


def test_a_trace_that_cannot_be_begun_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionsError, match=r"cannot write the trace .*: No such file"):
        Trace(tmp_path / "nowhere" / "t.csv", {})


@pytest.mark.parametrize("criterion", [0.9, ooc_mdp.TotalReward()])
def test_what_is_there_is_replaced_only_if_the_user_says_so(tmp_path: Path, criterion: Criterion | float) -> None:
    (tmp_path / "m.txt").write_text("S:0:0:1\nA:0:1\nD:1:1.0:1\nS:1:0:0\n")
    store, trace = ooc_mdp.convert(tmp_path / "m.txt", tmp_path / "s"), tmp_path / "t.csv"
    old = f"{TRACE_TITLE} 1\n"
    trace.write_text(old)
    with pytest.raises(
        StoreError, match=r"the trace .*t\.csv exists; name another file, or replace it with --overwrite"
    ):
        ooc_mdp.solve(store, criterion, device="cpu", trace=trace, output=tmp_path / "r", resume=True)
    assert trace.read_text() == old
    ooc_mdp.solve(store, criterion, device="cpu", trace=trace, overwrite=True)
    assert trace.read_text().startswith(f"{TRACE_TITLE} {TRACE_VERSION}\n")


def test_what_is_no_trace_is_never_replaced_by_one(tmp_path: Path) -> None:
    store, other = make_store(Case(random_model(2, 12)), tmp_path / "s"), tmp_path / "thesis.csv"
    other.write_text("years of work\n")
    with pytest.raises(StoreError, match="is no trace, and is not replaced by one"):
        ooc_mdp.solve(store, 0.9, device="cpu", trace=other, overwrite=True)
    assert other.read_text() == "years of work\n"


def test_a_place_that_is_no_traces_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "m.txt").write_text("S:0:0:1\nA:0:1\nD:1:1.0:1\nS:1:0:0\n")
    store, output = ooc_mdp.convert(tmp_path / "m.txt", tmp_path / "s"), tmp_path / "r"
    for place, said in (
        (tmp_path / "s" / "zarr.json", "would lie inside .*s, a Zarr group or store"),
        (tmp_path, "it is a directory; name a file in it"),
        (output, "would take the place of the result or its checkpoint"),
        (tmp_path / "r.checkpoint", "would take the place of the result or its checkpoint"),
        (tmp_path / "r.stages", "would take the place of the result or its checkpoint"),
    ):
        with pytest.raises((OptionsError, StoreError), match=said):
            ooc_mdp.solve(store, 0.9, device="cpu", trace=place, output=output, overwrite=True)
    assert not output.exists()
    assert ooc_mdp.open_store(tmp_path / "s").n_states == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("lines", [1, 100_000])
def test_a_full_disk_is_named_in_the_end(lines: int) -> None:
    trace = Trace(Path("/dev/full"), {})
    for _ in range(lines):
        trace.access(0, False, True, 1, 0.5, 0.5)
    with pytest.raises(StoreError, match="the trace /dev/full is cut off: No space left on device; make room"):
        trace.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("criterion", [0.9, ooc_mdp.TotalReward()])
def test_a_solve_whose_trace_finds_no_room_keeps_what_it_solved(tmp_path: Path, criterion: Criterion | float) -> None:
    (tmp_path / "m.txt").write_text("S:0:0:1\nA:0:1\nD:1:1.0:1\nS:1:0:0\n")
    store = ooc_mdp.convert(tmp_path / "m.txt", tmp_path / "s")
    with pytest.raises(StoreError, match="the trace /dev/full is cut off"):
        ooc_mdp.solve(store, criterion, device="cpu", output=tmp_path / "r", trace="/dev/full")
    assert ooc_mdp.verify(store, tmp_path / "r").holds
