"""Names of actions of model files and arrays are in the store, and stand beside the policy in results and exports."""

from __future__ import annotations

import csv
import json
import struct
from pathlib import Path

import numpy as np
import pytest
from command_line import ooc
from format_checks import SIZES
from umb_files import u8, umb_file, umb_index

import ooc_mdp
from ooc_mdp.io import annotations
from ooc_mdp.io.registry import ReadOptions, open_source
from ooc_mdp.io.text.words import distinct_words

TRA = "3 4 5\n0 0 2 0.25 left\n0 0 1 0.75 left\n0 1 1 1 right\n1 0 1 1\n2 0 2 1 left\n"
DRN = (
    "@type: MDP\n@parameters\n\n@reward_models\n\n@nr_states\n3\n@model\nstate 0 [0] init\n\taction left [0]\n"
    "\t\t1 : 0.75\n\t\t2 : 0.25\n\taction right [2]\n\t\t1 : 1\nstate 1 [0]\n\taction __NOLABEL__ [0]\n\t\t1 : 1\n"
    "state 2 [0]\n\taction 0 [0]\n\t\t2 : 1\n"
)


def row_names(store: ooc_mdp.Store) -> list[str]:
    """The name of each row, in the store's order; empty where it has none."""
    found = store.annotations
    return [(*found.action_names, "")[k] for k in found.row_names(0, store.n_rows).tolist()]


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize("options", [{}, {"partitions": 3}, {"partitions": 2, "partitioner": "metis"}])
def test_names_of_prism_are_those_of_the_rows(tmp_path: Path, options: dict):
    store = ooc_mdp.convert(written(tmp_path / "m.tra", TRA), tmp_path / "s", **options)
    assert store.annotations.action_names == ("left", "right")
    states = [s for p in range(store.n_partitions) for s in store.original_states(p).tolist()]
    expected = {0: ["left", "right"], 1: [""], 2: ["left"]}
    assert row_names(store) == [name for s in states for name in expected[s]]
    assert store.check().valid


def test_names_of_a_dtmc_are_of_transitions_and_left_out(tmp_path: Path):
    path = written(tmp_path / "m.tra", "# Transitions (DTMC)\n2 3\n0 0 0.5 go\n0 1 0.5 stop\n1 1 1\n")
    notes: list[str] = []
    assert ooc_mdp.convert(path, tmp_path / "s", note=notes.append).annotations.action_names == ()
    assert any("names of actions (go, stop)" in note for note in notes)


@pytest.mark.parametrize("size", SIZES)
def test_names_of_every_segment_have_one_numbering(tmp_path: Path, size: int):
    lines = "".join(f"state {s}\n\taction a{s % 7}\n\t\t{s} : 1\n\taction\tb\n\t\t0 : 1\n" for s in range(300))
    path = written(tmp_path / "m.drn", f"@type: MDP\n@nr_states\n300\n@model\n{lines}")
    source = open_source(str(path), None, ReadOptions(segment_bytes=size))
    found = np.concatenate([read().action_names for read in source.blocks()])
    names = source.annotations.action_names
    source.close()
    assert [names[k] for k in found] == [name for s in range(300) for name in (f"a{s % 7}", "b")]


def test_names_of_drn_are_kept_and_numbers_are_none(tmp_path: Path):
    store = ooc_mdp.convert(written(tmp_path / "m.drn", DRN), tmp_path / "s")
    assert row_names(store) == ["left", "right", "", ""]


@pytest.mark.parametrize("mapped", [True, False])
def test_choice_actions_of_umb_are_kept(tmp_path: Path, mapped: bool):
    index = umb_index(n_choice_actions=2)
    files = {
        "actions/choices/values.bin": struct.pack("<3I", 1, 0, 1) if mapped else None,
        "actions/choices/string-mapping.bin": u8(0, 2, 8),
        "actions/choices/strings.bin": "ünull".encode()[:8] + b"ab",
    }
    store = ooc_mdp.convert(umb_file(tmp_path / "m.umb.gz", index, files), tmp_path / "s", reward_model="r1")
    assert row_names(store) == (["nullab", "ü", "nullab"] if mapped else ["ü"] * 3)


@pytest.mark.parametrize(
    ("actions", "values", "mapping", "strings", "message"),
    [
        (2, (0, 2, 1), (0, 1, 2), b"ab", "choice 1 has the action 2; index.json announces 2"),
        (2, (0, 1), (0, 1, 2), b"ab", "has 8 bytes; the counts of index.json ask for 12"),
        (2, (0, 1, 1), (0, 2, 1), b"ab", "string-mapping.bin falls from 2 to 1"),
        (2, (0, 1, 1), (1, 1, 2), b"ab", "string-mapping.bin begins with 1, not with 0"),
        (2, (0, 1, 1), (0, 1, 3), b"ab", "string-mapping.bin ends at byte 3; strings.bin has 2"),
        (1, (0, 0, 0), (0, 1), b"\xff", "string 0 is not UTF-8"),
        (1, (0, 0, 0), (0, 1), None, "strings.bin is missing"),
    ],
)
def test_wrong_choice_actions_of_umb_are_refused(
    tmp_path: Path, actions: int, values: tuple, mapping: tuple, strings: bytes | None, message: str
):
    files = {
        "actions/choices/values.bin": struct.pack(f"<{len(values)}I", *values),
        "actions/choices/string-mapping.bin": u8(*mapping),
        "actions/choices/strings.bin": strings,
    }
    path = umb_file(tmp_path / "m.umb", umb_index(n_choice_actions=actions), files)
    with pytest.raises(ooc_mdp.InputError, match=message):
        ooc_mdp.convert(path, tmp_path / "s", reward_model="r1")


