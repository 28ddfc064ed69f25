"""Text models compressed with gzip, xz or bzip2 are the models that they hold; damaged and hostile ones are refused."""

from __future__ import annotations

import bz2
import gc
import gzip
import io
import lzma
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from format_checks import peak_bytes, rows_of

from ooc_mdp.errors import InputError
from ooc_mdp.io.registry import ReadOptions, open_source
from ooc_mdp.io.text import file as text_file

COMPRESS: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress}
JOHANNSSON = b"S:0:0:2\nA:0:2\nD:0:0.5:5\nD:1:0.5:5\nA:1:1\nD:1:1:10\nS:1:0:0\n"
XML = (
    b'<MDP><States><State id="0"><AvailableActions><Action id="0"><ResultingState id="0" probability="1/2" '
    b'actionReward="2"/><ResultingState id="1" probability="0.5" actionReward="-1/4"/></Action></AvailableActions>'
    b'</State><State id="1"/></States></MDP>'
)
DRN = (
    b"@type: MDP\n@parameters\n\n@reward_models\nr\n@nr_states\n2\n@model\n"
    b"state 0 [1]\n\taction 0 [2]\n\t\t0 : 1/3\n\t\t1 : 2/3\nstate 1\n\taction 0\n\t\t1 : 1\n"
)
TRA = b"3 4 6\n0 0 0 1/4 go\n0 0 1 3/4 go\n0 1 2 1 stay\n1 0 0 1/2\n1 0 2 1/2\n2 0 2 1\n"
SREW = b'# Reward structure "steps"\n3 2\n0 5\n1 -1/8\n'
TREW = b"3 4 1\n0 0 1 2\n"
LIST = b"0 0 0 0.5\n0 0 1 0.5\n1 0 1 1\n"
TEXTS = {"m.txt": JOHANNSSON, "m.xml": XML, "m.drn": DRN, "m.tra": TRA, "m.list": LIST}
each_suffix = pytest.mark.parametrize("suffix", COMPRESS)
each_text = pytest.mark.parametrize("name", TEXTS)


def rows(path: Path, format: str | None = None, **options: object) -> dict[str, np.ndarray]:
    source = open_source(str(path), format, ReadOptions(**options))  # type: ignore[arg-type]
    try:
        return {**rows_of(source), "format": np.array(source.format)}
    finally:
        source.close()


def refused(path: Path, format: str | None = None, **options: object) -> InputError:
    with pytest.raises(InputError) as caught:
        rows(path, format, **options)
    assert caught.value.path == str(path)
    assert len(str(caught.value)) < 600
    return caught.value


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def rewards_of(folder: Path, name: str) -> dict[str, object]:
    return {"rewards": written(folder / "r.rew", b"1\n-2\n")} if name == "m.list" else {}


@each_text
@each_suffix
@pytest.mark.parametrize("segment_bytes", [1, 16 << 20])
def test_a_compressed_model_is_the_one_that_it_holds(tmp_path, name, suffix, segment_bytes):
    options = {**rewards_of(tmp_path, name), "segment_bytes": segment_bytes}
    plain = rows(written(tmp_path / name, TEXTS[name]), **options)
    data = COMPRESS[suffix](TEXTS[name])
    for path in (tmp_path / f"{name}{suffix}", tmp_path / "other"):
        if name == "m.tra" and path.suffix != suffix:
            continue
        for format in (None, str(plain["format"])):
            np.testing.assert_equal(rows(written(path, data), format, **options), plain)


