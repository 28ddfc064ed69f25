"""Archives of NumPy arrays: what is taken, what is refused, and in how much memory."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from format_checks import OTHER, SIZES, peak_bytes, read, refusal, same
from paths import PUBLIC

from ooc_mdp.io.arrays.npz import ARRAYS
from ooc_mdp.io.source import ReadOptions

CASES = sorted(PUBLIC.glob("*/model.npz"))
SMALL = {
    "state_ptr": np.array([0, 2, 3, 3]),
    "indptr": np.array([0, 2, 3, 4]),
    "indices": np.array([0, 1, 2, 2], np.int32),
    "data": np.array([0.25, 0.75, 1.0, 1.0]),
}
"""Three states: 0 has two actions, 1 has one, 2 none."""


def arrays_file(path: Path, **changes: np.ndarray | None) -> Path:
    members = {name: value for name, value in (SMALL | changes).items() if value is not None}
    np.savez_compressed(path, **members)
    return path


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("model", CASES, ids=lambda path: path.parent.name)
def test_every_shared_case_is_read_exactly_whatever_the_block_size(model, size):
    if model.stat().st_size > 1 << 20 and size < 1000:
        pytest.skip("a block a state of a large case says nothing more")
    with np.load(model) as case:
        rows = read(ARRAYS, model, segment_bytes=size)
        same(rows, case)
        reward = np.zeros(rows["rewards"].size)
        if "r_sas" in case:
            reward += np.add.reduceat(case["data"] * case["r_sas"], case["indptr"][:-1])
        if "r_sa" in case:
            reward += case["r_sa"]
        if "r_s" in case:
            reward += np.repeat(case["r_s"], np.diff(case["state_ptr"]))
            terminal = np.diff(case["state_ptr"]) == 0
            np.testing.assert_array_equal(rows["terminal_rewards"], np.where(terminal, case["r_s"], 0.0))
        np.testing.assert_allclose(rows["rewards"], reward, rtol=1e-13, atol=1e-15)


def test_rewards_of_states_rows_and_transitions_add_up_and_a_terminal_state_keeps_its_own(tmp_path):
    path = arrays_file(
        tmp_path / "m.npz",
        r_s=np.array([1, 10, 100]),
        r_sa=np.array([0.5, 0.25, 0.0]),
        r_sas=np.array([4.0, 8.0, 16.0, 32.0]),
    )
    rows = read(ARRAYS, path)
    np.testing.assert_array_equal(rows["rewards"], [1 + 0.5 + 1 + 6, 1 + 0.25 + 16, 10 + 32])
    np.testing.assert_array_equal(rows["terminal_rewards"], [0, 0, 100])


def test_durations_and_row_labels_reach_the_rows(tmp_path):
    path = arrays_file(
        tmp_path / "m.npz", durations=np.array([1.0, 2.5, 3.0]), row_label=np.array([4, 7, 0], np.uint16)
    )
    source = ARRAYS.open(str(path), ReadOptions())
    (block,) = [read() for read in source.blocks()]
    source.close()
    np.testing.assert_array_equal(block.rows.durations, [1.0, 2.5, 3.0])
    np.testing.assert_array_equal(block.rows.action_labels, [4, 7, 0])


def test_blocks_may_be_read_twice(tmp_path):
    source = ARRAYS.open(str(arrays_file(tmp_path / "m.npz")), ReadOptions(segment_bytes=1))
    assert [len([read() for read in source.blocks()]) for _ in range(2)] == [3, 3]
    source.close()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"data": None}, "data.npy is missing"),
        ({"state_ptr": np.array([1, 2, 3, 3])}, "state_ptr.npy: starts with 1"),
        ({"state_ptr": np.array([0, 3, 2, 3])}, "state_ptr.npy: falls from 3 to 2 at entry 2"),
        ({"state_ptr": np.array([0, 2, 2, 2])}, "state_ptr.npy: ends at 2, but there are 3 rows"),
        ({"state_ptr": np.array([0, 2, 9, 9])}, "state_ptr.npy: entry 2 is 9, but there are 3 rows"),
        ({"indptr": np.array([0, 2, 3, 5])}, "indptr.npy: entry 3 is 5, but there are 4 entries in indices"),
        ({"indptr": np.array([0, 2, 3, 3])}, "indptr.npy: ends at 3, but there are 4"),
        ({"indptr": np.array([[0, 2, 3, 4]])}, "indptr.npy: has 2 dimensions"),
        ({"state_ptr": np.array([0.0, 2, 3, 3])}, "state_ptr.npy: dtype is float64; it must be integers"),
        ({"state_ptr": np.array([0])}, "state_ptr.npy: has 1 entries"),
        ({"data": np.ones(3)}, "data.npy: has 3 entries, but indices.npy asks for 4"),
        ({"data": np.ones(4, complex)}, "data.npy: dtype is complex128"),
        ({"data": np.ones(4, np.longdouble)}, "data.npy: dtype is float128"),
        ({"data": np.array([0.25, 0.5, 1.0, 1.0])}, "state 0, action 0: probabilities sum to 0.75"),
        ({"data": np.array([np.nan, 0.75, 1.0, 1.0])}, "probability of successor 0 is NaN"),
        ({"indices": np.array([0, 1, 3, 2])}, "state 0, action 1: successor 3 does not exist"),
        ({"indices": np.array([0, -1, 2, 2])}, "successor -1 is negative"),
        ({"indices": np.array([0, 2**63, 2, 2], np.uint64)}, "indices.npy: holds 9223372036854775808"),
        ({"r_sa": np.array([1.0, np.inf, 0])}, "state 0, action 1: reward is inf"),
        ({"r_s": np.array([1.0, 0, np.nan])}, "state 2: reward is NaN"),
        ({"durations": np.array([1.0, 0, 1])}, "duration is 0"),
        ({"r_sas": np.ones(5)}, "r_sas.npy: has 5 entries, but indices.npy asks for 4"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_inconsistent_arrays_are_refused_by_member_and_number(tmp_path, changes, said):
    if "float128" in said and np.longdouble is not None and np.dtype(np.longdouble).itemsize == 8:
        pytest.skip("long double is float64 here")
    assert said in str(refusal(ARRAYS, arrays_file(tmp_path / "m.npz", **changes)))


def test_a_row_with_more_transitions_than_states_is_refused_before_it_is_read(tmp_path):
    path = arrays_file(
        tmp_path / "m.npz",
        state_ptr=np.array([0, 1]),
        indptr=np.array([0, 1000]),
        indices=np.zeros(1000, np.int64),
        data=np.full(1000, 0.001),
    )
    assert "row 0 has 1000 transitions, more than the 1 states" in str(refusal(ARRAYS, path))


def test_python_objects_are_refused_and_never_unpickled(tmp_path):
    class Trap:
        def __reduce__(self):
            return pytest.fail, ("unpickled",)

    path = tmp_path / "m.npz"
    np.savez(path, **(SMALL | {"data": np.array([Trap()], object)}))
    assert "Python objects" in str(refusal(ARRAYS, path))


def zip_with(path: Path, members: dict[str, bytes], unix_mode: int = 0) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.external_attr = unix_mode << 16
            archive.writestr(info, data)
    return path


def npy(header: str, body: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY" + version + struct.pack("<H" if version[0] == 1 else "<I", len(text)) + text + body


@pytest.mark.parametrize(
    "name", ["../up.npy", "a/../../up.npy", "/abs.npy", "C:\\abs.npy", "c:abs.npy", "..\\up.npy", "\\abs.npy"]
)
def test_member_names_that_point_outside_are_refused_by_name(tmp_path, name):
    path = zip_with(tmp_path / "m.npz", {name: b"", "state_ptr.npy": b""})
    assert "points outside" in str(refusal(ARRAYS, path))


def test_links_in_an_archive_are_refused(tmp_path):
    path = zip_with(tmp_path / "m.npz", {"state_ptr.npy": b"/etc"}, unix_mode=0o120777)
    assert "symbolic link" in str(refusal(ARRAYS, path))


@pytest.mark.parametrize("name", ["rewards", "R", "R_SA", "r_sa_", "P", "comment", "r_sa.txt", "sub/r_sa"])
def test_members_under_other_names_are_refused_with_the_names_there_are(tmp_path, name):
    path = arrays_file(tmp_path / "m.npz", **{name: np.array([1.0, 2.0, 3.0])})
    error = str(refusal(ARRAYS, path))
    assert f"member '{name}.npy' is none that is read" in error
    assert "state_ptr, indptr, indices, data, r_s, r_sa, r_sas, row_label, durations" in error


def test_a_member_that_is_no_npy_file_is_refused_by_name(tmp_path):
    path = arrays_file(tmp_path / "m.npz")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("r_sa", b"1 2 3")
    assert "member 'r_sa' is none that is read" in str(refusal(ARRAYS, path))


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f8', 'fortran_order': False, 'shape': (3, \n",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (3,), \n",
        "{'descr': '<f8', 'fortran_order': False, 'sh",
        "{'descr': '<f8', 'fortran_order'",
        '{\'descr\': """<f8',
        "{'descr': ',', 'fortran_order': False, 'shape': (3,)}\n",
        "{'descr': '<f8', 'fortran_order': False, 'shape': (3L,)}\n",
        "{'descr': ('<f8', (2, 2)), 'fortran_order': False, 'shape': (3,)}\n",
        "(" * 5000,
        "",
        "\n",
        "\x00\x01",
        "  \n\t 1",
    ],
)
def test_a_header_of_npy_data_that_is_cut_or_altered_is_refused_by_name(tmp_path, header):
    path = arrays_file(tmp_path / "whole.npz")
    with np.load(path) as arrays:
        members = {f"{name}.npy": npy(np_header(array), array.tobytes()) for name, array in arrays.items()}
    members["data.npy"] = npy(header, bytes(32))
    assert "data.npy: " in str(refusal(ARRAYS, zip_with(tmp_path / "m.npz", members)))


