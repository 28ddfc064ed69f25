"""The notebooks run from top to bottom as they stand, and show what they promise."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from paths import DOCS

pytest.importorskip("matplotlib")
pytest.importorskip("xarray")

NOTEBOOKS = DOCS / "notebooks"


def code_cells(notebook: Path) -> list[str]:
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def run(notebook: Path) -> tuple[dict[str, Any], list[Any]]:
    """Names that the code cells define, and what a notebook shows under each of them."""
    names: dict[str, Any] = {}
    shown = []
    for number, source in enumerate(code_cells(notebook)):
        tree = ast.parse(source)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, f"{notebook.name}, cell {number}", "exec"), names)
        if last is not None:
            shown.append(eval(compile(ast.Expression(last.value), notebook.name, "eval"), names))
    return names, shown


def test_some_twenty_lines_lead_from_dynamics_to_a_picture(tmp_path, monkeypatch):
    notebook = NOTEBOOKS / "from_dynamics_to_picture.ipynb"
    lines = [line for cell in code_cells(notebook) for line in cell.splitlines() if line.strip()]
    assert len(lines) <= 22
    monkeypatch.chdir(tmp_path)
    names, shown = run(notebook)
    _, solution, value, policy, ends = shown
    assert solution.outcome.proved
    assert "PROVED" in solution._repr_html_()
    assert "value of rod" in value.get_suptitle()
    assert policy._repr_png_().startswith(b"\x89PNG")
    assert ends[1] > 2 * ends[0] > 0
    assert "61 x 41" in names["store"]._repr_html_()


def test_a_cache_sweep_is_measured_and_drawn(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    names, _ = run(NOTEBOOKS / "cache_sweep.ipynb")
    points = names["sweep"].points
    assert names["sweep"].complete
    assert len(capsys.readouterr().out.splitlines()) == len(points) == 6
    loads = [point.loads_per_partition for point in points if point.schedule.endswith("exact-h2")]
    assert loads == sorted(loads, reverse=True), "with the same order a larger cache loads no more"
    names["plt"].close("all")
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("notebook", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda notebook: notebook.name)
def test_notebooks_are_stored_without_outputs(notebook):
    document = json.loads(notebook.read_text(encoding="utf-8"))
    assert (document["nbformat"], document["cells"][0]["cell_type"]) == (4, "markdown")
    assert all(not cell.get("outputs") and cell.get("execution_count") is None for cell in document["cells"])
    ids = [cell["id"] for cell in document["cells"]]
    assert len(set(ids)) == len(ids)
