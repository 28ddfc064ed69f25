"""The text formats: what is malformed is refused at its line, what is sound is read alike in any pieces."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from format_checks import peak_bytes
from hypothesis import given, seed, settings
from paths import CASES
from text_models import (
    Loaded,
    Model,
    models,
    read,
    whole,
    write_drn,
    write_johannsson,
    write_prism,
    write_transition_list,
)

from ooc_mdp.errors import InputError
from ooc_mdp.io.johannsson.text import JOHANNSSON
from ooc_mdp.io.prism.transitions import PRISM
from ooc_mdp.io.source import ReadOptions
from ooc_mdp.io.storm.drn import DRN
from ooc_mdp.io.transition_list import TRANSITION_LIST

FORMATS = {"johannsson": JOHANNSSON, "translist": TRANSITION_LIST, "prism": PRISM}
SEGMENTS = [1, 64, 16 << 20]
needs_cases = pytest.mark.skipif(not CASES.exists(), reason="the shared cases are not here")


def bad_cases() -> list[dict[str, str]]:
    listing = CASES / "bad" / "bad.json"
    if not listing.exists():
        return []
    return [case for case in json.loads(listing.read_text()) if case["folder"] in FORMATS]


def case_file(case: dict[str, str]) -> Path:
    return CASES / "bad" / case["folder"] / case["file"].split(" + ")[0]


def read_case(folder: str, path: Path, segment_bytes: int) -> Loaded:
    rewards = path.with_suffix(".rew") if folder == "translist" else None
    return read(FORMATS[folder], path, rewards=rewards, segment_bytes=segment_bytes)


def allowed_lines(line: str) -> set[int] | None:
    """The lines that the table allows; None where it names none."""
    if "or line 5" in line:
        return {5}
    match = re.match(r"(\d+)(?:-(\d+)| and (\d+))?", line)
    if match is None:
        return None
    if match[2]:
        return set(range(int(match[1]), int(match[2]) + 1))
    return {int(group) for group in match.groups() if group}


# What the table leaves open: these are read, and are good.* apart from what is named; the others are refused.
READ = {
    "09_duplicate_successor", "11_missing_state.tra", "14_header_too_many_states", "21_comments_blank_lines",
    "24_utf8_bom", "25_tabs_spaces", "25_tabs", "42_action_gap", "45_sum_off_1e-6",
}  # fmt: skip
DIFFERENT = {"09_duplicate_successor", "11_missing_state", "14_header_too_many_states", "42_action_gap"}
DIFFERENT |= {"43_sum_off_5e-10", "44_sum_tenths", "45_sum_off_1e-6", "48_tiny_prob"}


@needs_cases
@pytest.mark.parametrize("segment_bytes", SEGMENTS)
@pytest.mark.parametrize("case", bad_cases(), ids=lambda case: f"{case['folder']}-{case['file'].split(' ')[0]}")
def test_each_malformed_file_is_handled_as_the_table_says(case: dict[str, str], segment_bytes: int) -> None:
    path = case_file(case)
    either = case["verdict"].startswith("accept or")
    if case["verdict"] == "accept" or (either and (path.stem in READ or path.name in READ)):
        model = read_case(case["folder"], path, segment_bytes)
        if path.stem not in DIFFERENT:
            assert model == read_case(case["folder"], path.with_stem("good"), segment_bytes)
        return
    with pytest.raises(InputError) as caught:
        read_case(case["folder"], path, segment_bytes)
    error = caught.value
    in_rewards = re.match(r"\d+ of the .rew", case["line"])
    assert error.path == str(path.with_suffix(".rew") if in_rewards else path)
    lines = allowed_lines(case["line"])
    assert error.line is not None
    assert lines is None or error.line in lines


@needs_cases
@pytest.mark.parametrize("case", bad_cases(), ids=lambda case: f"{case['folder']}-{case['file'].split(' ')[0]}")
def test_a_format_is_recognised_wherever_a_person_sees_it(case: dict[str, str]) -> None:
    path = case_file(case)
    head = path.read_bytes()[:4096]
    found = {fmt.name for fmt in (JOHANNSSON, TRANSITION_LIST, PRISM, DRN) if fmt.detect(str(path), head)}
    unreadable = not head.strip() or head.startswith(b"\xff\xfe")
    expected = set() if unreadable and path.suffix != ".tra" else {FORMATS[case["folder"]].name}
    assert found == expected


@needs_cases
def test_accepted_oddities_keep_their_meaning() -> None:
    bad = CASES / "bad"
    johannsson = read(JOHANNSSON, bad / "johannsson" / "42_action_gap.txt")
    assert johannsson.labels == [[0, 7], [0], []]
    assert read(JOHANNSSON, bad / "johannsson" / "48_tiny_prob.txt").rows[0][0] == {
        0: 0.9999999999999,
        1: 1e-13,
    }
    assert read(JOHANNSSON, bad / "johannsson" / "09_duplicate_successor.txt").rows[0][0] == {0: 1.0}
    assert read(PRISM, bad / "prism" / "14_header_too_many_states.tra").rows[3] == []
    assert read(PRISM, bad / "prism" / "11_missing_state.tra").rows[1] == []


@needs_cases
def test_a_published_prism_model_is_read_as_by_the_independent_reader() -> None:
    spec = importlib.util.spec_from_file_location("mdpcase", CASES / "tools" / "mdpcase.py")
    assert spec is not None
    assert spec.loader is not None
    mdpcase = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(mdpcase)
    path = CASES / "public" / "qvbs-consensus-2-2" / "formats" / "consensus.tra"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        due = mdpcase.MDP.load_prism(str(path), str(path.with_suffix(".srew")))
    for segment_bytes in (500, 16 << 20):
        model = read(PRISM, path, segment_bytes=segment_bytes)
        np.testing.assert_array_equal(np.cumsum([0] + [len(s) for s in model.rows]), due.state_ptr)
        flat = [item for state in model.rows for action in state for item in action.items()]
        np.testing.assert_array_equal([s for s, _ in flat], due.indices)
        np.testing.assert_array_equal([p for _, p in flat], due.data)
        np.testing.assert_array_equal([r for state in model.rewards for r in state], due.choice_reward())


def expected_rewards(model: Model) -> list[list[float]]:
    return [[sum(p * r for p, r in a.values()) for a in state] for state in model.rows]


@seed(11)
@settings(max_examples=60, deadline=None)
@given(models())
def test_a_johannsson_file_is_read_back_in_any_pieces(tmp_path_factory, model: Model) -> None:
    path = tmp_path_factory.mktemp("johannsson") / "model.txt"
    write_johannsson(model, path)
    first = None
    for segment_bytes in SEGMENTS:
        loaded = read(JOHANNSSON, path, segment_bytes=segment_bytes)
        assert first in (None, loaded)
        first = loaded
    assert loaded.rows == [[{t: a[t][0] for t in sorted(a)} for a in state] for state in model.rows]
    assert loaded.initial == model.state_rewards
    assert loaded.labels == model.labels
    for got, due in zip(loaded.rewards, expected_rewards(model), strict=True):
        np.testing.assert_allclose(got, due, rtol=1e-9, atol=1e-9)


@seed(12)
@settings(max_examples=60, deadline=None)
@given(models(terminals=False))
def test_a_transition_list_is_read_back_in_any_pieces(tmp_path_factory, model: Model) -> None:
    path = tmp_path_factory.mktemp("list") / "model.txt"
    write_transition_list(model, path)
    for segment_bytes in SEGMENTS:
        loaded = read(TRANSITION_LIST, path, rewards=path.with_suffix(".rew"), segment_bytes=segment_bytes)
        assert loaded.rows == [[{t: p for t, (p, _) in a.items()} for a in state] for state in model.rows]
        assert loaded.rewards == [[r] * len(s) for r, s in zip(model.state_rewards, model.rows, strict=True)]
        assert loaded.labels == model.labels


@seed(13)
@settings(max_examples=60, deadline=None)
@given(models())
def test_a_prism_model_with_both_rewards_is_read_back_in_any_pieces(tmp_path_factory, model: Model) -> None:
    path = tmp_path_factory.mktemp("prism") / "model.tra"
    write_prism(model, path)
    for segment_bytes in SEGMENTS:
        loaded = read(PRISM, path, segment_bytes=segment_bytes)
        assert loaded.rows == [[{t: p for t, (p, _) in a.items()} for a in state] for state in model.rows]
        for s, due in enumerate(expected_rewards(model)):
            total = [r + model.state_rewards[s] for r in due]
            np.testing.assert_allclose(loaded.rewards[s], total, rtol=1e-9, atol=1e-9)
            assert loaded.terminal[s] == (0.0 if due else model.state_rewards[s])


@seed(14)
@settings(max_examples=60, deadline=None)
@given(models())
def test_a_drn_model_is_read_back_in_any_pieces(tmp_path_factory, model: Model) -> None:
    path = tmp_path_factory.mktemp("drn") / "model.drn"
    write_drn(model, path)
    if not any(model.rows):
        return
    for segment_bytes in SEGMENTS:
        loaded = read(DRN, path, reward_model="used", segment_bytes=segment_bytes)
        assert loaded.rows == [[{t: p for t, (p, _) in a.items()} for a in state] for state in model.rows]
        for s, labels in enumerate(model.labels):
            assert loaded.rewards[s] == [label + model.state_rewards[s] for label in labels]
            assert loaded.terminal[s] == (0.0 if labels else model.state_rewards[s])


GOOD_JOHANNSSON = (
    "S:0:0:2\nA:0:2\nD:0:0.5:5\nD:1:0.5:5\nA:1:1\nD:1:1:10\nS:1:0:1\nA:0:2\nD:1:0.75:-1\nD:2:0.25:-1\nS:2:0:0\n"
)
GOOD_TRA = "3 4 6\n0 0 0 0.5\n0 0 1 0.5\n0 1 1 1\n1 0 1 0.75\n1 0 2 0.25\n2 0 2 1\n"


@pytest.mark.parametrize("segment_bytes", SEGMENTS)
@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("S:1:0:1", "S:5:0:1", 7, "state 5 where state 1 is expected"),
        ("S:2:0:0", "S:1:0:0", 11, "state 1 is defined again"),
        ("S:2:0:0", "S:2:nan:0", 11, "initial value is NaN"),
        ("S:2:0:0", "S:2:0:-1", 11, "announces -1 actions"),
        ("D:2:0.25:-1", "D:3:0.25:-1", 10, "successor 3 does not exist: the 3 states are 0..2"),
        ("A:1:1", "A:0:1", 5, "state 0, action 0: the state has an action of this number already"),
        ("A:1:1", "A:-3:1", 5, "action -3 is negative; actions are numbered from 0"),
        ("D:1:1:10\n", "", 6, "action 1 announces 1 successors"),
        ("S:2:0:0\n", "S:2:0:1", 11, "state 2 announces 1 actions.*the file ends"),
        ("D:1:0.75", "D:1:0.7500000000000000000001e-400", 8, "sum to 0.25"),
    ],
)
def test_a_johannsson_error_is_named_by_line(tmp_path, old, new, line, message, segment_bytes) -> None:
    path = tmp_path / "model.txt"
    path.write_text(GOOD_JOHANNSSON.replace(old, new, 1))
    with pytest.raises(InputError, match=message) as caught:
        read(JOHANNSSON, path, segment_bytes=segment_bytes)
    assert caught.value.line == line


SMALL_TRA = "0 0 0 1\n1 0 1 1\n2 0 0 1\n"
SMALL_DRN = (
    "@type: MDP\n@parameters\n\n@reward_models\n\n@nr_states\n3\n@nr_choices\n3\n@model\n"
    "state 0 init\n\taction 0\n\t\t1 : 1\nstate 1\n\taction 0\n\t\t1 : 1\nstate 2\n\taction 0\n\t\t1 : 1\n"
)


@pytest.mark.parametrize(
    ("fmt", "text", "old", "new"),
    [
        (JOHANNSSON, GOOD_JOHANNSSON, "S:1:0:1", "S:{}:0:1"),
        (TRANSITION_LIST, SMALL_TRA, "1 0 1 1", "{} 0 1 1"),
        (PRISM, f"3 3 3\n{SMALL_TRA}", "1 0 1 1", "{} 0 1 1"),
        (DRN, SMALL_DRN, "state 1", "state {}"),
    ],
    ids=["johannsson", "transition-list", "prism", "drn"],
)
@pytest.mark.parametrize("wrong", ["-1", "-3", "-9223372036854775807", "zz", "-", "99999999999999999999"])
def test_a_wrong_state_id_is_named_by_line_wherever_the_file_is_cut(tmp_path, fmt, text, old, new, wrong) -> None:
    path, rewards = tmp_path / "model.tra", tmp_path / "model.rew"
    rewards.write_text("1\n1\n1\n")
    options = {"rewards": rewards} if fmt is TRANSITION_LIST else {}
    path.write_text(text)
    read(fmt, path, **options)
    path.write_text(text.replace(old, new.format(wrong), 1))
    line = path.read_text().split("\n").index(new.format(wrong)) + 1
    said = set()
    for segment_bytes in range(1, len(text) + 2):
        with pytest.raises(InputError) as caught:
            read(fmt, path, segment_bytes=segment_bytes, **options)
        assert caught.value.line == line, segment_bytes
        said.add(caught.value.message)
    if wrong[1:].isdigit() and wrong.startswith("-"):
        assert said == {f"state {wrong} is negative; states are numbered from 0"}
    assert len(said) == 1


@pytest.mark.parametrize("segment_bytes", SEGMENTS)
def test_the_earlier_of_two_errors_is_named(tmp_path, segment_bytes: int) -> None:
    path = tmp_path / "model.txt"
    path.write_text(GOOD_JOHANNSSON.replace("0.5:5", "0.4:5", 1).replace("D:2:", "D:x:"))
    with pytest.raises(InputError, match=r"sum to 0\.9"):
        read(JOHANNSSON, path, segment_bytes=segment_bytes)


def test_blocks_may_be_read_in_any_order_and_on_threads(tmp_path) -> None:
    path = tmp_path / "model.txt"
    n = 3000
    path.write_text("".join(f"S:{s}:0:1\nA:0:1\nD:{(s + 1) % n}:1:1\n" for s in range(n)))
    source = JOHANNSSON.open(str(path), ReadOptions(segment_bytes=256))
    assert source.n_states is None
    readers = list(source.blocks())
    with ThreadPoolExecutor(4) as threads:
        blocks = list(threads.map(lambda read: read(), readers[::-1]))[::-1]
    source.check_totals()
    assert source.n_states == n
    assert whole(blocks).rows == [[{(s + 1) % n: 1.0}] for s in range(n)]


def test_a_state_longer_than_a_segment_stays_whole(tmp_path) -> None:
    path = tmp_path / "model.txt"
    n = 20_000
    row = "".join(f"0 0 {t} {1 / n!r}\n" for t in range(n))
    path.write_text(row + "".join(f"{s} 0 0 1\n" for s in range(1, n)))
    path.with_suffix(".rew").write_text("1\n" * n)
    source = TRANSITION_LIST.open(str(path), ReadOptions(rewards=path.with_suffix(".rew"), segment_bytes=1000))
    first = next(source.blocks())()
    assert first.rows.n_transitions == n


@pytest.mark.parametrize("fmt", [JOHANNSSON, TRANSITION_LIST, PRISM, DRN], ids=lambda fmt: fmt.name)
def test_only_regular_readable_files_are_opened(tmp_path, fmt) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, message in (
        (tmp_path / "absent", "no such file"),
        (tmp_path, "a directory"),
        (tmp_path / "pipe", "a pipe"),
        (Path("/dev/zero"), "a character device"),
    ):
        with pytest.raises(InputError, match=message):
            fmt.open(str(path), ReadOptions())
    good = tmp_path / "good.tra"
    good.write_text(GOOD_TRA if fmt is PRISM else "0 0 0 1\n")
    if fmt in (PRISM, TRANSITION_LIST):
        for path in (tmp_path / "absent", tmp_path, tmp_path / "pipe", Path("/dev/zero")):
            with pytest.raises(InputError) as caught:
                fmt.open(str(good), ReadOptions(rewards=path))
            assert caught.value.path == str(path)


@pytest.mark.parametrize("first", ["5", "# r(s)\n5"])
def test_rewards_of_a_transition_list_may_begin_with_a_byte_order_mark(tmp_path, first: str) -> None:
    path, rewards = tmp_path / "m.txt", tmp_path / "r.txt"
    path.write_bytes("\ufeff0 0 1 1\r\n1 0 0 1\r\n".encode())
    rewards.write_bytes(f"\ufeff{first}\n-1\n".replace("\n", "\r\n").encode())
    loaded = read(TRANSITION_LIST, path, rewards=rewards)
    assert loaded.rewards == [[5.0], [-1.0]]


def test_a_transition_list_asks_for_its_rewards(tmp_path) -> None:
    path = tmp_path / "model.txt"
    path.write_text("0 0 0 1\n")
    with pytest.raises(InputError, match="--rewards FILE"):
        TRANSITION_LIST.open(str(path), ReadOptions())


def test_rewards_far_into_their_file_are_found_and_their_errors_named(tmp_path) -> None:
    path, rewards = tmp_path / "model.txt", tmp_path / "model.rew"
    n = 10_000
    path.write_text("".join(f"{s} 0 {s} 1\n" for s in range(n)))
    numbers = [f"{s * 0.5}" for s in range(n)]
    rewards.write_text("# r(s)\n\n" + "\n".join(numbers))
    loaded = read(TRANSITION_LIST, path, rewards=rewards, segment_bytes=5000)
    assert loaded.rewards == [[s * 0.5] for s in range(n)]
    numbers[9000] = "1e999"
    rewards.write_text("# r(s)\n\n" + "\n".join(numbers))
    with pytest.raises(InputError, match=r"model\.rew, line 9003: .*overflows to infinity"):
        read(TRANSITION_LIST, path, rewards=rewards, segment_bytes=5000)


def test_a_malformed_reward_after_the_last_states_is_named(tmp_path) -> None:
    path, rewards = tmp_path / "model.txt", tmp_path / "model.rew"
    path.write_text("0 0 0 1\n")
    for text, line, message in (
        ("1\nx\n", 2, "reward 'x' is not a decimal number"),
        ("1\n2\nx\n", 2, "3 rewards, but"),
        ("1\n# c\n\nnan", 4, "reward is NaN"),
        ("x\n1\n", 1, "reward 'x'"),
    ):
        rewards.write_text(text)
        with pytest.raises(InputError, match=message) as caught:
            read(TRANSITION_LIST, path, rewards=rewards)
        assert (caught.value.path, caught.value.line) == (str(rewards), line)


@pytest.mark.parametrize(
    ("fmt", "text"),
    [
        (JOHANNSSON, "S:0:0:1\nA:0:1\nD:0:{}:1\n"),
        (TRANSITION_LIST, "0 0 0 {}\n"),
        (PRISM, "1 1 1\n0 0 0 {}\n"),
        (DRN, "@type: MDP\n@nr_states\n1\n@model\nstate 0\n\taction 0\n\t\t0 : {}\n"),
    ],
    ids=["johannsson", "transition-list", "prism", "drn"],
)
@pytest.mark.parametrize(
    "token", ["7" * 40_000 + "x", "\x1b[31mred\x1b]0;title\x07", "x" * 900_000, "\u202e1", "[\x1b,1]"]
)
def test_a_quoted_token_is_short_and_printable_and_found_at_once(tmp_path, fmt, text: str, token: str) -> None:
    path = tmp_path / "model.tra"
    path.write_text(text.format(token))
    rewards = tmp_path / "rewards"
    rewards.write_text("1\n")
    options = {"rewards": rewards} if fmt is TRANSITION_LIST else {}
    with pytest.raises(InputError) as caught:
        read(fmt, path, **options)
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 300


@pytest.mark.parametrize(
    ("fmt", "text"),
    [
        (PRISM, "{n} 1 1\n0 0 0 1\n"),
        (PRISM, "1 {n} 1\n0 0 0 1\n"),
        (PRISM, "1 1 {n}\n0 0 0 1\n"),
        (PRISM, "2 1 1\n0 0 {n} 1\n"),
        (PRISM, "2 1 1\n{n} 0 0 1\n"),
        (PRISM, "2 1 1\n0 {n} 0 1\n"),
        (DRN, "@type: MDP\n@nr_states\n{n}\n@model\nstate 0\n\taction 0\n\t\t0 : 1\n"),
        (DRN, "@type: MDP\n@nr_states\n1\n@nr_choices\n{n}\n@model\nstate 0\n\taction 0\n\t\t0 : 1\n"),
        (DRN, "@type: MDP\n@nr_states\n1\n@model\nstate 0\n\taction 0\n\t\t{n} : 1\n"),
        (JOHANNSSON, "S:0:0:{n}\nA:0:1\nD:0:1:1\n"),
        (JOHANNSSON, "S:0:0:1\nA:0:{n}\nD:0:1:1\n"),
        (JOHANNSSON, "S:0:0:1\nA:0:1\nD:{n}:1:1\n"),
        (JOHANNSSON, "S:{n}:0:1\nA:0:1\nD:0:1:1\n"),
        (TRANSITION_LIST, "{n} 0 0 1\n"),
        (TRANSITION_LIST, "0 0 {n} 1\n"),
    ],
)
@pytest.mark.parametrize(
    "n",
    ["1" + "0" * 12, str(2**63 - 1), str(2**63), str(2**64), "1" + "0" * 30, "1" + "0" * 5000],
    ids=["1e12", "2^63-1", "2^63", "2^64", "1e30", "1e5000"],
)
def test_a_huge_count_or_number_is_refused_in_little_memory(tmp_path, fmt, text: str, n: str) -> None:
    path = tmp_path / "model.tra"
    path.write_text(text.replace("{n}", n))
    rewards = tmp_path / "rewards"
    rewards.write_text("1\n")
    options = {"rewards": rewards} if fmt is TRANSITION_LIST else {}

    def refuse() -> None:
        with pytest.raises(InputError) as caught:
            read(fmt, path, **options)
        assert len(caught.value.message) < 300

    assert peak_bytes(refuse) < 4 << 20
