"""Traces are read as they were written, and refused where they are damaged."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
from command_line import ooc
from damage import cut, flipped
from hypothesis import given
from hypothesis import strategies as st

from ooc_mdp.errors import InputError
from ooc_mdp.report.cache_trace import AccessTrace, read_trace

HEADER = "access,partition,kind,visit,hit,sweeps,bound,priority,seconds\n"


HEAD = "# ooc-mdp trace 3\n# method: vi\n# partitions: 4\n"


def write_trace(path: Path, body: str, head: str = HEAD, sealed: bool = True) -> Path:
    content = (head + HEADER + body).encode()
    end = f"# sha256: {hashlib.sha256(content).hexdigest()}\n" if sealed else ""
    path.write_bytes(content + end.encode())
    return path


GOOD = "0,3,frontier,1,0,5,0.5,-inf,0.1\n1,3,frontier,2,1,5,inf,0.25,0.2\n2,0,auxiliary,0,0,0,nan,1e-05,0.3\n"


def test_a_trace_is_read_as_it_stands(tmp_path: Path) -> None:
    trace = read_trace(write_trace(tmp_path / "t.csv", GOOD))
    assert (trace.n_partitions, trace.method, trace.cut_off, trace.order_is_fixed) == (4, "vi", False, True)
    assert trace.partition.tolist() == [3, 3, 0]
    assert trace.auxiliary.tolist() == [False, False, True]
    assert trace.hit.tolist() == [False, True, False]
    assert trace.priority.tolist() == [-np.inf, 0.25, 1e-05]
    np.testing.assert_array_equal(trace.bound, [0.5, np.inf, np.nan])
    assert trace.seconds.tolist() == [0.1, 0.2, 0.3]


@given(st.integers(0, len("3,1,frontier,1,0,5,0.5,0.125,0.1234")))
def test_half_a_last_line_is_left_out(tmp_path_factory: pytest.TempPathFactory, length: int) -> None:
    half = "3,1,frontier,1,0,5,0.5,0.125,0.1234"[:length]
    trace = read_trace(write_trace(tmp_path_factory.getbasetemp() / "half.csv", GOOD + half, sealed=False))
    assert trace.partition.size == 3
    assert trace.cut_off


MORE = "3,1,frontier,1,0,5,0.5,0.125,0.4\n"


def content_of(trace: AccessTrace) -> tuple[object, ...]:
    arrays = (trace.partition, trace.auxiliary, trace.hit, trace.priority)
    return trace.facts, trace.n_partitions, trace.cut_off, [array.tolist() for array in arrays]


def test_a_trace_with_any_bit_flipped_is_refused(tmp_path: Path) -> None:
    body = GOOD.replace("1,3", "# remark after 0.1 s: the kernel changes\n1,3", 1)
    path = write_trace(tmp_path / "t.csv", body)
    for what in flipped(path):
        with pytest.raises(InputError):
            pytest.fail(f"{what} was read as {content_of(read_trace(path))}")


def test_a_trace_that_is_cut_anywhere_is_refused_or_known_to_be_cut_off(tmp_path: Path) -> None:
    path = write_trace(tmp_path / "t.csv", GOOD)
    whole, cut_off = read_trace(path), 0
    size = path.stat().st_size
    for what in cut(path):
        try:
            trace = read_trace(path)
        except InputError:
            continue
        if path.stat().st_size == size - 1:  # nothing but the end of the last line is missing
            assert content_of(trace) == content_of(whole), what
        else:
            assert trace.cut_off, what
            cut_off += 1
        assert trace.facts == whole.facts, what
        assert whole.partition.tolist()[: trace.partition.size] == trace.partition.tolist(), what
    assert cut_off > 100


@pytest.mark.parametrize("after", ["\n", "x", "3,1,frontier,1,0,5,0.5,0.125,0.1234\n", "# remark after 1 s: more\n"])
def test_what_follows_the_digest_of_a_trace_is_refused(tmp_path: Path, after: str) -> None:
    path = write_trace(tmp_path / "t.csv", GOOD)
    path.write_text(path.read_text() + after)
    with pytest.raises(InputError, match="line 9: something follows the line that ends a trace"):
        read_trace(path)


def test_the_digest_of_another_trace_is_refused(tmp_path: Path) -> None:
    one, other = (write_trace(tmp_path / name, GOOD + more) for name, more in (("a", ""), ("b", MORE)))
    one.write_text("".join(one.read_text().splitlines(keepends=True)[:-1] + other.read_text().splitlines()[-1:]))
    with pytest.raises(InputError, match=r"line 8: the bytes before have the SHA-256 .* they have changed since"):
        read_trace(one)


def test_a_trace_that_is_no_regular_file_or_has_no_lines_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(InputError, match="it is not a regular file"):
        read_trace(tmp_path / "fifo")
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 1 << 40)
    with pytest.raises(InputError, match="line 1: has more than 65536 bytes"):
        read_trace(tmp_path / "sparse")


@pytest.mark.parametrize(
    ("body", "line", "message"),
    [
        ("0,3,frontier,1,0,5,0.5,-inf\n", 5, "8 columns instead of 9"),
        ("\n", 5, "1 columns instead of 9"),
        ("0,4,frontier,1,0,5,0.5,-inf,0.1\n", 5, "partition 4 of 4"),
        ("0,-1,frontier,1,0,5,0.5,-inf,0.1\n", 5, "'-1' is no partition"),
        ("0,1_0,frontier,1,0,5,0.5,-inf,0.1\n", 5, "'1_0' is no partition"),
        ("0,٣,frontier,1,0,5,0.5,-inf,0.1\n", 5, "is no partition"),
        ("0,3,Frontier,1,0,5,0.5,-inf,0.1\n", 5, "'Frontier' is no kind"),
        ("0,3,frontier,1,2,5,0.5,-inf,0.1\n", 5, "'2' is no hit"),
        ("0,3,frontier,1,0,5,0.5,nan,0.1\n", 5, "'nan' is no priority"),
        ("0,3,frontier,1,0,5,,0,0.1\n", 5, "'' is no bound"),
        ("1,3,frontier,1,0,5,0.5,-inf,0.1\n", 5, "access 1 follows -1"),
        (GOOD + "4,3,frontier,3,0,5,0.5,-inf,0.4\n", 8, "access 4 follows 2"),
        (GOOD + "3,3,frontier,2,0,5,0.5,-inf,0.4\n", 8, "visit 2 of partition 3 must be 3"),
        (GOOD + "3,3,auxiliary,3,0,0,0.5,-inf,0.4\n", 8, "visit 3 of partition 3 must be 2"),
        (GOOD + "# comment\n", 8, "1 columns instead of 9"),
        ("0,3,fro\n" + GOOD, 5, "3 columns instead of 9"),
    ],
)
def test_a_malformed_line_is_refused_with_its_number(tmp_path: Path, body: str, line: int, message: str) -> None:
    path = write_trace(tmp_path / "t.csv", body)
    with pytest.raises(InputError) as refusal:
        read_trace(path)
    assert str(refusal.value).startswith(f"{path}, line {line}: ")
    assert message in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: does not begin with '# ooc-mdp trace'"),
        ("state,value\n0,1\n", "line 1: does not begin with '# ooc-mdp trace'"),
        ("# ooc-mdp trace 1\n# partitions: 4\n", "line 1: a trace of version 1, this release reads 3; solve again"),
        ("# ooc-mdp trace 30\n", "a trace of version 30"),
        ("# ooc-mdp trace 3\n# partitions: 4\n", "line 2: ends before the accesses begin"),
        ("# ooc-mdp trace 3\n#partitions 4\n", "line 2: '#partitions 4' is no fact"),
        ("# ooc-mdp trace 3\n# partitions: 4\naccess,partition\n", "line 3: the columns must be access,partition,kind"),
        ("# ooc-mdp trace 3\n" + HEADER, "'# partitions: ' says no number of partitions"),
        ("# ooc-mdp trace 3\n# partitions: 0\n" + HEADER, "'# partitions: 0' says no number"),
        ("# ooc-mdp trace 3\n# partitions: 4\n" + HEADER, "holds no access"),
        ("# ooc-mdp trace 3\n# partitions: 4\n" + HEADER + "0,3,fr", "holds no access"),
    ],
)
def test_what_is_no_trace_is_refused_with_a_remedy(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(InputError) as refusal:
        read_trace(path)
    assert message in str(refusal.value)


def test_a_trace_that_is_no_text_or_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="is no text"):
        read_trace(tmp_path / "t.csv")
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_trace(tmp_path / "missing.csv")
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        read_trace(tmp_path)


def test_the_command_warns_of_a_trace_that_is_cut_off(tmp_path: Path) -> None:
    ran = ooc("cache-curve", write_trace(tmp_path / "t.csv", GOOD + "3,1,fr", sealed=False))
    assert ran.status == 0
    assert "t: the trace is cut off, with no digest at its end: the solve was killed or is at work" in ran.out