def test_arrays_have_names_by_the_number_of_the_action():
    P, R = np.stack([np.eye(2), np.eye(2)[::-1], np.eye(2)]), np.array([[0.0, 1, 0], [0, 0, -np.inf]])
    store = ooc_mdp.from_arrays(P, R, action_names=["stay", "move", "wait"])
    assert row_names(store) == ["stay", "move", "wait", "stay", "move"]
    pairs = ooc_mdp.from_arrays(
        np.eye(2), np.zeros(2), s_indices=[0, 1], a_indices=[1, 0], action_names=["stay", "move"]
    )
    assert row_names(pairs) == ["move", "stay"]
    for names, message in (
        (["stay", "move"], "action_names has 2 names; P has 3 actions"),
        (["stay", "move", 3], "give a text for each action"),
        (["stay", "move", ""], "give a text for each action"),
        (["stay", "move", "stay"], "'stay' twice"),
    ):
        with pytest.raises(ooc_mdp.InputError, match=message):
            ooc_mdp.from_arrays(P, R, action_names=names)


def test_more_names_than_are_kept_are_named_as_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(annotations, "MOST_ACTION_NAMES", 1)
    notes: list[str] = []
    store = ooc_mdp.convert(written(tmp_path / "m.drn", DRN), tmp_path / "s", note=notes.append)
    assert store.annotations.action_names == ()
    assert any("names of actions (more than 65536)" in note for note in notes)


@pytest.mark.parametrize("metis", [False, True])
def test_a_result_and_its_export_name_the_actions_of_the_policy(tmp_path: Path, metis: bool):
    options = {"partitions": 2, "partitioner": "metis"} if metis else {}
    store = ooc_mdp.convert(written(tmp_path / "m.drn", DRN), tmp_path / "s", **options)
    solution = ooc_mdp.solve(store, discount=0.9, output=tmp_path / "r")
    names = ["right", "", ""]
    assert solution.action_names is not None
    assert solution.action_names.tolist() == names
    result = ooc_mdp.open_result(tmp_path / "r")
    assert result.solution.action_names.tolist() == names
    for suffix in ("csv", "npz"):
        assert ooc("export", tmp_path / "r", tmp_path / f"x.{suffix}").status == 0
    with (tmp_path / "x.csv").open() as file:
        assert [row["action_name"] for row in csv.DictReader(file)] == names
    assert np.load(tmp_path / "x.npz")["action_name"].tolist() == names
    evaluated = ooc_mdp.solve(store, discount=0.9, policy=np.zeros(3, np.int32), output=tmp_path / "e")
    assert evaluated.action_names.tolist() == ["left", "", ""]
    assert ooc_mdp.open_result(tmp_path / "e").solution.action_names.tolist() == ["left", "", ""]


def test_the_memory_plan_counts_the_names_of_the_policy(tmp_path: Path):
    P, R = np.eye(3)[None], np.ones((3, 1))
    buffers = []
    for i, names in enumerate((None, ["stay"])):
        store = ooc_mdp.from_arrays(P, R, layout="action-first", action_names=names)
        solution = ooc_mdp.solve(store, discount=0.9, output=tmp_path / f"{i}")
        buffers.append(solution.memory_plan["host"]["output buffers"])
    assert buffers[1] - buffers[0] == 4 * 3


def test_a_model_without_names_has_none_in_its_solution():
    solution = ooc_mdp.solve(np.eye(2)[None], np.ones((2, 1)), discount=0.9)
    assert solution.action_names is None


def test_inspect_lists_names_of_actions(tmp_path: Path):
    ooc_mdp.convert(written(tmp_path / "m.tra", TRA), tmp_path / "s")
    assert json.loads(ooc("inspect", tmp_path / "s", "--json").out)["action_names"] == ["left", "right"]
    shown = ooc("inspect", tmp_path / "s").out
    assert "action names" in shown
    assert "left, right" in shown


def test_words_are_distinguished_by_their_bytes():
    text = b"ab a ab abc b"
    buffer = np.frombuffer(text, np.uint8)
    spans = np.array([[0, 2], [3, 4], [-1, -1], [5, 7], [8, 11], [12, 13], [3, 4]])
    number, words = distinct_words(buffer, spans)
    assert words == ["ab", "a", "abc", "b"]
    assert number.tolist() == [0, 1, -1, 0, 2, 3, 1]
