"""A simulated run as an animation: the car on its hill, or the links of a pendulum, in real time.

GIF through Pillow, which matplotlib brings; MP4 through ffmpeg where it is installed. What does not move is drawn once,
and a frame is that picture with all that lies above it drawn anew. A drawing is known by the
dynamics that it belongs to; to add one, define a class that satisfies :class:`Drawing` and enter it in `_drawing`.
Other problems are drawn as a point that moves in the plane of two axes, with goal and obstacles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ooc_mdp.errors import MissingExtraError, OptionsError, StoreError
from ooc_mdp.events import Watcher
from ooc_mdp.model.mdp import FloatArray
from ooc_mdp.problems.control import mountain_car, pendulums
from ooc_mdp.problems.control.definition import State
from ooc_mdp.report.figures import plain
from ooc_mdp.report.trajectory_plot import draw_regions, plotted_axes
from ooc_mdp.simulation import Simulation
from ooc_mdp.store.atomic_file import atomic_file

__all__ = ["ANIMATION_FORMATS", "Drawing", "animate", "animation_classes", "check_animation", "check_animation_file"]

ANIMATION_FORMATS = (".gif", ".mp4")

_FRAMES_PER_SECOND = 25
_MAX_FRAMES = 1500


class Drawing(Protocol):
    """How the state of a problem looks."""

    def prepare(self, panel: Any) -> Sequence[Any]:
        """Draw what stays on matplotlib axes, then create what moves, and return that: matplotlib's artists."""
        ...

    def show(self, state: FloatArray, control: State) -> None:
        """Move what moves to a state (float64 [d])."""
        ...


class _Car:
    """A car on the hill, its thrust as an arrow."""

    def prepare(self, panel: Any) -> Sequence[Any]:
        x = np.linspace(-1.0, 1.0, 401)
        panel.plot(x, _hill(x), color="black", linewidth=2.0)
        panel.set_xlim(-1.1, 1.1)
        panel.set_ylim(-0.45, 0.65)
        (self._car,) = panel.plot([], [], color="C0", marker="o", markersize=16)
        (self._thrust,) = panel.plot([], [], color="C3", linewidth=4.0)
        return self._car, self._thrust

    def show(self, state: FloatArray, control: State) -> None:
        x = float(state[0])
        height = float(_hill(np.array([x]))[0]) + 0.04
        self._car.set_data([x], [height])
        self._thrust.set_data([x, x + 0.15 * control[0]], [height, height])


class _Links:
    """A chain of links from the origin; angles are from upright, clockwise."""

    def __init__(self, lengths: tuple[float, ...], angles: tuple[int, ...]) -> None:
        self._lengths = lengths
        self._angles = angles

    def prepare(self, panel: Any) -> Sequence[Any]:
        reach = 1.1 * sum(self._lengths)
        panel.set_xlim(-reach, reach)
        panel.set_ylim(-reach, reach)
        panel.plot([0.0], [0.0], color="black", marker="s", markersize=8)
        (self._chain,) = panel.plot([], [], color="C0", linewidth=3.0, marker="o", markersize=9)
        (self._torque,) = panel.plot([], [], color="C3", linewidth=4.0)
        return self._chain, self._torque

    def show(self, state: FloatArray, control: State) -> None:
        angles = [float(state[i]) for i in self._angles]
        x = accumulate((n * np.sin(a) for n, a in zip(self._lengths, angles, strict=True)), initial=0.0)
        y = accumulate((n * np.cos(a) for n, a in zip(self._lengths, angles, strict=True)), initial=0.0)
        self._chain.set_data(list(x), list(y))
        self._torque.set_data([0.0, 0.3 * control[0]], [0.0, 0.0])


class _Plane:
    """The state as a point in the plane of two axes, with its path, goal and obstacles; on a line for one axis."""

    def __init__(self, simulation: Simulation, numbers: tuple[int, int] | None) -> None:
        self._simulation = simulation
        self._numbers = (0,) if numbers is None else numbers
        self._axes = tuple(simulation.problem.problem.axes[i] for i in self._numbers)
        self._visited: list[tuple[float, float]] = []

    def prepare(self, panel: Any) -> Sequence[Any]:
        panel.set_aspect("auto")
        setters = ((panel.set_xlim, panel.set_xlabel), (panel.set_ylim, panel.set_ylabel))
        for axis, (set_limits, set_label) in zip(self._axes, setters, strict=False):
            set_limits(axis.low, axis.high)
            set_label(plain(f"{axis.name} ({axis.unit})" if axis.unit else axis.name))
        if len(self._numbers) == 2:
            draw_regions(panel, self._simulation, (self._numbers[0], self._numbers[1]))
        (self._trail,) = panel.plot([], [], color="C0", linestyle="none", marker=".", markersize=2)
        (self._point,) = panel.plot([], [], color="C3", marker="o", markersize=9)
        return self._trail, self._point

    def show(self, state: FloatArray, control: State) -> None:
        first, *second = (float(state[i]) for i in self._numbers)
        at = first, second[0] if second else 0.0
        self._visited.append(at)
        self._trail.set_data(*zip(*self._visited, strict=True))
        self._point.set_data([at[0]], [at[1]])


def _hill(x: FloatArray) -> FloatArray:
    """Height of the car's hill; see :mod:`ooc_mdp.problems.control.mountain_car`."""
    return np.where(x < 0.0, x * x + x, x / np.sqrt(1.0 + 5.0 * x * x))


