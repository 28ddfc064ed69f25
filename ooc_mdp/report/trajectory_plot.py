"""Simulated runs as a plot: every component of the state, control and value over time, and the paths in the plane of
two axes, with the goal, the obstacles and, where there are no other axes, the values.

No window and no global state of matplotlib: a Figure, saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ooc_mdp.errors import OptionsError
from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.problems.control.definition import Axis, ControlProblem
from ooc_mdp.quoting import quote
from ooc_mdp.report.figures import check_plot_file, new_figure, plain, save_figure
from ooc_mdp.report.maps.colours import value_range
from ooc_mdp.report.regions import regions_of
from ooc_mdp.report.switching import control_lines
from ooc_mdp.simulation import RunOutcome, Simulation, Trajectory

__all__ = ["draw_regions", "plot_trajectories", "plotted_axes"]

_MAX_POINTS = 400
"""Points along an axis of the value function's picture at most."""
_END_MARKERS = {RunOutcome.GOAL: "*", RunOutcome.HELD: "*", RunOutcome.CRASHED: "X", RunOutcome.ENDED: "s"}
"""How the end of a run is drawn in the phase plane, where it says how the run ended."""
_GOAL, _BLOCKED = "C2", "0.25"


def plotted_axes(problem: ControlProblem, names: Sequence[str] | None) -> tuple[int, int] | None:
    """Numbers of the axes across and up; the first two by default, None where there is one axis alone.

    Raises
    ------
    OptionsError : there are no such axes, or not two different ones.
    """
    known = [axis.name for axis in problem.axes]
    if names is None:
        return (0, 1) if len(known) > 1 else None
    if len(names) != 2 or names[0] == names[1] or not set(names) <= set(known):
        raise OptionsError(
            f"the axes to plot are {quote(','.join(names))}; give two different ones of {', '.join(known)}, such as "
            f"{','.join(known[:2])}"
        )
    return known.index(names[0]), known.index(names[1])


def plot_trajectories(
    simulation: Simulation,
    values: FloatArray,
    file: Path,
    *,
    axes: Sequence[str] | None = None,
    overwrite: bool = False,
) -> None:
    """Draw all runs; the suffix of `file` chooses PNG, SVG or PDF.

    Parameters
    ----------
    values : float64 [n]; the value function, for the background of the plane of a problem with two axes.
    axes : names of the axes of the plane; the first two by default.

    Raises
    ------
    OptionsError, MissingExtraError : see :func:`ooc_mdp.report.figures.check_plot_file` and :func:`plotted_axes`.
    StoreError : the file exists and may not be replaced, or cannot be written.
    """
    check_plot_file(file)
    problem = simulation.problem.problem
    plane = plotted_axes(problem, axes)
    rows = len(problem.axes) + len(problem.controls[0]) + 1
    height = max(4.5, 1.7 * rows + 0.8)
    figure: Any = new_figure(figsize=(9.0 if plane is None else 14.0, height), layout="constrained", dpi=120)
    left, right = (figure, None) if plane is None else figure.subfigures(1, 2)
    panels = left.subplots(rows, 1, sharex=True)
    longest = max(run.duration for run in simulation.trajectories)
    for number, run in enumerate(simulation.trajectories):
        _draw_run(panels, run, simulation, f"C{number % 10}", longest)
    names = [_label(axis) for axis in problem.axes]
    names += [f"control {i}" if len(problem.controls[0]) > 1 else "control" for i in range(len(problem.controls[0]))]
    for panel, name in zip(panels, [*names, "value"], strict=True):
        panel.set_ylabel(name)
        panel.grid(alpha=0.3)
    panels[-1].set_xlabel("time")
    if right is not None and plane is not None:
        _draw_plane(right.subplots(), simulation, values, plane)
    figure.suptitle(plain(_title(simulation)))
    save_figure(figure, file, overwrite=overwrite)


def _title(simulation: Simulation) -> str:
    figures = simulation.summary()
    title = (
        f"{simulation.problem.name}, {'x'.join(map(str, simulation.problem.points))} states, controller "
        f"{simulation.options.controller.value}"
    )
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in figures["outcomes"].items())
    if simulation.has_goal:
        title += f": {figures['successes']} of {figures['starts']} starts succeed"
    return f"{title} ({outcomes})"


def _label(axis: Axis) -> str:
    return plain(f"{axis.name} ({axis.unit})" if axis.unit else axis.name)


def _with_gaps(run: Trajectory, axes: tuple[Axis, ...]) -> FloatArray:
    """float64 [m, d]: the states, with NaN in a periodic component where it jumps from one end to the other."""
    states = run.states.copy()
    for i, axis in enumerate(axes):
        if axis.periodic:
            jumps = np.abs(np.diff(run.states[:, i])) > 0.5 * (axis.high - axis.low)
            states[1:][jumps, i] = np.nan
    return states


