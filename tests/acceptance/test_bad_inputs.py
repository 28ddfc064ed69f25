"""Malformed model files through the command line: what is refused names the file and the line and leaves nothing."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from command_line import Ran, ooc, process
from format_checks import peak_bytes
from paths import CASES

import ooc_mdp

BAD = CASES / "bad"
FORMATS = {"johannsson": "johannsson", "translist": "transition-list", "prism": "prism"}
DISCOUNT = 0.9

# What the list leaves open ("accept or reject, but say which"): these are read, the others refused. Those in
# OTHER_MODEL are another MDP than good.*, as their row says.
READ = {
    "09_duplicate_successor", "11_missing_state.tra", "14_header_too_many_states", "21_comments_blank_lines",
    "24_utf8_bom", "25_tabs_spaces", "25_tabs", "42_action_gap", "45_sum_off_1e-6",
}  # fmt: skip
OTHER_MODEL = {"09_duplicate_successor", "11_missing_state", "14_header_too_many_states", "42_action_gap"}
OTHER_MODEL |= {"44_sum_tenths", "45_sum_off_1e-6", "48_tiny_prob"}

pytestmark = pytest.mark.skipif(not BAD.is_dir(), reason="the shared cases are not here")


def cases() -> list[dict[str, str]]:
    listing = BAD / "bad.json"
    found: list[dict[str, str]] = json.loads(listing.read_text()) if listing.exists() else []
    return found


def name_of(case: dict[str, str]) -> str:
    return f"{case['folder']}-{case['file'].split(' ')[0]}"


def file_of(case: dict[str, str]) -> Path:
    return BAD / case["folder"] / case["file"].split(" + ")[0]


def is_read(case: dict[str, str]) -> bool:
    path = file_of(case)
    if case["verdict"] in ("accept", "reject"):
        return case["verdict"] == "accept"
    return path.stem in READ or path.name in READ


def allowed_lines(line: str) -> set[int]:
    """The lines that a row of the list allows; empty where it names none."""
    if "or line 5" in line:
        return {5}
    if line.startswith("1 (end of file)"):
        return {1, 2}
    match = re.match(r"(\d+)(?:-(\d+)| and (\d+))?", line)
    if match is None:
        return set()
    if match[2]:
        return set(range(int(match[1]), int(match[2]) + 1))
    return {int(group) for group in match.groups() if group}


def convert(source: Path | str, store: Path, format: str | None = None, rewards: Path | None = None) -> Ran:
    options = ["--format", format] if format else []
    options += ["--rewards", rewards] if rewards else []
    return ooc("convert", source, store, *options)


def message_of_refusal(ran: Ran, folder: Path) -> str:
    """What a refused conversion says; it must be short, no traceback, and leave nothing behind."""
    assert ran.status == 2, ran
    assert ran.out == ""
    assert ran.err.startswith("error: ")
    assert "Traceback" not in ran.err
    assert len(ran.err) < 700
    assert len(ran.err.splitlines()) <= 3
    assert "\0" not in ran.err
    assert list(folder.iterdir()) == []
    return ran.err


def values_of(store: Path) -> np.ndarray:
    solution = ooc_mdp.solve(store, DISCOUNT, epsilon=1e-10, device="cpu")
    assert solution.outcome.proved
    return solution.values


TEXTS = [case for case in cases() if case["folder"] in FORMATS]
OTHERS = [case for case in cases() if case["folder"] == "other"]


def test_the_list_and_the_folders_name_the_same_files():
    rows = [*TEXTS, *OTHERS]
    listed = {BAD / case["folder"] / name for case in rows for name in case["file"].split(" + ")}
    assert listed == {path for path in BAD.glob("*/*") if path.is_file()}
    assert [case["folder"] for case in cases() if case not in rows] == ["-"]  # a directory, a pipe, ...: tested below


@pytest.mark.parametrize("said", ["detected", "named"])
@pytest.mark.parametrize("case", TEXTS, ids=name_of)
def test_each_malformed_text_is_handled_as_the_list_says(case, said, tmp_path):
    path, store = file_of(case), tmp_path / "s"
    format = FORMATS[case["folder"]] if said == "named" else None
    rewards = path.with_suffix(".rew") if case["folder"] == "translist" else None
    ran = convert(path, store, format, rewards)
    if is_read(case):
        assert ran.status == 0, ran.err
        assert [p.name for p in tmp_path.iterdir()] == ["s"]
        if path.stem not in OTHER_MODEL:
            good = path.with_stem("good")
            beside = good.with_suffix(".rew") if rewards else None
            assert convert(good, tmp_path / "good", FORMATS[case["folder"]], beside).status == 0
            tolerance = 1e-7 if path.stem == "43_sum_off_5e-10" else 1e-9
            np.testing.assert_allclose(values_of(store), values_of(tmp_path / "good"), atol=tolerance)
        return
    message = message_of_refusal(ran, tmp_path)
    at_fault = path.with_suffix(".rew") if re.match(r"\d+ of the .rew", case["line"]) else path
    assert str(at_fault) in message
    found = re.search(r", line (\d+):", message)
    assert found is not None, message
    lines = allowed_lines(case["line"])
    assert not lines or int(found[1]) in lines


@pytest.mark.parametrize("format", [None, "arrays", "umb", "johannsson-xml", "mdptoolbox", "johannsson", "prism"])
@pytest.mark.parametrize("case", OTHERS, ids=name_of)
def test_each_hostile_container_is_refused_by_name_and_writes_nothing(case, format, tmp_path):
    path = file_of(case)
    (tmp_path / "place").mkdir()
    message = message_of_refusal(convert(path, tmp_path / "place" / "s", format), tmp_path / "place")
    assert str(path) in message
    assert not list(tmp_path.rglob("escaped*"))
    if format is None and case["line"][0].isdigit():
        assert f", line {case['line'][0]}:" in message


def test_the_oddities_that_are_read_mean_what_their_rows_say(tmp_path):
    def values(folder: str, name: str) -> np.ndarray:
        assert convert(BAD / folder / name, tmp_path / name, FORMATS[folder]).status == 0
        return values_of(tmp_path / name)

    # Action ids 0 and 7 are two actions; a header of four states adds one without actions, worth 0.
    good = values("johannsson", "good.txt")
    np.testing.assert_allclose(values("johannsson", "42_action_gap.txt"), good, atol=1e-9)
    # Ten successors of probability 0.1, one of them the state itself, reward 1.
    np.testing.assert_allclose(values("johannsson", "44_sum_tenths.txt")[0], 1 / (1 - 0.1 * DISCOUNT), atol=1e-9)
    # Staying with probability 1 - 1e-13: the rest is not dropped, so the value is a little below that of staying.
    assert 49.99 < values("johannsson", "48_tiny_prob.txt")[0] < 50
    prism = values("prism", "good.tra")
    np.testing.assert_allclose(values("prism", "14_header_too_many_states.tra"), [*prism, 0], atol=1e-9)


@pytest.mark.parametrize("format", [None, "johannsson", "transition-list", "prism", "drn", "arrays", "umb"])
def test_what_is_no_file_is_refused_before_it_is_read(tmp_path, format):
    (tmp_path / "place").mkdir()
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    store = tmp_path / "place" / "s"
    for source, said in (
        (tmp_path / "folder", "directory"),
        (tmp_path / "pipe", "a pipe"),
        ("/dev/zero", "a character device"),
        (tmp_path / "none", "no such file"),
    ):
        message = message_of_refusal(convert(source, store, format), tmp_path / "place")
        assert str(source) in message
        assert said in message


@pytest.mark.parametrize("case", TEXTS[:1], ids=name_of)
def test_what_is_no_file_is_refused_as_a_rewards_file_too(case, tmp_path):
    (tmp_path / "place").mkdir()
    os.mkfifo(tmp_path / "pipe")
    good = BAD / "translist" / "good.txt"
    for rewards, said in ((tmp_path / "pipe", "a pipe"), ("/dev/zero", "a character device"), (tmp_path, "directory")):
        ran = convert(good, tmp_path / "place" / "s", None, Path(rewards))
        assert said in message_of_refusal(ran, tmp_path / "place")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_refused(tmp_path):
    (tmp_path / "place").mkdir()
    path = tmp_path / "m.txt"
    path.write_bytes((BAD / "johannsson" / "good.txt").read_bytes())
    path.chmod(0)
    assert "permission" in message_of_refusal(convert(path, tmp_path / "place" / "s"), tmp_path / "place")


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """All formats have been read once, so that modules and loops that this loads count for no file."""
    folder = tmp_path_factory.mktemp("warm")
    for i, case in enumerate({case["folder"]: case for case in cases()}.values()):
        convert(file_of(case), folder / str(i), FORMATS.get(case["folder"]))


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("case", [c for c in cases() if not is_read(c)], ids=name_of)
def test_a_refusal_takes_little_memory(case, tmp_path):
    path = file_of(case)
    rewards = path.with_suffix(".rew") if case["folder"] == "translist" else None
    peak = peak_bytes(lambda: convert(path, tmp_path / "s", FORMATS.get(case["folder"]), rewards))
    assert peak < 40 << 20
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("folder", "name"),
    [("johannsson", "33_count_1e18.txt"), ("prism", "32_header_2_62.tra"), ("translist", "33_state_1e12_sparse.txt")],
)
def test_a_count_that_a_file_announces_is_not_allocated(folder, name, tmp_path):
    """In a process of its own that may have 6 GB of addresses: tracemalloc does not see all that is allocated."""
    ran = process("convert", BAD / folder / name, tmp_path / "s", limit="-v 6000000")
    message_of_refusal(ran, tmp_path)
