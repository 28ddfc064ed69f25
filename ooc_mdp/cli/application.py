"""The command line's application, to which the modules of this folder add their commands."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from ooc_mdp.errors import OptionsError

__all__ = ["RENAMED", "app"]

RENAMED = {
    "--block-shape": "--partition-shape",
    "--blocks": "--partition-grid",
    "--exact-priorities": "--priority exact-h2",
    "--patience": "--worker-timeout",
    "--renormalise": "--normalize",
    "--sweeps": "--sweeps-per-visit",
}
"""Present names of options by their names in earlier versions."""


class _Commands(TyperGroup):
    """Raises an error with the new name where an option has been renamed."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:  # Typer brings its own copy of click, or not, by version
            old = getattr(error, "option_name", None)
            if old not in RENAMED:
                raise
            raise OptionsError(f"{old} is now called {RENAMED[old]}") from error


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Solve Markov decision processes whose transition tables are larger than memory, to a proved error.",
)
