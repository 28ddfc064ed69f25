"""The pages of --help: options by heading, commands by what they are for, and examples at the end."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

__all__ = ["EXAMPLES", "GroupedCommand", "commands_by_purpose", "first_sentence"]

EXAMPLES: dict[str, tuple[str, ...]] = {
    "animate": ("ooc-mdp animate car.csv --of car.store", "ooc-mdp animate car.result --axes position,velocity"),
    "cache-curve": ("ooc-mdp cache-curve vi.csv --plot curve.png",),
    "cache-sweep": (
        "ooc-mdp cache-sweep car.store --discount 0.9 --sizes 5%,22%,50% --output car.json --plot car.png",
    ),
    "check": ("ooc-mdp check car.store",),
    "convert": ("ooc-mdp convert consensus.umb consensus.store", "ooc-mdp convert model.npz model.store --sense min"),
    "export": ("ooc-mdp export car.result car.npz",),
    "generate": (
        "ooc-mdp generate mountain-car car.store --grid 300,300",
        "ooc-mdp generate GW-512x4 maze.store --seed 1",
    ),
    "inspect": ("ooc-mdp inspect car.store", "ooc-mdp inspect car.result"),
    "kernels": ("ooc-mdp kernels",),
    "plan": ("ooc-mdp plan car.store --discount 0.9 --cache 22%",),
    "plot": ("ooc-mdp plot car.result --policy -o policy.pdf", "ooc-mdp plot dubins.result --slice heading=0,1.57"),
    "problems": ("ooc-mdp problems double-pendulum",),
    "report": ("ooc-mdp report car.result --trace car.csv",),
    "simulate": (
        "ooc-mdp simulate car.result --random-starts 10 --plot runs.png",
        "ooc-mdp simulate maze.store maze.result --runs 1000",
    ),
    "solve": (
        "ooc-mdp solve car.store --discount 0.9 --cache 22% --output car.result",
        "ooc-mdp solve consensus.umb --goal finished --epsilon 1e-6",
    ),
    "verify": ("ooc-mdp verify car.store car.result",),
}
"""Command lines by command, the commonest first."""

_PURPOSES: dict[str, tuple[str, ...]] = {
    "Models": ("problems", "generate", "convert", "inspect", "check"),
    "Solutions": ("plan", "solve", "kernels", "verify", "simulate", "export"),
    "Reports and pictures": ("report", "plot", "animate"),
    "Cache measurements": ("cache-sweep", "cache-curve"),
}
_OTHERS = "Other commands"


def commands_by_purpose(names: list[str]) -> dict[str, list[str]]:
    """The commands under the headings of the first page of help, in the order in which they are used."""
    listed = {purpose: [name for name in order if name in names] for purpose, order in _PURPOSES.items()}
    rest = [name for name in names if not any(name in known for known in _PURPOSES.values())]
    return {purpose: found for purpose, found in {**listed, _OTHERS: rest}.items() if found}


def first_sentence(text: str | None) -> str:
    """The first paragraph of a command's help, in one line."""
    return " ".join((text or "").split("\n\n")[0].split())


class GroupedCommand(TyperCommand):
    """A command whose help lists its options by heading, and ends with examples."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """List arguments first, then options without a heading, then each heading in the order of its first option."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                usual = "Arguments" if parameter.param_type_name == "argument" else "Options"
                heading = getattr(parameter, "rich_help_panel", None) or usual
                sections.setdefault(heading, []).append(record)
        for heading, records in sections.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples of the command, a line each however long it is."""
        lines = EXAMPLES.get(str(self.name), ())
        if lines:
            formatter.write_paragraph()
            formatter.write("Examples:\n" if len(lines) > 1 else "Example:\n")
            formatter.write("".join(f"  {line}\n" for line in lines))
