"""Opening a source without naming its format, and what is said of sources that no format takes."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from format_checks import OTHER, peak_bytes, rows_of
from paths import PUBLIC, REPOSITORY

from ooc_mdp.errors import InputError, OptionsError
from ooc_mdp.io.registry import FORMAT_NAMES, FORMATS, ReadOptions, open_source

JOHANNSSON = b"S:0:0:1\nA:0:1\nD:1:1:5\nS:1:0:0\n"
XML = b'<MDP><States><State id="0"/></States></MDP>'
NAMES = [known.name for known in FORMATS]


def rows_in(source: Path | str, format: str | None = None, **options: object) -> dict[str, np.ndarray]:
    with closing(open_source(str(source), format, ReadOptions(**options))) as opened:  # type: ignore[arg-type]
        return rows_of(opened)


def refused(source: Path | str, format: str | None = None, **options: object) -> InputError:
    with pytest.raises(InputError) as caught:
        rows_in(source, format, **options)
    assert len(str(caught.value)) < 600
    return caught.value


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_every_format_has_a_name_of_its_own_and_a_line_of_description():
    assert set(NAMES) >= {
        "arrays",
        "drn",
        "gymnasium",
        "johannsson",
        "johannsson-xml",
        "mdptoolbox",
        "prism",
        "quantecon",
        "transition-list",
        "umb",
    }
    assert tuple(NAMES) == FORMAT_NAMES
    assert all(known.description and "\n" not in known.description for known in FORMATS)


def test_importing_the_package_imports_no_reader_and_no_compiler():
    code = (
        "import sys, ooc_mdp.io.registry; "
        "print(sorted(m for m in sys.modules if m.startswith(('numba', 'ooc_mdp.io.', 'gymnasium'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['ooc_mdp.io.registry', 'ooc_mdp.io.source']"


def test_an_attribute_that_is_not_there_is_reported_as_such():
    import ooc_mdp.io.registry

    with pytest.raises(AttributeError, match="NOTHING"):
        _ = ooc_mdp.io.registry.NOTHING


@pytest.mark.parametrize("name", ["model", "model.txt", "model.dat"])
def test_a_format_is_known_by_its_contents_whatever_the_file_is_called(tmp_path, name):
    def opened(data: bytes) -> str:
        source = open_source(str(written(tmp_path / name, data)), None, ReadOptions())
        source.close()
        return source.format

    assert opened(JOHANNSSON) == "johannsson"
    assert opened(XML) == "johannsson-xml"
    archive = io.BytesIO()
    pointers = {"state_ptr": np.array([0, 0]), "indptr": np.array([0])}
    np.savez(archive, **pointers, indices=np.array([], int), data=np.array([]))
    assert opened(archive.getvalue()) == "arrays"
    archive = io.BytesIO()
    np.savez(archive, P=np.ones((1, 1, 1)), R=np.zeros(1))
    assert opened(archive.getvalue()) == "mdptoolbox"
    archive = io.BytesIO()
    np.savez(archive, Q=np.ones((1, 1, 1)), R=np.zeros((1, 1)))
    assert opened(archive.getvalue()) == "quantecon"


def test_a_folder_of_pymdptoolbox_arrays_is_opened_and_others_are_not(tmp_path):
    assert "directory without P.npy" in str(refused(tmp_path))
    assert "directory, not a regular file" in str(refused(tmp_path, "johannsson"))
    np.save(tmp_path / "P.npy", np.ones((1, 1, 1)))
    np.save(tmp_path / "R.npy", np.ones(1))
    assert rows_in(tmp_path)["rewards"] == [1.0]


@pytest.mark.skipif(not PUBLIC.is_dir(), reason="the shared cases are not here")
def test_one_model_in_several_formats_is_the_same_model_but_for_the_order_of_states():
    folder = PUBLIC / "qvbs-consensus-2-2" / "formats"
    umb = rows_in(folder / "model.umb")
    prism = rows_in(folder / "consensus.tra", rewards=folder / "consensus.srew")
    for name in ("action_ptr", "successor_ptr"):
        np.testing.assert_array_equal(np.sort(np.diff(umb[name])), np.sort(np.diff(prism[name])))
    for name in ("probabilities", "rewards", "terminal_rewards"):
        np.testing.assert_array_equal(np.sort(umb[name]), np.sort(prism[name]))


def test_an_unknown_format_name_is_refused_with_the_names_there_are(tmp_path):
    with pytest.raises(OptionsError, match=r"did you mean johannsson\?") as caught:
        open_source(str(written(tmp_path / "m", JOHANNSSON)), "johanson", ReadOptions())
    assert all(name in str(caught.value) for name in NAMES)


@pytest.mark.parametrize("text", [XML, JOHANNSSON])
def test_options_that_a_format_has_no_use_for_are_refused(tmp_path, text):
    path = str(written(tmp_path / "m", text))
    with pytest.raises((OptionsError, InputError), match="leave out --rewards"):
        open_source(path, None, ReadOptions(rewards=tmp_path / "r"))
    with pytest.raises(OptionsError, match="leave out --reward-model"):
        open_source(path, None, ReadOptions(reward_model="r"))


@pytest.mark.parametrize("name", ["m.tra", "m.txt"])
def test_a_reward_model_is_not_named_beside_a_reward_file(tmp_path, name):
    path = str(written(tmp_path / name, b"1 1 1\n0 0 0 1\n" if name == "m.tra" else b"0 0 0 1\n"))
    rewards = written(tmp_path / "r", b"1 1\n0 1\n" if name == "m.tra" else b"1\n")
    open_source(path, None, ReadOptions(rewards=rewards)).close()
    with pytest.raises(OptionsError, match=r"--reward-model"):
        open_source(path, None, ReadOptions(rewards=rewards, reward_model="r"))


@pytest.mark.parametrize("format", [None, *sorted(set(NAMES) - {"gymnasium"})])
def test_missing_files_pipes_and_devices_are_refused_before_they_are_read(tmp_path, format):
    assert "no such file" in str(refused(tmp_path / "none", format))
    os.mkfifo(tmp_path / "pipe")
    assert "a pipe" in str(refused(tmp_path / "pipe", format))
    assert "a character device" in str(refused("/dev/zero", format))


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_files_without_permission_are_refused(tmp_path):
    path = written(tmp_path / "m", JOHANNSSON)
    path.chmod(0)
    assert "no permission" in str(refused(path))


@pytest.mark.parametrize("format", [None, *sorted(set(NAMES) - {"gymnasium"})])
def test_an_empty_file_is_refused_at_line_1(tmp_path, format):
    error = refused(written(tmp_path / "m", b""), format)
    assert (error.line, error.message.split(";")[0]) == (1, "the file is empty")


def zipped(**members: bytes) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, contents in members.items():
            archive.writestr(name.replace("_", "."), contents)
    return data.getvalue()


def npy(array: np.ndarray) -> bytes:
    data = io.BytesIO()
    np.save(data, array)
    return data.getvalue()


@pytest.mark.parametrize(
    ("data", "line", "said"),
    [
        (b"\n \n\t\r\n", 3, "nothing but blank lines"),
        ("S:0:0:0\n".encode("utf-16"), 1, "UTF-16"),
        ("S:0:0:0\n".encode("utf-16-le"), 1, "UTF-16"),
        (npy(np.zeros(3)), None, "one NumPy array (.npy)"),
        (b"\x00\x12\x7b\x50" + bytes(30), None, "PETSc binary matrix, which is not read"),
        (b"\x50\x7b\x12\x00" + bytes(30), None, "byte-swapped PETSc"),
        (b"\x89HDF\r\n\x1a\n" + bytes(30), None, "HDF5"),
        (b"\x80\x04\x95" + bytes(30), None, "a pickle, which is never loaded"),
        (zipped(zarr_json=b"{}"), None, "zipped Zarr store; unpack it"),
        (zipped(data_npy=b""), None, "format arrays needs state_ptr"),
        (b'{"zarr_format": 3}', None, "Zarr metadata"),
        (b'{"jani-version": 1}', None, "JANI"),
        (b"mdp\n\nmodule m\nendmodule\n", 1, "PRISM language"),
        (b"one two three\n", 1, "not recognised; the formats are"),
        (bytes(range(256)), None, "binary data of no known kind"),
        (b"\x1f\x8b\x08" + bytes(30), None, "the compressed data are damaged"),
        (gzip.compress(b"one two three\n"), 1, "not recognised"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_no_format_takes_is_refused_with_what_it_seems_to_be(tmp_path, data, line, said):
    error = refused(written(tmp_path / "m", data))
    assert said in str(error)
    assert error.line == line


def test_the_name_of_an_unrecognised_file_says_which_format_was_meant(tmp_path):
    error = refused(written(tmp_path / "m.drn", b"words here\n"))
    assert "it may be drn" in str(error)


def test_a_tar_archive_without_an_index_is_refused(tmp_path):
    with tarfile.open(tmp_path / "m.umb", "w") as archive:
        archive.addfile(tarfile.TarInfo("x"))
    assert "index.json is missing" in str(refused(tmp_path / "m.umb"))


def test_an_environment_is_opened_by_its_prefix():
    pytest.importorskip("gymnasium")
    source = open_source("gymnasium:FrozenLake-v1", None, ReadOptions())
    assert (source.format, source.n_states, source.path) == ("gymnasium", 16, "gymnasium:FrozenLake-v1")


def bad_files() -> list[Path]:
    return sorted(OTHER.iterdir()) if OTHER.is_dir() else []


@pytest.mark.parametrize("path", bad_files(), ids=lambda path: path.name)
def test_every_hostile_container_is_refused_in_little_memory(path):
    assert peak_bytes(lambda: refused(path)) < 4 << 20


@pytest.mark.parametrize("path", bad_files(), ids=lambda path: path.name)
@pytest.mark.parametrize("format", ["arrays", "mdptoolbox", "umb", "johannsson-xml"])
def test_every_hostile_container_is_refused_in_a_named_format_too(path, format):
    assert peak_bytes(lambda: refused(path, format)) < 4 << 20


@pytest.mark.skipif(not OTHER.is_dir(), reason="the shared cases are not here")
def test_lines_of_hostile_text_containers_are_those_of_the_list():
    entries = json.loads((OTHER.parent / "bad.json").read_text())
    listed = {e["file"]: e["line"] for e in entries if e["folder"] == "other" and e["line"][0].isdigit()}
    assert set(listed) == {"billion_laughs.pomdpx", "external_entity.pomdpx"}
    for name, line in listed.items():
        assert refused(OTHER / name).line == int(line[0])
