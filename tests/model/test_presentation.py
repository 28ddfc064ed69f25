"""What solutions and tables show of themselves: short texts, small tables of HTML, and the methods that draw."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from made_results import made_result

import ooc_mdp
from ooc_mdp import reporting
from ooc_mdp.model.html_table import html_table
from ooc_mdp.model.solution import Outcome


def test_a_solution_is_one_line_of_text_and_a_small_table_in_a_notebook():
    result = made_result((40, 40))
    for shown in (result, result.solution):
        assert len(repr(shown)) < 300
        page = shown._repr_html_()
        assert "PROVED" in page
        assert "|V - V*| is at most 0.001 in every state" in page
        assert '<th style="text-align: left; padding: 0 1.5em 0 0;">states</th>' in page
        assert "1,600" in page
        assert len(page) < 5000


def test_a_solve_that_was_stopped_is_not_called_proved_in_a_notebook():
    page = replace(made_result((4, 4)).solution, outcome=Outcome.TIME_LIMIT)._repr_html_()
    assert "STOPPED AT THE TIME LIMIT" in page
    assert "PROVED" not in page
    assert "the time limit came first" in page


def test_a_table_shows_its_sizes_in_a_notebook(maze):
    page = maze._repr_html_()
    assert len(repr(maze)) < 300
    for text in ("gridworld", "576 = 24 x 24", "2,304", "maximise", "16", maze.fingerprint[:12]):
        assert text in page
    virtual = ooc_mdp.open_problem("GW-8x4", {"seed": 1}, partitions=2, device="cpu")
    assert "64 = 8 x 8" in virtual._repr_html_()
    assert repr(virtual) == "<RecomputedTable GW-8x4: 64 states, 2 partitions>"


def test_text_of_a_file_is_no_markup_in_a_notebook():
    page = html_table("<b>", [("<i>", "<script>")], ["<p>&"])
    assert "<b>" not in page
    assert "<script>" not in page
    assert "&lt;p&gt;&amp;" in page


def test_plot_of_a_solution_draws_and_writes_it(tmp_path):
    pytest.importorskip("matplotlib")
    result = made_result((6, 5))
    figure = replace(result.solution, geometry=result.geometry).plot(
        tmp_path / "a.svg", shown="policy", axes=("axis1", "axis0")
    )
    assert figure.axes[0].get_xlabel() == "axis1 (m)"
    assert [file.name for file in tmp_path.iterdir()] == ["a.svg"]
    assert np.array_equal(result.plot().axes[0].collections[0].get_clim(), (0.0, 29.0**1.5))


def test_report_of_a_solution_is_that_of_write_report(monkeypatch):
    called = []
    monkeypatch.setattr(reporting, "write_report", lambda *given, **more: called.append((given, more)))
    result = made_result((4, 4))
    result.report("a.html", trace="a.csv", overwrite=True)
    ((given, more),) = called
    assert given == (result, "a.html")
    assert more == {"table": None, "trace": "a.csv", "cache_sweep": None, "overwrite": True}
