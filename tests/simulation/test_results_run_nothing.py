"""A result is data: what it names is never run, unless the user names the file or trusts an unchanged one."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import py_compile
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import ooc, refused

import ooc_mdp
from ooc_mdp.errors import OptionsError
from ooc_mdp.simulation import problem_of
from ooc_mdp.store.result import Result

DEFINITION = """
from pathlib import Path
from typing import NamedTuple
from ooc_mdp.problems.control import Axis, ControlProblem

Path({marker!r}).touch()

class Parameters(NamedTuple):
    unused: float = 0.0

def dynamics(state, control, p):
    return (control[0],)

def terminal_reward(state, p):
    return 1.0 if state[0] > 0.0 else 0.0

problem = ControlProblem(
    name="line", summary="x' = u", axes=(Axis("x", -1.0, 1.0),), controls=((-1.0,), (1.0,)), dynamics=dynamics,
    terminal_reward=terminal_reward, parameters=Parameters(), initial_state=(0.5,), max_step=0.01, max_duration=1.0,
)
"""


@dataclasses.dataclass(frozen=True)
class Solved:
    """A result of a user's file."""

    result: Path
    file: Path
    marker: Path
    """Exists once the file was run."""

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.file.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Solved:
    """Made once, as the functions of each file are compiled anew."""
    place = tmp_path_factory.mktemp("solved")
    file, marker = place / "mine.py", place / "marker"
    file.write_text(DEFINITION.format(marker=str(marker)))
    store = ooc_mdp.generate(file, place / "s", {"grid": "11"}, device="cpu")
    ooc_mdp.solve(store, 0.5, device="cpu", output=place / "r")
    assert marker.exists()
    return Solved(place / "r", file, marker)


@pytest.fixture
def solved(made: Solved) -> Iterator[Solved]:
    """A result whose file was not run since; the file may be changed or replaced."""
    made.marker.unlink(missing_ok=True)
    text, times = made.file.read_text(), made.file.stat()
    yield made
    made.file.unlink()
    made.file.write_text(text)
    os.utime(made.file, ns=(times.st_atime_ns, times.st_mtime_ns))
    shutil.rmtree(made.file.with_name("__pycache__"), ignore_errors=True)


def with_provenance(solved: Solved, **changes: Any) -> Result:
    opened = ooc_mdp.open_result(solved.result)
    return dataclasses.replace(opened, provenance={**opened.provenance, **changes})


def test_a_result_of_a_users_file_shows_path_and_digests_and_runs_nothing(solved):
    recorded = solved.sha256
    said = refused("simulate", solved.result)
    for part in (str(solved.file), f"recorded SHA-256 '{recorded}'", f"there now: SHA-256 {recorded}", "--trust"):
        assert part in said.replace("\n", " ")
    solved.file.write_text(solved.file.read_text() + "\n# changed\n")
    assert f"there now: SHA-256 {solved.sha256}" in refused("simulate", solved.result)
    with pytest.raises(OptionsError, match=r"--problem FILE\.py"):
        ooc_mdp.simulate(solved.result)
    assert not solved.marker.exists()


def test_trust_shows_the_file_and_runs_it(solved):
    ran = ooc("simulate", solved.result, "--trust", "--duration", 3)
    assert ran.status == 0, ran.err
    assert f"running the Python file '{solved.file}' (SHA-256 {solved.sha256})" in ran.err
    assert solved.marker.exists()
    assert problem_of(ooc_mdp.open_result(solved.result), trust=True).name == "line"


def test_trust_refuses_a_file_that_changed_and_the_file_named_by_the_user_runs(solved):
    solved.file.write_text(solved.file.read_text() + "\n# changed\n")
    assert "--problem FILE.py" in refused("simulate", solved.result, "--trust")
    with pytest.raises(OptionsError, match=r"runs only the file that was recorded"):
        ooc_mdp.simulate(solved.result, trust=True)
    assert not solved.marker.exists()
    notes: list[str] = []
    problem_of(ooc_mdp.open_result(solved.result), str(solved.file), note=notes.append)
    assert solved.marker.exists()
    assert "has changed since" in notes[0]
    assert "leave one of them out" in refused("simulate", solved.result, "--trust", "--problem", solved.file)


def test_bytecode_beside_a_trusted_file_is_not_run(solved):
    """A .pyc with the time and size of the file would run in its place, with another digest than the one shown."""
    text, times = solved.file.read_text(), solved.file.stat()
    solved.file.write_text(text.replace("marker", "mbrker"))
    os.utime(solved.file, ns=(times.st_atime_ns, times.st_mtime_ns))
    py_compile.compile(str(solved.file), doraise=True)
    solved.file.write_text(text)
    os.utime(solved.file, ns=(times.st_atime_ns, times.st_mtime_ns))
    ooc_mdp.simulate(solved.result, duration=0.1, trust=True)
    assert solved.marker.exists()
    assert not solved.marker.with_name("mbrker").exists()


@pytest.mark.parametrize("trust", [False, True])
@pytest.mark.parametrize("recorded", [None, {}, [], "x", {"path": 3, "sha256": 4}, {"path": "a\0.py", "sha256": ""}])
@pytest.mark.parametrize("source", ["FILE", "problem:FILE", "gymnasium:FILE", None])
def test_no_name_in_a_result_leads_to_its_file(solved, source, recorded, trust):
    name = None if source is None else source.replace("FILE", str(solved.file))
    opened = with_provenance(solved, source=name, file=recorded)
    with pytest.raises(OptionsError):
        problem_of(opened, None, trust)
    assert not solved.marker.exists()


@pytest.mark.parametrize("trust", [False, True])
def test_a_pipe_or_a_device_in_place_of_the_recorded_file_is_not_waited_for(solved, trust):
    digest = solved.sha256
    solved.file.unlink()
    os.mkfifo(solved.file)
    for path in (str(solved.file), "/dev/zero"):
        opened = with_provenance(solved, file={"path": path, "sha256": digest})
        with pytest.raises(OptionsError, match="it is not a regular file"):
            problem_of(opened, None, trust)


def test_built_in_problems_need_no_file(tmp_path):
    store = ooc_mdp.generate("mountain-car", tmp_path / "s", {"grid": "11"}, device="cpu")
    ooc_mdp.solve(store, 0.5, device="cpu", output=tmp_path / "r")
    assert problem_of(ooc_mdp.open_result(tmp_path / "r")).name == "mountain-car"
