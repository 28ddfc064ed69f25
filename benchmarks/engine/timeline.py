"""Who worked when: host threads that read, copies to the device, kernels; as lanes of intervals, figures and a plot.

A device's intervals come from CUPTI by way of torch.profiler, which sees every kernel and copy of the process whoever
launched it, so that the engine carries no hooks. Its clock is set by a marker: one small fill of memory that is waited
for, whose end is known on both clocks. Without PyTorch, only the host's lanes are there.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Timeline", "covered", "draw", "merged", "overlap", "recorded", "spans_of_trace"]

Spans = npt.NDArray[np.float64]
"""float64 [k, 2]: begin and end in seconds."""

COPIES = "copies to the device"
SWEEPS = "sweeps"
_KERNELS = (
    (re.compile("decode_streams|plane_sums|plane_starts|write_values"), "decoding"),
    (re.compile("lay_out"), "layout"),
    (re.compile("sweep|select|solve_windows|measure|report|mark_tiles_due|end_batch|gather|scatter"), SWEEPS),
)
"""Lanes of kernels by their names; the first that fits."""


@dataclass(slots=True)
class Timeline:
    """Intervals by lane, on the clock of time.perf_counter."""

    lanes: dict[str, Spans] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    """Bytes of each lane, where they are known."""
    kernels: dict[str, dict[str, float]] = field(default_factory=dict)
    """Of each kernel's name: how often it ran, and seconds in all."""

    def figures(self) -> dict[str, Any]:
        """Seconds that each lane was busy, and how much of the copies and decoding ran beside sweeps."""
        every = [s for s in self.lanes.values() if s.size]
        if not every:
            return {}
        span = max(float(s[:, 1].max()) for s in every) - min(float(s[:, 0].min()) for s in every)
        sweeps = self.lanes.get(SWEEPS, np.empty((0, 2)))
        busy = {name: covered(spans) for name, spans in self.lanes.items()}
        beside = {
            name: overlap(spans, sweeps) / busy[name]
            for name, spans in self.lanes.items()
            if name != SWEEPS and sweeps.size and busy[name] > 0
        }
        return {
            "seconds": span,
            "busy_seconds": busy,
            "share_beside_sweeps": beside,
            "bytes": self.bytes,
            "kernels": dict(sorted(self.kernels.items(), key=lambda item: -item[1]["seconds"])[:20]),
        }

    def window(self, begin: float, end: float) -> dict[str, list[tuple[float, float]]]:
        """Intervals that touch a window, from its begin on, in seconds to the microsecond."""
        found = {}
        for name, spans in self.lanes.items():
            here = spans[(spans[:, 1] > begin) & (spans[:, 0] < end)]
            found[name] = [(round(a - begin, 6), round(b - begin, 6)) for a, b in here.tolist()]
        return found


def merged(spans: Spans) -> Spans:
    """The union of intervals, as disjoint ones in order."""
    if not spans.size:
        return spans.reshape(0, 2)
    ordered = spans[np.argsort(spans[:, 0], kind="stable")]
    ends = np.maximum.accumulate(ordered[:, 1])
    fresh = np.ones(len(ordered), bool)
    fresh[1:] = ordered[1:, 0] > ends[:-1]
    last = np.append(np.flatnonzero(fresh)[1:] - 1, len(ordered) - 1)
    return np.column_stack([ordered[fresh, 0], ends[last]])


def covered(spans: Spans) -> float:
    """Seconds that intervals cover together."""
    union = merged(spans)
    return float((union[:, 1] - union[:, 0]).sum())


def overlap(some: Spans, others: Spans) -> float:
    """Seconds that both cover."""
    return covered(some) + covered(others) - covered(np.concatenate([some.reshape(-1, 2), others.reshape(-1, 2)]))


