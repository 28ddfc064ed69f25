"""How fast a device decompresses and decodes partitions: bytes a second, and where the time goes.

Frames of some partitions lie in the device's memory already, one buffer each. Rounds of decoding them all are timed by
events, with 1, 2, 4 ... of them under way at a time, each on a stream of its own; then each kernel alone, one partition
after the other. Whether tables equal those that the CPU decodes is checked first. "copied" rounds bring the frames from
page-locked memory as well.

    python benchmarks/engine/decode_device.py --problem mountain-car --grid 8000 --partition-shape 1000,1000
    python benchmarks/engine/decode_device.py --problem double-pendulum --grid 80 --partition-shape 40,40,40,40
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import common
import measuring
import numpy as np
import numpy.typing as npt

from ooc_mdp.backends.cuda.decode.frames import KERNELS, PLAN_BYTES, DecodePlan, DeviceDecoder, decode_kernels
from ooc_mdp.backends.cuda.device import CudaDevice, Kernel
from ooc_mdp.model.partition import PartitionTable
from ooc_mdp.store import Store

NOT_INCLUDED = (
    "reading files and checking checksums, which the CPU does",
    "what the engine makes of the table afterwards",
)
ARRAYS = ("action_ptr", "successor_ptr", "successors", "probabilities", "rewards", "durations", "halo", "boundary")


@dataclass(frozen=True)
class Loaded:
    """A partition's frames on both sides, and room for its table."""

    plan: DecodePlan
    host: npt.NDArray[np.uint8]
    """Page-locked."""
    buffer: int
    scratch: int
    faults: int
    """Addresses on the device."""
    stream: Any
    """A `Stream`, whose `stream` is CuPy's."""
    decoded_bytes: int


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    common.add_table_options(parser, "mountain-car", "8000")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--workers", type=int, default=None, help="threads that generate the store")
    parser.add_argument("--partitions", type=int, default=16, help="how many are decoded, spread over the store")
    parser.add_argument("--under-way", default="1,2,4,8,16", help="partitions at a time, separated by commas")
    parser.add_argument("--repeat", type=int, default=5, help="rounds, of which the fastest counts")
    measuring.add_common_options(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    import cupy

    facts = {"machine": measuring.machine(options.machine_shared), "versions": measuring.versions()}
    with tempfile.TemporaryDirectory() as folder, cupy.cuda.Device(common.device_number(options.device)):
        store, seconds = common.open_or_generate(options, options.store or Path(folder, "store"), options.device)
        sizes = common.store_figures(store, seconds)
        figures = measured(store, options)
    figures = {"device": common.device_facts(options.device), "store": sizes, **figures}
    measuring.write_figures("decode_device", options, figures, facts, NOT_INCLUDED)


def measured(store: Store, options: argparse.Namespace) -> dict[str, Any]:
    """Everything about one store."""
    device = CudaDevice(common.device_number(options.device))
    kernels = decode_kernels(device)
    shape = (int(store.facts.attributes[name]) for name in ("actions_per_state", "successors_per_action"))
    decoder = DeviceDecoder(store.facts.stored_fields, store.facts.frame_buffer_bytes, *shape)
    count = min(options.partitions, store.n_partitions)
    chosen = np.unique((np.arange(count) + 0.5) * store.n_partitions / count).astype(int).tolist()
    loaded = [load(store, decoder, device, p) for p in chosen]
    for part in loaded:
        check(store, decoder, kernels, part)
    decoded = sum(part.decoded_bytes for part in loaded)
    stored = sum(part.plan.raw.n_bytes for part in loaded)
    streams = sum(part.plan.streams for part in loaded)
    common.say(f"{len(loaded)} partitions as the CPU decodes them; {decoded / len(loaded) / 1e6:.1f} MB each")
    lines, rounds = [], []
    for in_flight in (int(n) for n in options.under_way.split(",")):
        plain = round_seconds(decoder, kernels, loaded, in_flight, False, options.repeat)
        copied = round_seconds(decoder, kernels, loaded, in_flight, True, options.repeat)
        rounds.append({"in_flight": in_flight, "seconds": plain, "copied_seconds": copied})
        numbers = (decoded / plain, stored / plain, decoded / copied, stored / copied)
        lines.append([f"{in_flight} under way", f"{plain * 1e3:.2f}", *(f"{n / 1e9:.1f}" for n in numbers)])
    headers = ["", "ms", "decoded GB/s", "stored GB/s", "copied: decoded GB/s", "copied: stored GB/s"]
    measuring.print_table(headers, lines)
    alone = kernel_seconds(decoder, kernels, loaded[0], options.repeat)
    measuring.print_table(["kernel alone", "ms"], [[name, f"{s * 1e3:.3f}"] for name, s in alone.items()])
    return {
        "partitions": len(loaded),
        "decoded_bytes": decoded,
        "stored_bytes": stored,
        "lz4_streams": streams,
        "scratch_bytes": decoder.scratch_bytes,
        "rounds": rounds,
        "kernel_seconds": alone,
    }


def load(store: Store, decoder: DeviceDecoder, device: CudaDevice, p: int) -> Loaded:
    """Read a partition's frames and copy them over."""
    host, stream = device.pinned(decoder.buffer_bytes), device.stream()
    plan = decoder.plan(store.read_frames(p, host[PLAN_BYTES:]), host)
    buffer, scratch, faults = (device.allocate(n) for n in (decoder.buffer_bytes, decoder.scratch_bytes, 8))
    stream.upload(buffer, host)
    stream.clear(faults, 8)
    stream.wait()
    return Loaded(plan, host, buffer, scratch, faults, stream, store.read(p)[0].nbytes)


def launch(decoder: DeviceDecoder, kernels: Mapping[str, Kernel], part: Loaded, stream: Any) -> None:
    """Decode a partition on a stream."""
    decoder.launch(kernels, stream, part.plan, decoder.arguments(part.buffer, part.scratch, part.faults))


def check(store: Store, decoder: DeviceDecoder, kernels: Mapping[str, Kernel], part: Loaded) -> None:
    """Compare a partition with what the CPU makes of it.

    Raises
    ------
    SystemExit : it cannot be decoded, or they differ.
    """
    launch(decoder, kernels, part, part.stream)
    words = np.empty(2, np.uint32)
    part.stream.download(words, part.faults)
    expected: PartitionTable = store.read(part.plan.raw.index)[0]
    offsets = part.plan.offsets
    for name in (name for name in ARRAYS if name in offsets):
        wanted, (offset, length) = getattr(expected, name), offsets[name]
        found = np.empty(length, decoder.dtypes[name])
        part.stream.download(found, part.scratch + offset)
        part.stream.wait()
        if (faults := decoder.describe_faults(words)) is not None:
            raise SystemExit(faults)
        if not np.array_equal(found.astype(wanted.dtype), wanted):
            wrong = np.flatnonzero(found != wanted)
            raise SystemExit(f"{name} of partition {expected.index} differs in {wrong.size} values from {wrong[0]} on")


def round_seconds(
    decoder: DeviceDecoder,
    kernels: Mapping[str, Kernel],
    loaded: Sequence[Loaded],
    in_flight: int,
    copied: bool,
    repeats: int,
) -> float:
    """All partitions once, on as many streams."""
    import cupy

    streams = [part.stream for part in loaded[:in_flight]]

    def work() -> None:
        main = cupy.cuda.get_current_stream()
        begun = main.record()
        for stream in streams:
            stream.stream.wait_event(begun)
        for i, part in enumerate(loaded):
            stream = streams[i % len(streams)]
            if copied:
                stream.upload(part.buffer, part.host[: part.plan.n_bytes])
            launch(decoder, kernels, part, stream)
        for stream in streams:
            main.wait_event(stream.stream.record())

    return common.best_seconds(work, repeats)


def kernel_seconds(
    decoder: DeviceDecoder, kernels: Mapping[str, Kernel], part: Loaded, repeats: int
) -> dict[str, float]:
    """Each kernel of one partition, after those before it."""
    import cupy

    def alone(name: str) -> None:
        # The current stream's events time it: the stream waits for what came before, and the current one for it.
        stream, main = part.stream.stream, cupy.cuda.get_current_stream()
        stream.wait_event(main.record())
        launch(decoder, dict.fromkeys(KERNELS, _idle) | {name: kernels[name]}, part, part.stream)
        main.wait_event(stream.record())

    return {name: common.best_seconds(partial(alone, name), repeats) for name in KERNELS}


def _idle(*_: Any) -> None:
    """In place of a kernel that is not timed."""


if __name__ == "__main__":
    main()