def _drawing(simulation: Simulation, axes: Sequence[str] | None) -> Drawing:
    """The drawing of the problem's dynamics; the plane of two axes where there is none, or axes are named."""
    problem = simulation.problem.problem
    p = problem.parameters
    if axes is not None:
        return _Plane(simulation, plotted_axes(problem, axes))
    if problem.dynamics is mountain_car.dynamics:
        return _Car()
    if problem.dynamics is pendulums.single_dynamics:
        return _Links((p.length,), (0,))
    if problem.dynamics is pendulums.double_dynamics:
        return _Links((p.length1, p.length2), (0, 1))
    if problem.dynamics is pendulums.triple_dynamics:
        return _Links((p.length1, p.length2, p.length3), (0, 2, 4))
    return _Plane(simulation, plotted_axes(problem, None))


def check_animation(file: Path, seconds: float) -> None:
    """Refuse an animation that could not be drawn, before there is any work.

    Raises
    ------
    OptionsError : the suffix is none of ANIMATION_FORMATS, or there are too many frames.
    MissingExtraError : matplotlib or Pillow is not installed.
    StoreError : ffmpeg is not there for MP4.
    """
    check_animation_file(file)
    if seconds * _FRAMES_PER_SECOND > _MAX_FRAMES:
        raise OptionsError(
            f"{seconds:g} seconds are too long for an animation; give --duration {_MAX_FRAMES // _FRAMES_PER_SECOND}"
            f" or less"
        )


def check_animation_file(file: Path) -> None:
    """Refuse a file that no animation can be written to.

    Raises
    ------
    OptionsError : the suffix is none of ANIMATION_FORMATS.
    MissingExtraError : matplotlib or Pillow is not installed.
    StoreError : ffmpeg is not there for MP4.
    """
    if file.suffix not in ANIMATION_FORMATS:
        raise OptionsError(f"cannot animate to {file.name}: the name must end in {' or '.join(ANIMATION_FORMATS)}")
    _, writers = animation_classes()
    if file.suffix == ".mp4" and not writers.is_available("ffmpeg"):
        raise StoreError(f"{file} cannot be written: the program ffmpeg is not installed; name a .gif")


def animate(
    simulation: Simulation,
    file: Path,
    *,
    run: int = 0,
    axes: Sequence[str] | None = None,
    overwrite: bool = False,
    progress: Watcher = lambda what, done, total: None,
) -> None:
    """Draw one run, 25 frames a unit of time; the suffix of `file` chooses GIF or MP4.

    Parameters
    ----------
    axes : names of the axes across and up, in place of a drawing of the problem.
    progress : called with the frames drawn so far.

    Raises
    ------
    OptionsError, MissingExtraError : see :func:`check_animation`; or there are no such axes.
    StoreError : the file exists and may not be replaced, or cannot be written.
    """
    trajectory = simulation.trajectories[run]
    problem = simulation.problem.problem
    check_animation(file, trajectory.duration)
    drawing = _drawing(simulation, axes)
    new_figure, writers = animation_classes()
    figure = new_figure(figsize=(5.0, 5.0), layout="constrained", dpi=80)
    panel = figure.subplots()
    panel.set_aspect("equal")
    moving = drawing.prepare(panel)
    panel.set_title(plain(f"{problem.name}, {0.0:.2f}"))  # for which the layout makes room
    draw = _frame_drawer(figure, panel, moving)
    figure.savefig = lambda out, **_: out.write(figure.canvas.buffer_rgba())  # which writers call: it is drawn already
    frames = np.append(np.arange(0.0, trajectory.duration, 1.0 / _FRAMES_PER_SECOND), trajectory.duration)
    samples = np.minimum(np.searchsorted(trajectory.times, frames), trajectory.times.size - 1)
    writer = writers["pillow" if file.suffix == ".gif" else "ffmpeg"](fps=_FRAMES_PER_SECOND)
    with atomic_file(file, overwrite=overwrite) as temporary, writer.saving(figure, str(temporary), dpi=80):
        for number, sample in enumerate(samples.tolist()):
            progress("drawing frames", number, samples.size)
            action = int(trajectory.actions[sample])
            drawing.show(trajectory.states[sample], problem.controls[max(action, 0)])
            panel.set_title(plain(f"{problem.name}, {trajectory.times[sample]:.2f}"))
            draw()
            writer.grab_frame()
        progress("drawing frames", samples.size, samples.size)


def _frame_drawer(figure: Any, panel: Any, moving: Sequence[Any]) -> Callable[[], None]:
    """Draw the figure without what lies above the first that moves; a function that adds that, for each frame."""
    figure.canvas.draw()  # lays it out
    figure.set_layout_engine("none")  # once, since a layout found anew may differ by a pixel
    drawn = sorted((artist for artist in panel.get_children() if artist is not panel.patch), key=_level)
    above = drawn[min(drawn.index(artist) for artist in moving) :]
    for artist in above:
        artist.set_animated(True)
    figure.canvas.draw()
    below = figure.canvas.copy_from_bbox(figure.bbox)

    def draw() -> None:
        figure.canvas.restore_region(below)
        for artist in above:
            panel.draw_artist(artist)

    return draw


def _level(artist: Any) -> float:
    return float(artist.get_zorder())


def animation_classes() -> tuple[Any, Any]:
    """A function that makes figures of matplotlib without a window, and its writers of animations.

    Raises
    ------
    MissingExtraError : matplotlib or Pillow is not installed.
    """
    try:
        import PIL  # noqa: F401  (matplotlib's own dependency; its writer imports it)
        from matplotlib.animation import writers
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "plot", "drawing an animation") from error

    def new_figure(**options: Any) -> Any:
        figure = Figure(**options)
        FigureCanvasAgg(figure)
        return figure

    return new_figure, writers
