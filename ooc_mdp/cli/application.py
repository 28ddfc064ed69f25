"""The command line's one application, to which the modules of this room add their commands."""

from __future__ import annotations

import typer

__all__ = ["app"]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Solve Markov decision processes whose transition tables are larger than memory, to a proved error.",
)
