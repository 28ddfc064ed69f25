"""``python -m ooc_mdp.cli``."""

from ooc_mdp.cli import main

main()
