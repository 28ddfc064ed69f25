"""Something is on a terminal before a command's code is imported, and nothing of it in a log."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest
from command_line import environment

from ooc_mdp.cli.starting import starting


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_word_is_shown_while_code_is_imported_and_removed_before_the_command_prints():
    terminal = Terminal()
    with starting(["solve", "s"], terminal):
        assert terminal.getvalue() == "starting ..."
    assert terminal.getvalue() == "starting ...\r            \r"


@pytest.mark.parametrize("words", [[], ["--version"], ["--help"], ["solve", "--help"]])
def test_help_and_version_show_no_such_word(words):
    terminal = Terminal()
    with starting(words, terminal):
        pass
    assert terminal.getvalue() == ""


def test_a_log_has_no_such_word():
    log = io.StringIO()
    with starting(["solve"], log):
        pass
    assert log.getvalue() == ""


def test_nothing_that_takes_time_is_imported_before_the_word():
    source = "import sys, ooc_mdp.cli; print(*({'numpy', 'numba', 'rich', 'typer', 'zarr'} & {*sys.modules}))"
    done = subprocess.run([sys.executable, "-c", source], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
