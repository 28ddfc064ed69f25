"""Pages of help: commands by purpose with whole sentences, examples at the end, and completion by the shell."""

from __future__ import annotations

import subprocess
import sys

import pytest
from command_line import environment, ooc

from ooc_mdp.cli.application import app
from ooc_mdp.cli.help_pages import EXAMPLES, commands_by_purpose, first_sentence

COMMANDS = {
    each.name or each.callback.__name__.replace("_", "-"): each.callback.__doc__
    for each in app.registered_commands
    if each.callback is not None
}


def test_the_first_page_lists_commands_by_purpose_with_whole_sentences():
    shown = " ".join(ooc("--help").out.split())
    assert "Models: problems List the problems" in shown
    assert "..." not in shown.partition("Models:")[2]
    for text in COMMANDS.values():
        assert first_sentence(text) in shown


def test_a_command_without_a_purpose_is_listed_with_the_others():
    assert commands_by_purpose(["solve", "new", "check"]) == {
        "Models": ["check"], "Solutions": ["solve"], "Other commands": ["new"]
    }  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_each_command_ends_with_an_example_of_it(name):
    last = ooc(name, "--help").out.rstrip().splitlines()[-1]
    assert last == f"  {EXAMPLES[name][-1]}"
    assert all(line.startswith(f"ooc-mdp {name} ") or line == f"ooc-mdp {name}" for line in EXAMPLES[name])


def test_a_shell_completes_options():
    asked = {"_OOC_MDP_COMPLETE": "complete_bash", "COMP_WORDS": "ooc-mdp plot --po", "COMP_CWORD": "2"}
    source = "import sys; from ooc_mdp.cli import main; sys.argv = ['ooc-mdp']; main()"
    done = subprocess.run(
        [sys.executable, "-c", source], env=environment() | asked, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["--policy"]
