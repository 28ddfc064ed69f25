"""Groups of options: declared once, given to a command as one object, and shown under their own heading."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar

import pytest
import typer
from command_line import ooc
from typer.testing import CliRunner

import ooc_mdp
from ooc_mdp.cli.choices import CriterionChoices, GroupedCommand, SolveChoices, with_choices
from ooc_mdp.cli.table_choices import ProblemChoices, SourceChoices, TableChoices
from ooc_mdp.criteria import QUESTIONS
from ooc_mdp.errors import OptionsError
from ooc_mdp.model.criterion import Discounted, TotalReward
from ooc_mdp.options import CacheSize, ClusterOptions, RunOptions, SolveKeywords, SolveOptions
from ooc_mdp.table_options import TableKeywords


@dataclass(frozen=True)
class Colours:
    heading: ClassVar[str] = "Colours"
    paint: Annotated[str, typer.Option(help="Which.")] = "red"
    coats: Annotated[int, typer.Option("--coats", "-c", rich_help_panel="Work")] = 1


@dataclass(frozen=True)
class Sizes:
    heading: ClassVar[str] = "Sizes"
    width: Annotated[float | None, typer.Option(help="How wide.")] = None


seen: list[tuple[Any, ...]] = []
app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(cls=GroupedCommand)
@with_choices(Colours, Sizes)
def draw(
    name: Annotated[str, typer.Argument()],
    sizes: Sizes,
    colours: Colours,
    loud: Annotated[bool, typer.Option()] = False,
) -> None:
    """Draw it."""
    seen.append((name, sizes, colours, loud))


@app.command()
def other() -> None:
    """Makes commands of both."""


def test_a_command_gets_its_groups_as_objects() -> None:
    seen.clear()
    for line in (["draw", "a"], ["draw", "b", "--loud", "--width", "2", "--paint", "blue", "-c", "3"]):
        assert CliRunner().invoke(app, line).exit_code == 0
    assert seen == [("a", Sizes(), Colours(), False), ("b", Sizes(2.0), Colours("blue", 3), True)]


def test_what_belongs_to_no_group_is_refused() -> None:
    assert CliRunner().invoke(app, ["draw", "a", "--height", "2"]).exit_code == 2
    assert CliRunner().invoke(app, ["draw", "a", "--coats", "many"]).exit_code == 2


def test_help_shows_each_group_under_its_heading() -> None:
    shown = CliRunner().invoke(app, ["draw", "--help"]).output
    places = [shown.index(f"\n{heading}:\n") for heading in ("Arguments", "Options", "Colours", "Work", "Sizes")]
    assert places == sorted(places)
    assert places[2] < shown.index("--paint") < places[3] < shown.index("--coats") < places[4] < shown.index("--width")


def test_the_help_of_generate_and_convert_is_divided_too() -> None:
    for command, headings in (
        ("generate", {"Problem": "--seed", "Partitions": "--partition-grid", "Threads and workers": "--scheduler"}),
        ("convert", {"Source": "--rewards", "Partitions": "--partition-grid", "Threads and workers": "--scheduler"}),
    ):
        shown = ooc(command, "--help").out
        for heading, option in headings.items():
            assert option in shown.partition(f"\n{heading}:\n")[2]


def test_the_help_of_solve_is_divided_by_what_its_options_are_about() -> None:
    shown = ooc("solve", "--help").out
    for heading, option in (
        ("What is proved", "--epsilon"),
        ("Method", "--priority"),
        ("Memory and device", "--cache"),
        ("Output and limits", "--time-limit"),
        ("Several workers", "--placement"),
    ):
        assert f"\n{heading}:\n" in shown
        assert option in shown.partition(f"\n{heading}:\n")[2]
    for command in ("solve", "verify"):  # what describes a table belongs to generate
        assert not {"--partition-grid", "--dtype", "--grid", "problem:"} & set(ooc(command, "--help").out.split())


def test_choices_left_alone_are_the_options_defaults() -> None:
    assert SolveChoices().options(Discounted(0.9)) == (SolveOptions(0.9), RunOptions(), None)
    assert TableChoices().keywords() == dict.fromkeys([*TableKeywords.__annotations__, "workers"])
    assert SourceChoices().keywords() == {
        name: parameter.default
        for name, parameter in inspect.signature(ooc_mdp.convert).parameters.items()
        if name in ("format", "rewards", "reward_model", "normalize", "grid")
    }
    assert [field.name for field in fields(SolveChoices)] == [*SolveKeywords.__annotations__, "scheduler"]
    flags = {flag.name for question in QUESTIONS.values() for flag in question.criterion.flags}
    assert {field.name for field in fields(CriterionChoices)} == flags >= {"discount", "total"}


def test_a_criterion_is_a_discount_or_a_flag_and_not_both() -> None:
    assert CriterionChoices(discount=0.9).criterion() == Discounted(0.9)
    assert CriterionChoices(total=True).criterion() == TotalReward()
    for choices in (CriterionChoices(), CriterionChoices(discount=0.9, total=True)):
        with pytest.raises(OptionsError, match="give exactly one of --discount, --total"):
            choices.criterion()


def test_choices_become_checked_options() -> None:
    chosen = SolveChoices(cache="22%", epsilon=0.5, time_limit=3.0, workers=2).options(Discounted(0.9))
    assert chosen == (
        SolveOptions(0.9, 0.5, cache=CacheSize(share=0.22)),
        RunOptions(time_limit=3.0),
        ClusterOptions(workers=2),
    )
    assert SolveChoices(scheduler="tcp://a:1").options(Discounted(0.9))[2] == ClusterOptions(workers="tcp://a:1")
    with pytest.raises(OptionsError, match="resume needs an output"):
        SolveChoices(resume=True).options(Discounted(0.9))
    assert ProblemChoices(["p=1"], seed=2, grid="3,4").parameters() == {"p": "1", "seed": 2, "grid": "3,4"}
    assert TableChoices(workers=2).keywords()["workers"] == 2
    assert TableChoices(scheduler="tcp://there:8786").keywords()["workers"] == "tcp://there:8786"
    contradicting = "--workers and --scheduler contradict each other"
    with pytest.raises(OptionsError, match=contradicting):
        TableChoices(workers=2, scheduler="tcp://a:1").keywords()
    with pytest.raises(OptionsError, match=contradicting):
        SolveChoices(workers=2, scheduler="tcp://a:1").options(Discounted(0.9))
