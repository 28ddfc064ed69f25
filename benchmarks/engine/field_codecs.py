"""Codecs of a store's large fields: bytes and decompression speed of what their chunks hold, on one thread, in memory.

Chunks of a few partitions are decompressed, and compressed again with each compressor, level, shuffle and block size.
Inverse encodings (`ooc_mdp.store.encodings`) come after, are the same for all of them, and are not counted here.
Seconds are processor time of one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import measuring
import numpy as np
from numcodecs import blosc

from ooc_mdp.store import Store
from ooc_mdp.store.blosc_frame import decode_frame
from ooc_mdp.store.chunk_file import CRC_BYTES
from ooc_mdp.store.encodings import stored_count

__all__ = ["LARGE", "compare", "fastest", "show", "spread_over", "stored_values"]

Array = np.ndarray[Any, Any]
LARGE = ("successors", "probabilities", "rewards", "durations")
_SHUFFLES = {"none": blosc.NOSHUFFLE, "shuffle": blosc.SHUFFLE, "bitshuffle": blosc.BITSHUFFLE}
_LEVELS = ("lz4:1", "lz4:5", "lz4:9", "lz4hc:3", "lz4hc:5", "lz4hc:9", "zstd:1", "zstd:3", "blosclz:5", "blosclz:9")
_BLOCKS = (16 << 10, 64 << 10, 256 << 10, 1 << 20)
CODECS: tuple[tuple[str, str, int], ...] = (
    *((codec, shuffle, 0) for codec in _LEVELS for shuffle in _SHUFFLES),
    *((codec, "shuffle", block) for codec in ("lz4:9", "zstd:1") for block in _BLOCKS),
)
"""Compressor and level, shuffle, and bytes of a block (0: blosc's choice)."""


def compare(store: Store, partitions: int, deadline: float) -> list[dict[str, Any]]:
    """Each field with each codec, until the time is up."""
    chosen = spread_over(store, partitions)
    found: list[dict[str, Any]] = []
    for name in (name for name in LARGE if name in store.fields):
        chunks = list(stored_values(store, name, chosen))
        size = sum(values.nbytes for values in chunks)
        if size == 0:
            continue
        targets = [np.zeros_like(values) for values in chunks]
        copied = sum(fastest(partial(np.copyto, out, values)) for out, values in zip(targets, chunks, strict=True))
        whole = {"field": name, "encoding": store.fields[name].encoding, "value_bytes": size}
        what = {"codec": "uncompressed", "shuffle": "none", "block_bytes": 0}
        found.append(whole | what | figures(size, size, copied, copied))
        for codec, shuffle, block in CODECS:
            if time.monotonic() < deadline:
                what |= {"codec": codec, "shuffle": shuffle, "block_bytes": block}
                found.append(whole | what | measure(chunks, codec, shuffle, block))
    return found


def spread_over(store: Store, partitions: int) -> list[int]:
    """So many partitions, evenly over the store; none of 0."""
    if not partitions:
        return []
    found: list[int] = np.unique((np.arange(partitions) + 0.5) * store.n_partitions // partitions).astype(int).tolist()
    return found


def stored_values(store: Store, name: str, partitions: list[int]) -> Iterator[Array]:
    """What the chunks of a field hold."""
    meta = store.fields[name]
    for p in partitions:
        sizes = store.sizes(p)
        count = stored_count(sizes.of(meta.field.length), meta.encoding, sizes)
        frame = np.fromfile(store.path / store.chunk_name(name, p), np.uint8)[:-CRC_BYTES]
        yield decode_frame(frame, meta.stored, count).copy()


def figures(size: int, stored: int, out_seconds: float, in_seconds: float) -> dict[str, float]:
    return {
        "stored_bytes": stored,
        "ratio": size / stored,
        "decompressed_bytes_per_second": size / out_seconds,
        "compressed_bytes_per_second": size / in_seconds,
    }


def measure(chunks: list[Array], codec: str, shuffle: str, block: int) -> dict[str, float]:
    """Ratio and speeds of one codec over some chunks; speeds count the values' bytes."""
    name, level = codec.split(":")
    out_seconds, in_seconds, stored = 0.0, 0.0, 0
    for values in chunks:
        coder = blosc.Blosc(name, int(level), _SHUFFLES[shuffle], block, typesize=values.itemsize)
        began = time.thread_time()
        frame = coder.encode(values)
        in_seconds += time.thread_time() - began
        out = np.zeros(values.nbytes, np.uint8)
        out_seconds += fastest(lambda frame=frame, out=out: blosc.decompress(frame, out))
        if not np.array_equal(out.view(values.dtype), values):
            raise RuntimeError(f"{codec}, {shuffle}: the values that come out are not those that went in")
        stored += len(frame)
    return figures(sum(values.nbytes for values in chunks), stored, out_seconds, in_seconds)


def fastest(call: Callable[[], object], clock: Callable[[], float] = time.thread_time, repeat: int = 3) -> float:
    """The shortest of some calls, in seconds; of this thread's processor time, which other work does not change."""
    best = float("inf")
    for _ in range(repeat):
        began = clock()
        call()
        best = min(best, clock() - began)
    return best


def show(codecs: list[dict[str, Any]]) -> None:
    if not codecs:
        return
    fields = list(dict.fromkeys(c["field"] for c in codecs))
    by: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for c in codecs:
        by.setdefault((c["codec"], c["shuffle"], c["block_bytes"]), {})[c["field"]] = c
    rows = []
    for (codec, shuffle, block), found in by.items():
        blocks = f", blocks of {block >> 10} KiB" if block else ""
        cells = [_cell([found[name]]) if name in found else "" for name in fields]
        whole = _cell(list(found.values())) if len(found) == len(fields) else ""
        rows.append((f"{codec}, {shuffle}{blocks}", *cells, whole))
    encodings = {c["field"]: c["encoding"] or "as it is" for c in codecs}
    print("\nratio | GB/s of values decompressed | compressed, on one thread")
    measuring.print_table(("codec", *(f"{name} ({encodings[name]})" for name in fields), "all of them"), rows)


def _cell(found: list[dict[str, Any]]) -> str:
    size = sum(c["value_bytes"] for c in found)
    out, back = (
        size / sum(c["value_bytes"] / c[f"{way}_bytes_per_second"] for c in found) / 1e9
        for way in ("decompressed", "compressed")
    )
    return f"{size / sum(c['stored_bytes'] for c in found):.2f} | {out:.1f} | {back:.2f}"


if __name__ == "__main__":
    raise SystemExit("reading.py runs it")
