"""Bytes on disk and decoding speed of a table's fields, stored as the format does and in the ways it might.

Some partitions of a generated problem, spread evenly over it, are encoded and decoded in memory: no file is written.
Rows must be uniform. "encoded" is each field in the encoding that the format has for it, "plain" as it is; the speed
counts decompression and decoding, and the bytes of the decoded table, of all four large fields together.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import measuring
import numpy as np
from numcodecs import blosc

from ooc_mdp.conversion.localise import localise
from ooc_mdp.conversion.partitioners import grid_numbering
from ooc_mdp.problems.registry import make_problem
from ooc_mdp.store.encodings import RowLayout, decode, encode
from ooc_mdp.store.layout import PartitionSizes

Array = np.ndarray[Any, Any]
CODECS = ("lz4:1", "lz4:5", "lz4:9", "zstd:1", "zstd:3", "zstd:9")
CHOSEN = {"successors": "row-delta", "probabilities": "fixed24-delta2", "rewards": None, "durations": "float32-delta2"}
NOT_INCLUDED = (
    "files: bytes are those of blosc frames, decoding is from memory",
    "crc32c, which runs at 10 to 20 GB/s",
    "halo, boundary and pointers, which are a few hundredths of a byte a transition",
)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", default="mountain-car", help="a problem on a grid with uniform rows")
    parser.add_argument("--grid", default="1500,1500", help="points along each axis")
    parser.add_argument("--block-shape", default="150,150", help="points of a partition along each axis")
    parser.add_argument("--partitions", type=int, default=4, help="how many are looked at")
    parser.add_argument("--codecs", default=",".join(CODECS), help="blosc compressor:level, separated by commas")
    parser.add_argument("--repeat", type=int, default=5, help="decodings of each, of which the fastest counts")
    measuring.add_common_options(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    facts = {"machine": measuring.machine(options.machine_shared), "versions": measuring.versions()}
    blosc.use_threads = False
    tables = list(partitions(options))
    transitions = sum(layout.sizes.transitions for layout, _ in tables)
    decoded = sum(a.nbytes for _, fields in tables for a in fields.values()) / transitions
    codecs = options.codecs.split(",")
    plain = {codec: whole(tables, dict.fromkeys(CHOSEN), codec, options.repeat) for codec in codecs}
    encoded = {codec: whole(tables, CHOSEN, codec, options.repeat) for codec in codecs}
    forms = {codec: other_forms(tables, codec) for codec in codecs}
    print(f"{transitions:,} transitions, {decoded:.1f} bytes each in memory")
    lines = [
        [name, *(f"{t[c]['bytes_per_transition']:.3f}, {t[c]['decoded_gb_per_second']:.1f} GB/s" for c in codecs)]
        for name, t in (("plain", plain), ("encoded", encoded))
    ]
    lines += [[name, *(f"{forms[c][name]:.3f}" for c in codecs)] for name in forms[codecs[0]]]
    measuring.print_table(["stored as", *codecs], lines)
    figures = {"decoded_bytes_per_transition": decoded, "plain": plain, "encoded": encoded, "field_forms": forms}
    measuring.write_figures("store_encodings", options, figures, facts, NOT_INCLUDED)


def partitions(options: argparse.Namespace) -> Iterator[tuple[RowLayout, dict[str, Array]]]:
    """Layout and fields of each partition that is looked at."""
    problem = make_problem(options.problem, {"grid": options.grid})
    numbering = grid_numbering(problem.shape or (), [int(n) for n in options.block_shape.split(",")], None, 0)
    count = numbering.partition_ptr.size - 1
    for p in np.unique((np.arange(options.partitions) + 0.5) * count / options.partitions).astype(int).tolist():
        states = numbering.states(p)
        rows = problem.rows(states)
        part = localise(rows, states, p, numbering, problem.n_states, np.dtype(np.float32), problem.name)
        sizes = PartitionSizes(states.size, rows.n_rows, rows.n_transitions, part.halo.size)
        fields = {name: getattr(part, name) for name in CHOSEN}
        yield RowLayout(sizes, rows.n_rows // states.size, rows.n_transitions // rows.n_rows), fields


def frame_of(values: Array, codec: str) -> bytes:
    name, level = codec.split(":")
    flat = np.ascontiguousarray(values).reshape(-1)
    return bytes(blosc.Blosc(cname=name, clevel=int(level), shuffle=blosc.SHUFFLE, typesize=flat.itemsize).encode(flat))


def whole(
    tables: list[tuple[RowLayout, dict[str, Array]]], encodings: dict[str, str | None], codec: str, repeat: int
) -> dict[str, Any]:
    """Bytes and speed of all fields together, and bytes of each."""
    sizes = dict.fromkeys(encodings, 0)
    seconds, decoded, transitions = 0.0, 0, 0
    for layout, fields in tables:
        transitions += layout.sizes.transitions
        for name, values in fields.items():
            encoding = encodings[name]
            stored = values if encoding is None else encode(encoding, values, layout)
            frame = frame_of(stored, codec)
            sizes[name] += len(frame)
            decoded += values.nbytes

            def read(frame: bytes = frame, stored: Array = stored, values: Array = values, e: str | None = encoding,
                     layout: RowLayout = layout) -> Array:  # fmt: skip
                out = np.empty(stored.nbytes, np.uint8)
                blosc.decompress(frame, out)
                found = out.view(stored.dtype)
                return found if e is None else decode(e, found, values.dtype, layout)

            np.testing.assert_array_equal(read(), values)
            seconds += fastest(read, repeat)
    return {
        "bytes_per_transition": sum(sizes.values()) / transitions,
        "decoded_gb_per_second": decoded / seconds / 1e9,
        "field_bytes_per_transition": {name: size / transitions for name, size in sizes.items()},
    }


def fastest(call: Callable[[], object], repeat: int) -> float:
    best = float("inf")
    for _ in range(repeat):
        began = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - began)
    return best


def other_forms(tables: list[tuple[RowLayout, dict[str, Array]]], codec: str) -> dict[str, float]:
    """Bytes a transition of single fields in forms that the format does not have."""
    total: dict[str, int] = {}
    for layout, fields in tables:
        for name, values in forms_of(layout, fields):
            total[name] = total.get(name, 0) + len(frame_of(values, codec))
    transitions = sum(layout.sizes.transitions for layout, _ in tables)
    return {name: size / transitions for name, size in total.items()}


def forms_of(layout: RowLayout, fields: dict[str, Array]) -> Iterator[tuple[str, Array]]:
    n, a, k = layout.sizes.states, layout.actions, layout.width
    s = fields["successors"].reshape(n, a, k)
    offsets = s - np.arange(n).astype(s.dtype)[:, None, None]
    steps = np.concatenate([offsets[:, :, :1], np.diff(s, axis=2)], axis=2)
    yield "successors minus own state", offsets
    yield "row differences, planes (a, k)", steps.transpose(1, 2, 0)
    yield "row differences, planes k", steps.transpose(2, 0, 1)
    yield "minus own state, planes, differences", differences(offsets.transpose(1, 2, 0))
    others = fields["probabilities"].reshape(n, a, k)[:, :, :-1]
    yield "probabilities without the last", others
    weights = np.rint(others.astype(np.float64) * 2**24).astype(np.uint32)
    yield "fixed24", weights
    yield "weights, planes", weights.transpose(1, 2, 0)
    yield "weights, planes, first differences", zigzag(differences(weights.transpose(1, 2, 0)))
    bits = fields["durations"].astype(np.float32).reshape(n, a).T
    yield "durations, float32", bits.T
    yield "durations, planes, first differences", differences(np.ascontiguousarray(bits).view(np.uint32))


def differences(values: Array) -> Array:
    return np.diff(values, axis=-1, prepend=np.zeros_like(values[..., :1]))


def zigzag(values: Array) -> Array:
    signed = values.astype(np.int32)
    return (signed << 1 ^ signed >> 31).astype(np.uint32)


if __name__ == "__main__":
    main()
