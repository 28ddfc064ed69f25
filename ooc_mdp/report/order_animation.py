"""The order of a solve's visits as an animation: a map of the partitions that changes visit by visit (GIF or MP4)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ooc_mdp.errors import OptionsError
from ooc_mdp.events import Watcher
from ooc_mdp.report.animation import animation_classes, check_animation_file
from ooc_mdp.report.figures import plain
from ooc_mdp.report.visit_frames import Plane, VisitFigure, Visits, frames_of
from ooc_mdp.store.atomic_file import atomic_file

__all__ = ["FRAMES_PER_SECOND", "animate_visits", "check_order_animation"]

FRAMES_PER_SECOND = 12
_LONGEST = 120.0
"""Seconds of an animation at most."""
_LABELS = {
    "order": "visits since the last one of the partition",
    "visits": "visits of the partition so far",
    "bound": "bound on the residual of the partition",
}
_MAPS = {"order": "inferno_r", "visits": "viridis", "bound": "viridis"}
_UNVISITED = "0.8"
_DECADES = 1e10
"""Ratio of bounds that have different colours at most."""


def check_order_animation(file: Path, seconds: float) -> None:
    """Refuse an animation that could not be written, before there is any work.

    Raises
    ------
    OptionsError : the suffix is no animation's, or the length is out of range.
    MissingExtraError : matplotlib or Pillow is not installed.
    StoreError : ffmpeg is not there for MP4.
    """
    check_animation_file(file)
    if not 0 < seconds <= _LONGEST:
        raise OptionsError(f"an animation of {seconds:g} seconds; give more than 0 and at most {_LONGEST:g}")


def animate_visits(
    visits: Visits,
    plane: Plane,
    title: str,
    file: Path,
    *,
    figure: VisitFigure,
    seconds: float,
    overwrite: bool,
    progress: Watcher = lambda what, done, total: None,
) -> None:
    """Draw the visits; the suffix of the file chooses GIF or MP4.

    Raises
    ------
    OptionsError, MissingExtraError : see :func:`check_order_animation`; or there is no bound of each visit.
    StoreError : the file exists and may not be replaced, or cannot be written.
    """
    check_order_animation(file, seconds)
    if figure == "bound" and visits.bound is None:
        raise OptionsError("the bound of a partition at each visit is in traces only; give the file of solve --trace")
    new_figure, writers = animation_classes()
    drawn = new_figure(figsize=(6.4, 5.0), layout="constrained", dpi=100)
    panel = drawn.subplots()
    panel.set_facecolor(_UNVISITED)
    panel.set_xlabel(plain(plane.labels[0]))
    panel.set_ylabel(plain(plane.labels[1]))
    least = figure == "order"
    frames = list(frames_of(visits, figure, max(1, round(seconds * FRAMES_PER_SECOND))))
    mesh = panel.pcolormesh(
        plane.across,
        plane.up,
        plane.picture(frames[0].numbers, least),
        cmap=_MAPS[figure],
        norm=_norm(visits, figure, frames[-1].numbers),
    )
    drawn.colorbar(mesh, ax=panel, label=_LABELS[figure], extend="max" if least else "neither")
    if plane.labels[1].startswith("row"):  # as a matrix is written
        panel.invert_yaxis()
    rate = max(1.0, len(frames) / seconds)
    writer = writers["pillow" if file.suffix == ".gif" else "ffmpeg"](fps=rate)
    with atomic_file(file, overwrite=overwrite) as temporary, writer.saving(drawn, str(temporary), dpi=100):
        for number, frame in enumerate(frames):
            progress("drawing frames", number, len(frames))
            if number == 1:
                drawn.set_layout_engine("none")  # as the first frame is laid out, in a third of the time
            mesh.set_array(plane.picture(frame.numbers, least))
            panel.set_title(plain(f"{title}\n{_progress(visits, frame.visits)}"), fontsize=10)
            writer.grab_frame()


def _norm(visits: Visits, figure: VisitFigure, last: Any) -> Any:
    """The scale of the colours, the same in all frames."""
    from matplotlib.colors import LogNorm, Normalize

    if figure == "order":
        return Normalize(0.0, float(max(1, visits.n_partitions)))
    if figure == "visits":
        return Normalize(0.0, float(max(1.0, np.nanmax(last))))
    bounds = visits.bound[visits.bound > 0] if visits.bound is not None else np.empty(0)
    if not bounds.size:
        return Normalize(0.0, 1.0)
    high = float(bounds.max())
    low = max(float(bounds.min()), high / _DECADES)
    return LogNorm(low, high if high > low else 10 * low, clip=True)  # a bound of 0 has the least colour


def _progress(visits: Visits, so_far: int) -> str:
    """Visits, loads and time at a frame."""
    words = f"visit {so_far:,} of {visits.partition.size:,}"
    if not visits.complete:
        words = f"first and last visits, {so_far:,} of {visits.partition.size:,}"
    if visits.loads is not None:
        words += f", {visits.loads[so_far - 1] / visits.n_partitions:.2f} loads per partition"
    return f"{words}, {visits.seconds[so_far - 1]:.3g} s"
