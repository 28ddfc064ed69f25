"""The command line: each command parses its options, calls the Python interface and prints figures.

Exit status: 0 when the work is done and, for solve, the bound is proved; 1 when it was stopped early or a check
failed; 2 for bad input or options, a full disk or too little memory. Errors go to stderr as one short message, never
as a traceback.
"""

import sys

from ooc_mdp.cli.starting import starting

__all__ = ["main"]


def main() -> None:
    """Run the command line of this process."""
    with starting(sys.argv[1:], sys.stderr):
        from ooc_mdp.cli import entry
    entry.main()
