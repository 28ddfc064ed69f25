"""``python -m ooc_mdp``."""

from ooc_mdp.cli import main

main()
