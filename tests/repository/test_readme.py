"""The README's commands and Python run as they stand, and its links lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command_line import environment
from paths import DOCS, REPOSITORY

import ooc_mdp
from ooc_mdp.conversion.options import ConvertOptions
from ooc_mdp.formats import FORMATS

PAGES = [REPOSITORY / "README.md", *sorted(DOCS.glob("*.md"))]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


def block_after(heading: str, language: str) -> str:
    found = re.search(rf"^## {heading}\n.*?^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def with_command(folder: Path) -> dict[str, str]:
    """An environment in which `ooc-mdp` is this checkout's."""
    (folder / "bin").mkdir()
    script = folder / "bin" / "ooc-mdp"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ooc_mdp "$@"\n')
    script.chmod(0o755)
    return {**environment(), "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}


def test_the_quick_start_runs_and_prints_what_the_readme_shows(tmp_path):
    done = subprocess.run(
        ["bash", "-e", "-c", block_after("Quick start", "sh")],
        cwd=tmp_path,
        env=with_command(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown = [line.strip() for line in README.splitlines() if line.startswith("    ")]
    for word in ("outcome", "method", "table", "result", "verdict"):  # lines without seconds or rounding in them
        line = next(line for line in done.stdout.splitlines() if line.startswith(word))
        assert line in shown
    with np.load(tmp_path / "maze.npz") as arrays:
        assert arrays["value"].shape == arrays["policy"].shape == (65536,)


def test_the_python_example_runs(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", block_after("From Python", "python")],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith("proved ")
    assert float(first.split()[1]) <= 1e-4
    assert second == "True"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_to_files(page):
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8"))
    for link in links:
        assert (page.parent / link).exists(), link


def test_every_page_is_in_the_index():
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    for page in DOCS.glob("*.md"):
        assert page.name == "index.md" or f"]({page.name})" in index


def test_every_format_is_documented():
    headings = re.findall(r"^## ([a-z-]+)", (DOCS / "formats.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(headings) == sorted(known.name for known in FORMATS)


def test_every_attribute_of_a_result_is_documented(tmp_path):
    store = ooc_mdp.generate("random", tmp_path / "s", {"states": 20, "seed": 1})
    ooc_mdp.solve(store, 0.5, output=tmp_path / "r", device="cpu")
    page = (DOCS / "result-format.md").read_text(encoding="utf-8")
    import zarr

    attributes = dict(zarr.open_group(tmp_path / "r", mode="r").attrs)
    solution = attributes["solution"]
    assert isinstance(solution, dict)
    certificate = solution["certificate"]
    assert isinstance(certificate, dict)
    for name in [*attributes, *solution, *certificate]:
        assert f"`{name}`" in page, name


def test_files_are_stored_as_the_pages_say():
    assert ConvertOptions().dtype == "float64"
