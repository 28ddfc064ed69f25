"""Solve a large table from disk within a small device budget, against the floor: what must be read, read once.

    python end_to_end.py --grid 20000,20000 --store /disk/car --device-memory 8GiB --output FILE.json
    python end_to_end.py --problem single-pendulum --grid 8000,8000 --parts cold,warm --residual 1e-4

    floor = compressed bytes of the partitions that were read at least once / the bandwidth measured in the same run

of the disk where the solve begins cold (files dropped from the page cache), of the page cache where it begins warm;
the best of several probes over the store's own files, before and after the solves. Parts: cold; warm; in-memory, the
same engine from the page cache with everything cached and no budget; verify, the residuals of what the first solves
found, measured in float64 on a table that the device computes anew; jacobi, in-memory value iteration of the same table
(gpu_peers.py) and of smaller ones, to extrapolate what its time limit ends.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from common import (
    add_table_options,
    device_facts,
    device_number,
    disk_probes,
    drop_page_cache,
    fastest,
    make_warm,
    measuring,
    open_or_generate,
    parameters_of,
    recording,
    say,
    solve_warm_up,
    store_figures,
    touch_memory,
    whole_table,
)
from measuring import ProgressLine

import ooc_mdp
from ooc_mdp.options import format_bytes, parse_bytes
from ooc_mdp.store import Store

PARTS = ("cold", "warm", "in-memory", "verify", "jacobi")
NOT_INCLUDED = (
    "seconds: from memory allocated to values and policy on the host, as the solver counts them; call seconds also "
    "hold opening, allocating, and putting values and policy in the problem's own order of states",
    "seconds: generating the store; compiling and loading kernels (a tiny solve of the same problem comes first)",
    "cold: a disk behind a virtual machine may have a cache of its own, which nothing here can drop; the disk is "
    "measured under the same conditions",
)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_table_options(parser, "mountain-car", "4000,4000")
    parser.add_argument("--parts", default="cold,warm,in-memory,verify", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--discount", type=float, default=0.9)
    parser.add_argument("--residual", action="append", type=float, help="plain residual; repeat for more; 1e-4")
    parser.add_argument("--epsilon", action="append", type=float, help="error to prove; repeat for more")
    parser.add_argument("--method", default="p-eva")
    parser.add_argument("--sweeps", type=int, default=1, help="sweeps of a visit by vi")
    parser.add_argument("--device-memory", default="8GiB", help="budget on the device in all")
    parser.add_argument("--cache", help="the cache's budget instead, as on the CPU")
    parser.add_argument("--device", default="cuda:0", help="cpu or cuda:0")
    parser.add_argument("--repeat", type=int, default=1, help="solves of each kind")
    parser.add_argument("--time-limit", type=float, default=150.0, help="seconds of a solve")
    parser.add_argument("--jacobi-limit", type=float, default=20.0, help="seconds of an in-memory solve")
    parser.add_argument("--probe-threads", default="8,16", help="threads that measure the disk")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 2, help="threads that generate")
    parser.add_argument("--touch", help="fill and free so much host memory first, such as 32GiB")
    measuring.add_common_options(parser)
    options = parser.parse_args(arguments)
    options.parts = options.parts.split(",")
    if not set(options.parts) <= set(PARTS):
        parser.error(f"parts are {', '.join(PARTS)}")
    if options.residual is None and options.epsilon is None:
        options.residual = [1e-4]
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    facts: dict[str, Any] = {"machine": measuring.machine(options.machine_shared), "versions": measuring.versions()}
    facts["machine"] |= device_facts(options.device)
    folder = Path(tempfile.mkdtemp(prefix="ooc-mdp-benchmark-"))
    try:
        figures = measure(options, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    options.store = None  # figures name no place
    measuring.write_figures("end_to_end", options, figures, facts, NOT_INCLUDED)


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The parts that were asked for."""
    if options.touch:
        say(f"touched {options.touch} in {touch_memory(parse_bytes(options.touch)):.1f} s")
    store, seconds = open_or_generate(options, options.store or folder / "store", options.device)
    figures: dict[str, Any] = {"store": store_figures(store, seconds)}
    targets = [{"residual": r} for r in options.residual or ()] + [{"epsilon": e} for e in options.epsilon or ()]
    solve_warm_up(options, folder, **budget(options, store, "warm"), **manner(options), **targets[0])
    store.read(0)  # a large table's types are not the tiny one's: decoding them is compiled, if it must be, now
    threads = [int(n) for n in options.probe_threads.split(",")]
    probes: dict[str, list[dict[str, Any]]] = {"cold": [], "warm": []}
    solves: list[dict[str, Any]] = []
    kept: dict[int, npt.NDArray[np.float64]] = {}
    for part in (p for p in PARTS[:3] if p in options.parts):
        state = "cold" if part == "cold" else "warm"
        if state == "warm":
            make_warm(store.path)
        probes[state] += disk_probes(store.path, threads, state == "cold")
        for target in targets:
            for repeat in range(options.repeat):
                found, values = solve(options, store, part, target)
                solves.append(found)
                first = not any(solves[i]["asked"] == target for i in kept)
                if "verify" in options.parts and first and repeat == 0:
                    kept[len(solves) - 1] = values
                del values
                gc.collect()
        if state == "cold":
            probes[state] += disk_probes(store.path, threads, True)
    for one in solves:
        add_floor(one, fastest(probes[one["page_cache"]]))
    figures |= {"bandwidths": {k: v for k, v in probes.items() if v}, "solves": solves}
    if kept:
        verify(options, solves, kept)
    if "jacobi" in options.parts:
        figures["in_memory_peers"] = in_memory_peers(options, folder, targets[0])
    show(figures)
    return figures


