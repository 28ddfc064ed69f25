"""A report in a real browser: it draws without errors or requests, and each menu and slider changes the picture."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_results import made_result
from paths import HELPERS, REPOSITORY

pytest.importorskip("bokeh")
from ooc_mdp.report.html import write_report

BROWSER = REPOSITORY / "build" / "browser"
SHAPE = (5, 4, 6)


def opened(file: Path) -> dict[str, Any]:
    """What happened in the browser; skips where there is none."""
    node = shutil.which("node")
    if node is None or not (BROWSER / "node_modules" / "puppeteer-core").is_dir():
        pytest.skip("there is no browser; tools/browser installs one where npm is")
    line = [node, str(HELPERS[0] / "report_page.js"), str(file), str(BROWSER)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_every_menu_and_slider_changes_the_map_without_errors_or_requests(tmp_path: Path) -> None:
    result = made_result(SHAPE)
    write_report(result, tmp_path / "r.html")
    found = opened(tmp_path / "r.html")
    assert found["errors"] == []
    assert [url for url in found["requests"] if not url.startswith(("data:", "file:", "blob:"))] == []
    moved = found["moved"]
    assert set(moved) == {"field", "across", "up", "scale", "axis1"}
    assert all(all(changes) for changes in moved.values()), moved
    assert (len(moved["field"]), len(moved["across"]), len(moved["axis1"])) == (7, 3, 2)
    drawn = np.array(found["drawn"]["pixels"]).reshape(found["drawn"]["shape"])
    np.testing.assert_allclose(drawn, result.values.reshape(SHAPE)[:, -1, :].T, rtol=1e-6)


def test_states_on_no_grid_are_drawn_as_curves_in_the_browser(tmp_path: Path) -> None:
    write_report(made_result((30,)), tmp_path / "r.html")
    found = opened(tmp_path / "r.html")
    assert found["errors"] == []
    assert {"values", "sorted-values", "actions", "convergence-seconds"} <= set(found["charts"])
