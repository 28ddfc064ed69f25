"""What a model file has and a store does not keep is named in one sentence, whatever the format."""

from __future__ import annotations

import gzip
from contextlib import closing
from pathlib import Path

import pytest
from command_line import ooc
from format_checks import SIZES, rows_of
from reader_seeds import SEEDS
from umb_files import umb_file, umb_index

import ooc_mdp
from ooc_mdp.io.left_out import LABELS, LeftOut
from ooc_mdp.io.registry import FORMAT_NAMES, ReadOptions, open_source

TRA = "2 3 4\n0 0 0 0.5\n0 0 1 0.5{}\n0 1 1 1\n1 0 1 1\n"
DRN = (
    "@type: MDP\n@parameters\n\n@reward_models\n{models}\n@nr_states\n2\n@model\nstate 0{labels}\n\taction {name}\n"
    "\t\t1 : 1\nstate 1\n\taction 0\n\t\t1 : 1\n"
)


def sentence_of(source: Path | str, segment_bytes: int = 16 << 20, **options: object) -> str | None:
    with closing(open_source(str(source), None, ReadOptions(segment_bytes=segment_bytes, **options))) as opened:  # type: ignore[arg-type]
        rows_of(opened)
        said = opened.left_out.sentence("m")
    return None if said is None else said.removeprefix("not kept in the store: ").removesuffix(" of m")


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        ({}, None),
        ({"labels": " [] init"}, "refused"),
        ({"labels": " init"}, None),
        ({"labels": " [1] goal", "models": "steps"}, None),
        ({"labels": " [1, 2]", "models": "steps cost"}, None),
        ({"name": "go"}, None),
        ({"name": "__NOLABEL__"}, None),
        ({"name": "go", "labels": " a", "models": "steps cost"}, None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", SIZES)
def test_of_drn_nothing_is_left_out(tmp_path: Path, changes: dict[str, str], left: str | None, size: int):
    path = written(tmp_path / "m.drn", DRN.format(**({"labels": "", "name": "0", "models": ""} | changes)))
    model = {"reward_model": "steps"} if "cost" in changes.get("models", "") else {}
    if left == "refused":
        with pytest.raises(ooc_mdp.InputError):
            sentence_of(path, size, **model)
    else:
        assert sentence_of(path, size, **model) == left


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("size", SIZES)
def test_prism_names_of_actions_and_companion_files(tmp_path: Path, suffix: str, size: int):
    def write(name: str, text: str) -> Path:
        path = tmp_path / (name + suffix)
        path.write_bytes(gzip.compress(text.encode()) if suffix else text.encode())
        return path

    plain = write("m.tra", TRA.format(""))
    assert sentence_of(plain, size) is None
    write("m.lab", '0="init" 1="deadlock" 2="all done"\n0: 0\n1: 1 2\n')
    assert sentence_of(plain, size) is None
    write("m.sta", "(x,y)\n0:(0,1)\n1:(1,1)\n")
    assert sentence_of(plain, size) is None
    assert sentence_of(write("n.tra", TRA.format(" go")), size) is None
    dtmc = write("d.tra", "# Transitions (DTMC)\n1 1\n0 0 1 go\n")
    assert sentence_of(dtmc, size) == "names of actions (go)"


def test_prism_reward_files_beside_a_named_one(tmp_path: Path):
    path = written(tmp_path / "m.tra", TRA.format(""))
    written(tmp_path / "m1.srew", '# Reward structure "steps"\n2 1\n0 1\n')
    written(tmp_path / "m2.srew", "2 1\n0 1\n")
    other = written(tmp_path / "other.srew", "2 1\n0 1\n")
    assert sentence_of(path, reward_model="steps") is None
    assert sentence_of(path, rewards=tmp_path / "m1.srew") == "other reward structures (m2.srew)"
    assert sentence_of(path, rewards=other) == "other reward structures (m1.srew, m2.srew)"


@pytest.mark.parametrize(
    ("member", "announced", "left"),
    [
        ("annotations/aps/g/choices/values.bin", {"aps": {"g": {"alias": "goal"}}}, "labels (goal)"),
        (None, {"aps": {"goal": {}, "init": {"alias": 3}}}, "labels (goal, init)"),
        ("annotations/colours/red/states/values.bin", {"colours": {"red": {}}}, "annotations colours (red)"),
        ("valuations/states/valuations.bin", {}, "valuations"),
        ("actions/choices/values.bin", {}, "names of actions"),
        ("actions/branches/strings.bin", {}, "names of actions"),
    ],
)  # fmt: skip
def test_umb_annotations_valuations_and_names(tmp_path: Path, member: str | None, announced: dict, left: str):
    index = umb_index()
    index["annotations"] |= announced  # type: ignore[operator]
    path = umb_file(tmp_path / "m.umb", index, {member: bytes(8)} if member else {})
    assert sentence_of(path, reward_model="r1") == left


def test_umb_without_annotations_leaves_nothing_out(tmp_path: Path):
    rewards = {"r": {"applies-to": ["branches"], "type": {"type": "double"}}}
    names = ("annotations/rewards/r0/states/values.bin", "annotations/rewards/r0/choices/values.bin",
             "annotations/rewards/r1/branches/values.bin", "state-is-initial.bin")  # fmt: skip
    path = umb_file(tmp_path / "m.umb", umb_index(rewards=rewards), dict.fromkeys(names))
    assert sentence_of(path) is None


def test_xml_names_of_actions(tmp_path: Path):
    states = '<States><State id="0"/></States></MDP>'
    named = written(tmp_path / "m.xml", f'<MDP><Actions><Action id="0" name="go"/></Actions>{states}')
    assert sentence_of(named) == "names of actions (go)"
    plain = written(tmp_path / "n.xml", f'<MDP><Actions><Action id="0"/></Actions>{states}')
    assert sentence_of(plain) is None


def test_gymnasium_leaves_out_no_initial_state():
    pytest.importorskip("gymnasium")
    assert sentence_of("gymnasium:FrozenLake-v1") is None
    assert sentence_of("gymnasium:CliffWalking-v1") is None


@pytest.mark.parametrize("format", [name for name in FORMAT_NAMES if name != "gymnasium"])
def test_every_reader_says_what_it_leaves_out(tmp_path: Path, format: str):
    for seed in SEEDS.values():
        if seed.format == format:
            for name, contents in seed.pack(seed.parts).items():
                (tmp_path / name).write_bytes(contents)
            rewards = tmp_path / "rewards" if "rewards" in seed.parts else None
            options = ReadOptions(rewards=rewards, reward_model=seed.reward_model)
            with closing(open_source(str(tmp_path / seed.main), format, options)) as opened:
                rows_of(opened)
                assert isinstance(opened.left_out, LeftOut)
            break


def test_the_command_prints_one_line_on_stderr_and_the_store_is_whole(tmp_path: Path):
    path = written(tmp_path / "m.tra", "# Transitions (DTMC)\n1 1\n0 0 1 go\n")
    ran = ooc("convert", path, tmp_path / "s", "--json")
    assert ran.status == 0
    lines = [line for line in ran.err.splitlines() if "not kept" in line]
    assert lines == [f"not kept in the store: names of actions (go) of {path}"]
    assert "not kept" not in ran.out
    notes: list[str] = []
    ooc_mdp.convert(path, tmp_path / "t", note=notes.append)
    assert lines[0] in notes


def test_a_model_without_annotations_is_converted_without_a_word(tmp_path: Path):
    path = written(tmp_path / "m.tra", TRA.format(""))
    assert "not kept" not in ooc("convert", path, tmp_path / "s").err


def test_the_sentence_is_short_and_has_no_control_characters():
    left = LeftOut()
    left.add(LABELS, (f"\x1b[31m{n:05}" + "x" * 1000 for n in range(10**4)))
    said = left.sentence("p" * 5000)
    assert said is not None
    assert len(said) < 600
    assert said.isprintable()
    assert "994 more" in said