def budget(options: argparse.Namespace, store: Store, part: str) -> dict[str, Any]:
    """What a solve of a part may hold."""
    if part == "in-memory":
        return whole_table(store, options.device)
    if options.cache or options.device == "cpu":
        return {"cache": options.cache or "22%"}
    return {"device_memory": options.device_memory}


def manner(options: argparse.Namespace) -> dict[str, Any]:
    """How every solve works."""
    how: dict[str, Any] = {"discount": options.discount, "method": options.method, "device": options.device}
    if options.method == "vi":
        return how | {"sweeps_per_visit": options.sweeps}
    return how


def solve(
    options: argparse.Namespace, store: Store, part: str, target: dict[str, float]
) -> tuple[dict[str, Any], npt.NDArray[np.float64]]:
    """One solve: its figures, and its values in the problem's own order of states."""
    state = drop_page_cache(store.path) if part == "cold" else make_warm(store.path)
    watched = recording(store)
    with device_peak(options.device) as peak:
        began = time.perf_counter()
        solution = ooc_mdp.solve(
            watched,
            **manner(options),
            **budget(options, store, part),
            **target,
            time_limit=options.time_limit,
            progress=ProgressLine(),
        )
        call_seconds = time.perf_counter() - began
    summary = solution.summary()
    read = np.fromiter(watched.reads.partitions, np.int64)
    found = {
        "part": part,
        **state,
        "asked": target,
        **{k: v for k, v in summary.items() if k not in ("proof", "source", "n_states", "n_partitions")},
        "call_seconds": call_seconds,
        "partitions_read": int(read.size),
        "needed_bytes": int(store.chunk_bytes[read].sum()),
        "needed_decoded_bytes": int(store.facts.partition_bytes[read].sum()),
        "backups_per_state": summary["backups"] / store.n_states,
        "device_peak_bytes": peak.get("bytes"),
    }
    say(
        f"{part} {target}: {summary['outcome']} in {summary['solve_seconds']:.2f} s, "
        f"{summary['loads_per_partition']:.2f} loads per partition, {format_bytes(summary['bytes_read'])} read"
    )
    return found, solution.values


@contextlib.contextmanager
def device_peak(device: str) -> Iterator[dict[str, int]]:
    """Most bytes of the device in use meanwhile, by looks every 20 ms, less those in use before; empty on the CPU."""
    found: dict[str, int] = {}
    if device == "cpu":
        yield found
        return
    import cupy

    cupy.get_default_memory_pool().free_all_blocks()
    with cupy.cuda.Device(device_number(device)) as chosen:
        before = chosen.mem_info[0]
    ended = threading.Event()

    def look() -> None:
        with cupy.cuda.Device(device_number(device)) as chosen:
            while not ended.wait(0.02):
                found["bytes"] = max(found.get("bytes", 0), before - chosen.mem_info[0])

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


