"""What several GPUs of a host give each other: reads of spread memory, and the time that they take to meet.

    python group_links.py --output FILE.json
    python group_links.py --devices 2 --mebibytes 256

Each device reads a part of one vector that is spread over all of them, its own or its neighbour's, in order or by runs
of neighbouring numbers at random places; alone, and all devices at a time. Rounds of a kernel that does next to nothing
and a meeting of all devices are launched one by one, and as one recorded graph. The fastest repetition counts.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import measuring
import numpy as np
from common import device_facts, say

from ooc_mdp.backends.cuda.device import CudaDevice, Device, device_count
from ooc_mdp.backends.cuda.group import DeviceGroup, Meet

SOURCE = """
typedef long long i64;
// to[i] becomes the number at place `begin` + i, or, by runs of so many, one at a random place of the n from there on.
extern "C" __global__ void pull(double* to, const double* from, i64 begin, i64 n, int run) {
    for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x) {
        i64 place = i;
        if (run) {
            unsigned h = (unsigned)(i / run) * 2654435761u;
            h ^= h >> 15; h *= 0x846ca68bu; h ^= h >> 13;
            place = (h % (unsigned)(n / run)) * (i64)run + i % run;
        }
        to[i] = from[begin + place];
    }
}
extern "C" __global__ void touch(double* x) {
    if (threadIdx.x == 0) x[0] += 1.0;
}
"""
ROUNDS = 60
NOT_INCLUDED = ("compiling kernels", "the first use of each link")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, help="how many; all by default")
    parser.add_argument("--mebibytes", type=int, default=1024, help="of the vector on each device, a page at least")
    parser.add_argument("--repeat", type=int, default=5)
    measuring.add_common_options(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None, devices: Sequence[Device] | None = None) -> None:
    """Measure; `devices` stand in for CUDA devices."""
    options = parse(arguments)
    facts: dict[str, Any] = {"machine": measuring.machine(options.machine_shared), "versions": measuring.versions()}
    facts["machine"] |= device_facts("cpu" if devices is not None else "cuda:0")
    if devices is None:
        devices = [CudaDevice(number) for number in range(options.devices or device_count())]
    group = DeviceGroup(devices)
    say(f"{group.name}: pages of {group.page} bytes")
    links = Links(group, options.mebibytes << 20, options.repeat)
    figures = {"devices": len(group), "reads": links.reads(), "meetings": links.meetings()}
    links.close()
    measuring.write_figures("group_links", options, figures, facts, NOT_INCLUDED)


class Links:
    """The spread vector, a place on each device that it is read to, and kernels that read."""

    def __init__(self, group: DeviceGroup, part: int, repeat: int) -> None:
        self._group, self._repeat = group, repeat
        self._part = -(-max(part, 128) // group.page) * group.page
        began = time.perf_counter()
        self._vector = group.allocate_spread([self._part] * len(group))
        say(f"{len(group)} x {self._part:,} bytes reserved and placed in {time.perf_counter() - began:.3f} s")
        self._to = group.allocate_each(self._part)
        self._streams = group.streams()
        kernels = [device.compile(SOURCE, {}, ["pull", "touch"]) for device in group.devices]
        self._pull, self._touch = ([own[name] for own in kernels] for name in ("pull", "touch"))
        for piece in group.pieces(self._vector, self._part * len(group)):
            self._streams[piece.member].clear(piece.at, piece.nbytes)
        self._wait()

    def reads(self) -> list[dict[str, Any]]:
        """Gigabytes per second and device of each kind of read."""
        found = []
        for what, step in (("own", 0), ("neighbour", 1))[: len(self._group)]:
            for run in (0, 1, 4, 16):
                for readers in sorted({1, len(self._group)}):
                    seconds = self._best(lambda s=step, r=run, d=readers: self._read(s, r, d))
                    rate = self._part / seconds * 1e-9
                    kind = f"random runs of {run}" if run else "in order"
                    say(f"{what:9} part, {kind:17} {readers} devices read: {rate:8.1f} GB/s each")
                    found.append({"part": what, "run": run, "readers": readers, "gigabytes_a_second": rate})
        return found

    def meetings(self) -> dict[str, float]:
        """Microseconds of a round of all devices that ends in a meeting."""

        def rounds(meet: Meet) -> None:
            for _ in range(ROUNDS):
                for kernel, stream, to in zip(self._touch, self._streams, self._to, strict=True):
                    kernel(stream, 1, 32, (np.uint64(to),))
                meet()

        graph = self._group.graph(self._streams, rounds)
        launched = self._best(lambda: rounds(lambda: self._group.meet(self._streams))) / ROUNDS * 1e6
        recorded = self._best(graph) / ROUNDS * 1e6
        say(f"a round and a meeting: {launched:.1f} us launched one by one, {recorded:.1f} us in a recorded graph")
        return {"launched_microseconds": launched, "recorded_microseconds": recorded}

    def close(self) -> None:
        """Free everything."""
        self._group.free_all()

    def _read(self, step: int, run: int, readers: int) -> None:
        for member in range(readers):
            whose = (member + step) % len(self._group)
            place = np.int64(whose * self._part // 8), np.int64(self._part // 8), np.int32(run)
            arguments = (np.uint64(self._to[member]), np.uint64(self._vector), *place)
            blocks = 8 * self._group.devices[member].multiprocessors
            self._pull[member](self._streams[member], blocks, 512, arguments)

    def _best(self, launches: Callable[[], None]) -> float:
        """Seconds of the fastest of some repetitions, after one that does not count."""
        taken = []
        for _ in range(self._repeat + 1):
            began = time.perf_counter()
            launches()
            self._wait()
            taken.append(time.perf_counter() - began)
        return min(taken[1:])

    def _wait(self) -> None:
        for stream in self._streams:
            stream.wait()


if __name__ == "__main__":
    main()
