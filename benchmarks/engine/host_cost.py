"""What the host's own work costs the tiled engine: a load's fixed part, and a batch's books.

    python host_cost.py --output FILE.json

Loads of small partitions and batches of sweeps, on a device that does nothing at no cost (idle_device.py): what is left
is Python under the interpreter's lock, and the system's calls. Reading threads share that lock with each other and
with the solving thread, so that a load cannot take less than its part of it times the loads, however many threads read;
and the device waits while the books of a batch are kept. With --device cuda:0, loads go to that device as well, on
several threads and with the driver's calls: loads a second without any sweeps beside.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import measuring
import numpy as np
import numpy.typing as npt
from common import device_facts, device_number
from idle_device import IdleDevice

import ooc_mdp
from ooc_mdp.backends.cuda.device import CudaDevice, Device
from ooc_mdp.backends.cuda.tiles.backend import TiledBackend
from ooc_mdp.backends.layout import Needs
from ooc_mdp.model.facts import ModelFacts
from ooc_mdp.options import CacheSize, SolveOptions
from ooc_mdp.scheduling.stager import short_turns
from ooc_mdp.solver.driver import drive
from ooc_mdp.solver.methods.p_eva_on_device import p_eva_on_device
from ooc_mdp.solver.plan import plan_solve
from ooc_mdp.solver.session import Session
from ooc_mdp.solver.start import start
from ooc_mdp.store import Store

NOT_INCLUDED = (
    "the driver's own time for a load's ten copies and launches, about 2 us each (unless --device is given)",
    "what grows with a partition's bytes: reading and checksums, which release the interpreter's lock",
    "waiting for the interpreter's lock",
    "batches: choosing and starting loads, for all partitions are resident",
)
_RESIDUAL = 1e-4


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", default="mountain-car")
    parser.add_argument("--grid", default="360,360")
    parser.add_argument("--block-shape", default="20,20", help="points of a partition along each axis")
    parser.add_argument("--store", type=Path, help="a store that is there, in place of a generated one")
    parser.add_argument("--loads", type=int, default=2000)
    parser.add_argument("--turns", type=int, default=100, help="batches of sweeps")
    parser.add_argument("--dirty", default="1.0,0.5", help="shares of the residents that a batch leaves dirty")
    parser.add_argument("--device", help="a CUDA device that takes loads too")
    parser.add_argument("--threads", default="1,6,12", help="threads that load onto it")
    parser.add_argument("--repeat", type=int, default=5)
    measuring.add_common_options(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    facts: dict[str, Any] = {"machine": measuring.machine(options.machine_shared), "versions": measuring.versions()}
    facts["machine"] |= device_facts(options.device or "cpu")
    with tempfile.TemporaryDirectory(prefix="ooc-mdp-benchmark-") as folder:
        if options.store is None:
            shape = [int(n) for n in options.block_shape.split(",")]
            store = ooc_mdp.generate(
                options.problem, Path(folder) / "store", {"grid": options.grid}, block_shape=shape, device="cpu"
            )
        else:
            store = ooc_mdp.open_store(options.store)
        figures: dict[str, Any] = {
            "store": {
                "partitions": store.n_partitions,
                "fields": [field.name for field in store.stored_fields],
                "chunk_bytes_of_a_partition": int(store.chunk_bytes.mean()),
            },
            "load": load_costs(store, options.loads, options.repeat),
            "turns": [turn_costs(store, float(s), options.turns, options.repeat) for s in options.dirty.split(",")],
        }
        if options.device is not None:
            counts = [int(n) for n in options.threads.split(",")]
            number = device_number(options.device)
            figures["loads_on_device"] = [
                device_loads(store, CudaDevice(number), threads, options.loads) for threads in counts
            ]
    show(figures)
    options.store = None  # figures name no place
    measuring.write_figures("host_cost", options, figures, facts, NOT_INCLUDED)


def quiet(report: npt.NDArray[np.float64]) -> None:
    """Nothing happened."""
    report[...] = 0


def backend_with(store: Store, device: Device, slots: int) -> TiledBackend:
    """A backend that has started, with so many slots."""
    model = ModelFacts.of(store, 0.9)
    backend = TiledBackend(device)
    cache = CacheSize(size=slots * slot_bytes(backend, model))
    backend.start(model, backend.layout(model, Needs(cache)), None, None)
    return backend


def slot_bytes(backend: TiledBackend, model: ModelFacts) -> int:
    """Of the cache of a model."""
    return backend.layout(model, Needs()).entry_bytes or 0


def load_costs(store: Store, loads: int, repeat: int) -> dict[str, float]:
    """Processor microseconds of one thread for a load, and for its parts."""
    backend = backend_with(store, IdleDevice(quiet), 1)
    read = backend.reader(store)
    if read is None:
        raise SystemExit("the store's partitions are not read as frames")
    buffer = np.zeros(store.frame_buffer_bytes, np.uint8)
    parts: dict[str, Callable[[int], Any]] = {
        "read frames": lambda p: store.read_frames(p, buffer),
        "read and plan": lambda p: backend._loader._buffers.put(read(p)[0].buffer),
        "whole load": lambda p: backend.release(backend.admit(backend.prepare(read(p)[0]))),
    }
    seconds = {name: least(lambda work=work: turns_over(store, loads, work), repeat) for name, work in parts.items()}  # type: ignore[misc]
    whole = {name: 1e6 * s / loads for name, s in seconds.items()}
    backend.close()
    return {
        "microseconds": whole["whole load"],
        "reading": whole["read frames"],
        "planning": whole["read and plan"] - whole["read frames"],
        "queueing": whole["whole load"] - whole["read and plan"],
    }


def turns_over(store: Store, loads: int, work: Callable[[int], Any]) -> None:
    """So many loads, of one partition after the other."""
    for i in range(loads):
        work(i % store.n_partitions)


def least(work: Callable[[], Any], repeat: int) -> float:
    """Least processor seconds of this thread for a piece of work."""
    seconds = []
    for _ in range(repeat):
        began = time.thread_time()
        work()
        seconds.append(time.thread_time() - began)
    return min(seconds)


def turn_costs(store: Store, dirty: float, turns: int, repeat: int) -> dict[str, Any]:
    """Processor milliseconds between two batches of p-eva's loop, with all partitions resident."""
    rng = np.random.default_rng(1)
    batches: Iterator[int] = iter(())

    def report(found: npt.NDArray[np.float64]) -> None:
        # plain and normalised residual, -, boundary's rise and fall, its value, largest, smallest, backups, moved
        found[...] = (0, 0, 0, 1e-3, 1e-3, 1, 1, 0, 1e6, 1)
        if next(batches, None) is not None:
            found[:, :2] = np.where(rng.random(len(found)) < dirty, 1.0, 0.0)[:, None]
            found[0, :2] = 1.0
        else:
            found[:, 3:5] = 0

    found = []
    for _ in range(repeat):
        with ExitStack() as stack:
            backend = TiledBackend(IdleDevice(report))
            model = ModelFacts.of(store, 0.9)
            budget = CacheSize(size=store.n_partitions * slot_bytes(backend, model))
            options = SolveOptions(0.9, residual=_RESIDUAL, cache=budget)
            state = start(store, plan_solve(store, options, backend, model, writes=False), backend, stack)
            for p in range(store.n_partitions):
                state.stager.obtain(p)
            state.bounds.invalidate()
            batches = iter(range(turns))
            began, visited = time.process_time(), state.cache.statistics.accesses
            drive(state, p_eva_on_device, Session())
            seconds = time.process_time() - began
            found.append((seconds / (turns + 1), (state.cache.statistics.accesses - visited) / (turns + 1)))
    best, swept = min(found)
    return {"residents": store.n_partitions, "dirty": dirty, "swept": swept, "milliseconds": 1e3 * best}


