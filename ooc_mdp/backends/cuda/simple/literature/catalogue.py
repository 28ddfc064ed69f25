"""The simple kernels: declarations from which options, command line, tests and both backends take all that they know.

    word ─▶ SimpleKernel ─▶ on a CUDA device   launches of its .cu file     (`ooc_mdp.backends.cuda.simple.backend`)
                         └▶ on the CPU         its schedule in NumPy        (`ooc_mdp.backends.cpu.scheduled`)

A simple kernel sweeps one resident partition, from local values in one buffer into another, and only changes values:
what is proved is measured afterwards, by the same code for all. So each works with every method that sweeps, with
every cache size, and needs no argument of its own.

To add one: write ``simple/literature/NAME.cu`` (``simple/table.cuh`` has the signature and what a launch is given), a
schedule in ``reference/schedules.py`` and an entry in :data:`SIMPLE_KERNELS`. Tests go over the whole catalogue.
Nothing of CUDA is imported here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NamedTuple

from ooc_mdp.errors import MemoryBudgetError, OptionsError
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.options import Stopping, format_bytes
from ooc_mdp.reference import schedules
from ooc_mdp.reference.schedules import Schedule
from ooc_mdp.runtime.memory_plan import SMALLER

__all__ = ["SIMPLE_KERNELS", "Launch", "SimpleKernel"]


class Launch(NamedTuple):
    """One launch of a pass: blocks that share out the states, rows or transitions of a partition."""

    name: str
    """Of the function in the .cu file."""
    over: Literal["states", "rows", "transitions"]
    each: int = 256
    """How many of them a block has."""
    threads: int = 256
    """Of a block."""
    shared: int = 0
    """Bytes of dynamic shared memory of a block."""


def _nothing(facts: ModelFacts) -> None:
    return None


def _no_bytes(facts: ModelFacts) -> int:
    return 0


def _no_defines(facts: ModelFacts) -> Mapping[str, int]:
    return {}


@dataclass(frozen=True, slots=True)
class SimpleKernel:
    """A way to sweep one partition on a CUDA device, and what it computes."""

    word: str
    """Of --kernel."""
    summary: str
    """What a pass does, in a few words."""
    paper: str
    """Where it was published: author, year, section."""
    assumptions: str
    """Which stores it takes."""
    advice: str
    """When to take it, in one line."""
    source: str
    """Its file below ``simple/``."""
    launches: tuple[Launch, ...]
    """Of one pass, in order."""
    schedule: Schedule
    """What one pass computes."""
    exact: bool = True
    """Whether values equal the schedule's bit for bit; if not, up to the order in which transitions are added."""
    backups: int = 1
    """Of each state in a pass."""
    refuses: Callable[[ModelFacts], str | None] = _nothing
    """Why a store cannot be swept: a sentence with the numbers and another kernel's word. None: it can."""
    workspace: Callable[[ModelFacts], int] = _no_bytes
    """Bytes that a launch is given beside values; 0 when a solve begins, and kept from launch to launch."""
    defines: Callable[[ModelFacts], Mapping[str, int]] = _no_defines
    """Macros that its file is compiled with, beside INDEX and REAL; whole numbers."""
    stopping: Stopping | None = None
    """When a visit looks whether it may end, as the user says; None: as each backend does."""

    @property
    def bounds_by_changes(self) -> bool:
        """Whether the changes of a pass bound the residual: where it is V' = TV, bit for bit, and nothing else."""
        return self.schedule is schedules.jacobi and self.exact

    @property
    def block(self) -> int:
        """Threads of a block, of which a test of convergence may take the largest change."""
        return self.launches[-1].threads

    def check(self, facts: ModelFacts) -> None:
        """Raise OptionsError where the kernel cannot sweep a store's partitions."""
        reason = self.refuses(facts)
        if reason is not None:
            raise OptionsError(f"{facts.name}: {reason}")

    def check_memory(self, facts: ModelFacts, other: int, available: int | None, device: str) -> None:
        """Raise MemoryBudgetError where a device has too little memory for the workspace.

        Parameters
        ----------
        other : bytes of all else that a solve needs there.
        available : bytes of the device's budget, or free; None where unknown.
        """
        workspace = self.workspace(facts)
        if workspace and available is not None and workspace + other > available:
            raise MemoryBudgetError(
                f"{facts.name}: --kernel {self.word} needs a workspace of {format_bytes(workspace)} for partitions of "
                f"up to {facts.largest_partition} states, {facts.largest_halo} halo states and {facts.max_rows} rows, "
                f"and {format_bytes(other)} for all else; {device} has {format_bytes(available)}: {SMALLER}, or "
                f"take --kernel plain"
            )


