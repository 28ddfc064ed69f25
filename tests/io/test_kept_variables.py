"""State variables of model files and arrays are in the store, each in a compact type, with inspect listing them."""

from __future__ import annotations

import gzip
import json
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import ooc
from format_checks import SIZES
from umb_files import f8, u8, umb_file, umb_index

import ooc_mdp
from ooc_mdp.io.prism import valuations
from ooc_mdp.io.registry import ReadOptions, open_source
from ooc_mdp.io.variables import VariableColumns
from ooc_mdp.model.annotations import Variable
from ooc_mdp.properties.expression import states_where

TRA = "3 2 3\n0 0 2 0.25\n0 0 1 0.75\n1 0 1 1\n"
STA = "(x,done)\n0:(-3,false)\n1:(300,true)\n2:(4,false)\n"


def kept(store: ooc_mdp.Store) -> dict[str, list[float]]:
    found = store.annotations
    return {name: found.values(name, 0, store.n_states).tolist() for name in found.variables}


def prism(folder: Path, sta: str, tra: str = TRA) -> Path:
    path = folder / "m.tra"
    path.write_text(tra)
    path.with_suffix(".sta").write_text(sta)
    return path


@pytest.mark.parametrize("options", [{}, {"partitions": 3}, {"partitions": 2, "partitioner": "metis"}])
def test_values_of_prism_are_kept_in_the_order_of_the_source(tmp_path: Path, options: dict):
    store = ooc_mdp.convert(prism(tmp_path, STA), tmp_path / "s", **options)
    assert kept(store) == {"x": [-3, 300, 4], "done": [0, 1, 0]}
    assert store.annotations.variables == {"x": Variable("int", -3, 300), "done": Variable("bool", 0, 1)}
    assert store.annotations.values("x", 1, 3).tolist() == [300, 4]
    assert store.check().valid


def test_a_compressed_file_with_comments_and_a_byte_order_mark_is_read(tmp_path: Path):
    path = prism(tmp_path, STA)
    path.with_suffix(".sta").unlink()
    text = "\ufeff# made by hand\n" + STA.replace("\n1:", "\r\n\n 1 : ").replace("(4,", "( 4 ,")
    (tmp_path / "m.sta.gz").write_bytes(gzip.compress(text.encode()))
    assert kept(ooc_mdp.convert(path, tmp_path / "s")) == {"x": [-3, 300, 4], "done": [0, 1, 0]}


def test_pieces_of_a_file_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(valuations, "_PIECE", 50)
    n = 200
    lines = "".join(f"{s}:({s * s - 90},{'true' if s == 7 else 'false'})\n" for s in range(n))
    tra = f"{n} {n} {n}\n" + "".join(f"{s} 0 {s} 1\n" for s in range(n))
    store = ooc_mdp.convert(prism(tmp_path, f"(x,b)\n{lines}", tra), tmp_path / "s")
    assert kept(store) == {"x": [s * s - 90 for s in range(n)], "b": [int(s == 7) for s in range(n)]}


@pytest.mark.parametrize(
    ("sta", "line", "message"),
    [
        ("0:(1)\n1:(1)\n2:(1)\n", 1, r"'0:\(1\)' does not name the variables"),
        ("(x,x)\n2:(1,1)\n", 1, "two variables 'x'"),
        ("(x,)\n2:(1,1)\n", 1, "a variable without a name"),
        ("(x)\n0:(1)\n2:(1)\n", 3, r"'2:\(1\)' where the line of state 1 is expected, such as 1:\(0\)"),
        ("(x)\n0:(1)\n1:(1,2)\n2:(1)\n", 3, r"2 values of 1 variables \(x\)"),
        ("(x,y)\n0:(1,2)\n1:(1,2.5)\n2:(1,1)\n", 3, "y is '2.5'; whole numbers of at most 18 digits"),
        ("(x)\n0:(1234567890123456789)\n2:(1)\n", 2, "x is '1234567890123456789'"),
        ("(x)\n0 1\n2:(1)\n", 2, "'0 1' where the line of state 0 is expected"),
    ],
)
def test_a_wrong_line_of_valuations_is_refused(tmp_path: Path, sta: str, line: int, message: str):
    with pytest.raises(ooc_mdp.InputError, match=message) as caught:
        ooc_mdp.convert(prism(tmp_path, sta), tmp_path / "s")
    assert caught.value.line == line
    assert not (tmp_path / "s").exists()


DRN = "@type: DTMC\n@nr_states\n3\n@model\n" + "".join(
    f"state {s} a\n{{{s}}}\taction 0\n\t\t{s} : 1\n" for s in range(3)
)


