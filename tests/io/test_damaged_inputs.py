"""Compressed inputs whose bytes were altered: refused by their checksums, or read as if nothing had happened."""

from __future__ import annotations

import gzip
import lzma
import os
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sparse
from command_line import ooc
from format_checks import peak_bytes
from umb_files import f8, umb_file, umb_index

import ooc_mdp
from ooc_mdp.errors import InputError
from ooc_mdp.io.registry import ReadOptions, open_source

ARRAYS = {
    "state_ptr": np.array([0, 2, 3, 3]),
    "indptr": np.array([0, 2, 3, 4]),
    "indices": np.array([0, 1, 2, 2]),
    "data": np.array([0.25, 0.75, 1.0, 1.0]),
    "r_sa": np.array([1.0, 2.0, 3.0]),
    "r_s": np.array([0.0, 0.0, 7.0]),
    "row_label": np.array([5, 6, 7]),
    "durations": np.array([1.0, 2.0, 1.0]),
}
P = np.array([[[0.25, 0.75, 0.0], [0.0, 1.0, 0.0], [0.5, 0.0, 0.5]], np.eye(3)])
R = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
SAVERS = {"stored": np.savez, "deflated": np.savez_compressed}
CHECKS = {"crc32": lzma.CHECK_CRC32, "crc64": lzma.CHECK_CRC64, "sha256": lzma.CHECK_SHA256}


def arrays_file(folder: Path, kind: str) -> tuple[Path, Path]:
    SAVERS[kind](folder / "m.npz", **ARRAYS)
    return folder / "m.npz", folder / "m.npz"


def dense_file(folder: Path, kind: str) -> tuple[Path, Path]:
    SAVERS[kind](folder / "m.npz", P=P, R=R)
    return folder / "m.npz", folder / "m.npz"


def sparse_folder(folder: Path, kind: str) -> tuple[Path, Path]:
    for action in range(2):
        for name, matrices in (("P", P), ("R", 2 * P)):
            matrix = sparse.csr_matrix(matrices[action])
            sparse.save_npz(folder / f"{name}{action}.npz", matrix, compressed=kind == "deflated")
    return folder, folder / "P1.npz"


def umb(folder: Path, kind: str) -> tuple[Path, Path]:
    plain = umb_file(folder / "plain.umb", umb_index()).read_bytes()
    path = folder / "m.umb"
    if kind == "gzip":
        path.write_bytes(gzip.compress(plain, mtime=0))
    elif kind == "gzip-stored":
        path.write_bytes(gzip.compress(plain.rstrip(b"\0") + bytes(1024), compresslevel=0, mtime=0))
    else:
        path.write_bytes(lzma.compress(plain, check=CHECKS[kind]))
    return path, path


Make = Callable[[Path, str], tuple[Path, Path]]
CASES = [
    *((make, kind) for make in (arrays_file, dense_file, sparse_folder) for kind in SAVERS),
    *((umb, kind) for kind in ("gzip", *CHECKS)),
]
each_case = pytest.mark.parametrize(("make", "kind"), CASES, ids=[f"{m.__name__}-{k}" for m, k in CASES])


def reward_model(make: Make) -> str | None:
    return "cost" if make is umb else None


def contents(source: Path, reward: str | None) -> list[object]:
    """Every array of every block, byte for byte; blocks are of one state, so numbers are used before a stream ends."""
    opened = open_source(str(source), None, ReadOptions(reward_model=reward, segment_bytes=1))
    try:
        blocks = [read() for read in opened.blocks()]
        opened.check_totals()
    finally:
        opened.close()
    found: list[object] = []
    for block in blocks:
        arrays = [getattr(block.rows, name) for name in block.rows.__dataclass_fields__]
        found.append([block.first_state, *(None if a is None else (a.dtype.str, a.tobytes()) for a in arrays)])
    return found


def check_damage(folder: Path, make: Make, kind: str, step: int, masks: tuple[int, ...]) -> None:
    """Alter one byte in every `step`; each time the model is refused or stays as it was. Some of both must occur."""
    source, file = make(folder, kind)
    reward = reward_model(make)
    whole, sound = contents(source, reward), file.read_bytes()
    refusals = []
    for at in range(0, len(sound), step):
        for mask in masks:
            damaged = bytearray(sound)
            damaged[at] ^= mask
            file.write_bytes(damaged)
            try:
                assert contents(source, reward) == whole, f"byte {at} ^ {mask:#x} gives another model"
            except InputError as error:
                refusals.append(error.path)
    assert len(refusals) > len(sound) // step // 2
    assert set(refusals) <= {str(source), str(file)}


@each_case
def test_altered_bytes_are_refused_or_change_nothing(tmp_path, make, kind):
    check_damage(tmp_path, make, kind, 11, (0xFF,))


@pytest.mark.slow
@each_case
def test_every_altered_byte_is_refused_or_changes_nothing(tmp_path, make, kind):
    check_damage(tmp_path, make, kind, 1, (0x01, 0x80, 0xFF))