PLAIN = SimpleKernel(
    word="plain",
    summary="one Jacobi sweep a pass, a thread a state",
    paper="Puterman 1994, 6.3",
    assumptions="any store",
    advice="The baseline for the others: repeats bit for bit with --method vi.",
    source="plain.cu",
    launches=(Launch("sweep", "states"),),
    schedule=schedules.jacobi,
)

_BLOCK, _ITERATIONS, _SHARED = 128, 8, 48 << 10
"""States of a block of BDI, iterations of a pass, and bytes of shared memory that every device's blocks have."""


def _bdi_defines(facts: ModelFacts, buffered: int) -> Mapping[str, int]:
    rows = {"ACTIONS": facts.actions_per_state or 1, "WIDTH": facts.successors_per_action or 1}
    return {"BLOCK": _BLOCK, "ITERATIONS": _ITERATIONS, "BUFFERED": buffered} | rows


def _buffer_fits(facts: ModelFacts) -> str | None:
    actions, width = facts.actions_per_state, facts.successors_per_action
    if not (actions and width):
        return (
            f"bdi-buffered keeps the same number of values for each of its {_BLOCK} threads, and rows of this store "
            f"differ: up to {facts.longest_row} successors; take --kernel bdi"
        )
    needed = 8 * _BLOCK * (actions * width + 1)
    if needed > _SHARED:
        return (
            f"bdi-buffered needs {needed} bytes of shared memory a block for {actions} actions of {width} successors, "
            f"and a block has {_SHARED}; take --kernel bdi"
        )
    return None


BDI = SimpleKernel(
    word="bdi",
    summary=f"Block Divided Iteration: blocks of {_BLOCK} states, {_ITERATIONS} iterations in shared memory a pass",
    paper="Johannsson 2009, 3.2.1",
    assumptions="any store",
    advice="Where most successors of a state are near it in the store's order; elsewhere plain does as well.",
    source="literature/johannsson_bdi.cu",
    launches=(Launch("bdi", "states", _BLOCK, _BLOCK),),
    schedule=partial(schedules.bdi, block=_BLOCK, iterations=_ITERATIONS),
    backups=_ITERATIONS,
    defines=partial(_bdi_defines, buffered=0),
)
BDI_BUFFERED = replace(
    BDI,
    word="bdi-buffered",
    summary="bdi with the values from outside a block copied to shared memory once a pass",
    paper="Johannsson 2009, 3.3.1",
    assumptions="as many actions in every state and successors in every row, "
    f"{_SHARED // (8 * _BLOCK) - 1} transitions a state at most",
    advice="Where bdi waits for values from outside its blocks; else bdi, whose blocks leave more room.",
    refuses=_buffer_fits,
    defines=partial(_bdi_defines, buffered=1),
)

_OF_A_THREAD, _BACKUPS, _UPDATE_CONSTANT = 4, 2, 1
"""States of a thread of bdi-priority (the thesis: 2 to 5), backups of each in a pass on average, U of equation 3.1."""

BDI_PRIORITY = SimpleKernel(
    word="bdi-priority",
    summary=f"bdi with {_OF_A_THREAD} states a thread, each time the one that changed most or was updated least",
    paper="Johannsson 2009, 3.3.2",
    assumptions="any store",
    advice="To see what the choice of states saves within a block; bdi reads rows that lie together.",
    source="literature/johannsson_bdi_priority.cu",
    launches=(Launch("bdi_priority", "states", _BLOCK * _OF_A_THREAD, _BLOCK),),
    schedule=partial(
        schedules.bdi_priority,
        block=_BLOCK,
        states=_OF_A_THREAD,
        backups=_BACKUPS,
        update_constant=_UPDATE_CONSTANT,
    ),
    backups=_BACKUPS,
    defines=lambda facts: {
        "BLOCK": _BLOCK,
        "STATES": _OF_A_THREAD,
        "BACKUPS": _BACKUPS,
        "UPDATE_CONSTANT": _UPDATE_CONSTANT,
    },
)