def np_header(array: np.ndarray) -> str:
    return f"{{'descr': '{array.dtype.str}', 'fortran_order': False, 'shape': ({array.size},), }}"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (
            npy("{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000000000,), }", bytes(64)),
            "64 are",
        ),
        (npy("{'descr': '<i8', 'fortran_order': False, 'shape': (-1,), }", bytes(8)), "shape (-1,)"),
        (npy("{'descr': '<i8', 'fortran_order': False, 'shape': (2,), }", bytes(8)), "announces 16 bytes"),
        (npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", b"cos\n"), "Python objects"),
        (npy("{'descr': __import__('os'), 'shape': ()}"), "cannot be read"),
        (npy("x", version=b"\x03\x00"), "version 3.0"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff{}", "header of 4294967295 bytes"),
        (b"GIF89a" + bytes(20), "not an .npy array"),
        (b"", "0 bytes are too few"),
    ],
)
def test_headers_are_compared_with_what_is_there_before_anything_is_allocated(tmp_path, data, said):
    path = zip_with(tmp_path / "m.npz", {"state_ptr.npy": data})

    def refused():
        assert said in str(refusal(ARRAYS, path))

    assert peak_bytes(refused) < 4 << 20


def test_a_damaged_or_cut_archive_is_refused(tmp_path):
    path = arrays_file(tmp_path / "m.npz", data=np.array([0.25, 0.75, 1.0, 1.0]))
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    assert "not a readable .npz" in str(refusal(ARRAYS, path))
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        at = archive.getinfo("indices.npy").header_offset
    flipped = bytearray(whole)
    flipped[at + 70] ^= 0xFF
    path.write_bytes(flipped)
    assert "indices.npy" in str(refusal(ARRAYS, path))


def test_memory_follows_the_block_and_not_the_archive(tmp_path):
    n, per_row = 200_000, 8
    path = tmp_path / "m.npz"
    np.savez_compressed(
        path,
        state_ptr=np.arange(n + 1),
        indptr=np.arange(n + 1) * per_row,
        indices=np.tile(np.arange(per_row, dtype=np.int32), n),
        data=np.full(n * per_row, 1 / per_row),
    )
    arrays_file(tmp_path / "warm.npz")
    read(ARRAYS, tmp_path / "warm.npz")

    def through():
        source = ARRAYS.open(str(path), ReadOptions(segment_bytes=1 << 18))
        for read_block in source.blocks():
            read_block()
        source.close()

    assert peak_bytes(through) < 6 << 20 < n * per_row * 12


@pytest.mark.skipif(not OTHER.is_dir(), reason="the shared cases are not here")
@pytest.mark.parametrize("name", ["traversal.npz", "zip_bomb.npz", "traversal.zarr.zip", "symlink.zarr.zip"])
def test_hostile_archives_are_refused_in_little_memory(name):
    assert peak_bytes(lambda: refusal(ARRAYS, OTHER / name)) < 2 << 20
