"""What the machine can do, and what sweeps of resident partitions reach of it.

    python roofline.py --folder /disk --output FILE.json
    python roofline.py --problem mountain-car:10000,10000 --problem double-pendulum:100,100,100,100 --parts sweeps

Copy: a large copy within the device's memory, bytes read plus bytes written. Link: host memory to the device. Disk: a
file written to --folder and read back past the page cache and from it. Sweeps: every partition of a table is brought
into the device's cache, then the engine's own launches back every state up once a round, whatever has changed, and

    floor = bytes of a sweep / copy bandwidth,   bytes of a sweep = states x (rows as they lie on the device, each read
                                                 once, 8 of values in, 8 out, the policy)

Lists of outside states, bounds and what is read twice are the engine's own cost and not counted. Beside it the fused
in-memory kernel of gpu_peers.py sweeps the same problem with values of float64 and of float32: what float64 costs.
"""

from __future__ import annotations

import argparse
import gc
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from common import (
    best_seconds,
    device_facts,
    device_number,
    disk_bandwidth,
    drop_page_cache,
    link_bandwidth,
    make_warm,
    measuring,
    say,
)
from timeline import recorded

import ooc_mdp
from ooc_mdp.backends.base import Backend, Resident, SweepLimits
from ooc_mdp.backends.layout import Needs, SlotsTooSmall
from ooc_mdp.backends.select import select_backend
from ooc_mdp.io.recomputed_table import RecomputedTable
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.model.partition import PartitionTable
from ooc_mdp.model.table import Table
from ooc_mdp.options import CacheSize, SolveOptions

Kernels = Literal["tiles", "plain"]
PARTS = ("copy", "link", "disk", "sweeps")
NOT_INCLUDED = (
    "loading the partitions and laying them out; compiling; the first rounds",
    "bytes that a tile reads of its neighbours' values, its lists of them, and bounds: time, but no bytes of the floor",
)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--problem", action="append", metavar="NAME:GRID", help="repeat for more")
    parser.add_argument("--partition-shape", action="append", help="points of a partition along each axis, per problem")
    parser.add_argument("--dtype", default="float32", help="type of the table's probabilities and rewards")
    parser.add_argument("--discount", type=float, default=0.9)
    parser.add_argument("--device", default="cuda:0", help="cpu or cuda:0")
    parser.add_argument("--seconds", type=float, default=1.0, help="of sweeps, and of each other measurement, about")
    parser.add_argument("--size", type=int, default=8 << 30, help="bytes that the device copies")
    parser.add_argument("--folder", type=Path, help="where the disk is measured; a temporary folder by default")
    parser.add_argument("--file-size", type=int, default=4 << 30, help="bytes that the disk is measured with")
    parser.add_argument("--threads", default="1,8,16", help="threads that read from the disk")
    parser.add_argument("--kernels", default="tiles", help="of the engine on a CUDA device: tiles, plain or both")
    parser.add_argument("--loading-threads", type=int, default=4, help="threads that bring partitions to the device")
    parser.add_argument("--no-plain", action="store_true", help="leave the in-memory kernel out")
    measuring.add_common_options(parser)
    options = parser.parse_args(arguments)
    options.parts = options.parts.split(",")
    options.problem = options.problem or ["mountain-car:10000,10000", "double-pendulum:100,100,100,100"]
    options.partition_shape = options.partition_shape or []
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    facts: dict[str, Any] = {"machine": measuring.machine(options.machine_shared), "versions": measuring.versions()}
    facts["machine"] |= device_facts(options.device)
    figures: dict[str, Any] = {"copy_bytes_per_second": copy_bandwidth(options)}
    free_pool(options.device)
    say(f"copy within memory: {figures['copy_bytes_per_second'] / 1e9:.0f} GB/s, read plus written")
    if "link" in options.parts and options.device != "cpu":
        figures["link_bytes_per_second"] = link_bandwidth(options.device)
        said = ", ".join(f"{kind} {x / 1e9:.1f}" for kind, x in figures["link_bytes_per_second"].items())
        say(f"host to device, GB/s: {said}")
    if "disk" in options.parts:
        figures["disk"] = disk(options)
    if "sweeps" in options.parts:
        figures["sweeps"] = []
        for number, said in enumerate(options.problem):
            shape = options.partition_shape[number] if number < len(options.partition_shape) else None
            figures["sweeps"] += sweeps(options, said, shape, figures["copy_bytes_per_second"])
        show(figures["sweeps"])
    options.folder = None  # figures name no place
    measuring.write_figures("roofline", options, figures, facts, NOT_INCLUDED)