@pytest.mark.parametrize("size", SIZES)
def test_comments_of_drn_are_kept_where_every_state_has_its_values(tmp_path: Path, size: int):
    path = tmp_path / "m.drn"
    comments = ["//[x=-4\t& on\t& !two]\n", "//[x=500\t& !on\t& two]\r\n", "  // [x=0 & on=true & two=false] \n"]
    path.write_bytes(DRN.format(*comments).encode())
    with closing(open_source(str(path), None, ReadOptions(segment_bytes=size))) as source:
        for read in source.blocks():
            read()
        source.check_totals()
        columns = source.annotations.variables
        assert columns.variables(3) == {
            "x": Variable("int", -4, 500), "on": Variable("bool", 0, 1), "two": Variable("bool", 0, 1)
        }  # fmt: skip
        assert [columns.read(name, 0, 3).tolist() for name in ("x", "on", "two")] == [
            [-4, 500, 0],
            [1, 0, 1],
            [0, 1, 0],
        ]
        assert source.left_out.sentence("m") is None


@pytest.mark.parametrize(
    "comments",
    [
        ["//[x=1]\n", "", "//[x=1]\n"],
        ["//[x=1]\n", "//[y=1]\n", "//[x=1]\n"],
        ["//[x=1]\n", "//[x=0.5]\n", "//[x=1]\n"],
        ["//[x=1]\n", "//[x=1]\n//[x=1]\n", "//[x=1]\n"],
        ["//[]\n", "//[]\n", "//[]\n"],
        ["//[!x=1]\n", "//[!x=1]\n", "//[!x=1]\n"],
        ["//[x=1 & x=2]\n"] * 3,
    ],
)
@pytest.mark.parametrize("size", SIZES)
def test_other_comments_of_drn_are_left_out(tmp_path: Path, comments: list[str], size: int):
    path = tmp_path / "m.drn"
    path.write_text(DRN.format(*comments))
    with closing(open_source(str(path), None, ReadOptions(segment_bytes=size))) as source:
        for read in source.blocks():
            read()
        source.check_totals()
        assert source.annotations.variables.variables(3) == {}
        assert (source.left_out.sentence("m") or "").startswith("not kept in the store: valuations")


def umb_valuations(*variables: dict[str, Any]) -> dict[str, Any]:
    return {"states": {"unique": False, "classes": [{"variables": list(variables)}]}}


def umb(path: Path, described: dict[str, Any], data: bytes | None) -> Path:
    index = umb_index(top_valuations=described)
    return umb_file(path, index, {} if data is None else {"valuations/states/valuations.bin": data})


def test_bit_fields_of_umb_are_kept(tmp_path: Path):
    # Per state 24 bits, the first variable lowest: a (2 bits), b (6), padding (5), c (signed, 3 + 8 bits above it).
    described = umb_valuations(
        {"name": "a", "type": {"type": "bool", "size": 2}},
        {"name": "b", "type": {"type": "uint", "size": 6}, "offset": -10},
        {"padding": 5},
        {"name": "c", "type": {"type": "int", "size": 11}},
    )
    states = [(2, 27, 0, -1), (0, 63, 31, 1023), (1, 0, 9, -1024)]
    data = b"".join((a | b << 2 | pad << 8 | (c & 2047) << 13).to_bytes(3, "little") for a, b, pad, c in states)
    store = ooc_mdp.convert(umb(tmp_path / "m.umb.xz", described, data), tmp_path / "s", reward_model="r1")
    assert kept(store) == {"a": [1, 0, 1], "b": [17, 53, -10], "c": [-1, 1023, -1024]}
    assert store.annotations.variables["a"].type == "bool"


def test_the_example_of_the_umb_specification_is_read(tmp_path: Path):
    described = umb_valuations(
        {"name": "sv0", "type": "uint", "size": 8, "offset": -128}, {"name": "sv1", "type": {"type": "int", "size": 16}}
    )
    record = bytes([0b10111000, 0b11111111, 0b10111101])
    store = ooc_mdp.convert(umb(tmp_path / "m.umb", described, 3 * record), tmp_path / "s", reward_model="r1")
    assert kept(store) == {"sv0": [56] * 3, "sv1": [-16897] * 3}


