"""The name of a method, and what a checkpoint records of it: what was asked for, and which methods had which part.

A resumed solve continues by the recorded method where it asks for none, and what one method has cost is not counted as
the cost of another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from ooc_mdp.options import DEFAULT_KERNEL, MethodName, PriorityName, SolveOptions

__all__ = ["MethodRecord", "Phase", "method_name"]


@dataclass(frozen=True, slots=True)
class Phase:
    """A method at work, until the next phase begins."""

    method: str
    """A word of `ooc_mdp.solver.local.METHODS`; p-eva on a device is "p-eva" too."""
    loads: int
    """Loads of the whole solve when the method began."""
    backups: int
    """Backups of a state, likewise."""


@dataclass(frozen=True, slots=True)
class MethodRecord:
    """The method of a solve that was stopped; the first three as in `SolveOptions`."""

    method: MethodName = "auto"
    priority: PriorityName | None = None
    sweeps_per_visit: int = 1
    phases: tuple[Phase, ...] = ()
    """In the order in which they began."""

    @classmethod
    def of(cls, options: SolveOptions, phases: Sequence[Phase]) -> Self:
        """The record of a solve with these options."""
        return cls(options.method, options.priority, options.sweeps_per_visit, tuple(phases))

    def continued(self, options: SolveOptions) -> SolveOptions:
        """The options of a solve that continues this one: by the recorded method where they leave the choice.

        Raises
        ------
        OptionsError : the record contradicts itself or the options.
        """
        if options.effective_method != "auto":
            return options
        return replace(options, method=self.method, priority=self.priority, sweeps_per_visit=self.sweeps_per_visit)


def method_name(options: SolveOptions) -> str:
    """The method and its variants, as traces and results call it."""
    kernel = "" if options.kernel == DEFAULT_KERNEL else f", {options.kernel} kernel"
    kernel += "" if options.stopping is None else f", stopping {options.stopping}"
    if options.effective_method == "p-eva":
        return f"p-eva {options.priority or options.effective_priority}{kernel}"
    sweeps = "" if options.sweeps_per_visit == 1 else f", {options.sweeps_per_visit} sweeps a visit"
    return options.effective_method + sweeps + kernel
