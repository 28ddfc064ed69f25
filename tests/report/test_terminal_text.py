"""Nothing of a file acts on a terminal, and no message is as long as a file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import ooc, refused

import ooc_mdp
from ooc_mdp.quoting import printable, quote, shorten
from ooc_mdp.report.terminal import print_short_note
from ooc_mdp.store.seal import digest_of

EVIL = "x\n\x1b[31mred\x1b]0;title\x07\x7f\x9b\u202e\u2066\u200b\r"
SHOWN = r"x\n\x1b[31mred\x1b]0;title\x07\x7f\x9b\u202e\u2066\u200b\r"


def reseal(root: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the attributes of a group, and seal them."""
    document = json.loads((root / "zarr.json").read_bytes())
    change(document["attributes"])
    document["attributes"].pop("digest")
    document["attributes"]["digest"] = digest_of(document["attributes"])
    (root / "zarr.json").write_text(json.dumps(document))


def harmless(text: str) -> bool:
    return all(c.isprintable() or c == "\n" for c in text)


def test_characters_that_a_terminal_obeys_are_shown_as_escapes() -> None:
    assert printable(EVIL) == SHOWN
    assert printable("a\nb\x1b", keep="\n") == "a\nb\\x1b"
    assert printable("θ → 1 µm") == "θ → 1 µm"
    assert printable("\udc80") == r"\udc80"


def test_long_texts_are_cut_with_an_ellipsis() -> None:
    assert shorten("a" * 80) == "a" * 80
    assert shorten("a" * 81) == "a" * 79 + "…"
    assert quote("a" * 5000) == "'" + "a" * 79 + "…'"
    assert quote("\x1b" * 5) == repr("\x1b" * 5)
    assert len(quote(list(range(1000)))) == 80


@pytest.fixture
def virtual(tmp_path: Path) -> Path:
    ooc_mdp.generate("mountain-car", tmp_path / "v", {"grid": "8,8"}, partitions=4, virtual=True, device="cpu")
    reseal(tmp_path / "v", lambda a: a["about"]["provenance"].update(device=EVIL, source=EVIL))
    reseal(tmp_path / "v", lambda a: a["about"]["geometry"]["axes"][0].update(name=EVIL, unit=EVIL))
    return tmp_path / "v"


def test_a_stores_attributes_do_not_reach_the_terminal(virtual: Path) -> None:
    ran = ooc("inspect", virtual)
    assert ran.status == 0
    assert harmless(ran.out)
    assert ran.out.count(SHOWN) >= 3
    listed = ooc("inspect", virtual, "--json")
    assert listed.figures["provenance"]["device"] == EVIL
    assert harmless(listed.out)


@pytest.mark.parametrize("command", [("check",), ("solve", "--discount", 0.9, "--device", "cpu")])
def test_neither_do_messages_of_errors(virtual: Path, command: tuple[object, ...]) -> None:
    said = refused(command[0], virtual, *command[1:])
    assert harmless(said)
    assert said.count("\n") == 1


def test_a_long_attribute_makes_neither_an_endless_message_nor_an_endless_table(virtual: Path) -> None:
    reseal(virtual, lambda a: a["about"]["provenance"].update(device="n" * 50_000))
    assert len(refused("check", virtual)) < 1000
    assert len(ooc("inspect", virtual).out) < 5000


def test_neither_do_a_results_attributes(tmp_path: Path) -> None:
    (tmp_path / "m.txt").write_text("S:0:0:1\nA:0:1\nD:1:1.0:1\nS:1:0:0\n")
    store = ooc_mdp.convert(tmp_path / "m.txt", tmp_path / "s")
    ooc_mdp.solve(store, 0.9, device="cpu", output=tmp_path / "r")
    reseal(tmp_path / "r", lambda a: (a["about"].update(store=EVIL), a["solution"].update(method=EVIL)))
    ran = ooc("inspect", tmp_path / "r")
    assert harmless(ran.out)
    assert ran.out.count(SHOWN) == 2


def test_neither_does_the_name_of_a_file(tmp_path: Path) -> None:
    place = tmp_path / "a\x1b[31m\nb"
    said = refused("inspect", place)
    assert harmless(said)
    assert said.count("\n") == 1
    assert r"a\x1b[31m\nb" in said


@pytest.mark.parametrize(
    "text",
    [
        "<MDP><{0}/></MDP>",
        "<{0}/>",
        '<MDP><States><State id="0" {0}="1"/></States></MDP>',
        '<MDP><States><State id="{0}"/></States></MDP>',
        "<MDP><States>{0}</States></MDP>",
        "<MDP></{0}>",
        "<MDP><States><State id='0'>&{0};</State></States></MDP>",
    ],
)
def test_a_long_name_makes_no_long_message(tmp_path: Path, text: str) -> None:
    (tmp_path / "m.xml").write_text(text.format("n" * 5000))
    said = refused("convert", tmp_path / "m.xml", tmp_path / "s", "--format", "johannsson-xml")
    assert len(said) < 400 + len(str(tmp_path))


def test_no_message_about_a_file_is_endless() -> None:
    assert len(str(ooc_mdp.InputError("m", "a" * 5000, 3))) < 1100


def test_a_short_note_of_a_memory_plan_has_its_sums_alone(capsys):
    print_short_note(
        "memory plan, RAM: process 1.0 MiB + cache 2.0 MiB = 3.0 MiB\nmemory plan, device: cache 1.0 GiB = 1.0 GiB\n"
        "beside the memory plan, if the solve comes to it: refinement 5.0 MiB\n2 stages for each load"
    )
    print_short_note("auto: p-eva = the default")
    assert capsys.readouterr().err.splitlines() == [
        "memory plan, RAM: 3.0 MiB",
        "memory plan, device: 1.0 GiB",
        "2 stages for each load",
        "auto: p-eva = the default",
    ]
