"""The engine by which xarray opens results: `xarray.open_dataset("car.result", engine="ooc-mdp")`.

xarray finds it by the entry point `xarray.backends` of the installed package. Every file of the result is compared with
its seal, and the arrays are read whole; `xarray.open_zarr` reads them lazily, and checks nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import xarray
from xarray.backends import BackendEntrypoint

from ooc_mdp.report.dataset import dataset_of
from ooc_mdp.store.result import is_result, open_result

__all__ = ["ResultBackend"]


class ResultBackend(BackendEntrypoint):
    """Opens what `solve` wrote."""

    description = "Open results of ooc-mdp solve"
    open_dataset_parameters = ("filename_or_obj", "drop_variables", "group")

    def open_dataset(
        self,
        filename_or_obj: Any,
        *,
        drop_variables: str | Iterable[str] | None = None,
        group: str | None = None,
    ) -> xarray.Dataset:
        """The Dataset of a result.

        Parameters
        ----------
        drop_variables : names of variables to leave out.
        group : "history" for how the solve progressed.

        Raises
        ------
        StoreError : the path is no result, or it is damaged.
        OptionsError : there is no such group.
        """
        found = dataset_of(open_result(Path(fspath(filename_or_obj))), group)
        dropped = [drop_variables] if isinstance(drop_variables, str) else list(drop_variables or [])
        return found.drop_vars(dropped, errors="ignore")

    def guess_can_open(self, filename_or_obj: Any) -> bool:
        """Whether the path is a result."""
        return isinstance(filename_or_obj, str | PathLike) and is_result(Path(fspath(filename_or_obj)))