def device_loads(store: Store, device: Device, threads: int, loads: int) -> dict[str, Any]:
    """Loads a second on several threads, each beginning its next one when one is there."""
    backend = backend_with(store, device, min(2 * threads, store.n_partitions))
    read = backend.reader(store)
    if read is None:
        raise SystemExit("the store's partitions are not read as frames")
    each = -(-loads // threads)

    def work(first: int) -> None:
        for i in range(first, first + each):
            backend.release(backend.admit(backend.prepare(read(i % store.n_partitions)[0])))

    work(0)  # pins buffers, loads kernels
    workers = [threading.Thread(target=work, args=(each * t,)) for t in range(threads)]
    began, processor = time.perf_counter(), time.process_time()
    with short_turns(True):
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    seconds, processor = time.perf_counter() - began, time.process_time() - processor
    backend.close()
    count = each * threads
    return {
        "threads": threads,
        "loads": count,
        "microseconds_a_load": 1e6 * seconds / count,
        "processor_microseconds_a_load": 1e6 * processor / count,
        "decoded_bytes_per_second": count * float(store.partition_bytes.mean()) / seconds,
    }


def show(figures: dict[str, Any]) -> None:
    load = figures["load"]
    print(
        f"a load of {len(figures['store']['fields'])} fields: {load['microseconds']:.0f} us "
        f"(reading {load['reading']:.0f}, planning {load['planning']:.0f}, queueing {load['queueing']:.0f})"
    )
    measuring.print_table(
        ("residents", "left dirty", "swept a turn", "ms a turn"),
        [
            (str(t["residents"]), f"{t['dirty']:.0%}", f"{t['swept']:.0f}", f"{t['milliseconds']:.2f}")
            for t in figures["turns"]
        ],
    )
    for on_device in figures.get("loads_on_device", ()):
        print(
            f"{on_device['threads']} threads: {on_device['microseconds_a_load']:.0f} us a load, "
            f"{on_device['decoded_bytes_per_second'] / 1e9:.1f} GB/s decoded"
        )


if __name__ == "__main__":
    main()