@each_case
def test_conversion_of_altered_bytes_ends_with_status_2_or_gives_the_same_store(tmp_path, make, kind):
    (tmp_path / "model").mkdir()
    source, file = make(tmp_path / "model", kind)
    options = ("--reward-model", "cost") if make is umb else ()
    assert ooc("convert", source, tmp_path / "whole", *options).status == 0
    fingerprint = ooc_mdp.open_store(tmp_path / "whole").fingerprint
    sound = file.read_bytes()
    for number, at in enumerate(range(5, len(sound), len(sound) // 12)):
        damaged = bytearray(sound)
        damaged[at] ^= 0x10
        file.write_bytes(damaged)
        store = tmp_path / f"s{number}"
        ran = ooc("convert", source, store, *options)
        assert "Traceback" not in ran.err
        if ran.status == 0:
            assert ooc_mdp.open_store(store).fingerprint == fingerprint
        else:
            assert (ran.status, store.exists()) == (2, False)


@pytest.mark.parametrize("kind", SAVERS)
@pytest.mark.parametrize("name", ["data", "r_sa"])
def test_a_member_of_an_npz_that_fails_its_checksum_is_named_when_the_model_is_opened(tmp_path, kind, name):
    path, _ = arrays_file(tmp_path, kind)
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo(f"{name}.npy")
    sound = bytearray(path.read_bytes())
    local = struct.unpack_from("<HH", sound, info.header_offset + 26)
    sound[info.header_offset + 30 + sum(local) + info.compress_size - 5] ^= 0x04
    path.write_bytes(sound)
    with pytest.raises(InputError, match=rf"m.npz: {name}.npy: damaged \(.*\); write the file again"):
        open_source(str(path), None, ReadOptions())


def test_a_damaged_length_does_not_hide_the_optional_arrays_of_an_npz(tmp_path):
    """A comment's length in the archive's directory swallows the entries after it; the rewards were left out."""
    path, _ = arrays_file(tmp_path, "stored")
    damaged = bytearray(path.read_bytes())
    entry = damaged.index(b"r_sa.npy", damaged.index(b"PK\x01\x02")) - 46
    damaged[entry + 33] ^= 0x01
    path.write_bytes(damaged)
    with pytest.raises(InputError, match=r"member 'r_sa.npy' has a comment of \d+ bytes"):
        open_source(str(path), None, ReadOptions())


def test_a_damaged_name_does_not_hide_an_optional_array_of_an_npz(tmp_path):
    path, _ = arrays_file(tmp_path, "deflated")
    sound = path.read_bytes()
    for at in (sound.index(b"r_s.npy"), sound.rindex(b"r_s.npy")):
        path.write_bytes(sound[:at] + b"x" + sound[at + 1 :])
        with pytest.raises(InputError, match="damaged"):
            open_source(str(path), None, ReadOptions())


def test_a_number_altered_in_a_gzip_file_is_refused_by_its_checksum(tmp_path):
    """Blocks of gzip that are stored hold the numbers as they are, so another number decompresses without complaint."""
    path, _ = umb(tmp_path, "gzip-stored")
    path.write_bytes(path.read_bytes().replace(f8(0.5, 0.25, 0), f8(0.5, 0.75, 0)))
    with pytest.raises(InputError, match=r"m.umb: the compressed data are damaged \(CRC check failed.*write the file"):
        open_source(str(path), None, ReadOptions(reward_model="cost"))


def test_index_json_altered_in_a_gzip_file_is_refused_by_the_checksum_too(tmp_path):
    path, _ = umb(tmp_path, "gzip-stored")
    path.write_bytes(path.read_bytes().replace(b'"cost"', b'"coat"'))
    with pytest.raises(InputError, match="CRC check failed"):
        open_source(str(path), None, ReadOptions(reward_model="coat"))


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_damage_behind_the_last_member_of_an_archive_is_refused(tmp_path, pack):
    path = tmp_path / "m.umb"
    packed = bytearray(pack(umb_file(tmp_path / "plain.umb", umb_index()).read_bytes()))
    packed[-6] ^= 0x01  # of the CRC or of the footer
    path.write_bytes(packed)
    with pytest.raises(InputError, match="the compressed data are damaged"):
        open_source(str(path), None, ReadOptions(reward_model="cost"))


def test_a_size_beyond_64_bits_in_a_tar_header_is_refused(tmp_path):
    info = tarfile.TarInfo("index.json")
    info.size = 1 << 70
    path = tmp_path / "m.umb"
    path.write_bytes(info.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    with pytest.raises(InputError):
        open_source(str(path), None, ReadOptions())


def test_a_damaged_size_in_an_npz_takes_no_memory(tmp_path):
    """The directory and the array's own header agree on 2^31 bytes; memory follows what is there."""
    path, _ = arrays_file(tmp_path, "stored")
    sound = bytearray(path.read_bytes())
    at = sound.index(b"(4,), }", sound.index(b"data.npy"))
    sound[at : at + 16] = b"(268435456,), } "
    entry = sound.rindex(b"data.npy") - 46
    header = struct.unpack_from("<I", sound, entry + 24)[0] - 4 * 8
    sound[entry + 24 : entry + 28] = struct.pack("<I", header + (1 << 31))
    path.write_bytes(sound)

    def opened() -> None:
        with pytest.raises(InputError, match="damaged"):
            open_source(str(path), None, ReadOptions())

    assert peak_bytes(opened) < 8 << 20


@pytest.mark.parametrize("name", ["P0.npz", "P1.npz", "R0.npz"])
def test_a_pipe_in_place_of_an_archive_of_a_folder_is_refused_without_waiting(tmp_path, name):
    folder, _ = sparse_folder(tmp_path, "stored")
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(InputError, match="this is a pipe"):
        open_source(str(folder), "mdptoolbox", ReadOptions())


@pytest.mark.parametrize("name", ["P.npy", "R.npy"])
def test_a_pipe_in_place_of_a_dense_array_is_refused_without_waiting(tmp_path, name):
    np.save(tmp_path / "P.npy", P)
    np.save(tmp_path / "R.npy", R)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(InputError, match="this is a pipe"):
        open_source(str(tmp_path), "mdptoolbox", ReadOptions())