def test_optional_variables_of_umb_are_named_as_left_out(tmp_path: Path):
    described = umb_valuations(
        {"name": "maybe", "type": {"type": "uint", "size": 7}, "is-optional": True},
        {"name": "x", "type": {"type": "uint", "size": 8}},
    )
    notes: list[str] = []
    path = umb(tmp_path / "m.umb", described, b"".join(bytes(1) + bytes([x]) for x in (3, 4, 5)))
    store = ooc_mdp.convert(path, tmp_path / "s", reward_model="r1", note=notes.append)
    assert kept(store) == {"x": [3, 4, 5]}
    assert f"not kept in the store: valuations (maybe) of {path}" in notes


def with_texts(path: Path, *classes: list[dict[str, Any]], data: bytes, of_states: bytes | None = None) -> Path:
    """An archive with valuations of several classes and the texts "idle", "ü" and ""."""
    described = {"states": {"unique": False, "#strings": 3, "classes": [{"variables": own} for own in classes]}}
    files = {
        "valuations/states/valuations.bin": data,
        "valuations/states/valuation-to-class.bin": of_states,
        "valuations/states/string-mapping.bin": u8(0, 4, 6, 6),
        "valuations/states/strings.bin": "idleü".encode(),
    }
    return umb_file(path, umb_index(top_valuations=described), files)


SPEED = {"name": "speed", "type": {"type": "double"}}
SHARE = {"name": "share", "type": {"type": "rational", "size": 16}}
MODE = {"name": "mode", "type": {"type": "string"}}


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_doubles_rationals_and_texts_of_umb_are_kept(tmp_path: Path, suffix: str):
    rows = [(0.1, -1, 3, 1), (-1e300, 127, 255, 0), (2.0, 0, 1, 1)]
    data = b"".join(f8(x) + bytes([p & 255, q]) + u8(k) for x, p, q, k in rows)
    path = with_texts(tmp_path / f"m.umb{suffix}", [SPEED, SHARE, MODE], data=data)
    store = ooc_mdp.convert(path, tmp_path / "s", reward_model="r1")
    assert kept(store) == {"speed": [0.1, -1e300, 2.0], "share": [-1 / 3, 127 / 255, 0.0], "mode": [1, 0, 1]}
    assert store.annotations.variables["mode"] == Variable("string", 0, 1, ("idle", "ü"))
    assert store.annotations.variables["speed"] == Variable("double", -1e300, 2.0)
    assert states_where('mode = "ü" & speed < 0.5', store.annotations, 3).tolist() == [True, False, False]
    assert store.check().valid
    shown = ooc("inspect", tmp_path / "s").out.replace("\n", " ")
    assert "share (" in shown
    assert "mode ('idle', 'ü')" in shown


def test_variables_that_all_classes_of_umb_have_are_kept(tmp_path: Path):
    wide, narrow = {"name": "x", "type": {"type": "int"}}, {"name": "x", "type": {"type": "uint", "size": 8}}
    own, other = (
        {"name": "own", "type": {"type": "bool", "size": 8}},
        {"name": "y", "type": {"type": "bool", "size": 8}},
    )
    data = bytes([7]) + (-3 & (1 << 64) - 1).to_bytes(8, "little") + bytes([1, 1]) + bytes([9])
    path = with_texts(
        tmp_path / "m.umb", [narrow], [wide, own, other], data=data, of_states=struct.pack("<3I", 0, 1, 0)
    )
    notes: list[str] = []
    store = ooc_mdp.convert(path, tmp_path / "s", reward_model="r1", note=notes.append)
    assert kept(store) == {"x": [7, -3, 9]}
    assert f"not kept in the store: valuations (own, y) of {path}" in notes


@pytest.mark.parametrize(
    ("classes", "data", "of_states", "message"),
    [
        ([[MODE]], u8(0, 3, 0), None, "mode is text 3; there are 3"),
        ([[SHARE]], bytes([1, 1, 1, 0, 1, 1]), None, "share has a value with the denominator 0"),
        ([[{**SPEED, "type": {"type": "double", "size": 32}}]], bytes(12), None, "the type double has 64 bits"),
        (
            [[SPEED], [SPEED]],
            f8(1, 2, 3),
            struct.pack("<3I", 0, 2, 1),
            "state 1 has the class 2; index.json has 2",
        ),
        (
            [[SPEED], [SPEED]],
            f8(1, 2),
            struct.pack("<3I", 0, 0, 0),
            "16 bytes; the records of states 0 to 2 take 24",
        ),
    ],
)
def test_wrong_records_of_umb_are_refused(tmp_path: Path, classes: list, data: bytes, of_states: bytes, message: str):
    path = with_texts(tmp_path / "m.umb", *classes, data=data, of_states=of_states)
    with pytest.raises(ooc_mdp.InputError, match=message):
        ooc_mdp.convert(path, tmp_path / "s", reward_model="r1")


