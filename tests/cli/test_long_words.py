"""A word of thousands of characters on the command line is shortened in its refusal, which still names the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import ooc

LONG = "z" * 5000
TURNED = "a\u202eb\x1b[31m"
"""A mark that turns the direction of writing, and an escape sequence."""
CASES = [
    (("solve", "s", "--discount", "0.9", "--method", LONG), "auto"),
    (("solve", "s", "--discount", "0.9", "--priority", LONG), "exact-h2"),
    (("solve", "s", "--discount", "0.9", "--cache", LONG), "64MiB"),
    (("solve", "s", "--discount", "0.9", "--cache", LONG + "%"), "22%"),
    (("solve", "s", "--discount", LONG), "number"),
    (("solve", "s", f"--{LONG}", "3"), "--help"),
    (("solve", "s", LONG), "--help"),
    ((LONG,), "--help"),
    (("convert", "m", "s", "--dtype", LONG), "float64"),
    (("convert", "m", "s", "--partitioner", LONG), "metis"),
    (("convert", "m", "s", "--format", LONG), "transition-list"),
    (("convert", "m", "s", "--grid", LONG), "100,200"),
    (("convert", "m", "s", "--partition-size", LONG), "64MiB"),
    (("generate", LONG, "s"), "GW-512x4"),
    (("generate", "random", "s", "-p", LONG), "NAME=VALUE"),
    (("generate", "random", "s", "-p", f"{LONG}=1"), "states"),
    (("generate", "random", "s", "-p", f"seed={LONG}"), "type int"),
    (("generate", "mountain-car", "s", "--grid", LONG), "100,200"),
    (("generate", "mountain-car", "s", "--device", LONG), "cuda:0"),
    (("cache-curve", "t", "--policy", LONG), "belady"),
    (("cache-curve", "t", "--sizes", LONG), "22%"),
    (("cache-sweep", "s", "--discount", "0.9", "--sizes", LONG), "64MiB"),
    (("cache-sweep", "s", "--discount", "0.9", "--method", LONG), "policy-iteration"),
    (("cache-sweep", "s", "--discount", "0.9", "--priority", LONG), "exact-h2"),
]


@pytest.mark.parametrize(("command", "remedy"), CASES, ids=[" ".join(command)[:45] for command, _ in CASES])
def test_a_long_word_is_shortened_and_the_remedy_is_named(
    command: tuple[str, ...], remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = ooc(*command)
    assert ran.status == 2
    assert len(ran.err) < 1000
    assert remedy in ran.err
    hostile = ooc(*(word.replace(LONG, TURNED) for word in command))
    assert hostile.status == 2
    assert hostile.err.replace("\n", "").isprintable()
    assert list(tmp_path.iterdir()) == []
