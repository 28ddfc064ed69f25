"""One HTML file that shows a solve: what it proves, how it got there, what it cost, and the answer itself.

The file needs neither a network nor this program: Bokeh's script and all numbers are in it. Long series are thinned out
and large grids are drawn at every k-th point, so that it stays below 6 MB for any result.

    facts, cells                        texts and numbers, without Bokeh
    charts, caches, partitions, state_space     sections with Bokeh's models
    page.html, state_space.js           the page's template, and the script behind the map's menus and sliders
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ooc_mdp.errors import MissingExtraError, OptionsError
from ooc_mdp.store.atomic_file import atomic_file

if TYPE_CHECKING:
    from ooc_mdp.model.table import Table
    from ooc_mdp.report.cache_sweep import CacheSweep
    from ooc_mdp.report.cache_trace import AccessTrace
    from ooc_mdp.report.html.section import Section
    from ooc_mdp.store.result import Result

__all__ = ["check_report", "sections_of", "write_report"]


def check_report(file: Path) -> None:
    """Refuse a report that could not be made, before there is any work.

    Raises
    ------
    OptionsError : the name does not end in .html.
    MissingExtraError : Bokeh is not installed.
    """
    if file.suffix not in (".html", ".htm"):
        raise OptionsError(f"a report is an HTML file, and {file.name} does not end in .html; name another file")
    try:
        import bokeh  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("bokeh", "report", "writing a report") from error


def write_report(
    result: Result,
    file: Path,
    *,
    table: Table | None = None,
    trace: AccessTrace | None = None,
    sweep: CacheSweep | None = None,
    overwrite: bool = False,
) -> None:
    """Write the report of a result.

    Parameters
    ----------
    table : the table that was solved; needed for maps of loads only where the result does not have its partitions.
    trace : of the same solve.
    sweep : solves of the same table with several caches.

    Raises
    ------
    OptionsError, MissingExtraError : see :func:`check_report`; store or trace belong to another table.
    StoreError : the file exists and may not be replaced, or cannot be written.
    """
    check_report(file)
    _check_same_table(result, table, trace, sweep)
    page = _page(result, sections_of(result, table, trace, sweep))
    with atomic_file(file, overwrite=overwrite) as temporary:
        temporary.write_text(page, encoding="utf-8")


def _check_same_table(result: Result, table: Table | None, trace: AccessTrace | None, sweep: CacheSweep | None) -> None:
    due = result.identity.get("fingerprint")
    found = {
        "the store": None if table is None else table.fingerprint,
        "the cache sweep": None if sweep is None else sweep.facts["fingerprint"],
    }
    if trace is not None:
        found["the trace"] = trace.facts.get("fingerprint")
        if trace.n_partitions != result.solution.statistics.n_partitions:
            raise OptionsError(
                f"the trace {trace.path} has {trace.n_partitions} partitions and the result "
                f"{result.solution.statistics.n_partitions}; give the trace of the same solve"
            )
    for what, fingerprint in found.items():
        if due is not None and fingerprint is not None and fingerprint != due:
            raise OptionsError(
                f"{what} is of the table {fingerprint[:12]} and the result {result.path} of {due[:12]}; give what "
                f"belongs to the result"
            )


def sections_of(
    result: Result,
    table: Table | None = None,
    trace: AccessTrace | None = None,
    sweep: CacheSweep | None = None,
) -> list[Section]:
    """All sections of a report, in their order on the page."""
    from ooc_mdp.report.html import charts
    from ooc_mdp.report.html.caches import caches_section
    from ooc_mdp.report.html.cells import cells_of
    from ooc_mdp.report.html.facts import certificate_section, provenance_section, workers_section
    from ooc_mdp.report.html.partitions import partitions_section
    from ooc_mdp.report.html.state_space import map_section, states_section

    solution = result.solution
    cells = cells_of(result, table, trace)
    return [
        certificate_section(result, None if table is None else table.name),
        states_section(result) if cells is None else map_section(result, cells),
        charts.convergence_section(solution),
        charts.hit_rate_section(solution.history),
        charts.access_section(solution.history, trace),
        caches_section(solution.statistics, trace, sweep),
        charts.time_section(solution),
        partitions_section(result),
        charts.memory_section(solution, result.peak_memory_bytes),
        workers_section(solution.statistics.workers),
        provenance_section(result),
    ]


def _page(result: Result, sections: list[Section]) -> str:
    """The page as HTML."""
    from bokeh.document import Document
    from bokeh.embed import file_html
    from bokeh.resources import INLINE
    from bokeh.themes import Theme

    from ooc_mdp.report.html.facts import headline, rows, warnings
    from ooc_mdp.report.html.state_space import DRAW_MAP

    models: list[Any] = [chart for section in sections for row in section.charts for chart in row]
    document = Document(theme=Theme(json={"attrs": {"Legend": {"background_fill_alpha": 0.6}}}))
    with document.models.freeze():  # so that the document looks through them once
        for model in models:
            document.add_root(model)
    for callback in document.select({"name": DRAW_MAP}):
        document.js_on_event("document_ready", callback)
    outcome, proved, tone = headline(result.solution)
    name = str(result.provenance.get("source", result.path.name))
    return str(
        file_html(
            document,
            INLINE,
            title=f"{name}: ooc-mdp report",
            template=resources.files("ooc_mdp.report.html").joinpath("page.html").read_text(encoding="utf-8"),
            template_variables={
                "heading": name,
                "outcome": outcome,
                "proved": proved,
                "tone": tone,
                "warnings": warnings(result.solution),
                "cards": rows(result.solution.summary()),
                "sections": sections,
                "places": {model.id: place for place, model in enumerate(models)},
            },
        )
    )
