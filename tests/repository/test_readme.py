"""The README's commands and Python run as they stand, and its links lead somewhere."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from command_line import with_command
from paths import CASES, DOCS, REPOSITORY

import ooc_mdp
from ooc_mdp.io.registry import FORMATS
from ooc_mdp.table_options import ConvertOptions

PAGES = [
    *sorted(REPOSITORY.glob("*.md")),
    *sorted(DOCS.rglob("*.md")),
    *sorted((REPOSITORY / "benchmarks").rglob("*.md")),
]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")


def block_after(heading: str, language: str, number: int = 0) -> str:
    section = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", README, re.DOTALL | re.MULTILINE)
    assert section is not None
    return re.findall(rf"^```{language}\n(.*?)^```", section[1], re.DOTALL | re.MULTILINE)[number]


def test_the_first_commands_run_and_print_what_the_readme_shows(tmp_path):
    pytest.importorskip("bokeh")
    (tmp_path / "pendulum.py").write_text(block_after("Solve something", "python"))
    done = subprocess.run(
        ["bash", "-e", "-c", block_after("Solve something", "sh")],
        cwd=tmp_path,
        env=with_command(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown = [line.split() for line in README.splitlines() if line.startswith("    ")]
    for word in ("table", "result", "next"):  # lines without seconds or rounding in them
        line = next(line for line in done.stdout.splitlines() if line.startswith(word))
        assert line.split() in shown
    assert "verdict  the certificate holds" in done.stdout
    assert "success: 1 of 1 starts" in done.stdout
    assert (tmp_path / "pendulum.html").is_file()


def test_the_line_for_a_question_about_a_model_file_answers(tmp_path):
    case = CASES / "properties" / "qvbs-consensus-2-4"
    if not case.is_dir():
        pytest.skip("needs the shared cases")
    shutil.copy(case / "model.umb", tmp_path / "consensus.umb")
    line = block_after("Solve something", "sh", 1)
    assert len(line.splitlines()) == 1
    done = subprocess.run(
        ["bash", "-e", "-c", line],
        cwd=tmp_path,
        env=with_command(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    value, low, high, state = re.match(r"initial +(\S+) in \[(\S+), (\S+)\], state (\d+)\n", done.stdout).groups()
    assert state == "0"
    assert float(low) <= 0.437744140625 <= float(high)
    assert float(value) == pytest.approx(0.437744140625, abs=1e-6)
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".store")] == []


def test_the_three_lines_for_arrays_run(capsys):
    lines = block_after("Solve something", "python", 1)
    assert len([line for line in lines.splitlines() if line and not line.startswith("import ")]) == 3
    exec(lines, {"ooc_mdp": ooc_mdp})
    values, actions, bound = re.fullmatch(r"\[(.*)\] \[(.*)\] (.*)\n", capsys.readouterr().out).groups()
    assert [float(v) for v in values.split()] == pytest.approx([26.244, 29.484, 33.484], abs=float(bound))
    assert actions == "0 0 0"
    assert float(bound) < 1e-3


def test_the_ten_lines_for_a_function_run(tmp_path, monkeypatch):
    lines = block_after("Solve something", "python", 2)
    assert len([line for line in lines.splitlines() if line and not line.startswith("import ")]) <= 10
    monkeypatch.chdir(tmp_path)
    names = {"ooc_mdp": ooc_mdp}
    exec(lines, names)
    solution = names["solution"]
    assert solution.outcome.proved
    n, values = 1000, np.zeros(1001)  # a stock that is never exceeded by many orders has the values of a smaller shop
    successors, chances, rewards = names["rows"](np.arange(n + 1))
    for _ in range(300):
        values = ((rewards + 0.9 * values[np.minimum(successors, n)]) * chances).sum(axis=2).max(axis=1)
    assert solution.values[:50] == pytest.approx(values[:50], abs=solution.error_bound + 1e-9)


def anchors(page: Path) -> set[str]:
    """The headings of a page as the ends of links."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_links_between_pages_lead_to_files_and_headings(page):
    for link in re.findall(r"\]\(\s*([^):]+)\)", page.read_text(encoding="utf-8")):
        file, _, anchor = link.partition("#")
        target = page.parent / file if file else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("folder", ["docs", "docs/decisions", "benchmarks/notes"])
def test_every_page_is_in_the_index_of_its_folder(folder):
    index = REPOSITORY / folder / ("index.md" if folder == "docs" else "README.md")
    listed = {(index.parent / link).resolve() for link in re.findall(r"\]\(([^)#:]+)\)", index.read_text("utf-8"))}
    pages = (REPOSITORY / folder).rglob("*.md") if folder == "docs" else (REPOSITORY / folder).glob("*.md")
    for page in pages:
        elsewhere = folder == "docs" and page.parent.name in ("decisions", "changelog") and page.name != "README.md"
        assert page == index or page in listed or elsewhere, page


def test_every_format_is_documented():
    headings = re.findall(
        r"^## ([a-z-]+)", (DOCS / "reference" / "formats.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert sorted(headings) == sorted(known.name for known in FORMATS)


def test_every_attribute_of_a_result_is_documented(tmp_path):
    store = ooc_mdp.generate("random", tmp_path / "s", {"states": 20, "seed": 1})
    ooc_mdp.solve(store, 0.5, output=tmp_path / "r", device="cpu")
    page = (DOCS / "reference" / "result-format.md").read_text(encoding="utf-8")
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
