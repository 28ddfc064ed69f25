"""What a conversion takes is estimated from the first blocks of its file, and what cannot fit is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from command_line import ooc, refused

import ooc_mdp
from ooc_mdp import tables
from ooc_mdp.errors import OptionsError
from ooc_mdp.io.conversion import conversion_estimate
from ooc_mdp.io.conversion.conversion_estimate import ConversionEstimate, check_fits
from ooc_mdp.planning import plan_conversion
from ooc_mdp.runtime.room import Room

ESTIMATE = ConversionEstimate(1000, 10, 20, 30, 400, 600, 60.0, 2, False)


def write_chain(n: int, path: Path) -> Path:
    """A chain of n states with two actions, as PRISM writes it, with a reward for the last state."""
    lines = [f"{s} {a} {min(s + 1 - a, n - 1)} 1" for s in range(n) for a in (0, 1)]
    path.write_text(f"{n} {2 * n} {2 * n}\n" + "\n".join(lines) + "\n")
    path.with_suffix(".srew").write_text(f"{n} 1\n{n - 1} 1\n")
    return path


def test_the_first_blocks_tell_how_large_the_whole_is(tmp_path, monkeypatch):
    model = write_chain(4000, tmp_path / "chain.tra")
    monkeypatch.setattr(conversion_estimate, "SAMPLE_SEGMENT", 2000)
    estimate, _ = plan_conversion(model, tmp_path / "s", rewards=model.with_suffix(".srew"))
    store = ooc_mdp.convert(model, tmp_path / "s", rewards=model.with_suffix(".srew"))
    assert not estimate.whole
    assert estimate.states == 4000
    assert estimate.transitions == pytest.approx(store.n_transitions, rel=0.01)
    assert estimate.spool == pytest.approx(16 * 16000, rel=0.01)
    assert estimate.store == pytest.approx(store.facts.partition_bytes.sum(), rel=0.3)


def test_a_small_file_is_read_whole(tmp_path):
    np.savez(tmp_path / "m.npz", P=np.full((2, 3, 3), 1 / 3), R=np.zeros((3, 2)))
    estimate, _ = plan_conversion(tmp_path / "m.npz", tmp_path / "s")
    assert estimate.whole
    assert (estimate.states, estimate.rows, estimate.transitions) == (3, 6, 18)
    assert list(tmp_path.iterdir()) == [tmp_path / "m.npz"]


@pytest.mark.parametrize("confirmed", [False, True])
def test_rows_that_the_disk_has_no_room_for_are_refused_even_if_confirmed(confirmed):
    with pytest.raises(OptionsError, match="needs about 400 B of disk on its way, and 300 B are free"):
        check_fits(ESTIMATE, Room(300, None), confirmed)


def test_what_is_large_is_refused_unless_it_is_confirmed():
    for large, room, said in (
        (dataclasses.replace(ESTIMATE, seconds=9.1 * 3600), Room(None, None), "takes about 9.1 hours"),
        (ESTIMATE, Room(1100, None), "fills 91% of the free disk"),
    ):
        with pytest.raises(OptionsError, match=rf"{said}; confirm with --yes .*estimate: 10 states, 20 rows"):
            check_fits(large, room, confirmed=False)
        check_fits(large, room, confirmed=True)
    check_fits(ESTIMATE, Room(10_000, None), confirmed=False)


def test_the_command_plans_and_asks_for_yes(tmp_path, monkeypatch):
    model = write_chain(40, tmp_path / "chain.tra")
    command = ("convert", model, tmp_path / "s", "--rewards", model.with_suffix(".srew"))
    planned = ooc(*command, "--plan")
    assert planned.status == 0, planned.err
    assert "40 states, 80 state-action pairs, 80 transitions" in planned.out
    assert not (tmp_path / "s").exists()
    monkeypatch.setattr("ooc_mdp.runtime.room._LONG_SECONDS", 0.0)
    assert ooc(*command, "--plan", "--json").figures["refusal"].startswith("converting this model takes about ")
    monkeypatch.setattr(tables, "_ESTIMATED_FROM", 0)
    assert "confirm with --yes" in refused(*command)
    assert ooc(*command, "--yes").status == 0
