"""The command line's application, to which the modules of this folder add their commands."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from ooc_mdp.cli.help_pages import GroupedCommand, commands_by_purpose, first_sentence
from ooc_mdp.errors import OptionsError
from ooc_mdp.quoting import printable, shorten

__all__ = ["RENAMED", "RENAMED_COMMANDS", "app"]

CommandFunction = TypeVar("CommandFunction", bound=Callable[..., Any])

_PARTITIONS = {"--block-shape": "--partition-shape", "--blocks": "--partition-grid"}
RENAMED: dict[str, dict[str, str]] = {
    "cache-curve": {"--all": "--scope all", "--frontier-only": "--scope frontier", "--raw": "--count accesses"},
    "convert": {"--renormalise": "--normalize", **_PARTITIONS},
    "generate": _PARTITIONS,
    "simulate": {
        "--depth": "--plan-depth",
        "--keep": "--hold-time",
        "--past-end": "--continue-after-end",
        "--policy": "--controller",
        "--seconds": "--duration",
        "--starts": "--random-starts",
    },
    "solve": {
        "--exact-priorities": "--priority exact-h2",
        "--patience": "--worker-timeout",
        "--sweeps": "--sweeps-per-visit",
    },
}
"""By command, what options are called now that had another name in earlier versions."""

MEANT: dict[str, tuple[str, ...]] = {
    "--cache": ("--memory", "--mem", "--ram", "--cache-size", "--memory-limit"),
    "--device": ("--gpu", "--cuda", "--cpu"),
    "--discount": ("--gamma", "-g", "--discount-factor", "--beta"),
    "--duration": ("--time", "--horizon"),
    "--epsilon": ("--eps", "-e", "--tol", "--tolerance", "--precision", "--accuracy", "--error"),
    "--method": ("--algorithm", "--algo", "--solver", "-m"),
    "--normalize": ("--normalise",),
    "--output": ("-o", "--out", "--result"),
    "--overwrite": ("-f", "--force"),
    "--parameter": ("--param", "--set"),
    "--threads": ("--cores",),
    "--time-limit": ("--timeout", "--max-time", "--time"),
    "--workers": ("-j", "-n", "--jobs", "--processes", "--num-workers"),
}
"""By option, what other programs call it; a command that has the option names it where it gets one of these."""

RENAMED_COMMANDS = {"validate": "check"}
"""What commands are called now that had another name in earlier versions."""


def _shorten_usage(error: Exception) -> None:
    """Shorten words of the command line in click's message, which is told from other errors by its context."""
    message = getattr(error, "message", None)
    if hasattr(error, "ctx") and isinstance(message, str):
        error.message = re.sub(r"\S{200,}", lambda word: shorten(word[0]), printable(message, keep="\n"))  # type: ignore[attr-defined]


class _Commands(TyperGroup):
    """Raises an error with the new name where a command or an option has been renamed."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in RENAMED_COMMANDS:
            raise OptionsError(f"{cmd_name} is now called {RENAMED_COMMANDS[cmd_name]}")
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands by what they are for, each with its first sentence in full."""
        for heading, names in commands_by_purpose(self.list_commands(ctx)).items():
            commands = [(name, self.get_command(ctx, name)) for name in names]
            with formatter.section(heading):
                formatter.write_dl([(name, first_sentence(command.help)) for name, command in commands])

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:  # Typer brings its own copy of click, or not, by version
            command, old = getattr(error, "ctx", None), getattr(error, "option_name", "")
            renamed = RENAMED.get(getattr(command, "info_name", ""), {})
            if old in renamed:
                raise OptionsError(f"{old} is now called {renamed[old]}") from error
            known = {name for parameter in getattr(command, "command", ctx.command).params for name in parameter.opts}
            meant = [name for name, others in MEANT.items() if old in others and name in known]
            if not meant:
                _shorten_usage(error)
                raise
            raise OptionsError(f"there is no option {old}; did you mean {meant[0]}?") from error


class _Application(typer.Typer):
    """The application, whose commands all have pages of help with headings and examples."""

    def command(
        self, name: str | None = None, *, cls: type[TyperCommand] | None = None, **options: Any
    ) -> Callable[[CommandFunction], CommandFunction]:
        """As Typer's."""
        return super().command(name, cls=cls or GroupedCommand, **options)


app = _Application(
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Solve Markov decision processes whose transition tables are larger than memory, to a proved error.",
)
