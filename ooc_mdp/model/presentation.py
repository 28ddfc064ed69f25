"""Methods of a solution that draw, report and export it: each calls a public function of the layer above.

The imports are made on the call, so that a solution needs neither matplotlib nor Bokeh nor xarray, nor the layers that
import them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

__all__ = ["Presentable"]

AnyPath = str | PathLike[str]


class Presentable:
    """What a solution and a result on disk can show of themselves."""

    __slots__ = ()

    def plot(
        self,
        file: AnyPath | None = None,
        *,
        shown: str = "value",
        axes: Sequence[str] | None = None,
        slices: Mapping[str, float | Sequence[float]] | None = None,
        paths: AnyPath | None = None,
        limits: tuple[float, float] | str | None = None,
        contours: bool = True,
        overwrite: bool = False,
    ) -> Any:
        """Draw value or policy: :func:`ooc_mdp.plot_result` of this solution, with its parameters and errors."""
        from ooc_mdp.reporting import plot_result

        return plot_result(
            self,  # type: ignore[arg-type]
            file,
            shown=shown,
            axes=axes,
            slices=slices,
            paths=paths,
            limits=limits,
            contours=contours,
            overwrite=overwrite,
        )

    def report(
        self,
        file: AnyPath,
        *,
        table: Any = None,
        trace: AnyPath | None = None,
        cache_sweep: AnyPath | None = None,
        overwrite: bool = False,
    ) -> None:
        """Write an HTML report: :func:`ooc_mdp.write_report` of this solution, with its parameters and errors."""
        from ooc_mdp.reporting import write_report

        write_report(self, file, table=table, trace=trace, cache_sweep=cache_sweep, overwrite=overwrite)  # type: ignore[arg-type]

    def to_xarray(self, group: str | None = None) -> Any:
        """Values, policy and controls as an `xarray.Dataset`, in the grid's shape with its coordinates and units.

        Parameters
        ----------
        group : "history" for how the solve progressed, over the seconds of its work and by partition.

        Raises
        ------
        MissingExtraError : xarray is not installed (the extra `xarray`).
        OptionsError : there is no such group, or no history was recorded.
        """
        from ooc_mdp.reporting import to_xarray

        return to_xarray(self, group)  # type: ignore[arg-type]

    def _repr_html_(self) -> str:
        from ooc_mdp.reporting import html_summary

        return html_summary(self)  # type: ignore[arg-type]
