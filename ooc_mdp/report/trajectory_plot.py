"""Simulated runs as a plot: every component of the state, control and value over time; in two dimensions also the
phase plane over the value function.

No window and no global state of matplotlib: a Figure, saved.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import MissingExtraError, OptionsError
from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.problems.control.definition import Axis
from ooc_mdp.simulation import RunOutcome, Simulation, Trajectory
from ooc_mdp.store.atomic_file import atomic_file

__all__ = ["PLOT_FORMATS", "check_trajectory_plot", "plot_trajectories"]

PLOT_FORMATS = (".png", ".svg", ".pdf")

_MAX_POINTS = 400
"""Points along an axis of the value function's picture at most."""
_END_MARKERS = {RunOutcome.GOAL: "*", RunOutcome.HELD: "*", RunOutcome.CRASHED: "X", RunOutcome.ENDED: "s"}
"""How the end of a run is drawn in the phase plane, where it says how the run ended."""


def check_trajectory_plot(file: Path) -> None:
    """Refuse a plot that could not be drawn, before there is any work.

    Raises
    ------
    OptionsError : the suffix is none of PLOT_FORMATS.
    MissingExtraError : matplotlib is not installed.
    """
    if file.suffix not in PLOT_FORMATS:
        raise OptionsError(f"cannot plot to {file.name}: the name must end in {', '.join(PLOT_FORMATS)}")
    _figure_class()


def plot_trajectories(simulation: Simulation, values: FloatArray, file: Path, *, overwrite: bool = False) -> None:
    """Draw all runs; the suffix of `file` chooses PNG, SVG or PDF.

    Parameters
    ----------
    values : float64 [n]; the value function, for the background of the phase plane.

    Raises
    ------
    OptionsError, MissingExtraError : see :func:`check_trajectory_plot`.
    StoreError : the file exists and may not be replaced, or cannot be written.
    """
    check_trajectory_plot(file)
    problem = simulation.problem.problem
    plane = len(problem.axes) == 2
    rows = len(problem.axes) + len(problem.controls[0]) + 1
    figure = _figure_class()(figsize=(14.0 if plane else 9.0, 1.7 * rows + 0.8), layout="constrained", dpi=120)
    left, right = figure.subfigures(1, 2) if plane else (figure, None)
    panels = left.subplots(rows, 1, sharex=True)
    for number, run in enumerate(simulation.trajectories):
        _draw_run(panels, run, simulation, f"C{number % 10}")
    names = [_label(axis) for axis in problem.axes]
    names += [f"control {i}" if len(problem.controls[0]) > 1 else "control" for i in range(len(problem.controls[0]))]
    for panel, name in zip(panels, [*names, "value"], strict=True):
        panel.set_ylabel(name)
        panel.grid(alpha=0.3)
    panels[-1].set_xlabel("time")
    if right is not None:
        _draw_plane(right.subplots(), simulation, values)
    figures = simulation.summary()
    title = (
        f"{simulation.problem.name}, {'x'.join(map(str, simulation.problem.points))} states, controller "
        f"{simulation.options.controller.value}"
    )
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in figures["outcomes"].items())
    if simulation.has_goal:
        title += f": {figures['successes']} of {figures['starts']} starts succeed"
    title += f" ({outcomes})"
    figure.suptitle(title)
    with atomic_file(file, overwrite=overwrite) as temporary:
        figure.savefig(temporary, format=file.suffix[1:])


def _figure_class() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plot", "drawing a plot") from error
    return Figure


def _label(axis: Axis) -> str:
    return f"{axis.name}, {axis.unit}" if axis.unit else axis.name


def _with_gaps(run: Trajectory, axes: tuple[Axis, ...]) -> FloatArray:
    """float64 [m, d]: the states, with NaN in a periodic component where it jumps from one end to the other."""
    states = run.states.copy()
    for i, axis in enumerate(axes):
        if axis.periodic:
            jumps = np.abs(np.diff(run.states[:, i])) > 0.5 * (axis.high - axis.low)
            states[1:][jumps, i] = np.nan
    return states


def _draw_run(panels: Any, run: Trajectory, simulation: Simulation, colour: str) -> None:
    problem = simulation.problem.problem
    states = _with_gaps(run, problem.axes)
    for i in range(len(problem.axes)):
        panels[i].plot(run.times, states[:, i], color=colour, linewidth=1.0)
    held: npt.NDArray[np.float64] = np.array(problem.controls, float)[np.maximum(run.actions, 0)]
    for i in range(held.shape[1]):
        panels[len(problem.axes) + i].step(run.times, held[:, i], color=colour, linewidth=0.6, where="post")
    panels[-1].plot(run.times, run.values, color=colour, linewidth=1.0)


def _draw_plane(panel: Any, simulation: Simulation, values: FloatArray) -> None:
    problem = simulation.problem
    across, up = problem.problem.axes
    every = [-(-n // _MAX_POINTS) for n in problem.points]
    picture = values.reshape(problem.points)[:: every[0], :: every[1]]
    where = [
        axis.low + h * np.arange(n)[::k]
        for axis, h, n, k in zip(problem.problem.axes, problem.steps, problem.points, every, strict=True)
    ]
    colours = panel.pcolormesh(where[0], where[1], picture.T, shading="nearest", cmap="Greys", rasterized=True)
    panel.figure.colorbar(colours, ax=panel, label="value")
    for number, run in enumerate(simulation.trajectories):
        states = _with_gaps(run, problem.problem.axes)
        panel.plot(states[:, 0], states[:, 1], color=f"C{number % 10}", linewidth=1.0)
        panel.plot(run.states[:1, 0], run.states[:1, 1], color=f"C{number % 10}", marker="o", markersize=4)
        end = _END_MARKERS.get(run.outcome)
        if end is not None:
            panel.plot(run.states[-1:, 0], run.states[-1:, 1], color=f"C{number % 10}", marker=end, markersize=8)
    panel.set_xlabel(_label(across))
    panel.set_ylabel(_label(up))
    panel.set_xlim(across.low, across.high)
    panel.set_ylim(up.low, up.high)
