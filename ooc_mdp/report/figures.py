"""Figures of matplotlib that are saved to a file, or shown by a notebook; no window and no global state."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ooc_mdp.errors import MissingExtraError, OptionsError
from ooc_mdp.quoting import printable
from ooc_mdp.store.atomic_file import atomic_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["PLOT_FORMATS", "check_plot_file", "new_figure", "plain", "save_figure"]

PLOT_FORMATS = (".png", ".svg", ".pdf")


def plain(text: str) -> str:
    """A text that may come from a file, for a label or title: nothing of it is a formula of matplotlib."""
    return printable(text, keep="\n").replace("$", r"\$")


def check_plot_file(file: Path) -> None:
    """Refuse a plot that could not be drawn, before there is any work.

    Raises
    ------
    OptionsError : the suffix is none of PLOT_FORMATS.
    MissingExtraError : matplotlib is not installed.
    """
    if file.suffix not in PLOT_FORMATS:
        raise OptionsError(f"cannot plot to {file.name}: the name must end in {', '.join(PLOT_FORMATS)}")
    _figure_class()


def new_figure(**options: Any) -> Figure:
    """A figure that notebooks show as a PNG.

    Raises
    ------
    MissingExtraError : matplotlib is not installed.
    """
    figure_class = _figure_class()

    class ShownFigure(figure_class):  # type: ignore[valid-type, misc]
        """A figure of matplotlib with the method by which notebooks show it."""

        def _repr_png_(self) -> bytes:
            content = io.BytesIO()
            self.savefig(content, format="png")
            return content.getvalue()

    return ShownFigure(**options)


def save_figure(figure: Figure, file: Path, *, overwrite: bool) -> None:
    """Write a figure in one step; the suffix of the file chooses the format.

    Raises
    ------
    StoreError : the file exists and may not be replaced, or cannot be written.
    """
    with atomic_file(file, overwrite=overwrite) as temporary:
        figure.savefig(temporary, format=file.suffix[1:])


def _figure_class() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plot", "drawing a plot") from error
    return Figure