@each_suffix
def test_companion_files_may_be_compressed_whether_the_model_is_or_not(tmp_path, suffix):
    tra = written(tmp_path / "m.tra", TRA)
    written(tmp_path / "m.srew", SREW)
    written(tmp_path / "m.trew", TREW)
    due = rows(tra)
    assert due["rewards"].tolist() == [6.5, 5.0, -0.125, 0.0]
    for name in ("m.srew", "m.trew"):
        written(tmp_path / (name + suffix), COMPRESS[suffix]((tmp_path / name).read_bytes()))
        (tmp_path / name).unlink()
    written(tmp_path / f"m.lab{suffix}", COMPRESS[suffix](b'0="init"\n0: 0\n'))
    np.testing.assert_equal(rows(tra), due)
    packed = written(tmp_path / f"m.tra{suffix}", COMPRESS[suffix](TRA))
    np.testing.assert_equal(rows(packed), due)
    written(tmp_path / f"m.lab{suffix}", COMPRESS[suffix](b'0="init"\n7: 0\n'))
    with pytest.raises(InputError, match="last state is 7"):
        rows(tra)


@each_suffix
def test_rewards_of_a_transition_list_may_be_compressed(tmp_path, suffix):
    model = written(tmp_path / "m.list", LIST)
    due = rows(model, rewards=written(tmp_path / "r.rew", b"1\n-2/3\n"))
    packed = written(tmp_path / f"r.rew{suffix}", COMPRESS[suffix](b"1\n-2/3\n"))
    np.testing.assert_equal(rows(model, rewards=packed), due)
    bad = written(tmp_path / f"bad.rew{suffix}", COMPRESS[suffix](b"1\nx\n"))
    with pytest.raises(InputError, match=r"bad\.rew.*, line 2: reward 'x'"):
        rows(model, rewards=bad)


def test_a_companion_file_that_is_there_twice_is_refused(tmp_path):
    tra = written(tmp_path / "m.tra", TRA)
    written(tmp_path / "m.srew", SREW)
    again = written(tmp_path / "m.srew.gz", gzip.compress(SREW))
    with pytest.raises(InputError, match=r"m\.srew is there as well; keep one of the two") as caught:
        rows(tra)
    assert caught.value.path == str(again)


@each_suffix
def test_an_error_is_named_by_its_line_in_the_text(tmp_path, suffix):
    path = written(tmp_path / f"m.tra{suffix}", COMPRESS[suffix](TRA.replace(b"1 0 2 1/2", b"1 0 2 x")))
    for format in (None, "prism"):
        error = refused(path, format)
        assert (error.line, error.message.split(";")[0]) == (6, "probability 'x' is not a decimal number")


@each_suffix
def test_several_compressed_streams_in_one_file_are_one_text(tmp_path, suffix):
    due = rows(written(tmp_path / "m.txt", JOHANNSSON))
    halves = JOHANNSSON[:20], JOHANNSSON[20:]
    path = written(tmp_path / f"m.txt{suffix}", b"".join(map(COMPRESS[suffix], halves)))
    np.testing.assert_equal(rows(path), due)


@each_text
@each_suffix
def test_a_compressed_file_cut_anywhere_is_refused_by_name(tmp_path, name, suffix):
    options = rewards_of(tmp_path, name)
    data = COMPRESS[suffix](TEXTS[name])
    for end in range(7, len(data)):
        path = written(tmp_path / f"{name}{suffix}", data[:end])
        assert "the compressed data are damaged or cut short" in str(refused(path, **options))


@each_suffix
def test_a_compressed_file_with_an_altered_byte_is_refused_or_unchanged(tmp_path, suffix):
    due = rows(written(tmp_path / "m.txt", JOHANNSSON))
    data = COMPRESS[suffix](JOHANNSSON)
    refusals = 0
    for at in range(len(data)):
        path = written(tmp_path / f"m.txt{suffix}", data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :])
        try:
            found = rows(path, "johannsson")
        except InputError:
            refusals += 1
        else:
            np.testing.assert_equal(found, due)
    assert refusals > len(data) // 2


@each_suffix
def test_a_compressed_file_of_no_text_is_refused_with_what_it_holds(tmp_path, suffix):
    path = tmp_path / f"m.tra{suffix}"
    archive = io.BytesIO()
    np.savez(archive, P=np.ones((1, 1, 1)), R=np.zeros(1))
    for contents, said in (
        (b"", "empty"),
        (b"\n\n", "nothing but blank lines"),
        (archive.getvalue(), "a zip archive"),
        (COMPRESS[suffix](TRA), "inside a compressed file; decompress it first"),
    ):
        written(path, COMPRESS[suffix](contents))
        assert said in str(refused(path, "prism"))
    written(tmp_path / f"m{suffix}", COMPRESS[suffix](archive.getvalue()))
    assert "file holds a zip archive" in str(refused(tmp_path / f"m{suffix}"))


