"""Files of other kinds of models are refused by what they are, however they are named and whatever is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from ooc_mdp.errors import InputError
from ooc_mdp.io.registry import ReadOptions, open_source

PEXP = """# Transitions (MDP)
3 4 6
0 0 0 0.25 go
0 0 1 0.75 go
0 1 2 1 stay
1 0 0 0.5 go
1 0 2 0.5 go
2 0 2 1 done

# States
(s)
0:(0)
1:(1)
2:(2)

# Labels
0="init" 1="deadlock"
0: 0

# Reward structure "time"
# State rewards
3 2
0 1
1 1
"""
LABELS_ONLY = PEXP[: PEXP.index("# States")] + PEXP[PEXP.index("# Labels") :]
LONG = "100 100 100\n" + "".join(f"{s} 0 {s} {'1.' + '0' * 50}\n" for s in range(100))
INTERVALS = "2 2 3\n0 0 0 [0.2,0.3] go\n0 0 1 [0.7,0.8] go\n1 0 0 [1,1]\n"
PROGRAM = (
    "// a comment\n\n// another\nmdp\n\nconst int N = 3;\nmodule m\n  s : [0..N];\n"
    "  [] s=0 -> 1/2:(s'=1) + 1/2:(s'=2);\nendmodule\n"
)
CASSANDRA = "# tiger\ndiscount: 0.95\nvalues: reward\nstates: left right\n"
LTS = "2 2 2\n0 0 1 a\n1 0 0 b\n"
POMDP = "2 2 2 1\n0 0 1 1 0 a\n1 0 0 1 0 b\n"
DRN = (
    "@type: MDP\n@value_type: double\n@parameters\n\n@reward_models\n\n@nr_states\n1\n@model\n"
    "state 0\n\taction 0\n\t\t0 : [0.5,1]\n"
)

CASES = [
    ("m.pexp", PEXP, "PRISM's export in one file"),
    ("m.tra", PEXP, "PRISM's export in one file"),
    ("m.txt", PEXP, "PRISM's export in one file"),
    ("m.txt", f"# Transitions (MDP)\n{LONG}# States\n(s)\n0:(0)\n", "PRISM's export in one file"),
    ("m.tra", f"{LONG}# Labels\n0=\"init\"\n", "PRISM's export in one file"),
    ("m.tra", LABELS_ONLY, "PRISM's export in one file"),
    ("m.tra", f"# Transitions (IMDP)\n{INTERVALS}", "an interval MDP"),
    ("m.tra", INTERVALS, "is an interval"),
    ("m.tra", INTERVALS.replace(",", ", "), "a line with an interval"),
    ("m.tra", "# Transitions (IDTMC)\n1 1\n0 0 [1,1]\n", "an interval DTMC"),
    ("m.drn", DRN, "is an interval"),
    ("m.drn", DRN.replace("[0.5,1]", "[1/2, 1]"), "is an interval"),
    ("m.drn", DRN.replace("double", "double-interval"), "an interval model"),
    ("m.txt", "S:0:0:1\nA:0:1\nD:0:[0,1]:1\n", "is an interval"),
    ("m.aut", "des (0,2,2)\n(0,\"a\",1)\n(1,\"b\",0)\n", "a labelled transition system"),
    ("m.tra", "# Transitions (LTS)\n" + LTS, "a labelled transition system"),
    ("m.tra", LTS, "an LTS, which has no probabilities"),
    ("m.txt", LTS.replace(" a", "").replace(" b", ""), "a labelled transition system"),
    ("m.tra", "# Transitions (POMDP)\n" + POMDP, "a POMDP"),
    ("m.tra", POMDP, "a POMDP"),
    ("m.POMDP", CASSANDRA, "a POMDP in Cassandra's format"),
    ("m.tra", "# Transitions (CTMC)\n2 2\n0 1 3\n1 0 2\n", "a CTMC"),
    ("m.tra", "# Transitions (SMG)\n2 2 2\n0 0 1 1\n1 0 0 1\n", "a stochastic game"),
    ("m.tra", "# Transitions (XYZ)\n2 2 2\n0 0 1 1\n1 0 0 1\n", "a model of type 'XYZ'"),
    ("m.nm", PROGRAM, "a PRISM program"),
    ("m.prism", PROGRAM.replace("mdp\n\n", ""), "a PRISM program"),
    ("m.pm", "\ufeff" + PROGRAM.replace("mdp", "dtmc"), "a PRISM program"),
    ("m.nm", PROGRAM.replace("\n", "\r\n"), "a PRISM program"),
    ("m.tra", PROGRAM, "a PRISM program"),
    ("m.nm", "mdp // one line\nmodule m endmodule\n", "a PRISM program"),
    ("m.prism", "// only comments\n" * 300 + PROGRAM, "by its name this is a PRISM program"),
    ("m.pexp", "words\n", "by its name this is PRISM's export in one file"),
    ("m.nm", "// c\nobservables s endobservables\n", "a PRISM program"),
    ("m.tra", "mdp\n0 0 0 1\n", "Storm's old explicit format"),
    ("m.txt", "dtmc\n0 0 1\n", "Storm's old explicit format"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "said"), CASES, ids=[f"{i}-{case[0]}" for i, case in enumerate(CASES)])
def test_a_model_of_another_kind_is_named(tmp_path: Path, name: str, text: str, said: str) -> None:
    path = tmp_path / name
    path.write_text(text, newline="")
    for segment_bytes in (1, 16 << 20):
        with pytest.raises(InputError, match=said) as caught:
            read(path, None, segment_bytes)
        assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    "text", [PEXP, PROGRAM, POMDP, CASSANDRA, f"# Transitions (LTS)\n{LTS}", INTERVALS, "mdp\n0 0 0 1\n"]
)
def test_a_named_format_changes_nothing_about_that(tmp_path: Path, text: str) -> None:
    path = tmp_path / "model"
    path.write_text(text)
    with pytest.raises(InputError, match=r"this is (PRISM's|a PRISM|a POMDP|a labelled|a model)|is an interval"):
        read(path, "prism", 16 << 20)


@pytest.mark.parametrize("format", ["prism", "drn", "johannsson", "transition-list"])
@pytest.mark.parametrize(
    ("head", "said"),
    [
        (b"\x28\xb5\x2f\xfd", "a Zstandard file; decompress it first"),
        (b"PK\x03\x04", "a zip archive"),
        (b"\x93NUMPY", "one NumPy array"),
        (b"\x89HDF\r\n", "an HDF5 file"),
        (b"\x80\x04", "a pickle, which is never loaded"),
        (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    ],
)
def test_binary_files_are_named_where_a_text_is_asked_for(tmp_path: Path, format: str, head: bytes, said: str) -> None:
    path = tmp_path / "model"
    path.write_bytes(head + bytes(40))
    with pytest.raises(InputError, match=said):
        read(path, format, 16 << 20)


def read(path: Path, format: str | None, segment_bytes: int) -> None:
    source = open_source(str(path), format, ReadOptions(segment_bytes=segment_bytes, rewards=None))
    for block in source.blocks():
        block()
    source.check_totals()
