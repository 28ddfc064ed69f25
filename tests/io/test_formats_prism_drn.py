"""PRISM's and Storm's text: headers, reward structures and companion files; each error is named where it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from text_models import read

from ooc_mdp.errors import InputError
from ooc_mdp.io.johannsson.text import JOHANNSSON
from ooc_mdp.io.prism.transitions import PRISM
from ooc_mdp.io.source import ReadOptions
from ooc_mdp.io.storm.drn import DRN
from ooc_mdp.io.transition_list import TRANSITION_LIST

SEGMENTS = [1, 64, 16 << 20]
TRA = "3 4 6\n0 0 0 0.5\n0 0 1 0.5\n0 1 1 1\n1 0 1 0.75\n1 0 2 0.25\n2 0 2 1\n"
SREW = '# Reward structure "steps"\n# State rewards\n3 2\n0 5\n1 -1\n'
TREW = "3 4 3\n0 0 1 2\n0 1 1 4\n1 0 2 8\n"
MODEL_DRN = """// Exported by storm
@type: MDP
@value_type: double
@parameters

@reward_models
flips steps 
@nr_states
3
@nr_choices
4
@model
state 0 [0, 2] init "two words"
//[x=1]
\taction 0 [1, 3]
\t\t1 : 0.5
\t\t2 : 0.5
\taction b [1, 1.5]
\t\t0 : 1
state 1 [0, 1]
\taction __NOLABEL__ [1, 0]
\t\t1 : 1
state 2
\taction 0
\t\t2 : 1
"""  # noqa: W291


@pytest.fixture
def tra(tmp_path: Path) -> Path:
    path = tmp_path / "model.tra"
    path.write_text(TRA)
    return path


@pytest.mark.parametrize("segment_bytes", SEGMENTS)
def test_state_and_transition_rewards_beside_the_file_are_added_up(tra: Path, segment_bytes: int) -> None:
    assert read(PRISM, tra, segment_bytes=segment_bytes).rewards == [[0.0, 0.0], [0.0], [0.0]]
    tra.with_suffix(".srew").write_text(SREW)
    assert read(PRISM, tra, segment_bytes=segment_bytes).rewards == [[5.0, 5.0], [-1.0], [0.0]]
    tra.with_suffix(".trew").write_text(TREW)
    assert read(PRISM, tra, segment_bytes=segment_bytes).rewards == [[6.0, 9.0], [1.0], [0.0]]
    named = read(PRISM, tra, rewards=tra.with_suffix(".trew"), segment_bytes=segment_bytes)
    assert named.rewards == [[1.0, 4.0], [2.0], [0.0]]


def test_rewards_under_another_name_are_told_apart_by_their_header(tra: Path) -> None:
    for text, due in ((SREW, [[5.0, 5.0], [-1.0], [0.0]]), (TREW, [[1.0, 4.0], [2.0], [0.0]])):
        other = tra.with_name("other.txt")
        other.write_text(text)
        assert read(PRISM, tra, rewards=other).rewards == due


def test_one_of_several_reward_structures_is_chosen_by_name_or_number(tra: Path) -> None:
    tra.with_name("model1.srew").write_text(SREW)
    tra.with_name("model2.srew").write_text("3 1\n2 7\n")
    assert read(PRISM, tra).rewards == [[0.0, 0.0], [0.0], [0.0]]  # of several, none is the table's
    assert read(PRISM, tra, reward_model="2").rewards == [[0.0, 0.0], [0.0], [7.0]]
    assert read(PRISM, tra, reward_model="steps") == read(PRISM, tra, reward_model="1")
    with pytest.raises(InputError, match="no single reward structure is 'cost'"):
        read(PRISM, tra, reward_model="cost")


def test_rewards_of_another_model_with_a_longer_name_are_left_alone(tra: Path) -> None:
    tra.with_name("model2.tra").write_text(TRA)
    tra.with_name("model2.srew").write_text("9 1\n2 7\n")
    assert read(PRISM, tra).rewards == [[0.0, 0.0], [0.0], [0.0]]


@pytest.mark.parametrize("segment_bytes", SEGMENTS)
@pytest.mark.parametrize(
    ("suffix", "text", "line", "message"),
    [
        (".srew", "3 2\n0 5\n1 x\n", 3, "reward 'x' is not a decimal number"),
        (".srew", "3 2\n0 5\n1 nan\n", 3, "reward is NaN"),
        (".srew", "# c\n4 2\n0 5\n1 1\n", 2, "4 states announced"),
        (".srew", "3 3\n0 5\n1 1\n", 1, "3 entries announced, 2 are given"),
        (".srew", "3 2\n0 5\n0 1\n", 3, "state 0 has two rewards"),
        (".srew", "3 2\n2 5\n0 1\n", 3, "state 0 is out of order: it comes after state 2; entries must be ordered"),
        (".srew", "3 1\n3 5\n", 2, r"state 3 does not exist: there are 3 states, 0\.\.2"),
        (".srew", "3 2\n7 5\n1 5\n", 2, r"state 7 does not exist: there are 3 states, 0\.\.2"),
        (".srew", "3 1\n-1 5\n", 2, "state -1 is negative"),
        (".srew", "", 1, "empty"),
        (".trew", "3 5 1\n0 0 1 2\n", 1, "5 choices announced"),
        (".trew", "3 4 1\n0 1 2 2\n", 2, "no transition 0 1 2"),
        (".trew", "3 4 1\n0 2 1 2\n", 2, "no transition 0 2 1"),
        (".trew", "3 4 2\n0 0 1 2\n0 0 1 3\n", 3, "transition 0 0 1 has two rewards"),
        (".trew", "3 4 2\n0 1 1 2\n0 0 1 3\n", 3, "choice 0 of state 0 is out of order: it comes after choice 1"),
        (".trew", "3 4 2\n0 5 1 2\n0 0 1 3\n", 2, "there is no transition 0 5 1 to pay this reward on"),
        (".trew", "3 4 2\n0 5 1 2\n0 0 1 x\n", 2, "there is no transition 0 5 1 to pay this reward on"),
        (".trew", "3 4 2\n0 5 1 2\n0 5 1 2\n", 2, "there is no transition 0 5 1 to pay this reward on"),
    ],
)
def test_an_error_in_a_reward_file_is_named_there(tra, suffix, text, line, message, segment_bytes) -> None:
    path = tra.with_suffix(suffix)
    path.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        read(PRISM, tra, segment_bytes=segment_bytes)
    assert (caught.value.path, caught.value.line) == (str(path), line)


def test_unsorted_and_doubled_transitions_earn_their_rewards(tmp_path: Path) -> None:
    path = tmp_path / "model.tra"
    path.write_text("3 1 3\n0 0 2 0.25\n0 0 1 0.5\n0 0 2 0.25\n")
    path.with_suffix(".trew").write_text("3 1 2\n0 0 1 2\n0 0 2 4\n")
    model = read(PRISM, path)
    assert model.rows == [[{1: 0.5, 2: 0.5}], [], []]
    assert model.rewards[0] == [3.0]


def test_rewards_of_many_states_are_found_by_bisection(tmp_path: Path) -> None:
    path = tmp_path / "model.tra"
    n = 20_000
    path.write_text(f"{n} {n} {n}\n" + "".join(f"{s} 0 {s} 1\n" for s in range(n)))
    rewarded = range(0, n, 3)
    entries = "# far\n".join(f"{s} {s * 0.5}\n" for s in rewarded)
    path.with_suffix(".srew").write_text(f"{n} {len(rewarded)}\n{entries}")
    model = read(PRISM, path, segment_bytes=10_000)
    assert [r for (r,) in model.rewards] == [s * 0.5 if s % 3 == 0 else 0.0 for s in range(n)]


def test_states_without_choices_are_terminal_wherever_they_stand(tmp_path: Path) -> None:
    path = tmp_path / "model.tra"
    path.write_text("6 2 2\n1 0 4 1\n4 0 1 1\n")
    path.with_suffix(".srew").write_text("6 6\n" + "".join(f"{s} {s + 1}\n" for s in range(6)))
    for segment_bytes in SEGMENTS:
        model = read(PRISM, path, segment_bytes=segment_bytes)
        assert [len(state) for state in model.rows] == [0, 1, 0, 0, 1, 0]
        assert model.terminal == [1.0, 0.0, 3.0, 4.0, 0.0, 6.0]
    path.write_text("6 0 0\n")
    assert read(PRISM, path).terminal == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


@pytest.mark.parametrize(
    ("suffix", "text"),
    [(".sta", "(x)\n0:(0)\n1:(1)\n"), (".lab", '0="init"\n0: 0\n3: 0\n'), (".sta", "(x)\n0:(0)\n9:(1)\n")],
)
def test_states_and_labels_of_another_model_are_noticed(tra: Path, suffix: str, text: str) -> None:
    tra.with_suffix(suffix).write_text(text)
    with pytest.raises(InputError, match="last state is"):
        read(PRISM, tra)


def test_states_and_labels_of_the_model_are_taken(tra: Path) -> None:
    tra.with_suffix(".sta").write_text("(x)\n0:(0)\n1:(1)\n2:(2)\n")
    tra.with_suffix(".lab").write_text('0="init" 1="deadlock"\n0: 0\n')
    read(PRISM, tra)


DTMC = "3 4\n0 0 0.5\n0 1 0.5 go\n1 1 1\n2 2 1\n"


def test_a_header_of_two_counts_without_the_type_may_be_that_of_a_ctmc(tmp_path: Path) -> None:
    path = tmp_path / "model.tra"
    path.write_text(DTMC)
    with pytest.raises(InputError, match=r"or a CTMC.*write the line `# Transitions \(DTMC\)`"):
        read(PRISM, path)


@pytest.mark.parametrize("segment_bytes", SEGMENTS)
def test_a_dtmc_has_one_action_a_state(tmp_path: Path, segment_bytes: int) -> None:
    path = tmp_path / "model.tra"
    path.write_text(f"# Transitions (DTMC)\n{DTMC}")
    assert read(PRISM, path, segment_bytes=segment_bytes).rows == [[{0: 0.5, 1: 0.5}], [{1: 1.0}], [{2: 1.0}]]
    path.with_suffix(".srew").write_text("3 1\n1 4\n")
    path.with_suffix(".trew").write_text("3 1\n0 1 2\n")
    assert read(PRISM, path, segment_bytes=segment_bytes).rewards == [[1.0], [4.0], [0.0]]
    other = tmp_path / "rewards"
    other.write_text("3 1\n0 1 2\n")
    assert read(PRISM, path, rewards=other).rewards == [[1.0], [0.0], [0.0]]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (DTMC.replace("0 1 0.5", "0 1 0.4"), 3, "sum to 0.9"),
        (DTMC.replace("3 4", "3 5"), 6, "ends after 4 transitions, but its header announces 5$"),
        (DTMC.replace("0 1 0.5 go", "0 0.5"), 4, "2 fields; 3 are expected"),
        ("3 4 4\n", 2, "3 counts; a DTMC's has two"),
    ],
)
def test_an_error_in_a_dtmc_is_named_by_line(tmp_path: Path, text: str, line: int, message: str) -> None:
    path = tmp_path / "model.tra"
    path.write_text(f"# Transitions (DTMC)\n{text}")
    with pytest.raises(InputError, match=message) as caught:
        read(PRISM, path)
    assert caught.value.line == line


@pytest.mark.parametrize("segment_bytes", SEGMENTS)
def test_drn_rewards_are_those_of_the_chosen_model(tmp_path: Path, segment_bytes: int) -> None:
    path = tmp_path / "model.drn"
    path.write_text(MODEL_DRN)
    model = read(DRN, path, reward_model="steps", segment_bytes=segment_bytes)
    assert model.rows == [[{1: 0.5, 2: 0.5}, {0: 1.0}], [{1: 1.0}], [{2: 1.0}]]
    assert model.rewards == [[5.0, 3.5], [1.0], [0.0]]
    assert read(DRN, path, reward_model="flips", segment_bytes=segment_bytes).rewards == [
        [1.0, 1.0],
        [1.0],
        [0.0],
    ]
    assert read(DRN, path).rewards == [[0.0, 0.0], [0.0], [0.0]]  # of several, none is the table's


def test_a_dtmc_in_drn_has_one_action_a_state(tmp_path: Path) -> None:
    path = tmp_path / "model.drn"
    head = "@type: DTMC\n@parameters\n\n@reward_models\n\n@nr_states\n2\n@model\n"
    path.write_text(head + "state 0 init\n\t0 : 0.5\n\t1 : 0.5\nstate 1\n\taction 0\n\t\t1 : 1\n")
    assert read(DRN, path).rows == [[{0: 0.5, 1: 0.5}], [{1: 1.0}]]
    path.write_text(head + "state 0\n\taction 0\n\t\t1 : 1\n\taction 1\n\t\t1 : 1\nstate 1\n\t1 : 1\n")
    with pytest.raises(InputError, match="line 12: state 0 of a DTMC has a second action"):
        read(DRN, path)


@pytest.mark.parametrize("segment_bytes", SEGMENTS)
@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("MDP\n@v", "CTMC\n@v", 2, "a CTMC"),
        ("MDP\n@v", "POMDP\n@v", 2, "a POMDP"),
        ("MDP\n@v", "MA\n@v", 2, "Markov automaton"),
        ("MDP\n@v", "Markov Automaton\n@v", 2, "Markov automaton"),
        ("double", "parametric", 3, "values of type 'parametric'"),
        ("double", "double-interval", 3, "an interval model"),
        ("@parameters\n\n", "@parameters\np q \n", 5, "has parameters"),
        ("@parameters\n\n", "@parameters\n\n@placeholders\n$0 : p\n", 7, "placeholders"),
        ("flips steps ", "flips", 6, "no reward model 'steps'"),
        ("\n3\n", "\n4000000000000000000\n", 9, "announced, but the file has room"),
        ("\n3\n", "\n4\n", 25, "ends after 3 states, but announces 4"),
        ("\n3\n", "\n0\n", 9, "not positive"),
        ("\n3\n", "\nx\n", 9, "number of states 'x'"),
        ("\n4\n", "\n5\n", 10, "5 choices announced, 4 are given"),
        ("@model\n", "", 12, "is @model missing"),
        ("@nr_states\n3\n", "", 10, "no @nr_states"),
        ("1 : 0.5", "1 : 0.6", 15, "sum to 1.1"),
        ("1 : 0.5", "1 : nan", 16, "probability is NaN"),
        ("1 : 0.5", "1 : 1/0", 16, "'1/0' has the denominator 0"),
        ("1 : 0.5", "1 : [0.4, 0.6]", 16, "is an interval"),
        ("1 : 0.5", "1 0.5", 16, "1 field; 2 are expected"),
        ("1 : 0.5", "3 : 0.5", 16, "successor 3 does not exist"),
        ("state 1", "state 2", 20, "state 2 where state 1 is expected"),
        ("state 1", "state 0", 20, "state 0 is defined again"),
        ("state 1 [0, 1]", "state 1 !0.5 [0, 1]", 20, "an exit rate"),
        ("state 1 [0, 1]", "state 1 {0} [0, 1]", 20, "an observation"),
        ("action b [", "action b c [", 18, "after the action's name"),
        ("[1, 1.5]", "[1, 1.5", 18, "no closing bracket"),
        ("[1, 1.5]", "[1, 1e999]", 18, "overflows to infinity"),
        ("[1, 1.5]", "[1]", 18, "1 rewards; the lists of this model have 2"),
        ("[1, 1.5]", "[1, 1.5, 2]", 18, "3 rewards; the lists of this model have 2"),
        ("\t\t0 : 1\n", "", 18, "has no successors"),
        ("\t\t0 : 1\n", "junk\n", 19, "1 field; 2 are expected"),
    ],
)
def test_a_drn_error_is_named_by_line(tmp_path, old, new, line, message, segment_bytes) -> None:
    path = tmp_path / "model.drn"
    assert old in MODEL_DRN
    path.write_text(MODEL_DRN.replace(old, new, 1))
    with pytest.raises(InputError, match=message) as caught:
        read(DRN, path, reward_model="steps", segment_bytes=segment_bytes)
    assert caught.value.line == line


LABELS = [
    "!(x=2)", "!", "!done", "! 5 x", "!x 2.5", "!2.5x", "{(x=2)}", "{", "{}", "{3", "{x}", "action", "state 1", "5",
    "0.5", '"two words"', '"', "init [", "init [1,2]", "init {3}", "init !2.5", "//", "a:b", "\u00e9",
]  # fmt: skip


@pytest.mark.parametrize("rewards", ["", " [0, 1]"])
@pytest.mark.parametrize("label", LABELS)
def test_labels_of_a_drn_state_are_dropped_whatever_they_are(tmp_path, label: str, rewards: str) -> None:
    path = tmp_path / "model.drn"
    path.write_text(MODEL_DRN.replace("state 1 [0, 1]", f"state 1{rewards} {label}"))
    due = read_text(tmp_path, MODEL_DRN.replace("state 1 [0, 1]", f"state 1{rewards}"))
    for segment_bytes in SEGMENTS:
        assert read(DRN, path, reward_model="steps", segment_bytes=segment_bytes) == due


@pytest.mark.parametrize("label", ["[", "[1,2]", "!2.5", "{3}"])
def test_after_rewards_any_label_is_one(tmp_path, label: str) -> None:
    due = read_text(tmp_path, MODEL_DRN)
    assert read_text(tmp_path, MODEL_DRN.replace("state 1 [0, 1]", f"state 1 [0, 1] {label}")) == due


def read_text(folder: Path, text: str):
    path = folder / "due.drn"
    path.write_text(text)
    return read(DRN, path, reward_model="steps")


def test_rewards_of_a_single_model_without_a_name_are_read(tmp_path: Path) -> None:
    path = tmp_path / "model.drn"
    head = "@type: MDP\n@parameters\n\n@reward_models\n \n@nr_states\n1\n@model\n"
    path.write_text(f"{head}state 0 [2]\n\taction 0 [3]\n\t\t0 : 1\n")
    assert read(DRN, path).rewards == [[5.0]]
    path.write_text(f"{head}state 0 [2, 1]\n\taction 0 [3]\n\t\t0 : 1\n")
    with pytest.raises(InputError, match="line 9: 2 rewards; the lists of this model have 1"):
        read(DRN, path)


@pytest.mark.parametrize("tail", ["\taction b\n\t", "\taction b", "\taction b\n\t\t", "\taction b [1, 2]"])
@pytest.mark.parametrize("segment_bytes", SEGMENTS)
def test_a_drn_file_cut_after_an_action_is_refused_there(tmp_path, tail: str, segment_bytes: int) -> None:
    path = tmp_path / "model.drn"
    begin = MODEL_DRN[: MODEL_DRN.index("state 1")]
    for text, line in ((begin.replace("@nr_states\n3", "@nr_states\n1"), 20), (begin, 20)):
        path.write_text(text.replace("\t\t1 : 0.5\n\t\t2 : 0.5", "\t\t0 : 0.5\n\t\t0 : 0.5") + tail)
        with pytest.raises(InputError, match=r"has no successors|ends after 1 states") as caught:
            read(DRN, path, reward_model="steps", segment_bytes=segment_bytes)
        assert caught.value.line == line


@pytest.mark.parametrize("length", range(len(MODEL_DRN)))
def test_a_drn_file_cut_anywhere_is_refused_or_whole(tmp_path, length: int) -> None:
    path = tmp_path / "model.drn"
    path.write_text(MODEL_DRN[:length])
    if length < len(MODEL_DRN.rstrip()):
        with pytest.raises(InputError):
            read(DRN, path, reward_model="steps")


@pytest.mark.parametrize(
    ("name", "head", "found"),
    [
        ("a.txt", b"\xef\xbb\xbf\n# c\n S : 0:0:1\n", "johannsson"),
        ("a.txt", b"// c\n@type: MDP\n", "drn"),
        ("a.txt", b"# c\n0\t0 0 5e-1\n", "transition-list"),
        ("a.txt", b"3 4 6\n0 0 0 1\n", "prism"),
        ("a.txt", b"# Transitions (DTMC)\n3 4\n0 0 1\n", "prism"),
        ("a.TRA", b"", "prism"),
        ("a.txt", b"hello world\n", None),
        ("a.txt", b"", None),
        ("a.npz", b"PK\x03\x04", None),
    ],
)
def test_a_format_is_recognised_by_its_first_lines(name: str, head: bytes, found: str | None) -> None:
    formats = (JOHANNSSON, TRANSITION_LIST, PRISM, DRN)
    assert [fmt.name for fmt in formats if fmt.detect(name, head)] == ([found] if found else [])


@pytest.mark.parametrize("fmt", [JOHANNSSON, DRN], ids=lambda fmt: fmt.name)
def test_formats_with_their_own_rewards_take_no_reward_file(tra: Path, fmt) -> None:
    with pytest.raises(InputError, match="--rewards"):
        fmt.open(str(tra), ReadOptions(rewards=tra))
