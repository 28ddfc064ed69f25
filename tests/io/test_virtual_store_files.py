"""Virtual stores of a user's Python file: it runs only where it is trusted, and only as it was recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import ooc, refused
from user_files import LEAKING_TANK

import ooc_mdp
from ooc_mdp.errors import OptionsError
from ooc_mdp.io.virtual_store import read_virtual_store


@pytest.fixture
def tank(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A virtual store of a Python file, the file, and what exists once the file was run."""
    path, file, marker = tmp_path / "v", tmp_path / "leak.py", tmp_path / "marker"
    file.write_text(f"from pathlib import Path\nPath({str(marker)!r}).touch()\n{LEAKING_TANK}")
    ooc_mdp.generate(file, path, {"grid": 30}, device="cpu", virtual=True)
    marker.unlink()
    return path, file, marker


def test_a_python_file_is_run_only_where_it_is_trusted_and_unchanged(tank):
    path, file, marker = tank
    digest = read_virtual_store(path).provenance["file"]["sha256"]
    for said in (refused("solve", path, "--discount", 0.5), refused("check", path), refused("verify", path, "r")):
        for part in (str(file), f"recorded SHA-256 '{digest}'", f"there now: SHA-256 {digest}", "--trust"):
            assert part in said.replace("\n", " ")
    with pytest.raises(OptionsError, match=r"in Python trust=True"):
        ooc_mdp.solve(path, 0.5)
    shown = ooc("inspect", path)
    assert str(file) in shown.out
    assert not marker.exists()
    notes: list[str] = []
    table = ooc_mdp.open_store(path, trust=True, note=notes.append)
    assert notes == [f"running the Python file {str(file)!r} (SHA-256 {digest}), which {path} names"]
    assert marker.exists()
    assert table.n_states == 30
    marker.unlink()
    file.write_text(file.read_text() + "# a remark\n")
    assert "runs only the file that was recorded" in refused("solve", path, "--discount", 0.5, "--trust")
    file.unlink()
    assert "No such file" in refused("check", path, "--trust").replace("\n", " ")
    assert not marker.exists()


def test_a_trusted_file_is_solved_verified_and_checked(tank, tmp_path):
    path, file, _ = tank
    trusted = ("--trust", "--json")
    solved = ooc("solve", path, "--discount", 0.5, "--device", "cpu", "--output", tmp_path / "r", *trusted)
    assert solved.status == 0, solved.err
    assert f"running the Python file '{file}'" in solved.err
    assert ooc("verify", path, tmp_path / "r", *trusted).figures["holds"]
    assert ooc("check", path, *trusted).figures["valid"]