def _draw_run(panels: Any, run: Trajectory, simulation: Simulation, colour: str, longest: float) -> None:
    problem = simulation.problem.problem
    states = _with_gaps(run, problem.axes)
    for i in range(len(problem.axes)):
        panels[i].plot(run.times, states[:, i], color=colour, linewidth=1.0)
    held: npt.NDArray[np.float64] = np.array(problem.controls, float)[np.maximum(run.actions, 0)]
    for i in range(held.shape[1]):
        _draw_control(panels[len(problem.axes) + i], run.times, held[:, i], colour, longest)
    panels[-1].plot(run.times, run.values, color=colour, linewidth=1.0)


def _draw_control(panel: Any, times: FloatArray, values: FloatArray, colour: str, longest: float) -> None:
    """A line where the control is held, a band with its mean where it chatters."""
    lines = control_lines(times, values, longest)
    panel.step(times, lines.held, color=colour, linewidth=1.0, where="post")
    panel.fill_between(lines.middles, lines.low, lines.high, color=colour, alpha=0.15, linewidth=0, step="mid")
    panel.plot(lines.middles, lines.mean, color=colour, linewidth=1.0)


def _draw_plane(panel: Any, simulation: Simulation, values: FloatArray, plane: tuple[int, int]) -> None:
    problem = simulation.problem.problem
    across, up = (problem.axes[i] for i in plane)
    if len(problem.axes) == 2:
        _draw_values(panel, simulation, values, plane)
    draw_regions(panel, simulation, plane)
    for number, run in enumerate(simulation.trajectories):
        colour = f"C{number % 10}"
        states = _with_gaps(run, problem.axes)[:, list(plane)]
        panel.plot(states[:, 0], states[:, 1], color=colour, linewidth=1.2)
        first, last = run.states[0, list(plane)], run.states[-1, list(plane)]
        panel.plot(*first, color=colour, marker="o", markersize=4)
        end = _END_MARKERS.get(run.outcome)
        if end is not None:
            panel.plot(*last, color=colour, marker=end, markersize=8, markeredgecolor="black", markeredgewidth=0.5)
    panel.set_xlabel(_label(across))
    panel.set_ylabel(_label(up))
    panel.set_xlim(across.low, across.high)
    panel.set_ylim(up.low, up.high)
    if across.unit == up.unit != "" and across.high - across.low == up.high - up.low:
        panel.set_aspect("equal")


def _draw_values(panel: Any, simulation: Simulation, values: FloatArray, plane: tuple[int, int]) -> None:
    """The value function behind the paths, without penalties far from all other values."""
    problem = simulation.problem
    every = [-(-n // _MAX_POINTS) for n in problem.points]
    picture = values.reshape(problem.points)[:: every[0], :: every[1]]
    where = [
        axis.low + h * np.arange(n)[::k]
        for axis, h, n, k in zip(problem.problem.axes, problem.steps, problem.points, every, strict=True)
    ]
    shown = value_range(values, "max" if simulation.sign > 0 else "min")
    colours = panel.pcolormesh(
        where[plane[0]], where[plane[1]], picture.T if plane == (0, 1) else picture, shading="nearest", cmap="Greys",
        vmin=shown.low, vmax=shown.high, rasterized=True,
    )  # fmt: skip
    panel.figure.colorbar(colours, ax=panel, label="value", extend=shown.extend)


def draw_regions(panel: Any, simulation: Simulation, plane: tuple[int, int]) -> None:
    """Draw the goal in green and the obstacles hatched, with a legend of what there is."""
    from matplotlib.patches import Patch

    goal = simulation.goal_is_end, simulation.goal_pays
    regions = regions_of(simulation.problem.problem, *plane, simulation.sign, *goal)
    handles = []
    for inside, colour, hatch, word in (
        (regions.blocked, _BLOCKED, "///", "the process ends"),
        (regions.goal & simulation.has_goal, _GOAL, "", "goal"),
    ):
        if inside.any():
            look = {"colors": [colour], "alpha": 0.35, "hatches": [hatch]}
            panel.contourf(regions.across, regions.up, inside.astype(float), levels=[0.5, 1.5], **look)
            panel.contour(regions.across, regions.up, inside.astype(float), levels=[0.5], colors=[colour], linewidths=1)
            handles.append(Patch(facecolor=colour, alpha=0.35, hatch=hatch, label=word))
    if handles:
        panel.legend(handles=handles, loc="upper left", fontsize=8)