def bomb(piece: bytes, count: int) -> bytes:
    """A small gzip file of many pieces."""
    data = io.BytesIO()
    with gzip.GzipFile(fileobj=data, mode="wb", compresslevel=9) as file:
        for _ in range(count):
            file.write(piece)
    return data.getvalue()


@pytest.mark.parametrize("format", ["prism", "johannsson", "drn", "transition-list"])
def test_a_decompression_bomb_is_refused_in_little_memory_and_disk(tmp_path, monkeypatch, format):
    monkeypatch.setattr(text_file, "_UNSUSPICIOUS", 8 << 20)
    zeros = written(tmp_path / "zeros.gz", bomb(bytes(1 << 20), 64))
    lines = written(tmp_path / "lines.gz", bomb(b"\n" * (1 << 20), 64))

    def both() -> None:
        assert "holds a line of more than" in str(refused(zeros, format))
        assert "expands to more than" in str(refused(lines, format))

    assert peak_bytes(both) < 8 << 20


def test_an_xz_file_with_a_huge_dictionary_is_refused(tmp_path):
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 1 << 20}]
    data = bytearray(lzma.compress(JOHANNSSON, filters=filters))
    path = written(tmp_path / "m.txt.xz", bytes(data))
    assert rows(path)["format"] == "johannsson"
    # The dictionary's size is one byte of the block header, which a CRC-32 follows.
    import zlib

    header = bytes(data[12 : 12 + 4 * (data[12] + 1)])
    huge = header[:4] + b"\x28" + header[5:-4]
    data[12 : 12 + len(header)] = huge + zlib.crc32(huge).to_bytes(4, "little")
    assert "dictionary" in str(refused(written(path, bytes(data)), "johannsson"))


def test_the_text_of_a_compressed_file_is_unnamed_and_gone_after_the_source(tmp_path, monkeypatch):
    room = tmp_path / "room"
    room.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(room))
    path = written(tmp_path / "m.txt.gz", gzip.compress(JOHANNSSON))
    gc.collect()
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else 0
    source = open_source(str(path), None, ReadOptions())
    assert not list(room.iterdir())
    rows_of(source)
    source.close()
    open_source(str(path), None, ReadOptions())
    gc.collect()
    assert not list(room.iterdir())
    assert not before or len(os.listdir("/proc/self/fd")) <= before


def test_a_text_without_room_for_it_is_refused_with_the_remedy(tmp_path, monkeypatch):
    class Full(io.FileIO):
        def write(self, data: object) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **options: Full(tmp_path / "full", "wb"))
    path = written(tmp_path / "m.txt.gz", gzip.compress(JOHANNSSON))
    assert "No space left on device): 57 bytes so far; set TMPDIR" in str(refused(path))


def test_a_folder_for_temporary_files_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    path = written(tmp_path / "m.txt.gz", gzip.compress(JOHANNSSON))
    assert "set TMPDIR to a folder that may be written to" in str(refused(path))


def test_blocks_of_a_compressed_file_are_read_on_threads(tmp_path):
    n = 3000
    text = "".join(f"S:{s}:0:1\nA:0:1\nD:{(s + 1) % n}:1:1\n" for s in range(n)).encode()
    source = open_source(str(written(tmp_path / "m.gz", gzip.compress(text))), None, ReadOptions(segment_bytes=256))
    with ThreadPoolExecutor(4) as threads:
        blocks = list(threads.map(lambda read: read(), list(source.blocks())[::-1]))[::-1]
    source.check_totals()
    source.close()
    successors = np.concatenate([block.rows.successors for block in blocks])
    np.testing.assert_array_equal(successors, (np.arange(n) + 1) % n)