def test_a_variable_that_is_not_finite_is_left_out(tmp_path: Path):
    path = with_texts(tmp_path / "m.umb", [SPEED, MODE], data=b"".join(f8(x) + u8(0) for x in (1.0, np.nan, 2.0)))
    notes: list[str] = []
    store = ooc_mdp.convert(path, tmp_path / "s", reward_model="r1", note=notes.append)
    assert kept(store) == {"mode": [0, 0, 0]}
    assert f"not kept in the store: valuations (speed) of {path}" in notes


BYTE = {"name": "x", "type": {"type": "uint", "size": 8}}


@pytest.mark.parametrize(
    ("variables", "data", "message"),
    [
        ([BYTE], None, "valuations.bin is missing"),
        ([BYTE], b"ab", "has 2 bytes; the counts of index.json ask for 3"),
        ([{"name": "x", "type": {"type": "uint", "size": 7}}], b"abc", "has 7 bits, which are no whole bytes"),
        ([BYTE, BYTE], b"abcdef", "two variables are called 'x'"),
        ([{"name": "x"}], b"abc", "is no variable"),
        ([{"name": "x", "type": {"type": "uint-interval"}}], b"abc", "which is none of bool, int"),
        ([{"name": "x", "type": {"type": ["uint"]}}], b"abc", "which is none of bool, int"),
        ([{"padding": -8}, BYTE], b"abc", "padding is -8; it must be a whole number"),
        ([{"name": "x", "type": {"type": "uint"}}], b"\xff" * 24, "which do not fit in int64"),
    ],
)
def test_a_wrong_description_of_umb_is_refused(tmp_path: Path, variables: list, data: bytes | None, message: str):
    with pytest.raises(ooc_mdp.InputError, match=message):
        ooc_mdp.convert(umb(tmp_path / "m.umb", umb_valuations(*variables), data), tmp_path / "s")


def test_arrays_have_the_variables_that_are_given():
    stay = np.eye(4)[None]
    far = [-(1 << 63), 0, 0, (1 << 63) - 1]
    given = {
        "x": np.array([0, 255, 1, 2], np.uint16),
        "low": np.arange(4) < 2,
        "far": far,
        "speed": [0.5, -2, 0, 1],
        "mode": ["b", "a", "b", "a"],
    }
    store = ooc_mdp.from_arrays(stay, np.zeros((4, 1)), variables=given)
    assert kept(store) == {
        "x": [0, 255, 1, 2],
        "low": [1, 1, 0, 0],
        "far": far,
        "speed": [0.5, -2, 0, 1],
        "mode": [1, 0, 1, 0],
    }
    for variables, message in (
        ({"x": [1, 2, 3]}, r"variables\['x'\] has the shape \(3,\); give a value for each of the 4 states"),
        ({"x": [1j, 2, 3, 4]}, "is of type complex128; give integers, bools, floats or texts"),
        ({"x": [1, np.inf, 3, 4]}, r"variables\['x'\] is inf in state 1; give finite numbers"),
        ({"x": np.full(4, 1 << 63, np.uint64)}, "does not fit in int64"),
        ({3: [1, 2, 3, 4]}, "names that are texts"),
    ):
        with pytest.raises(ooc_mdp.InputError, match=message):
            ooc_mdp.from_arrays(stay, np.zeros((4, 1)), variables=variables)


def test_inspect_lists_variables_with_their_ranges(tmp_path: Path):
    ooc_mdp.convert(prism(tmp_path, STA), tmp_path / "s")
    facts = json.loads(ooc("inspect", tmp_path / "s", "--json").out)
    assert facts["variables"]["x"] == {"type": "int", "low": -3, "high": 300}
    assert "x (-3 to 300), done (bool)" in ooc("inspect", tmp_path / "s").out


def test_columns_take_blocks_in_any_order_and_again():
    columns = VariableColumns()
    columns.put("m", 3, {"x": np.array([7, 1 << 40])})
    columns.put("m", 0, {"x": np.array([1, 2, 3]), "y": np.array([True, False, True])})
    columns.put("m", 3, {"x": np.array([8, -9])})
    assert columns.variables(5) == {"x": Variable("int", -9, 8)}
    assert columns.read("x", 1, 5).tolist() == [2, 3, 8, -9]
    assert columns.variables(6) == {}


def test_a_full_disk_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("tempfile.TemporaryFile", lambda: (tmp_path / "missing" / "file").open("wb"))
    with pytest.raises(ooc_mdp.InputError, match=r"have no room in .*; set TMPDIR"):
        VariableColumns().put("m", 0, {"x": np.array([1])})