def copy_bandwidth(options: argparse.Namespace) -> float:
    """Bytes a second of a copy within the device's memory, read and written ones together."""
    if options.device == "cpu":
        source, target = np.ones(1 << 26, np.uint8), np.empty(1 << 26, np.uint8)
        shortest = np.inf
        for _ in range(5):
            began = time.perf_counter()
            np.copyto(target, source)
            shortest = min(shortest, time.perf_counter() - began)
        return 2 * source.nbytes / float(shortest)
    import cupy

    with cupy.cuda.Device(device_number(options.device)):
        source, target = cupy.ones(options.size, cupy.uint8), cupy.empty(options.size, cupy.uint8)
        seconds = best_seconds(lambda: target.data.copy_from_device_async(source.data, source.nbytes), 10)
    return 2 * options.size / seconds


def free_pool(device: str) -> None:
    """Give CuPy's unused memory back to the device."""
    gc.collect()
    if device != "cpu":
        import cupy

        cupy.get_default_memory_pool().free_all_blocks()


def disk(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Bandwidth of a folder's disk: past the page cache, through a cold one, from a warm one."""
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="ooc-mdp-benchmark-", dir=options.folder) as name:
        folder = Path(name)
        pieces = 16  # as a store has many files
        random = np.random.default_rng(1).integers(0, 256, options.file_size // pieces, np.uint8)
        for number in range(pieces):
            with (folder / str(number)).open("wb") as file:
                file.write(random.data)
                file.flush()
                os.fsync(file.fileno())
        for threads in (int(n) for n in options.threads.split(",")):
            for state, direct in (("cold", True), ("cold", False), ("warm", False)):
                (drop_page_cache if state == "cold" else make_warm)(folder)
                try:
                    probe = disk_bandwidth(folder, threads, direct)
                except OSError as error:
                    say(f"no direct reads here: {error}")
                    continue
                found.append({"page_cache": state, **probe})
                say(f"disk, {state}, {probe['how']}, {threads} threads: {probe['bytes_per_second'] / 1e9:.2f} GB/s")
    return found


def sweeps(options: argparse.Namespace, said: str, shape: str | None, copy: float) -> list[dict[str, Any]]:
    """The engine's sweeps of one resident table, and the in-memory kernel's of the same problem."""
    name, _, grid = said.partition(":")
    source = ooc_mdp.open_problem(
        name,
        {"grid": grid} if grid else {},
        partition_shape=[int(n) for n in shape.split(",")] if shape else None,
        dtype=options.dtype,
        device=options.device,
    )
    say(f"{said}: {source.n_states:,} states in {source.n_partitions} partitions")
    found = []
    for kernels in options.kernels.split(","):
        free_pool(options.device)
        found.append(engine_sweeps(options, source, kernels))
    del source
    if not options.no_plain:
        for values in ("float64", "float32"):
            free_pool(options.device)
            found.append(plain_sweeps(options, name, grid, values))
    free_pool(options.device)
    for one in found:
        one |= {
            "problem": name,
            "grid": grid,
            "bytes_per_second": one["sweep_bytes"] / one["seconds"],
            "floor_seconds": one["sweep_bytes"] / copy,
            "share_of_copy": one["sweep_bytes"] / one["seconds"] / copy,
        }
        if "kernel_alone_bytes_per_second" in one:
            one["kernel_alone_share_of_copy"] = one["kernel_alone_bytes_per_second"] / copy
    return found


def engine_sweeps(options: argparse.Namespace, source: RecomputedTable, kernels: Kernels) -> dict[str, Any]:
    """Rounds of one backup of every state, all partitions resident; seconds of one."""
    backend = select_backend(options.device, kernel=kernels)
    how = SolveOptions(options.discount, cache=CacheSize(share=1.0), device=options.device)
    model = ModelFacts.of(source.facts, how.discount)
    slotted = backend.name != "cpu" and kernels == "tiles"
    try:
        residents, entry = all_resident(backend, model, source, options.loading_threads)
        sweep = sweeper(backend, residents, source.n_states)
        seconds, count = timed(sweep, options.seconds)
        n_bytes = source.n_states * state_bytes(model, source, slotted)
        return {
            "kernel": "engine" if options.device == "cpu" or kernels == "tiles" else f"engine, {kernels} kernels",
            "values": "float64",
            "states": source.n_states,
            "partitions": source.n_partitions,
            "sweeps": count,
            "seconds": seconds,
            "sweep_bytes": n_bytes,
            **by_kernel(options.device, sweep, n_bytes),
            "slot_bytes": entry if slotted else None,
            "slot_bytes_of_a_state": entry * source.n_partitions / source.n_states if slotted else None,
        }
    finally:
        backend.close()


def by_kernel(device: str, sweep: Callable[[], float], n_bytes: float) -> dict[str, Any]:
    """Seconds of each kernel in one batch, and bytes a second of the sweeping one alone; nothing without a record."""
    with recorded(device) as timeline:
        sweeps = sweep()
    alone = sum(k["seconds"] for name, k in timeline.kernels.items() if "sweep" in name)
    if not alone:
        return {}
    return {"kernels": timeline.kernels, "kernel_alone_bytes_per_second": n_bytes * sweeps / alone}


def all_resident(backend: Backend, model: ModelFacts, source: Table, threads: int) -> tuple[list[Resident], int]:
    """Every partition, in the backend's own layout, at values of 0; bytes of the largest one's entry in the cache."""
    read = source.loader(backend.name).read

    def load(p: int) -> Any:
        return backend.prepare(narrowed(read(p)[0], model))

    layout = backend.layout(model, Needs())
    while True:
        backend.start(model, layout, None, None)
        try:
            with ThreadPoolExecutor(threads) as pool:
                prepared = pool.map(load, range(source.n_partitions))
                return [backend.admit(one) for one in prepared], layout.largest_entry
        except SlotsTooSmall:
            say("slots are too small for some tile's surroundings: larger ones")
            layout = backend.enlarged(layout)


def narrowed(table: PartitionTable, model: ModelFacts) -> PartitionTable:
    """A table made on a device, in the types of the layout, finished before other streams read it."""
    if isinstance(table.successors, np.ndarray):
        return table
    import cupy

    durations = table.durations
    if model.duration_dtype is not None:
        durations = durations.astype(model.duration_dtype)
    halo = table.halo.astype(np.uint32 if model.n_states < 1 << 32 else np.int64)
    table = replace(table, halo=halo, durations=durations, boundary=table.boundary.astype(np.uint8))
    cupy.cuda.get_current_stream().synchronize()
    return table


def sweeper(backend: Backend, residents: Sequence[Resident], n_states: int) -> Callable[[], float]:
    """Does rounds in which every state is backed up once, whatever has changed; returns backups per state."""
    limits = SweepLimits(change=-1.0, most=1, residual=-1.0, plain=True)  # which no residual meets
    # Rounds of one iteration are what a solve never asks for, so that there is no public way to.
    rounds = getattr(backend, "_batch", None)

    def sweep() -> float:
        if rounds is not None:
            report = rounds(residents, limits, 1, 16).report()
        else:
            report = backend.relax(residents, limits).report()
        return float(report.backups.sum()) / n_states

    return sweep


def state_bytes(model: ModelFacts, source: Table, tiled: bool) -> float:
    """Bytes of one backup: rows as they lie on the device, value in and out, policy."""
    actions, width = model.actions_per_state, model.successors_per_action
    if not tiled or not actions or not width:
        return float(source.facts.partition_bytes.sum() / source.n_states) + 8 + 8 + 4
    durations = 0 if model.duration_dtype is None else model.duration_dtype.itemsize
    weights = width - 1 if model.dyadic_probabilities else width
    # successors are numbers within a tile and its surroundings, in 16 bits
    row = 2 * width + model.probability_dtype.itemsize * (weights + 1) + durations
    return float(actions * row + 8 + 8 + 1)


def timed(rounds: Callable[[], float], seconds: float) -> tuple[float, float]:
    """Seconds of one sweep, and how many were measured, after some to warm up."""
    rounds()
    began = time.perf_counter()
    count = 0.0
    while True:
        count += rounds()
        spent = time.perf_counter() - began
        if spent >= seconds:
            return spent / count, count


def plain_sweeps(options: argparse.Namespace, name: str, grid: str, values: str) -> dict[str, Any]:
    """The fused kernel over the whole table in planes; seconds of one sweep."""
    from gpu_solvers import Jacobi
    from planes import planes_of_problem

    planes = planes_of_problem(name, {"grid": grid} if grid else {}, options.discount, options.device, options.dtype)
    solver = Jacobi(planes, values)

    def some() -> float:
        solver.sweep(8)
        return 8.0

    seconds, count = timed(some, options.seconds)
    return {
        "kernel": "in-memory Jacobi",
        "values": values,
        "states": planes.n_states,
        "partitions": 1,
        "sweeps": count,
        "seconds": seconds,
        "sweep_bytes": planes.sweep_bytes(np.dtype(values).itemsize),
    }


def show(found: Sequence[dict[str, Any]]) -> None:
    """The table."""
    headers = ("kernel", "problem", "states", "values", "B/state", "ms a sweep", "floor", "GB/s", "of copy", "alone")
    rows = [
        (
            s["kernel"],
            f"{s['problem']} {s['grid']}",
            f"{s['states']:,}",
            s["values"],
            f"{s['sweep_bytes'] / s['states']:.1f}",
            f"{1e3 * s['seconds']:.3f}",
            f"{1e3 * s['floor_seconds']:.3f}",
            f"{s['bytes_per_second'] / 1e9:.0f}",
            f"{s['share_of_copy']:.1%}",
            f"{s['kernel_alone_share_of_copy']:.1%}" if "kernel_alone_share_of_copy" in s else "-",
        )
        for s in found
    ]
    measuring.print_table(headers, rows)
    say("alone: the engine's sweeping kernel, without what selects and reports; target: 60% of the copy's pace")


if __name__ == "__main__":
    main()
