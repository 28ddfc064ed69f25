"""What is released is whole: versions agree, files of data are in the wheel, and an installed wheel solves."""

from __future__ import annotations

import json
import subprocess
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import yaml
from command_line import environment
from paths import REPOSITORY

import ooc_mdp

DATA = (".cu", ".cuh", ".html", ".js", ".typed")
"""Suffixes of the package's files that are no Python."""


def data_files() -> set[str]:
    return {
        str(path.relative_to(REPOSITORY))
        for path in (REPOSITORY / "ooc_mdp").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".py"
    }


def test_the_version_is_written_once_and_cited():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))
    assert "version" not in project["project"]
    assert project["tool"]["hatch"]["version"]["path"] == "ooc_mdp/__init__.py"
    citation = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text("utf-8"))
    assert citation["version"] == ooc_mdp.__version__
    assert {"cff-version", "message", "title", "authors", "license", "abstract"} <= set(citation)
    assert citation["license"] == project["project"]["license"]
    assert f"## [{ooc_mdp.__version__}]" in (REPOSITORY / "CHANGELOG.md").read_text("utf-8")


def test_every_file_of_the_package_is_python_or_data_of_a_known_kind():
    """The wheel has the folder `ooc_mdp`; a file of another kind is there by mistake, or this list is behind."""
    found = data_files()
    assert {Path(name).suffix for name in found} - {""} <= set(DATA)
    assert any(name.endswith("tiles/sweeps.cu") for name in found)


def test_a_release_is_published_from_a_tag_only_after_its_tests_and_without_a_password():
    text = (REPOSITORY / ".github" / "workflows" / "release.yml").read_text("utf-8")
    workflow = yaml.safe_load(text)
    assert workflow[True] == {"push": {"tags": ["v*"]}}  # YAML 1.1 reads the key "on" as true
    jobs = workflow["jobs"]
    assert set(jobs["publish"]["needs"]) == {"build", "test"}
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert [name for name, job in jobs.items() if "id-token" in job.get("permissions", {})] == ["publish"]
    assert "secrets." not in text
    assert "password" not in text


SOLVE = """
import ooc_mdp

P = [[[0.1, 0.9, 0], [0.1, 0, 0.9], [0.1, 0, 0.9]], [[1, 0, 0], [1, 0, 0], [1, 0, 0]]]
solution = ooc_mdp.solve(P, [[0, 0], [0, 1], [4, 2]], discount=0.9, device="cpu")
assert solution.outcome.proved
assert abs(solution.values[0] - 26.244) <= solution.error_bound
print(ooc_mdp.__file__)
"""


@pytest.mark.slow
def test_wheel_and_sdist_are_built_and_an_installed_wheel_solves(tmp_path):
    """Needs a package index."""

    def run(*line: object) -> str:
        clean = {name: value for name, value in environment().items() if name != "PYTHONPATH"}
        done = subprocess.run(
            list(map(str, line)), cwd=tmp_path, env=clean, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    venv.create(tmp_path / "building", with_pip=True)
    venv.create(tmp_path / "using", with_pip=True)
    build, use = tmp_path / "building" / "bin" / "python", tmp_path / "using" / "bin"
    run(build, "-m", "pip", "install", "--quiet", "build")
    run(build, "-m", "build", "--outdir", tmp_path / "dist", REPOSITORY)  # the wheel from the sdist
    (wheel,), (source,) = (tmp_path / "dist").glob("*.whl"), (tmp_path / "dist").glob("*.tar.gz")
    assert wheel.name.startswith(f"ooc_mdp-{ooc_mdp.__version__}-")
    with zipfile.ZipFile(wheel) as archive:
        assert data_files() <= set(archive.namelist())
        assert not [name for name in archive.namelist() if not name.startswith("ooc_mdp")]
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"CITATION.cff", "CHANGELOG.md", "tests/repository/test_release.py", "docs/index.md", "tools/test"} <= names
    run(use / "python", "-m", "pip", "install", "--quiet", wheel)
    assert run(use / "ooc-mdp", "--version") == f"ooc-mdp {ooc_mdp.__version__}\n"
    assert str(tmp_path / "using") in run(use / "python", "-c", SOLVE)
    run(use / "ooc-mdp", "generate", "GW-8x4", "small.store")
    figures = run(use / "ooc-mdp", "solve", "small.store", "--discount", "0.9", "--device", "cpu", "--json")
    assert json.loads(figures)["outcome"] == "proved"
