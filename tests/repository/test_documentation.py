"""Pages say what the program does: their commands run, their options exist, generated pages are up to date."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Ran, environment, ooc, with_command
from paths import DOCS, REPOSITORY

import ooc_mdp

PAGES = [REPOSITORY / "README.md", *sorted(DOCS.rglob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def without_numbers(line: str) -> str:
    return re.sub(r"[\d.,]+(e[+-]\d+)?", "#", line.strip())


def run_python(code: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_commands(page: str, folder: Path) -> str:
    """The commands of a page in the order of their blocks, in processes of their own; what they print."""
    script = "\n".join(blocks(DOCS / page, "sh"))
    done = subprocess.run(
        ["bash", "-e", "-c", script], cwd=folder, env=with_command(folder), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_tutorial(page: str, *replaced: tuple[str, str]) -> dict[str, Ran]:
    """The commands of a page in this process and folder, with texts replaced: what each printed, and its status."""
    ran: dict[str, Ran] = {}
    for block in blocks(DOCS / page, "sh"):
        if not block.startswith("ooc-mdp"):
            subprocess.run(["bash", "-e", "-c", block], check=True)
            continue
        for line in block.splitlines():
            for before, after in replaced:
                line = line.replace(before, after)
            _, *arguments = shlex.split(line)
            ran[line] = ooc(*arguments)
    return ran


def test_the_commands_of_getting_started_run(tmp_path):
    printed = run_commands("getting-started.md", tmp_path)
    assert "the certificate holds" in printed
    assert "success: 1 of 1 starts" in printed
    shown = re.findall(
        r"^    (?:PROVED|values|table|loads) .*$", (DOCS / "getting-started.md").read_text("utf-8"), re.MULTILINE
    )
    assert len(shown) == 4
    assert {without_numbers(line) for line in shown} <= {without_numbers(line) for line in printed.splitlines()}
    rows = [line.split(",") for line in (tmp_path / "choice.csv").read_text().splitlines()]
    assert [row[2] for row in rows] == ["policy", "0", "0", "0"]


def test_the_tutorial_about_a_model_file_answers_as_it_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = run_tutorial("tutorials/model-with-a-goal.md")
    assert {command: done.err for command, done in ran.items() if done.status} == {}
    page = (DOCS / "tutorials" / "model-with-a-goal.md").read_text("utf-8")
    answers = [" ".join(line.split()) for line in re.findall(r"^    (initial .*)$", page, re.MULTILINE)]
    assert len(answers) == 3
    printed = [" ".join(line.split()) for done in ran.values() for line in done.out.splitlines()]
    assert [line for line in printed if line.startswith("initial")] == [*answers, answers[0]]
    assert "verdict the certificate holds" in printed
    assert Path("robot.csv").read_text().splitlines()[1] == "0,1.0,1"


@pytest.mark.slow
def test_the_tutorial_about_a_control_problem_runs_on_a_small_grid(tmp_path, monkeypatch):
    pytest.importorskip("bokeh")
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    shutil.copy(DOCS / "examples" / "cart_pole.py", tmp_path)
    ran = run_tutorial("tutorials/cart-pole.md", ("21,21,31,31", "9,9,15,15"), ("--random-starts 10 ", ""))
    assert {command: done.err for command, done in ran.items() if done.status} == {}
    assert ooc_mdp.open_result("cart.result").solution.outcome.proved
    assert Path("cart.html").is_file()
    assert Path("cart.png").is_file()


@pytest.mark.parametrize(
    "page",
    [
        "getting-started.md",
        "guides/python.md",
        "guides/properties.md",
        "guides/using-a-solution.md",
        "guides/which-question.md",
        "reference/tables-from-python.md",
        "tutorials/table-from-a-function.md",
    ],
)
def test_the_python_of_a_page_runs(tmp_path, page):
    printed = []
    for code in blocks(DOCS / page, "python"):
        lines = run_python(code, tmp_path).splitlines()
        assert lines
        printed += lines
    shown = re.findall(r"^    (\d of the first: .*)$", (DOCS / page).read_text("utf-8"), re.MULTILINE)
    assert len(shown) == (4 if page.startswith("tutorials") else 0)
    assert set(shown) <= set(printed)


def strings_at_run_time(module: Path) -> list[str]:
    """Texts of a module without its docstrings."""
    tree = ast.parse(module.read_text("utf-8"))
    described = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in described)
    return [node.value for node in texts if isinstance(node.value, str)]


def test_no_message_refers_to_a_page_that_an_installation_lacks():
    """The wheel has the package alone, and pages are in the repository."""
    modules = sorted((REPOSITORY / "ooc_mdp").rglob("*.py"))
    assert len(modules) > 100
    cited = {module.name: text for module in modules for text in strings_at_run_time(module) if "docs/" in text}
    assert cited == {}


def command_options() -> dict[str, set[str]]:
    """Options by command, as the generated page has them."""
    page = (DOCS / "reference" / "cli.md").read_text(encoding="utf-8")
    sections = re.split(r"^## ooc-mdp ", page, flags=re.MULTILINE)[1:]
    return {s.split("\n", 1)[0]: set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", s)) for s in sections}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_commands_on_a_page_have_options_that_exist(page):
    known = command_options()
    for line in re.findall(r"^\s*ooc-mdp .*$", page.read_text(encoding="utf-8"), re.MULTILINE):
        _, command, *words = shlex.split(line, comments=True)
        if command == "──▶":  # the first word of a drawing
            continue
        assert command in known, line
        for word in words:
            assert not re.match(r"--?[a-z]", word) or word.partition("=")[0] in known[command], line


@pytest.mark.parametrize("tool", ["tools/reference", "tools/changelog"])
def test_generated_pages_and_fragments_are_in_order(tool):
    done = subprocess.run(
        [sys.executable, str(REPOSITORY / tool), "--check"],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def sections_of_the_python_page() -> dict[str, list[str]]:
    """Names on the page of the Python interface, by the heading above them."""
    found: dict[str, list[str]] = {}
    for mark, name in re.findall(r"^(##|###) (.*)$", (DOCS / "reference" / "api.md").read_text("utf-8"), re.MULTILINE):
        if mark == "##":
            found[name] = here = []
        else:
            here.append(name)
    return found


def test_every_public_class_is_on_the_python_page_and_only_errors_are_under_errors():
    sections = sections_of_the_python_page()
    shown = {name for names in sections.values() for name in names}
    public = {name: getattr(ooc_mdp, name) for name in ooc_mdp.__all__ if name[0] != "_"}
    assert shown >= set(public)
    errors = {name for name, found in public.items() if inspect.isclass(found) and issubclass(found, Exception)}
    assert set(sections["Errors"]) == errors


def test_what_a_public_function_returns_is_on_the_python_page():
    shown = {name for names in sections_of_the_python_page().values() for name in names}
    functions = [f for f in (getattr(ooc_mdp, name) for name in ooc_mdp.__all__) if inspect.isfunction(f)]
    assert len(functions) > 10
    returned = {name for f in functions for name in inspect.signature(f).return_annotation.split(" | ")}
    tables, foreign = {"Store", "RewardStore", "RecomputedTable"}, {"None", "Any"}  # a figure of Matplotlib
    assert "Table" in shown
    assert returned - foreign - tables <= shown


def changelog(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(REPOSITORY / "tools" / "changelog"), "--root", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_fragments_become_a_section_of_the_changelog(tmp_path):
    folder = tmp_path / "docs" / "changelog"
    folder.mkdir(parents=True)
    (folder / "README.md").write_text("how\n")
    (folder / "second.md").write_text("Fixed: one\nthing.\n")
    (folder / "first.md").write_text("Added: another.\n")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## [0.1.0] - 2026-11-30\n\n- old\n")
    assert changelog(tmp_path, "--check").returncode == 0
    assert changelog(tmp_path, "0.2.0", "2027-01-31").returncode == 0
    assert (tmp_path / "CHANGELOG.md").read_text() == (
        "# Changelog\n\n## [0.2.0] - 2027-01-31\n\n### Added\n\n- another.\n\n### Fixed\n\n- one thing.\n\n"
        "## [0.1.0] - 2026-11-30\n\n- old\n"
    )
    assert [path.name for path in folder.iterdir()] == ["README.md"]


def test_a_section_that_waits_for_its_release_is_dated_and_its_fragments_are_removed(tmp_path):
    folder = tmp_path / "docs" / "changelog"
    folder.mkdir(parents=True)
    (folder / "README.md").write_text("how\n")
    (folder / "first.md").write_text("Added: a part of the first release.\n")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## [0.1.0] - not released\n\n- highlights\n")
    done = changelog(tmp_path, "0.1.0", "2027-01-31")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "CHANGELOG.md").read_text() == "# Changelog\n\n## [0.1.0] - 2027-01-31\n\n- highlights\n"
    assert [path.name for path in folder.iterdir()] == ["README.md"]
    assert "0.1.0" in changelog(tmp_path, "0.1.0", "2027-02-01").stderr


@pytest.mark.parametrize("text", ["Mended: a thing.", "a thing", "Fixed:"])
def test_a_fragment_without_kind_or_text_is_refused(tmp_path, text):
    folder = tmp_path / "docs" / "changelog"
    folder.mkdir(parents=True)
    (folder / "wrong.md").write_text(text)
    done = changelog(tmp_path, "--check")
    assert done.returncode == 1
    assert "wrong.md: begin with one of Added" in done.stderr


def test_the_section_of_a_version_in_the_changelog_is_short():
    lines = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) - lines.index("## [0.1.0] - not released") <= 40


@pytest.mark.parametrize("word", ["loads a partition", "laggards?", "newcomers?", "at once sweeps?", "sweeps aside"])
def test_pages_use_the_words_of_the_glossary(word):
    for page in PAGES:
        assert not re.search(rf"\b{word}\b", page.read_text(encoding="utf-8")), page