def add_floor(found: dict[str, Any], bandwidth: float) -> None:
    """The floor of a solve, and how far from it the solve was: in compressed bytes, and were all bytes read raw."""
    floor = found["needed_bytes"] / bandwidth
    raw = found["needed_decoded_bytes"] / bandwidth
    found |= {
        "bandwidth": bandwidth,
        "floor_seconds": floor,
        "seconds_over_floor": found["solve_seconds"] / floor,
        "call_seconds_over_floor": found["call_seconds"] / floor,
        "raw_floor_seconds": raw,
        "seconds_over_raw_floor": found["solve_seconds"] / raw,
    }


def verify(options: argparse.Namespace, solves: list[dict[str, Any]], kept: dict[int, npt.NDArray[np.float64]]) -> None:
    """Measure the residuals of kept values on a table that is computed anew, in memory, in another layout."""
    from planes import module_of, planes_of_problem, residuals

    began = time.perf_counter()
    dtype = "float32"
    planes = planes_of_problem(options.problem, parameters_of(options), options.discount, options.device, dtype)
    xp = module_of(planes.successors)
    for index, values in kept.items():
        found = residuals(planes, xp.asarray(planes.sign * values))
        one = solves[index]
        slack = 1.001 * (one["error_bound"] or np.inf) + 1e-6  # last bits of the rows that another code computed
        one["verified"] = {"residual": found.plain, "error": found.error, "holds": found.error <= slack}
        say(
            f"{one['part']} {one['asked']}: measured residual {found.plain:.3g}, error at most {found.error:.3g}; "
            f"claimed {one['residual_bound']:.3g} and {one['error_bound'] or np.inf:.3g}"
        )
    say(f"verified in {time.perf_counter() - began:.1f} s")


def in_memory_peers(options: argparse.Namespace, folder: Path, target: dict[str, float]) -> list[dict[str, Any]]:
    """In-memory value iteration of the same problem, and of a tenth and a fifth of its points along each axis."""
    points = [int(n) for n in options.grid.split(",")]
    grids = [",".join(str(max(n // share, 8)) for n in points) for share in (10, 5, 1)]
    output = folder / "peers.json"
    command = [sys.executable, str(Path(__file__).resolve().parent / "gpu_peers.py"), "--problem", options.problem]
    command += ["--grids", ";".join(grids), "--solver", "jacobi", "--solver", "in-place", "--values", "float64"]
    command += ["--device", options.device, "--discount", str(options.discount), "--output", str(output)]
    command += [part for said in options.parameter for part in ("-p", said)]
    command += [part for name, x in target.items() for part in (f"--{name}", str(x))]
    subprocess.run([*command, "--time-limit", str(options.jacobi_limit)], check=True)
    return list(json.loads(output.read_text())["solves"])


def show(figures: dict[str, Any]) -> None:
    """The table."""
    for state, probes in figures["bandwidths"].items():
        said = ", ".join(f"{p['threads']} threads {p['how']} {p['bytes_per_second'] / 1e9:.2f}" for p in probes)
        print(f"{'disk' if state == 'cold' else 'page cache'}, GB/s: {said}")
    headers = ("part", "target", "outcome", "seconds", "floor", "ratio", "raw ratio", "loads", "read", "GB/s", "peak")
    rows = []
    for s in figures["solves"]:
        (kind, value), peak = next(iter(s["asked"].items())), s["device_peak_bytes"]
        rows.append(
            (
                s["part"],
                f"{kind} {value:g}",
                s["outcome"],
                f"{s['solve_seconds']:.3f}",
                f"{s['floor_seconds']:.3f}",
                f"{s['seconds_over_floor']:.2f}",
                f"{s['seconds_over_raw_floor']:.2f}",
                f"{s['loads_per_partition']:.2f}",
                format_bytes(s["bytes_read"]),
                f"{s['bytes_read'] / s['solve_seconds'] / 1e9:.2f}",
                "-" if peak is None else format_bytes(peak),
            )
        )
    measuring.print_table(headers, rows)


if __name__ == "__main__":
    main()