@contextlib.contextmanager
def recorded(device: str) -> Iterator[Timeline]:
    """Record what the device does meanwhile; the timeline is filled when the context ends."""
    timeline = Timeline()
    if device == "cpu":
        yield timeline
        return
    import cupy

    try:
        import torch
        from torch.profiler import ProfilerActivity, profile
    except ImportError as error:
        print(f"no record of the device: {error}", file=sys.stderr)
        yield timeline
        return

    torch.cuda.init()
    marker = cupy.empty(1 << 20, cupy.uint8)
    cupy.cuda.Device().synchronize()
    profiler = profile(activities=[ProfilerActivity.CUDA])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*Profiler clears events", UserWarning)  # one cycle is all there is
        profiler.start()
    try:
        marker.data.memset(0, marker.nbytes)
        cupy.cuda.Device().synchronize()
        known = time.perf_counter()
        yield timeline
        cupy.cuda.Device().synchronize()
    finally:
        profiler.stop()
    with tempfile.TemporaryDirectory(prefix="ooc-mdp-benchmark-") as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        spans_of_trace(json.loads(path.read_text()), known, timeline)


def spans_of_trace(trace: dict[str, Any], known: float, timeline: Timeline) -> None:
    """Put a Chrome trace's device events into lanes, of each device where there are several.

    The first event ended at `known` on the host's clock.
    """
    events = [
        e
        for e in trace.get("traceEvents", ())
        if e.get("ph") == "X" and e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    ]
    if not events:
        return
    first = min(events, key=lambda e: e["ts"])
    shift = known - (first["ts"] + first["dur"]) / 1e6
    lanes: dict[str, list[tuple[float, float]]] = {}
    several = len({_device(e) for e in events}) > 1
    for e in events:
        if e is first:
            continue
        lane = f"{_lane(e)} {_device(e)}" if several else _lane(e)
        begin = e["ts"] / 1e6 + shift
        lanes.setdefault(lane, []).append((begin, begin + e["dur"] / 1e6))
        moved = e.get("args", {}).get("bytes")
        if moved is not None:
            timeline.bytes[lane] = timeline.bytes.get(lane, 0) + int(moved)
        if e["cat"] == "kernel":
            of_name = timeline.kernels.setdefault(e["name"], {"count": 0, "seconds": 0.0})
            of_name["count"] += 1
            of_name["seconds"] += e["dur"] / 1e6
    for lane, spans in lanes.items():
        timeline.lanes[lane] = np.array(spans)


def _device(event: dict[str, Any]) -> int:
    """Number of an event's device."""
    return int(event.get("args", {}).get("device", 0))


def _lane(event: dict[str, Any]) -> str:
    name = str(event["name"])
    if event["cat"] == "gpu_memcpy":
        if "HtoD" in name:
            return COPIES
        return "copies to the host" if "DtoH" in name else "copies on the device"
    if event["cat"] == "gpu_memset":
        return "fills"
    return next((lane for pattern, lane in _KERNELS if pattern.search(name)), "other kernels")


def draw(timeline: Timeline, begin: float, end: float, path: Path, title: str) -> None:
    """A window of the lanes as bars, one line each; PNG or SVG by the name of the file."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    lanes = timeline.window(begin, end)
    figure, axes = pyplot.subplots(figsize=(11, 0.9 + 0.32 * len(lanes)), layout="constrained")
    for line, (name, spans) in enumerate(lanes.items()):
        colour = "tab:grey" if name.startswith("reading") else f"C{_colour(name)}"
        bars = [(1e3 * a, max(1e3 * (b - a), 1e-3)) for a, b in spans]
        axes.broken_barh(bars, (line - 0.4, 0.8), color=colour, linewidth=0)
    axes.set_yticks(range(len(lanes)), list(lanes))
    axes.invert_yaxis()
    axes.set_xlim(0, 1e3 * (end - begin))
    axes.set_xlabel("milliseconds")
    axes.set_title(title, fontsize=10)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _colour(name: str) -> int:
    order: Sequence[str] = (COPIES, "decoding", "layout", SWEEPS)
    return order.index(name) if name in order else 4
