"""Labels and reward models of model files and arrays are in the store, under their names, with inspect listing them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from command_line import ooc
from format_checks import SIZES
from umb_files import f8, u8, umb_file, umb_index

import ooc_mdp
from ooc_mdp.io.registry import ReadOptions, open_source

DRN = (
    "@type: MDP\n@parameters\n\n@reward_models\nsteps cost\n@nr_states\n3\n@model\n"
    'state 0 [1, 2] init\n\taction 0 [0, 5]\n\t\t1 : 0.5\n\t\t2 : 0.5\nstate 1 [1, 0] goal "two words"\n'
    "\taction 0 [0, 0]\n\t\t1 : 1\nstate 2 [7, 8] goal\n"
)
TRA = "3 2 3\n0 0 2 0.25\n0 0 1 0.75\n1 0 1 1\n"


def states(store: ooc_mdp.Store, label: str) -> list[int]:
    return np.flatnonzero(store.annotations.label(label)).tolist()


def row_rewards(store: ooc_mdp.Store, name: str) -> list[float]:
    return store.annotations.rewards(name, 0, store.n_rows).tolist()


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize("options", [{}, {"partitions": 3}, {"partitions": 2, "partitioner": "metis"}])
def test_drn_labels_and_reward_models_are_kept(tmp_path: Path, options: dict):
    path = written(tmp_path / "m.drn", DRN)
    store = ooc_mdp.convert(path, tmp_path / "s", **options)
    kept = store.annotations
    assert [states(store, name) for name in ("init", "goal", "two words")] == [[0], [1, 2], [1]]
    assert (kept.table_rewards, kept.reward_models, kept.rewards_chosen) == (None, ("steps", "cost"), False)
    order = np.concatenate([store.original_states(p) for p in range(store.n_partitions)])
    by_state = np.argsort(order[order < 2])
    assert np.array(row_rewards(store, "steps"))[by_state].tolist() == [1, 1]
    assert np.array(row_rewards(store, "cost"))[by_state].tolist() == [7, 0]
    assert store.to_source(kept.terminal_rewards("cost", 0, 3)).tolist() == [0, 0, 8]
    assert kept.reward_range("cost") == (0, 8)
    assert store.check().valid


def test_the_chosen_reward_model_is_the_tables_and_the_others_are_kept(tmp_path: Path):
    store = ooc_mdp.convert(written(tmp_path / "m.drn", DRN), tmp_path / "s", reward_model="cost")
    kept = store.annotations
    assert (kept.table_rewards, kept.reward_models, kept.rewards_chosen) == ("cost", ("steps",), True)
    assert store.read(0)[0].rewards.tolist() == [7, 0]
    assert row_rewards(store, "steps") == [1, 1]


@pytest.mark.parametrize("size", SIZES)
def test_the_labels_of_every_state_are_found_in_every_segment(tmp_path: Path, size: int):
    lines = "".join(f"state {s} {'even' if s % 2 == 0 else 'odd'}\n\taction 0\n\t\t{s} : 1\n" for s in range(500))
    path = written(tmp_path / "m.drn", f"@type: MDP\n@nr_states\n501\n@model\n{lines}state 500 last\n")
    source = open_source(str(path), None, ReadOptions(segment_bytes=size))
    for read in source.blocks():
        read()
    source.check_totals()
    bits = source.annotations.labels(501)
    source.close()
    found = {name: np.flatnonzero(np.unpackbits(b, count=501, bitorder="little")).tolist() for name, b in bits.items()}
    assert found == {"even": list(range(0, 500, 2)), "last": [500], "odd": list(range(1, 500, 2))}


def test_prism_labels_and_reward_structures_are_kept(tmp_path: Path):
    path = written(tmp_path / "m.tra", TRA)
    written(tmp_path / "m.lab", '0="init" 1="deadlock" 2="all done"\n0: 0\n1: 2\n2: 2 0\n')
    written(tmp_path / "m1.srew", '# Reward structure "steps"\n3 2\n0 1\n2 4\n')
    written(tmp_path / "m2.trew", "3 2 1\n0 0 1 8\n")
    store = ooc_mdp.convert(path, tmp_path / "s")
    assert store.annotations.labels == ("all done", "deadlock", "init")
    assert [states(store, name) for name in store.annotations.labels] == [[1, 2], [], [0, 2]]
    assert row_rewards(store, "steps") == [1, 0]
    assert row_rewards(store, "2") == [6, 0]
    assert store.annotations.terminal_rewards("steps", 0, 3).tolist() == [0, 0, 4]


def test_reward_files_of_any_names_are_kept_by_the_names_that_are_given(tmp_path: Path):
    path = written(tmp_path / "m.tra", TRA)
    written(tmp_path / "m.srew", "3 1\n0 99\n")
    files = [written(tmp_path / "a=1.srew", "3 2\n0 1\n2 4\n"), written(tmp_path / "b.rewards", "3 2 1\n0 0 1 8\n"),
             written(tmp_path / "c.srew", "3 1\n1 5\n")]  # fmt: skip
    words = [f"--rewards={name}={file}" for name, file in zip(("steps", "toll", "toll"), files, strict=True)]
    ran = ooc("convert", path, tmp_path / "s", *words)
    assert ran.status == 0, ran.err
    assert "not kept in the store: other reward structures (m.srew)" in ran.err
    store = ooc_mdp.open_store(tmp_path / "s")
    assert (store.annotations.reward_models, store.annotations.rewards_chosen) == (("steps", "toll"), False)
    assert (row_rewards(store, "steps"), row_rewards(store, "toll")) == ([1, 0], [6, 5])
    named = {"steps": files[0], "toll": [str(files[1]), files[2]]}
    chosen = ooc_mdp.convert(path, tmp_path / "t", rewards=named, reward_model="toll")
    assert (chosen.annotations.table_rewards, chosen.read(0)[0].rewards.tolist()) == ("toll", [6, 5])
    alone = ooc("convert", path, tmp_path / "u", "--rewards", files[0])
    assert alone.status == 0, alone.err
    answer = ooc_mdp.solve(store, ooc_mdp.TotalReward(reward="steps", infinite=True))
    assert answer.values.tolist() == pytest.approx([2, 0, 4], abs=1e-4)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a=m.srew", "m.srew"], "--rewards 'm.srew' is one of several without a name; write --rewards NAME=FILE"),
        (["a=m.srew", "a=m.srew"], "m.srew + m.srew are more than one file of rewards of states; give each a name"),
        (["a=m.srew", "b=missing.srew"], "missing.srew"),
    ],
)
def test_reward_files_that_cannot_be_told_apart_are_refused(tmp_path: Path, words: list[str], message: str):
    path = written(tmp_path / "m.tra", TRA)
    written(tmp_path / "m.srew", "3 1\n0 99\n")
    given = [f"--rewards={text.replace('=m', f'={tmp_path}/m')}" for text in words]
    ran = ooc("convert", path, tmp_path / "s", *given)
    assert ran.status == 2
    assert message in ran.err.replace("\n", " ")
    assert not (tmp_path / "s").exists()


def test_names_of_reward_files_are_refused_where_the_format_has_its_own(tmp_path: Path):
    path = written(tmp_path / "m.drn", DRN)
    with pytest.raises(ooc_mdp.OptionsError, match=r"format drn has no reward files with names \(a\); leave them out"):
        ooc_mdp.convert(path, tmp_path / "s", rewards={"a": path})
    with pytest.raises(ooc_mdp.OptionsError, match="give a path, or a dict of paths"):
        ooc_mdp.convert(path, tmp_path / "s", rewards={"a": 3})


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ('0="a"\n0: 0\n3: 0\n', 3, None),
        ('0="a"\n7: 0\n1: 0\n', 2, "state 7 has labels"),
        ('0="a"\n1: 0 4\n', 2, 'label 4 is none of 0="a"'),
        ('0="a"\nx 1\n1: 0\n', 2, "'x 1' is no line of labels"),
    ],
)
def test_a_wrong_line_of_labels_is_refused(tmp_path: Path, text: str, line: int, message: str | None):
    path = written(tmp_path / "m.tra", TRA)
    written(tmp_path / "m.lab", text)
    with pytest.raises(ooc_mdp.InputError, match=message or "its last state is 3") as caught:
        ooc_mdp.convert(path, tmp_path / "s")
    assert message is None or caught.value.line == line


LABEL_LINE = 'a line that names the labels, such as `0="init" 1="goal"`, is expected'


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ('0="init" 2="ok" 2="bad"', "label number 2 is named twice"),
        ('0="init" 2="ok" 3="ok"', 'label "ok" is named twice'),
        ('0="init" 2="ok', "'2=\"ok' is not understood in the line that names the labels"),
        ('0="init" ok 2="good"', "'ok' is not understood"),
        ('0="init", 2="good"', "',' is not understood"),
        ("0: 0", "'0: 0' is not understood"),
        ("init ok", "'init ok' is not understood"),
        ('0="in\x1bit" 1="in\x1bit"', r'label "in\x1bit" is named twice'),
    ],
)
def test_a_malformed_line_of_label_names_is_refused(tmp_path: Path, header: str, message: str):
    path = written(tmp_path / "m.tra", TRA)
    lab = written(tmp_path / "m.lab", f"{header}\n0: 0\n1: 2\n")
    with pytest.raises(ooc_mdp.InputError, match=re.escape(message)) as caught:
        ooc_mdp.convert(path, tmp_path / "s")
    assert (caught.value.path, caught.value.line) == (str(lab), 1)


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 1, f"the file is empty; {LABEL_LINE}"),
        ("\n", 1, f"nothing but blank lines and comments; {LABEL_LINE}"),
        ("\n \n# none\n", 3, f"nothing but blank lines and comments; {LABEL_LINE}"),
    ],
)
def test_a_file_of_labels_that_is_empty_is_refused(tmp_path: Path, text: str, line: int, message: str):
    path = written(tmp_path / "m.tra", TRA)
    lab = written(tmp_path / "m.lab", text)
    with pytest.raises(ooc_mdp.InputError, match=re.escape(message)) as caught:
        ooc_mdp.convert(path, tmp_path / "s")
    assert (caught.value.path, caught.value.line) == (str(lab), line)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_labels_are_read_after_comments_and_with_any_line_ends(tmp_path: Path, end: str):
    path = written(tmp_path / "m.tra", TRA)
    names = ['0="init"', '1="deadlock"', '12="all (done) = 1"', *(f'{100 + i}="label {i}"' for i in range(2000))]
    lines = ["\ufeff# Labels", "", f"{' '.join(names)} ", "# states", "0: 0 ", "1: 12 2099", ""]
    (tmp_path / "m.lab").write_bytes(end.join(lines).encode())
    store = ooc_mdp.convert(path, tmp_path / "s")
    assert len(store.annotations.labels) == len(names)
    assert [states(store, name) for name in ("init", "deadlock", "all (done) = 1", "label 1999")] == [[0], [], [1], [1]]


def test_umb_labels_initial_states_and_reward_structures_are_kept(tmp_path: Path):
    index = umb_index()
    bit = {"type": "bool", "size": 1}
    index["annotations"]["aps"] = {"g": {"alias": "goal", "applies-to": ["states"], "type": bit}}  # type: ignore[index]
    files = {"annotations/aps/g/states/values.bin": u8(6), "annotations/rewards/r0/states/values.bin": f8(1, 10, 100)}
    store = ooc_mdp.convert(umb_file(tmp_path / "m.umb", index, files), tmp_path / "s")
    assert [states(store, name) for name in ("goal", "init")] == [[1, 2], [0]]
    assert row_rewards(store, "cost") == [1.5, 1.25, 10]
    assert row_rewards(store, "r1") == [7, 16, 32]
    assert store.annotations.terminal_rewards("cost", 0, 3).tolist() == [0, 0, 100]


def test_arrays_have_the_labels_that_are_given():
    stay = np.eye(4)[None]
    store = ooc_mdp.from_arrays(stay, np.zeros((4, 1)), labels={"goal": [1, 3], "low": np.arange(4) < 2}, initial=2)
    assert [states(store, name) for name in ("goal", "low", "init")] == [[1, 3], [0, 1], [2]]
    for labels, initial, message in (
        ({"goal": [4]}, None, r"labels\['goal'\] has state 4; the 4 states are 0..3"),
        ({"goal": [True]}, None, "a mask of shape"),
        ({"goal": [0.5]}, None, "give a list of states"),
        ({"init": [1]}, 2, "both give the initial states"),
        ({3: [1]}, None, "names that are texts"),
    ):
        with pytest.raises(ooc_mdp.InputError, match=message):
            ooc_mdp.from_arrays(stay, np.zeros((4, 1)), labels=labels, initial=initial)


def test_inspect_lists_labels_with_their_states_and_reward_models(tmp_path: Path):
    ooc_mdp.convert(written(tmp_path / "m.drn", DRN), tmp_path / "s", reward_model="cost")
    facts = json.loads(ooc("inspect", tmp_path / "s", "--json").out)
    assert facts["labels"] == {"goal": 2, "init": 1, "two words": 1}
    assert (facts["reward_models"], facts["table_rewards"]) == (["cost", "steps"], "cost")
    shown = ooc("inspect", tmp_path / "s").out
    assert "goal (2 states), init (1 state), two words (1 state)" in shown
    assert "cost (the table's), steps" in shown