RDI = SimpleKernel(
    word="rdi",
    summary="Result Divided Iteration: a thread a transition, then a thread a row, then a thread a state",
    paper="Johannsson 2009, 3.2.2",
    assumptions="any store",
    advice="Where states are few and have many transitions; elsewhere plain does the same with fewer bytes.",
    source="literature/johannsson_rdi.cu",
    launches=(Launch("rdi_results", "transitions"), Launch("rdi_actions", "rows"), Launch("rdi_states", "states")),
    schedule=schedules.jacobi,
    workspace=lambda facts: 8 * (facts.most_transitions + facts.max_rows),
)

_HYBRID_STATES = 64
"""States of a block of rdi-actions, whose threads are four times as many: gridworlds have four actions."""

RDI_ACTIONS = SimpleKernel(
    word="rdi-actions",
    summary=f"bdi with a thread a row: blocks of {_HYBRID_STATES} states, {_ITERATIONS} iterations a pass",
    paper="Johannsson 2009, 7 (future work)",
    assumptions="any store",
    advice="Where states have many actions, and most successors are near in the store's order.",
    source="literature/johannsson_rdi_actions.cu",
    launches=(Launch("rdi_block", "states", _HYBRID_STATES, 4 * _HYBRID_STATES),),
    schedule=partial(schedules.bdi, block=_HYBRID_STATES, iterations=_ITERATIONS),
    backups=_ITERATIONS,
    defines=lambda facts: {"STATES": _HYBRID_STATES, "THREADS": 4 * _HYBRID_STATES, "ITERATIONS": _ITERATIONS},
)


def _sums_of_rows(facts: ModelFacts) -> int:
    return 8 * facts.max_rows


def _sums_and_carries(facts: ModelFacts) -> int:
    return _sums_of_rows(facts) + 8 * (facts.most_transitions // _LANES + 1)


_LANES = 32
"""Threads of a warp."""

TRANSITION_ATOMICS = SimpleKernel(
    word="transition-atomics",
    summary="a thread a transition, which adds to its row by atomicAdd, then a thread a state",
    paper="Quintanilla and Kolisetti, 3.1 and 3.2",
    assumptions="any store",
    advice="To measure what atomics cost; plain moves fewer bytes, and transition-segments adds without atomics.",
    source="literature/quintanilla_atomics.cu",
    launches=(Launch("clear_rows", "rows"), Launch("add_transitions", "transitions"), Launch("best_of_rows", "states")),
    schedule=schedules.jacobi,
    exact=False,
    workspace=_sums_of_rows,
)
TRANSITION_SEGMENTS = SimpleKernel(
    word="transition-segments",
    summary="a thread a transition, sums of rows by warp shuffles, then a thread a state",
    paper="Quintanilla and Kolisetti, 7",
    assumptions="any store",
    advice="Where rows have many successors, and some far more than others; elsewhere plain.",
    source="literature/quintanilla_segments.cu",
    launches=(Launch("add_segments", "transitions"), Launch("best_of_carries", "states")),
    schedule=schedules.jacobi,
    exact=False,
    workspace=_sums_and_carries,
)

DENSE = SimpleKernel(
    word="dense",
    summary="dense T(s,a,s') in device memory: a block a state, a tree over successors, one of two levels over actions",
    paper="Luo and Koettering, 4",
    assumptions="dense tables that fit the device: 8 bytes for each state and action of a partition and each of its "
    "states and halo states",
    advice="Where almost every state follows almost every other; elsewhere plain reads far fewer bytes.",
    source="literature/luo_dense.cu",
    launches=(Launch("dense_table", "rows", 64), Launch("dense_states", "states", 1)),
    schedule=schedules.jacobi,
    exact=False,
    workspace=lambda facts: 256 + 8 * facts.max_rows * (facts.largest_partition + facts.largest_halo),
)

SIMPLE_KERNELS: tuple[SimpleKernel, ...] = (
    PLAIN,
    BDI,
    BDI_BUFFERED,
    BDI_PRIORITY,
    RDI,
    RDI_ACTIONS,
    TRANSITION_ATOMICS,
    TRANSITION_SEGMENTS,
    DENSE,
)
"""All of them, the simplest first."""
