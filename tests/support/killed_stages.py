"""Solves of finite horizons that are killed at the n-th stage of a partition, with checkpoints every so many."""

from __future__ import annotations

import itertools
from typing import Any

from command_line import ooc
from steps import kill

from ooc_mdp.finite_horizon.state import StageState
from ooc_mdp.solver.output import TakeSnapshot
from ooc_mdp.solver.session import Session

__all__ = ["command_killed_at_stage"]


def command_killed_at_stage(number: int, every: int, *arguments: object) -> None:
    """Run a command line in this process, which is killed when the n-th stage of a partition is half recorded."""
    taken, asked = itertools.count(1), itertools.count(1)
    write = StageState.count

    def counted(self: StageState, *given: Any) -> None:
        if next(taken) == number:
            kill()
        write(self, *given)

    def save(self: Session, take: TakeSnapshot) -> bool:
        return next(asked) % every == 0 and self.output.save(take)

    StageState.count = counted  # type: ignore[method-assign]
    Session.save_if_due = save  # type: ignore[method-assign]
    raise SystemExit(ooc(*arguments).status)
