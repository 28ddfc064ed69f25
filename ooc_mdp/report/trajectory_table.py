"""Simulated runs for people and programs: a table of one line a start, and every sample as CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ooc_mdp.quoting import printable
from ooc_mdp.simulation import Simulation, Trajectory
from ooc_mdp.store.atomic_file import atomic_file

__all__ = ["print_simulation", "write_trajectories"]

_PIPE_WIDTH = 160
"""Columns where the output is no terminal."""
_PIECE = 4096
"""Samples that are numbers of Python at a time."""


def print_simulation(simulation: Simulation) -> None:
    """One line a start, then the fractions of successes."""
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=_PIPE_WIDTH)
    options = simulation.options
    table = Table(box=None, pad_edge=False, header_style="bold")
    names = printable(", ".join(axis.name for axis in simulation.problem.problem.axes))
    table.add_column(f"start ({names})", overflow="fold")
    at_goal = ("reached at", "held since", f"last {options.hold_time:g} at goal") if simulation.has_goal else ()
    for header in ("value", "outcome", "duration", *at_goal, "discounted return"):
        table.add_column(header, justify="left" if header == "outcome" else "right")
    for run in simulation.trajectories:
        table.add_row(*_cells(run, simulation.has_goal))
    console.print(table)
    console.print("\n".join(_conclusions(simulation)), soft_wrap=True)


def _cells(run: Trajectory, has_goal: bool) -> tuple[str, ...]:
    at_goal = (
        "" if run.reached is None else f"{run.reached:.2f}",
        "" if run.held_since is None else f"{run.held_since:.2f}",
        "" if run.goal_fraction_last is None else f"{run.goal_fraction_last:.1%}",
    )
    return (
        ", ".join(f"{x:.3g}" for x in run.states[0]),
        f"{run.start_value:.4g}",
        run.outcome.value,
        f"{run.duration:.2f}",
        *(at_goal if has_goal else ()),
        f"{run.discounted_return:.4g}",
    )


def _conclusions(simulation: Simulation) -> list[str]:
    figures = simulation.summary()
    if not simulation.has_goal:
        lines = [
            "the problem states no goal, and its rewards mark none: compare the discounted returns, or give it is_goal"
        ]
    else:
        success = f"success: {figures['successes']} of {figures['starts']} starts ({figures['success_fraction']:.0%})"
        if figures["starts_above_value_threshold"] is not None:
            success += (
                f"; {figures['successes_above_value_threshold']} of the {figures['starts_above_value_threshold']} "
                f"starts above the value threshold (value above 1% of the largest)"
            )
        lines = [success]
    lines += [
        f"{outcome.value}: {outcome.message}"
        for outcome in dict.fromkeys(run.outcome for run in simulation.trajectories)
    ]
    return lines


def write_trajectories(simulation: Simulation, file: Path, *, overwrite: bool = False) -> None:
    """Every sample of every run: run, time, the state's components by name, control's index and values, value.

    Raises
    ------
    StoreError : the file exists and may not be replaced, or cannot be written.
    """
    problem = simulation.problem.problem
    inputs = [f"control{i}" for i in range(len(problem.controls[0]))]
    nothing = [""] * len(inputs)
    with atomic_file(file, overwrite=overwrite) as temporary, temporary.open("w", newline="", encoding="utf-8") as f:
        out = csv.writer(f)
        out.writerow(["run", "time", *(axis.name for axis in problem.axes), "action", *inputs, "value"])
        for number, run in enumerate(simulation.trajectories):
            for time, state, action, value in _samples(run):
                held = nothing if action < 0 else problem.controls[action]
                out.writerow([number, time, *state, action, *held, value])


def _samples(run: Trajectory) -> Iterator[tuple[float, list[float], int, float]]:
    """Time, state, action and value of each sample, a piece of the arrays at a time: numbers of Python are large."""
    for first in range(0, run.times.size, _PIECE):
        piece = slice(first, first + _PIECE)
        arrays = (run.times[piece], run.states[piece], run.actions[piece], run.values[piece])
        yield from zip(*(array.tolist() for array in arrays), strict=True)
