"""What solves that stream partitions through one cache have in common, total and average rewards among them.

Loading of code, the memory plan but for what a method keeps, counters that go on after a checkpoint, and the task that
`ooc_mdp.solver.run` drives. Nothing here knows a method.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Protocol

from ooc_mdp.backends.compiling import load_until
from ooc_mdp.model.solution import Outcome, Solution
from ooc_mdp.model.table import Table
from ooc_mdp.runtime.memory import resident_bytes
from ooc_mdp.runtime.memory_plan import PROCESS, MemoryPlan
from ooc_mdp.solver.history import history_bytes
from ooc_mdp.solver.output import Output, Snapshot
from ooc_mdp.solver.plan import beside_tables, fitting_cache, writing_bytes
from ooc_mdp.solver.run import run_steps
from ooc_mdp.solver.session import Progressing, Session
from ooc_mdp.store.check_load import check_bytes
from ooc_mdp.store.checkpoint import check_bounds, checkpoint_path
from ooc_mdp.undiscounted.tables import Streamed

__all__ = ["DEPTH", "StreamedMethod", "StreamedSolve", "continue_counters", "load_loops", "plan_streamed"]

DEPTH = 2
"""Partitions that are read at a time."""


class StreamedMethod(Progressing, Protocol):
    """A method under way."""

    tables: Streamed


@dataclass(frozen=True, slots=True)
class StreamedSolve:
    """A solve that has begun."""

    state: StreamedMethod
    session: Session
    steps: Callable[[], Generator[None, None, Outcome]]
    """Begins the method."""
    concluded: Callable[[Outcome], Solution]
    stopped: Outcome | None
    """What ended it before it could begin."""

    def run(self) -> Outcome:
        """Until the target is met, or a limit ends it."""
        self.state.history.row(self.state.row())
        return self.stopped or run_steps(self.state, self.steps(), self.session)

    def snapshot(self) -> Snapshot | None:
        """What a solve continues from, once there is something."""
        return self.state.snapshot()

    def conclude(self, outcome: Outcome) -> Solution:
        """Certificate, values and policy; what there is where a limit ended the solve."""
        return self.concluded(outcome)


def load_loops(writes: bool, session: Session, load: Callable[[], None]) -> Outcome | None:
    """Load compiled loops now, so that the plan counts them; the outcome that ended it between two of them."""
    if writes:
        import zarr.codecs  # noqa: F401
    return load_until(session.ended, load)


def plan_streamed(
    table: Table,
    budget: int,
    own: Mapping[str, int],
    writes: bool,
    on_device: Mapping[str, int] | None = None,
    device: str = "cpu",
    depth: int = DEPTH,
) -> MemoryPlan:
    """Every large buffer of a solve in bytes.

    Parameters
    ----------
    budget : of the cache.
    own : what the method keeps in RAM, by name, the cache among it where tables lie there.
    on_device : what lies on a device.
    depth : partitions that are read at a time.

    Raises
    ------
    MemoryBudgetError : there is not so much RAM.
    """
    sizes, loader = table.facts.partition_bytes, table.loader(device)
    host = {
        PROCESS: resident_bytes(),
        **own,
        "marks of loaded states": check_bytes(table.n_states),
        "history": history_bytes(table.n_partitions),
        "padding and objects of tables": beside_tables(sizes, budget, loader.padding),
        "staging": 0 if loader.on_device else depth * loader.scratch_bytes,
    }
    if writes:
        host["output buffers"] = writing_bytes(table)
    plan = MemoryPlan(host, dict(on_device or {}))
    plan.check_available(f"this solve of {table.name}", fitting_cache(plan, int(sizes.max())))
    return plan


def continue_counters(
    run: StreamedMethod, output: Output, saved: Snapshot, session: Session, values: str, counters: tuple[str, ...]
) -> None:
    """Check the values of a checkpoint, of that name, and let history, counters and time go on from it."""
    assert output.path is not None  # a checkpoint lies beside an output
    path = checkpoint_path(output.path)
    check_bounds(path, saved.arrays[values])
    run.history.restore(saved.arrays, path)
    session.begin(saved.statistics.solve_seconds, saved.statistics.backups)
    run.tables.count_on(saved.statistics)
    for name in ("visits", "sweeps", "backups", *counters):
        setattr(run.counters, name, getattr(saved.statistics, name))
